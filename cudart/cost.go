package cudart

/*
#include "absent.h"
*/
import "C"

import (
	"math"
	"regexp"
	"strings"
	"unsafe"
)

// What launches cost is told by their arguments and the lists that these name. Beside products, attention and the delta rule the operations are few for
// each element, and memory alone counts.

type grid struct{ x, y, z int64 }

// cost is a launch's, see Launch.
type cost struct {
	flop, bytes float64
	steps       int64
}

// family is a kernel's name without its shape or head dimension.
func family(name string) string { return shapePattern.ReplaceAllString(name, "") }

var shapePattern = regexp.MustCompile(`_[0-9]+(x[0-9]+)?$`)

// costs are of every family.
var costs map[string]func(g grid, a unsafe.Pointer) cost

func init() {
	costs = map[string]func(g grid, a unsafe.Pointer) cost{
		"add":         rowCost(func(a *C.two_views) float64 { return 3 * float32s(a.y) }),
		"add_row":     rowCost(func(a *C.two_views) float64 { return 2 * float32s(a.y) }),
		"scale":       rowCost(func(a *C.scale_arguments) float64 { return 2 * float32s(a.y) }),
		"fill_zero":   rowCost(func(a *C.fill_arguments) float64 { return elements(a.y) * size(a._type) }),
		"round_rows":  rowCost(func(a *C.round_arguments) float64 { return elements(a.y) * (size(a.y_type) + size(a.x_type)) }),
		"narrow_rows": rowCost(func(a *C.round_arguments) float64 { return elements(a.x) * (size(a.y_type) + size(a.x_type)) }),
		"pack_rows": rowCost(func(a *C.pack_arguments) float64 {
			return float64(a.rows*a.w.in) * (size(a._type) + size(a.source_type))
		}),
		"repack": func(g grid, a unsafe.Pointer) (c cost) {
			for _, j := range listAt[C.repack_job]((*C.repack_arguments)(a).jobs, g.y) {
				c.bytes += float64(j.w.out*j.w.in) * (4 + size(j._type))
			}
			return c
		},
		"gather_rows":     rowCost(func(a *C.gather_arguments) float64 { return elements(a.y) * (4 + size(a._type)) }),
		"gather_e4m3":     rowCost(func(a *C.gather_arguments) float64 { return elements(a.y) * (4 + size(a._type)) }),
		"gather_elements": rowCost(func(a *C.gather_elements_arguments) float64 { return elements(a.y) * (4 + sector) }),
		"rms_norm":        rowCost(normBytes), "rms_norm_narrow": rowCost(normBytes),
		"rms_norm_backward": rowCost(normBackwardBytes), "rms_norm_backward_narrow": rowCost(normBackwardBytes),
		"rope": rowCost(func(a *C.rope_arguments) float64 { return 2 * 4 * float64(a.x.rows*a.heads*a.table.cols) }), "swiglu": rowCost(swigluBytes),
		"swiglu_backward":         rowCost(swigluBackwardBytes),
		"swiglu_clamped":          rowCost(func(a *C.swiglu_clamped_arguments) float64 { return swigluBytes(&a.of) }),
		"swiglu_clamped_backward": rowCost(func(a *C.swiglu_clamped_backward_arguments) float64 { return swigluBackwardBytes(&a.of) }),
		"write_pages":             rowCost(func(a *C.write_pages_arguments) float64 { return 2 * elements(a.k) * (4 + size(a.c._type)) }),
		"copy_page": rowCost(func(a *C.copy_page_arguments) float64 {
			return 2 * float64(a.layers*2*a.c.heads*C.PAGE_KEYS*a.c.dim) * size(a.c._type)
		}),
		"heads":               rowCost(headsBytes),
		"heads_wide":          rowCost(headsBytes),
		"heads_backward":      rowCost(headsBackwardBytes),
		"heads_backward_wide": rowCost(headsBackwardBytes),
		"log_sum_exp":         rowCost(func(a *C.log_sum_exp_arguments) float64 { return 2 * float32s(a.logits) }), // for the maximum and for the sum
		"softmax":             rowCost(func(a *C.softmax_arguments) float64 { return 2 * float32s(a.p) }),
		"softmax_gradient":    rowCost(func(a *C.softmax_gradient_arguments) float64 { return 2 * float32s(a.logits) }),
		"adjust_elements":     rowCost(func(a *C.adjust_arguments) float64 { return float64(a.count) * 2 * sector }),
		"mask_columns":        rowCost(func(a *C.mask_arguments) float64 { return 2 * float32s(a.x) }),
		"draw_tokens":         rowCost(func(a *C.draw_arguments) float64 { return float32s(a.logits) + float32s(a.probs) }),
		"differentiate":       rowCost(func(a *C.differentiate_arguments) float64 { return 4 * 4 * elements(a.values) }),
		"datum_ratios":        rowCost(func(a *C.datum_ratios_arguments) float64 { return float32s(a.logprobs) }),
		"adamw": func(g grid, a unsafe.Pointer) (c cost) {
			for _, j := range listAt[C.adamw_job]((*C.adamw_arguments)(a).jobs, g.y) {
				c.bytes += 7 * float32s(j.p)
			}
			return c
		},
		"sum_squares": func(g grid, a unsafe.Pointer) (c cost) {
			for _, j := range listAt[C.sum_squares_job]((*C.sum_squares_arguments)(a).jobs, g.y) {
				c.bytes += float32s(j.x)
			}
			return c
		},
		"sum_partials": func(g grid, a unsafe.Pointer) (c cost) {
			for _, j := range listAt[C.sum_squares_job]((*C.sum_squares_arguments)(a).jobs, g.x) {
				c.bytes += 8 * float64(j.count)
			}
			return c
		},
		"outer_group": outerGroupCost, "outer_product": outerCost, "attention": attentionCost(false), "attention_few": attentionCost(false), "attention_part": attentionCost(true),
		"group_attention": attentionCost(false), "tensor_attention": attentionCost(false), "tensor_attention_few": attentionCost(false), "tensor_attention_part": attentionCost(true),
		"attention_merge": rowCost(func(a *C.attention_arguments) float64 {
			return 4*float64(a.q.rows*a.c.heads*a.group*a.part_count*(a.c.dim+2)) + float32s(a.o)
		}),
		"attention_delta": rowCost(func(a *C.attention_backward_arguments) float64 { return elements(a.o) * (4 + size(a.o_type)) }),
		"sink": rowCost(func(a *C.sink_arguments) float64 {
			if a.kept.at != 0 {
				return elements(a.o) * (4 + 2)
			}
			return 2 * float32s(a.o)
		}),
		"route": rowCost(func(a *C.route_arguments) float64 { return float32s(a.logits) + 2*float32s(a.p) }),
		"route_backward": rowCost(func(a *C.route_backward_arguments) float64 {
			return float32s(a.logits) + float32s(a.dlogits) + 3*float32s(a.p)
		}),
		"dispatch": rowCost(func(a *C.dispatch_arguments) float64 { return 4 * elements(a.choice) * 4 }), // the choice; a row's token, its slot, and the slot's row
		"spread":   rowCost(func(a *C.spread_arguments) float64 { return 2 * float32s(a.rows) }),
		"combine": rowCost(func(a *C.combine_arguments) float64 {
			return float32s(a.rows) + float32s(a.y)*float64(1+a.accumulate)
		}),
		"combine_backward":    rowCost(func(a *C.combine_backward_arguments) float64 { return 2*float32s(a.drows) + float32s(a.h) }),
		"add_routed":          rowCost(func(a *C.add_routed_arguments) float64 { return 2 * float32s(a.rows) }),
		"add_routed_backward": rowCost(func(a *C.add_routed_backward_arguments) float64 { return float32s(a.dy) * float64(max(1, a.dp.cols)) }),
		"outer_routed":        outerRoutedCost,
		"pack_e4m3":           rowCost(func(a *C.pack_e4m3_arguments) float64 { return 2 * float64(a.rows*a.w.in) }),
		"expand_e4m3":         rowCost(func(a *C.expand_e4m3_arguments) float64 { return 3 * float64(a.to.out*a.to.in) }),
		"conv": func(g grid, a unsafe.Pointer) cost {
			c := (*C.conv_arguments)(a)
			rows := float64(0)
			for _, t := range listAt[C.conv_tile](c.tiles, g.x) {
				rows += float64(t.to - t.from)
			}
			return cost{flop: 2 * rows * float64(c.x.cols*c.weight.rows), bytes: 8 * rows * float64(c.x.cols)}
		},
		"conv_edges": rowCost(func(*C.conv_backward_arguments) float64 { return 0 }),
		"conv_backward": func(_ grid, a unsafe.Pointer) cost {
			c := (*C.conv_backward_arguments)(a)
			return cost{flop: 4 * elements(c.x) * float64(c.weight.rows), bytes: 3 * float32s(c.x)}
		},
		"delta_rule": deltaRuleCost,
		"delta_prepare": deltaChunksCost(func(in *C.delta_inputs, rows float64) (flop, bytes float64) {
			return 0, 8 * rows * 2 * float64(in.key_heads*in.key_dim)
		}),
		// k·kᵀ, the triangle, Δ and w of it, what the state is asked for
		"delta_within": deltaChunksCost(func(in *C.delta_inputs, rows float64) (flop, bytes float64) {
			k, v, heads := float64(in.key_dim), float64(in.value_dim), float64(in.value_heads)
			return rows * heads * (3*C.DELTA_CHUNK*(k+v) + 4*k*v), rows*heads*4*(2*k+3*v) + rows/C.DELTA_CHUNK*heads*4*k*v
		}),
		// The state's gradient goes from chunk to chunk: d += qᵀ·do - wᵀ·dΔ, and what is read of it.
		"delta_across": func(g grid, a unsafe.Pointer) cost {
			c := (*C.delta_backward_arguments)(a)
			k, v, heads := float64(c.in.key_dim), float64(c.in.value_dim), float64(c.in.value_heads)
			chunks, longest := float64(0), int64(0)
			for _, s := range listAt[C.delta_span](c.spans, g.x/divideUp(int64(c.in.value_dim), C.DELTA_COLUMNS)) {
				chunks, longest = chunks+float64(s.count), max(longest, int64(s.count))
			}
			rows := chunks * C.DELTA_CHUNK
			return cost{flop: rows * heads * (6*k*v + 2*C.DELTA_CHUNK*v), bytes: 4 * heads * (rows*(2*k+3*v) + chunks*k*v), steps: longest * C.DELTA_CHUNK}
		},
		"delta_gradients": deltaChunksCost(func(in *C.delta_inputs, rows float64) (flop, bytes float64) {
			k, v, heads := float64(in.key_dim), float64(in.value_dim), float64(in.value_heads)
			return rows * heads * (8*k*v + 6*C.DELTA_CHUNK*(k+v)), 4*rows*heads*(3*k+4*v) + rows/C.DELTA_CHUNK*heads*8*k*v
		}),
		"gated_norm":                 rowCost(gatedNormBytes),
		"gated_norm_narrow":          rowCost(gatedNormBytes),
		"gated_norm_backward":        rowCost(gatedNormBackwardBytes),
		"gated_norm_backward_narrow": rowCost(gatedNormBackwardBytes),
		"sigmoid_gate":               rowCost(func(a *C.sigmoid_gate_arguments) float64 { return 3 * float32s(a.y) }),
		"sigmoid_gate_backward":      rowCost(func(a *C.sigmoid_gate_backward_arguments) float64 { return 5 * float32s(a.dy) }),
	}
	for _, transposed := range []string{"", "_transposed"} {
		back := transposed != ""
		costs["product"+transposed+"_float32"] = oneProductCost(4, back)
		costs["product_group"+transposed], costs["product_group"+transposed+"_wide"] = oneProductCost(2, back), oneProductCost(2, back)
		costs["product"+transposed], costs["product_e4m3"+transposed] = productsCost(2, back), productsCost(1, back)
		costs["routed"+transposed+"_float32"], costs["routed"+transposed], costs["routed_e4m3"+transposed] = routedCost(4, back), routedCost(2,
			back), routedCost(1, back)
	}
	for _, keys := range []bool{true, false} {
		name := "attention_backward_queries"
		if keys {
			name = "attention_backward_keys"
		}
		costs[name], costs["tensor_"+name], costs["group_"+name] = attentionBackwardCost(keys), attentionBackwardCost(keys), attentionBackwardCost(keys)
	}
}

