package plugintest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
)

func (s *suite) infoAndStatus() {
	i, err := s.b.Info(s.Context())
	if err != nil || i.Plugin == "" || i.Version == "" || i.BootID == "" {
		s.Errorf("Info = %+v, %v", i, err)
	}
	if _, err := s.b.Load(s.Context(), plugins.LoadRequest{}, func(plugins.LoadProgress) {}); plugins.KindOf(err) != plugins.KindInvalid {
		s.Errorf("a second load: %v, want an invalid request", err)
	}
	s.create("a", allModules).train(1, s.datum(1, 5))
	s.sample(s.request("a", 1, 2))
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	var reports []plugins.Status
	err = s.b.Status(ctx, func(st plugins.Status) {
		if reports = append(reports, st); len(reports) == 2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) || len(reports) < 2 {
		s.Fatalf("Status gave %d reports and %v", len(reports), err)
	}
	st := reports[0]
	if st.BootID != i.BootID || st.Adapters != 1 || st.Versions != 1 || st.TrainedTokens < 5 || st.SampledTokens != 2 || st.AdapterBytes <= 0 || st.LastProgressAge != 0 || st.Time.IsZero() {
		s.Errorf("status %+v", st)
	}
}

func (s *suite) createAndDelete() {
	req := plugins.CreateAdapterRequest{Adapter: "a", Config: allModules}
	first, err := s.b.CreateAdapter(s.Context(), req)
	if err != nil {
		s.Fatal(err)
	}
	if first.Version != 0 || first.Step != 0 || first.Bytes <= 0 || first.Config.Rank != allModules.Rank || len(first.Config.Modules) == 0 {
		s.Errorf("answer %+v", first)
	}
	r := &run{suite: s, id: "a"}
	r.train(1, s.datum(1, 5))
	again, err := s.b.CreateAdapter(s.Context(), req)
	if err != nil || again.Version != first.Version || again.Config.Rank != first.Config.Rank {
		s.Errorf("repeated: %+v, %v; first %+v", again, err, first)
	}
	before := r.forward(s.datum(1, 5))
	req.Config.Rank = 4
	_, err = s.b.CreateAdapter(s.Context(), req)
	s.wantInvalid("another configuration under the same id", err, "adapter")
	s.sameBits("after refused and repeated creates", r.forward(s.datum(1, 5)).Logprobs[0], before.Logprobs[0])
	for range 2 {
		if err := s.b.DeleteAdapter(s.Context(), "a"); err != nil {
			s.Errorf("delete: %v", err)
		}
	}
	_, err = r.tryForward(true, s.datum(1, 5))
	s.wantKind("forward on a deleted adapter", err, plugins.KindNotFound)
	_, err = s.trySample(s.request("a", 1, 1), nil)
	s.wantKind("sample on a deleted adapter", err, plugins.KindNotFound)
	if fresh, err := s.b.CreateAdapter(s.Context(), req); err != nil || fresh.Config.Rank != 4 {
		s.Errorf("create after delete: %+v, %v", fresh, err)
	}
}

func (s *suite) modulesFollowFlags() {
	seen := map[string]string{}
	for _, c := range []plugins.AdapterConfig{{TrainAttention: true}, {TrainMLP: true}, {TrainUnembed: true}} {
		c.Rank = 2
		flags := fmt.Sprintf("attention %t, mlp %t, unembed %t", c.TrainAttention, c.TrainMLP, c.TrainUnembed)
		info, err := s.b.CreateAdapter(s.Context(), plugins.CreateAdapterRequest{Adapter: flags, Config: c})
		if err != nil {
			s.Fatalf("%s: %v", flags, err)
		}
		if len(info.Config.Modules) == 0 {
			s.Errorf("%s: no module", flags)
		}
		for _, m := range info.Config.Modules {
			if other, ok := seen[m]; ok {
				s.Errorf("module %s belongs to (%s) and (%s)", m, other, flags)
			}
			seen[m] = flags
		}
	}
}

// order sends operations of one adapter shuffled and at once, and compares with the same ones sent one by one.
func (s *suite) order() {
	const steps = 4
	alone := s.create("alone", allModules)
	var want [][]float32
	for i := range steps {
		want = append(want, alone.forwardBackward(s.datum(i, 6)).Logprobs[0])
		alone.step()
	}
	s.create("shuffled", allModules)
	got := make([][]float32, steps)
	failures := make([]error, 2*steps)
	var wg sync.WaitGroup
	for _, position := range []int64{8, 3, 6, 1, 5, 7, 2, 4} {
		wg.Go(func() {
			i := int(position-1) / 2
			if position%2 == 1 {
				res, err := s.b.ForwardBackward(s.Context(), plugins.ForwardBackwardRequest{Adapter: "shuffled", Position: position, Data: []plugins.Datum{s.datum(i, 6)}, Loss: "cross_entropy"})
				if failures[position-1] = err; err == nil {
					got[i] = res.Logprobs[0]
				}
			} else {
				res, err := s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "shuffled", Position: position, Adam: adam})
				if failures[position-1] = err; err == nil && (res.Version != position/2 || res.Step != position/2) {
					s.Errorf("step at position %d made version %d, step %d", position, res.Version, res.Step)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(failures...); err != nil {
		s.Fatal(err)
	}
	for i := range want {
		s.sameBits(fmt.Sprintf("forward_backward %d", i), got[i], want[i])
	}
}

func (s *suite) positions() {
	r := s.create("a", allModules)
	r.train(1, s.datum(1, 5))
	want := r.forward(s.datum(1, 5)).Logprobs[0]
	for _, position := range []int64{1, 2, 3} {
		_, err := s.b.ForwardBackward(s.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: position, Data: []plugins.Datum{s.datum(2, 5)}, Loss: "cross_entropy"})
		s.wantKind(fmt.Sprintf("position %d again", position), err, plugins.KindAlreadyApplied)
		_, err = s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: position, Adam: adam})
		s.wantKind(fmt.Sprintf("position %d again, as a step", position), err, plugins.KindAlreadyApplied)
	}
	_, err := s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: r.next + 1 + plugins.MaxAhead, Adam: adam})
	s.wantKind("a position too far ahead", err, plugins.KindCapacity)
	_, err = s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: 0, Adam: adam})
	s.wantInvalid("position 0", err, "position")
	s.sameBits("after refused positions", r.forward(s.datum(1, 5)).Logprobs[0], want)
	_, err = s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "nobody", Position: 1, Adam: adam})
	s.wantKind("an adapter that does not exist", err, plugins.KindNotFound)

	// Giving up waiting does not undo: the operation runs when its turn has come. It waits for the one before it, so that its result cannot be there when the context is looked at.
	ctx, cancel := context.WithCancel(s.Context())
	cancel()
	first := r.position()
	given := r.position()
	_, err = s.b.OptimStep(ctx, plugins.OptimStepRequest{Adapter: "a", Position: given, Adam: adam})
	s.wantKind("a call whose context has ended", err, plugins.KindCancelled)
	if !errors.Is(err, context.Canceled) {
		s.Errorf("a call whose context has ended: %v, want that errors.Is finds the context's error", err)
	}
	if res, err := s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: first, Adam: adam}); err != nil || res.Step != 2 {
		s.Errorf("the step before it: %+v, %v; want step 2", res, err)
	}
	// Whether it arrived is open when the context ended before the call; so send it again, and take either answer.
	if _, err := s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: given, Adam: adam}); err != nil && !errors.Is(err, plugins.ErrAlreadyApplied) {
		s.Errorf("the given-up position again: %v", err)
	}
	if res, err := s.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: r.position(), Adam: adam}); err != nil || res.Step != 4 {
		s.Errorf("the step after it: %+v, %v; want step 4", res, err)
	}
}

