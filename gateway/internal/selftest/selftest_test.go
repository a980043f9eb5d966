package selftest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// folder takes the programs; only tests that need them build them.
var folder string

func TestMain(m *testing.M) {
	code := m.Run()
	if folder != "" {
		os.RemoveAll(folder)
	}
	os.Exit(code)
}

// build gives a folder with the server and its plugin beside it.
var build = sync.OnceValues(func() (string, error) {
	var err error
	if folder, err = os.MkdirTemp("", "tinsmith-selftest-"); err != nil {
		return "", err
	}
	for output, source := range map[string]string{"tinsmith": "./gateway", "plugins/single": "./backends/single"} {
		build := exec.Command("go", "build", "-o", filepath.Join(folder, output), source)
		build.Dir = filepath.Join("..", "..", "..")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", source, err, out)
		}
	}
	return folder, nil
})

// program is the server's.
func program(t *testing.T) string {
	t.Helper()
	dir, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "tinsmith")
}

const model = "tinsmith/tiny-chat"

// start starts a real server of the built-in model.
func start(t *testing.T) *Process {
	t.Helper()
	path, err := filepath.Abs("../../../configs/models/tiny-chat")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Start(t.Context(), program(t), t.TempDir(), map[string]any{
		"models":   []any{map[string]any{"name": model, "path": path, "backend": map[string]any{"plugin": "single", "device": "cpu", "dtype": "float32"}}},
		"training": map[string]any{"gap_wait": "1m"},
	}, 2*time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// lie changes one answer of a server.
type lie struct {
	check  string // during which check
	path   string // of which operation
	number int    // which of them, from 1 on
	change func(answer map[string]any)
	where  string // what the self-test has to say
}

// liar is a server with a proxy before it that lies once.
type liar struct {
	*Process
	proxy *httptest.Server

	mu      sync.Mutex
	current string
	lies    map[string]lie    // by check
	seen    map[string]int    // operations of the check, by path
	marked  map[string]lie    // answers that are to be changed, by request
	told    map[string]string // checks in which it has lied
}

func (l *liar) URL() string { return l.proxy.URL }

func (l *liar) begin(check string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.seen = check, map[string]int{}
}

func newLiar(t *testing.T, p *Process, lies []lie) *liar {
	l := &liar{Process: p, lies: map[string]lie{}, seen: map[string]int{}, marked: map[string]lie{}, told: map[string]string{}}
	for _, one := range lies {
		l.lies[one.check] = one
	}
	target, err := url.Parse(p.URL())
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	forward := &httputil.ReverseProxy{
		Transport:      transport,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: l.modify,
		ErrorHandler:   func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusServiceUnavailable) },
	}
	l.proxy = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/retrieve_future" {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			var f future
			_ = json.Unmarshal(b, &f)
			r = r.WithContext(context.WithValue(r.Context(), requestID{}, f.RequestID))
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(l.proxy.Close)
	return l
}

type requestID struct{}

func (l *liar) modify(answer *http.Response) error {
	path := answer.Request.URL.Path
	if answer.StatusCode != http.StatusOK || !strings.HasPrefix(path, "/api/v1/") {
		return nil
	}
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	answer.Body.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, _ := answer.Request.Context().Value(requestID{}).(string); id != "" {
		if one, ok := l.marked[id]; ok {
			var body map[string]any
			if err := json.Unmarshal(b, &body); err != nil {
				return err
			}
			one.change(body)
			if b, err = json.Marshal(body); err != nil {
				return err
			}
			l.told[one.check] = id
		}
	} else if one, ok := l.lies[l.current]; ok && one.path == path {
		var f future
		if json.Unmarshal(b, &f) == nil && f.RequestID != "" {
			if l.seen[path]++; l.seen[path] == one.number {
				l.marked[f.RequestID] = one
			}
		}
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	answer.Header.Set("Content-Length", fmt.Sprint(len(b)))
	return nil
}

// at leads to a list of numbers in an answer.
func at(answer any, path ...any) []any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			answer = answer.(map[string]any)[step]
		case int:
			answer = answer.([]any)[step]
		}
	}
	return answer.([]any)
}

