package history

import "math"

// Entropy sums estimates of the entropy of the model's distribution, in nats, over positions of which the likeliest tokens are known with their probabilities p₁ … pₖ. With r = 1 − Σ pᵢ that of all others together, the
// estimate is −Σ pᵢ·log pᵢ − r·log r: the entropy where all others are one class. It is never above the entropy itself, H, and H is at most r·log(V − k) above it, for V tokens in the vocabulary.
type Entropy struct {
	Count float64 // positions
	Sum   float64 // of the estimates
	Rest  float64 // sum of r
}

// Add takes one position. Log-probabilities are of different tokens, and none is above 0 but by rounding; the order does not matter for more than rounding.
func (e *Entropy) Add(logprobs []float32) {
	rest := 1.0
	for _, lp := range logprobs {
		if p := math.Exp(float64(lp)); p > 0 {
			e.Sum -= p * float64(lp)
			rest -= p
		}
	}
	if rest > 0 {
		e.Sum -= rest * math.Log(rest)
		e.Rest += rest
	}
	e.Count++
}

// Join adds what another has summed.
func (e *Entropy) Join(o Entropy) {
	e.Count, e.Sum, e.Rest = e.Count+o.Count, e.Sum+o.Sum, e.Rest+o.Rest
}