// checkMetrics demands the metrics that every pass has.
func (s *suite) checkMetrics(res plugins.ForwardBackwardResult, wantLoss float64) {
	s.Helper()
	loss, ok := res.Metrics["loss:sum"]
	if !ok || math.Abs(loss-wantLoss) > 1e-4*max(1, math.Abs(wantLoss)) {
		s.Errorf("loss:sum is %v, the log-probabilities say %v", loss, wantLoss)
	}
	s.checkExecution(res.Execution, res.Metrics["clock_cycle:unique"])
}

// checkExecution demands that the facts about a cycle agree with its metric.
func (s *suite) checkExecution(x plugins.Execution, metric float64) {
	s.Helper()
	if float64(x.Cycle) != metric || x.Cycle < 1 || x.Begin.IsZero() || x.End.Before(x.Begin) || x.SamplingTurns < 0 || x.Sampling < 0 {
		s.Errorf("execution %+v, the metrics say cycle %v", x, metric)
	}
}

func crossEntropy(d plugins.Datum, logprobs []float32) float64 {
	sum := 0.0
	for i, lp := range logprobs {
		sum -= float64(d.Weights[i]) * float64(lp)
	}
	return sum
}

func (s *suite) trainingLowersLoss() {
	r, d := s.create("a", allModules), s.datum(1, 8)
	first := r.forwardBackward(d)
	before := crossEntropy(d, first.Logprobs[0])
	s.checkMetrics(first, before)
	var metrics map[string]float64
	for i := range int64(15) {
		res := r.step()
		if res.Version != i+1 || res.Step != i+1 {
			s.Errorf("step %d made version %d, step %d", i+1, res.Version, res.Step)
		}
		s.checkExecution(res.Execution, res.Metrics["clock_cycle"])
		for _, key := range []string{"grad_norm", "adapter_norm", "learning_rate", "clock_cycle"} {
			if v, ok := res.Metrics[key]; !ok || math.IsNaN(v) || math.IsInf(v, 0) {
				s.Errorf("metric %s is %v (present: %t)", key, v, ok)
			}
		}
		metrics = res.Metrics
		s.checkNorms(r, metrics)
		r.forwardBackward(d)
	}
	s.checkSavedNorms(r, metrics)
	after := crossEntropy(d, r.forward(d).Logprobs[0])
	if !(after < 0.8*before) {
		s.Errorf("the loss went from %v to %v in 15 steps", before, after)
	}
}