// sector is what memory gives at least, where single elements are read.
const sector = 32

func elements(v C.view) float64 { return float64(v.rows * v.cols) }
func float32s(v C.view) float64 { return 4 * elements(v) }

// size is that of a type's elements.
func size(t C.int32_t) float64 {
	switch t {
	case C.FLOAT32:
		return 4
	case C.E4M3:
		return 1
	}
	return 2
}

// rowCost is of a kernel of which only the bytes count.
func rowCost[A any](bytes func(a *A) float64) func(grid, unsafe.Pointer) cost {
	return func(_ grid, a unsafe.Pointer) cost { return cost{bytes: bytes((*A)(a))} }
}

func normBytes(a *C.norm_arguments) float64 {
	bytes := elements(a.x) * (4 + size(a.y_type))
	if a.add.at != 0 { // it is read, and the sum written
		bytes += 2 * float32s(a.x)
	}
	return bytes
}

func normBackwardBytes(a *C.norm_backward_arguments) float64 {
	return float32s(a.x) * float64(3+a.accumulate)
}

func swigluBytes(a *C.swiglu_arguments) float64 {
	bytes := elements(a.y) * (2*size(a.from_type) + size(a.y_type))
	if a.kept_gate.at != 0 {
		bytes += elements(a.y) * 2 * 2
	}
	return bytes
}

