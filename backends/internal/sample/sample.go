// Package sample turns a row of logits into a token: penalties, bias and temperature, then top-k, top-p and min-p, then one draw. Every function is pure: the
// token depends on the row, the settings and the place of the token (seed, sample, position), never on what else is sampled at the same time. It knows no
// model, no device and no queue; the caller computes the log-sum-exp and the probabilities of the adjusted row with the arithmetic that the trainer uses, which is what
// makes log-probabilities of both equal bit for bit.
package sample

import (
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/philox"
)

// Settings say how one request's tokens are drawn. Zero values of TopK, MinP and the additive penalties are off; TopP and RepetitionPenalty are off at 1.
type Settings struct {
	Temperature       float64 // 0 = the likeliest token; else the logits are multiplied by 1/Temperature, rounded to float32
	TopK              int     // ≤ 0 = off; else only the TopK likeliest tokens, ties by lower id
	TopP              float64 // the shortest series of likeliest tokens that reaches this share of what top-k left
	MinP              float64 // tokens whose probability is at least MinP times that of the likeliest
	FrequencyPenalty  float64 // subtracted once per occurrence in what was generated
	PresencePenalty   float64 // subtracted if the token was generated
	RepetitionPenalty float64 // divides positive and multiplies negative logits of tokens in prompt or generated
	Bias              []Bias  // added after the penalties, before temperature
}

// Bias is an amount added to one token's logit.
type Bias struct {
	Token  int32
	Amount float32
}

// Plain tells whether Adjust leaves every row as it is, so that the model's own row can be used.
func (s *Settings) Plain() bool { return s.factor() == 1 && s.OnlyScales() }

// OnlyScales tells whether Adjust does nothing but multiply every logit by Scale.
func (s *Settings) OnlyScales() bool {
	return s.FrequencyPenalty == 0 && s.PresencePenalty == 0 && s.RepetitionPenalty == 1 && len(s.Bias) == 0
}

// Truncates tells whether some tokens of a row may not be drawn at all; else Draw needs no logits but at temperature 0 and for excluded tokens.
func (s *Settings) Truncates() bool { return s.TopK > 0 || s.TopP < 1 || s.MinP > 0 }

// Scale is what temperature multiplies logits by.
func (s *Settings) Scale() float32 { return float32(s.factor()) }

func (s *Settings) factor() float64 {
	if s.Temperature == 0 {
		return 1
	}
	return 1 / s.Temperature
}

// History is what a sequence has seen, for penalties. It is used by one goroutine.
type History struct {
	tokens []seen
	at     map[int32]int32 // in tokens, which every draw goes through: a map is slower at that
}

// seen is a token of the prompt or a generated one, once, and how often it was generated.
type seen struct {
	token     int32
	generated int32
}

// NewHistory starts a history with a prompt.
func NewHistory(prompt []int32) *History {
	h := &History{at: make(map[int32]int32, len(prompt))}
	for _, t := range prompt {
		h.find(t)
	}
	return h
}

// Add notes a generated token.
func (h *History) Add(token int32) { h.find(token).generated++ }

// find gives a token's entry, valid until the next one is made.
func (h *History) find(token int32) *seen {
	i, ok := h.at[token]
	if !ok {
		i = int32(len(h.tokens))
		h.at[token] = i
		h.tokens = append(h.tokens, seen{token: token})
	}
	return &h.tokens[i]
}

// Adjust applies repetition penalty, frequency and presence penalty, bias and temperature to a row of logits, in this order and in place. h may be nil when no penalty is set.
func (s *Settings) Adjust(logits []float32, h *History) {
	if s.RepetitionPenalty != 1 && h != nil {
		factor := float32(s.RepetitionPenalty)
		for _, e := range h.tokens {
			if x := &logits[e.token]; *x > 0 {
				*x /= factor
			} else {
				*x *= factor
			}
		}
	}
	if (s.FrequencyPenalty != 0 || s.PresencePenalty != 0) && h != nil {
		for _, e := range h.tokens {
			if e.generated > 0 {
				logits[e.token] -= s.additive(e.generated)
			}
		}
	}
	for _, b := range s.Bias {
		logits[b.Token] += b.Amount
	}
	if factor := s.Scale(); factor != 1 {
		for i := range logits {
			logits[i] *= factor
		}
	}
}

// additive is what frequency and presence penalty subtract for a token that was generated n times.
func (s *Settings) additive(n int32) float32 {
	return float32(float64(s.FrequencyPenalty*float64(n)) + s.PresencePenalty)
}

// Penalty is what Adjust does to one token's logit before bias and temperature: it is divided by Divisor if it is positive and multiplied by it if not, then Less is subtracted.
type Penalty struct {
	Token         int32
	Divisor, Less float32
}

// Penalties appends the penalties of a history, at most one per token, to to. h may be nil when no penalty is set.
func (s *Settings) Penalties(to []Penalty, h *History) []Penalty {
	additive := s.FrequencyPenalty != 0 || s.PresencePenalty != 0
	if h == nil || (s.RepetitionPenalty == 1 && !additive) {
		return to
	}
	for _, e := range h.tokens {
		p := Penalty{Token: e.token, Divisor: float32(s.RepetitionPenalty)}
		if additive && e.generated > 0 {
			p.Less = s.additive(e.generated)
		}
		if p.Divisor != 1 || p.Less != 0 {
			to = append(to, p)
		}
	}
	return to
}

// The last word of a draw's counter keeps the kinds of draws apart.
const (
	kindGenerated   = 0
	kindAlternative = 1
)

