package fake

import (
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// pass runs one forward_backward over the latest version. On success it has added the gradient to the accumulator.
func (b *Backend) pass(a *adapter, req *plugins.ForwardBackwardRequest, v *version) (plugins.ForwardBackwardResult, error) {
	if err := req.Validate(&b.info); err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	config, err := plugins.ResolveLossConfig(req.Loss, req.LossConfig)
	if err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	begin := time.Now()
	res := plugins.ForwardBackwardResult{Logprobs: make([][]float32, len(req.Data)), Terms: make([][]float32, len(req.Data))}
	var grad []float64
	if !req.ForwardOnly {
		grad = make([]float64, a.shape.total)
	}
	total := 0.0
	for i := range req.Data {
		loss, lps, terms := b.sequence(&v.parameters, &req.Data[i], req.Loss, config, grad)
		total += loss
		res.Logprobs[i], res.Terms[i] = lps, terms
		b.progress(func(s *plugins.Status) { s.TrainedTokens += int64(len(lps)) })
	}
	if math.IsNaN(total) || math.IsInf(total, 0) {
		return plugins.ForwardBackwardResult{}, &plugins.Error{Kind: plugins.KindNotFinite, Field: "loss", Message: fmt.Sprintf("the loss is %v", total)}
	}
	if grad != nil {
		sum := make([]float32, len(grad))
		for i, g := range grad {
			sum[i] = a.accumulated[i] + float32(g)
		}
		if err := b.checkFinite(a.shape, sum, "gradient"); err != nil {
			return plugins.ForwardBackwardResult{}, err
		}
		a.accumulated = sum
	}
	cycle := b.cycle()
	res.Metrics = map[string]float64{"loss:sum": total, "clock_cycle:unique": float64(cycle)}
	res.Execution = plugins.Execution{Cycle: cycle, Begin: begin, End: time.Now()}
	return res, nil
}

// checkFinite names the first tensor with a value that is not finite.
func (b *Backend) checkFinite(s *shape, values []float32, what string) error {
	for _, t := range s.tensors {
		for _, x := range values[t.offset:][:t.size()] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return &plugins.Error{Kind: plugins.KindNotFinite, Field: b.model.tensorName(t, plugins.ExportPEFT), Message: fmt.Sprintf("a value of the %s is %v", what, x)}
			}
		}
	}
	return nil
}

// sequence runs one datum forward and, with grad, backward.
func (b *Backend) sequence(p *parameters, d *plugins.Datum, loss string, config map[string]float64, grad []float64) (total float64, lps, terms []float32) {
	m, n := b.model, len(d.Tokens)
	lps, terms = make([]float32, n*d.K), make([]float32, n*d.K)
	exact := make([]float64, n*d.K)
	rows := make([]*activations, n)
	state := make([]float64, m.hidden)
	for i, token := range d.Tokens {
		if rows[i] = rows[max(0, i-1)]; rows[i] == nil || grad != nil {
			rows[i] = m.newActivations() // a pass without gradient needs one row at a time
		}
		m.advance(state, token)
		m.forward(p, state, rows[i])
		lse := logSumExp(rows[i].logits)
		for k := range d.K {
			exact[i*d.K+k] = rows[i].logits[d.Targets[i*d.K+k]] - lse
			lps[i*d.K+k] = float32(exact[i*d.K+k])
		}
	}
	exactTerms, coefficients := lossOf(loss, config, d, exact)
	for i, term := range exactTerms {
		total += term
		terms[i] = float32(term)
	}
	if grad == nil {
		return total, lps, terms
	}
	dLogits := make([]float64, m.vocab)
	for i := range n {
		c := coefficients[i*d.K:][:d.K]
		sum, any := 0.0, false
		for _, x := range c {
			sum += x
			any = any || x != 0
		}
		if !any {
			continue
		}
		lse := logSumExp(rows[i].logits)
		for j, l := range rows[i].logits {
			dLogits[j] = -sum * math.Exp(l-lse)
		}
		for k, x := range c {
			dLogits[d.Targets[i*d.K+k]] += x
		}
		m.backward(p, rows[i], dLogits, grad)
	}
	return total, lps, terms
}

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

// adamStep computes the version after v from the accumulated gradient (torch.optim.AdamW, and torch's clip_grad_norm_ before it). v stays as it was.
func (b *Backend) adamStep(v *version, gradient []float32, p *plugins.AdamParams) (*version, map[string]float64, error) {
	squares := 0.0
	for _, g := range gradient {
		squares += float64(g) * float64(g)
	}
	norm, scale := math.Sqrt(squares), 1.0
	if p.GradClipNorm > 0 {
		scale = min(1, p.GradClipNorm/(norm+1e-6))
	}
	n := len(v.flat)
	next := &version{
		number: v.number + 1, step: v.step + 1, parameters: parameters{shape: v.shape, flat: make([]float32, n)}, first: make([]float32, n), second: make([]float32, n),
	}
	correction1, correction2 := 1-math.Pow(p.Beta1, float64(next.step)), 1-math.Pow(p.Beta2, float64(next.step))
	squares = 0
	for i, raw := range gradient {
		g := float64(raw) * scale
		next.first[i] = float32(p.Beta1*float64(v.first[i]) + (1-p.Beta1)*g)
		next.second[i] = float32(p.Beta2*float64(v.second[i]) + (1-p.Beta2)*g*g)
		x := float64(v.flat[i]) * (1 - p.LearningRate*p.WeightDecay)
		x -= p.LearningRate * (float64(next.first[i]) / correction1) / (math.Sqrt(float64(next.second[i])/correction2) + p.Eps)
		next.flat[i] = float32(x)
		squares += float64(next.flat[i]) * float64(next.flat[i])
	}
	for _, c := range []struct {
		what   string
		values []float32
	}{{"new weights", next.flat}, {"first moment", next.first}, {"second moment", next.second}} {
		if err := b.checkFinite(v.shape, c.values, c.what); err != nil {
			return nil, nil, err
		}
	}
	return next, map[string]float64{
		"grad_norm": norm, "adapter_norm": math.Sqrt(squares), "learning_rate": p.LearningRate, "clock_cycle": float64(b.cycle()),
	}, nil
}
