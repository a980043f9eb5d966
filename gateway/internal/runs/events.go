package runs

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/plugins"
)

// What the series of a run have of its operations.

// eventOfPass sums a pass up.
func eventOfPass(req *plugins.ForwardBackwardRequest, got *plugins.ForwardBackwardResult, tokens int64) *history.Event {
	x := &history.Event{Kind: history.Pass, Tokens: tokens}
	if req.ForwardOnly {
		x.Kind = history.Forward
	}
	var ok bool
	if x.Loss, ok = got.Metrics["loss:sum"]; !ok {
		x.Loss = history.Unknown
	}
	if len(losses[req.Loss].inputs) > 0 {
		x.Policy = policyOf(req, got)
	}
	for i := range req.Data {
		d := &req.Data[i]
		switch {
		case x.Policy != nil:
			x.Weight += policyWeight(d)
		case d.Weights == nil:
			x.Weight += float64(len(d.Targets))
		default:
			for _, w := range d.Weights {
				x.Weight += float64(w)
			}
		}
	}
	return x
}

// acted tells whether the target at a position was sampled: of a prompt neither an advantage nor a log-probability is given.
func acted(d *plugins.Datum, i int) bool {
	return (d.Advantages[i] != 0 || d.Logprobs[i] != 0) && (d.Weights == nil || d.Weights[i] != 0)
}

func policyWeight(d *plugins.Datum) (sum float64) {
	n := min(len(d.Advantages), len(d.Logprobs))
	for i := range n {
		if acted(d, i) && d.Weights != nil {
			sum += float64(d.Weights[i])
		} else if acted(d, i) {
			sum++
		}
	}
	return sum
}

// clipDefaults are the bounds on the ratio that a loss has where none are given.
var clipDefaults = map[string][2]float64{"ppo": {0.8, 1.2}, "gspo": {0.8, 1.2}, "cispo": {0, 4}, "stable_reinforce": {math.Inf(-1), 2}}

// policyOf compares the policy that is trained with the one that sampled.
func policyOf(req *plugins.ForwardBackwardRequest, got *plugins.ForwardBackwardResult) *history.Policy {
	bounds, bounded := clipDefaults[req.Loss]
	for key, at := range map[string]int{"clip_low_threshold": 0, "clip_high_threshold": 1, "ratio_cap": 1} {
		if v, ok := req.LossConfig[key]; ok {
			bounds[at] = v
		}
	}
	p := &history.Policy{Bounded: bounded, Greatest: math.Inf(-1)}
	for i := range req.Data {
		d := &req.Data[i]
		if i >= len(got.Logprobs) {
			break
		}
		lp := got.Logprobs[i]
		if n := len(lp); len(d.Logprobs) != n || len(d.Advantages) != n || d.Weights != nil && len(d.Weights) != n || req.Loss == "gspo" && len(d.SequenceRatioMask) != n {
			continue
		}
		sequence := 0.0
		if req.Loss == "gspo" {
			sequence = sequenceRatio(d, lp)
		}
		for j, new := range lp {
			if !acted(d, j) {
				continue
			}
			log := float64(new) - float64(d.Logprobs[j])
			own := math.Exp(log)
			r, a := own, float64(d.Advantages[j])
			if req.Loss == "gspo" {
				r = sequence
			}
			p.Count++
			p.Ratio += r
			p.Greatest = max(p.Greatest, r)
			p.Surprisal -= float64(d.Logprobs[j])
			p.K1 -= log
			p.K3 += own - 1 - log
			p.Advantage += a
			if bounded && takesEffect(req.Loss, r, a, bounds) {
				p.Clipped++
			}
		}
	}
	return p
}

// sequenceRatio is the ratio of a whole datum: that of the geometric mean over what its mask names.
func sequenceRatio(d *plugins.Datum, lp []float32) float64 {
	sum, n := 0.0, 0.0
	for j, m := range d.SequenceRatioMask {
		if m != 0 {
			sum, n = sum+float64(lp[j])-float64(d.Logprobs[j]), n+1
		}
	}
	return math.Exp(sum / max(n, 1))
}

// takesEffect tells whether a bound takes effect: in the losses that take the smaller of two products, only where it makes the product smaller.
func takesEffect(loss string, ratio, advantage float64, bounds [2]float64) bool {
	low, high := ratio < bounds[0], ratio > bounds[1]
	if loss == "ppo" || loss == "gspo" {
		return low && advantage < 0 || high && advantage > 0
	}
	return low || high
}

// maxNorms bounds the series that a run has of its adapter's norm, whatever a plugin calls modules.
const maxNorms = 65

// eventOfStep sums a step up.
func eventOfStep(got *plugins.OptimStepResult, adam *plugins.AdamParams) *history.Event {
	x := &history.Event{Kind: history.Step, Number: got.Step, LearningRate: adam.LearningRate, GradientNorm: history.Unknown}
	for name, v := range got.Metrics {
		switch {
		case name == history.GradientNorm:
			x.GradientNorm = v
		case name == history.AdapterNorm || strings.HasPrefix(name, history.AdapterNorm+"/") && history.CheckName(name) == nil:
			x.Norms = append(x.Norms, history.Value{Name: name, Number: v})
		}
	}
	slices.SortFunc(x.Norms, func(a, b history.Value) int { return cmp.Compare(a.Name, b.Name) })
	x.Norms = x.Norms[:min(len(x.Norms), maxNorms)]
	return x
}

// recorded completes what the series have of an operation, and puts it into its result. It is nil for what they have nothing of.
func (f *future) recorded(res *resultRecord) *history.Event {
	if res.Failure == nil && f.event != nil {
		x := f.event
		if ran := res.Ran; ran != nil {
			x.Cycle, x.Begin, x.End, x.Queued = ran.Cycle, ran.Begin.UnixNano(), ran.End.UnixNano(), max(int64(ran.Begin.Sub(f.since)), 0)
		} else {
			x.End = res.Done.UnixNano()
		}
		res.Stats = x.Encode()
		return x
	}
	x, _ := eventOf(res)
	return x
}

// eventOf reads from a result what the series have of the operation; nil for nothing.
func eventOf(res *resultRecord) (*history.Event, error) {
	switch {
	case res.Failure != nil && res.Kind == OpOptimStep && res.Position > 0 && !res.Kept: // the backend dropped what was accumulated
		return &history.Event{Kind: history.Dropped}, nil
	case res.Failure != nil:
		return nil, nil
	case res.Kind == OpLoadWeights:
		return &history.Event{Kind: history.Loaded}, nil
	case len(res.Stats) > 0:
		return history.DecodeEvent(res.Stats)
	}
	return nil, nil
}
