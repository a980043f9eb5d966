package cudart

/*
#include "driver.h"
*/
import "C"

import (
	"errors"
	"unsafe"
)

// Numbers of the kernels of layers with a state, in the order of recurrenceKernels.
const (
	kConv = kRecurrence + iota
	kConvEdges
	kConvBackward
	kDeltaRule64 // for key dimensions up to 64, 128, 256
	kDeltaRule128
	kDeltaRule256
	kDeltaPrepare
	kDeltaWithin
	kDeltaAcross
	kDeltaGradients
	kGatedNorm
	kGatedNormNarrow
	kGatedNormBackward
	kGatedNormBackwardNarrow
	kSigmoidGate
	kSigmoidGateBackward
	kBehindRecurrence
)

// deltaAcrossShared is D, the gradients by outputs and by what the state is asked for, and rows of W or of queries and keys.
const deltaAcrossShared = 4 * ((C.MAX_DELTA_DIM+2*C.DELTA_CHUNK)*(C.DELTA_CHUNK+1) + 2*C.DELTA_CHUNK*(64+1))

var recurrenceKernels = []kernel{
	{"conv", 256, 0}, {"conv_edges", 256, 0}, {"conv_backward", 256, 0},
	{"delta_rule_64", 256, 0}, {"delta_rule_128", 256, 0}, {"delta_rule_256", 256, 0},
	{"delta_prepare", 128, 0}, {"delta_within", 128, 0}, {"delta_across", 128, deltaAcrossShared}, {"delta_gradients", 128, 0},
	{"gated_norm", 256, 0}, {"gated_norm_narrow", 256, 0}, {"gated_norm_backward", 256, 0}, {"gated_norm_backward_narrow", 256, 0},
	{"sigmoid_gate", 256, 0}, {"sigmoid_gate_backward", 256, 0},
}

// StateRun is a sequence's rows [Row, Row+Count) of a batch, one at least, and the slot of its state; -1: it begins with the zero state and leaves none.
type StateRun struct {
	Row, Count, Slot int64
	kept             int64 // which state is the first that is kept on the way
}

// DeltaInputs is what the delta rule reads, see tensor.DeltaInputs.
type DeltaInputs struct {
	Mixed, A, B, ALog, Bias                View
	KeyHeads, ValueHeads, KeyDim, ValueDim int64
}

// The Go structure is the C one.
const (
	_ = uint(unsafe.Sizeof(StateRun{}) - C.sizeof_state_run)
	_ = uint(C.sizeof_state_run - unsafe.Sizeof(StateRun{}))
)

func (in *DeltaInputs) c() C.delta_inputs {
	return C.delta_inputs{mixed: in.Mixed.c(), a: in.A.c(), b: in.B.c(), a_log: in.ALog.c(), bias: in.Bias.c(), key_heads: C.int64_t(in.KeyHeads), value_heads: C.int64_t(in.ValueHeads),
		key_dim: C.int64_t(in.KeyDim), value_dim: C.int64_t(in.ValueDim)}
}

// stateSize is the number of elements of the states of all heads.
func (in *DeltaInputs) stateSize() int64 { return in.ValueHeads * in.KeyDim * in.ValueDim }

// columnBlocks is how many blocks of DELTA_COLUMNS columns a head's state takes.
func (in *DeltaInputs) columnBlocks() int64 { return divideUp(in.ValueDim, C.DELTA_COLUMNS) }

func divideUp(n, by int64) int64 { return (n + by - 1) / by }