func swigluBackwardBytes(a *C.swiglu_backward_arguments) float64 {
	return elements(a.dy) * (3*4 + 2*size(a.from_type))
}

func headsBytes(a *C.heads_arguments) float64 {
	bytes := elements(a.queries)*(4+size(a.q_type)) + 2*elements(a.keys)*(4+size(a.c._type))
	if a.kept_queries.at != 0 {
		bytes += 2 * elements(a.queries)
	}
	if a.kept_keys.at != 0 {
		bytes += 2 * elements(a.keys)
	}
	return bytes
}

func headsBackwardBytes(a *C.heads_backward_arguments) float64 {
	bytes := 2 * (float32s(a.dq) + float32s(a.dk))
	if a.query_scale != 0 {
		bytes += elements(a.dq) * size(a.query_type)
	}
	if a.key_scale != 0 {
		bytes += elements(a.dk) * size(a.key_type)
	}
	return bytes
}

func gatedNormBytes(a *C.gated_norm_arguments) float64                  { return 3 * float32s(a.x) }
func gatedNormBackwardBytes(a *C.gated_norm_backward_arguments) float64 { return 5 * float32s(a.x) }

// outerCost is that of the gradients of adapters.
func outerCost(g grid, a unsafe.Pointer) (c cost) {
	arguments := (*C.outer_arguments)(a)
	jobs := int64(0)
	for _, t := range listAt[C.outer_tile](arguments.tiles, g.x) {
		jobs = max(jobs, int64(t.job)+1)
	}
	for _, j := range listAt[C.outer_product_job](arguments.jobs, jobs) {
		if j.a.rows == 0 {
			continue
		}
		c.flop += 2 * float64(j.a.rows) * elements(j.g)
		c.steps = max(c.steps, int64(j.a.rows))
		c.bytes += float32s(j.a) + float32s(j.b) + float32s(j.g)
		if j.first == 0 {
			c.bytes += float32s(j.g)
		}
	}
	return c
}