// accumulation compares two passes before one step with one pass over all data.
func (s *suite) accumulation() {
	a, b := s.datum(1, 6), s.datum(2, 7)
	together, apart, twice := s.create("together", allModules), s.create("apart", allModules), s.create("twice", allModules)
	together.forwardBackward(a, b)
	apart.forwardBackward(a)
	apart.forwardBackward(b)
	twice.forwardBackward(a, b)
	twice.forwardBackward(a, b)
	one, two, double := together.step(), apart.step(), twice.step()
	if n1, n2 := one.Metrics["grad_norm"], two.Metrics["grad_norm"]; math.Abs(n1-n2) > 1e-3*n1 {
		s.Errorf("gradient norm %v of one pass, %v of two", n1, n2)
	}
	if n1, n2 := one.Metrics["grad_norm"], double.Metrics["grad_norm"]; math.Abs(2*n1-n2) > 1e-3*n2 {
		s.Errorf("gradient norm %v of one pass, %v of the same pass twice: losses are sums", n1, n2)
	}
}

func (s *suite) forwardOnly() {
	r, d := s.create("a", allModules), s.datum(1, 6)
	same := s.create("b", allModules)
	r.forward(s.datum(2, 9))
	got := r.forward(d)
	want := r.forwardBackward(d)
	s.sameBits("forward and forward_backward", got.Logprobs[0], want.Logprobs[0])
	if got.Metrics["loss:sum"] != want.Metrics["loss:sum"] {
		s.Errorf("loss %v forward only, %v with gradient", got.Metrics["loss:sum"], want.Metrics["loss:sum"])
	}
	same.forwardBackward(d)
	r.step()
	same.step()
	s.sameBits("after a step with and without passes that were forward only", r.forward(d).Logprobs[0], same.forward(d).Logprobs[0])
}