// Conv is y = silu of the causal convolution of x's columns with those of weight. The rows before a run are in its slot of tails, which holds the last ones afterwards; without a slot they are zeros.
func (v *Device) Conv(y, x, weight, tails View, runs []StateRun) error {
	var tiles, ends []C.conv_tile
	for i, r := range runs {
		for from := int64(0); from < r.Count; from += C.CONV_ROWS {
			tiles = append(tiles, C.conv_tile{run: C.int32_t(i), from: C.int32_t(from), to: C.int32_t(min(from+C.CONV_ROWS, r.Count)), keep: flag(r.Count <= C.CONV_ROWS)})
		}
		if r.Slot >= 0 && r.Count > C.CONV_ROWS {
			ends = append(ends, C.conv_tile{run: C.int32_t(i), keep: 1})
		}
	}
	at, release, err := v.putAll(bytesOf(runs), bytesOf(tiles), bytesOf(ends))
	if err != nil {
		return err
	}
	a := C.conv_arguments{y: y.c(), x: x.c(), weight: weight.c(), tails: tails.c(), runs: C.uint64_t(at[0]), tiles: C.uint64_t(at[1])}
	err = v.launch(kConv, int64(len(tiles)), divideUp(x.Cols, 256), 1, bytesIn(&a))
	if err == nil && len(ends) > 0 {
		a.tiles = C.uint64_t(at[2])
		err = v.launch(kConv, int64(len(ends)), divideUp(x.Cols, 256), 1, bytesIn(&a))
	}
	return errors.Join(err, release())
}

// ConvBackward overwrites dx, which may be dy, for whole sequences.
func (v *Device) ConvBackward(dx, dy, x, weight View, runs []StateRun) (err error) {
	var tiles []C.conv_tile
	edges := int64(0)
	for i, r := range runs {
		for from := int64(0); from < r.Count; from += C.CONV_BACK_ROWS {
			t := C.conv_tile{run: C.int32_t(i), from: C.int32_t(from), to: C.int32_t(min(from+C.CONV_BACK_ROWS, r.Count)), keep: -1}
			if int64(t.to) < r.Count {
				t.keep = C.int32_t(edges)
				edges++
			}
			tiles = append(tiles, t)
		}
	}
	at, release, err := v.putAll(bytesOf(runs), bytesOf(tiles))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	a := C.conv_backward_arguments{dx: dx.c(), dy: dy.c(), x: x.c(), weight: weight.c(), runs: C.uint64_t(at[0]), tiles: C.uint64_t(at[1])}
	if size := edges * (weight.Rows - 1) * x.Cols; size > 0 {
		var memory Address
		if memory, err = v.takeScratch(int(4 * size)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, v.giveScratch(memory)) }()
		a.edges = C.uint64_t(memory)
		if err = v.launch(kConvEdges, int64(len(tiles)), divideUp(x.Cols, 256), 1, bytesIn(&a)); err != nil {
			return err
		}
	}
	return v.launch(kConvBackward, int64(len(tiles)), divideUp(x.Cols, 256), 1, bytesIn(&a))
}

// DeltaRule writes the outputs of the gated delta rule, and the states behind the runs to their slots: [value head][key dimension][value dimension].
func (v *Device) DeltaRule(o View, in DeltaInputs, states View, runs []StateRun) error {
	at, release, err := v.Put(bytesOf(runs))
	if err != nil {
		return err
	}
	a := C.delta_arguments{in: in.c(), o: o.c(), states: states.c(), runs: C.uint64_t(at)}
	return errors.Join(v.deltaRule(&in, &a, len(runs)), release())
}

func (v *Device) deltaRule(in *DeltaInputs, a *C.delta_arguments, runs int) error {
	k := kDeltaRule64
	switch {
	case in.KeyDim > 128:
		k = kDeltaRule256
	case in.KeyDim > 64:
		k = kDeltaRule128
	}
	return v.launch(k, int64(runs)*in.columnBlocks(), in.ValueHeads, 1, bytesIn(a))
}

// DeltaChunks is how many chunks of DeltaChunkRows rows DeltaRuleBackward takes at once: their memory does not grow with the batch.
const (
	DeltaChunks    = 32
	DeltaChunkRows = C.DELTA_CHUNK
)

// deltaMemory is where DeltaRuleBackward has what belongs to chunks, in elements of float32 from the beginning of its memory.
type deltaMemory struct {
	gates, normed, before, after, delta, dr, w, starts, carry, size int64
}

