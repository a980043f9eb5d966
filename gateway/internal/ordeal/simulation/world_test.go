package simulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// world is one seed: a gateway that can crash and come back, its two backends, and its clients.
type world struct {
	*scheduler
	plan  plan
	fault fault
	home  string // folders of the servers

	server    *server
	servers   int // that were started
	processes int
	crashed   int
	clients   []*client
	calm      bool // nothing goes wrong any more
	calmed    time.Time
	restart   time.Time
	violated  []string
	checks    sync.WaitGroup // that run beside the scheduler
	damage    *damage        // set: files are damaged before the next start

	mu      sync.Mutex // of processes, up, clock and what clients note for others
	up      *server    // that answers clients
	offset  time.Duration
	latest  time.Time       // the highest time that the wall clock has shown
	saved   []*saved        // checkpoints that clients know of
	deleted map[string]bool // paths whose deletion somebody has asked for

	// Of the scheduler's goroutine alone.
	cut   map[int]time.Time    // clients that do not reach the gateway, and until when
	down  map[string]time.Time // models without a process, and when they get one
	jumps int
}

// server is one life of the gateway.
type server struct {
	w         *world
	number    int
	dir       string
	disk      *disk
	store     store.Store
	core      *runs.Core
	booted    chan error // buffered
	stopped   chan error // buffered; nil while it was not told to stop
	stopping  bool       // guarded by the world's mu
	dead      bool       // guarded by the scheduler's mu
	processes map[string]*process
	changed   chan struct{} // closed and replaced when a process is there
	over      chan struct{} // closed when it is gone, and with it the connections of requests that nobody waits for

	background sync.WaitGroup // of what faults do
}

func (of *server) isDead() bool {
	of.w.scheduler.mu.Lock()
	defer of.w.scheduler.mu.Unlock()
	return of.dead
}

// violation notes that a promise was broken.
func (w *world) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if w.damage.difference(text) {
		return
	}
	w.note("VIOLATION: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.violated) < 5 {
		w.violated = append(w.violated, text)
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.violated) > 0
}

// now is the wall clock.
func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now().Add(w.offset)
	if now.After(w.latest) {
		w.latest = now
	}
	return now
}

// short periods have what happens seldom happen in a short life.
const (
	sessionExpiry = 5 * time.Minute
	resultsKept   = 10 * time.Minute
)

// start begins a life of the gateway over a data directory. It goes on in the background, for it waits for the scheduler, too.
func (w *world) start(dir string) {
	w.servers++
	of := &server{
		w: w, number: w.servers, dir: dir, booted: make(chan error, 1), processes: map[string]*process{}, changed: make(chan struct{}), over: make(chan struct{}),
	}
	of.disk = newDisk(w, of, dir)
	w.server = of
	w.note("gateway %d starts", of.number)
	for _, model := range models {
		w.startProcess(of, model)
	}
	go func() { of.booted <- of.open() }()
}

func (of *server) open() (err error) {
	ctx := context.Background()
	slog.SetDefault(slog.New(logged{of})) // the store's lines go there
	if of.store, err = store.Open(ctx, store.Options{Dir: of.dir, SegmentBytes: 16 << 10, Reserve: -1, InlineBytes: 300, Disk: of.disk}); err != nil {
		return fmt.Errorf("open the store: %w", err)
	}
	var served []runs.Model
	for _, name := range models {
		served = append(served, runs.Model{Name: name, NewStopMatcher: func(stops []string) runs.StopMatcher { return &letters{stops: stops} }})
	}
	of.core, err = runs.Open(ctx, runs.Config{
		Store: &records{of.store, of}, DataDir: of.dir, Models: served, Backends: of, Logger: slog.New(logged{of}), Now: of.w.now,
		SessionExpiry: sessionExpiry, ResultsKept: resultsKept, MaxPassBytes: 4 << 10, MaxRunningSample: 3, MaxHotSnapshots: 1, MaxFrozen: 2, PointEvery: 20 * time.Second, PointOperations: 5, DiskShare: 1,
	})
	if err != nil {
		return fmt.Errorf("open the core: %w", err)
	}
	of.w.recovered(of)
	return nil
}

// letters takes token n for the n-th letter.
type letters struct {
	stops []string
	text  string
}

func (l *letters) Push(token int32) bool {
	l.text += string('A' + token)
	for _, s := range l.stops {
		if strings.Contains(l.text, s) {
			return true
		}
	}
	return false
}

// says leads the lines of the log in a trace.
const says = "    gateway "

// logged puts the core's log lines into the trace.
type logged struct{ of *server }

func (l logged) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l logged) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l logged) WithGroup(string) slog.Handler                    { return l }
func (l logged) Handle(_ context.Context, r slog.Record) error {
	if l.of.isDead() {
		return nil
	}
	var b strings.Builder
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s", a); return true })
	l.of.w.damage.logged(r.Level, r.Message+b.String())
	l.of.w.note("%s%d: %s %s%s", says, l.of.number, r.Level, r.Message, b.String())
	return nil
}

// crash ends the gateway at once, with its backends, and after a power cut with what was not on the disk.
func (w *world) crash(power bool) {
	of := w.server
	w.crashed++
	w.note("gateway %d CRASHES (power %v)", of.number, power)
	dir := filepath.Join(w.home, fmt.Sprint(w.servers+1))
	mustBe(os.MkdirAll(dir, 0o700))
	of.disk.copyTo(dir, power, w.random)
	w.abandon(of)
	w.restart = time.Now().Add(while(w.random))
	w.server = nil
}

// abandon lets everything of a server that has crashed come to its end. What it still writes nobody reads.
func (w *world) abandon(of *server) {
	w.mu.Lock()
	w.up = nil
	w.mu.Unlock()
	w.releaseAll(of)
	w.mu.Lock()
	processes := of.processes
	w.mu.Unlock()
	for _, model := range models {
		if p := processes[model]; p != nil {
			p.end()
		}
	}
	if of.stopped != nil {
		<-of.stopped
	} else {
		<-of.booted
		of.close()
	}
	close(of.over)
	of.background.Wait()
	mustBe(os.RemoveAll(of.dir))
}

func (of *server) close() error {
	var err error
	if of.core != nil {
		err = of.core.Close(context.Background())
	}
	if of.store != nil {
		err = errors.Join(err, of.store.Close())
	}
	return err
}

// stop has the gateway end as it should: in the background, since it waits for the scheduler.
func (w *world) stop() {
	of := w.server
	w.note("gateway %d is told to stop", of.number)
	w.mu.Lock()
	w.up, of.stopping = nil, true
	w.mu.Unlock()
	of.stopped = make(chan error, 1)
	go func() { of.stopped <- of.close() }()
}

// ended takes note of the end of a gateway that was told to stop.
func (w *world) ended(err error) {
	of := w.server
	if err != nil {
		w.violation("gateway %d does not stop well: %v", of.number, err)
	}
	of.stopped <- nil
	dir := filepath.Join(w.home, fmt.Sprint(w.servers+1))
	mustBe(os.MkdirAll(dir, 0o700))
	of.disk.copyTo(dir, false, w.random)
	w.note("gateway %d has stopped", of.number)
	w.abandon(of)
	w.server = nil
	w.restart = time.Now()
}

// checkpointOf reads what the store has of a checkpoint.
func checkpointOf(rec store.Record) (cp struct {
	runs.CheckpointInfo
	Dir string
}) {
	mustBe(json.Unmarshal(rec.Value, &cp))
	return cp
}
