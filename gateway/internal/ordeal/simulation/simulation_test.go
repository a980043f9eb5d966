package simulation

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

// owners have two clients at most each.
var owners = []string{"alice", "bob"}

// simulate runs one seed and gives the promises that were broken, and what was decided.
func simulate(t *testing.T, seed uint64, planted fault) (violated, decided []string) {
	hangs := time.AfterFunc(10*time.Minute, func() { panic(fmt.Sprintf("seed %d hangs: something waits for what the scheduler does not see", seed)) })
	defer hangs.Stop()
	cryptotest.SetGlobalRandom(t, seed)
	home := must(os.MkdirTemp(fast(), "tinsmith-simulation-"))
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
