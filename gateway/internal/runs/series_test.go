package runs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// curve reads one series of a run; nil if there is none.
func (w *world) curve(run, name string) []float64 {
	w.t.Helper()
	return w.points(run, name).Values
}

func (w *world) points(run, name string) Curve {
	w.t.Helper()
	found, err := w.Curves(w.t.Context(), Viewer{Owner: owner}, run, CurveQuery{Names: []string{name}, Points: history.MaxRows})
	w.ok(err)
	switch len(found) {
	case 0:
		return Curve{}
	case 1:
		return found[0]
	}
	w.t.Fatalf("%d series %s", len(found), name)
	return Curve{}
}

// trainSteps does pairs of a pass and a step from a number on.
func (w *world) trainSteps(run string, from int64, steps int) {
	w.t.Helper()
	var last Submitted
	for i := range int64(steps) {
		pass := w.pass(run, from+2*i)
		_, err := w.ForwardBackward(w.t.Context(), pass)
		w.ok(err)
		last, err = w.OptimStep(w.t.Context(), w.step(run, from+2*i+1))
		w.ok(err)
	}
	w.good(last, nil)
	w.eventually(func() bool { return len(w.runs[run].queue.pending) == 0 }) // results become durable in any order
}

func TestSeriesAreThereOnceWhateverHappens(t *testing.T) {
	for _, how := range []string{"undisturbed", "written", "restarted", "written and restarted", "restarted at once after each part", "without a backend"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, nil)
			run := w.newRun(w.session(), 0)
			disturb := func() {
				switch how {
				case "written":
					w.ok(w.writeSeries(t.Context()))
				case "written and restarted":
					w.ok(w.writeSeries(t.Context()))
					w.restart()
				case "restarted", "restarted at once after each part":
					w.restart()
				case "without a backend":
					w.restartBackend()
				}
			}
			w.trainSteps(run, 1, 5)
			disturb()
			forward := w.pass(run, 11)
			forward.ForwardOnly = true
			w.good(w.ForwardBackward(t.Context(), forward))
			w.good(w.ForwardBackward(t.Context(), w.pass(run, 12))) // its step comes after the disturbance
			disturb()
			forward = w.pass(run, 13)
			forward.ForwardOnly = true
			w.good(w.ForwardBackward(t.Context(), forward))
			w.good(w.OptimStep(t.Context(), w.step(run, 14)))
			w.trainSteps(run, 15, 70)
			disturb()
			w.trainSteps(run, 155, 2)
			for i, x := range []struct {
				name string
				n    int
			}{{history.Loss, 78}, {history.GradientNorm, 78}, {history.AdapterNorm, 78}, {history.LearningRate, 78}, {history.Tokens, 78}, {history.ValidationLoss, 1}} {
				c := w.points(run, x.name)
				if len(c.Steps) != x.n {
					t.Fatalf("%d: %s has %d points, wanted %d: %v", i, x.name, len(c.Steps), x.n, c.Steps)
				}
				for i, step := range c.Steps {
					if x.n > 1 && step != int64(i+1) {
						t.Fatalf("%s: point %d is step %d", x.name, i, step)
					}
				}
				if c.Thinned != 1 || c.Drawn {
					t.Errorf("%s: thinned %d, drawn %v", x.name, c.Thinned, c.Drawn)
				}
			}
			one := w.good(w.ForwardBackward(t.Context(), w.pass(run, 159))).ForwardBackward
			if tokens := w.curve(run, history.ValidationTokens); tokens[0] != 2*w.curve(run, history.Tokens)[0] {
				t.Errorf("a validation pass in two parts has %v tokens", tokens)
			}
			losses := w.curve(run, history.Loss)
			if len(one.Logprobs) == 0 || !(losses[0] > 0) || losses[77] >= losses[0] {
				t.Errorf("the loss goes from %v to %v", losses[0], losses[77])
			}
			if at := w.points(run, history.ValidationLoss).Steps; at[0] != 5 {
				t.Errorf("the validation is at step %d", at[0])
			}
		})
	}
}

func TestSeriesOfStepsThatFail(t *testing.T) {
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 0)
	w.trainSteps(run, 1, 1)
	weights := w.good(w.SaveWeights(t.Context(), SaveWeights{Operation: at(run, 3), Name: "a"})).Saved.Path
	w.good(w.ForwardBackward(t.Context(), w.pass(run, 4)))
	w.good(w.LoadWeights(t.Context(), LoadWeights{Operation: at(run, 5), Path: weights, WithOptimizer: true}))
	w.trainSteps(run, 6, 1)
	if tokens := w.curve(run, history.Tokens); len(tokens) != 2 || tokens[0] != tokens[1] {
		t.Errorf("a pass that a load dropped counts: %v", tokens)
	}
}