// nudge moves one value by its last bit.
func nudge(values []any, i int) {
	values[i] = float64(math.Nextafter32(float32(values[i].(float64)), 0))
}

func nudgePass(answer map[string]any) {
	nudge(at(answer, "loss_fn_outputs", 0, "logprobs", "data"), 2)
}

// A server that changes one answer by the last bit of one value is found out, by the place and both values, check by check. One that keeps its promises passes: that is tested with the command, in e2e/tinker/test_selftest.py.
func TestSelfTest(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, before) }) // when everything has ended
	p := start(t)
	reference, err := MakeReference(t.Context(), Options{Server: p, Model: model, Patience: time.Minute, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}

	lies := []lie{
		{"order", "/api/v1/forward_backward", 6, nudgePass, "sent without waiting, step 2, log-probabilities of sequence 0, position 2"},
		{"accumulation", "/api/v1/forward", 3, func(answer map[string]any) {
			at(answer, "loss_fn_outputs", 3, "logprobs", "data")[1] = -99.0
		}, "after 2 steps, sequence 3, position 1"},
		{"crowd", "/api/v1/asample", 1, func(answer map[string]any) { nudge(at(answer, "sequences", 1, "logprobs"), 0) }, "beside others, sample 1, log-probabilities, position 0"},
		{"agreement", "/api/v1/asample", 2, func(answer map[string]any) { nudge(at(answer, "sequences", 1, "logprobs"), 0) }, "prompt 1, sample 1: the sampler beside the trainer, position 0"},
		{"plugin killed", "/api/v1/forward_backward", 10, nudgePass, "after a kill of the plugin, with a gradient held, step 4, log-probabilities of sequence 0, position 2"},
		{"server killed", "/api/v1/forward", 3, nudgePass, "after a kill of the server, with operations under way, the trained adapter, log-probabilities of sequence 0, position 2"},
		{"export", "/api/v1/asample", 1, func(answer map[string]any) { nudge(at(answer, "prompt_logprobs"), 4) }, "the sampler of the imported adapter, position 4"},
		{"reference", "/api/v1/asample", 3, func(answer map[string]any) { nudge(at(answer, "prompt_logprobs"), 1) }, "sequence 2 of the reference, position 1"},
	}
	l := newLiar(t, p, lies)
	checks, h, err := Run(t.Context(), Options{Server: l, Model: model, Patience: time.Minute, Dir: t.TempDir(), Reference: reference, Progress: l.begin})
	if err != nil {
		t.Fatal(err)
	}
	if h.Arithmetic == "" || h.Device != "cpu" || h.DType != "float32" {
		t.Errorf("state %+v", h)
	}
	if len(checks) != len(lies) {
		t.Errorf("%d checks, and %d lies", len(checks), len(lies))
	}
	for _, c := range checks {
		one := l.lies[c.Name]
		switch {
		case l.told[c.Name] == "":
			t.Errorf("%s: the answer that was to be changed never came", c.Name)
		case c.Result != differs || c.Difference == nil:
			t.Errorf("%s: a changed answer was not found: %+v", c.Name, c)
		case c.Difference.Where != one.where || c.Difference.Expected == c.Difference.Got:
			t.Errorf("%s: difference %+v, want it at %q", c.Name, *c.Difference, one.where)
		}
	}
}

// What a model's directory or the machine does not allow is an error with the server's own words.
func TestServerThatDoesNotStart(t *testing.T) {
	_, err := Start(t.Context(), program(t), t.TempDir(), map[string]any{
		"models": []any{map[string]any{"name": "x", "path": filepath.Join(t.TempDir(), "none"), "backend": map[string]any{"plugin": "single"}}},
	}, time.Minute)
	if err == nil || !strings.Contains(err.Error(), "the server ended") || !strings.Contains(err.Error(), "none") {
		t.Errorf("error %v", err)
	}
}
