package server

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
)

const (
	// maxConnections is what the server can hold in memory: one that waits for a result takes some 40 KiB.
	maxConnections = 16384
	// spareConnections are beyond the limit, for those who look whether the server is well.
	spareConnections = 32
	// spareLifetime is how long one of them may take.
	spareLifetime = 5 * time.Second
	// tellEvery is how often the log says that there are too many connections.
	tellEvery = time.Minute
	// unsentBytes is how much the kernel keeps of an answer beside what is on its way: with more nobody could tell a slow reader from one who reads nothing.
	unsentBytes = 256 << 10
)

// connectionLimit is how many connections this process may hold. Go raises the soft limit of descriptors to the hard one when a program starts.
func connectionLimit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return maxConnections // there is none
	}
	return limitOf(int(min(l.Cur, math.MaxInt32)))
}

// limitOf is that with so many descriptors: a quarter, and not less than 128, are for files and plugins.
func limitOf(descriptors int) int {
	return min(maxConnections, max(descriptors-max(descriptors/4, 128)-spareConnections, 8))
}

// connections is a listener that bounds how many of its connections are open, in all and by the client's address.
//
// While seven eighths of the limit are open, everybody is let in. From there on an address that has 1/(n+1) of the limit, where n addresses have some, gets no more, but for one of its own idle connections, the
// oldest: so one address alone (a proxy, loopback) may have seven eighths, and others find room. If all are open nevertheless, one who has less than that gets the place of the oldest idle connection, of whomever
// it is, else of one of the address that has most. Who gets no place has his connection all the same, for a moment: it answers how the server is, and refuses everything else.
type connections struct {
	net.Listener
	most int

	mu        sync.Mutex
	open      int
	addresses map[netip.Addr]*address
	idle      queue                         // of everybody
	spare     [spareConnections]*connection // the next place is that of the oldest
	next      int
	told      time.Time
}

// address is a client's address, with its connections by what they do.
type address struct {
	of    netip.Addr
	count int
	by    [3]queue
}

// What a connection does: the server waits for its first request, works on one, or waits for the next.
const (
	fresh = iota
	active
	idle
)

// connection is one that is open.
type connection struct {
	net.Conn
	listener *connections

	// Guarded by listener.mu.
	address *address // nil: spare, or closed
	does    int
	links   [2]struct{ before, after *connection } // of the address's queue, and of everybody's

	spare  bool // from the beginning
	expiry *time.Timer
}

func newConnections(l net.Listener, most int) *connections {
	return &connections{Listener: l, most: most, addresses: map[netip.Addr]*address{}, idle: queue{link: 1}}
}

// Accept implements net.Listener.
func (l *connections) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			return l.admit(c), nil
		}
		if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
			return nil, err
		}
		// Files took more than was left to them.
		l.mu.Lock()
		victim := l.idle.first
		l.drop(victim)
		l.tell("there are no descriptors left for connections", "error", err)
		l.mu.Unlock()
		victim.hangUp()
		time.Sleep(20 * time.Millisecond)
	}
}

// admit finds a place.
func (l *connections) admit(raw net.Conn) net.Conn {
	keepLittleUnsent(raw)
	c := &connection{Conn: raw, listener: l}
	l.mu.Lock()
	victim := l.place(c, addressOf(raw))
	l.mu.Unlock()
	victim.hangUp()
	return c
}

// place gives c a place, or a spare one, and tells whose it was.
func (l *connections) place(c *connection, from netip.Addr) (victim *connection) {
	a := l.addresses[from]
	if a == nil {
		a = &address{of: from}
	}
	others := len(l.addresses)
	if a.count > 0 {
		others--
	}
	if l.open >= l.most-l.most/8 {
		switch {
		case a.count >= l.most/(others+2):
			victim = a.by[idle].first
		case l.open < l.most:
			l.enter(c, a)
			return nil
		default:
			victim = l.idle.first
			if victim == nil {
				victim = l.largest().oldest()
			}
		}
		l.tell("there are more connections than may be open: some are closed, see docs/limits.md", "open", l.open, "limit", l.most, "addresses", len(l.addresses), "address", from, "of_this_address", a.count)
		if victim == nil {
			return l.enterSpare(c)
		}
		l.drop(victim)
	}
	l.enter(c, a)
	return victim
}

// enter counts c.
func (l *connections) enter(c *connection, a *address) {
	l.open++
	a.count++
	l.addresses[a.of] = a
	c.address, c.does = a, fresh
	a.by[fresh].push(c)
}

