package engine

import (
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/plugins"
)

// script makes a run whose queue holds operations from position 1: p = a pass of ten tokens, P = of a hundred, s = a step, n = a pin, - = one that has not arrived.
func script(id, ops string) *run {
	r := &run{id: id, queue: newQueue()}
	for i, c := range ops {
		o := &operation{position: int64(i + 1), weight: 1}
		switch c {
		case 'p':
			o.kind, o.tokens = kindPass, 10
		case 'P':
			o.kind, o.tokens = kindPass, 100
		case 's':
			o.kind = kindStep
		case 'n':
			o.kind = kindPin
		case '-':
			continue
		}
		r.queue.waiting[o.position] = o
	}
	return r
}

// describe writes the passes of a cycle as run:passes, separated by spaces.
func describe(cycle []series) string {
	var parts []string
	for _, s := range cycle {
		text := s.run.id + ":"
		for _, o := range s.passes {
			text += map[int]string{10: "p", 100: "P"}[o.tokens]
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name   string
		runs   []*run
		budget int
		want   string
	}{
		{"nothing", []*run{script("a", "")}, 100, ""},
		{"to the step", []*run{script("a", "ppsp")}, 100, "a:pp"},
		{"a step first", []*run{script("a", "sps")}, 100, ""},
		{"not past a pin", []*run{script("a", "pnps")}, 100, "a:p"},
		{"a pin first is not for a cycle", []*run{script("a", "nps")}, 100, ""},
		{"not past a gap", []*run{script("a", "p-ps"), script("b", "-p")}, 100, "a:p"},
		{"all runs", []*run{script("a", "ps"), script("b", "pp"), script("c", "s")}, 100, "a:p b:pp"},
		{"the budget cuts", []*run{script("a", "ppps")}, 20, "a:pp"},
		{"the first pass is taken whatever its size", []*run{script("a", "Pps")}, 20, "a:P"},
		{"fair by tokens", []*run{script("a", "PP"), script("b", "ppppppppppppp")}, 200, "a:P b:pppppppppp"},
		{"a run that does not fit does not stop others", []*run{script("a", "pP"), script("b", "pps")}, 50, "a:p b:pp"},
		{"small before large", []*run{script("a", "PPPP"), script("b", "p")}, 100, "b:p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			taken, _ := plan(c.runs, c.budget, 0, nil)
			if got := describe(taken); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Cycle after cycle every operation runs once, in order, whatever the budget.
func TestPlanRunsEverything(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		var runs []*run
		left := 0
		for i := range 1 + random.IntN(4) {
			ops := ""
			for range random.IntN(12) {
				ops += []string{"p", "P", "s"}[random.IntN(3)]
			}
			runs = append(runs, script(string(rune('a'+i)), ops))
			left += len(ops)
		}
		budget, tag := 1+random.IntN(400), 0.0
		for left > 0 {
			var taken []series
			taken, tag = plan(runs, budget, tag, nil)
			tokens, passes, steps := 0, 0, 0
			for _, s := range taken {
				for _, o := range s.passes {
					if o != s.run.queue.first() {
						t.Fatal("an operation overtook another")
					}
					s.run.queue.pop()
					tokens += o.tokens
				}
				passes += len(s.passes)
			}
			for _, r := range runs {
				if o := r.queue.first(); o != nil && o.kind == kindStep {
					r.queue.pop()
					steps++
				}
			}
			if passes+steps == 0 {
				t.Fatalf("%d operations are left over", left)
			}
			left -= passes + steps
			if passes > 1 && tokens > budget {
				t.Fatalf("a cycle of %d tokens with a budget of %d", tokens, budget)
			}
		}
	}
}

// Over many cycles busy runs have equal tokens whatever the size of their passes, and one that was idle gets no more for it.
func TestPlanIsFairOverCycles(t *testing.T) {
	large, small, late := script("large", strings.Repeat("P", 400)), script("small", strings.Repeat("p", 4000)), script("late", "")
	had := map[string]int{}
	tag := 0.0
	cycles := func(n int) (apart int) {
		clear(had)
		for range n {
			var taken []series
			taken, tag = plan([]*run{large, small, late}, 330, tag, nil)
			for _, s := range taken {
				for range s.passes {
					had[s.run.id] += s.run.queue.first().tokens
					s.run.queue.pop()
				}
			}
		}
		least, most := 1<<30, 0
		for _, n := range had {
			least, most = min(least, n), max(most, n)
		}
		return most - least
	}
	if apart := cycles(50); apart > 200 || len(had) != 2 {
		t.Errorf("two busy runs had %v", had)
	}
	late.queue = script("", strings.Repeat("p", 4000)).queue
	if apart := cycles(50); apart > 200 || len(had) != 3 {
		t.Errorf("three busy runs, one of them late, had %v", had)
	}
}

// A few tokens that arrive behind a long queue of another run are in the next cycle.
func TestPlanDoesNotDelayTheSmall(t *testing.T) {
	long := script("long", strings.Repeat("P", 1000))
	tag := 0.0
	for range 10 {
		var taken []series
		taken, tag = plan([]*run{long}, 250, tag, nil)
		for range taken[0].passes {
			long.queue.pop()
		}
	}
	taken, _ := plan([]*run{long, script("short", "ppppp")}, 250, tag, nil)
	if got := describe(taken); got != "long:PP short:ppppp" {
		t.Errorf("got %q", got)
	}
}

// passCycle submits a pass; the function it gives waits for the decision and tells its clock cycle.
func (d *driver) passCycle(data []plugins.Datum) (wait func() float64) {
	p, c := d.position(), make(chan float64, 1)
	go func() {
		r, err := d.e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: p, Data: data, Loss: "cross_entropy"})
		if err != nil {
			d.t.Error(err)
		}
		c <- r.Metrics["clock_cycle:unique"]
	}()
	eventually(d.t, "the pass has arrived", func() bool { return arrived(d.e, d.adapter, p) })
	return func() float64 { return <-c }
}

// stepCycle is passCycle for an optimizer step.
func (d *driver) stepCycle() (wait func() float64) {
	p, c := d.position(), make(chan float64, 1)
	go func() {
		r, err := d.e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: d.adapter, Position: p, Adam: adamDefaults})
		if err != nil {
			d.t.Error(err)
		}
		c <- r.Metrics["clock_cycle"]
	}()
	eventually(d.t, "the step has arrived", func() bool { return arrived(d.e, d.adapter, p) })
	return func() float64 { return <-c }
}

