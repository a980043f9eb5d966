package nn

import "github.com/tinsmith/tinsmith/backends/internal/tensor"

// Mixer is the part of a layer in which the rows of a sequence see those before them: attention, or a recurrence.
type Mixer interface {
	NewActivations() Activations
	// WithWeights is as Layer's.
	WithWeights(weight func(tensor.Matrix) tensor.Matrix) Mixer
	// Forward writes out (rows × hidden) for the normed residual stream h.
	Forward(p *Pass, out, h tensor.Tensor, a Activations) error
	// Backward gives dh, the gradient by h, for the gradient dout by the output; without inputGradient it is not computed. dh is overwritten.
	Backward(p *Pass, dh, dout, h tensor.Tensor, a Activations, inputGradient bool) error
	// rounds tells whether all products of h round its rows to bfloat16.
	rounds(p *Pass) bool
}