// deltaLayout is that for chunks of which so many are there at once, and for a sequence of so many spans of them, each of which but one begins from a state that is kept.
func (in *DeltaInputs) deltaLayout(chunks, spans int64) (m deltaMemory) {
	if spans <= 1 {
		spans = 0
	}
	heads := chunks * in.ValueHeads
	take := func(elements int64) int64 {
		at := m.size
		m.size += elements
		return at
	}
	m.gates = take(heads * C.DELTA_GATES) // the first, for it has float64 elements
	m.normed = take(chunks * C.DELTA_CHUNK * in.KeyHeads * 2 * in.KeyDim)
	m.before, m.after = take(chunks*in.stateSize()), take(chunks*in.stateSize())
	m.delta, m.dr = take(heads*C.DELTA_CHUNK*in.ValueDim), take(heads*C.DELTA_CHUNK*in.ValueDim)
	m.w = take(heads * C.DELTA_CHUNK * in.KeyDim)
	m.starts, m.carry = take(spans*in.stateSize()), take(min(spans, 1)*in.stateSize())
	return m
}

// DeltaRuleBackward overwrites the gradients for dout, of whole sequences. States are computed again, those at the beginnings of chunks are kept: of DeltaChunks at once; of a longer sequence, first those at the beginnings of its spans of
// so many.
func (v *Device) DeltaRuleBackward(dmixed, da, db, dout View, in DeltaInputs, runs []StateRun) (err error) {
	var chunks, longest int64
	for _, r := range runs {
		n := divideUp(r.Count, C.DELTA_CHUNK)
		chunks, longest = chunks+n, max(longest, n)
	}
	m := in.deltaLayout(min(chunks, DeltaChunks), divideUp(longest, DeltaChunks))
	memory, err := v.takeScratch(int(4 * m.size))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.giveScratch(memory)) }()
	at := func(elements int64) C.uint64_t { return C.uint64_t(memory) + C.uint64_t(4*elements) }
	b := deltaBackward{v: v, in: &in, starts: View{At: Address(at(m.starts)), Rows: divideUp(longest, DeltaChunks), Cols: in.stateSize(), Stride: in.stateSize()},
		a: C.delta_backward_arguments{in: in.c(), dmixed: dmixed.c(), da: da.c(), db: db.c(), dout: dout.c(), gates: at(m.gates), normed: at(m.normed), before: at(m.before), after: at(m.after),
			delta: at(m.delta), dr: at(m.dr), w: at(m.w), carry: at(m.carry)}}
	for i := 0; i < len(runs); {
		n, room := 0, int64(DeltaChunks)
		for ; i+n < len(runs); n++ {
			need := divideUp(runs[i+n].Count, C.DELTA_CHUNK)
			if need > room {
				break
			}
			room -= need
		}
		if n > 0 {
			err = b.pass(runs[i:i+n], 0, -1)
		} else {
			n, err = 1, b.long(runs[i])
		}
		if err != nil {
			return err
		}
		i += n
	}
	return nil
}

// deltaBackward is one call's.
type deltaBackward struct {
	v      *Device
	in     *DeltaInputs
	a      C.delta_backward_arguments
	starts View // states at the beginnings of spans
}

// replay goes through runs and keeps the states before every so many rows.
func (b *deltaBackward) replay(runs Address, n int, kept C.uint64_t, every int64) error {
	a := C.delta_arguments{in: b.a.in, states: b.starts.c(), runs: C.uint64_t(runs), kept: kept, every: C.int64_t(every)}
	return b.v.deltaRule(b.in, &a, n)
}

// long takes a sequence of several spans, from the last to the first.
func (b *deltaBackward) long(r StateRun) error {
	const rows = DeltaChunks * C.DELTA_CHUNK
	spans := divideUp(r.Count, rows)
	at, release, err := b.v.Put(bytesOf([]StateRun{{Row: r.Row, Count: (spans - 1) * rows, Slot: -1}}))
	if err != nil {
		return err
	}
	if err := errors.Join(b.replay(at, 1, C.uint64_t(b.starts.At), rows), release()); err != nil {
		return err
	}
	for i := spans - 1; i >= 0; i-- {
		part := StateRun{Row: r.Row + i*rows, Count: min(rows, r.Count-i*rows), Slot: i}
		if err := b.pass([]StateRun{part}, i, spans-1); err != nil {
			return err
		}
	}
	return nil
}