// outerGroupCost is theirs by groups of rows. A multiplication is six.
func outerGroupCost(g grid, a unsafe.Pointer) (c cost) {
	arguments := (*C.outer_arguments)(a)
	jobs := int64(0)
	for _, t := range listAt[C.outer_tile](arguments.tiles, g.x) {
		jobs = max(jobs, int64(t.job)+1)
	}
	for _, j := range listAt[C.outer_group_job](arguments.jobs, jobs) {
		c.flop += 6 * 2 * float64(j.count) * outerGroupRows * elements(j.g)
		c.steps = max(c.steps, int64(j.count))
		c.bytes += float32s(j.a) + float32s(j.b) + float32s(j.g)
		if j.first == 0 {
			c.bytes += float32s(j.g)
		}
	}
	return c
}

// reads counts operands that several products of a launch have in common once.
type reads map[C.uint64_t]bool

func (r reads) first(at C.uint64_t) bool {
	seen := r[at]
	r[at] = true
	return !seen
}

// productCost adds a product's, whose weights have elements of so many bytes; down is the number of its tiles of rows.
func (c *cost) productCost(a *C.product_arguments, down int64, weightSize float64, transposed bool, seen reads) {
	groups := []C.row_group{a.only}
	if a.groups != 0 {
		most := int64(0)
		for _, t := range listAt[C.product_tile](a.tiles, down) {
			most = max(most, int64(t.group)+1)
		}
		groups = listAt[C.row_group](a.groups, most)
	}
	sides := func(w C.weight) (depth, outputs float64) {
		if transposed {
			return float64(w.out), float64(w.in)
		}
		return float64(w.in), float64(w.out)
	}
	for i := range groups {
		g := &groups[i]
		rows := float64(g.to - g.from)
		if rows <= 0 {
			continue
		}
		of := func(w C.weight, x C.view, xType C.int32_t) (outputs float64) {
			depth, outputs := sides(w)
			c.flop += 2 * rows * depth * outputs
			if seen.first(w.at) {
				c.bytes += depth * outputs * weightSize
			}
			if seen.first(x.at + C.uint64_t(g.from*x.stride)*C.uint64_t(size(xType))) {
				c.bytes += rows * depth * size(xType)
			}
			return outputs
		}
		outputs := of(g.w, a.x, a.x_type)
		depth, _ := sides(g.w)
		if g.tail.at != 0 {
			of(g.tail, a.tail_x, a.tail_type)
			more, _ := sides(g.tail)
			depth += more
		}
		if weightSize < 4 {
			c.steps = max(c.steps, int64(depth+15)/16)
		}
		c.bytes += 4 * rows * outputs * float64(1+a.accumulate)
	}
}

