package plugins_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

// machine is a backend that is served to other machines.
type machine struct {
	*testing.T
	*plugins.Listener
	options plugins.ListenOptions
	client  plugins.TLSFiles
	backend *fake.Backend
	ended   chan error // why its process ends
	served  chan error
}

func serve(t *testing.T, change func(*plugins.ListenOptions)) *machine {
	t.Helper()
	ca := authority.New(t)
	m := &machine{T: t, client: ca.Issue(t, "gateway"), ended: make(chan error, 8), options: plugins.ListenOptions{
		Listen: "127.0.0.1:0", TLS: ca.Issue(t, "backend"), Data: t.TempDir(), Models: []string{t.TempDir()}, Keep: 1 << 20, Expiry: time.Second, Patience: 10 * time.Second,
	}}
	m.options.Exit = func(err error) { m.ended <- err }
	if err := os.WriteFile(filepath.Join(m.options.Models[0], "config.json"), []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&m.options)
	}
	m.start()
	t.Cleanup(m.stop)
	return m
}

// start is a new process on the same data directory.
func (m *machine) start() {
	m.Helper()
	var err error
	m.backend = fake.New(fake.Options{})
	if m.Listener, err = plugins.Listen(m.backend, m.options); err != nil {
		m.Fatal(err)
	}
	m.served = make(chan error, 1)
	go func() { m.served <- m.Serve() }()
}

func (m *machine) stop() {
	m.Stop("the test is over")
	if err := <-m.served; err != nil {
		m.Error(err)
	}
}

func (m *machine) request(number uint64) plugins.AttachRequest {
	return plugins.AttachRequest{Address: m.Address(), TLS: m.client, Gateway: fmt.Sprintf("gateway-%d", number), Number: number}
}

func (m *machine) attach(number uint64) *plugins.Attachment {
	m.Helper()
	a, err := plugins.Attach(m.Context(), m.request(number))
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(a.Close)
	return a
}

// attachOver attaches by a link that can be disturbed.
func (m *machine) attachOver(number uint64) (*link.Link, *plugins.Attachment) {
	m.Helper()
	way := link.New(m.T, m.Address())
	r := m.request(number)
	r.Address = way.Address()
	a, err := plugins.Attach(m.Context(), r)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(a.Close)
	return way, a
}

// load loads the model, with further keys of its configuration.
func (m *machine) load(a *plugins.Attachment, more string) plugins.Backend {
	m.Helper()
	b := a.Backend()
	if _, err := b.Load(m.Context(), plugins.LoadRequest{Name: "test", Config: json.RawMessage(`{"vocab_size": 64, "max_context_length": 64, "max_rank": 8` + more + `}`)}, func(plugins.LoadProgress) {}); err != nil {
		m.Fatal(err)
	}
	return b
}

var remoteDatum = plugins.Datum{Tokens: []int32{1, 2, 3, 4}, Targets: []int32{2, 3, 4, 5}, K: 1, Weights: []float32{1, 1, 0.5, 1}}

func create(t *testing.T, b plugins.Backend, adapter string) {
	t.Helper()
	c := plugins.AdapterConfig{Rank: 2, Seed: 7, TrainAttention: true, TrainMLP: true, TrainUnembed: true}
	if _, err := b.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: adapter, Config: c}); err != nil {
		t.Fatal(err)
	}
}

func forwardBackward(ctx context.Context, b plugins.Backend, adapter string, position int64) (plugins.ForwardBackwardResult, error) {
	return b.ForwardBackward(ctx, plugins.ForwardBackwardRequest{Adapter: adapter, Position: position, Data: []plugins.Datum{remoteDatum}, Loss: "cross_entropy"})
}

// awaitQueued returns when an operation is queued, or runs.
func awaitQueued(t *testing.T, b plugins.Backend) {
	t.Helper()
	for queued := false; !queued; {
		ctx, stop := context.WithCancel(t.Context())
		_ = b.Status(ctx, func(s plugins.Status) {
			queued = queued || s.QueuedTraining > 0
			stop()
		})
	}
}

