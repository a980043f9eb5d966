// Package link is a TCP connection between machines that a test can make slow, silent in one direction or both, or cut.
package link

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Link passes connections on to an address. Its methods may be called concurrently.
type Link struct {
	Sent     atomic.Int64 // bytes towards the address, of all connections
	listener net.Listener
	target   string
	all      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	held   [2]bool // to the address, and from it
	delay  time.Duration
	moved  chan struct{} // closed and replaced when held has changed
	conns  map[net.Conn]bool
}

// Directions for Hold.
const (
	There = iota
	Back
)

// New makes a link to an address, until the end of the test.
func New(t testing.TB, target string) *Link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	l := &Link{listener: listener, target: target, moved: make(chan struct{}), conns: map[net.Conn]bool{}}
	l.all.Go(l.accept)
	t.Cleanup(l.Close)
	return l
}

// Close breaks all connections and refuses new ones. It may be called more than once.
func (l *Link) Close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.Cut()
	l.all.Wait()
}

// Address is what to connect to in place of the target.
func (l *Link) Address() string { return l.listener.Addr().String() }

// Hold keeps back what is on its way in a direction, from now on, or lets it go on. Nothing is lost, as in a network that is away for a while.
func (l *Link) Hold(direction int, held bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[direction] = held
	close(l.moved)
	l.moved = make(chan struct{})
}

// Delay has every piece take so much longer from now on, in both directions.
func (l *Link) Delay(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// Cut breaks all connections. New ones are made.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
	clear(l.conns)
	close(l.moved)
	l.moved = make(chan struct{})
}

func (l *Link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", l.target) //nolint:noctx // on this machine
		if err != nil {
			_ = near.Close()
			continue
		}
		if !l.add(near, far) {
			return
		}
		l.all.Go(func() { l.pass(near, far, There) })
		l.all.Go(func() { l.pass(far, near, Back) })
	}
}

func (l *Link) add(conns ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range conns {
		if l.closed {
			_ = c.Close()
			continue
		}
		l.conns[c] = true
	}
	return !l.closed
}

// pass copies until one side ends; then both do.
func (l *Link) pass(from, to net.Conn, direction int) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !l.wait(from, direction) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
			if direction == There {
				l.Sent.Add(int64(n))
			}
		}
		if err != nil {
			if err == io.EOF { //nolint:errorlint // Read gives it as it is
				l.wait(from, direction) // the end is on its way, too
			}
			return
		}
	}
}

// wait returns when a piece may go on; false if its connection was cut.
func (l *Link) wait(c net.Conn, direction int) bool {
	l.mu.Lock()
	delay := l.delay
	l.mu.Unlock()
	time.Sleep(delay)
	for {
		l.mu.Lock()
		there, held, moved := l.conns[c], l.held[direction], l.moved
		l.mu.Unlock()
		if !there || !held {
			return there
		}
		<-moved
	}
}