func oneProductCost(weightSize float64, transposed bool) func(grid, unsafe.Pointer) cost {
	return func(g grid, a unsafe.Pointer) (c cost) {
		c.productCost((*C.product_arguments)(a), g.x, weightSize, transposed, reads{})
		return c
	}
}

func productsCost(weightSize float64, transposed bool) func(grid, unsafe.Pointer) cost {
	return func(_ grid, a unsafe.Pointer) (c cost) {
		all, begin, seen := (*C.products_arguments)(a), C.int32_t(0), reads{}
		for i := range all.of {
			if all.blocks[i].end > begin {
				c.productCost(&all.of[i], int64(all.blocks[i].down), weightSize, transposed, seen)
			}
			begin = all.blocks[i].end
		}
		return c
	}
}

// attentionCost is the forward pass's. Keys and values are read once for each sequence, of a window only what it has.
func attentionCost(parts bool) func(grid, unsafe.Pointer) cost {
	return func(g grid, a unsafe.Pointer) (c cost) {
		p := (*C.attention_arguments)(a)
		dim, heads, all := float64(p.c.dim), float64(p.c.heads), float64(p.c.heads*p.group)
		for _, s := range sequencesOf(p.sequences, p.tiles, g.x) {
			from, to := int64(s.first), int64(s.first+s.count)
			rows := float64(s.count)
			c.flop += 4 * dim * all * pairs(from, to, 0, to, int64(s.window))
			keys := float64(to)
			if s.window > 0 {
				keys = min(keys, float64(s.window+s.count))
			}
			c.bytes += 2*keys*dim*heads*size(p.c._type) + rows*all*dim*size(p.q_type)
			switch {
			case parts:
				c.bytes += 4 * rows * all * (dim + 2) * float64(p.part_count)
			case p.kept.at != 0:
				c.bytes += 2 * rows * all * dim
			default:
				c.bytes += 4 * rows * all * dim
			}
		}
		return c
	}
}

