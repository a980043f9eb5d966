package plugins_test

import (
	"context"
	"crypto/tls"
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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

const remoteConfig = `{"vocab_size": 64, "max_context_length": 64, "max_rank": 8, "delays": [%s]}`

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

// load loads the model, with delays of operations.
func (m *machine) load(a *plugins.Attachment, delays string) plugins.Backend {
	m.Helper()
	b := a.Backend()
	if _, err := b.Load(m.Context(), plugins.LoadRequest{Name: "test", Config: json.RawMessage(fmt.Sprintf(remoteConfig, delays))}, func(plugins.LoadProgress) {}); err != nil {
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
	const slow = `{"operation": "forward_backward", "seconds": 2}`
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

// Without a certificate of the authority, or with an old TLS, nobody gets as far as a call; nor does a gateway talk to a backend of another authority.
func TestStrangers(t *testing.T) {
	m := serve(t, nil)
	other := authority.New(t).Issue(t, "stranger")
	mine, err := m.client.Client("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := other.Client("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	old := mine.Clone()
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, c := range []struct {
		name   string
		config *tls.Config // nil: no TLS
		works  bool
	}{
		{"as it should be", mine, true},
		{"no TLS", nil, false},
		{"no certificate", &tls.Config{RootCAs: mine.RootCAs, ServerName: "127.0.0.1"}, false},
		{"another authority's certificate", &tls.Config{RootCAs: mine.RootCAs, Certificates: theirs.Certificates, ServerName: "127.0.0.1"}, false},
		{"TLS 1.2", old, false},
		{"a backend of another authority", &tls.Config{RootCAs: theirs.RootCAs, Certificates: mine.Certificates, ServerName: "127.0.0.1"}, false},
		{"a backend of another name", &tls.Config{RootCAs: mine.RootCAs, Certificates: mine.Certificates, ServerName: "example.org"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			secure := insecure.NewCredentials()
			if c.config != nil {
				secure = credentials.NewTLS(c.config)
			}
			conn, err := grpc.NewClient("passthrough:///"+m.Address(), grpc.WithTransportCredentials(secure))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := backendpb.NewRemoteClient(conn).Hello(t.Context(), &backendpb.HelloRequest{}); (err == nil) != c.works {
				t.Errorf("hello: %v", err)
			}
		})
	}
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "192.0.2.1:7000", ":0", "example.org:1"} {
		o := m.options
		o.Listen, o.TLS, o.Data = address, plugins.TLSFiles{}, t.TempDir()
		if _, err := plugins.Listen(fake.New(fake.Options{}), o); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s without TLS: %v", address, err)
		}
		if _, err := plugins.Attach(t.Context(), plugins.AttachRequest{Address: address, Gateway: "g", Number: 1}); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("to %s without TLS: %v", address, err)
		}
	}
	o := m.options
	if _, err := plugins.Listen(fake.New(fake.Options{}), o); err == nil || !strings.Contains(err.Error(), "another process's") {
		t.Errorf("a second process on the same data directory: %v", err)
	}
}

// What a gateway claims is checked before it has the backend.
func TestClaims(t *testing.T) {
	m := serve(t, func(o *plugins.ListenOptions) { o.Models = append(o.Models, t.TempDir()) })
	one := m.options.Models[0]
	good := m.request(1)
	good.Model = one
	for _, c := range []struct {
		name   string
		change func(*plugins.AttachRequest)
		want   string
	}{
		{"number 0", func(r *plugins.AttachRequest) { r.Number = 0 }, "claim.number"},
		{"no gateway", func(r *plugins.AttachRequest) { r.Gateway = "" }, "claim.gateway"},
		{"another plugin", func(r *plugins.AttachRequest) { r.Plugin = "single" }, "config.plugin"},
		{"which of two models", func(r *plugins.AttachRequest) { r.Model = "" }, "config.model: is required"},
		{"a model of nobody's", func(r *plugins.AttachRequest) { r.Model = "/etc" }, "config.model"},
		{"a path with dots", func(r *plugins.AttachRequest) { r.Model = one + "/../" + filepath.Base(one) }, "config.model"},
		{"another model's file", func(r *plugins.AttachRequest) { r.ModelFiles = map[string][]byte{"config.json": []byte("other")} }, "config.json in " + one},
		{"a file outside", func(r *plugins.AttachRequest) { r.ModelFiles = map[string][]byte{"../config.json": nil} }, "claim.model_files"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := good
			c.change(&r)
			if _, err := plugins.Attach(t.Context(), r); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	sum, err := plugins.ModelFileHash(filepath.Join(one, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	good.ModelFiles = map[string][]byte{"config.json": sum, "tokenizer.json": []byte("only the gateway has it")}
	a, err := plugins.Attach(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
}

// A link that goes silent, in one direction or both, or breaks, costs the lease on both sides; one that is slow does not. Then a higher number finds everything new.
func TestLinks(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*link.Link)
		want string // of the reason; "": the lease is kept
	}{
		{"slow", func(l *link.Link) { l.Delay(50 * time.Millisecond) }, ""},
		{"broken", (*link.Link).Cut, "connection broke"},
		{"silent", func(l *link.Link) { l.Hold(link.There, true); l.Hold(link.Back, true) }, "did not answer"},
		{"nothing gets there", func(l *link.Link) { l.Hold(link.There, true) }, ""},
		{"nothing comes back", func(l *link.Link) { l.Hold(link.Back, true) }, "did not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := serve(t, nil)
			way := link.New(t, m.Address())
			r := m.request(1)
			r.Address = way.Address()
			a, err := plugins.Attach(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			create(t, m.load(a, ""), "a")
			c.do(way)
			if c.name == "slow" {
				for position := range int64(20) { // longer than the lease without its renewals
					if _, err := forwardBackward(t.Context(), a.Backend(), "a", position+1); err != nil {
						t.Fatal(err)
					}
				}
				if a.Reason() != "" {
					t.Errorf("lost: %s", a.Reason())
				}
				return
			}
			<-a.Done()
			if !strings.Contains(a.Reason(), c.want) {
				t.Errorf("lost for %q, want %q", a.Reason(), c.want)
			}
			if a.Crashed(t.Context()) {
				t.Error("counts as a crash of the backend")
			}
			if _, err := forwardBackward(t.Context(), a.Backend(), "a", 1); !errors.Is(err, plugins.ErrBackendLost) {
				t.Errorf("a call: %v", err)
			}
			next := m.attach(2) // by another way
			create(t, m.load(next, ""), "a")
		})
	}
}

// A process that is gone, or is another one when it is asked, has crashed.
func TestCrashed(t *testing.T) {
	for _, again := range []bool{false, true} {
		m := serve(t, nil)
		m.options.Listen = m.Address()
		a := m.attach(1)
		way := link.New(t, m.Address())
		r := m.request(2)
		r.Address = way.Address()
		b, err := plugins.Attach(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		<-a.Done()
		way.Cut()
		<-b.Done()
		m.stop()
		if again {
			m.start()
		} else {
			way.Close() // as the port is with the process
		}
		if !b.Crashed(t.Context()) {
			t.Errorf("a lost process does not count as crashed; another one is there: %v", again)
		}
		b.Close()
		if !again {
			m.start()
		}
	}
}

// A backend that cannot be rid of what it was doing ends its process.
func TestHangs(t *testing.T) {
	m := serve(t, func(o *plugins.ListenOptions) { o.Patience = 1500 * time.Millisecond })
	a := m.attach(1)
	b := a.Backend()
	config := `{"vocab_size": 64, "max_context_length": 64, "max_rank": 8, "faults": [{"operation": "forward_backward", "n": 1, "action": "hang"}]}`
	if _, err := b.Load(t.Context(), plugins.LoadRequest{Name: "test", Config: json.RawMessage(config)}, func(plugins.LoadProgress) {}); err != nil {
		t.Fatal(err)
	}
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

// Files that were brought once are not brought again while they are kept; a kept file that is damaged is.
func TestKeptFiles(t *testing.T) {
	m := serve(t, nil)
	way := link.New(t, m.Address())
	r := m.request(1)
	r.Address = way.Address()
	a, err := plugins.Attach(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b := a.Backend()
	if _, err := b.Load(t.Context(), plugins.LoadRequest{Name: "m", Config: json.RawMessage(`{"hidden_size": 256}`)}, func(plugins.LoadProgress) {}); err != nil {
		t.Fatal(err)
	}
	create(t, b, "a")
	path := filepath.Join(t.TempDir(), "checkpoint")
	saved, err := b.SaveAdapter(t.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: path})
	if err != nil {
		t.Fatal(err)
	}
	load := func(id string) int64 {
		before := way.Sent.Load()
		if _, err := b.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: id, Path: path}); err != nil {
			t.Fatal(err)
		}
		return way.Sent.Load() - before
	}
	if sent := load("b"); sent < saved.Bytes {
		t.Errorf("%d bytes were sent for a checkpoint of %d", sent, saved.Bytes)
	}
	if sent := load("c"); sent >= saved.Bytes {
		t.Errorf("%d bytes were sent for a checkpoint of %d that is there", sent, saved.Bytes)
	}
	kept, err := filepath.Glob(filepath.Join(m.options.Data, "kept", "*"))
	if err != nil || len(kept) == 0 {
		t.Fatalf("%v kept, %v", kept, err)
	}
	for _, f := range kept {
		if err := os.WriteFile(f, []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if sent := load("d"); sent < saved.Bytes {
		t.Errorf("%d bytes were sent for a checkpoint of %d whose kept files were damaged", sent, saved.Bytes)
	}
	for _, folder := range []string{"received", "saved"} {
		if entries, err := os.ReadDir(filepath.Join(m.options.Data, folder)); err != nil || len(entries) != 0 {
			t.Errorf("%s has %v, %v", folder, entries, err)
		}
	}
}
