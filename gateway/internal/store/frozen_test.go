package store

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

// proxy stands between a store and its PostgreSQL. Frozen it takes connections and bytes, and answers nothing.
type proxy struct {
	listener net.Listener
	target   string
	ended    sync.WaitGroup

	mu     sync.Mutex
	moved  *sync.Cond
	frozen bool
	cut    bool // connections are closed, and no new ones are taken
	conns  map[net.Conn]bool
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	p := &proxy{listener: l, target: target, conns: map[net.Conn]bool{}}
	p.moved = sync.NewCond(&p.mu)
	p.ended.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			p.mu.Lock()
			p.conns[client], p.conns[server] = true, true
			if p.cut {
				client.Close()
				server.Close()
			}
			p.mu.Unlock()
			p.ended.Go(func() { p.copy(server, client) })
			p.ended.Go(func() { p.copy(client, server) })
		}
	})
	t.Cleanup(func() {
		p.freeze(false)
		l.Close()
		p.mu.Lock()
		for c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.ended.Wait()
	})
	return p
}

func (p *proxy) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		p.mu.Lock()
		for p.frozen {
			p.moved.Wait()
		}
		p.mu.Unlock()
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			return
		}
	}
}

func (p *proxy) freeze(frozen bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = frozen
	p.moved.Broadcast()
}

// sever closes all connections, and takes no new ones; or takes them again.
func (p *proxy) sever(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	for c := range p.conns {
		if cut {
			c.Close()
		}
	}
}

// A PostgreSQL that answers nothing is as one that is gone: reads and commits fail, the store says so, and it goes on by itself when the server does.
func TestFrozenPostgres(t *testing.T) {
	dsn, err := url.Parse(storetest.Schema(t))
	check(t, err)
	port := dsn.Port()
	if port == "" {
		port = "5432"
	}
	p := newProxy(t, net.JoinHostPort(dsn.Hostname(), port))
	dsn.Host = p.listener.Addr().String()
	opts := Options{Dir: t.TempDir(), PostgresURL: dsn.String(), Reserve: -1}
	s, err := Open(t.Context(), opts)
	check(t, err)
	put := func(i int) error {
		return s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: fmt.Sprint(i), Value: []byte("value")}}})
	}
	for round := range 2 {
		check(t, put(2*round))
		check(t, s.(*sqlStore).flush(t.Context()))
		p.freeze(true)
		waiting := make(chan error)
		go func() { _, err := s.List(t.Context(), "a", "", Range{}, 0); waiting <- err }()
		awaitState(t, s, Failing)
		if err := <-waiting; err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("reading from a frozen database: %v", err)
		}
		for put(100) == nil { // until the writer knows as well
		}
		if err := put(100); !errors.Is(err, ErrUnavailable) {
			t.Errorf("a commit to a frozen database: %v", err)
		}
		p.freeze(false)
		awaitState(t, s, "")
		check(t, put(2*round+1))
	}
	p.freeze(true)
	check(t, ignoreUnreachable(s.Close()))
	if _, err := Open(t.Context(), opts); TroubleOf(err) == nil || TroubleOf(err).State != Failing {
		t.Errorf("opened with a frozen database: %v", err)
	}
	p.freeze(false)
	for s, err = Open(t.Context(), opts); errors.Is(err, ErrLocked); s, err = Open(t.Context(), opts) { // the server learns of the end of the other connection now
	}
	check(t, err)
	for i := range 4 {
		if _, err := s.Get(t.Context(), "a", fmt.Sprint(i)); err != nil {
			t.Error(err)
		}
	}
	check(t, s.Close())
}

// ignoreUnreachable leaves out of the errors of Close that the server cannot be told.
func ignoreUnreachable(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}
