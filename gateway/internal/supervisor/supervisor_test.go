package supervisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// The test binary runs itself as plugin, or as a gateway that is to be killed, in the mode that this variable names.
const modeVariable = "SUPERVISOR_TEST_MODE"

// configuredVariable names the file that a configurable plugin writes.
const configuredVariable = "SUPERVISOR_TEST_CONFIGURED"

func TestMain(m *testing.M) {
	switch mode := os.Getenv(modeVariable); mode {
	case "":
		os.Exit(m.Run())
	case "gateway":
		runGateway()
	default:
		runPlugin(mode)
	}
}

// talkative prints to standard output, as a C library might, when it is asked for its name: that is before the handshake.
type talkative struct{ *fake.Backend }

func (b talkative) Info(ctx context.Context) (plugins.Info, error) {
	_, _ = syscall.Write(1, []byte("a line from below Go\n"))
	fmt.Println("a line from Go")
	return b.Backend.Info(ctx)
}

// patient takes longer to open its devices than a load may be silent, and says so meanwhile.
type patient struct{ *fake.Backend }

func (b patient) Load(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (plugins.ModelInfo, error) {
	for range 20 {
		progress(plugins.LoadProgress{Stage: plugins.StageOpen})
		time.Sleep(200 * time.Millisecond)
	}
	return b.Backend.Load(ctx, req, progress)
}

// configurable takes every configuration while it runs, unless that says otherwise, and writes the last one to a file.
type configurable struct{ *fake.Backend }

func (b configurable) Configure(_ context.Context, req plugins.ConfigureRequest) (plugins.ConfigureResult, error) {
	if bytes.Contains(req.Config, []byte("refuse")) {
		return plugins.ConfigureResult{}, plugins.Invalidf("config", "refused")
	}
	return plugins.ConfigureResult{}, os.WriteFile(os.Getenv(configuredVariable), req.Config, 0o600)
}

func runPlugin(mode string) {
	b := fake.New(fake.Options{})
	switch mode {
	case "fake":
		plugins.Serve(b)
	case "talkative":
		plugins.Serve(talkative{b})
	case "patient":
		plugins.Serve(patient{b})
	case "slow":
		time.Sleep(300 * time.Millisecond)
		plugins.Serve(b)
	case "exit":
		fmt.Fprintln(os.Stderr, "cannot go on: the dog ate the weights")
		os.Exit(3)
	case "mute": // never shakes hands and does not look at the lifeline
		fmt.Fprintln(os.Stderr, "thinking")
		select {}
	case "closed": // says nothing on standard output, and closes it
		fmt.Fprintln(os.Stderr, "nothing to say")
		_ = os.Stdout.Close()
		select {}
	case "killed": // before it shakes hands
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "configurable":
		plugins.Serve(configurable{b})
	case "babble":
		fmt.Println("hello")
		select {}
	}
}

// runGateway is the process in the middle of TestPluginEndsWithItsGateway.
func runGateway() {
	s, err := New(Config{Name: "test", Program: os.Args[0], LockFile: os.Args[1], prepare: inMode("fake")})
	if err == nil {
		s.Start(context.Background())
		err = s.Wait(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func inMode(mode string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(c.Env, modeVariable+"="+mode) }
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute) // a bound for a test that hangs
	t.Cleanup(cancel)
	return ctx
}

// newSupervisor makes one with short times and the given changes, and closes it at the test's end.
func newSupervisor(t *testing.T, mode string, change func(*Config)) *Supervisor {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := Config{
		Name: "test", Program: program, LockFile: filepath.Join(t.TempDir(), "lock"), Log: slog.New(slog.DiscardHandler), prepare: inMode(mode),
		FirstPause: time.Millisecond, LongestPause: 5 * time.Millisecond, ExitTimeout: time.Second, CrashLimit: 3,
	}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func fakeConfig(t *testing.T, c fake.Config) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func startReady(t *testing.T, s *Supervisor) (plugins.Backend, string) {
	t.Helper()
	s.Start(context.Background())
	if err := s.Wait(testContext(t)); err != nil {
		t.Fatalf("not ready: %v", err)
	}
	b, boot, err := s.Backend()
	if err != nil {
		t.Fatal(err)
	}
	return b, boot
}

// waitFailed waits for the phase failed and returns the state.
func waitFailed(t *testing.T, s *Supervisor) State {
	t.Helper()
	// A call may know of the end of its process before the supervisor does.
	err := s.Wait(testContext(t))
	for ctx := testContext(t); err == nil && ctx.Err() == nil; err = s.Wait(ctx) {
		time.Sleep(time.Millisecond)
	}
	if !errors.Is(err, plugins.ErrUnavailable) {
		t.Fatalf("Wait says %v, want that it is unavailable", err)
	}
	st := s.State()
	if st.Phase != Failed {
		t.Fatalf("phase %s, want %s", st.Phase, Failed)
	}
	if _, _, err := s.Backend(); !errors.Is(err, plugins.ErrUnavailable) || !strings.Contains(err.Error(), st.Reason) {
		t.Errorf("Backend says %v, want the reason %q", err, st.Reason)
	}
	return st
}

func TestWorks(t *testing.T) {
	for _, mode := range []string{"fake", "slow", "talkative"} {
		t.Run(mode, func(t *testing.T) {
			s := newSupervisor(t, mode, func(c *Config) { c.Load.Config = fakeConfig(t, fake.Config{VocabSize: 11}) })
			b, boot := startReady(t, s)
			info, err := b.Info(testContext(t))
			if err != nil || info.BootID != boot || info.Plugin != "fake" {
				t.Errorf("Info = %+v, %v; boot id of the supervisor %s", info, err, boot)
			}
			st := s.State()
			for ctx := testContext(t); st.Status.BootID == "" && ctx.Err() == nil; st = s.State() { // the first report may come after the model
				time.Sleep(time.Millisecond)
			}
			if st.Phase != Ready || st.Model.VocabSize != 11 || st.Status.BootID != boot || st.Progress.Stage != "ready" {
				t.Errorf("state %+v", st)
			}
			s.Close()
			if st := s.State(); st.Phase != Stopped {
				t.Errorf("phase %s after Close", st.Phase)
			}
			if _, err := b.Info(testContext(t)); !errors.Is(err, plugins.ErrBackendLost) {
				t.Errorf("Info after Close: %v, want that the backend is lost", err)
			}
		})
	}
}

// A load that goes on to say that devices are being opened is not ended, and what it waits for is told.
func TestLoadThatOpensDevices(t *testing.T) {
	s := newSupervisor(t, "patient", func(c *Config) { c.LoadTimeout = 3 * time.Second })
	s.Start(testContext(t))
	var st State
	for ctx := testContext(t); st.Progress.Stage != plugins.StageOpen && ctx.Err() == nil; st = s.State() {
		time.Sleep(time.Millisecond)
	}
	if _, _, err := s.Backend(); st.Phase != Loading || st.Reason != devicesOpen || !errors.Is(err, plugins.ErrUnavailable) || !strings.Contains(err.Error(), "is loading: its devices are being opened") {
		t.Errorf("state %+v; Backend says %v", st, err)
	}
	if err := s.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if st := s.State(); st.Phase != Ready || st.Restarts != 0 || st.Reason != "" {
		t.Errorf("state %+v", st)
	}
}

func TestNeverReady(t *testing.T) {
	for _, c := range []struct {
		mode, reason, tail string
		limit              int           // crashes after which it counts as failed
		start              time.Duration // as long as a process may need for what it says first on a busy machine
	}{
		{"exit", "3 crashes within", "the dog ate the weights", 3, time.Minute},
		{"mute", "timeout while waiting for plugin to start", "thinking", 1, 5 * time.Second},
		{"closed", "3 crashes within", "nothing to say", 3, time.Minute},
		{"babble", "Unrecognized remote plugin message: hello", "", 3, time.Minute},
	} {
		t.Run(c.mode, func(t *testing.T) {
			s := newSupervisor(t, c.mode, func(config *Config) {
				config.StartTimeout, config.CrashLimit = c.start, c.limit
			})
			s.Start(context.Background())
			st := waitFailed(t, s)
			if !strings.Contains(st.Reason, c.reason) || !strings.Contains(st.StderrTail, c.tail) || st.Restarts != c.limit-1 {
				t.Errorf("reason %q, standard error %q, %d restarts", st.Reason, st.StderrTail, st.Restarts)
			}
		})
	}
}

func TestRefusedLoadIsNotRepeated(t *testing.T) {
	s := newSupervisor(t, "fake", func(c *Config) { c.Load.Config = json.RawMessage(`{"device":"abacus"}`) })
	s.Start(context.Background())
	if st := waitFailed(t, s); st.Restarts != 0 || !strings.Contains(st.Reason, "abacus") {
		t.Errorf("%d restarts, reason %q", st.Restarts, st.Reason)
	}
}

// TestCrash loses a process in the middle of a call and gets a new one.
func TestCrash(t *testing.T) {
	var mu sync.Mutex
	var told []string // processes that had loaded
	s := newSupervisor(t, "fake", func(c *Config) {
		c.Load.Config = fakeConfig(t, fake.Config{VocabSize: 12, Faults: []fake.Fault{{Operation: "create_adapter", N: 1, Action: "crash", ExitCode: 7}}})
		c.Loaded = func(ctx context.Context, b plugins.Backend, model plugins.ModelInfo) error {
			info, err := b.Info(ctx)
			mu.Lock()
			defer mu.Unlock()
			told = append(told, info.BootID)
			if model.VocabSize != 12 {
				t.Errorf("told of a model with %d tokens, want 12", model.VocabSize)
			}
			return err
		}
	})
	var events []Event
	second := make(chan struct{})
	s.Subscribe(func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		if events = append(events, e); len(events) == 3 {
			close(second)
		}
	})
	b, boot := startReady(t, s)
	ctx := testContext(t)
	_, err := b.CreateAdapter(ctx, plugins.CreateAdapterRequest{Adapter: "a", Config: plugins.AdapterConfig{Rank: 1, TrainMLP: true}})
	if !errors.Is(err, plugins.ErrBackendLost) || !strings.Contains(err.Error(), "exit status 7") || !strings.Contains(err.Error(), "told to crash") {
		t.Errorf("error %v, want a lost backend with exit status and last words", err)
	}
	select {
	case <-second:
	case <-ctx.Done():
		t.Fatal("no second boot")
	}
	mu.Lock()
	defer mu.Unlock()
	if events[0].Err != nil || events[0].BootID != boot || !errors.Is(events[1].Err, plugins.ErrBackendLost) || events[1].BootID != boot || events[2].Err != nil || events[2].BootID == boot {
		t.Errorf("events %+v", events)
	}
	if len(told) != 2 || told[0] != boot || told[1] != events[2].BootID {
		t.Errorf("processes %v were told of as loaded, ready were %s and %s", told, boot, events[2].BootID)
	}
	st := s.State()
	if st.Restarts != 1 || !strings.Contains(st.Reason, "exit status 7") || !strings.Contains(st.StderrTail, "told to crash") {
		t.Errorf("state %+v", st)
	}
	late := 0
	s.Subscribe(func(e Event) {
		if e.BootID == events[2].BootID {
			late++
		}
	})()
	if late != 1 {
		t.Errorf("a late subscriber heard of %d boots, want 1", late)
	}
}

// TestKilledFromOutside ends processes again and again: what somebody else does to them is no crash and is not counted.
func TestKilledFromOutside(t *testing.T) {
	if plugins.OutOfMemoryKills() < 0 {
		t.Skip("the kernel does not tell which processes it ends for want of memory, so every kill counts as a crash")
	}
	const limit = 2
	for _, c := range []struct {
		name    string
		signal  syscall.Signal
		loading float64 // seconds
		phase   Phase   // in which the process is ended
		failed  string  // the reason of the end, "" if there is none
	}{
		{"killed", syscall.SIGKILL, 0, Ready, ""},
		{"killed while it loads", syscall.SIGKILL, 600, Loading, ""},
		{"fault of its own", syscall.SIGABRT, 0, Ready, "2 crashes within"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var newest *exec.Cmd
			s := newSupervisor(t, "fake", func(config *Config) {
				config.CrashLimit = limit
				config.StartTimeout, config.StatusTimeout = time.Hour, time.Hour // every restart is the test's doing, on a machine that stands still for minutes too
				config.prepare = func(cmd *exec.Cmd) {
					inMode("fake")(cmd)
					mu.Lock()
					newest = cmd
					mu.Unlock()
				}
				config.Load.Config = fakeConfig(t, fake.Config{Delays: []fake.Delay{{Operation: "load", Seconds: c.loading}}})
			})
			s.Start(context.Background())
			await := func(restarts int) (failed bool) {
				t.Helper()
				for ctx := testContext(t); ctx.Err() == nil; time.Sleep(time.Millisecond) {
					st := s.State()
					if st.Phase == Failed || st.Phase == c.phase && st.Restarts == restarts {
						return st.Phase == Failed
					}
				}
				t.Fatalf("no restart number %d: %+v", restarts, s.State())
				return false
			}
			for n := range limit + 1 {
				if await(n) {
					break
				}
				mu.Lock()
				err := newest.Process.Signal(c.signal)
				mu.Unlock()
				if err != nil {
					t.Fatal(err)
				}
			}
			if failed := await(limit + 1); failed != (c.failed != "") || !strings.Contains(s.State().Reason, c.failed) {
				t.Errorf("state %+v, want the reason %q", s.State(), c.failed)
			}
		})
	}
}

func TestKilledBeforeItShakesHands(t *testing.T) {
	if plugins.OutOfMemoryKills() < 0 {
		t.Skip("the kernel does not tell which processes it ends for want of memory, so every kill counts as a crash")
	}
	const limit = 2
	s := newSupervisor(t, "killed", func(c *Config) { c.CrashLimit, c.StartTimeout = limit, time.Hour })
	s.Start(context.Background())
	for ctx := testContext(t); s.State().Restarts <= limit; time.Sleep(time.Millisecond) {
		if st := s.State(); st.Phase == Failed || ctx.Err() != nil {
			t.Fatalf("state %+v: a process that somebody kills is started again", st)
		}
	}
}

// TestWatchdog ends a process that makes no progress, and one that says nothing any more.
func TestWatchdog(t *testing.T) {
	for _, c := range []struct {
		name   string
		config Config
		hang   func(t *testing.T, b plugins.Backend, s *Supervisor) error
		reason string
	}{
		{"no progress", Config{ProgressTimeout: time.Millisecond, StatusTimeout: time.Minute}, func(t *testing.T, b plugins.Backend, _ *Supervisor) error {
			_, err := b.Pin(testContext(t), plugins.PinRequest{Adapter: "a", Position: 1, Name: "p"})
			return err
		}, "without progress while work was waiting"},
		{"no status", Config{ProgressTimeout: 10 * time.Second}, func(t *testing.T, b plugins.Backend, s *Supervisor) error {
			s.mu.Lock()
			pid := s.current.(*process).cmd.Process.Pid
			s.mu.Unlock()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			for ctx := testContext(t); ; { // the signal may take a moment
				if _, err := b.Info(ctx); err != nil {
					return err
				}
			}
		}, "killed after 10s without a status report"},
		{"no progress in loading", Config{LoadTimeout: 2 * time.Second}, nil, "without progress in loading"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSupervisor(t, "fake", func(config *Config) {
				config.ProgressTimeout, config.StatusTimeout, config.LoadTimeout, config.CrashLimit = c.config.ProgressTimeout, c.config.StatusTimeout, c.config.LoadTimeout, 1
				operation := "pin"
				if c.hang == nil {
					operation = "load"
				}
				config.Load.Config = fakeConfig(t, fake.Config{Faults: []fake.Fault{{Operation: operation, N: 1, Action: "hang"}}})
			})
			if c.hang == nil {
				s.Start(context.Background())
			} else {
				b, _ := startReady(t, s)
				if _, err := b.CreateAdapter(testContext(t), plugins.CreateAdapterRequest{Adapter: "a", Config: plugins.AdapterConfig{Rank: 1, TrainMLP: true}}); err != nil {
					t.Fatal(err)
				}
				if err := c.hang(t, b, s); !errors.Is(err, plugins.ErrBackendLost) || !strings.Contains(err.Error(), c.reason) {
					t.Errorf("the call in flight got %v, want %q", err, c.reason)
				}
			}
			if st := waitFailed(t, s); !strings.Contains(st.Reason, c.reason) {
				t.Errorf("reason %q, want %q", st.Reason, c.reason)
			}
		})
	}
}

