package history

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// Names of the series that the server makes itself.
const (
	Loss            = "loss" // per token, which is per unit of weight
	LearningRate    = "learning_rate"
	GradientNorm    = "grad_norm"
	AdapterNorm     = "adapter_norm"
	Tokens          = "tokens"
	TokensPerSecond = "tokens_per_second"
	ClockCycle      = "clock_cycle"
	QueueSeconds    = "queue_seconds"
	RatioMean       = "ratio_mean"
	RatioMax        = "ratio_max"
	ClippedShare    = "clipped_share"
	KLK1            = "kl_k1"
	KLK3            = "kl_k3"
	AdvantageMean   = "advantage_mean"
	SampledEntropy  = "entropy" // estimated by the log-probabilities of what was sampled

	TopEntropy       = "entropy_topk" // of sampled tokens with their likeliest alternatives: see Entropy
	TopRest          = "entropy_topk_rest"
	PromptTopEntropy = "prompt_entropy_topk" // of tokens of prompts
	PromptTopRest    = "prompt_entropy_topk_rest"

	ValidationLoss   = "validation/loss"
	ValidationTokens = "validation/tokens"
	ValidationWeight = "validation/weight"
)

// Fold makes rows of the finished operations of a run, which come in their order, each once. What it knows can be kept and taken up again. The zero value is that of a new run.
type Fold struct {
	UpTo int64 // the number of the last operation
	step int64 // of the last row
	open window
}

// window is what was accumulated since the last step.
type window struct {
	passes        int64
	tokens        int64
	loss, weight  float64
	begin, queued int64
	policy        *Policy
}

// Add takes the operation with the number seq. A step gives a row of the training table, a pass without gradients one of the validation table.
func (f *Fold) Add(seq int64, x *Event) (training, validation *Row) {
	f.UpTo = seq
	switch x.Kind {
	case Pass:
		w := &f.open
		if w.passes++; w.begin == 0 || x.Begin != 0 && x.Begin < w.begin {
			w.begin = x.Begin
		}
		w.tokens, w.loss, w.weight, w.queued = w.tokens+x.Tokens, w.loss+x.Loss, w.weight+x.Weight, max(w.queued, x.Queued)
		if x.Policy != nil {
			if w.policy == nil {
				w.policy = &Policy{Greatest: math.Inf(-1)}
			}
			w.policy.add(x.Policy)
		}
	case Forward:
		return nil, &Row{Step: f.step, Time: milliseconds(x.End), Values: []Value{
			{ValidationLoss, ratio(x.Loss, x.Weight)}, {ValidationTokens, float64(x.Tokens)}, {ValidationWeight, x.Weight},
		}}
	case Dropped, Loaded:
		f.open = window{}
	case Step:
		// The count of the optimizer goes on where the run is loaded from a checkpoint, and back where an older one is loaded into it: a series only goes on.
		f.step = max(f.step+1, x.Number)
		row := f.row(x)
		f.open = window{}
		return row, nil
	}
	return nil, nil
}

func (f *Fold) row(x *Event) *Row {
	w := f.open
	r := &Row{Step: f.step, Time: milliseconds(x.End)}
	add := func(name string, v float64) {
		if !math.IsNaN(v) {
			r.Values = append(r.Values, Value{name, v})
		}
	}
	if w.passes > 0 {
		add(Loss, ratio(w.loss, w.weight))
	}
	add(LearningRate, x.LearningRate)
	add(GradientNorm, x.GradientNorm)
	for _, v := range x.Norms {
		add(v.Name, v.Number)
	}
	add(Tokens, float64(w.tokens))
	if w.begin != 0 && x.End > w.begin {
		add(TokensPerSecond, float64(w.tokens)/(float64(x.End-w.begin)/1e9))
	}
	if x.Cycle > 0 {
		add(ClockCycle, float64(x.Cycle))
		add(QueueSeconds, float64(max(w.queued, x.Queued))/1e9)
	}
	if p := w.policy; p != nil && p.Count > 0 {
		add(RatioMean, p.Ratio/p.Count)
		add(RatioMax, p.Greatest)
		if p.Bounded {
			add(ClippedShare, p.Clipped/p.Count)
		}
		add(KLK1, p.K1/p.Count)
		add(KLK3, p.K3/p.Count)
		add(AdvantageMean, p.Advantage/p.Count)
		add(SampledEntropy, p.Surprisal/p.Count)
	}
	for _, e := range []struct {
		of            Entropy
		entropy, rest string
	}{{x.Sampled, TopEntropy, TopRest}, {x.Prompt, PromptTopEntropy, PromptTopRest}} {
		if e.of.Count > 0 {
			add(e.entropy, e.of.Sum/e.of.Count)
			add(e.rest, e.of.Rest/e.of.Count)
		}
	}
	return r
}

// ratio is a mean; NaN where the weights do not make one, as those of a custom loss, which are gradients.
func ratio(sum, weight float64) float64 {
	if weight > 0 {
		return sum / weight
	}
	return math.NaN()
}

func milliseconds(nanoseconds int64) int64 { return nanoseconds / 1e6 }

// Validate brings the parts of a validation pass, which a client cuts into several operations, into one row.
func Validate(into *Row, row Row) {
	loss, _ := row.get(ValidationLoss)
	tokens, _ := row.get(ValidationTokens)
	weight, _ := row.get(ValidationWeight)
	before, _ := into.get(ValidationLoss)
	had, _ := into.get(ValidationWeight)
	so, _ := into.get(ValidationTokens)
	if had > 0 && weight > 0 {
		loss = (before*had + loss*weight) / (had + weight)
	} else if had > 0 {
		loss = before
	}
	into.set(ValidationLoss, loss)
	into.set(ValidationTokens, so+tokens)
	into.set(ValidationWeight, max(had, 0)+max(weight, 0))
	into.Time = max(into.Time, row.Time)
}

const formFold = formEvent // its window is an event's part

// Encode writes what the fold knows.
func (f *Fold) Encode() []byte {
	e := pack.Encoder{B: append(make([]byte, 0, 64), formFold)}
	w := f.open
	for _, n := range []int64{f.UpTo, f.step, w.passes, w.queued} {
		e.Int(n)
	}
	(&Event{Kind: Pass, Begin: w.begin, End: w.begin, Tokens: w.tokens, Loss: w.loss, Weight: w.weight, Policy: w.policy}).write(&e)
	return e.B
}

// DecodeFold reads what Encode wrote; a fold of nothing for no bytes.
func DecodeFold(from []byte) (*Fold, error) {
	if len(from) == 0 {
		return &Fold{}, nil
	}
	d := pack.NewDecoder(from)
	form := d.Byte()
	if form != formFold && form != formNoEntropy {
		return nil, fmt.Errorf("read the state of series: its form is not known")
	}
	f := &Fold{UpTo: d.Int(), step: d.Int(), open: window{passes: d.Int(), queued: d.Int()}}
	x := Event{Kind: Pass}
	x.read(d, form)
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("read the state of series: %w", err)
	}
	w := &f.open
	w.begin, w.tokens, w.loss, w.weight, w.policy = x.Begin, x.Tokens, x.Loss, x.Weight, x.Policy
	return f, nil
}
