package store

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// A database server that is frozen (a stopped process, a machine that swaps) takes connections and answers nothing; the system underneath answers for it, so that no timeout of TCP helps. It is to be
// as one that is gone. So nobody waits longer than this for the next bytes of an answer; to ask and to connect take less.
const (
	openingPatience = 10 * time.Minute // an index may be made
	patience        = 10 * time.Second // the first rows of a large answer may take a while
	pingPatience    = 3 * time.Second
	connectPatience = 5 * time.Second
)

// connections are those to a database server.
type connections struct {
	patience atomic.Int64 // time.Duration

	mu   sync.Mutex
	open map[*patientConn]bool
}

// dial wraps what makes connections.
func (c *connections) dial(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		p := &patientConn{Conn: conn, of: c}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open[p] = true
		return p, nil
	}
}

// drop closes all: whoever waits for an answer fails at once.
func (c *connections) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := range c.open {
		_ = p.Conn.Close() // whoever uses it is told by an error
	}
	clear(c.open)
}

// patientConn is a connection whose reads and writes fail when nothing comes or goes for as long as is waited at most.
type patientConn struct {
	net.Conn
	of *connections

	mu          sync.Mutex
	read, write time.Time // the deadlines that its user has set
}

func (p *patientConn) Read(b []byte) (int, error) {
	p.limit(&p.read, p.Conn.SetReadDeadline)
	return p.Conn.Read(b)
}

func (p *patientConn) Write(b []byte) (int, error) {
	p.limit(&p.write, p.Conn.SetWriteDeadline)
	return p.Conn.Write(b)
}

// limit sets the earlier one of its user's deadline and ours.
func (p *patientConn) limit(theirs *time.Time, set func(time.Time) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	deadline := time.Now().Add(time.Duration(p.of.patience.Load()))
	if !theirs.IsZero() && theirs.Before(deadline) {
		deadline = *theirs
	}
	_ = set(deadline) // a closed connection says so when it is used
}

func (p *patientConn) SetDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read, p.write = t, t
	return p.Conn.SetDeadline(t)
}

func (p *patientConn) SetReadDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.read = t
	return p.Conn.SetReadDeadline(t)
}

func (p *patientConn) SetWriteDeadline(t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.write = t
	return p.Conn.SetWriteDeadline(t)
}

func (p *patientConn) Close() error {
	p.of.mu.Lock()
	delete(p.of.open, p)
	p.of.mu.Unlock()
	return p.Conn.Close()
}
