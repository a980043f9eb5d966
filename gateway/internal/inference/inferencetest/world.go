// Package inferencetest puts together what tests of surfaces stand on: the real HTTP server, core and service, with the built-in model's tokenizer and template, over a
// backend in this process that says what a test wants, or random text. It knows no surface: a test names its routes.
package inferencetest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// The served model. Tests are two folders below the gateway's packages: ModelDir is relative to theirs.
const (
	ModelName  = "tinsmith/tiny-chat"
	ModelAlias = "test/alias+1"
	ModelDir   = "../../../configs/models/tiny-chat"
)

// Options say what a test wants otherwise.
type Options struct {
	Backend string // fields of the backend's configuration, each followed by a comma
	Chat    string // of the model's configuration
	Keys    string // path of a keys file
	Dir     string // of the model; "" = ModelDir
	Change  func(*runs.Config)
	// Routes of the surfaces.
	Routes func(*inference.Service) []func(gin.IRouter)
}

// World is a server with everything below it. It is closed when its test ends.
type World struct {
	testing.TB
	Core    *runs.Core
	Answers *inference.Service
	Auth    *keys.Authenticator
	Model   *catalog.Model
	Backend *fake.Backend
	URL     string
	Client  *http.Client
	Info    plugins.ModelInfo

	boot   string
	script *atomic.Pointer[[]string] // what the sequences of a request say, in place of random text
}

// New makes a world.
func New(t testing.TB, o Options) *World {
	t.Helper()
	w := &World{TB: t, script: &atomic.Pointer[[]string]{}, Client: &http.Client{Transport: &http.Transport{}}}
	w.Backend = fake.New(fake.Options{Exit: func(int) {}, Say: w.say})
	dir, err := filepath.Abs(cmp.Or(o.Dir, ModelDir))
	w.OK(err)
	w.Info, err = w.Backend.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: ModelName, Config: json.RawMessage(`{` + o.Backend + `"hidden_size": 4}`), Scratch: t.TempDir()}, func(plugins.LoadProgress) {})
	w.OK(err)
	about, err := w.Backend.Info(t.Context())
	w.OK(err)
	w.boot = about.BootID
	cfg := config.DefaultModel()
	cfg.Name, cfg.Aliases, cfg.Path = ModelName, []string{ModelAlias}, dir
	if o.Chat != "" {
		cfg.Chat = o.Chat
	}
	w.Model, err = catalog.Load(cfg, dir)
	w.OK(err)
	vocabulary := plugins.Vocabulary{Ends: w.Model.EndTokens}
	for id := range int32(w.Model.Tokenizer.VocabSize()) {
		vocabulary.Tokens = append(vocabulary.Tokens, w.Model.Tokenizer.TokenBytes(id))
		vocabulary.Special = append(vocabulary.Special, w.Model.Tokenizer.IsAdded(id))
	}
	w.OK(w.Backend.SetVocabulary(t.Context(), vocabulary))
	data := t.TempDir()
	records, err := store.Open(t.Context(), store.Options{Dir: data})
	w.OK(err)
	coreConfig := runs.Config{Store: records, DataDir: data, Models: []runs.Model{w.Model.Served()}, Backends: backends{w}, GapWait: 50 * time.Millisecond, SweepEvery: time.Hour}
	if o.Change != nil {
		o.Change(&coreConfig)
	}
	w.Core, err = runs.Open(t.Context(), coreConfig)
	w.OK(err)
	ring, err := keys.Open(o.Keys)
	w.OK(err)
	w.Auth = &keys.Authenticator{Ring: ring, Tokens: keys.Tokens{Secret: bytes.Repeat([]byte{1}, 32), Lifetime: time.Hour}}
	w.Answers, err = inference.New(w.Core, w.Auth, []*catalog.Model{w.Model})
	w.OK(err)
	ts := httptest.NewServer(server.New(server.Options{Health: func() server.Health { return server.Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Routes: o.Routes(w.Answers)}))
	w.URL = ts.URL
	t.Cleanup(func() {
		w.Client.CloseIdleConnections()
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
		defer cancel()
		w.OK(w.Core.Close(ctx))
		ts.Close()
		w.OK(records.Close())
		w.Backend.Lose()
	})
	return w
}

// backends are the one of a world.
type backends struct{ *World }

// Backend implements runs.Backends.
func (w backends) Backend(context.Context, string) (runs.Backend, error) {
	return runs.Backend{Backend: w.World.Backend, BootID: w.boot, Model: w.Info, Lost: make(chan struct{}), Reason: func() string { return "" }}, nil
}

// say is what a sequence says.
func (w *World) say(_ *plugins.SampleRequest, sequence int) []int32 {
	script := w.script.Load()
	if script == nil {
		return nil
	}
	ids, err := w.Model.Tokenizer.Encode((*script)[sequence%len(*script)]+"<|im_end|>", false)
	if err != nil {
		panic(err)
	}
	return ids
}

// Says has all answers from here on say something: the sequences of a request the texts in turn. Without a text they are random again.
func (w *World) Says(texts ...string) {
	if texts == nil {
		w.script.Store(nil)
		return
	}
	w.script.Store(&texts)
}

// On is the same world for a part of a test, which its failures belong to.
func (w *World) On(t testing.TB) *World {
	out := *w
	out.TB = t
	return &out
}

// OK ends the test with an error.
func (w *World) OK(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// Send sends a request and gives status, header and body of the answer.
func (w *World) Send(method, path, body string, header http.Header) (int, http.Header, []byte) {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, w.URL+path, strings.NewReader(body))
	w.OK(err)
	if header != nil {
		req.Header = header.Clone()
	}
	res, err := w.Client.Do(req)
	w.OK(err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	w.OK(err)
	return res.StatusCode, res.Header, b
}

// Eventually waits for a condition that must come true.
func (w *World) Eventually(condition func() bool) {
	w.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatal("it never became true")
		}
	}
}

// KeysFile makes a keys file and gives its path and the keys of the names.
func KeysFile(t testing.TB, names ...string) (string, map[string]string) {
	t.Helper()
	path, made := filepath.Join(t.TempDir(), "keys"), map[string]string{}
	for _, name := range names {
		key, err := keys.Add(path, name)
		if err != nil {
			t.Fatal(err)
		}
		made[name] = key
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatal(err)
	}
	return path, made
}

// Fields are a request's body in the making.
type Fields map[string]any

// With gives a copy with more fields; those of the same name are replaced.
func (f Fields) With(more Fields) Fields {
	out := Fields{}
	for _, part := range []Fields{f, more} {
		for k, v := range part {
			out[k] = v
		}
	}
	return out
}

// Text is the body.
func (f Fields) Text() string {
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return string(b)
}
