package attach

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

// pluginName is a name of the test binary under which it is a plugin.
const pluginName = "fake-plugin"

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		plugins.Serve(fake.New(fake.Options{}))
		return
	}
	goleak.VerifyTestMain(m)
}

// elsewhere is a backend of another machine, and the gateway's files of its model.
func elsewhere(t *testing.T, model string) (*plugins.Listener, Config) {
	t.Helper()
	ca := authority.New(t)
	l, err := plugins.Listen(fake.New(fake.Options{}), plugins.ListenOptions{
		Listen: "127.0.0.1:0", TLS: ca.Issue(t, "backend"), Data: t.TempDir(), Models: []string{modelDir(t, model)}, Expiry: 2 * time.Second, Exit: func(err error) { t.Error(err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- l.Serve() }()
	t.Cleanup(func() {
		l.Stop("the test is over")
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l, Config{Address: l.Address(), TLS: ca.Issue(t, "gateway"), Plugin: "fake", ModelDir: modelDir(t, "{}"), Leases: NewLeases("here", 7)}
}

func modelDir(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func supervised(t *testing.T, c Config) (*supervisor.Supervisor, chan supervisor.Event) {
	t.Helper()
	s, err := supervisor.New(supervisor.Config{Name: "m", Load: plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{"vocab_size": 32}`)}, Attach: To(c), FirstPause: time.Millisecond, LongestPause: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	events := make(chan supervisor.Event, 100)
	s.Subscribe(func(e supervisor.Event) { events <- e })
	s.Start(t.Context())
	t.Cleanup(s.Close)
	return s, events
}

// A backend elsewhere gives the events of one that was started here: ready, lost with the reason, ready as another; more losses of the link than crashes are allowed do not end it.
func TestSupervised(t *testing.T) {
	l, c := elsewhere(t, "{}")
	way := link.New(t, l.Address())
	c.Address = way.Address()
	s, events := supervised(t, c)
	first := <-events
	if first.Err != nil || first.Model.VocabSize != 32 {
		t.Fatalf("the first event: %+v", first)
	}
	boots := map[string]bool{first.BootID: true}
	for range 7 {
		way.Cut()
		lost := <-events
		if !errors.Is(lost.Err, plugins.ErrBackendLost) || !lost.Outside || !strings.Contains(lost.Err.Error(), "connection broke") {
			t.Fatalf("the loss: %+v", lost)
		}
		again := <-events
		if again.Err != nil || boots[again.BootID] {
			t.Fatalf("it came back as %+v; boot ids before: %v", again, boots)
		}
		boots[again.BootID] = true
	}
	if st := s.State(); st.Phase != supervisor.Ready || st.Restarts < 7 || !strings.Contains(st.Loss, "connection broke") {
		t.Errorf("state %+v", st)
	}
	if changed, err := s.Configure(t.Context(), json.RawMessage(`{ "vocab_size": 32}`)); err != nil || len(changed) != 0 {
		t.Errorf("configured: %v, %v", changed, err)
	}
}

// Another gateway with a higher epoch takes the backend, and this one does not get it back.
func TestReplaced(t *testing.T) {
	_, c := elsewhere(t, "{}")
	old, events := supervised(t, c)
	<-events
	c.Leases = NewLeases("there", 8)
	_, theirs := supervised(t, c)
	if e := <-theirs; e.Err != nil {
		t.Fatal(e.Err)
	}
	if e := <-events; e.Err == nil || !strings.Contains(e.Err.Error(), `taken over by gateway "there"`) {
		t.Errorf("the loss: %v", e.Err)
	}
	for !strings.Contains(old.State().Reason, `belongs to gateway "there"`) {
		time.Sleep(time.Millisecond)
	}
	select {
	case e := <-theirs:
		t.Errorf("the new one was disturbed: %+v", e)
	default:
	}
}

// What only another configuration helps against is not tried again.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		model  string // the backend's config.json
		change func(*Config)
		want   string
	}{
		{"another model", `{"vocab_size": 5}`, func(*Config) {}, "the two have different models"},
		{"another plugin", "{}", func(c *Config) { c.Plugin = "single" }, "config.plugin"},
		{"another directory", "{}", func(c *Config) { c.Model = "/none" }, "config.model"},
		{"no certificate", "{}", func(c *Config) { c.Address, c.TLS = "192.0.2.1:7000", plugins.TLSFiles{} }, "config.address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, config := elsewhere(t, c.model)
			c.change(&config)
			s, _ := supervised(t, config)
			if err := s.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) || s.State().Phase != supervisor.Failed {
				t.Errorf("got %v in phase %s, want %q", err, s.State().Phase, c.want)
			}
		})
	}
}

// Epochs rise with each start and with the clock, and are in the store before they are used.
func TestEpochs(t *testing.T) {
	dir := t.TempDir()
	var last uint32
	for i, c := range []struct {
		now  int64
		want uint32
	}{{1000, 1000}, {1000, 1001}, {5, 1002}, {5000, 5000}, {math.MaxUint32, math.MaxUint32}} {
		s, err := store.Open(t.Context(), store.Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		got, err := Epoch(t.Context(), s, time.Unix(c.now, 0))
		if err != nil || got != c.want || got <= last {
			t.Errorf("start %d at %d: epoch %d, %v; want %d", i, c.now, got, err, c.want)
		}
		last = got
		if c.want == math.MaxUint32 {
			if _, err := Epoch(t.Context(), s, time.Unix(5, 0)); err == nil {
				t.Error("there is an epoch above the last")
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	l := NewLeases("g", 2)
	if a, b := number(t, l), number(t, l); a != 2<<32|1 || b != a+1 {
		t.Errorf("numbers %x, %x", a, b)
	}
	l = LaterLeases("waiting")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := l.next(ctx); err == nil {
		t.Errorf("a lease before it begins: %x", n)
	}
	l.Begin(3)
	if a := number(t, l); a != 3<<32|1 {
		t.Errorf("number %x", a)
	}
}

func number(t *testing.T, l *Leases) uint64 {
	t.Helper()
	n, err := l.next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return n
}
