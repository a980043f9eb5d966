package parallel

import (
	"errors"
	"runtime"
	"sync"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Team is the ranks that run one copy of a model. Run has all of them run the same function, each on a thread of its own, and functions that are given while another runs are run by all ranks at the same of its points.
// Methods may be called from any goroutine, but for Point, which belongs to the functions, and for a team made by Inline, which belongs to one goroutine.
type Team struct {
	size    int
	options Options
	devices []tensor.Device // by rank
	group   *group          // between the ranks; nil for one rank
	reached chan struct{}   // holds at most one: a rank has passed a point

	inline bool
	yield  func() error // of the running function, with inline

	mu      sync.Mutex
	changed *sync.Cond // there is a task, a decision, an end
	tasks   []*task    // that not every rank has begun; tasks[0] is number first
	first   int
	next    []int     // by rank: number of the task to begin next
	running [][]*task // by rank: the tasks it is in, the innermost last
	closed  bool
	ranks   sync.WaitGroup

	stations []*station    // by rank
	lost     sync.Once     // to be told of
	over     chan struct{} // closed when the ranks have ended
	closing  sync.Once     // of over
	patrols  sync.WaitGroup
}

// task is one function while the ranks run it. Its fields are guarded by Team.mu.
type task struct {
	run       func(rank int) error
	left      int // ranks that have not ended it
	done      chan struct{}
	err       error      // of the rank that failed first
	stop      error      // it is to end at the next point, with this
	decisions []decision // of rank 0, by point: what all ranks do there
	passed    []int      // by rank: points
}

// decision is what is done at a point: tasks below number until are run there, and if stop is not nil the function ends.
type decision struct {
	until int
	stop  error
}

// Inline makes a team of one rank that runs on the caller's goroutine: no thread is crossed.
func Inline() *Team { return &Team{size: 1, inline: true} }

// NewTeam starts one goroutine per device, locked to its thread. The caller closes the team.
func NewTeam(devices []tensor.Device, o Options) *Team {
	n := len(devices)
	t := &Team{size: n, options: o, devices: devices, reached: make(chan struct{}, 1), next: make([]int, n), running: make([][]*task, n), over: make(chan struct{})}
	t.changed = sync.NewCond(&t.mu)
	for range n {
		t.stations = append(t.stations, &station{})
	}
	if n > 1 {
		t.group = newGroup(devices, t.stations)
	}
	for rank := range n {
		t.ranks.Go(func() { t.loop(rank) })
	}
	if o.Patience > 0 && o.Lost != nil {
		t.patrols.Go(t.patrol)
	}
	return t
}

// Size is the number of ranks.
func (t *Team) Size() int { return t.size }

// Comm is a rank's end of the communication within the team, nil in a team of one.
func (t *Team) Comm(rank int) Comm {
	if t.group == nil {
		return nil
	}
	if t.group.linked != nil {
		return t.group.linked[rank]
	}
	return t.group.ranks[rank]
}

// Run has every rank run f, and returns when all have ended it, with the error of the rank that failed first: the others' operations of Comm fail then, and points. While they run, yield (which may be nil) is called on the caller's
// goroutine, soon after a rank has passed a point; with an Inline team, at every point. What yield runs on the team is run at the ranks' next point. An error of yield ends f at its next point and is returned.
func (t *Team) Run(f func(rank int) error, yield func() error) error {
	if t.inline {
		outer := t.yield
		t.yield = yield
		defer func() { t.yield = outer }()
		return f(0)
	}
	k, err := t.start(&task{run: f})
	if err != nil {
		return err
	}
	reached := t.reached
	if yield == nil {
		reached = nil
	}
	for {
		select {
		case <-k.done:
			return k.err
		case <-reached:
			select {
			case <-k.done:
				return k.err
			default:
			}
			if err := yield(); err != nil {
				t.mu.Lock()
				k.stop = err
				t.mu.Unlock()
				<-k.done
				return k.err
			}
		}
	}
}

var errClosed = errors.New("parallel: the team is closed")

// start queues a task.
func (t *Team) start(k *task) (*task, error) {
	k.left, k.done, k.passed = t.size, make(chan struct{}), make([]int, t.size)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, errClosed
	}
	t.tasks = append(t.tasks, k)
	t.changed.Broadcast()
	return k, nil
}