func TestSeriesStayWithTheirRun(t *testing.T) {
	w, clock := clocked(t, func(w *world) { w.config.SessionsKept = 24 * time.Hour })
	session := w.session()
	run := w.newRun(session, 0)
	w.trainSteps(run, 1, 3)
	passed, err := w.AddMetrics(t.Context(), owner, run, []MetricRow{{Step: 3, Values: map[string]float64{"reward": 0.5}}})
	w.ok(err)
	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	w.quiet()
	for _, after := range []time.Duration{0, time.Hour, 12 * time.Hour} {
		clock.add(after)
		w.sweep(t.Context(), time.Hour)
		w.sweep(t.Context(), time.Hour)
		if losses, rewards := w.curve(run, history.Loss), w.curve(run, "reward"); len(losses) != 3 || len(rewards) != 1 || passed != 0 {
			t.Fatalf("after %v: %v, %v", after, losses, rewards)
		}
		list, total, err := w.Overviews(t.Context(), Viewer{Owner: owner}, OverviewQuery{})
		w.ok(err)
		if total != 1 || len(list) != 1 || list[0].State != "ended" || !slices.ContainsFunc(list[0].Series, func(s SeriesInfo) bool { return s.Name == "reward" && s.Client && s.Value == 0.5 }) {
			t.Fatalf("after %v: %d, %+v", after, total, list)
		}
	}
	w.restart()
	if losses := w.curve(run, history.Loss); len(losses) != 3 {
		t.Fatalf("after a restart: %v", losses)
	}
	clock.add(48 * time.Hour)
	w.sweep(t.Context(), time.Hour)
	clock.add(48 * time.Hour)
	w.sweep(t.Context(), time.Hour)
	for _, k := range seriesOf(run) {
		if n, err := w.store.Count(t.Context(), k.Collection, k.Parent, store.Range{}); err != nil || n != 0 {
			t.Errorf("of a run that was removed %d records of %s are left, %v", n, k.Parent, err)
		}
	}
}

func TestSeriesAreTheOwnersAndTheAdministrators(t *testing.T) {
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 0)
	w.trainSteps(run, 1, 1)
	ctx := t.Context()
	_, err := w.Curves(ctx, Viewer{Owner: other}, run, CurveQuery{})
	w.refused(err, KindNotFound)
	_, err = w.Overview(ctx, Viewer{Owner: other}, run)
	w.refused(err, KindNotFound)
	_, err = w.AddMetrics(ctx, other, run, []MetricRow{{Values: map[string]float64{"a": 1}}})
	w.refused(err, KindNotFound)
	w.refused(w.Watch(ctx, Viewer{Owner: other}, run, 0, nil), KindNotFound)
	if list, total, err := w.Overviews(ctx, Viewer{Owner: other}, OverviewQuery{Everyone: true}); err != nil || total != 0 || len(list) != 0 {
		t.Errorf("another one's list: %v, %v", list, err)
	}
	admin := Viewer{Owner: other, Everyone: true}
	if found, err := w.Curves(ctx, admin, run, CurveQuery{}); err != nil || len(found) < 5 {
		t.Errorf("the administrator's curves: %v, %v", found, err)
	}
	if list, total, err := w.Overviews(ctx, admin, OverviewQuery{Everyone: true}); err != nil || total != 1 || len(list) != 1 {
		t.Errorf("the administrator's list: %v, %v", list, err)
	}
}

