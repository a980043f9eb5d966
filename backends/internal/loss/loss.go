// Package loss has the training losses, each a pure function of the log-probabilities of target tokens that gives the loss and its derivative by each of
// them. Losses are sums over positions, never means. The package knows no model, no gradient by anything else, and no run.
//
// With lp the log-probability of a target, q the one recorded when it was sampled, A its advantage, r = exp(lp − q), and clip(x) = min(max(x, lo), hi):
//
//	cross_entropy        −Σ lp
//	importance_sampling  −Σ r·A
//	ppo                  −Σ min(r·A, clip(r)·A)
//	cispo                −Σ clip(r)·lp·A, where clip(r) is a constant
//	dro                  −Σ (lp·A − ½·beta·(lp − q)²)
//	gspo                 as ppo with s = exp(mean of lp − q over the datum's positions whose sequence_ratio_mask is not 0) in place of r; its derivative by
//	                     each lp is that of a token's own ratio with the value s: −s·A where the unclipped term is the smaller one, else 0
//	stable_reinforce     −Σ min(r, ratio_cap)·A·lp, where min(r, ratio_cap) is a constant (Tinsmith's own objective under that name)
//
// Each target's term is multiplied by its weight w. Only cross_entropy needs weights; the others have ones without them, with the same bits. There w·A, rounded to float32, takes the place of A, and w·beta that of beta, so that a
// device has nothing more to compute; it is the same but for that rounding where w is not negative or the loss does not clip products.
package loss

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Loss is one loss with its settings. It is immutable.
type Loss struct {
	form     form
	low      float64
	high     float64
	beta     float64
	ratioCap float64
}

// form is how a loss works.
type form struct {
	name    string
	config  map[string]float64 // keys with their defaults
	inputs  []string           // required
	clips   bool               // by the smaller of two products, which turns round with a negative weight
	element func(l Loss, e element) (loss, derivative float64)
	term    func(l Loss, e element) tensor.LossTerm // the same derivative, for a device; without the row and what was recorded
}

// element is what one target's term depends on.
type element struct {
	lp, q, weight float64
	advantage     float64 // times the weight
	beta          float64 // of dro, times the weight
	datumRatio    float64 // gspo's s
}

const (
	clipLow  = "clip_low_threshold"
	clipHigh = "clip_high_threshold"
	betaKey  = "beta"
	capKey   = "ratio_cap"
)

var policyInputs = []string{"logprobs", "advantages"}

// forms lists the losses by name.
var forms = []form{
	{name: "cispo", config: map[string]float64{clipLow: 0, clipHigh: 4}, inputs: policyInputs, element: cispo, term: cispoTerm},
	{name: "cross_entropy", inputs: []string{"weights"}, element: crossEntropy, term: crossEntropyTerm},
	{name: "dro", config: map[string]float64{betaKey: 0.05}, inputs: policyInputs, element: dro, term: droTerm},
	{name: "gspo", config: map[string]float64{clipLow: 0.8, clipHigh: 1.2}, inputs: []string{"logprobs", "advantages", "sequence_ratio_mask"}, clips: true, element: gspo, term: gspoTerm},
	{name: "importance_sampling", inputs: policyInputs, element: importanceSampling, term: importanceSamplingTerm},
	{name: "ppo", config: map[string]float64{clipLow: 0.8, clipHigh: 1.2}, inputs: policyInputs, clips: true, element: ppo, term: ppoTerm},
	{name: "stable_reinforce", config: map[string]float64{capKey: 2}, inputs: policyInputs, element: stableReinforce, term: stableReinforceTerm},
}

// Names lists the losses, sorted.
func Names() []string {
	names := make([]string, len(forms))
	for i, f := range forms {
		names[i] = f.name
	}
	return names
}