// attentionBackwardCost is that of the gradients of keys and values, for which there are four products of queries and keys, or of those of queries, with
// three. Scores are computed once more where two blocks share a head's columns.
func attentionBackwardCost(keys bool) func(grid, unsafe.Pointer) cost {
	return func(g grid, a unsafe.Pointer) (c cost) {
		p := (*C.attention_backward_arguments)(a)
		products, tiles := float64(3), g.x
		if keys { // each head of a tile is a block
			products, tiles = float64(2+2*g.z), g.x/int64(p.c.heads)
		}
		dim, heads, all := float64(p.c.dim), float64(p.c.heads), float64(p.c.heads*p.group)
		for _, s := range sequencesOf(p.sequences, p.tiles, tiles) {
			from, to := int64(max(s.rows_from, s.keys_from)), int64(s.rows_to)
			keysTo := min(int64(s.keys_to), int64(s.rows_to))
			if to <= from {
				continue
			}
			c.flop += 2 * products * dim * all * pairs(from, to, int64(s.keys_from), keysTo, int64(s.window))
			rows, columns := float64(to-from), float64(keysTo-int64(s.keys_from))
			c.bytes += rows*all*(dim*(size(p.q_type)+4)+8) + 2*columns*heads*dim*size(p.c._type)
			if keys {
				c.bytes += 2 * 4 * columns * heads * dim
			} else {
				c.bytes += 4 * rows * all * dim
			}
		}
		return c
	}
}

// sequencesOf are those that tiles belong to.
func sequencesOf(sequences, tiles C.uint64_t, n int64) (all []C.sequence) {
	seen := map[C.int32_t]bool{}
	most := int64(0)
	list := listAt[C.attention_tile](tiles, n)
	for _, t := range list {
		most = max(most, int64(t.sequence)+1)
	}
	whole := listAt[C.sequence](sequences, most)
	for _, t := range list {
		if !seen[t.sequence] {
			seen[t.sequence] = true
			all = append(all, whole[t.sequence])
		}
	}
	return all
}

// pairs is how many keys of [keysFrom, keysTo) the positions [from, to) see, window of them at most; 0: all up to their own.
func pairs(from, to, keysFrom, keysTo, window int64) (n float64) {
	for at := from; at < to; at++ {
		first := keysFrom
		if window > 0 {
			first = max(first, at+1-window)
		}
		n += float64(max(0, min(at+1, keysTo)-first))
	}
	return n
}

// The device alone knows which experts tokens choose. Costs are of choices that are as likely for each: so many have a token of so many.
func chosenExperts(t *C.expert_table, tokens float64) float64 {
	of := float64(t.experts)
	return float64(t.to-t.from) * (1 - math.Pow(1-float64(t.slots)/of, tokens))
}

// share is which part of the rows experts of the launch have.
func share(t *C.expert_table) float64 { return float64(t.to-t.from) / float64(t.experts) }

