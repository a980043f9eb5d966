// Package nn has the layers of decoder models over tensor.Device: each with Forward and the Backward that belongs to it, side by side. There is no autograd: a
// layer's Forward keeps what its Backward needs, and Backward is called in the opposite order. The base weights are frozen, so Backward gives the gradient by the
// layer's input and by LoRA matrices, never by base weights. The package knows no model file, no adapter as a whole, no loss and no run.
//
// Rows are tokens of any number of sequences packed without padding. Every row of every result is the same chain of operations whatever the other rows
// are, so a sequence gives the same bits alone, in a batch, and token by token.
package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// LoRA is one adapter's pair of matrices for one linear layer: y += B·(scale·(A·x)), the inner vector rounded to the matrices' type. The zero value means that the
// adapter does not touch the layer.
type LoRA struct {
	A     tensor.Matrix // rank × in
	B     tensor.Matrix // out × rank
	Scale float32       // alpha / rank
	// Of a mixture of experts: how many experts have an A, and a B, of their own, as tensor.NewStack sees them; 1 where one is for all.
	ExpertsA, ExpertsB int
	Rank, Out          int // rows of an A and of a B
}

// LoRAGradient is where the gradient of one pair is summed: float32 tensors of the shapes of A and B. The zero value means that no gradient is wanted. While it is unset the tensors hold nothing; what adds to them first sets it.
// Of one that was joined they hold nothing either: its sum has been added to another one, see GradientRange.
type LoRAGradient struct {
	A, B          tensor.Tensor
	Unset, Joined bool
}

// Segment is a range of rows that share an adapter.
type Segment struct {
	From, To int
	Modules  []LoRA // by module number of the model; nil = the base model alone
}

// GradientRange is a range of rows whose LoRA gradients are summed in one place: one chain over the rows in ascending order, going on from what is there.
// A range lies within one segment.
type GradientRange struct {
	From, To int
	Modules  []LoRAGradient // by module number of the model
	// Onto is the gradients to which these are added as soon as both are complete, which the ranges before this one make them; nil if there are none. A device then adds the sum there itself, where the range is whole: has
	// all rows that Modules get.
	Onto  []LoRAGradient
	Whole bool
}

// Comm is how the ranks of a model that is cut over several devices work together: each has some of the heads of attention, some of the width of the MLP and some of the vocabulary, and every rank runs the same layers
// over the same rows. See package parallel for the methods.
type Comm interface {
	Rank() int
	Size() int
	AllReduce(ts ...tensor.Tensor) error
	AllGather(dst, part tensor.Tensor) error
	AllReduceHost(values []float32) error
}

// Pass is what all layers share while they run over one batch. Temp is released after every layer; Keep lives until the backward pass is through (in inference
// and in the forward pass of a training pass with recomputation it is the same arena as Temp).
type Pass struct {
	Device     tensor.Device
	Comm       Comm // nil = the model is whole on the device
	Temp, Keep *Arena
	Keeps      bool // Backward of the layers comes after Forward, and finds what that kept
	Segments   []Segment
	Gradients  []GradientRange
	Runs       []tensor.AttentionRun
	Positions  []int32 // of each row in its sequence
	Pages      tensor.Pages
	StateRuns  []tensor.StateRun // Runs as layers with a recurrent state see them
	States     tensor.Tensor     // their slots, each with the states of all layers; no buffer where no run has one
	// Yield is called between parts of a layer, when nothing is being launched: another pass (with arenas of its own) may run meanwhile, behind what the device has been given, which is two steps at most. An error ends the pass.
	Yield func() error
	// StepWork is how many operations (additions and multiplications, about) may run on the device between two calls of Yield; 0 = any number, and Yield is called between the parts of layers only.
	StepWork float64

	// Loads, when not nil, is called with what tokens have chosen in each mixture of experts that the pass goes through: some rows at a time, from row from on; see tensor.ExpertDevice for choice.
	Loads func(from int, choice tensor.Tensor) error

	work  float64 // since the last Yield
	ahead float64 // since the device was waited for, see pace
	// scratch
	part     []tensor.AttentionRun
	groups   []tensor.RowGroup
	clipped  []tensor.RowGroup
	products []tensor.OuterProduct
	joined   bool                   // products are those of several layers, see together
	outer    [1]tensor.OuterProduct // a part of one of them
	matMuls  []tensor.Multiplication
	// the products with B, which come after those with A
	expansions []tensor.Multiplication
	stages     [][]tensor.Multiplication
	one        [1]tensor.Multiplication
	sums       []tensor.Tensor // that ranks have parts of
}

// reduce makes partial sums whole, where a model is cut: all at one meeting of the ranks.
func (p *Pass) reduce(ts ...tensor.Tensor) error {
	if p.Comm == nil || len(ts) == 0 {
		return nil
	}
	return p.Comm.AllReduce(ts...)
}

// Reset empties the pass but keeps the memory of its slices.
func (p *Pass) Reset() {
	*p = Pass{Segments: p.Segments[:0], Gradients: p.Gradients[:0], Runs: p.Runs[:0], StateRuns: p.StateRuns[:0], Positions: p.Positions[:0],
		part: p.part[:0], groups: p.groups[:0], clipped: p.clipped[:0], products: p.products[:0], matMuls: p.matMuls[:0], expansions: p.expansions[:0], stages: p.stages[:0], sums: p.sums[:0]}
}

// Layer is one residual layer of a decoder. Activations hold what Forward keeps for Backward: views into the pass's Keep arena, in a value that is made once and used again.
type Layer interface {
	NewActivations() Activations
	// WithWeights gives the same layer over other matrices: weight is called for each of its base weights, always in the same order, and gives what stands in its place, of the same shape.
	WithWeights(weight func(tensor.Matrix) tensor.Matrix) Layer
	// Forward writes the residual stream after the layer to out (rows × hidden), from x before it. x must be unchanged when Backward is called.
	Forward(p *Pass, out, x tensor.Tensor, a Activations) error
	// Backward turns dx, the gradient by the layer's output, into the gradient by its input x, in place, and adds to the LoRA gradients of p.Gradients. Without
	// inputGradient (the lowest layer) dx is left undefined.
	Backward(p *Pass, dx, x tensor.Tensor, a Activations, inputGradient bool) error
}

// Activations is what a layer keeps between Forward and Backward.
type Activations any
