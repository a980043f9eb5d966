package nn

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// DeltaNet is linear attention by the gated delta rule: queries, keys and values go through a causal convolution, a state of every value head takes them up one token after another, and what it gives is normed and gated. It
// goes token by token in training as in sampling. Where a model is cut, each rank has some of the key heads, with the value heads that use them: nothing but the products with O, and those back to the input, is summed over ranks.
type DeltaNet struct {
	Q, K, V, Z, A, B, O Linear
	Filter              tensor.Tensor // of the convolution: width × (queries, keys, values)
	ALog, Bias          tensor.Tensor // of the decay, 1 × value heads
	Norm                RMSNorm       // of the outputs of a value head
	KeyHeads, KeyDim    int
	ValueHeads          int
	ValueDim            int
	State, Tail         int // where this layer's state and the end of its convolution's inputs begin in a slot of Pass.States
}

// DeltaNetActivations is what backward needs.
type DeltaNetActivations struct {
	mixed                      tensor.Tensor // queries, keys and values as products gave them
	z, a, b, o                 tensor.Tensor
	qa, ka, va, za, aa, ba, oa LinearActivations
}

// StateSize is the elements of a slot that a layer takes: its states and the rows that its convolution still sees.
func (d *DeltaNet) StateSize() (state, tail int) {
	in := d.inputs()
	return in.StateSize(), (d.Filter.Rows - 1) * in.MixedSize()
}

func (d *DeltaNet) inputs() tensor.DeltaInputs {
	return tensor.DeltaInputs{ALog: d.ALog, Bias: d.Bias, KeyHeads: d.KeyHeads, ValueHeads: d.ValueHeads, KeyDim: d.KeyDim, ValueDim: d.ValueDim}
}

// NewActivations implements Sublayer.
func (*DeltaNet) NewActivations() Activations { return &DeltaNetActivations{} }

// WithWeights implements Sublayer.
func (d *DeltaNet) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	other := *d
	reweigh(weight, &other.Q, &other.K, &other.V, &other.Z, &other.A, &other.B, &other.O)
	return &other
}

// rounds implements Sublayer.
func (d *DeltaNet) rounds(p *Pass) bool { return p.roundRows(&d.Q, &d.K, &d.V, &d.Z, &d.A, &d.B) }

// parts are the columns of queries, keys and values.
func (d *DeltaNet) parts(mixed tensor.Tensor) (q, k, v tensor.Tensor) {
	keys := d.KeyHeads * d.KeyDim
	return mixed.Columns(0, keys), mixed.Columns(keys, 2*keys), mixed.Columns(2*keys, mixed.Cols)
}

func (d *DeltaNet) reserve(p *Pass, rows int, a *DeltaNetActivations) error {
	in, values := d.inputs(), d.ValueHeads*d.ValueDim
	if err := p.get(rows, slot{&a.mixed, p.Keep, in.MixedSize()}, slot{&a.z, p.Keep, values}, slot{&a.a, p.Keep, d.ValueHeads}, slot{&a.b, p.Keep, d.ValueHeads}, slot{&a.o, p.Keep, values}); err != nil {
		return err
	}
	return errors.Join(d.Q.reserve(p, rows, &a.qa), d.K.reserve(p, rows, &a.ka), d.V.reserve(p, rows, &a.va), d.Z.reserve(p, rows, &a.za), d.A.reserve(p, rows, &a.aa), d.B.reserve(p, rows, &a.ba), d.O.reserve(p, rows, &a.oa))
}

// slots gives the layer's columns of the slots, none where no run has one.
func (d *DeltaNet) slots(p *Pass) (states, tails tensor.Tensor) {
	if p.States.Buffer == nil {
		return
	}
	state, tail := d.StateSize()
	return p.States.Columns(d.State, d.State+state), p.States.Columns(d.Tail, d.Tail+tail)
}

// deltaWork is about what one token costs in operations of a product: for every element of the states.
const deltaWork = 7

// Forward implements Sublayer. The runs' states and the ends of their inputs go on in the slots of the pass.
func (d *DeltaNet) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	_, err := d.forwardAdding(p, out, tensor.Tensor{}, h, activations)
	return err
}

