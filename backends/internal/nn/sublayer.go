package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Sublayer is a part of a layer whose output is added to the residual stream: a mixer, in which the rows of a sequence see those before them (attention, or a recurrence), or a feed-forward layer (an MLP, or a mixture of experts).
type Sublayer interface {
	NewActivations() Activations
	// WithWeights is as Layer's.
	WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer
	// Forward writes out (rows × hidden) for the normed residual stream h. A feed-forward layer does not compute an out without a buffer: only what backward needs is.
	Forward(p *Pass, out, h tensor.Tensor, a Activations) error
	// Backward gives dh, the gradient by h, for the gradient dout by the output; without inputGradient it is not computed. dh is overwritten.
	Backward(p *Pass, dh, dout, h tensor.Tensor, a Activations, inputGradient bool) error
	// rounds tells whether all products of h round its rows to bfloat16.
	rounds(p *Pass) bool
}