// arrived tells whether an operation waits or was decided.
func arrived(e *Engine, adapter string, position int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	q := &e.runs[adapter].queue
	return position < q.next || q.waiting[position] != nil
}

// gated is a device goroutine that stops at the beginning of every pass.
type gated struct{ at, on chan struct{} }

// gate has every pass wait, until open.
func gate(t *testing.T, e *Engine, f *faulty) *gated {
	g := &gated{at: make(chan struct{}), on: make(chan struct{})}
	hook(t, e, func() {
		f.gather = func([]int32) error {
			select {
			case g.at <- struct{}{}:
				<-g.on
			case <-g.on:
			}
			return nil
		}
	})
	return g
}

// reached waits until a pass stands at the gate.
func (g *gated) reached() { <-g.at }

// pass lets it go on, and waits for the next one.
func (g *gated) pass() { g.on <- struct{}{}; <-g.at }

// open lets every pass go on from now.
func (g *gated) open() { close(g.on) }

// Where a cycle is several batches, a run with few tokens has its result before the long queue of another one that was made before it is through.
func TestFewTokensGoFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 7))
	e, f := startShape(t, shape{tinyVocabulary, 32, 48, 1, 2, 1, 16}, tinyContext, `{"threads": 1, "batch_tokens": 64}`)
	large, small := create(t, e, "large", 1, 4), create(t, e, "small", 2, 4)
	g := gate(t, e, f)
	release := block(t, e, nil)
	last := large.passCycle([]plugins.Datum{wholeDatum(random, 60), wholeDatum(random, 60), wholeDatum(random, 60)})
	first := small.passCycle([]plugins.Datum{wholeDatum(random, 20)})
	release()
	g.reached()
	g.pass()
	if queued(e, "small", 1) || !queued(e, "large", 1) {
		t.Errorf("behind the first batch: small waits %v, large waits %v", queued(e, "small", 1), queued(e, "large", 1))
	}
	g.open()
	if a, b := first(), last(); a != 1 || b != 1 {
		t.Errorf("small is in cycle %v, large in cycle %v, want 1", a, b)
	}
}