// losses checks each loss's value against the formulas of plugins.LossSpec, and that the gradient lowers it.
func (s *suite) losses() {
	d := s.datum(1, 6)
	d.Weights = nil
	lp := s.create("probe", allModules).forwardOf("cross_entropy", s.datum(1, 6)).Logprobs[0]
	for i := range lp {
		d.Logprobs = append(d.Logprobs, lp[i]+[]float32{0.05, -0.3, 0.4, 0, -0.1, 0.3}[i])
		d.Advantages = append(d.Advantages, []float32{1, -0.5, 2, 0, -1, 0.5}[i])
	}
	for _, name := range plugins.LossNames() {
		if name == "cross_entropy" {
			continue
		}
		data := d
		spec, _ := plugins.LookupLoss(name)
		if spec.SequenceRatioMask {
			data.SequenceRatioMask = []float32{1, 1, 0, 1, 1, 0}
		}
		r := s.create(name, allModules)
		res, err := r.tryLoss(name, nil, data)
		if err != nil {
			s.Errorf("%s: %v", name, err)
			continue
		}
		s.sameBits(name+": log-probabilities", res.Logprobs[0], lp)
		config, err := plugins.ResolveLossConfig(name, nil)
		if err != nil {
			s.Fatal(err)
		}
		s.checkMetrics(res, lossValue(name, config, data, lp))
		s.checkTerms(name, res)
		s.weightedLoss(name, config, data, res, lp)
		if step := r.step(); !(step.Metrics["grad_norm"] > 0) {
			s.Errorf("%s: gradient norm %v", name, step.Metrics["grad_norm"])
		}
		s.differ(name+": before and after a step", r.forwardOf("cross_entropy", s.datum(1, 6)).Logprobs[0], lp)
	}
	wide := s.datum(1, 4)
	wide.K, wide.Targets, wide.Weights = 2, []int32{1, 2, 3, 4, 5, 6, 7, 8}, []float32{1, 0.5, 0, 1, 0.25, 0, 1, 1}
	res := s.create("wide", allModules).forwardBackward(wide)
	if len(res.Logprobs[0]) != 8 {
		s.Fatalf("%d log-probabilities for 4 positions with 2 targets", len(res.Logprobs[0]))
	}
	s.checkMetrics(res, crossEntropy(wide, res.Logprobs[0]))
	s.checkTerms("cross_entropy with two targets", res)
}

func (r *run) tryLoss(loss string, config map[string]float64, data ...plugins.Datum) (plugins.ForwardBackwardResult, error) {
	return r.b.ForwardBackward(r.Context(), plugins.ForwardBackwardRequest{Adapter: r.id, Position: r.position(), Data: data, Loss: loss, LossConfig: config})
}

func (r *run) forwardOf(loss string, data ...plugins.Datum) plugins.ForwardBackwardResult {
	r.Helper()
	res, err := r.b.ForwardBackward(r.Context(), plugins.ForwardBackwardRequest{Adapter: r.id, Position: r.position(), Data: data, Loss: loss, ForwardOnly: true})
	if err != nil {
		r.Fatalf("forward with loss %s: %v", loss, err)
	}
	return res
}