// pass takes runs whose chunks are there at once: whole sequences, or, where last is not negative, the span-th of one whose last that is.
func (b *deltaBackward) pass(runs []StateRun, span, last int64) error {
	var chunks []C.delta_chunk
	var spans []C.delta_span
	var replays []StateRun
	for _, r := range runs {
		n := divideUp(r.Count, C.DELTA_CHUNK)
		s := C.delta_span{first: C.int32_t(len(chunks)), count: C.int32_t(n), last: flag(last < 0 || span == last), first_of: flag(last < 0 || span == 0)}
		replays = append(replays, StateRun{Row: r.Row, Count: (n - 1) * C.DELTA_CHUNK, Slot: r.Slot, kept: int64(len(chunks))})
		for i := range n {
			chunks = append(chunks, C.delta_chunk{row: C.int64_t(r.Row + i*C.DELTA_CHUNK), count: C.int64_t(min(C.DELTA_CHUNK, r.Count-i*C.DELTA_CHUNK))})
		}
		spans = append(spans, s)
	}
	at, release, err := b.v.putAll(bytesOf(replays), bytesOf(chunks), bytesOf(spans))
	if err != nil {
		return err
	}
	b.a.chunks, b.a.spans = C.uint64_t(at[1]), C.uint64_t(at[2])
	err = b.replay(at[0], len(replays), b.a.before, C.DELTA_CHUNK)
	for _, step := range []struct {
		kernel int
		x, y   int64
	}{
		{kDeltaPrepare, int64(len(chunks)), b.in.KeyHeads},
		{kDeltaWithin, int64(len(chunks)), b.in.ValueHeads},
		{kDeltaAcross, int64(len(spans)) * b.in.columnBlocks(), b.in.ValueHeads},
		{kDeltaGradients, int64(len(chunks)), b.in.KeyHeads},
	} {
		if err == nil {
			err = b.v.launch(step.kernel, step.x, step.y, 1, bytesIn(&b.a))
		}
	}
	return errors.Join(err, release())
}

// GatedNorm is y = x / √(mean(x²) + eps) · scale · silu(z), row by row; y may be x or z.
func (v *Device) GatedNorm(y, x, z View, scale Address, eps float32) error {
	a := C.gated_norm_arguments{y: y.c(), x: x.c(), z: z.c(), scale: C.uint64_t(scale), eps: C.float(eps)}
	k, blocks := normGrid(kGatedNorm, kGatedNormNarrow, x)
	return v.launch(k, blocks, 1, 1, bytesIn(&a))
}

// GatedNormBackward overwrites dx, which may be dy, and dz, which may be z.
func (v *Device) GatedNormBackward(dx, dz, dy, x, z View, scale Address, eps float32) error {
	a := C.gated_norm_backward_arguments{dx: dx.c(), dz: dz.c(), dy: dy.c(), x: x.c(), z: z.c(), scale: C.uint64_t(scale), eps: C.float(eps)}
	k, blocks := normGrid(kGatedNormBackward, kGatedNormBackwardNarrow, x)
	return v.launch(k, blocks, 1, 1, bytesIn(&a))
}

// SigmoidGate is y = x · sigmoid(gate); y may be x.
func (v *Device) SigmoidGate(y, x, gate View) error {
	a := C.sigmoid_gate_arguments{y: y.c(), x: x.c(), gate: gate.c()}
	return v.rowwise(kSigmoidGate, y.Rows, y.Cols, bytesIn(&a))
}

// SigmoidGateBackward overwrites dx, which may be dy, and dgate, which may be gate.
func (v *Device) SigmoidGateBackward(dx, dgate, dy, x, gate View) error {
	a := C.sigmoid_gate_backward_arguments{dx: dx.c(), dgate: dgate.c(), dy: dy.c(), x: x.c(), gate: gate.c()}
	return v.rowwise(kSigmoidGateBackward, dy.Rows, dy.Cols, bytesIn(&a))
}
