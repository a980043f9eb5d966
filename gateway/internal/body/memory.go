package body

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// MaxTotalBytes bounds what the larger bodies of all requests that are being answered take together, with what they are decoded into and with the larger answers: one body may have plugins.MaxBodyBytes, and
// any number may come at once.
const MaxTotalBytes = 16 * plugins.MaxBodyBytes

const (
	// smallBytes of a request or an answer count for nothing: that much a connection takes anyway, and connections are bounded.
	smallBytes = 16 << 10
	// patience is how long a request waits for memory that others have.
	patience = 2 * time.Second
)

// shared is what the requests of this process have.
var shared = newMemory(MaxTotalBytes)

// Memory bounds what requests take together, and shares it by key. While less than half of it is taken, anybody may have more. From there on a key may have 1/(n+1) of it, where n keys have some: so
// one key alone never has more than half, and others find room at once. If it is all taken nevertheless, the key that has most makes room for one that has less: the connection of its slowest body
// or answer is closed. Safe for concurrent use.
type Memory struct {
	total    int64
	patience time.Duration

	mu     sync.Mutex
	taken  int64
	ending int64 // of taken, what claims have whose connections were closed to make room
	owners map[string]*holding
	freed  chan struct{} // closed when something is given back
}

// holding is what one key has.
type holding struct {
	bytes  int64
	ending int64
	moving map[*Claim]struct{} // whose bytes are on their way from or to a client
}

func newMemory(total int64) *Memory {
	return &Memory{total: total, patience: patience, owners: map[string]*holding{}, freed: make(chan struct{})}
}

// Claim is the memory that one request has. It belongs to the goroutine of the request, which must release it.
type Claim struct {
	memory *Memory
	owner  string

	// The rest is guarded by memory.mu.
	bytes      int64
	connection io.Closer // nil while nothing is on its way
	began      time.Time // the way
	cut        bool      // the connection was closed to make room
}

// NewClaim makes a claim, without memory so far, for a request of a key's holder.
func NewClaim(owner string) *Claim { return shared.claim(owner) }

func (m *Memory) claim(owner string) *Claim { return &Claim{memory: m, owner: owner} }

// Take claims n bytes more. While they are not to be had it waits, a little; then the error is an *Error with status 503, or 413 if nobody may ever have so much.
func (c *Claim) Take(n int64) error {
	if n <= 0 {
		return nil
	}
	m := c.memory
	var expired <-chan time.Time
	for {
		m.mu.Lock()
		err := m.take(c, n)
		freed, final := m.freed, c.cut
		m.mu.Unlock()
		switch {
		case err == nil:
			return nil
		case final || err.Status != http.StatusServiceUnavailable:
			return err
		}
		if expired == nil {
			t := time.NewTimer(m.patience)
			defer t.Stop()
			expired = t.C
		}
		select {
		case <-freed:
		case <-expired:
			return err
		}
	}
}

// take is one attempt.
func (m *Memory) take(c *Claim, n int64) *Error {
	if c.cut {
		return m.full()
	}
	if c.bytes+n > m.total/2 {
		return &Error{http.StatusRequestEntityTooLarge, fmt.Sprintf("this request would take %d MiB, decoded; %d MiB are the most that one key may have", (c.bytes+n)>>20, m.total>>21)}
	}
	h, keys := m.owners[c.owner], int64(len(m.owners))
	if h == nil {
		h, keys = &holding{moving: map[*Claim]struct{}{}}, keys+1
	}
	if m.taken+n > m.total/2 {
		if h.bytes+n > m.total/(keys+1) {
			return &Error{http.StatusServiceUnavailable, fmt.Sprintf("the requests and answers of this key take %d MiB, and those of all keys %d of the %d MiB that they may have; repeat a little later", h.bytes>>20, m.taken>>20, m.total>>20)}
		}
		if m.taken+n > m.total {
			m.makeRoom(h.bytes+n, n)
			return m.full()
		}
	}
	if h.bytes == 0 {
		m.owners[c.owner] = h
	}
	m.taken, h.bytes, c.bytes = m.taken+n, h.bytes+n, c.bytes+n
	if c.connection != nil {
		h.moving[c] = struct{}{}
	}
	return nil
}