// weightedLoss runs a policy loss with weights: ones give the bits that none give, and others multiply each position's term.
func (s *suite) weightedLoss(name string, config map[string]float64, data plugins.Datum, plain plugins.ForwardBackwardResult, lp []float32) {
	s.Helper()
	data.Weights = []float32{1, 1, 1, 1, 1, 1}
	r := s.create(name+" with ones", allModules)
	res, err := r.tryLoss(name, nil, data)
	if err != nil {
		s.Errorf("%s with ones: %v", name, err)
		return
	}
	s.sameBits(name+" with ones: terms", res.Terms[0], plain.Terms[0])
	if res.Metrics["loss:sum"] != plain.Metrics["loss:sum"] {
		s.Errorf("%s: loss:sum is %v with weights of one, %v without", name, res.Metrics["loss:sum"], plain.Metrics["loss:sum"])
	}
	same := s.create(name+" without", allModules)
	data.Weights = nil
	if _, err := same.tryLoss(name, nil, data); err != nil {
		s.Errorf("%s: %v", name, err)
	}
	r.step()
	same.step()
	s.sameBits(name+" with ones: after a step", r.forwardOf("cross_entropy", s.datum(1, 6)).Logprobs[0], same.forwardOf("cross_entropy", s.datum(1, 6)).Logprobs[0])

	data.Weights = []float32{2, 0.5, 0, 1, 0.25, 3}
	r = s.create(name+" weighted", allModules)
	if res, err = r.tryLoss(name, nil, data); err != nil {
		s.Errorf("%s with weights: %v", name, err)
		return
	}
	s.checkMetrics(res, lossValue(name, config, data, lp))
	s.checkTerms(name+" with weights", res)
	if res.Terms[0][2] != 0 {
		s.Errorf("%s: a position with a weight of zero has the term %v", name, res.Terms[0][2])
	}
}

// checkTerms demands that the terms add up to the loss.
func (s *suite) checkTerms(what string, res plugins.ForwardBackwardResult) {
	s.Helper()
	if len(res.Terms) != len(res.Logprobs) {
		s.Fatalf("%s: terms of %d data, log-probabilities of %d", what, len(res.Terms), len(res.Logprobs))
	}
	sum, size := 0.0, 0.0
	for i, terms := range res.Terms {
		if len(terms) != len(res.Logprobs[i]) {
			s.Fatalf("%s: datum %d has %d terms, %d log-probabilities", what, i, len(terms), len(res.Logprobs[i]))
		}
		for _, x := range terms {
			sum, size = sum+float64(x), size+math.Abs(float64(x))
		}
	}
	if math.Abs(sum-res.Metrics["loss:sum"]) > 1e-6*size {
		s.Errorf("%s: the terms add up to %v, loss:sum is %v", what, sum, res.Metrics["loss:sum"])
	}
}

// lossValue is written from the formulas, independently of any backend.
func lossValue(name string, config map[string]float64, d plugins.Datum, lp []float32) float64 {
	low, high := config[plugins.ClipLow], config[plugins.ClipHigh]
	mean, count := 0.0, 0.0
	for i, m := range d.SequenceRatioMask {
		if m != 0 {
			mean += float64(lp[i]) - float64(d.Logprobs[i])
			count++
		}
	}
	total := 0.0
	for i := range lp {
		l, q, a, w := float64(lp[i]), float64(d.Logprobs[i]), float64(d.Advantages[i]), 1.0
		if d.Weights != nil {
			w = float64(d.Weights[i])
		}
		ratio := math.Exp(l - q)
		switch name {
		case "importance_sampling":
			total -= w * ratio * a
		case "ppo":
			total -= w * min(ratio*a, min(max(ratio, low), high)*a)
		case "gspo":
			ratio = math.Exp(mean / count)
			total -= w * min(ratio*a, min(max(ratio, low), high)*a)
		case "cispo":
			total -= w * min(max(ratio, low), high) * l * a
		case "dro":
			total -= w * (l*a - 0.5*config[plugins.Beta]*(l-q)*(l-q))
		case "stable_reinforce":
			total -= w * min(ratio, config[plugins.RatioCap]) * l * a
		}
	}
	return total
}