func TestClientMetrics(t *testing.T) {
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 0)
	ctx := t.Context()
	add := func(rows ...MetricRow) int {
		t.Helper()
		n, err := w.AddMetrics(ctx, owner, run, rows)
		w.ok(err)
		return n
	}
	var rows []MetricRow
	for i := range int64(150) {
		rows = append(rows, MetricRow{i, map[string]float64{"env/all/reward/total": float64(i) / 3, "loss": 1}})
	}
	add(rows...)
	add(rows[100:]...) // a repeat
	add(MetricRow{149, map[string]float64{"test/nll": math.NaN()}}, MetricRow{20, map[string]float64{"loss": 2}}, MetricRow{1000, map[string]float64{"loss": 3}}, MetricRow{500, map[string]float64{"loss": 4}})
	check := func() {
		t.Helper()
		if c := w.points(run, "env/all/reward/total"); len(c.Steps) != 150 || c.Values[149] != 149.0/3 || c.Steps[149] != 149 {
			t.Errorf("the reward: %v", c)
		}
		loss := w.points(run, "loss")
		if len(loss.Steps) != 152 || loss.Values[20] != 2 || loss.Steps[150] != 500 || loss.Values[151] != 3 {
			t.Errorf("the loss: %v", loss)
		}
		if c := w.points(run, "test/nll"); len(c.Values) != 1 || !math.IsNaN(c.Values[0]) {
			t.Errorf("a number that is none: %v", c)
		}
	}
	check()
	w.restart()
	check()
	for what, rows := range map[string][]MetricRow{
		"nothing":            {},
		"a long name":        {{1, map[string]float64{string(make([]byte, 1<<20)): 1}}},
		"no name":            {{1, map[string]float64{"": 1}}},
		"a control name":     {{1, map[string]float64{"a\x1b[31m": 1}}},
		"a name turned over": {{1, map[string]float64{"a\u202eb": 1}}},
		"no text":            {{1, map[string]float64{"\xff": 1}}},
		"a negative step":    {{-1, map[string]float64{"a": 1}}},
		"a large step":       {{1 << 60, map[string]float64{"a": 1}}},
		"many rows":          make([]MetricRow, MaxMetricRows+1),
	} {
		_, err := w.AddMetrics(ctx, owner, run, rows)
		if KindOf(err) != KindInvalid || len(err.Error()) > 500 {
			t.Errorf("%s: %v", what, err)
		}
	}
	many := map[string]float64{}
	for i := range history.MaxNames {
		many[fmt.Sprint("name", i)] = 1
	}
	if n := add(MetricRow{2000, many}); n != 3 {
		t.Errorf("%d values were passed over", n)
	}
	check()
}

func TestThinnedSeriesSaySo(t *testing.T) {
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 0)
	const n = 2*history.MaxRows + 500
	for from := int64(0); from < n; from += 500 {
		var rows []MetricRow
		for i := range int64(500) {
			rows = append(rows, MetricRow{from + i, map[string]float64{"x": float64(from + i)}})
		}
		_, err := w.AddMetrics(t.Context(), owner, run, rows)
		w.ok(err)
	}
	c := w.points(run, "x")
	if c.Thinned != 4 || len(c.Steps) != n/4 {
		t.Fatalf("%d points, one in %d", len(c.Steps), c.Thinned)
	}
	for i, step := range c.Steps {
		if step != int64(4*i) || c.Values[i] != float64(step) {
			t.Fatalf("point %d is %v at step %d", i, c.Values[i], step)
		}
	}
	o, err := w.Overview(t.Context(), Viewer{Owner: owner}, run)
	w.ok(err)
	if s := o.Series[0]; s.Thinned != 4 || s.Step != n-1 || s.Value != n-1 {
		t.Errorf("the list has %+v", s)
	}
	few, err := w.Curves(t.Context(), Viewer{Owner: owner}, run, CurveQuery{From: 100, Points: 50})
	w.ok(err)
	if k := len(few[0].Steps); k != 50 || !few[0].Drawn || few[0].Steps[0] != 100 {
		t.Errorf("%d points are drawn, the first at %d", k, few[0].Steps[0])
	}
}