// Small passes fill their run's share of a cycle: all that may be sent ahead are in one, beside the large ones of another run.
func TestManySmallPassesAreOneCycle(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	e, _ := startFaulty(t)
	many, large := create(t, e, "many", 1, 4), create(t, e, "large", 2, 4)
	release := block(t, e, nil)
	var waits []func() float64
	for range 3 {
		waits = append(waits, large.passCycle(randomData(random, 4, 60)))
	}
	for range plugins.MaxAhead {
		waits = append(waits, many.passCycle(randomData(random, 1, 2)))
	}
	release()
	for i, wait := range waits {
		if c := wait(); c != 1 {
			t.Errorf("pass %d was in cycle %v", i, c)
		}
	}
}

// A pass and the step behind it are one clock cycle: when both are there at once, when the step arrives while the pass runs, and when it arrives after it.
func TestStepLandsInTheCycleOfItsPass(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 5))
	e, f := startFaulty(t)
	hook(t, e, func() { e.openFor = time.Hour }) // the machine may be slow
	d := create(t, e, "a", 1, 4)

	release := block(t, e, nil)
	pass, step := d.passCycle(randomData(random, 2, 20)), d.stepCycle()
	release()
	if p, s := pass(), step(); p != s || p != 1 {
		t.Errorf("submitted at once: the pass in cycle %v, the step in cycle %v, want 1", p, s)
	}

	g := gate(t, e, f)
	pass = d.passCycle(randomData(random, 2, 20))
	g.reached()
	step = d.stepCycle()
	g.open()
	if p, s := pass(), step(); p != s || p != 2 {
		t.Errorf("submitted while the pass runs: the pass in cycle %v, the step in cycle %v, want 2", p, s)
	}

	if p, s := d.passCycle(randomData(random, 2, 20))(), d.stepCycle()(); p != s || p != 3 {
		t.Errorf("submitted after the pass: the pass in cycle %v, the step in cycle %v, want 3", p, s)
	}
	if s := d.stepCycle()(); s != 4 {
		t.Errorf("a second step behind the same pass is in cycle %v, want 4", s)
	}
	hook(t, e, func() { e.openFor = 0 })
	if p, s := d.passCycle(randomData(random, 2, 20))(), d.stepCycle()(); p != 5 || s != 6 {
		t.Errorf("submitted when the cycle has closed: the pass in cycle %v, the step in cycle %v, want 5 and 6", p, s)
	}
}

// While another run keeps the cycles busy, a client that submits the next pair before it has read the last one gets an optimizer step in every cycle, and one that waits for each answer gets fewer.
func TestPipelinedAndWaitingClients(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 6))
	data := randomData(random, 2, 20)
	e, f := startFaulty(t)
	neighbour, pipelined, waiting := create(t, e, "neighbour", 1, 4), create(t, e, "pipelined", 2, 4), create(t, e, "waiting", 3, 4)
	g := gate(t, e, f)
	more := func() { neighbour.passCycle(data); neighbour.stepCycle() }
	more()
	g.reached() // cycle 1
	var answers []func() float64
	for range 5 {
		more()
		answers = append(answers, pipelined.passCycle(data), pipelined.stepCycle())
		g.pass()
	}
	more()
	g.pass()
	for i, answer := range answers {
		if c, want := answer(), float64(2+i/2); c != want {
			t.Errorf("pipelined: operation %d is in cycle %v, want %v", i, c, want)
		}
	}
	began := e.counters.cycles.Load()
	for range 2 {
		pass := waiting.passCycle(data)
		more()
		g.pass() // the cycle with the pass
		more()
		g.pass()
		p := pass()
		step := waiting.stepCycle() // while the next one runs
		more()
		g.pass()
		if s := step(); s != p+1 {
			t.Errorf("waiting: the pass in cycle %v, the step in cycle %v, want the one behind it", p, s)
		}
	}
	if n := e.counters.cycles.Load() - began; n <= 4 {
		t.Errorf("two steps took %d cycles, want more than two for each", n)
	}
	g.open()
	neighbour.step() // it is behind all that the neighbour has submitted
}