// TestStall sees a process that hangs, and one that says nothing, counted as stalled long before it would be killed.
func TestStall(t *testing.T) {
	for _, c := range []struct {
		name, want string
		hang       func(t *testing.T, b plugins.Backend, s *Supervisor)
	}{
		{"no progress", "no progress for", func(t *testing.T, b plugins.Backend, _ *Supervisor) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = b.Pin(ctx, plugins.PinRequest{Adapter: "a", Position: 1, Name: "p"}) // it hangs
			}()
			t.Cleanup(func() { cancel(); <-done })
		}},
		{"no status", "no report for", func(t *testing.T, _ plugins.Backend, s *Supervisor) {
			s.mu.Lock()
			pid := s.current.(*process).cmd.Process.Pid
			s.mu.Unlock()
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			told := make(chan string, 1) // what the log says of it
			s := newSupervisor(t, "fake", func(config *Config) {
				config.Log = slog.New(slog.NewTextHandler(lineWriter(func(line string) {
					if strings.Contains(line, "the backend hangs") {
						select {
						case told <- line:
						default:
						}
					}
				}), nil))
				config.ProgressTimeout, config.StatusTimeout = 10*time.Second, time.Hour
				if c.want == "no report for" {
					config.StatusTimeout = 30 * time.Second
				}
				config.Load.Config = fakeConfig(t, fake.Config{Faults: []fake.Fault{{Operation: "pin", N: 1, Action: "hang"}}})
			})
			b, _ := startReady(t, s)
			if _, err := b.CreateAdapter(testContext(t), plugins.CreateAdapterRequest{Adapter: "a", Config: plugins.AdapterConfig{Rank: 1, TrainMLP: true}}); err != nil {
				t.Fatal(err)
			}
			if st := s.State(); st.Stalled != "" {
				t.Fatalf("stalled at once: %s", st.Stalled)
			}
			c.hang(t, b, s)
			for ctx := testContext(t); s.State().Stalled == "" && ctx.Err() == nil; {
				time.Sleep(10 * time.Millisecond)
			}
			if st := s.State(); !strings.Contains(st.Stalled, c.want) || st.Phase != Ready {
				t.Errorf("phase %s, stalled %q, want %q", st.Phase, st.Stalled, c.want)
			}
			select {
			case line := <-told:
				if !strings.Contains(line, c.want) {
					t.Errorf("the log says %q", line)
				}
			case <-testContext(t).Done():
				t.Error("the log does not say that it hangs")
			}
		})
	}
}

