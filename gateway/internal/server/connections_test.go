package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// limitedVariable makes the test binary a server, for a process with few descriptors.
const limitedVariable = "TINSMITH_TEST_LIMITED"

func TestMain(m *testing.M) {
	if os.Getenv(limitedVariable) != "" {
		if err := limited(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// from is a connection that never was, from an address.
type from struct {
	net.Conn
	address string
}

func (f *from) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 1}
}
func (*from) Close() error { return nil }

// crowd is a listener with so many connections from each address.
func crowd(t *testing.T, most int, each map[string]int) *connections {
	t.Helper()
	l := newConnections(nil, most)
	for address, n := range each {
		for range n {
			l.admit(&from{address: address})
		}
	}
	return l
}

func (l *connections) of(address string) int {
	if a := l.addresses[addressOf(&from{address: address})]; a != nil {
		return a.count
	}
	return 0
}

// become has all connections of an address do something, one after the other.
func (l *connections) become(address string, state http.ConnState) {
	a := l.addresses[addressOf(&from{address: address})]
	for _, q := range a.by {
		var all []*connection
		for c := q.first; c != nil; c = c.links[q.link].after {
			all = append(all, c)
		}
		for _, c := range all {
			watch(c, state)
		}
	}
}

func TestPlaces(t *testing.T) {
	const most = 80 // seven eighths are 70
	for _, c := range []struct {
		name    string
		before  func(*connections)
		from    string
		n       int
		want    int // connections of that address
		another string
		left    int // of the other one
	}{
		{name: "everybody is let in", from: "10.0.0.1", n: 60, want: 60},
		{name: "one address leaves room", from: "10.0.0.1", n: 100, want: 70},
		{name: "which others find", before: func(l *connections) { l.fill("10.0.0.1", 100) }, from: "10.0.0.2", n: 10, want: 10, another: "10.0.0.1", left: 70},
		{name: "and more, up to their part", before: func(l *connections) { l.fill("10.0.0.1", 100) }, from: "10.0.0.2", n: 100, want: 80 / 3, another: "10.0.0.1", left: 80 - 80/3},
		{name: "idle ones go first", before: func(l *connections) {
			l.fill("10.0.0.1", 50)
			l.fill("10.0.0.3", 10)
			l.become("10.0.0.3", http.StateIdle)
			l.fill("10.0.0.1", 10)
			l.fill("10.0.0.4", 10)
		}, from: "10.0.0.2", n: 5, want: 5, another: "10.0.0.3", left: 5},
		{name: "one has the place of an idle one of his own", before: func(l *connections) {
			l.fill("10.0.0.1", 70)
			l.become("10.0.0.1", http.StateIdle)
		}, from: "10.0.0.1", n: 20, want: 70},
		{name: "one network is one address", before: func(l *connections) { l.fill("2001:db8::1", 40) }, from: "2001:db8::2", n: 60, want: 70},
		{name: "one address in two forms", before: func(l *connections) { l.fill("10.0.0.1", 40) }, from: "::ffff:10.0.0.1", n: 60, want: 70},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := crowd(t, most, nil)
			if c.before != nil {
				c.before(l)
			}
			l.fill(c.from, c.n)
			if got := l.of(c.from); got != c.want {
				t.Errorf("%s has %d connections, want %d", c.from, got, c.want)
			}
			if got := l.of(c.another); c.another != "" && got != c.left {
				t.Errorf("%s has %d connections, want %d", c.another, got, c.left)
			}
			total := 0
			for _, a := range l.addresses {
				total += a.count
			}
			if total != l.open || total > most {
				t.Errorf("%d connections are open, %d are counted, %d are the most", total, l.open, most)
			}
			for _, c := range l.spare {
				if c != nil {
					c.Close()
				}
			}
		})
	}
}

// fill opens connections from an address.
func (l *connections) fill(address string, n int) {
	for range n {
		l.admit(&from{address: address})
	}
}

// Two thousand polls of one client find their places, in a server with the descriptors that most systems give it.
func TestBurst(t *testing.T) {
	l := newConnections(nil, limitOf(4096))
	l.fill("10.0.0.1", 2000)
	l.become("10.0.0.1", http.StateActive)
	if got := l.of("10.0.0.1"); got != 2000 {
		t.Errorf("%d of 2000 are open", got)
	}
}

func TestConnectionLimits(t *testing.T) {
	for descriptors, want := range map[int]int{64: 8, 256: 96, 1024: 736, 4096: 3040, 20000: 14968, 1 << 20: maxConnections} {
		if got := limitOf(descriptors); got != want || got > 8 && got+spareConnections > descriptors-128 {
			t.Errorf("%d connections with %d descriptors, want %d", got, descriptors, want)
		}
	}
}

// lines counts lines of the log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lines) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), part)
}

