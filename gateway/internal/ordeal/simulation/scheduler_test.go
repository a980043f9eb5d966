package simulation

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"
)

// verdict is what becomes of something that waits for the scheduler.
type verdict int

const (
	goOn  verdict = iota
	drop          // a message is lost
	twice         // a message arrives twice
	fail          // a sync fails
	gone          // the server to which it belongs has crashed
)

// place is where something waits.
type place int

const (
	toServer    place = iota // a client's request
	fromServer               // its answer
	beforeWrite              // a commit that the store does not have yet
	afterWrite               // a commit that is durable, which the core does not know yet
	syncing                  // a sync of a file
	toBackend                // a call of a backend
	fromBackend              // its answer
)

var placeNames = [...]string{"request", "answer", "commit", "committed", "sync", "call", "returned"}

// parked is a goroutine that waits for the scheduler.
type parked struct {
	place  place
	key    string
	resume chan verdict // buffered
	of     *server      // nil: it outlives servers
	in     *process     // of a backend's calls
	client int          // of messages
	held   time.Time    // not before
}

func (p *parked) name() string { return placeNames[p.place] + " " + p.key }

// scheduler decides in which order everything happens. Goroutines call park; the test's own goroutine calls step when all others wait.
type scheduler struct {
	random *rand.Rand // of the scheduler's decisions only
	seed   uint64

	mu     sync.Mutex
	list   []*parked
	trace  []string
	seen   map[string]int // how often a key has waited
	arrive chan struct{}  // buffered: something has come to wait
}

func newScheduler(seed uint64) *scheduler {
	return &scheduler{random: rand.New(rand.NewPCG(seed, 1)), seed: seed, seen: map[string]int{}, arrive: make(chan struct{}, 1)}
}

// traceKept bounds what is printed of a seed.
const traceKept = 4000

// note adds a line to the trace.
func (s *scheduler) note(format string, args ...any) {
	line := time.Since(began).String() + " " + fmt.Sprintf(format, args...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, line)
	if len(s.trace) > 2*traceKept {
		s.trace = append([]string{"…"}, s.trace[traceKept:]...)
	}
}

// began is when virtual time begins in every bubble.
var began = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// park waits for the scheduler's verdict.
func (s *scheduler) park(p parked) verdict {
	p.resume = make(chan verdict, 1)
	s.mu.Lock()
	if p.of != nil && p.of.dead {
		s.mu.Unlock()
		return gone
	}
	s.seen[p.key]++
	s.list = append(s.list, &p)
	s.mu.Unlock()
	select {
	case s.arrive <- struct{}{}:
	default:
	}
	return <-p.resume
}

// release ends a wait.
func (s *scheduler) release(p *parked, v verdict) {
	s.mu.Lock()
	s.list = slices.DeleteFunc(s.list, func(x *parked) bool { return x == p })
	s.mu.Unlock()
	p.resume <- v
}

// waiting lists what may be let go on, in an order that depends on nothing but what it is. mu is held while may is asked.
func (s *scheduler) waiting(may func(*parked) bool) []*parked {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*parked
	for _, p := range s.list {
		if may(p) {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b *parked) int {
		if a.place != b.place {
			return int(a.place - b.place)
		}
		return strings.Compare(a.key, b.key)
	})
	return list
}

// releaseAll ends the waits of a server that has crashed. Nothing of it waits again.
func (s *scheduler) releaseAll(of *server) {
	s.mu.Lock()
	of.dead = true
	var list []*parked
	s.list = slices.DeleteFunc(s.list, func(p *parked) bool {
		if p.of == of {
			list = append(list, p)
		}
		return p.of == of
	})
	s.mu.Unlock()
	for _, p := range list {
		p.resume <- gone
	}
}

// chance draws from what a thing is, and not from when it comes: goroutines that run at the same time ask in any order.
func (s *scheduler) chance(probability float64, what ...any) bool {
	return float64(s.hash(what...)%1_000_000) < probability*1_000_000
}

func (s *scheduler) hash(what ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, s.seed, what)
	v := h.Sum64()
	v ^= v >> 33
	v *= 0xff51afd7ed558ccd
	return v ^ v>>33
}

// settle lets everything run until it waits, after a moment of virtual time that no other step has.
func (s *scheduler) settle() {
	time.Sleep(time.Duration(1+s.random.IntN(997)) * time.Microsecond)
	synctest.Wait()
}

// idle lets virtual time pass until something comes to wait.
func (s *scheduler) idle(atMost time.Duration) {
	select {
	case <-s.arrive:
	default:
	}
	t := time.NewTimer(atMost)
	defer t.Stop()
	select {
	case <-s.arrive:
	case <-t.C:
	}
	synctest.Wait()
}
