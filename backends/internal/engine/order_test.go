package engine

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

func TestQueueAdmits(t *testing.T) {
	q := newQueue()
	admit := func(p int64) error { return q.admit(&operation{kind: kindPin, position: p}) }
	for _, c := range []struct {
		name     string
		position int64
		want     error
	}{
		{"zero", 0, plugins.ErrInvalid},
		{"ahead", 3, nil},
		{"twice", 3, plugins.ErrAlreadyApplied},
		{"first", 1, nil},
		{"farthest", plugins.MaxAhead, nil},
		{"too far", plugins.MaxAhead + 1, plugins.ErrCapacity},
	} {
		if err := admit(c.position); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.want)
		}
	}
	if q.at(0) == nil || q.at(0).position != 1 || q.at(1) != nil || q.at(2) != nil {
		t.Error("an operation is given although one before it is missing")
	}
	q.pop()
	if err := admit(1); !errors.Is(err, plugins.ErrAlreadyApplied) {
		t.Errorf("a decided position: %v", err)
	}
	if err := admit(plugins.MaxAhead + 1); err != nil {
		t.Errorf("one place has become free: %v", err)
	}
	if q.at(0) != nil {
		t.Error("position 2 has not arrived")
	}
	if err := admit(2); err != nil || q.at(1) == nil {
		t.Errorf("position 2 makes 3 ready: %v", err)
	}
}

func TestWindow(t *testing.T) {
	boom := plugins.Invalidf("data[0].targets", "is wrong")
	for _, c := range []struct {
		name     string
		outcomes []error
		fails    bool
	}{
		{"no pass", nil, false},
		{"success", []error{nil}, false},
		{"failure", []error{boom}, true},
		{"failure and success", []error{boom, nil}, false},
		{"success and failure", []error{nil, boom}, false},
		{"two failures", []error{boom, errors.New("other")}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w window
			for _, err := range c.outcomes {
				w.add(err)
			}
			err := w.verdict()
			if (err != nil) != c.fails {
				t.Fatalf("verdict %v", err)
			}
			if c.fails && (plugins.KindOf(err) != plugins.KindInvalid || (!strings.Contains(err.Error(), "is wrong") || !strings.Contains(err.Error(), "data[0].targets"))) {
				t.Errorf("verdict %v does not give the first reason and its field", err)
			}
		})
	}
}

// script makes a run whose queue holds operations from position 1: p = a pass of ten tokens, P = of a hundred, s = a step, n = a pin, - = one that has not arrived.
func script(id, ops string) *run {
	r := &run{id: id, queue: newQueue()}
	for i, c := range ops {
		o := &operation{position: int64(i + 1)}
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

// describe writes a cycle as run:passes[s], separated by spaces.
func describe(cycle []series) string {
	var parts []string
	for _, s := range cycle {
		text := s.run.id + ":"
		for _, o := range s.passes {
			text += map[int]string{10: "p", 100: "P"}[o.tokens]
		}
		if s.step != nil {
			text += "s"
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
		{"one step behind the passes", []*run{script("a", "pps")}, 100, "a:pps"},
		{"two steps are two cycles", []*run{script("a", "psps")}, 100, "a:ps"},
		{"a step alone", []*run{script("a", "sps")}, 100, "a:s"},
		{"not past a pin", []*run{script("a", "pnps")}, 100, "a:p"},
		{"a pin first is not for a cycle", []*run{script("a", "nps")}, 100, ""},
		{"not past a gap", []*run{script("a", "p-ps"), script("b", "-p")}, 100, "a:p"},
		{"all runs", []*run{script("a", "ps"), script("b", "pp"), script("c", "s")}, 100, "a:ps b:pp c:s"},
		{"the budget cuts, and no step without its passes", []*run{script("a", "ppps")}, 20, "a:pp"},
		{"the first pass is taken whatever its size", []*run{script("a", "Pps")}, 20, "a:P"},
		{"fair by tokens", []*run{script("a", "Pps"), script("b", "ppppppppppppp")}, 200, "a:P b:pppppppppp"},
		{"a run that does not fit does not stop others", []*run{script("a", "pP"), script("b", "pps")}, 50, "a:p b:pps"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := describe(plan(c.runs, c.budget)); got != c.want {
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
		budget := 1 + random.IntN(400)
		for left > 0 {
			cycle := plan(runs, budget)
			tokens, passes := 0, 0
			for _, s := range cycle {
				for _, o := range append(append([]*operation{}, s.passes...), s.step) {
					if o == nil {
						continue
					}
					if o != s.run.queue.at(0) {
						t.Fatal("an operation overtook another")
					}
					s.run.queue.pop()
					tokens += o.tokens
					left--
				}
				passes += len(s.passes)
			}
			if len(cycle) == 0 {
				t.Fatalf("%d operations are left over", left)
			}
			if passes > 1 && tokens > budget {
				t.Fatalf("a cycle of %d tokens with a budget of %d", tokens, budget)
			}
		}
	}
}
