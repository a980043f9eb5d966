package plugins

import (
	"math"
	"slices"
	"strings"
)

// LossSpec says what a loss reads. Formulas, with lp the log-probability of the target under the adapter, q Datum.Logprobs, A Datum.Advantages,
// r = exp(lp − q), sg the stopped gradient; all are sums over all positions of all data of the operation, each position's term times its w of Datum.Weights:
//
//	cross_entropy        −Σ lp
//	importance_sampling  −Σ r·A
//	ppo                  −Σ min(r·A, clip(r, low, high)·A)
//	cispo                −Σ sg(clip(r, low, high))·lp·A
//	dro                  −Σ (lp·A − ½·beta·(lp − q)²)
//	gspo                 as ppo with s = exp(mean of lp − q over positions of the datum whose mask is not 0) in place of r; the gradient of s
//	                     with respect to each lp of the datum is taken as s
//	stable_reinforce     −Σ sg(min(r, ratio_cap))·lp·A
//
// A position with w = 0 contributes exactly zero to the loss and to the gradient, and so does one with A = 0, whatever its r (dro: its second term stays). Weights of losses other than cross_entropy may be absent,
// which gives the bits of weights of 1; the product w·A is rounded to float32. What gspo takes the mean of does not depend on w. Losses with clipped products (Clips) have no negative w.
type LossSpec struct {
	Weights           bool         // needs Datum.Weights, and allows K > 1; the others may have them
	Clips             bool         // Datum.Weights must not be negative
	Logprobs          bool         // reads Datum.Logprobs and Datum.Advantages
	SequenceRatioMask bool         // reads Datum.SequenceRatioMask
	Config            []LossOption // the keys of LossConfig
}

// LossOption is one key of ForwardBackwardRequest.LossConfig; values are finite and at least 0.
type LossOption struct {
	Key     string
	Default float64
}

// Keys of ForwardBackwardRequest.LossConfig. The clip thresholds are bounds on the ratio itself (0.8, not 0.2).
const (
	ClipLow  = "clip_low_threshold"
	ClipHigh = "clip_high_threshold"
	Beta     = "beta"
	RatioCap = "ratio_cap"
)

var losses = map[string]LossSpec{
	"cross_entropy":       {Weights: true},
	"importance_sampling": {Logprobs: true},
	"ppo":                 {Logprobs: true, Clips: true, Config: []LossOption{{ClipLow, 0.8}, {ClipHigh, 1.2}}},
	"cispo":               {Logprobs: true, Config: []LossOption{{ClipLow, 0}, {ClipHigh, 4}}},
	"dro":                 {Logprobs: true, Config: []LossOption{{Beta, 0.05}}},
	"gspo":                {Logprobs: true, SequenceRatioMask: true, Clips: true, Config: []LossOption{{ClipLow, 0.8}, {ClipHigh, 1.2}}},
	"stable_reinforce":    {Logprobs: true, Config: []LossOption{{RatioCap, 2}}},
}

// LookupLoss gives the specification of a loss by its name.
func LookupLoss(name string) (LossSpec, bool) {
	s, ok := losses[name]
	return s, ok
}

// LossNames lists all losses in alphabetical order.
func LossNames() []string {
	names := make([]string, 0, len(losses))
	for name := range losses {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ResolveLossConfig fills the defaults of a loss into config and checks keys and values. The result is a new map. An error is KindInvalid and names
// "loss" or "loss_config.KEY".
func ResolveLossConfig(loss string, config map[string]float64) (map[string]float64, error) {
	spec, ok := LookupLoss(loss)
	if !ok {
		return nil, Invalidf("loss", "%.100q is not a loss; allowed are %s", loss, strings.Join(LossNames(), ", "))
	}
	full := make(map[string]float64, len(spec.Config))
	var allowed []string
	for _, o := range spec.Config {
		full[o.Key] = o.Default
		allowed = append(allowed, o.Key)
	}
	for key, v := range config {
		if !slices.Contains(allowed, key) {
			if len(allowed) == 0 {
				return nil, Invalidf("loss_config."+clip(key), "loss %s takes no configuration", loss)
			}
			return nil, Invalidf("loss_config."+clip(key), "not a key of loss %s; allowed are %s", loss, strings.Join(allowed, ", "))
		}
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return nil, Invalidf("loss_config."+key, "%v is not allowed: a finite number of at least 0", v)
		}
		full[key] = v
	}
	if low, ok := full[ClipLow]; ok && low > full[ClipHigh] {
		return nil, Invalidf("loss_config."+ClipLow, "%v is larger than %s, which is %v", low, ClipHigh, full[ClipHigh])
	}
	return full, nil
}

// clip shortens a name that comes from outside, for messages.
func clip(s string) string {
	if len(s) > 100 {
		return strings.ToValidUTF8(s[:100], "") + "…"
	}
	return s
}