func (m *Memory) full() *Error {
	return &Error{http.StatusServiceUnavailable, fmt.Sprintf("the requests and answers of all keys take the %d MiB that they may have; repeat a little later", m.total>>20)}
}

// makeRoom closes connections of keys that have more than one who would have `having` with the n bytes that it asks for, until there will be room for them.
func (m *Memory) makeRoom(having, n int64) {
	for m.taken-m.ending+n > m.total {
		var most *holding
		for _, h := range m.owners {
			if len(h.moving) > 0 && h.bytes-h.ending > having && (most == nil || h.bytes-h.ending > most.bytes-most.ending) {
				most = h
			}
		}
		if most == nil {
			return
		}
		most.slowest().end(most)
	}
}

// slowest is the claim whose bytes took longest to move.
func (h *holding) slowest() *Claim {
	var slowest *Claim
	rate, now := 0.0, time.Now()
	for c := range h.moving {
		if r := float64(c.bytes) / float64(now.Sub(c.began)+1); slowest == nil || r < rate {
			slowest, rate = c, r
		}
	}
	return slowest
}

// end closes the connection, so that the request gives up what it has.
func (c *Claim) end(h *holding) {
	c.cut = true
	c.memory.ending, h.ending = c.memory.ending+c.bytes, h.ending+c.bytes
	delete(h.moving, c)
	go c.connection.Close() // it may wait for those who read and write
}

// move says that bytes are on their way over the request's connection, until settle. Without a connection, as in tests of handlers, nothing can be closed.
func (c *Claim) move(r *http.Request) {
	connection := ConnectionOf(r.Context())
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.connection, c.began = connection, time.Now()
	if h := c.memory.owners[c.owner]; h != nil && c.bytes > 0 && connection != nil && !c.cut {
		h.moving[c] = struct{}{}
	}
}

// settle says that they have arrived, or will not.
func (c *Claim) settle() {
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	c.connection = nil
	if h := c.memory.owners[c.owner]; h != nil {
		delete(h.moving, c)
	}
}

// Release gives everything back. The claim may be used again.
func (c *Claim) Release() {
	m := c.memory
	if c.bytes == 0 { // it changes in this goroutine only
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.owners[c.owner]
	delete(h.moving, c)
	c.giveBack(h, c.bytes)
}

// keep makes n bytes of what there is: the rest is given back, and what is missing is taken anew, so that nobody waits for memory who has some. The error is Take's.
func (c *Claim) keep(n int64) error {
	if c.bytes < n {
		c.Release()
		return c.Take(n)
	}
	if c.bytes == n {
		return nil
	}
	c.memory.mu.Lock()
	defer c.memory.mu.Unlock()
	if c.cut {
		return c.memory.full()
	}
	c.giveBack(c.memory.owners[c.owner], c.bytes-n)
	return nil
}

// giveBack gives a part back. The memory's mu is held.
func (c *Claim) giveBack(h *holding, n int64) {
	m := c.memory
	if c.cut {
		m.ending, h.ending = m.ending-n, h.ending-n
	}
	if h.bytes -= n; h.bytes == 0 {
		delete(m.owners, c.owner)
	}
	m.taken, c.bytes = m.taken-n, c.bytes-n
	close(m.freed)
	m.freed = make(chan struct{})
}

// connectionKey is that of a request's connection in its context.
type connectionKey struct{}

// WithConnection gives the context of a connection's requests, in which Memory finds what to close.
func WithConnection(ctx context.Context, c io.Closer) context.Context {
	return context.WithValue(ctx, connectionKey{}, c)
}

// ConnectionOf finds it; nil where there is none.
func ConnectionOf(ctx context.Context) io.Closer {
	c, _ := ctx.Value(connectionKey{}).(io.Closer)
	return c
}
