// Package supervisor keeps one backend plugin process running: it starts the program, or attaches to one on another machine, loads the model, watches, restarts with growing pauses, gives up
// after too many crashes and says why, and ends. It knows the contract of package plugins and processes; it knows no run, no request and no HTTP.
//
// A new process has none of the former one's adapters. Whoever needs them subscribes to boots and rebuilds.
package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Config says what to run. Durations and counts that are zero take the default.
type Config struct {
	Name     string              // the served model, for messages
	Program  string              // path of the plugin program
	Load     plugins.LoadRequest // how each process is loaded
	LockFile string              // held by the process as long as it lives, so that no second one starts beside it, also after this gateway was killed
	Sockets  string              // folder in which each process has one for its socket; its path has at most 77 bytes; default: the folder for temporary files
	Log      *slog.Logger        // default slog.Default()

	// Attach, unless nil, gives the process that is used next, in place of a start of Program: one on another machine. No try that fails counts as a crash, and tries have growing pauses, each of a random length. An error that is
	// plugins.ErrInvalid, ErrNotFound or ErrTooLarge is the end. Program, LockFile, Sockets, StartTimeout and ExitTimeout are not used.
	Attach func(context.Context) (Process, error)

	// Loaded, unless nil, is called with each process that has loaded the model, before it counts as ready. With an error it does not become ready.
	Loaded func(ctx context.Context, b plugins.Backend, model plugins.ModelInfo) error

	StartTimeout    time.Duration // from start to handshake; 1 minute
	LoadTimeout     time.Duration // between two signs of progress while loading; 5 minutes
	StatusTimeout   time.Duration // between two status reports; ProgressTimeout, but at most 30 seconds
	ProgressTimeout time.Duration // allowed plugins.Status.LastProgressAge; 5 minutes
	ExitTimeout     time.Duration // from the end of the lifeline to SIGKILL; 5 seconds
	FirstPause      time.Duration // before the first restart, doubled for each further crash within CrashWindow; 1 second
	LongestPause    time.Duration // 2 minutes
	CrashLimit      int           // that many crashes within CrashWindow are the end; 5
	CrashWindow     time.Duration // 10 minutes

	prepare func(*exec.Cmd) // of tests
}

// Process is one process with a backend while it is used: a plugin that was started here, or one that was attached to. Its methods may be called concurrently.
type Process interface {
	// Backend is the backend; its calls fail with plugins.ErrBackendLost once the process is lost.
	Backend() plugins.Backend
	// Kill ends its use at once, for a reason that errors will have.
	Kill(reason string)
	// End ends its use, after that time at the latest, and returns when nothing is left of it. It may be called again.
	End(patience time.Duration)
	// Ending says how it ended, in a few words, and Explain with everything that is known of it. It has ended.
	Ending() string
	Explain() string
	// Outside tells whether somebody else ended it, or the connection to it: not we, not a fault of its own. It has ended.
	Outside() bool
}

// Phase is what a Supervisor is doing.
type Phase string

// The phases.
const (
	Starting   Phase = "starting"   // the first process is being started
	Loading    Phase = "loading"    // the model is being loaded: State.Progress
	Ready      Phase = "ready"      // Backend gives a backend
	Restarting Phase = "restarting" // the process was lost: State.Reason; the next start is due at State.NextStart, or under way
	Failed     Phase = "failed"     // given up: State.Reason
	Stopped    Phase = "stopped"    // by Close, or not yet started
)

// State is a snapshot for health checks and metrics.
type State struct {
	Phase      Phase
	Since      time.Time
	Progress   plugins.LoadProgress // while loading
	Info       plugins.Info         // of the present process, once it is known
	Model      plugins.ModelInfo    // of the last process that was ready
	Status     plugins.Status       // the last report of the present process; LastProgressAge without the time in which the process was stopped
	Reported   time.Time            // when it came, or when the process became ready if that was later than the last; zero before
	Stalled    string               // while ready: why the process seems to hang and will be killed if it goes on; "" if it does not
	Reason     string               // why the last process was lost, or what is waited for, as devices that are being opened; "" if nothing ever happened
	Loss       string               // why the last process was lost, also when there is another since; "" if none was
	StderrTail string               // the last 8 KiB that the last lost process wrote
	Restarts   int                  // restarts since Start
	NextStart  time.Time            // while restarting
}