// results are those of a training and a sample, by all bits.
func results(t *testing.T, b plugins.Backend) string {
	t.Helper()
	create(t, b, "a")
	var all []any
	for step := range int64(3) {
		r, err := forwardBackward(t.Context(), b, "a", 2*step+1)
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: 2*step + 2, Adam: plugins.AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r.Logprobs, s.Version, s.Step, s.Metrics["grad_norm"])
	}
	err := b.Sample(t.Context(), plugins.SampleRequest{
		ID: "s", Adapter: "a", Version: plugins.LatestVersion, Prompt: []int32{1, 2, 3}, NumSamples: 2, MaxTokens: 5, Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: 3, PrefixScope: "scope",
	}, func(e plugins.SampleEvent) error {
		if e.Tokens != nil {
			all = append(all, e.Tokens.Sequence, e.Tokens.Tokens, e.Tokens.Logprobs)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", all)
}

// The second gateway finds nothing of the first, whatever that left under way, and its results are those of a new process.
func TestNextLeaseIsNew(t *testing.T) {
	m := serve(t, nil)
	first := m.attach(1)
	b := m.load(first, "")
	info, err := b.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := results(t, b)
	create(t, b, "waiting")
	path := filepath.Join(t.TempDir(), "checkpoint")
	if _, err := b.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: path}); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{})
	left := make(chan error, 3)
	go func() { // waits for position 1
		_, err := forwardBackward(t.Context(), b, "waiting", 2)
		left <- err
	}()
	go func() { // so does a load, which has brought its files
		_, err := b.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: "waiting", Position: 3, Path: path})
		left <- err
	}()
	go func() {
		first := true
		left <- b.Sample(t.Context(), plugins.SampleRequest{
			ID: "long", Prompt: []int32{1}, NumSamples: 2, MaxTokens: 60, Temperature: 1, TopP: 1, RepetitionPenalty: 1,
		}, func(plugins.SampleEvent) error {
			if first {
				first = false
				close(begun)
			}
			<-m.Context().Done() // nobody reads on
			return context.Canceled
		})
	}()
	<-begun
	first.Close()
	for range 2 {
		if err := <-left; !errors.Is(err, plugins.ErrBackendLost) {
			t.Errorf("a call that was under way gave %v", err)
		}
	}
	second := m.attach(2)
	b = m.load(second, "")
	again, err := b.Info(t.Context())
	if err != nil || again.BootID == info.BootID || again.BootID == "" {
		t.Errorf("boot ids %q, %q, %v; want two", info.BootID, again.BootID, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	_ = b.Status(ctx, func(s plugins.Status) {
		stop()
		if s.BootID != again.BootID || s.Adapters != 0 || s.QueuedTraining != 0 || s.RunningSamples != 0 {
			t.Errorf("status at the beginning: %+v", s)
		}
	})
	if entries, err := os.ReadDir(filepath.Join(m.options.Data, "received")); err != nil || len(entries) != 0 {
		t.Errorf("received files are left: %v, %v", entries, err)
	}
	if got := results(t, b); got != want {
		t.Errorf("under the second lease\n%s\nunder the first\n%s", got, want)
	}
	select {
	case err := <-m.ended:
		t.Errorf("the process ended: %v", err)
	default:
	}
}

// A higher number takes the backend over from a gateway that lives, whose calls then are refused, the one that runs too; lower and equal numbers are refused, by another process as well.
func TestTakeover(t *testing.T) {
	m := serve(t, nil)
	first := m.attach(5)
	const slow = `, "delays": [{"operation": "forward_backward", "seconds": 2}]`
	b := m.load(first, slow)
	create(t, b, "a")
	running := make(chan error, 1)
	go func() {
		_, err := forwardBackward(t.Context(), b, "a", 1)
		running <- err
	}()
	awaitQueued(t, b)
	for _, number := range []uint64{4, 5} {
		_, err := plugins.Attach(t.Context(), m.request(number))
		if !errors.Is(err, plugins.ErrUnavailable) || !strings.Contains(err.Error(), `"gateway-5" with lease 5`) {
			t.Errorf("number %d: %v, want a refusal that names the holder", number, err)
		}
	}
	second := m.attach(6)
	if err := <-running; !errors.Is(err, plugins.ErrBackendLost) || !strings.Contains(err.Error(), `taken over by gateway "gateway-6" with lease 6`) {
		t.Errorf("the call that ran: %v", err)
	}
	<-first.Done()
	if !strings.Contains(first.Reason(), "taken over") || first.Crashed(t.Context()) {
		t.Errorf("the first lease ended for %q, a crash: %v", first.Reason(), first.Crashed(t.Context()))
	}
	if _, err := b.Info(t.Context()); !errors.Is(err, plugins.ErrBackendLost) {
		t.Errorf("a call of the first: %v", err)
	}
	// A call that the first has sent before and that arrives only now.
	config, err := m.client.Client("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	late, err := grpc.NewClient("passthrough:///"+m.Address(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	for name, ctx := range map[string]context.Context{
		"the first's number": metadata.AppendToOutgoingContext(t.Context(), "tinsmith-lease", "5"), "no number": t.Context(), "no such number": metadata.AppendToOutgoingContext(t.Context(), "tinsmith-lease", "x"),
		"two numbers": metadata.AppendToOutgoingContext(t.Context(), "tinsmith-lease", "6", "tinsmith-lease", "6"), "the highest": metadata.AppendToOutgoingContext(t.Context(), "tinsmith-lease", "7"),
	} {
		if _, err := backendpb.NewBackendClient(late).DeleteAdapter(ctx, &backendpb.DeleteAdapterRequest{Adapter: "a"}); err == nil {
			t.Errorf("%s: a call was let in", name)
		}
		stream, err := backendpb.NewRemoteClient(late).GetFiles(ctx, &backendpb.GetFilesRequest{Name: "x"})
		if err == nil {
			_, err = stream.Recv()
		}
		if err == nil || !strings.Contains(err.Error(), "lease") {
			t.Errorf("%s: a stream was let in: %v", name, err)
		}
	}
	create(t, m.load(second, slow), "a")
	second.Close()
	m.stop()
	m.start()
	if _, err := plugins.Attach(t.Context(), m.request(6)); !errors.Is(err, plugins.ErrUnavailable) || !strings.Contains(err.Error(), "lease 6") {
		t.Errorf("the next process: %v, want a refusal that names the number", err)
	}
	m.attach(7)
}

// A backend that cannot be rid of what it was doing ends its process.
func TestHangs(t *testing.T) {
	m := serve(t, func(o *plugins.ListenOptions) { o.Patience = 1500 * time.Millisecond })
	a := m.attach(1)
	b := m.load(a, `, "faults": [{"operation": "forward_backward", "n": 1, "action": "hang"}]`)
	create(t, b, "a")
	t.Cleanup(m.backend.Lose)
	called := make(chan struct{})
	go func() {
		defer close(called)
		_, _ = forwardBackward(t.Context(), b, "a", 1)
	}()
	awaitQueued(t, b)
	a.Close()
	<-called
	if err := <-m.ended; !strings.Contains(err.Error(), "lease 1") {
		t.Errorf("it ended for %v", err)
	}
	if _, err := plugins.Attach(t.Context(), m.request(2)); !errors.Is(err, plugins.ErrUnavailable) {
		t.Errorf("the next gateway: %v", err)
	}
}

// A process loads one model; for another one, or after a load that failed, there has to be another process.
func TestAnotherModel(t *testing.T) {
	for _, c := range []struct {
		name        string
		first, next plugins.LoadRequest
		loads, ends bool
	}{
		{"the same", plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{}`)}, plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{}`)}, true, false},
		{"the same in other words", plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{}`)}, plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{ }`)}, true, false},
		{"another name", plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{}`)}, plugins.LoadRequest{Name: "n", Config: json.RawMessage(`{}`)}, true, true},
		{"another configuration", plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{}`)}, plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{"seed": 3}`)}, true, true},
		{"after a failure", plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{"seed": "x"}`)}, plugins.LoadRequest{}, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := serve(t, nil)
			a := m.attach(1)
			first, err := a.Backend().Load(t.Context(), c.first, func(plugins.LoadProgress) {})
			if (err == nil) != c.loads {
				t.Fatal(err)
			}
			a.Close()
			if c.loads {
				next, err := m.attach(2).Backend().Load(t.Context(), c.next, func(plugins.LoadProgress) {})
				if (err != nil) != c.ends || err == nil && !reflect.DeepEqual(first, next) {
					t.Errorf("the next load: %+v, %v; the first %+v", next, err, first)
				}
			}
			if c.ends {
				<-m.ended
			}
		})
	}
}