func (s *suite) failedWindow() {
	r, d := s.create("a", allModules), s.datum(1, 6)
	bad := s.datum(1, 6)
	bad.Targets[2] = int32(s.model.VocabSize)
	r.train(2, d)
	before := r.forward(d).Logprobs[0]

	_, err := r.tryForward(false, d, bad)
	s.wantInvalid("a target out of the vocabulary", err, "data[1].target_tokens[2]")
	_, err = r.tryStep()
	s.wantKind("a step whose window has a failure only", err, plugins.KindInvalid)
	s.sameBits("after a failed step", r.forward(d).Logprobs[0], before)

	// The next window is a new one. With one success beside the failure the step runs, as if the failure had not been.
	_, _ = r.tryForward(false, bad)
	r.forwardBackward(d)
	if res := r.step(); res.Version != 3 || res.Step != 3 {
		s.Errorf("version %d, step %d after three successful steps", res.Version, res.Step)
	}
	same := s.create("b", allModules)
	same.train(3, d)
	s.sameBits("a run that saw failures and one that did not", r.forward(d).Logprobs[0], same.forward(d).Logprobs[0])

	// A failed pass that was forward only belongs to no window.
	_, _ = r.tryForward(true, bad)
	r.step()
}

func (s *suite) emptyWindow() {
	r, d := s.create("a", allModules), s.datum(1, 6)
	if res := r.step(); res.Version != 1 || res.Step != 1 || res.Metrics["grad_norm"] != 0 {
		s.Errorf("a step without any gradient: %+v", res)
	}
	fresh := s.create("b", allModules)
	s.sameBits("after a step without gradient and without moments", r.forward(d).Logprobs[0], fresh.forward(d).Logprobs[0])
	r.train(1, d)
	before := r.forward(d).Logprobs[0]
	r.step()
	s.differ("a step with zero gradient, but with moments", r.forward(d).Logprobs[0], before)
}

// starvedStep sees that a step for which there is no memory leaves its gradient to the next one, and everything else as it was.
func (s *suite) starvedStep() {
	if s.starve == nil {
		s.Skip("this backend cannot be brought to have no memory")
	}
	r, same := s.create("a", allModules), s.create("b", allModules)
	d, more, bad := s.datum(1, 6), s.datum(2, 7), s.datum(1, 6)
	bad.Targets[2] = int32(s.model.VocabSize)
	fail := func(what string) {
		s.Helper()
		s.starve(true)
		_, err := r.tryStep()
		s.starve(false)
		s.wantKind(what, err, plugins.KindCapacity)
	}
	r.train(1, d)
	same.train(1, d)
	before := r.forward(d).Logprobs[0]

	r.forwardBackward(d)
	fail("a step")
	fail("the same again")
	s.sameBits("after a step without memory", r.forward(d).Logprobs[0], before)
	if res := r.step(); res.Version != 2 || res.Step != 2 || !(res.Metrics["grad_norm"] > 0) {
		s.Errorf("the step that was sent again: %+v", res)
	}
	same.train(1, d)
	s.sameBits("a step that was sent again", r.forward(d).Logprobs[0], same.forward(d).Logprobs[0])

	// What comes in between adds to it, and what fails in between does not matter.
	r.forwardBackward(d)
	fail("a step between two passes")
	r.forwardBackward(more)
	_, err := r.tryForward(false, bad)
	s.wantInvalid("a pass behind it", err, "data[0].target_tokens[2]")
	if res := r.step(); res.Version != 3 || res.Step != 3 {
		s.Errorf("version %d, step %d after three successful steps", res.Version, res.Step)
	}
	same.forwardBackward(d)
	same.forwardBackward(more)
	same.step()
	s.sameBits("a step with what came behind the failed one", r.forward(d).Logprobs[0], same.forward(d).Logprobs[0])

	// A checkpoint with the accumulator has it too.
	r.forwardBackward(d)
	fail("a step before a checkpoint")
	path := filepath.Join(s.TempDir(), "c")
	if _, err := s.b.SaveAdapter(s.Context(), plugins.SaveAdapterRequest{Adapter: "a", Position: r.position(), Scope: plugins.ScopeAccumulator, Path: path}); err != nil {
		s.Fatal(err)
	}
	if _, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "c", Path: path, Scope: plugins.ScopeAccumulator}); err != nil {
		s.Fatal(err)
	}
	loaded := &run{suite: s, id: "c"}
	r.step()
	loaded.step()
	same.train(1, d)
	s.sameBits("the run", r.forward(d).Logprobs[0], same.forward(d).Logprobs[0])
	s.sameBits("the checkpoint", loaded.forward(d).Logprobs[0], same.forward(d).Logprobs[0])
}