// devicesOpen is what a model waits for that is being loaded while its devices are opened.
const devicesOpen = "its devices are being opened"

// reason is Reason or, where nothing ever happened, what a load waits for.
func (s *State) reason() string {
	if s.Reason == "" && s.Phase == Loading && s.Progress.Stage == plugins.StageOpen {
		return devicesOpen
	}
	return s.Reason
}

// Event tells a subscriber that a process became ready (Err is nil) or was lost (Err satisfies errors.Is with plugins.ErrBackendLost).
type Event struct {
	BootID  string
	Backend plugins.Backend
	Model   plugins.ModelInfo
	Err     error
	Outside bool // of a loss: somebody else ended the process, so that its end says nothing about the work that it had
	// Leaving is of a boot, and closed when the process has been asked to end and waits until it is given back with Release; both nil where processes do not say so.
	Leaving <-chan struct{}
	Release func(reason string)
}

// Leaver is a Process that says when it has been asked to end, and waits a while for what it has to be taken elsewhere.
type Leaver interface {
	Leaving() <-chan struct{}
	// Lose gives the process back, for a reason that errors will have.
	Lose(reason string)
}

// booted tells of a process that is ready.
func booted(p Process, bootID string, model plugins.ModelInfo) Event {
	e := Event{BootID: bootID, Backend: p.Backend(), Model: model}
	if l, ok := p.(Leaver); ok {
		e.Leaving, e.Release = l.Leaving(), l.Lose
	}
	return e
}

// Supervisor runs one plugin. Its methods may be called concurrently.
type Supervisor struct {
	config   Config
	log      *slog.Logger
	checksum []byte
	closing  atomic.Bool
	cancel   context.CancelFunc
	finished chan struct{} // closed when run has returned

	configuring sync.Mutex // held from before a running process is told a configuration until the next ones have it, and while one becomes ready; taken before notify
	notify      sync.Mutex // held while subscribers are called, so that they see events in order; taken before mu

	mu          sync.Mutex
	state       State
	changed     chan struct{}   // closed and replaced at every change of phase
	current     Process         // while ready
	crashes     []time.Time     // within CrashWindow
	lostAt      time.Time       // when the last process that was ready was lost
	forgiven    time.Time       // crashes until then do not count
	later       json.RawMessage // a configuration that came while no process was ready, for the next one; nil = none
	published   int             // processes that became ready
	subscribers map[int]func(Event)
	nextID      int
	observers   []func()
}

// New checks the configuration and remembers the program's checksum: if the file changes while the gateway runs, it is not started again.
func New(c Config) (*Supervisor, error) {
	setDefault(&c.StartTimeout, time.Minute)
	setDefault(&c.LoadTimeout, 5*time.Minute)
	setDefault(&c.ProgressTimeout, 5*time.Minute)
	setDefault(&c.StatusTimeout, max(min(c.ProgressTimeout, 30*time.Second), 5*time.Second)) // reports come once a second, and one may be late
	setDefault(&c.ExitTimeout, 5*time.Second)
	setDefault(&c.FirstPause, time.Second)
	setDefault(&c.LongestPause, 2*time.Minute)
	setDefault(&c.CrashLimit, 5)
	setDefault(&c.CrashWindow, 10*time.Minute)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	s := &Supervisor{finished: make(chan struct{}), state: State{Phase: Stopped, Since: time.Now()}, changed: make(chan struct{}), subscribers: map[int]func(Event){}}
	if c.Attach == nil {
		program, sum, err := programSum(c.Program)
		if err != nil {
			return nil, err
		}
		c.Program, s.checksum, c.Log = program, sum, c.Log.With("plugin", filepath.Base(program))
	}
	s.config, s.log = c, c.Log.With("model", c.Name)
	return s, nil
}