// forwardAdding implements adder; an add without a buffer is none.
func (d *DeltaNet) forwardAdding(p *Pass, out, add, h tensor.Tensor, activations Activations) (added bool, err error) {
	a := activations.(*DeltaNetActivations)
	if err := d.reserve(p, h.Rows, a); err != nil {
		return false, err
	}
	mark := p.Temp.Mark()
	q, k, v := d.parts(a.mixed)
	if err := p.linears(h, application{&d.Q, q, &a.qa}, application{&d.K, k, &a.ka}, application{&d.V, v, &a.va}, application{&d.Z, a.z, &a.za}, application{&d.A, a.a, &a.aa}, application{&d.B, a.b, &a.ba}); err != nil {
		return false, err
	}
	var filtered, gated tensor.Tensor
	if err := p.get(h.Rows, slot{&filtered, p.Temp, a.mixed.Cols}, slot{&gated, p.Temp, a.o.Cols}); err != nil {
		return false, err
	}
	states, tails := d.slots(p)
	if err := p.Device.Conv(filtered, a.mixed, d.Filter, tails, p.StateRuns); err != nil {
		return false, err
	}
	in := d.inputs()
	in.Mixed, in.A, in.B = filtered, a.a, a.b
	if err := p.stateRuns(deltaWork*float64(in.StateSize()), func(runs []tensor.StateRun) error {
		return p.Device.DeltaRule(a.o, in, states, runs)
	}); err != nil {
		return false, err
	}
	if err := d.gate(p, gated, a); err != nil {
		return false, err
	}
	if out.Buffer == nil {
		if err := d.O.inner(p, gated, &a.oa); err != nil {
			return false, err
		}
		return false, p.Temp.Release(mark)
	}
	if added, err = p.linearAdding(gated, add, application{&d.O, out, &a.oa}); err != nil {
		return false, err
	}
	return added, p.Temp.Release(mark)
}

// gate norms and gates the outputs of the heads.
func (d *DeltaNet) gate(p *Pass, gated tensor.Tensor, a *DeltaNetActivations) error {
	return p.Device.GatedNorm(perHead(gated, d.ValueHeads), perHead(a.o, d.ValueHeads), perHead(a.z, d.ValueHeads), d.Norm.Weight, d.Norm.Eps)
}

// Backward implements Sublayer.
func (d *DeltaNet) Backward(p *Pass, dh, dout, h tensor.Tensor, activations Activations, inputGradient bool) error {
	a := activations.(*DeltaNetActivations)
	mark := p.Temp.Mark()
	rows := h.Rows
	var gated, do, dz, da, db, filtered, dmixed tensor.Tensor
	if err := p.get(rows, slot{&do, p.Temp, a.o.Cols}, slot{&dz, p.Temp, a.z.Cols}, slot{&da, p.Temp, a.a.Cols}, slot{&db, p.Temp, a.b.Cols}, slot{&dmixed, p.Temp, a.mixed.Cols}); err != nil {
		return err
	}
	part := p.Temp.Mark()
	if err := p.get(rows, slot{&gated, p.Temp, a.o.Cols}); err != nil {
		return err
	}
	if err := d.gate(p, gated, a); err != nil {
		return err
	}
	if err := d.O.Backward(p, do, dout, gated, &a.oa, true); err != nil {
		return err
	}
	if err := p.Temp.Release(part); err != nil {
		return err
	}
	heads := func(t tensor.Tensor) tensor.Tensor { return perHead(t, d.ValueHeads) }
	if err := p.Device.GatedNormBackward(heads(do), heads(dz), heads(do), heads(a.o), heads(a.z), d.Norm.Weight, d.Norm.Eps); err != nil {
		return err
	}
	if err := p.get(rows, slot{&filtered, p.Temp, a.mixed.Cols}); err != nil {
		return err
	}
	if err := p.Device.Conv(filtered, a.mixed, d.Filter, tensor.Tensor{}, p.StateRuns); err != nil {
		return err
	}
	in := d.inputs()
	in.Mixed, in.A, in.B = filtered, a.a, a.b
	if err := p.stateRuns(5*deltaWork*float64(in.StateSize()), func(runs []tensor.StateRun) error {
		return p.Device.DeltaRuleBackward(dmixed, da, db, do, in, runs)
	}); err != nil {
		return err
	}
	if err := p.Device.ConvBackward(dmixed, dmixed, a.mixed, d.Filter, p.StateRuns); err != nil {
		return err
	}
	dq, dk, dv := d.parts(dmixed)
	if err := p.backward(dh, h, inputGradient, slope{&d.Q, dq, dq, &a.qa}, slope{&d.K, dk, dk, &a.ka}, slope{&d.V, dv, dv, &a.va}, slope{&d.Z, dz, dz, &a.za}, slope{&d.A, da, da, &a.aa}, slope{&d.B, db, db, &a.ba}); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}