// lineWriter is given every line of a log.
type lineWriter func(line string)

func (w lineWriter) Write(b []byte) (int, error) {
	w(string(b))
	return len(b), nil
}

// TestSocketFolder: the socket lies in the folder that the plugin is told of and nothing else does, because the plugin removes that folder when its gateway is killed; and so its path, of which a system takes some hundred bytes, is short.
func TestSocketFolder(t *testing.T) {
	s := newSupervisor(t, "fake", nil)
	startReady(t, s)
	s.mu.Lock()
	dir := s.current.(*process).socketDir
	s.mu.Unlock()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 1 || entries[0].Type() != os.ModeSocket {
		t.Errorf("in the folder: %v", entries)
	}
	s.Close()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder after Close: %v", err)
	}
}

// TestClose ends a process whatever it is doing, also one that is stopped and does not end by itself. What it had is lost with it, not waited for.
func TestClose(t *testing.T) {
	for _, c := range []struct {
		name    string
		stopped bool
	}{
		{"while a call runs that does not end", false},
		{"while the process is stopped", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSupervisor(t, "fake", func(config *Config) {
				if c.stopped {
					config.ExitTimeout = 50 * time.Millisecond
				}
				config.Load.Config = fakeConfig(t, fake.Config{Faults: []fake.Fault{{Operation: "sample", N: 1, Action: "hang"}}})
			})
			b, _ := startReady(t, s)
			result := make(chan error, 1)
			go func() {
				result <- b.Sample(testContext(t), plugins.SampleRequest{
					ID: "s", Prompt: []int32{1}, NumSamples: 1, MaxTokens: 1, Temperature: 1, TopP: 1, RepetitionPenalty: 1,
				}, func(plugins.SampleEvent) error { return nil })
			}()
			for ctx := testContext(t); s.State().Status.WaitingSamples+s.State().Status.RunningSamples == 0 && ctx.Err() == nil; {
				time.Sleep(time.Millisecond)
			}
			if c.stopped {
				s.mu.Lock()
				pid := s.current.(*process).cmd.Process.Pid
				s.mu.Unlock()
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			select {
			case <-b.(*plugins.Client).Done():
			default:
				t.Error("the process outlived Close")
			}
			if err := <-result; !errors.Is(err, plugins.ErrBackendLost) {
				t.Errorf("the call in flight: %v, want that the backend is lost", err)
			}
		})
	}
}