func routedCost(weightSize float64, transposed bool) func(grid, unsafe.Pointer) cost {
	return func(g grid, a unsafe.Pointer) (c cost) {
		p := (*C.routed_arguments)(a)
		jobs := p.own[:min(g.y, C.FEW_ROUTED)]
		if p.jobs != 0 {
			jobs = listAt[C.routed_job](p.jobs, g.y)
		}
		seen := reads{}
		for i := range jobs {
			j := &jobs[i]
			depth, outputs := float64(j.w.in), float64(j.w.out)
			if transposed {
				depth, outputs = outputs, depth
			}
			tokens := float64(j.end - j.first)
			rows := tokens * float64(p.table.slots) * share(&p.table)
			c.flop += 2 * rows * depth * outputs
			if weightSize < 4 {
				c.steps = max(c.steps, int64(depth+15)/16)
			}
			if seen.first(j.w.at) {
				c.bytes += chosenExperts(&p.table, tokens) * depth * outputs * weightSize
			}
			if seen.first(j.x.at) {
				x := rows
				if j.gathered != 0 { // a token's row is read once
					x = tokens
				}
				c.bytes += x * depth * size(j.x_type)
			}
			c.bytes += 4 * rows * outputs * float64(1+j.accumulate)
		}
		return c
	}
}

func outerRoutedCost(g grid, a unsafe.Pointer) (c cost) {
	p := (*C.outer_routed_arguments)(a)
	jobs := p.own[:min(g.y, C.FEW_ROUTED)]
	if p.jobs != 0 {
		jobs = listAt[C.routed_outer_job](p.jobs, g.y)
	}
	for i := range jobs {
		j := &jobs[i]
		rows := float64(j.to-j.from) * float64(p.table.slots) * share(&p.table)
		c.flop += 2 * rows * float64(j.a.cols*j.b.cols)
		c.steps = max(c.steps, int64(rows)/max(1, int64(p.table.to-p.table.from))) // of an expert that has as many as others
		c.bytes += 4 * (rows*float64(j.a.cols+j.b.cols) + 2*float64(p.table.to-p.table.from)*float64(j.a.cols*j.b.cols))
	}
	return c
}

// deltaRuleCost is that of going through tokens one by one: a state decays, is asked for the key's value, changed, and asked for the query's.
func deltaRuleCost(g grid, a unsafe.Pointer) (c cost) {
	p := (*C.delta_arguments)(a)
	k, v, heads := float64(p.in.key_dim), float64(p.in.value_dim), float64(p.in.value_heads)
	for _, r := range listAt[C.state_run](p.runs, g.x/divideUp(int64(p.in.value_dim), C.DELTA_COLUMNS)) {
		rows := float64(r.count)
		c.flop += 7 * rows * heads * k * v
		c.bytes += 4 * rows * (2*float64(p.in.key_heads)*k + heads*(v+2))
		if p.o.at != 0 {
			c.bytes += 4*rows*heads*v + 8*heads*k*v
		} else if p.every > 0 {
			c.bytes += 4 * heads * k * v * (rows/float64(p.every) + 1)
		}
		c.steps = max(c.steps, int64(r.count))
	}
	return c
}

// deltaChunksCost is of a kernel with a block for each chunk.
func deltaChunksCost(of func(in *C.delta_inputs, rows float64) (flop, bytes float64)) func(grid, unsafe.Pointer) cost {
	return func(g grid, a unsafe.Pointer) (c cost) {
		p := (*C.delta_backward_arguments)(a)
		rows := float64(0)
		for _, chunk := range listAt[C.delta_chunk](p.chunks, g.x) {
			rows += float64(chunk.count)
		}
		c.flop, c.bytes = of(&p.in, rows)
		return c
	}
}

// Routed says whether a kernel's cost stands on the choice of experts, which is not known before it runs.
func (l Launch) Routed() bool {
	return strings.HasPrefix(l.Kernel, "routed") || l.Kernel == "outer_routed"
}