// New gives the loss of that name. config holds only keys of that loss: clip_low_threshold and clip_high_threshold (bounds on the ratio, not distances from 1; 0.8
// and 1.2, for cispo 0 and 4), beta (0.05), ratio_cap (2).
func New(name string, config map[string]float64) (Loss, error) {
	i := slices.IndexFunc(forms, func(f form) bool { return f.name == name })
	if i < 0 {
		return Loss{}, fmt.Errorf("loss %.80q is not known: the losses are %s", name, strings.Join(Names(), ", "))
	}
	f := forms[i]
	allowed := make([]string, 0, len(f.config))
	for k := range f.config {
		allowed = append(allowed, k)
	}
	sort.Strings(allowed)
	for k := range config {
		if _, ok := f.config[k]; !ok {
			if len(allowed) == 0 {
				return Loss{}, fmt.Errorf("loss %s has no setting %q: it has none", name, k)
			}
			return Loss{}, fmt.Errorf("loss %s has no setting %q: it has %s", name, k, strings.Join(allowed, ", "))
		}
	}
	value := func(key string) float64 {
		if v, ok := config[key]; ok {
			return v
		}
		return f.config[key]
	}
	for _, k := range allowed {
		if v := value(k); math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return Loss{}, fmt.Errorf("loss %s: %s is %v, it must be finite and not negative", name, k, v)
		}
	}
	l := Loss{form: f, low: value(clipLow), high: value(clipHigh), beta: value(betaKey), ratioCap: value(capKey)}
	if l.low > l.high {
		return Loss{}, fmt.Errorf("loss %s: %s %v is above %s %v", name, clipLow, l.low, clipHigh, l.high)
	}
	return l, nil
}

// Name is the loss's name.
func (l Loss) Name() string { return l.form.name }

// PerDatum tells whether Rows needs DatumRatio of all the datum's log-probabilities first.
func (l Loss) PerDatum() bool { return l.form.name == "gspo" }

// Inputs are the loss inputs of one datum of N positions with K targets each, nil where the loss does not use them. They are only read.
type Inputs struct {
	Weights           []float32 // N×K; nil = ones, but for cross_entropy
	Logprobs          []float32 // N
	Advantages        []float32 // N
	SequenceRatioMask []float32 // N
}

// Check tells whether the inputs fit a datum of n positions with k targets each: the loss's own inputs are there, no others but weights, of the right length and finite; weights not negative where the loss clips.
func (l Loss) Check(in Inputs, n, k int) error {
	if k != 1 && l.form.name != "cross_entropy" {
		return fmt.Errorf("loss %s takes one target per position, not %d: only cross_entropy takes several", l.form.name, k)
	}
	for _, f := range []struct {
		name   string
		values []float32
		want   int
	}{
		{"weights", in.Weights, n * k},
		{"logprobs", in.Logprobs, n},
		{"advantages", in.Advantages, n},
		{"sequence_ratio_mask", in.SequenceRatioMask, n},
	} {
		optional := f.name == "weights" && f.values != nil
		if !slices.Contains(l.form.inputs, f.name) && !optional {
			if f.values != nil {
				return fmt.Errorf("loss %s does not use %s: it uses %s", l.form.name, f.name, strings.Join(l.form.inputs, ", "))
			}
			continue
		}
		if len(f.values) != f.want {
			return fmt.Errorf("loss %s needs %d values of %s, not %d", l.form.name, f.want, f.name, len(f.values))
		}
		for i, v := range f.values {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("%s[%d] is %v, it must be finite", f.name, i, v)
			}
			if v < 0 && optional && l.form.clips {
				return fmt.Errorf("%s[%d] is %v, loss %s needs it not negative", f.name, i, v, l.form.name)
			}
		}
	}
	return nil
}

// ErrNotFinite says that a loss or a derivative is not finite, such as a ratio too large for float32.
var ErrNotFinite = errors.New("loss is not finite")

// DatumRatio is gspo's s for the log-probabilities of all positions; 1 where the mask is all zero.
func (l Loss) DatumRatio(in Inputs, lp []float32) float64 {
	var sum float64
	var count int
	for i, m := range in.SequenceRatioMask {
		if m != 0 {
			sum += float64(lp[i]) - float64(in.Logprobs[i])
			count++
		}
	}
	if count == 0 {
		return 1
	}
	return exp(sum / float64(count))
}

// Idle tells whether position i counts nothing whatever its k log-probabilities are: its terms and derivatives are zero.
func (l Loss) Idle(in Inputs, i, k int) bool {
	switch l.form.name {
	case "cross_entropy":
		for _, w := range in.Weights[i*k : (i+1)*k] {
			if w != 0 {
				return false
			}
		}
		return true
	case "dro":
		return l.beta*in.weight(i) == 0 && in.advantage(i) == 0
	}
	return in.advantage(i) == 0
}