// A step that arrives while the passes of others run is taken at the end of that cycle, before the passes that have arrived meanwhile.
func TestStepGoesBeforeThePassesOfOthers(t *testing.T) {
	data := randomData(rand.New(rand.NewPCG(7, 7)), 2, 20)
	e, f := startFaulty(t)
	long, short := create(t, e, "long", 1, 4), create(t, e, "short", 2, 4)
	g := gate(t, e, f)
	first := short.passCycle(data)
	g.reached()
	others := long.passCycle(data)
	step := short.stepCycle()
	g.pass()
	if p, s := first(), step(); p != 1 || s != 1 {
		t.Errorf("the pass in cycle %v, the step in cycle %v, want 1", p, s)
	}
	g.open()
	if c := others(); c != 2 {
		t.Errorf("the other's pass is in cycle %v, want 2", c)
	}
}

// A run of twice the weight gets twice the tokens.
func TestPlanWeighs(t *testing.T) {
	light, heavy := script("light", strings.Repeat("p", 1000)), script("heavy", strings.Repeat("p", 1000))
	for _, o := range heavy.queue.waiting {
		o.weight = 2
	}
	had := map[string]int{}
	tag := 0.0
	for range 10 {
		var taken []series
		taken, tag = plan([]*run{light, heavy}, 300, tag, nil)
		for _, s := range taken {
			for range s.passes {
				had[s.run.id]++
				s.run.queue.pop()
			}
		}
	}
	if had["light"] != 100 || had["heavy"] != 200 {
		t.Errorf("passes of weights 1 and 2: %v", had)
	}
}

// One span for a cycle, linked with the spans of its operations, also with the step that came behind.
func TestCycleSpan(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	before := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)
	random := rand.New(rand.NewPCG(8, 8))
	e, _ := startFaulty(t)
	hook(t, e, func() { e.openFor = time.Hour })
	d := create(t, e, "a", 1, 4)
	ctx, first := provider.Tracer("test").Start(t.Context(), "forward_backward")
	got, err := e.ForwardBackward(ctx, plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: randomData(random, 2, 20), Loss: "cross_entropy"})
	if err != nil {
		t.Fatal(err)
	}
	first.End()
	ctx, second := provider.Tracer("test").Start(t.Context(), "optim_step")
	stepped, err := e.OptimStep(ctx, plugins.OptimStepRequest{Adapter: "a", Position: d.position(), Adam: adamDefaults})
	if err != nil {
		t.Fatal(err)
	}
	second.End()
	x, y := got.Execution, stepped.Execution
	if x.Cycle != 1 || y.Cycle != 1 || x.Begin.IsZero() || x.End.Before(x.Begin) || y.Begin.Before(x.End) || y.End.Before(y.Begin) {
		t.Errorf("executions %+v and %+v", x, y)
	}
	d.pass(randomData(random, 2, 20)) // ends the first cycle
	var cycles []sdktrace.ReadOnlySpan
	for _, s := range recorder.Ended() {
		if s.Name() == "clock cycle" {
			cycles = append(cycles, s)
		}
	}
	if len(cycles) != 1 || len(cycles[0].Links()) != 2 {
		t.Fatalf("%d spans of cycles", len(cycles))
	}
	for i, want := range []trace.SpanContext{first.SpanContext(), second.SpanContext()} {
		if got := cycles[0].Links()[i].SpanContext; got.SpanID() != want.SpanID() {
			t.Errorf("link %d is to %v, want %v", i, got.SpanID(), want.SpanID())
		}
	}
	if cycles[0].StartTime().After(x.Begin) || cycles[0].EndTime().Before(y.End) {
		t.Errorf("the cycle is from %v to %v, its operations from %v to %v", cycles[0].StartTime(), cycles[0].EndTime(), x.Begin, y.End)
	}
}
