package nn

import "math"

// LongRoPE divides the frequency of each pair by a factor of its own: by Short for contexts of up to OriginalPositions, by Long for longer ones. It also makes cosines and sines larger, by AttentionFactor. (LongRoPE, arXiv
// 2402.13753; as Hugging Face transformers computes it.)
//
// Which factors hold is the model's, not a sequence's: otherwise keys that are kept would be wrong from the position on where a sequence becomes a long one.
type LongRoPE struct {
	Short, Long       []float64 // for each pair
	OriginalPositions int
	AttentionFactor   float64
}

// Stretches tells whether a context of so many positions has the factors of long ones.
func (l *LongRoPE) Stretches(positions int) bool { return positions > l.OriginalPositions }

// frequencies gives the angle per position for each pair of elements, rounded to float32 where Hugging Face transformers rounds.
func (l *LongRoPE) frequencies(theta float64, dim, positions int) []float32 {
	factors := l.Short
	if l.Stretches(positions) {
		factors = l.Long
	}
	f := make([]float32, dim/2)
	for i := range f {
		exponent := float32(2*i) / float32(dim)
		f[i] = 1 / float32(float32(factors[i])*float32(math.Pow(theta, float64(exponent))))
	}
	return f
}