func TestWatchersAreToldOfEveryStepOnce(t *testing.T) {
	w := newWorld(t, nil)
	session := w.session()
	run := w.newRun(session, 0)
	w.trainSteps(run, 1, 2)
	told := make(chan Point, 1000)
	done := make(chan error, 1)
	go func() {
		done <- w.Watch(t.Context(), Viewer{Owner: owner}, run, 2, func(points []Point) error {
			for _, p := range points {
				told <- p
			}
			return nil
		})
	}()
	next := func(step int64, client bool) {
		t.Helper()
		select {
		case p := <-told:
			if p.Row.Step != step || p.Client != client {
				t.Errorf("told of step %d (client %v), wanted %d", p.Row.Step, p.Client, step)
			}
		case <-time.After(longest):
			t.Fatalf("not told of step %d", step)
		}
	}
	next(2, false)
	w.trainSteps(run, 5, 1)
	next(3, false)
	w.ok(w.writeSeries(t.Context()))
	w.trainSteps(run, 7, 1)
	next(4, false)
	_, err := w.AddMetrics(t.Context(), owner, run, []MetricRow{{7, map[string]float64{"reward": 1}}})
	w.ok(err)
	next(7, true)
	_, err = w.AddMetrics(t.Context(), owner, run, []MetricRow{{7, map[string]float64{"other": 1}}})
	w.ok(err)
	next(7, true)
	w.ok(w.FinishSession(t.Context(), owner, session, "success", ""))
	if err := <-done; err != nil || len(told) != 0 {
		t.Errorf("the watcher ended with %v, %d points were left", err, len(told))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := w.newRun(w.session(), 0)
	if err := w.Watch(ctx, Viewer{Owner: owner}, other, 0, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a watcher that goes away: %v", err)
	}
}

func TestPolicySeries(t *testing.T) {
	datum := func(lp, q, a []float32) plugins.Datum {
		return plugins.Datum{Tokens: make([]int32, len(lp)), Targets: make([]int32, len(lp)), K: 1, Logprobs: q, Advantages: a}
	}
	lp := []float32{-3, float32(math.Log(0.5)), float32(math.Log(0.2)), float32(math.Log(0.9))}
	q := []float32{0, float32(math.Log(0.25)), float32(math.Log(0.4)), float32(math.Log(0.9))}
	a := []float32{0, 1, 1, -1}
	for name, x := range map[string]struct {
		loss            string
		clipped, ratios float64
	}{
		"importance_sampling":  {"importance_sampling", 0, 3.5},
		"ppo":                  {"ppo", 1, 3.5},
		"cispo within 0 and 4": {"cispo", 0, 3.5},
	} {
		t.Run(name, func(t *testing.T) {
			req := plugins.ForwardBackwardRequest{Loss: x.loss, Data: []plugins.Datum{datum(lp, q, a)}}
			got := plugins.ForwardBackwardResult{Logprobs: [][]float32{lp}, Metrics: map[string]float64{"loss:sum": -1.5}}
			p := eventOfPass(&req, &got, 4)
			if p.Policy.Count != 3 || math.Abs(p.Policy.Ratio-x.ratios) > 1e-5 || math.Abs(p.Policy.Greatest-2) > 1e-6 || p.Policy.Clipped != x.clipped || p.Weight != 3 {
				t.Errorf("%+v, weight %v", *p.Policy, p.Weight)
			}
			// log r is log 2, −log 2 and 0.
			if math.Abs(p.Policy.K1) > 1e-6 || math.Abs(p.Policy.K3-(2-1-math.Ln2+0.5-1+math.Ln2)) > 1e-6 {
				t.Errorf("k1 %v, k3 %v", p.Policy.K1, p.Policy.K3)
			}
			if want := -math.Log(0.25 * 0.4 * 0.9); math.Abs(p.Policy.Surprisal-want) > 1e-6 {
				t.Errorf("the sampler's log-probabilities sum to −%v, want −%v", p.Policy.Surprisal, want)
			}
		})
	}
	req := plugins.ForwardBackwardRequest{Loss: "gspo", Data: []plugins.Datum{datum(lp, q, a)}}
	req.Data[0].SequenceRatioMask = []float32{0, 1, 0, 1}
	p := eventOfPass(&req, &plugins.ForwardBackwardResult{Logprobs: [][]float32{lp}, Metrics: map[string]float64{"loss:sum": 1}}, 4).Policy
	if math.Abs(p.Ratio-3*math.Sqrt2) > 1e-5 || p.Clipped != 2 {
		t.Errorf("gspo: %+v", *p)
	}
}

func TestAnswersOfSeriesAreBounded(t *testing.T) {
	for _, c := range []struct {
		series, points int
		fit            bool
	}{{0, 0, true}, {40, history.MaxRows, true}, {maxCurves, maxPoints / maxCurves, true}, {maxCurves, maxPoints/maxCurves + 1, false}, {maxCurves + 1, 1, false}} {
		list := make([]Curve, c.series)
		for i := range list {
			list[i].Steps = make([]int64, c.points)
		}
		if fit := fitAnswer(list); fit != c.fit {
			t.Errorf("%d series of %d points: %v, want %v", c.series, c.points, fit, c.fit)
		}
	}
	w := newWorld(t, nil)
	run := w.newRun(w.session(), 0)
	for _, names := range []int{maxCurves, maxCurves + 1} {
		values := map[string]float64{}
		for i := range names {
			values[fmt.Sprint("name ", i)] = 1
		}
		_, err := w.AddMetrics(t.Context(), owner, run, []MetricRow{{Step: 1, Values: values}})
		w.ok(err)
		found, err := w.Curves(t.Context(), Viewer{Owner: owner}, run, CurveQuery{Points: history.MaxRows}) // few points, however many may be asked for
		if names == maxCurves && (err != nil || len(found) != names) || names > maxCurves && KindOf(err) != KindInvalid {
			t.Errorf("%d names: %d series, %v", names, len(found), err)
		}
	}
}

// TestSeriesOnPostgres is what these tests demand, with the records in PostgreSQL.
func TestSeriesOnPostgres(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"series are there once": TestSeriesAreThereOnceWhateverHappens, "steps that fail": TestSeriesOfStepsThatFail, "series stay with their run": TestSeriesStayWithTheirRun,
		"owners": TestSeriesAreTheOwnersAndTheAdministrators, "client metrics": TestClientMetrics, "thinned": TestThinnedSeriesSaySo, "watchers": TestWatchersAreToldOfEveryStepOnce,
		"entropies": TestEntropiesOfSamples, "timeline": TestTimeline,
	} {
		t.Run(name, test)
	}
}