// TestPluginEndsWithItsGateway kills the process in the middle and sees the lock, which only the plugin holds, become free.
func TestPluginEndsWithItsGateway(t *testing.T) {
	lock := filepath.Join(t.TempDir(), "lock")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	gateway := exec.CommandContext(testContext(t), program)
	gateway.Args = []string{program, lock}
	gateway.Env = append(os.Environ(), modeVariable+"=gateway")
	out, err := gateway.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := gateway.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the gateway says %q, %v", line, err)
	}
	f, err := os.OpenFile(lock, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Fatalf("the lock of a running plugin: %v, want that it is held", err)
	}
	_ = gateway.Process.Kill()
	_ = gateway.Wait()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil { // waits for the plugin; the test's own time limit is the bound
		t.Fatal(err)
	}
}

// TestWaitsForTheLock starts while another process seems to be alive.
func TestWaitsForTheLock(t *testing.T) {
	s := newSupervisor(t, "fake", nil)
	f, err := os.OpenFile(s.config.LockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	s.Start(context.Background())
	ctx := testContext(t)
	for s.State().Reason == "" && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if st := s.State(); st.Phase != Starting || !strings.Contains(st.Reason, "previous backend process") {
		t.Errorf("phase %s, reason %q", st.Phase, st.Reason)
	}
	_ = f.Close()
	if err := s.Wait(ctx); err != nil {
		t.Error(err)
	}
}

func TestProgramMustNotChange(t *testing.T) {
	program := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(program, []byte("one"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := newSupervisor(t, "fake", func(c *Config) { c.Program, c.CrashLimit = program, 1 })
	if err := os.WriteFile(program, []byte("two"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.Start(context.Background())
	if st := waitFailed(t, s); !strings.Contains(st.Reason, "restart the gateway") {
		t.Errorf("reason %q", st.Reason)
	}
}

func TestNewWithoutProgram(t *testing.T) {
	if _, err := New(Config{Program: filepath.Join(t.TempDir(), "absent")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v, want that the file does not exist", err)
	}
}

func TestAllowedEnvironment(t *testing.T) {
	got := allowed([]string{"PATH=/bin", "HF_TOKEN=secret", "HF_HOME=/h", "CUDA_VISIBLE_DEVICES=0", "AWS_SECRET=x", "OTEL_SERVICE_NAME=y", "PATHOLOGY=z", "NCCL_DEBUG=INFO", "VIRTUAL_ENV=/v", "CONDA_PREFIX=/c"})
	want := "PATH=/bin HF_HOME=/h CUDA_VISIBLE_DEVICES=0 OTEL_SERVICE_NAME=y NCCL_DEBUG=INFO VIRTUAL_ENV=/v CONDA_PREFIX=/c"
	if strings.Join(got, " ") != want {
		t.Errorf("kept %v, want %s", got, want)
	}
}