// tooSmall sees that a backend in which no adapter fits says that this is for good, that a step leaves its gradient to the next one, and that everything goes on when it is larger.
func (s *suite) tooSmall() {
	if s.shrink == nil {
		s.Skip("this backend cannot be brought to be too small")
	}
	r, same, d := s.create("a", allModules), s.create("b", allModules), s.datum(1, 6)
	r.train(1, d)
	same.train(2, d)
	path := same.save(plugins.ScopeOptimizer, "")
	r.forwardBackward(d)
	made := plugins.CreateAdapterRequest{Adapter: "c", Config: allModules}
	frozen := plugins.LoadAdapterRequest{Adapter: "d", Path: path, Frozen: true}

	s.shrink(true)
	_, err := s.b.CreateAdapter(s.Context(), made)
	s.wantKind("a new adapter", err, plugins.KindTooLarge)
	_, err = s.b.LoadAdapter(s.Context(), frozen)
	s.wantKind("a saved adapter", err, plugins.KindTooLarge)
	_, err = r.tryStep()
	s.wantKind("a step", err, plugins.KindTooLarge)
	s.shrink(false)

	if res := r.step(); res.Version != 2 || res.Step != 2 {
		s.Errorf("the step that was sent again: %+v", res)
	}
	s.sameBits("a step that was sent again", r.forward(d).Logprobs[0], same.forward(d).Logprobs[0])
	if _, err := s.b.CreateAdapter(s.Context(), made); err != nil {
		s.Errorf("the new adapter, asked for again: %v", err)
	}
	if _, err := s.b.LoadAdapter(s.Context(), frozen); err != nil {
		s.Errorf("the saved adapter, asked for again: %v", err)
	}
	s.sameBits("sampled from the saved adapter", s.sample(s.request("d", 1, 6)).logprobs[0], s.sample(s.request("b", 1, 6)).logprobs[0])
}

// notFinite makes the loss overflow and sees that nothing is changed, here or next door.
func (s *suite) notFinite() {
	r, neighbour, d := s.create("a", allModules), s.create("b", allModules), s.datum(1, 6)
	r.train(1, d)
	neighbour.train(1, d)
	before := r.forward(d).Logprobs[0]
	huge := s.datum(2, 6)
	huge.Weights = nil
	huge.Logprobs = slices.Repeat([]float32{-3e38}, 6)
	huge.Advantages = slices.Repeat([]float32{3e38}, 6)
	_, err := r.tryLoss("importance_sampling", nil, huge)
	s.wantKind("a ratio that overflows", err, plugins.KindNotFinite)
	var e *plugins.Error
	if errors.As(err, &e) && e.Field == "" {
		s.Error("the error names no tensor")
	}
	_, err = r.tryStep()
	s.wantKind("its step", err, plugins.KindNotFinite)
	_, err = r.b.OptimStep(s.Context(), plugins.OptimStepRequest{Adapter: "a", Position: r.position(), Adam: plugins.AdamParams{LearningRate: 1e300, WeightDecay: 1e300, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}})
	s.wantKind("a step to weights that are not finite", err, plugins.KindNotFinite)
	s.sameBits("the adapter", r.forward(d).Logprobs[0], before)
	s.sameBits("the neighbour", neighbour.forward(d).Logprobs[0], before)
	r.train(1, d)
	neighbour.train(1, d)
	s.sameBits("training on", r.forward(d).Logprobs[0], neighbour.forward(d).Logprobs[0])
}