// weight is that of position i.
func (in Inputs) weight(i int) float64 {
	if in.Weights == nil {
		return 1
	}
	return float64(in.Weights[i])
}

// advantage is that of position i times its weight, as a device has it.
func (in Inputs) advantage(i int) float32 {
	if in.Weights == nil {
		return in.Advantages[i]
	}
	return float32(in.Advantages[i] * in.Weights[i])
}

// Rows evaluates positions first, first+1, … of a datum: lp holds rows × k log-probabilities, and derivatives gets as many values ∂loss/∂lp, terms what each adds to the loss. It adds the terms to
// sum one by one, in order and before they are rounded, and gives the new sum, so that it does not depend on how positions were cut into calls.
func (l Loss) Rows(sum float64, in Inputs, first, k int, lp []float32, datumRatio float64, derivatives, terms []float32) (float64, error) {
	for j, v := range lp {
		e := l.elementAt(in, first, k, j, datumRatio)
		e.lp = float64(v)
		term, derivative := l.form.element(l, e)
		derivatives[j], terms[j] = float32(derivative), float32(term)
		sum += term
		if d := float64(derivatives[j]); math.IsNaN(term) || math.IsInf(term, 0) || math.IsNaN(d) || math.IsInf(d, 0) {
			return sum, fmt.Errorf("position %d: log-probability %v, term %v, derivative %v: %w", first+j/k, v, term, d, ErrNotFinite)
		}
	}
	return sum, nil
}

// elementAt is what target j of positions first, first+1, … has, but for its log-probability.
func (l Loss) elementAt(in Inputs, first, k, j int, datumRatio float64) element {
	if l.form.name == "cross_entropy" {
		return element{weight: float64(in.Weights[first*k+j])}
	}
	return element{q: float64(in.Logprobs[first+j]), advantage: float64(in.advantage(first + j)), beta: float64(l.beta * in.weight(first+j)), datumRatio: datumRatio}
}

func crossEntropy(_ Loss, e element) (loss, derivative float64) {
	if e.weight == 0 {
		return 0, 0 // whatever the log-probability
	}
	return -e.weight * e.lp, -e.weight
}

func importanceSampling(_ Loss, e element) (loss, derivative float64) {
	if e.advantage == 0 {
		return 0, 0 // a prompt position has no recorded log-probability: its ratio means nothing and may overflow
	}
	v := -exp(e.lp-e.q) * e.advantage
	return v, v
}

func ppo(l Loss, e element) (loss, derivative float64) {
	if e.advantage == 0 {
		return 0, 0
	}
	return l.clipped(exp(e.lp-e.q), e.advantage)
}

func gspo(l Loss, e element) (loss, derivative float64) {
	if e.advantage == 0 {
		return 0, 0
	}
	return l.clipped(e.datumRatio, e.advantage)
}

// clipped is −min(r·A, clip(r)·A); the derivative is that of the unclipped term where it is the smaller one or equal.
func (l Loss) clipped(r, advantage float64) (loss, derivative float64) {
	free, bounded := r*advantage, l.clip(r)*advantage
	if free <= bounded {
		return -free, -free
	}
	return -bounded, 0
}

func (l Loss) clip(r float64) float64 { return math.Min(math.Max(r, l.low), l.high) }

func cispo(l Loss, e element) (loss, derivative float64) {
	if e.advantage == 0 {
		return 0, 0
	}
	derivative = -l.clip(exp(e.lp-e.q)) * e.advantage
	return derivative * e.lp, derivative
}

func dro(l Loss, e element) (loss, derivative float64) {
	// No advantage does not mean no term: with beta the quadratic one counts at every position, as the formula says.
	if e.beta == 0 && e.advantage == 0 {
		return 0, 0
	}
	d := e.lp - e.q
	return -(float64(e.lp*e.advantage) - float64(float64(0.5*e.beta)*float64(d*d))), -(e.advantage - float64(e.beta*d))
}

func stableReinforce(l Loss, e element) (loss, derivative float64) {
	if e.advantage == 0 {
		return 0, 0
	}
	derivative = -math.Min(exp(e.lp-e.q), l.ratioCap) * e.advantage
	return derivative * e.lp, derivative
}
