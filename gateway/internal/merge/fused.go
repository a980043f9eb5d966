package merge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// fusedModules are modules that files of some models have as one matrix, whose rows are those of the parts, one below another. Adapters may have LoRA on the parts.
var fusedModules = map[string][]string{
	"qkv_proj":     {"q_proj", "k_proj", "v_proj"},
	"gate_up_proj": {"gate_proj", "up_proj"},
	"in_proj_qkv":  {"in_proj_q", "in_proj_k", "in_proj_v"},
}

// inTurns are such modules whose parts' rows take turns: of each key head of linear attention some of each part.
var inTurns = map[string][]string{
	"in_proj_qkvz": {"in_proj_q", "in_proj_k", "in_proj_v", "in_proj_z"},
	"in_proj_ba":   {"in_proj_b", "in_proj_a"},
}

// layout is how the tensors of a base hold what modules have.
type layout struct {
	nested     bool  // the text model's tensors are among others, under names of their own
	keyHeads   int64 // of linear attention; 0 = it has none
	transposed bool  // tensors of all experts may be experts × in × out
	turns      bool  // and those of gates and ups take turns in them
	tensors    map[string]tensor
}

// transposedExperts are the architectures whose files have experts so, and whether gates and ups take turns.
var transposedExperts = map[string]bool{"Qwen3VLMoeForConditionalGeneration": false, "GptOssForCausalLM": true}

// readLayout reads it from the configuration, and from the names of the tensors.
func readLayout(config []byte, tensors map[string]tensor) (layout, error) {
	var c, text struct {
		Architectures []string `json:"architectures"`
		KeyHeads      int64    `json:"linear_num_key_heads"`
	}
	var parts map[string]json.RawMessage
	if err := errors.Join(json.Unmarshal(config, &parts), json.Unmarshal(config, &c)); err != nil {
		return layout{}, fmt.Errorf("%s: %w", configFile, err)
	}
	if raw := parts[textConfigKey]; len(raw) > 0 {
		if err := json.Unmarshal(raw, &text); err != nil {
			return layout{}, fmt.Errorf("%s: %s: %w", configFile, textConfigKey, err)
		}
	}
	l := layout{tensors: tensors, nested: isNested(tensors), keyHeads: cmp.Or(text.KeyHeads, c.KeyHeads)}
	for _, name := range c.Architectures {
		turns, transposed := transposedExperts[name]
		l.transposed, l.turns = l.transposed || transposed, l.turns || turns
	}
	return l, nil
}

// placed is the LoRA of some rows of a tensor, as one matrix of all its rows: rows [from, from+rows) get those of B·A from row first on. Transposed they get rows of (B·A)ᵀ, from a column on, in every
// apart-th column.
type placed struct {
	*module
	from, first, rows int64
	column, apart     int64
	transposed        bool
}

