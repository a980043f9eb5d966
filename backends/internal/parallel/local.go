package parallel

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// local is a Comm between ranks whose devices can address each other's memory: processors' ranks in one process, ranks on one GPU, GPUs with peer access. Every rank computes a share of a reduction and writes
// it to all ranks' tensors, so an operation costs two meetings and touches each element once per rank.
//
// Where devices are done some time after an operation returns (tensor.Neighbour), the ranks meet on the host and the devices wait for each other's marks: no rank waits for a device.
type local struct {
	group  *group
	rank   int
	device tensor.Device
	place  *station
	mark   tensor.Mark // made by the rank when it first needs it; nil on devices that need none
}

// group is what the ranks of local share.
type group struct {
	ranks []*local
	turns turnstile
	// slots[r] is what rank r brought to the present meeting. It is written before the rank arrives and read until all have left.
	slots []slot
	pairs [][]chan slot // Send from → to
	backs [][]chan error
	lost  chan struct{} // closed when the group has failed
	// linked are the ranks' ends where a library moves the values; it also keeps the order between devices.
	linked []*linked
}

// slot is what a rank brings to an operation.
type slot struct {
	operation string
	root      int
	tensor    tensor.Tensor
	part      tensor.Tensor
	tensors   []tensor.Tensor // of a reduction
	host      []float32
}

// ErrLost says that the group's operation failed because of another rank.
var ErrLost = errors.New("parallel: another rank has failed")

func newGroup(devices []tensor.Device, stations []*station) *group {
	n := len(devices)
	g := &group{slots: make([]slot, n), lost: make(chan struct{})}
	g.turns.size = n
	g.turns.changed = sync.NewCond(&g.turns.mu)
	for r, d := range devices {
		g.ranks = append(g.ranks, &local{group: g, rank: r, device: d, place: stations[r]})
		var pairs []chan slot
		var backs []chan error
		for range n {
			pairs, backs = append(pairs, make(chan slot)), append(backs, make(chan error, 1))
		}
		g.pairs, g.backs = append(g.pairs, pairs), append(g.backs, backs)
	}
	return g
}

// fail ends all operations of the group, now and until reset.
func (g *group) fail() {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	if !g.turns.failed.Swap(true) {
		close(g.lost)
		g.turns.changed.Broadcast()
	}
}

// reset makes a failed group usable again. No rank may be in an operation.
func (g *group) reset() {
	g.turns.mu.Lock()
	defer g.turns.mu.Unlock()
	if g.turns.failed.Swap(false) {
		g.lost = make(chan struct{})
		g.turns.arrived = 0
		for _, backs := range g.backs {
			for _, c := range backs {
				select {
				case <-c:
				default:
				}
			}
		}
	}
}

// spins is how often a waiting rank looks before it sleeps: a few microseconds, what the others' jitter takes in a fine-grained step. Processors are shared with the devices' threads, so it is not more.
const spins = 1000

// turnstile is a barrier that can fail.
type turnstile struct {
	mu      sync.Mutex
	changed *sync.Cond
	size    int
	arrived int
	round   atomic.Uint64
	failed  atomic.Bool
}

