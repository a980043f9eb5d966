package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

var (
	seeds   = flag.Int("seeds", 0, "how many seeds TestSimulation runs; 0 = as many as are right for the level of the tests")
	seed    = flag.Uint64("seed", 1, "the first seed of TestSimulation")
	repeats = flag.Int("repeats", 20, "how many seeds TestSeedsRepeatThemselves runs twice")
	trace   = flag.Bool("trace", false, "print what was decided for every seed")
)

// One goroutine at a time: what runs at the same time takes turns in the same order, so that a seed repeats itself.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}

// owners have two clients at most each.
var owners = []string{"alice", "bob"}

// simulate runs one seed and gives the promises that were broken, and what was decided.
func simulate(t *testing.T, seed uint64, planted fault) (violated, decided []string) {
	cryptotest.SetGlobalRandom(t, seed)
	home, err := os.MkdirTemp(fast(), "tinsmith-simulation-")
	mustBe(err)
	defer os.RemoveAll(home)
	synctest.Test(t, func(*testing.T) {
		w := newWorld(seed, home, planted)
		w.run()
		violated, decided = w.violated, w.trace
	})
	return violated, decided
}

// fast is a folder in memory, where there is one.
func fast() string {
	const shared = "/dev/shm"
	if dir, err := os.MkdirTemp(shared, "tinsmith-simulation-"); err == nil {
		_ = os.Remove(dir)
		return shared
	}
	return ""
}

func newWorld(seed uint64, home string, planted fault) *world {
	w := &world{scheduler: newScheduler(seed), plan: newPlan(seed), fault: planted, home: home, cut: map[int]time.Time{}, down: map[string]time.Time{}, deleted: map[string]bool{}}
	for n := range w.plan.clients {
		w.clients = append(w.clients, &client{w: w, number: n, owner: owners[n%len(owners)], random: rand.New(rand.NewPCG(seed, 100+uint64(n)))})
	}
	return w
}

// run is one seed from the first start of the gateway to the last check.
func (w *world) run() {
	w.note("%+v", w.plan)
	mustBe(os.Mkdir(fmt.Sprint(w.home, "/1"), 0o700))
	w.start(fmt.Sprint(w.home, "/1"))
	for _, c := range w.clients {
		go c.work()
	}
	w.live(w.clientsDone)
	if !w.failed() {
		w.beside(func() {
			w.once(w.server)
			newOracle(w, w.server).compare()
		})
	}
	if !w.failed() { // all is there after an ordinary restart, too
		w.stop()
		w.live(w.clientsDone)
	}
	w.end()
}

// beside runs checks that may wait for what waits for the scheduler.
func (w *world) beside(f func()) {
	var over atomic.Bool
	w.checks.Go(func() { defer over.Store(true); f() })
	w.live(over.Load)
}

// end lets everything go that waits still: a violation has ended the seed before its clients.
func (w *world) end() {
	w.calm = true
	if w.server != nil {
		w.abandon(w.server)
	}
	for {
		list := w.waiting(func(*parked) bool { return true })
		if len(list) == 0 && w.clientsDone() {
			break
		}
		for _, p := range list {
			w.release(p, drop)
		}
		w.idle(time.Minute)
	}
	w.checks.Wait()
}

func TestSimulation(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = 100
	}
	for i := range uint64(n) {
		t.Run(fmt.Sprint(*seed+i), func(t *testing.T) {
			violated, decided := simulate(t, *seed+i, noFault)
			if len(violated) > 0 || *trace {
				t.Logf("%s", strings.Join(decided, "\n"))
			}
			for _, v := range violated {
				t.Error(v)
			}
		})
	}
}

// The same seed decides the same twice.
func TestSeedsRepeatThemselves(t *testing.T) {
	for seed := range uint64(*repeats) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			_, first := simulate(t, seed, noFault)
			_, second := simulate(t, seed, noFault)
			for i := range first {
				if i >= len(second) || first[i] != second[i] {
					t.Fatalf("decision %d of %d:\n%s\nand of %d:\n%s", i, len(first), strings.Join(first[max(0, i-5):i+1], "\n"), len(second), strings.Join(second[min(len(second), max(0, i-5)):min(i+1, len(second))], "\n"))
				}
			}
		})
	}
}

// Each planted fault is found soon.
func TestPlantedFaults(t *testing.T) {
	const within = 1000
	for f := noFault + 1; f < faults; f++ {
		t.Run(f.String(), func(t *testing.T) {
			for seed := range uint64(within) {
				if violated, _ := simulate(t, seed, f); len(violated) > 0 {
					t.Logf("found with seed %d: %s", seed, violated[0])
					return
				}
			}
			t.Errorf("not found within %d seeds", within)
		})
	}
}