// neighbours trains one adapter alone and then among others that train and sample at the same time.
func (s *suite) neighbours() {
	d := s.datum(1, 7)
	alone := s.create("alone", allModules)
	alone.train(4, d)
	want := alone.forward(d).Logprobs[0]
	among := s.create("among", allModules)
	var wg sync.WaitGroup
	for i := range 3 {
		other := s.create(fmt.Sprintf("other-%d", i), plugins.AdapterConfig{Rank: 4, Seed: uint64(i), TrainMLP: true})
		wg.Go(func() {
			for j := range 4 {
				if _, err := other.tryForward(false, s.datum(i+5, 4+j)); err != nil {
					s.Error(err)
				}
				if _, err := other.tryStep(); err != nil {
					s.Error(err)
				}
				if _, err := s.trySample(s.request(other.id, 2, 4), nil); err != nil {
					s.Error(err)
				}
			}
		})
	}
	among.train(4, d)
	wg.Wait()
	s.sameBits("alone and among others", among.forward(d).Logprobs[0], want)
	mixed := among.forward(s.datum(9, 3), d, s.datum(4, 9))
	s.sameBits("alone and between other data", mixed.Logprobs[1], want)
}

func (s *suite) versionsAndPins() {
	r, d := s.create("a", allModules), s.datum(1, 6)
	req := s.request("a", 1, 4)
	req.PromptLogprobs = true
	scores := func(version int64) []float32 {
		s.Helper()
		req.ID, req.Version = s.request("a", 1, 1).ID, version
		out := s.sample(req)
		if version >= 0 && out.prompt.Version != version {
			s.Errorf("asked for version %d, got %d", version, out.prompt.Version)
		}
		return out.prompt.Logprobs[1:]
	}
	fresh := scores(0)
	pin, err := s.b.Pin(s.Context(), plugins.PinRequest{Adapter: "a", Position: r.position(), Name: "first"})
	if err != nil || pin.Version != 0 {
		s.Fatalf("pin: %+v, %v", pin, err)
	}
	r.train(1, d)
	now, err := s.b.Pin(s.Context(), plugins.PinRequest{Adapter: "a", Name: "now"})
	if err != nil || now.Version != 1 {
		s.Fatalf("pin outside the order: %+v, %v", now, err)
	}
	if again, err := s.b.Pin(s.Context(), plugins.PinRequest{Adapter: "a", Name: "now"}); err != nil || again != now {
		s.Errorf("the same pin again: %+v, %v", again, err)
	}
	one := scores(1)
	r.train(1, d)
	s.differ("versions 0 and 1", fresh, one)
	s.sameBits("pinned version 0", scores(0), fresh)
	s.sameBits("pinned version 1", scores(1), one)
	s.sameBits("latest is 2", scores(plugins.LatestVersion), scores(2))
	for _, name := range []string{"first", "first", "no such pin"} {
		if err := s.b.Unpin(s.Context(), plugins.UnpinRequest{Adapter: "a", Name: name}); err != nil {
			s.Errorf("unpin %s: %v", name, err)
		}
	}
	req.ID, req.Version = s.request("a", 1, 1).ID, 0
	_, err = s.trySample(req, nil)
	s.wantKind("a version nobody pins any more", err, plugins.KindNotFound)
	req.ID, req.Version = s.request("a", 1, 1).ID, 99
	_, err = s.trySample(req, nil)
	s.wantKind("a version that never was", err, plugins.KindNotFound)
	s.sameBits("version 1 is still pinned", scores(1), one)

	// A sample keeps the version that it began with.
	stepped := false
	req = s.request("a", 1, 6)
	req.Version = plugins.LatestVersion
	req.Temperature = 0
	want := s.sample(req)
	req.ID = s.request("a", 1, 1).ID
	got, err := s.trySample(req, func(e plugins.SampleEvent) error {
		if e.Tokens != nil && !stepped {
			stepped = true
			r.train(1, d)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	s.sameBits("a sample over a step", got.logprobs[0], want.logprobs[0])
}
