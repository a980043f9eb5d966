package simple

import (
	"math"

	"github.com/tinsmith/tinsmith/plugins"
)

// lossOf gives the terms of one datum's loss and their derivatives by each log-probability; see plugins.LossSpec for the formulas.
func lossOf(loss string, config map[string]float64, d *plugins.Datum, lp []float64) (terms, coefficients []float64) {
	terms, coefficients = plainLossOf(loss, config, d, lp)
	for i, w := range d.Weights {
		if w == 0 {
			terms[i], coefficients[i] = 0, 0
			continue
		}
		terms[i] *= float64(w)
		coefficients[i] *= float64(w)
	}
	return terms, coefficients
}

// plainLossOf does it with weights of 1.
func plainLossOf(loss string, config map[string]float64, d *plugins.Datum, lp []float64) (terms, coefficients []float64) {
	terms, coefficients = make([]float64, len(lp)), make([]float64, len(lp))
	if loss == "cross_entropy" {
		for i := range lp {
			terms[i], coefficients[i] = -lp[i], -1
		}
		return terms, coefficients
	}
	low, high := config[plugins.ClipLow], config[plugins.ClipHigh]
	sequenceRatio := 1.0
	if loss == "gspo" {
		sum, count := 0.0, 0
		for i, mask := range d.SequenceRatioMask {
			if mask != 0 {
				sum += lp[i] - float64(d.Logprobs[i])
				count++
			}
		}
		sequenceRatio = math.Exp(sum / float64(max(1, count)))
	}
	for i := range lp {
		adv := float64(d.Advantages[i])
		diff := lp[i] - float64(d.Logprobs[i])
		if loss == "dro" {
			beta := config[plugins.Beta]
			terms[i] = -(lp[i]*adv - 0.5*beta*diff*diff)
			coefficients[i] = -(adv - beta*diff)
			continue
		}
		if adv == 0 || len(d.Weights) > 0 && d.Weights[i] == 0 {
			continue
		}
		r := math.Exp(diff)
		switch loss {
		case "importance_sampling":
			terms[i] = -r * adv
			coefficients[i] = -r * adv
		case "ppo", "gspo":
			if loss == "gspo" {
				r = sequenceRatio
			}
			clipped := min(max(r, low), high)
			if r*adv <= clipped*adv {
				terms[i] = -r * adv
				coefficients[i] = -r * adv
			} else {
				terms[i] = -clipped * adv
			}
		case "cispo":
			c := min(max(r, low), high)
			terms[i] = -c * lp[i] * adv
			coefficients[i] = -c * adv
		case "stable_reinforce":
			c := min(r, config[plugins.RatioCap])
			terms[i] = -c * lp[i] * adv
			coefficients[i] = -c * adv
		}
	}
	return terms, coefficients
}