// programSum is a program's absolute path and its checksum.
func programSum(path string) (program string, sum []byte, err error) {
	if program, err = filepath.Abs(path); err != nil {
		return "", nil, fmt.Errorf("plugin program: %w", err)
	}
	f, err := os.Open(program)
	if err != nil {
		return "", nil, fmt.Errorf("plugin program: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", nil, fmt.Errorf("plugin program %s: %w", program, err)
	}
	return program, h.Sum(nil), nil
}

func setDefault[T comparable](to *T, value T) {
	var zero T
	if *to == zero {
		*to = value
	}
}

// Start begins to run the plugin and returns at once. It is called once; the end of ctx ends the running as Close does.
func (s *Supervisor) Start(ctx context.Context) {
	ctx, s.cancel = context.WithCancel(ctx)
	s.change(func(st *State) { st.Phase = Starting })
	go s.run(ctx)
}

// Close ends the process, with whatever it is doing, and returns when it is gone. Nothing is restarted from the moment of the call on. Whoever wants a result that the process has not given yet must have waited for it:
// work that is in a journal is done by the next process.
func (s *Supervisor) Close() {
	if s.cancel == nil {
		return
	}
	s.closing.Store(true)
	s.cancel()
	<-s.finished
}

// ErrLater says that no process could be told a configuration, and that the next one is told when it is ready, unless a newer one comes before.
var ErrLater = errors.New("the backend is not ready, and is configured when it is")

// Configure changes the configuration of the running process, and of those that are started after it, and gives the keys that have changed: none, and no process is asked, if section is what holds already, byte for byte. When
// the running one refuses, nothing changes and the error says why. While none runs, or it is lost meanwhile, the error is ErrLater; what the next process says to it is logged, and one that refuses goes on as it is.
func (s *Supervisor) Configure(ctx context.Context, section json.RawMessage) ([]string, error) {
	s.configuring.Lock()
	defer s.configuring.Unlock()
	s.mu.Lock()
	holds := s.later == nil && bytes.Equal(section, s.config.Load.Config)
	s.mu.Unlock()
	if holds {
		return nil, nil
	}
	changed, err := s.tellConfiguration(ctx, section)
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := plugins.KindOf(err); k == plugins.KindUnavailable || k == plugins.KindBackendLost {
		if phase := s.state.Phase; s.closing.Load() || phase == Failed || phase == Stopped {
			return nil, err
		}
		s.later = section
		return nil, ErrLater
	}
	if err == nil {
		s.config.Load.Config = section
	}
	return changed, err
}

// tellConfiguration has the running process take a configuration over.
func (s *Supervisor) tellConfiguration(ctx context.Context, section json.RawMessage) ([]string, error) {
	b, _, err := s.Backend()
	if err != nil {
		return nil, err
	}
	res, err := b.Configure(ctx, plugins.ConfigureRequest{Config: section})
	return res.Changed, err
}

// Backend gives the running backend and the id of its process. While there is none, the error satisfies errors.Is with plugins.ErrUnavailable and says why.
func (s *Supervisor) Backend() (plugins.Backend, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && !s.closing.Load() {
		return s.current.Backend(), s.state.Info.BootID, nil
	}
	return nil, "", &plugins.Error{Kind: plugins.KindUnavailable, Message: s.describe()}
}

// describe says in one sentence why there is no backend. mu is held.
func (s *Supervisor) describe() string {
	text := fmt.Sprintf("the backend of %s is %s", s.config.Name, s.state.Phase)
	switch {
	case s.closing.Load():
		return fmt.Sprintf("the backend of %s is shutting down", s.config.Name)
	case s.state.Phase == Loading && s.state.Progress.Total > 0:
		return fmt.Sprintf("%s: %d %%", text, 100*s.state.Progress.Done/s.state.Progress.Total)
	case s.state.reason() != "":
		return text + ": " + s.state.reason()
	}
	return text
}

// State gives a snapshot.
func (s *Supervisor) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.state
	st.Stalled, st.Reason = s.stalled(time.Now()), st.reason()
	return st
}

// stallShare of the time after which a process is killed is what a process may be silent or without progress before it counts as stalled.
const stallShare = 10

// stalled says why a process that is ready seems to hang. mu is held.
func (s *Supervisor) stalled(now time.Time) string {
	if s.state.Phase != Ready || s.state.Reported.IsZero() {
		return ""
	}
	silent := now.Sub(s.state.Reported)
	// Reports come once a second.
	if silent > max(s.config.StatusTimeout/stallShare, 2*time.Second) {
		return fmt.Sprintf("no report for %v; after %v it is killed and started again", silent.Round(time.Second), s.config.StatusTimeout)
	}
	if age := s.state.Status.LastProgressAge; age > s.config.ProgressTimeout/stallShare {
		return fmt.Sprintf("no progress for %v while work waits; after %v it is killed and started again", age.Round(time.Second), s.config.ProgressTimeout)
	}
	return ""
}