// Uniform gives the number in [0, 1) that decides the token at a position (counted from the sequence's start) of sample number sample.
func Uniform(seed uint64, sample, position int) float64 {
	return philox.Uniform(seed, [4]uint32{uint32(sample), uint32(position), 0, kindGenerated})
}

// UniformAlternative gives the number for draw number k at a position of the prompt.
func UniformAlternative(seed uint64, k, position int) float64 {
	return philox.Uniform(seed, [4]uint32{uint32(k), uint32(position), 0, kindAlternative})
}

// Draw picks a token. logits is the adjusted row and probs its softmax, which temperature 0 does not need; both may be overwritten. Tokens in excluded are not picked. u in [0, 1) comes from
// Uniform. The draw walks the tokens that are left by ascending id and takes the first at which the running sum of their weights passes u times the total. Weights are probabilities in whole units
// of 2⁻⁴⁴: their sums are exact, so that a device may take them in any order. At temperature 0, and where nothing is left that has weight, it is the likeliest token, ties by lower id.
func (s *Settings) Draw(scratch *Scratch, logits, probs []float32, excluded []int32, u float64) int32 {
	for _, t := range excluded {
		logits[t] = float32(math.Inf(-1))
		if len(probs) > 0 {
			probs[t] = 0
		}
	}
	if s.Temperature == 0 || s.TopK == 1 {
		return argmax(logits)
	}
	if !s.Truncates() {
		if i := drawn(probs, u); i >= 0 {
			return int32(i)
		}
		return argmax(logits)
	}
	kept := s.truncate(scratch, logits, probs)
	likeliest := kept[0]
	slices.Sort(kept)
	some := scratch.probs[:0]
	for _, t := range kept {
		some = append(some, probs[t])
	}
	scratch.probs = some
	if i := drawn(some, u); i >= 0 {
		return kept[i]
	}
	return likeliest
}

// drawn gives the first place at which the running sum of weights passes u times their total; -1 if there is none, because nothing has weight.
func drawn(probs []float32, u float64) int {
	var total uint64
	for _, p := range probs {
		total += weight(p)
	}
	target := uint64(float64(u * float64(total)))
	if target >= total {
		return -1
	}
	// From the end that is nearer: left is what the tokens from i on weigh.
	if target > total/2 {
		left := total
		for i := len(probs) - 1; i >= 0; i-- {
			if left -= weight(probs[i]); left <= target {
				return i
			}
		}
	}
	var sum uint64
	for i, p := range probs {
		if sum += weight(p); sum > target {
			return i
		}
	}
	return -1
}

// weight is a probability in units of 2⁻⁴⁴, cut off.
func weight(p float32) uint64 {
	if !(p > 0) {
		return 0
	}
	if p > 2 { // not min, which looks for NaN as well
		p = 2
	}
	return uint64(int64(p * (1 << 44)))
}

// share is the least weight that is a share of total, at least 1.
func share(of float64, total uint64) uint64 {
	return max(1, uint64(math.Ceil(float64(of*float64(total)))))
}

// truncate gives the tokens that top-k, top-p and min-p leave, likeliest first, in scratch. There is always one.
func (s *Settings) truncate(scratch *Scratch, logits, probs []float32) []int32 {
	var kept []int32
	var total uint64 // what TopP is a share of
	if s.TopK > 0 {
		kept = Top(scratch, logits, s.TopK)
		for _, t := range kept {
			total += weight(probs[t])
		}
	} else {
		// Sorting a vocabulary is slow, so only tokens that can matter are sorted: from the buckets of nearly equal probability that hold the likeliest tokens, down to
		// the one in which top-p or min-p cuts.
		if scratch.mass == nil {
			scratch.mass = make([]uint64, buckets)
		}
		mass := scratch.mass
		clear(mass)
		for _, p := range probs {
			w := weight(p)
			total += w
			mass[bucket(p)] += w
		}
		least, sum, need := buckets-1, uint64(0), share(s.TopP, total)
		for ; least > 0; least-- {
			if sum += mass[least]; s.TopP < 1 && sum >= need {
				break
			}
		}
		if s.TopP >= 1 {
			least = bucket(float32(s.MinP * float64(probs[argmax(logits)])))
		}
		kept = scratch.ids[:0]
		for t, p := range probs {
			if p > 0 && int(math.Float32bits(p)>>16) >= least { // bucket's bound changes nothing: least is one
				kept = append(kept, int32(t))
			}
		}
		kept = sorted(scratch, logits, kept)
		if len(kept) == 0 {
			kept = append(kept, argmax(logits))
		}
	}
	if s.TopP < 1 {
		sum, need := uint64(0), share(s.TopP, total)
		for i, t := range kept {
			if sum += weight(probs[t]); sum >= need {
				kept = kept[:i+1]
				break
			}
		}
	}
	if s.MinP > 0 {
		least := float64(s.MinP * float64(probs[kept[0]]))
		for i, t := range kept {
			if i > 0 && float64(probs[t]) < least {
				kept = kept[:i]
				break
			}
		}
	}
	return kept
}

func argmax(logits []float32) int32 {
	best := 0
	for i, x := range logits {
		if x > logits[best] {
			best = i
		}
	}
	return int32(best)
}

// buckets sort probabilities coarsely: sign, exponent and seven bits of the fraction of a float32 up to 1.
const buckets = 0x3f80 + 1

func bucket(p float32) int { return min(int(math.Float32bits(p)>>16), buckets-1) }

// Mask takes tokens away from a row: those for which bits, 64 to a word and the lowest first, has none.
func Mask(logits []float32, bits []uint64) {
	for t := range logits {
		if bits[t/64]>>(t%64)&1 == 0 {
			logits[t] = float32(math.Inf(-1))
		}
	}
}