// loop is a rank's goroutine.
func (t *Team) loop(rank int) {
	runtime.LockOSThread()
	for {
		t.mu.Lock()
		t.wait(rank, func() bool { return t.next[rank] == t.first+len(t.tasks) && !t.closed })
		idle := t.next[rank] == t.first+len(t.tasks)
		t.mu.Unlock()
		if idle {
			t.stations[rank].wait(slot{})
			return // closed, with nothing left
		}
		t.runNext(rank)
	}
}

// wait waits until something does not hold any more. mu is held.
func (t *Team) wait(rank int, holds func() bool) {
	if !holds() {
		return
	}
	t.stations[rank].wait(slot{})
	for holds() {
		t.changed.Wait()
	}
	t.stations[rank].work()
}

// runNext runs the rank's next task to the end of all ranks.
func (t *Team) runNext(rank int) {
	t.mu.Lock()
	k := t.tasks[t.next[rank]-t.first]
	t.next[rank]++
	for len(t.tasks) > 0 && t.begunByAll(t.first) {
		t.tasks[0] = nil
		t.tasks = t.tasks[1:]
		t.first++
	}
	t.running[rank] = append(t.running[rank], k)
	t.mu.Unlock()

	t.stations[rank].work()
	err := t.call(k.run, rank)

	t.stations[rank].work()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running[rank] = t.running[rank][:len(t.running[rank])-1]
	if err != nil && k.err == nil {
		k.err = err
		t.changed.Broadcast()
		if t.group != nil {
			t.group.fail()
		}
	}
	if k.left--; k.left == 0 {
		if k.err != nil && t.group != nil {
			t.group.reset()
		}
		close(k.done)
		t.changed.Broadcast()
	}
	// A rank goes on when all have ended the task, so that what it does next is not mistaken for a part of it.
	t.wait(rank, func() bool { return k.left > 0 })
}

func (t *Team) begunByAll(number int) bool {
	for _, n := range t.next {
		if n <= number {
			return false
		}
	}
	return true
}

// Point is called by a function of Run, on every rank at the same places, where nothing runs on the rank's device: functions that were given meanwhile run there. An error ends the function.
func (t *Team) Point(rank int) error {
	if t.inline {
		if t.yield == nil {
			return nil
		}
		return t.yield()
	}
	t.stations[rank].work()
	select {
	case t.reached <- struct{}{}:
	default:
	}
	t.mu.Lock()
	k := t.running[rank][len(t.running[rank])-1]
	var d decision
	if rank == 0 {
		d = decision{t.first + len(t.tasks), k.stop}
		if t.size > 1 {
			k.decisions = append(k.decisions, d)
			t.changed.Broadcast()
		}
	} else {
		t.wait(rank, func() bool { return k.passed[rank] == len(k.decisions) && k.err == nil })
		if k.passed[rank] == len(k.decisions) {
			t.mu.Unlock()
			return ErrLost
		}
		d = k.decisions[k.passed[rank]]
	}
	k.passed[rank]++
	t.mu.Unlock()
	for {
		t.mu.Lock()
		more := t.next[rank] < d.until
		t.mu.Unlock()
		if !more {
			return d.stop
		}
		t.runNext(rank)
	}
}

// Hold has the ranks, from the next point of what they are running, run only functions that are given from now on, until release is called. With an Inline team, whose functions are
// always run at once, it does nothing.
func (t *Team) Hold() (release func()) {
	if t.inline {
		return func() {}
	}
	released := make([]bool, t.size) // each rank's own
	if _, err := t.start(&task{run: func(rank int) error {
		for !released[rank] {
			t.mu.Lock()
			t.wait(rank, func() bool { return t.next[rank] == t.first+len(t.tasks) })
			t.mu.Unlock()
			t.runNext(rank)
		}
		return nil
	}}); err != nil {
		return func() {} // closed: nothing runs
	}
	return func() {
		// The release may be run at a point of another function that was given after the hold.
		_, _ = t.start(&task{run: func(rank int) error { released[rank] = true; return nil }}) // a team is closed after release
	}
}

// Close ends the ranks after what was given to them. It may be called more than once, and comes before the devices are closed.
func (t *Team) Close() error {
	if t.inline {
		return nil
	}
	t.mu.Lock()
	t.closed = true
	t.changed.Broadcast()
	t.mu.Unlock()
	t.ranks.Wait()
	t.closing.Do(func() { close(t.over) })
	t.patrols.Wait()
	if t.group == nil {
		return nil
	}
	return t.group.close()
}