// When all places are taken, the server says how it is, refuses everything else in words, and logs one line.
func TestFull(t *testing.T) {
	var log lines
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	held := make(chan struct{})
	h := http.NewServeMux()
	h.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	h.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/held" {
			<-held
		}
	})
	l, address := serving(t, 16, ordinary, h)
	const get = "GET %s HTTP/1.1\r\nHost: x\r\n\r\n"
	var polls []client
	for range 14 { // seven eighths
		one := dial(t, address, "127.0.0.1")
		one.says(fmt.Sprintf(get, "/held"))
		polls = append(polls, one)
	}
	for l.count() < 14 {
		time.Sleep(time.Millisecond)
	}
	for range 100 { // that say nothing
		dial(t, address, "127.0.0.1")
	}
	for range 3 {
		one := dial(t, address, "127.0.0.1")
		one.says(fmt.Sprintf(get, "/healthz"))
		one.hears(http.StatusOK)
		one.ended()
		one = dial(t, address, "127.0.0.1")
		one.says(fmt.Sprintf(get, "/api/v1/sessions"))
		if answer := one.hears(http.StatusServiceUnavailable); answer.Header.Get("Retry-After") == "" {
			t.Error("the refusal does not say when to come again")
		}
		one.ended()
	}
	another := dial(t, address, "127.0.0.2")
	another.says(fmt.Sprintf(get, "/api/v1/sessions"))
	another.hears(http.StatusOK)
	close(held)
	for _, one := range polls {
		one.hears(http.StatusOK)
	}
	if n := log.count("more connections than may be open"); n != 1 {
		t.Errorf("%d lines in the log", n)
	}
}

// An idle connection gives its place to a new one, the oldest first.
func TestIdleConnectionsGiveWay(t *testing.T) {
	l, address := serving(t, 16, ordinary, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var all []client
	for range 14 {
		one := dial(t, address, "127.0.0.1")
		one.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		one.hears(http.StatusOK)
		all = append(all, one)
		for n := 0; n < len(all); time.Sleep(time.Millisecond) { // the answer is read before the server is done with it, and the oldest is to be the first
			l.mu.Lock()
			n = 0
			for c := l.idle.first; c != nil; c = c.links[1].after {
				n++
			}
			l.mu.Unlock()
		}
	}
	one := dial(t, address, "127.0.0.1")
	one.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	one.hears(http.StatusOK)
	all[0].ended()
	all[1].says("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	all[1].hears(http.StatusOK)
}

// Connections that begin and say nothing, or never end their header, are over after a while; what is closed is counted no more.
func TestCountOfConnections(t *testing.T) {
	l, address := serving(t, 100, ordinary, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var all []client
	for i := range 50 {
		one := dial(t, address, "127.0.0.1")
		one.says("GET / HTTP/1.1\r\nHost: x\r\n\r\n"[:i/2])
		all = append(all, one)
	}
	for l.count() < 50 {
		time.Sleep(time.Millisecond) // a test that hangs here, or below, says that they are not counted
	}
	for _, one := range all {
		one.Close()
	}
	for l.count() > 0 {
		time.Sleep(time.Millisecond)
	}
	if len(l.addresses) > 0 || l.idle.first != nil {
		t.Errorf("%d addresses and an idle connection %v are left", len(l.addresses), l.idle.first)
	}
}

// limited is the main function of a server that opens files. It ends with its standard input.
func limited() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := Listen(ctx, "127.0.0.1:0", "http")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		defer cancel()
		_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
	}()
	h := http.NewServeMux()
	h.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
	h.HandleFunc("/files", func(w http.ResponseWriter, _ *http.Request) {
		for range 50 {
			f, err := os.Open(os.Args[0])
			if err != nil {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			defer f.Close()
		}
	})
	return Serve(ctx, l, nil, h)
}

// A process with few descriptors keeps some for files, whoever connects, and tells how it is.
func TestFewDescriptors(t *testing.T) {
	child := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -S -n 100; ulimit -H -n 256; exec "$0"`, os.Args[0])
	child.Env = append(os.Environ(), limitedVariable+"=1")
	child.Stderr = os.Stderr
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		input.Close()
		if err := child.Wait(); err != nil {
			t.Error(err)
		}
	}()
	var address string
	if _, err := fmt.Fscan(output, &address); err != nil {
		t.Fatal(err)
	}
	early := dial(t, address, "127.0.0.1")
	get := func(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n" }
	early.says("GET /files HTTP/1.1\r\n")
	for range 400 {
		dial(t, address, "127.0.0.1")
	}
	for range 3 {
		one := dial(t, address, "127.0.0.1")
		one.says(get("/healthz"))
		one.hears(http.StatusOK)
	}
	early.says("Host: x\r\n\r\n")
	early.hears(http.StatusOK)
	other := dial(t, address, "127.0.0.2")
	other.says(get("/files"))
	other.hears(http.StatusOK)
}

// BenchmarkFront measures what the front costs a small request beside net/http.
func BenchmarkFront(b *testing.B) {
	h := http.HandlerFunc(reads)
	for name, front := range map[string]http.Handler{"bare": h, "front": onlyHealth(ordinary.keep(h))} {
		b.Run(name, func(b *testing.B) {
			s := httptest.NewUnstartedServer(front)
			if name == "front" {
				s.Listener = newConnections(s.Listener, 1000)
				s.Config.ConnState, s.Config.ReadTimeout = watch, ordinary.pause
			}
			s.Start()
			defer s.Close()
			client := s.Client()
			text := strings.Repeat("x", 1000)
			for b.Loop() {
				answer, err := client.Post(s.URL, "text/plain", strings.NewReader(text))
				if err != nil {
					b.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
}