// Wait returns nil when the backend is ready, an error when it has failed or was stopped, or ctx's error.
func (s *Supervisor) Wait(ctx context.Context) error {
	for {
		s.mu.Lock()
		phase, changed, text := s.state.Phase, s.changed, s.describe()
		s.mu.Unlock()
		switch phase {
		case Ready:
			return nil
		case Failed, Stopped:
			return &plugins.Error{Kind: plugins.KindUnavailable, Message: text}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Subscribe calls f at every boot and loss, in order and one at a time, and at once if a backend is ready. f must return soon, and must not call
// Subscribe, Configure or Close. The result ends the subscription; a call that has begun may still be running then.
func (s *Supervisor) Subscribe(f func(Event)) (unsubscribe func()) {
	s.notify.Lock()
	defer s.notify.Unlock()
	s.mu.Lock()
	id := s.nextID
	s.nextID++
	s.subscribers[id] = f
	var now *Event
	if s.current != nil {
		e := booted(s.current, s.state.Info.BootID, s.state.Model)
		now = &e
	}
	s.mu.Unlock()
	if now != nil {
		f(*now)
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.subscribers, id)
	}
}

// tell calls the subscribers. notify is held, mu is not.
func (s *Supervisor) tell(e Event) {
	s.mu.Lock()
	ids := slices.Sorted(maps.Keys(s.subscribers))
	var all []func(Event)
	for _, id := range ids {
		all = append(all, s.subscribers[id])
	}
	s.mu.Unlock()
	for _, f := range all {
		f(e)
	}
}

// Observe calls f whenever State says something else than before, but for how long ago something was. f must return at once, and must not call Observe.
// It cannot be taken back.
func (s *Supervisor) Observe(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.observers = append(slices.Clip(s.observers), f)
}

// observed calls the observers. mu is not held.
func (s *Supervisor) observed() {
	s.mu.Lock()
	all := s.observers
	s.mu.Unlock()
	for _, f := range all {
		f()
	}
}

// change edits the state, and wakes Wait if the phase is another.
func (s *Supervisor) change(edit func(*State)) {
	s.mu.Lock()
	before := s.state
	edit(&s.state)
	if s.state.Phase != before.Phase {
		s.state.Since = time.Now()
		close(s.changed)
		s.changed = make(chan struct{})
	}
	same := before.look() == s.state.look()
	s.mu.Unlock()
	if !same {
		s.observed()
	}
}

// look is what somebody sees of a state who watches it: everything that changes by work and not by time alone.
type look struct {
	phase        Phase
	progress     plugins.LoadProgress
	boot         string
	status       plugins.Status
	reason, loss string
	restarts     int
}

func (s *State) look() look {
	l := look{s.Phase, s.Progress, s.Info.BootID, s.Status, s.Reason, s.Loss, s.Restarts}
	l.status.Time, l.status.LastProgressAge = time.Time{}, 0
	return l
}

// run starts one process after the other.
func (s *Supervisor) run(ctx context.Context) {
	defer close(s.finished)
	defer s.cancel()
	failures := 0 // tries since the last process that became ready
	for {
		before := s.readyCount()
		err, tail, outside := s.runOnce(ctx)
		if failures++; s.readyCount() != before {
			failures = 0
		}
		if ctx.Err() != nil || s.closing.Load() {
			s.change(func(st *State) { st.Phase, st.Reason = Stopped, "" })
			return
		}
		now := time.Now()
		crashes := s.countLoss(now, outside)
		reason := err.Error()
		switch {
		case errors.Is(err, plugins.ErrInvalid), errors.Is(err, plugins.ErrNotFound), errors.Is(err, plugins.ErrTooLarge): // the same configuration would be refused again
			s.log.Error("backend refused to load", "error", err)
			s.fail(reason, tail)
			return
		case crashes >= s.config.CrashLimit:
			s.log.Error("backend crashed too often and is not restarted", "crashes", crashes, "within", s.config.CrashWindow, "error", err)
			s.fail(fmt.Sprintf("%d crashes within %v, not restarted; the last: %s", crashes, s.config.CrashWindow, reason), tail)
			return
		}
		shift := max(crashes-1, 0)
		if s.config.Attach != nil {
			shift = max(shift, failures-1)
		}
		pause := s.config.LongestPause
		if shift < 20 {
			pause = min(pause, s.config.FirstPause<<shift)
		}
		if s.config.Attach != nil { // others wait for the same machine, or for the same network
			pause -= rand.N(pause/2 + 1)
		}
		s.log.Error("backend lost, will be restarted", "pause", pause, "error", err)
		s.change(func(st *State) {
			st.Phase, st.Reason, st.Loss, st.StderrTail, st.NextStart, st.Info = Restarting, reason, reason, tail, now.Add(pause), plugins.Info{}
			st.Restarts++
		})
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			s.change(func(st *State) { st.Phase, st.Reason = Stopped, "" })
			return
		}
	}
}

// readyCount is how many processes became ready.
func (s *Supervisor) readyCount() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.published
}