// lorasOf finds the LoRA of a tensor of the base: that of its module, or those of the parts that are one matrix in it, or of all experts. The names of the modules that it is of are marked in used. The rows of a part are known only if the
// adapter has all parts.
func (a *adapter) lorasOf(name string, t tensor, layout layout, used map[string]bool) ([]placed, error) {
	if all, ok, err := a.lorasOfExperts(name, t, layout, used); ok {
		return all, err
	}
	whole, isWeight := strings.CutSuffix(inAdapter(layout.nested, name), ".weight")
	if !isWeight {
		return nil, nil
	}
	at := strings.LastIndexByte(whole, '.') + 1
	parts, groups := fusedModules[whole[at:]], int64(1)
	if parts == nil {
		parts, groups = inTurns[whole[at:]], layout.keyHeads
	}
	var missing, found []string
	for _, part := range parts {
		if part = whole[:at] + part; a.modules[part] == nil {
			missing = append(missing, part)
		} else {
			found = append(found, part)
			used[part] = true
		}
	}
	if m := a.modules[whole]; m != nil {
		if len(found) > 0 {
			return nil, fmt.Errorf("the adapter has LoRA on %.200q and on %.200q, which is a part of it", whole, found[0])
		}
		used[whole] = true
		return []placed{{module: m, rows: m.b.shape[0]}}, fits(name, t, m.b.shape[0], m)
	}
	if len(found) == 0 {
		return nil, nil
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the adapter has LoRA on %.200q, a part of the base model's tensor %.200q, and none on %.200q: parts are merged only all together; train them all, or take an adapter of %s", found[0], name, missing[0], whole[at:])
	}
	if groups < 1 {
		return nil, fmt.Errorf("%s: linear_num_key_heads is %d, by which the rows of tensor %.200q take turns", configFile, groups, name)
	}
	var all []placed
	rows := int64(0)
	for group := range groups {
		for _, part := range found {
			m := a.modules[part]
			n := m.b.shape[0] / groups
			if n*groups != m.b.shape[0] {
				return nil, fmt.Errorf("the adapter's LoRA on %.200q is for %d rows, which %d key heads do not share", part, m.b.shape[0], groups)
			}
			all = append(all, placed{module: m, from: rows, first: group * n, rows: n})
			rows += n
		}
	}
	for _, part := range found {
		if err := fits(name, t, rows, a.modules[part]); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// fits checks that a tensor is a matrix of so many rows, with the columns of a module's LoRA, and of a type that is computed with.
func fits(name string, t tensor, rows int64, m *module) error {
	if len(t.shape) != 2 || t.shape[1] < 1 || t.shape[0] != rows || t.shape[1] != m.a.shape[1] {
		return fmt.Errorf("tensor %.200q has shape %v, the adapter's LoRA is for [%d %d]", name, t.shape, rows, m.a.shape[1])
	}
	if !isFloat(t.dtype) {
		return fmt.Errorf("tensor %.200q is of type %s: only float32, bfloat16 and float16 can be merged into; use the model that is not quantized", name, t.dtype)
	}
	return nil
}

// rowsAdder gives what adds the LoRA of a tensor's modules to its rows [from, from+n), which come in order and have so many columns. It holds what modules of these rows have.
func (a *adapter) rowsAdder(ctx context.Context, all []placed, columns int64) func(rows []float32, from, n int64) error {
	last := map[*module]int64{} // the row behind those that a module is of
	for _, p := range all {
		last[p.module] = max(last[p.module], p.from+p.rows)
	}
	held := map[*module]*pair{}
	next := 0 // of all, which are in order of their rows
	return func(rows []float32, from, n int64) error {
		for next < len(all) && all[next].from+all[next].rows <= from {
			next++
		}
		for _, p := range all[next:] {
			first, end := max(from, p.from), min(from+n, p.from+p.rows)
			if p.from >= from+n {
				break
			}
			if first >= end {
				continue
			}
			if held[p.module] == nil {
				var err error
				if held[p.module], err = a.pair(ctx, p); err != nil {
					return err
				}
			}
			b, err := held[p.module].rows(ctx, a, p, first-p.from+p.first, end-first)
			if err != nil {
				return err
			}
			add(rows[(first-from)*columns:(end-from)*columns], held[p.module].down, b, int(p.rank), int(columns), int(p.column), int(max(1, p.apart)), float32(p.scale))
		}
		for m, row := range last {
			if row <= from+n {
				delete(held, m)
			}
		}
		return nil
	}
}

// pair is what is held of a module: the right factor, and, transposed, the left one.
type pair struct{ down, up []float32 }

func (a *adapter) pair(ctx context.Context, p placed) (*pair, error) {
	down, err := a.floats(ctx, p.a, 0, p.rank)
	if err != nil || !p.transposed {
		return &pair{down: down}, err
	}
	up, err := a.floats(ctx, p.b, 0, p.b.shape[0])
	return &pair{down: transpose(up, int(p.rank)), up: transpose(down, int(p.a.shape[1]))}, err
}

// rows are n rows of the left factor.
func (x *pair) rows(ctx context.Context, a *adapter, p placed, from, n int64) ([]float32, error) {
	if p.transposed {
		return x.up[from*p.rank : (from+n)*p.rank], nil
	}
	return a.floats(ctx, p.b, from, n)
}

// transpose gives the columns of a matrix with so many as rows.
func transpose(values []float32, columns int) []float32 {
	rows := len(values) / columns
	out := make([]float32, len(values))
	for i := range rows {
		for j := range columns {
			out[j*rows+i] = values[i*columns+j]
		}
	}
	return out
}

// checkUsed refuses an adapter with a module that is of no tensor of the base.
func (a *adapter) checkUsed(used map[string]bool, nested bool) error {
	names := a.names()
	i := slices.IndexFunc(names, func(name string) bool { return !used[name] })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("the adapter has LoRA on %.200q, and the base model has no tensor %.200q", names[i], inFile(nested, names[i])+".weight")
}
