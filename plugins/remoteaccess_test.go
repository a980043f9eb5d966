package plugins_test

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/plugintest/authority"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

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
			way, a := m.attachOver(1)
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

// A process that is gone has crashed, unless another one comes and says that somebody else ended it.
func TestCrashed(t *testing.T) {
	for _, c := range []struct {
		name  string
		again bool
		fault string
		want  bool
	}{
		{"gone", false, "", true},
		{"another one after a fault", true, "SIGSEGV: segmentation violation", true},
		{"another one after an end from outside", true, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := serve(t, nil)
			m.options.Listen = m.Address()
			a := m.attach(1)
			way, b := m.attachOver(2)
			<-a.Done()
			way.Cut()
			<-b.Done()
			m.stop()
			if err := os.WriteFile(filepath.Join(m.options.Data, "fault"), []byte(c.fault), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.again {
				m.start()
			} else {
				way.Close() // as the port is with the process
			}
			if got := b.Crashed(t.Context()); got != c.want {
				t.Errorf("crashed: %v, want %v", got, c.want)
			}
			b.Close()
			if !c.again {
				m.start()
			}
		})
	}
}

// Files that were brought once are not brought again while they are kept; a kept file that is damaged is.
func TestKeptFiles(t *testing.T) {
	m := serve(t, nil)
	way, a := m.attachOver(1)
	b := m.load(a, `, "hidden_size": 256`)
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