// countLoss gives the number of crashes that count within the window, this loss included unless it is somebody else's doing.
func (s *Supervisor) countLoss(now time.Time, outside bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := now
	if !s.lostAt.IsZero() {
		at, s.lostAt = s.lostAt, time.Time{}
	}
	if !outside {
		s.crashes = append(s.crashes, at)
	}
	s.crashes = slices.DeleteFunc(s.crashes, func(t time.Time) bool { return now.Sub(t) > s.config.CrashWindow || !t.After(s.forgiven) })
	return len(s.crashes)
}

// Forgive takes the crashes so far out of the count that ends in Failed: their cause was found and does not come again.
func (s *Supervisor) Forgive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgiven = time.Now()
}

func (s *Supervisor) fail(reason, tail string) {
	unused := false
	s.change(func(st *State) { // at once, so that no configuration is put off between them
		unused, s.later = s.later != nil, nil
		st.Phase, st.Reason, st.StderrTail, st.Info = Failed, reason, tail, plugins.Info{}
	})
	if unused {
		s.log.Error("the configuration that came while the backend was not ready was not taken over: no backend became ready")
	}
}

// next gives the process that is used next. With an error comes whether it says nothing about the process.
func (s *Supervisor) next(ctx context.Context, out *output) (Process, bool, error) {
	if s.config.Attach != nil {
		p, err := s.config.Attach(ctx)
		return p, true, err
	}
	p, outside, err := s.launch(ctx, out)
	return p, outside, err
}

// runOnce runs one process from start to end and tells why it ended, what it wrote last, and whether somebody else ended it.
func (s *Supervisor) runOnce(ctx context.Context) (err error, tail string, outside bool) {
	out := &output{log: s.log}
	p, outside, err := s.next(ctx, out)
	if err != nil {
		return fmt.Errorf("start: %w", err), out.last(), outside
	}
	defer func() {
		p.End(s.config.ExitTimeout)
		tail, outside = out.last(), p.Outside()
	}()
	s.change(func(st *State) { st.Status, st.Reported = plugins.Status{}, time.Time{} })
	watchCtx, stopWatching := context.WithCancel(ctx)
	ended := make(chan struct{}) // the status stream
	go func() {
		defer close(ended)
		s.watch(watchCtx, p)
	}()
	defer func() {
		stopWatching()
		<-ended
	}()
	s.mu.Lock()
	request := s.config.Load
	s.mu.Unlock()
	info, model, err := s.load(ctx, p, request)
	if err == nil {
		err = s.publish(ctx, p, request, info, model)
	}
	switch {
	case errors.Is(err, plugins.ErrBackendLost):
		return fmt.Errorf("load: the process was lost: %s", p.Ending()), "", false
	case err != nil:
		return fmt.Errorf("load: %w", err), "", false
	}

	<-ended
	s.change(func(st *State) {
		st.Phase, st.Reason, s.current = Restarting, "the status stream ended", nil
		s.lostAt = time.Now()
	})
	p.End(s.config.ExitTimeout) // whatever ended the stream, this process is not used any more
	s.notify.Lock()
	defer s.notify.Unlock()
	s.tell(Event{
		BootID: info.BootID, Backend: p.Backend(), Model: model, Outside: p.Outside(),
		Err: &plugins.Error{Kind: plugins.KindBackendLost, Message: "the backend process was lost: " + p.Explain()},
	})
	return fmt.Errorf("the process was lost: %s", p.Ending()), "", false
}