// enterSpare gives c the place of the spare connection that has had its one longest.
func (l *connections) enterSpare(c *connection) (victim *connection) {
	victim, l.spare[l.next] = l.spare[l.next], c
	l.next = (l.next + 1) % spareConnections
	c.spare = true
	c.expiry = time.AfterFunc(spareLifetime, func() { c.Close() })
	return victim
}

// largest is the address with most connections.
func (l *connections) largest() (most *address) {
	for _, a := range l.addresses {
		if most == nil || a.count > most.count {
			most = a
		}
	}
	return most
}

// oldest is the connection that is missed least.
func (a *address) oldest() *connection {
	for _, does := range []int{idle, fresh, active} {
		if c := a.by[does].first; c != nil {
			return c
		}
	}
	return nil
}

// drop counts c no more.
func (l *connections) drop(c *connection) {
	if c == nil || c.address == nil {
		return
	}
	a := c.address
	c.leave()
	c.address = nil
	l.open--
	if a.count--; a.count == 0 {
		delete(l.addresses, a.of)
	}
}

// leave takes c out of its queues.
func (c *connection) leave() {
	c.address.by[c.does].remove(c)
	if c.does == idle {
		c.listener.idle.remove(c)
	}
}

// tell logs, but seldom.
func (l *connections) tell(message string, args ...any) {
	if now := time.Now(); now.Sub(l.told) >= tellEvery {
		l.told = now
		slog.Warn(message, args...)
	}
}

// watch is a server's ConnState.
func watch(conn net.Conn, state http.ConnState) {
	c, ok := underTLS(conn).(*connection)
	does := active
	switch {
	case !ok || state != http.StateActive && state != http.StateIdle:
		return
	case state == http.StateIdle:
		does = idle
	}
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.address == nil {
		return
	}
	c.leave()
	c.does = does
	c.address.by[does].push(c)
	if does == idle {
		l.idle.push(c)
	}
}

// underTLS is the connection that carries another one; itself if that carries nothing.
func underTLS(c net.Conn) net.Conn {
	if secured, ok := c.(*tls.Conn); ok {
		return secured.NetConn()
	}
	return c
}

// Close implements net.Conn.
func (c *connection) Close() error {
	l := c.listener
	l.mu.Lock()
	l.drop(c)
	if c.spare {
		for i, s := range l.spare {
			if s == c {
				l.spare[i] = nil
			}
		}
		c.expiry.Stop()
	}
	l.mu.Unlock()
	return c.Conn.Close()
}

// hangUp closes a connection to which somebody else has the place; nil is none.
func (c *connection) hangUp() {
	if c != nil {
		c.Close()
	}
}

// onlyHealth is a handler for all connections: on a spare one it tells how the server is, and nothing else.
func onlyHealth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := body.ConnectionOf(r.Context()).(*connection); ok && c.spare {
			w.Header().Set("Connection", "close")
			switch r.URL.Path {
			case "/healthz", "/readyz", "/health", "/ping", "/metrics", "/api/v1/healthz":
			default:
				w.Header().Set("Retry-After", "1")
				refuse(w, http.StatusServiceUnavailable, "as many connections are open as the server may hold")
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// queue is a list of connections, the oldest first. One that comes again is the newest.
type queue struct {
	link        int // which of the connection's
	first, last *connection
}

func (q *queue) push(c *connection) {
	c.links[q.link].before, c.links[q.link].after = q.last, nil
	if q.last != nil {
		q.last.links[q.link].after = c
	} else {
		q.first = c
	}
	q.last = c
}

func (q *queue) remove(c *connection) {
	l := &c.links[q.link]
	if l.before != nil {
		l.before.links[q.link].after = l.after
	} else {
		q.first = l.after
	}
	if l.after != nil {
		l.after.links[q.link].before = l.before
	} else {
		q.last = l.before
	}
	l.before, l.after = nil, nil
}

// addressOf is the address that a connection counts for: of IPv6 the network of 64 bits, of which a client has all.
func addressOf(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	a := tcp.AddrPort().Addr().Unmap().WithZone("")
	if a.Is6() {
		if network, err := a.Prefix(64); err == nil {
			return network.Addr()
		}
	}
	return a
}

// keepLittleUnsent bounds what the kernel takes of an answer before the client has room for it. Without it nothing breaks.
func keepLittleUnsent(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
		})
	}
}
