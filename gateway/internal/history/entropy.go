package history

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

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

// write writes the sums, or that there are none.
func (e *Entropy) write(to *pack.Encoder) {
	if to.Bool(e.Count > 0); e.Count > 0 {
		to.Float(e.Count)
		to.Float(e.Sum)
		to.Float(e.Rest)
	}
}

func (e *Entropy) read(d *pack.Decoder) {
	if d.Bool() {
		*e = Entropy{Count: d.Float(), Sum: d.Float(), Rest: d.Float()}
		if !(e.Count > 0) {
			d.Fail()
		}
	}
}

// Entropies are sums over tokens that were sampled, and over tokens of prompts.
type Entropies struct{ Sampled, Prompt Entropy }

// Any tells whether there is a position in them.
func (e *Entropies) Any() bool { return e.Sampled.Count+e.Prompt.Count > 0 }

// Join adds what others have summed.
func (e *Entropies) Join(o Entropies) {
	e.Sampled.Join(o.Sampled)
	e.Prompt.Join(o.Prompt)
}

const formEntropies = 1

// Encode writes them.
func (e *Entropies) Encode() []byte {
	to := pack.Encoder{B: append(make([]byte, 0, 56), formEntropies)}
	e.Sampled.write(&to)
	e.Prompt.write(&to)
	return to.B
}

// DecodeEntropies reads what Encode wrote. The bytes may be any.
func DecodeEntropies(from []byte) (e Entropies, err error) {
	d := pack.NewDecoder(from)
	if d.Byte() != formEntropies {
		return e, fmt.Errorf("read entropies: their form is not known")
	}
	e.Sampled.read(d)
	e.Prompt.read(d)
	if err := d.End(); err != nil {
		return Entropies{}, fmt.Errorf("read entropies: %w", err)
	}
	return e, nil
}