// load asks who the process is and has it load the model; without any progress for long it is killed.
func (s *Supervisor) load(ctx context.Context, p Process, request plugins.LoadRequest) (plugins.Info, plugins.ModelInfo, error) {
	s.change(func(st *State) { st.Phase, st.Progress = Loading, plugins.LoadProgress{} })
	silence := watchdogAfter(s.config.LoadTimeout, func() { p.Kill(fmt.Sprintf("killed after %v without progress in loading", s.config.LoadTimeout)) })
	defer silence.stop()
	info, err := p.Backend().Info(ctx)
	if err != nil {
		return info, plugins.ModelInfo{}, err
	}
	s.change(func(st *State) { st.Info = info })
	model, err := p.Backend().Load(ctx, request, func(lp plugins.LoadProgress) {
		silence.reset()
		s.change(func(st *State) { st.Progress = lp })
	})
	if err == nil && s.config.Loaded != nil {
		silence.reset()
		err = s.config.Loaded(ctx, p.Backend(), model)
	}
	return info, model, err
}

// publish makes a process that was loaded as request says the one that is ready, and tells the subscribers. If the configuration has changed while it was loaded, it is told the new one before; so it is one that came
// while no process was ready, which it may refuse.
func (s *Supervisor) publish(ctx context.Context, p Process, request plugins.LoadRequest, info plugins.Info, model plugins.ModelInfo) error {
	s.configuring.Lock()
	defer s.configuring.Unlock()
	s.mu.Lock()
	section, later := s.config.Load.Config, s.later
	s.mu.Unlock()
	if !bytes.Equal(section, request.Config) {
		if _, err := p.Backend().Configure(ctx, plugins.ConfigureRequest{Config: section}); err != nil {
			return fmt.Errorf("the configuration that came meanwhile: %w", err)
		}
	}
	if later != nil {
		res, err := p.Backend().Configure(ctx, plugins.ConfigureRequest{Config: later})
		switch {
		case errors.Is(err, plugins.ErrBackendLost) || ctx.Err() != nil:
			return err
		case err != nil:
			s.log.Error("the configuration that came while the backend was not ready was not taken over", "error", err)
			later = section
		default:
			s.log.Info("backend configured", "changed", res.Changed)
		}
		s.mu.Lock()
		s.config.Load.Config, s.later = later, nil
		s.mu.Unlock()
	}
	s.log.Info("backend ready", "boot_id", info.BootID, "architecture", model.Architecture, "parameters", model.Parameters, "device", model.Device)
	s.notify.Lock()
	defer s.notify.Unlock()
	s.change(func(st *State) {
		st.Phase, st.Model, st.NextStart, st.Reported, s.current = Ready, model, time.Time{}, time.Now(), p
		s.published++
	})
	s.tell(booted(p, info.BootID, model))
	return nil
}

// watch follows the status stream until it ends, and kills a process that does not report or makes no progress.
func (s *Supervisor) watch(ctx context.Context, p Process) {
	silence := watchdogAfter(s.config.StatusTimeout, func() { p.Kill(fmt.Sprintf("killed after %v without a status report", s.config.StatusTimeout)) })
	defer silence.stop()
	telling := make(chan struct{})
	var teller sync.WaitGroup
	teller.Go(func() { s.tellStalls(telling) })
	defer teller.Wait()
	defer close(telling)
	idle := standstill{longest: max(s.config.StatusTimeout/3, 2*time.Second)} // several reports' worth, and no more than the silence for which it is killed
	err := p.Backend().Status(ctx, func(st plugins.Status) {
		silence.reset()
		st.LastProgressAge = idle.reported(st.LastProgressAge)
		s.change(func(state *State) { state.Status, state.Reported = st, time.Now() })
		if st.LastProgressAge > s.config.ProgressTimeout {
			p.Kill(fmt.Sprintf("killed after %v without progress while work was waiting", st.LastProgressAge.Round(time.Second)))
		}
	})
	s.log.Debug("status stream ended", "error", err)
}

// tellStalls says in the log when the process begins to hang and when it goes on, until done is closed.
func (s *Supervisor) tellStalls(done <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	hangs := false
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		s.mu.Lock()
		why := s.stalled(time.Now())
		s.mu.Unlock()
		switch {
		case why != "" && !hangs:
			s.log.Warn("the backend hangs", "reason", why)
		case why == "" && hangs:
			s.log.Info("the backend goes on")
		}
		if hangs != (why != "") {
			s.observed()
		}
		hangs = why != ""
	}
}
