package simple

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// pass runs one forward_backward over the latest version. On success it has added the gradient to the accumulator.
func (b *Backend) pass(ctx context.Context, a *adapter, req *plugins.ForwardBackwardRequest, v *version) (plugins.ForwardBackwardResult, error) {
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
		grad = make([]float64, a.layout.Total)
	}
	total := 0.0
	for i := range req.Data {
		if err := b.stopped(ctx); err != nil {
			return plugins.ForwardBackwardResult{}, err
		}
		loss, lps, terms, err := Loss(ctx, b.model, &v.Weights, &req.Data[i], req.Loss, config, grad)
		if err != nil {
			return plugins.ForwardBackwardResult{}, err
		}
		total += loss
		res.Logprobs[i], res.Terms[i] = lps, terms
		b.Progress(func(s *plugins.Status) { s.TrainedTokens += int64(len(lps)) })
	}
	if math.IsNaN(total) || math.IsInf(total, 0) {
		return plugins.ForwardBackwardResult{}, &plugins.Error{Kind: plugins.KindNotFinite, Field: "loss", Message: fmt.Sprintf("the loss is %v", total)}
	}
	if grad != nil {
		sum := make([]float32, len(grad))
		for i, g := range grad {
			sum[i] = a.accumulated[i] + float32(g)
		}
		if err := b.checkFinite(a.layout, sum, "gradient"); err != nil {
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
func (b *Backend) checkFinite(l *Layout, values []float32, what string) error {
	for _, t := range l.Tensors {
		for _, x := range values[t.Offset:][:t.Size()] {
			if math.IsNaN(float64(x)) || math.IsInf(float64(x), 0) {
				return &plugins.Error{Kind: plugins.KindNotFinite, Field: b.tensorName(t, plugins.ExportPEFT), Message: fmt.Sprintf("a value of the %s is %v", what, x)}
			}
		}
	}
	return nil
}

// Loss runs one datum forward through a model and, unless grad is nil, backward: it adds to grad, which is in the order of the weights' layout. config is resolved.
func Loss(ctx context.Context, m Model, w *Weights, d *plugins.Datum, loss string, config map[string]float64, grad []float64) (total float64, lps, terms []float32, err error) {
	pass, err := m.Forward(ctx, w, d.Tokens, grad != nil)
	if err != nil {
		return 0, nil, nil, err
	}
	defer pass.Close()
	exact, err := pass.Logprobs(ctx, d.Targets, d.K)
	if err != nil {
		return 0, nil, nil, err
	}
	lps, terms = make([]float32, len(exact)), make([]float32, len(exact))
	exactTerms, coefficients := lossOf(loss, config, d, exact)
	any := false
	for i, term := range exactTerms {
		total += term
		lps[i], terms[i] = float32(exact[i]), float32(term)
		any = any || coefficients[i] != 0
	}
	if any && grad != nil {
		err = pass.Backward(ctx, coefficients, grad)
	}
	return total, lps, terms, err
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
	n := len(v.Values)
	next := &version{
		number: v.number + 1, step: v.step + 1, Weights: NewWeights(v.Layout), first: make([]float32, n), second: make([]float32, n),
	}
	correction1, correction2 := 1-math.Pow(p.Beta1, float64(next.step)), 1-math.Pow(p.Beta2, float64(next.step))
	squares = 0
	for i, raw := range gradient {
		g := float64(raw) * scale
		next.first[i] = float32(p.Beta1*float64(v.first[i]) + (1-p.Beta1)*g)
		next.second[i] = float32(p.Beta2*float64(v.second[i]) + (1-p.Beta2)*g*g)
		x := float64(v.Values[i]) * (1 - p.LearningRate*p.WeightDecay)
		x -= p.LearningRate * (float64(next.first[i]) / correction1) / (math.Sqrt(float64(next.second[i])/correction2) + p.Eps)
		next.Values[i] = float32(x)
		squares += float64(next.Values[i]) * float64(next.Values[i])
	}
	for _, c := range []struct {
		what   string
		values []float32
	}{{"new weights", next.Values}, {"first moment", next.first}, {"second moment", next.second}} {
		if err := b.checkFinite(v.Layout, c.values, c.what); err != nil {
			return nil, nil, err
		}
	}
	metrics := map[string]float64{
		"grad_norm": norm, "adapter_norm": math.Sqrt(squares), "learning_rate": p.LearningRate, "clock_cycle": float64(b.cycle()),
	}
	for kind, squares := range b.squaresOfKinds(&next.Weights) {
		metrics[plugins.AdapterNormOf(kind)] = math.Sqrt(squares)
	}
	return next, metrics, nil
}

// squaresOfKinds sums the squares of weights by kind of module.
func (b *Backend) squaresOfKinds(w *Weights) map[string]float64 {
	sums := map[string]float64{}
	for _, t := range w.Layout.Tensors {
		sum := 0.0
		for _, x := range w.Values[t.Offset : t.Offset+t.Size()] {
			sum += float64(x) * float64(x)
		}
		sums[b.kind(t.Module)] += sum
	}
	return sums
}