// pass waits until all ranks are here; false if the group has failed.
func (t *turnstile) pass() bool {
	t.mu.Lock()
	if t.failed.Load() {
		t.mu.Unlock()
		return false
	}
	round := t.round.Load()
	if t.arrived++; t.arrived == t.size {
		t.arrived = 0
		t.round.Add(1)
		t.changed.Broadcast()
		t.mu.Unlock()
		return true
	}
	t.mu.Unlock()
	for range spins {
		if t.round.Load() != round {
			return true
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.round.Load() == round && !t.failed.Load() {
		t.changed.Wait()
	}
	return t.round.Load() != round
}

func (c *local) Rank() int { return c.rank }
func (c *local) Size() int { return len(c.group.ranks) }

// meet brings s, waits for the others, checks that all do the same, and runs share, after which all have left again.
func (c *local) meet(s slot, same func(a, b slot) bool, share func(slots []slot) error) error {
	g := c.group
	g.slots[c.rank] = s
	if err := c.pass(s); err != nil {
		return fmt.Errorf("%s: %w", s.operation, err)
	}
	for r, other := range g.slots {
		if other.operation != s.operation || other.root != s.root || !same(s, other) {
			g.fail()
			return fmt.Errorf("parallel: rank %d does %s and rank %d does %s: the ranks have come apart", c.rank, s, r, other)
		}
	}
	if err := share(g.slots); err != nil {
		g.fail()
		return fmt.Errorf("%s: %w", s.operation, err)
	}
	if err := c.pass(s); err != nil {
		return fmt.Errorf("%s: %w", s.operation, err)
	}
	return nil
}

// pass waits in an operation until all ranks are here; what the rank's device is given then comes after what all devices have been given before.
func (c *local) pass(s slot) error {
	if err := c.set(); err != nil {
		c.group.fail()
		return err
	}
	c.place.wait(s)
	passed := c.group.turns.pass()
	c.place.work()
	if !passed {
		return ErrLost
	}
	for _, other := range c.group.ranks {
		if err := c.await(other); err != nil {
			c.group.fail()
			return err
		}
	}
	return nil
}

// set marks what the rank's device has been given. The others may read the mark once they have met the rank. A rank that has gone on meanwhile has set it later, which is waited for as well: that is more
// than is needed, and no rank can come to wait for itself, because a device waits only for what was given before.
func (c *local) set() (err error) {
	if c.group.linked != nil {
		return nil
	}
	if c.mark == nil {
		n, ok := c.device.(tensor.Neighbour)
		if !ok {
			return nil
		}
		if c.mark, err = n.NewMark(); err != nil {
			return err
		}
	}
	return c.mark.Set()
}

// await has the rank's device wait for another rank's mark.
func (c *local) await(other *local) error {
	if other == c || other.mark == nil {
		return nil
	}
	return other.mark.Before(c.device)
}

// close frees what belongs to the devices. No rank is in an operation.
func (g *group) close() error {
	var err error
	for _, c := range g.linked {
		err = errors.Join(err, c.close())
	}
	for _, c := range g.ranks {
		if c.mark != nil {
			err = errors.Join(err, c.mark.Free())
			c.mark = nil
		}
	}
	return err
}

func (s slot) String() string {
	switch {
	case s.host != nil:
		return fmt.Sprintf("%s of %d values", s.operation, len(s.host))
	case len(s.tensors) > 0:
		text := s.operation + " of "
		for i, t := range s.tensors {
			if i > 0 {
				text += ", "
			}
			text += fmt.Sprintf("%d × %d", t.Rows, t.Cols)
		}
		return text
	case s.tensor.Buffer == nil:
		return s.operation // of nothing: a meeting
	}
	return fmt.Sprintf("%s of %d × %d", s.operation, s.tensor.Rows, s.tensor.Cols)
}

func sameShape(a, b slot) bool {
	return slices.EqualFunc(a.tensors, b.tensors, func(a, b tensor.Tensor) bool { return a.Rows == b.Rows && a.Cols == b.Cols }) && a.tensor.Rows == b.tensor.Rows && a.tensor.Cols == b.tensor.Cols && a.part.Rows == b.part.Rows && a.part.Cols == b.part.Cols
}

// lineElements is 64 bytes of float32: shares of a tensor end at multiples, so that no two ranks write to one cache line.
const lineElements = 16

// mine gives this rank's share of a tensor: rows, or columns where there are few rows. It is empty for some ranks where there is little.
func (c *local) mine(t tensor.Tensor) func(tensor.Tensor) tensor.Tensor {
	n := c.Size()
	if t.Rows >= 4*n {
		from, to := c.rank*t.Rows/n, (c.rank+1)*t.Rows/n
		return func(t tensor.Tensor) tensor.Tensor { return t.Slice(from, to) }
	}
	lines := (t.Cols + lineElements - 1) / lineElements
	from, to := min(t.Cols, c.rank*lines/n*lineElements), min(t.Cols, (c.rank+1)*lines/n*lineElements)
	return func(t tensor.Tensor) tensor.Tensor { return t.Columns(from, to) }
}

// tree calls add for what is added to what in a sum over n ranks: to has the sum in the end at 0.
func tree(n int, add func(to, from int) error) error {
	for step := 1; step < n; step *= 2 {
		for to := 0; to+step < n; to += 2 * step {
			if err := add(to, to+step); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *local) AllReduce(ts ...tensor.Tensor) error {
	return c.meet(slot{operation: "all-reduce", tensors: ts}, sameShape, func(slots []slot) error {
		for i, t := range ts {
			mine := c.mine(t)
			sum := mine(slots[0].tensors[i])
			if sum.Rows == 0 || sum.Cols == 0 {
				continue
			}
			if err := tree(len(slots), func(to, from int) error {
				return c.device.Add(mine(slots[to].tensors[i]), mine(slots[from].tensors[i]))
			}); err != nil {
				return err
			}
			for _, s := range slots[1:] {
				if err := c.device.Round(mine(s.tensors[i]), sum); err != nil { // a copy
					return err
				}
			}
		}
		return nil
	})
}

func (c *local) checkGather(dst, part tensor.Tensor) error {
	if dst.Rows != part.Rows || dst.Cols != c.Size()*part.Cols {
		c.group.fail()
		return fmt.Errorf("parallel: all-gather: %d × %d from %d parts of %d × %d", dst.Rows, dst.Cols, c.Size(), part.Rows, part.Cols)
	}
	return nil
}

func (c *local) AllGather(dst, part tensor.Tensor) error {
	if err := c.checkGather(dst, part); err != nil {
		return err
	}
	return c.meet(slot{operation: "all-gather", tensor: dst, part: part}, sameShape, func(slots []slot) error {
		for r, s := range slots {
			if err := c.device.Round(dst.Columns(r*part.Cols, (r+1)*part.Cols), s.part); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *local) checkScatter(dst, src tensor.Tensor) error {
	if dst.Rows != src.Rows || src.Cols != c.Size()*dst.Cols {
		c.group.fail()
		return fmt.Errorf("parallel: reduce-scatter: %d × %d to %d parts of %d × %d", src.Rows, src.Cols, c.Size(), dst.Rows, dst.Cols)
	}
	return nil
}

func (c *local) ReduceScatter(dst, src tensor.Tensor) error {
	if err := c.checkScatter(dst, src); err != nil {
		return err
	}
	return c.meet(slot{operation: "reduce-scatter", tensor: src, part: dst}, sameShape, func(slots []slot) error {
		from, to := c.rank*dst.Cols, (c.rank+1)*dst.Cols
		for r, s := range slots {
			part := s.tensor.Columns(from, to)
			var err error
			if r == 0 {
				err = c.device.Round(dst, part)
			} else {
				err = c.device.Add(dst, part)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *local) checkRoot(root int) error {
	if root < 0 || root >= c.Size() {
		c.group.fail()
		return fmt.Errorf("parallel: broadcast from rank %d of %d", root, c.Size())
	}
	return nil
}

func (c *local) Broadcast(t tensor.Tensor, root int) error {
	if err := c.checkRoot(root); err != nil {
		return err
	}
	return c.meet(slot{operation: "broadcast", root: root, tensor: t}, sameShape, func(slots []slot) error {
		if c.rank == root {
			return nil
		}
		return c.device.Round(t, slots[root].tensor)
	})
}

func (c *local) AllReduceHost(values []float32) error {
	var sums []float32
	if err := c.meet(slot{operation: "all-reduce in host memory", host: values}, func(a, b slot) bool { return len(a.host) == len(b.host) }, func(slots []slot) error {
		parts := make([][]float32, len(slots))
		for r, s := range slots {
			parts[r] = append(parts[r], s.host...)
		}
		sums = parts[0]
		return tree(len(parts), func(to, from int) error {
			for i, v := range parts[from] {
				parts[to][i] += v
			}
			return nil
		})
	}); err != nil {
		return err
	}
	copy(values, sums) // all have read it
	return nil
}

func (c *local) other(operation string, rank int) error {
	if rank < 0 || rank >= c.Size() || rank == c.rank {
		c.group.fail()
		return fmt.Errorf("parallel: %s between rank %d and rank %d of %d", operation, c.rank, rank, c.Size())
	}
	return nil
}

func (c *local) Send(t tensor.Tensor, to int) error {
	if err := c.set(); err != nil {
		c.group.fail()
		return fmt.Errorf("send: %w", err)
	}
	return c.give(t, to, func() error { return nil })
}

// give meets the receiver, runs send when that has said it takes t, and returns when it has.
func (c *local) give(t tensor.Tensor, to int, send func() error) error {
	if err := c.other("send", to); err != nil {
		return err
	}
	g, here := c.group, slot{operation: "send", tensor: t}
	c.place.wait(here)
	defer c.place.work()
	select {
	case g.pairs[c.rank][to] <- here:
	case <-g.lost:
		return fmt.Errorf("send: %w", ErrLost)
	}
	c.place.work()
	if err := send(); err != nil {
		g.fail()
		return fmt.Errorf("send: %w", err)
	}
	c.place.wait(here)
	select {
	case err := <-g.backs[c.rank][to]:
		if err == nil {
			err = c.await(g.ranks[to])
		}
		return err
	case <-g.lost:
		return fmt.Errorf("send: %w", ErrLost)
	}
}

func (c *local) Recv(t tensor.Tensor, from int) error {
	return c.take(t, from, func(sent tensor.Tensor) error {
		if err := c.await(c.group.ranks[from]); err != nil {
			return err
		}
		if err := c.device.Round(t, sent); err != nil {
			return err
		}
		return c.set()
	})
}

// take meets the sender and runs receive for what it sends.
func (c *local) take(t tensor.Tensor, from int, receive func(sent tensor.Tensor) error) error {
	if err := c.other("receive", from); err != nil {
		return err
	}
	g := c.group
	var s slot
	c.place.wait(slot{operation: "receive", tensor: t})
	select {
	case s = <-g.pairs[from][c.rank]:
		c.place.work()
	case <-g.lost:
		c.place.work()
		return fmt.Errorf("receive: %w", ErrLost)
	}
	var err error
	if t.Rows != s.tensor.Rows || t.Cols != s.tensor.Cols {
		err = fmt.Errorf("parallel: rank %d sends %d × %d, rank %d receives %d × %d", from, s.tensor.Rows, s.tensor.Cols, c.rank, t.Rows, t.Cols)
	} else {
		err = receive(s.tensor)
	}
	g.backs[from][c.rank] <- err
	if err != nil {
		g.fail()
	}
	return err
}
