package keys

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// holding is a server whose handler does what a test wants with a request of a known key, and tells how it ended.
func holding(t *testing.T, a *Authenticator, handle func(http.ResponseWriter, Request)) (url string, ended <-chan error) {
	t.Helper()
	ends := make(chan error, 8)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := a.Begin(w, r)
		if err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		defer req.Release()
		handle(w, req)
		if Revoked(req.Context()) {
			ends <- ErrRevoked
			return
		}
		ends <- req.Context().Err()
	}))
	t.Cleanup(ts.Close)
	return ts.URL, ends
}

func ask(t *testing.T, url, key string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Api-Key", key)
	return r
}

// take takes one key's lines out of the file, as somebody does with an editor.
func take(t *testing.T, path, name string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var kept strings.Builder
	for line := range strings.Lines(string(content)) {
		if !strings.HasPrefix(line, name+" ") {
			kept.WriteString(line)
		}
	}
	if err := os.WriteFile(path, []byte(kept.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Whatever a request is doing when its key goes, it ends: when it waits, when its body comes slowly, when its answer is read slowly. Nothing but the held request looks at the file meanwhile.
func TestRevokedKeyEndsItsRequests(t *testing.T) {
	for _, c := range []struct {
		name   string
		handle func(http.ResponseWriter, Request)
		body   func() io.Reader // nil = none
	}{
		{"a wait", func(_ http.ResponseWriter, r Request) { <-r.Context().Done() }, nil},
		{"an upload that stands still", func(_ http.ResponseWriter, r Request) { _, _ = io.Copy(io.Discard, r.Body) }, func() io.Reader {
			reader, writer := io.Pipe()
			t.Cleanup(func() { _ = writer.Close() })
			return reader
		}},
		{"an answer that nobody reads", func(w http.ResponseWriter, _ Request) {
			for err := error(nil); err == nil; {
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Hour)) // as a stream does before each event
				_, err = w.Write(make([]byte, 1<<16))
			}
		}, nil},
	} {
		for _, way := range []string{"endpoint", "file"} {
			for _, with := range []string{"key", "token", "link"} {
				t.Run(c.name+", "+way+", "+with, func(t *testing.T) {
					t.Parallel()
					a, _, _, bob, _ := authenticator(t)
					begun := make(chan struct{})
					handle := func(w http.ResponseWriter, r Request) {
						close(begun)
						c.handle(w, r)
					}
					url, ended := holding(t, a, handle)
					credential := bob
					if with == "token" {
						credential = exchange(t, a, bob, time.Now())
					}
					if with == "link" {
						url, ended = linked(t, a, bob, handle)
					}
					var body io.Reader
					if c.body != nil {
						body = c.body()
					}
					transport := &http.Transport{}
					defer transport.CloseIdleConnections()
					done := make(chan struct{})
					go func() {
						defer close(done)
						if answer, err := transport.RoundTrip(ask(t, url, credential, body)); err == nil {
							defer answer.Body.Close()
							if c.name == "an answer that nobody reads" {
								<-t.Context().Done()
							}
						}
					}()
					<-begun
					if way == "file" {
						take(t, a.Ring.path, "bob")
					} else if err := a.Ring.Revoke(bob); err != nil {
						t.Fatal(err)
					}
					if err := <-ended; !errors.Is(err, ErrRevoked) {
						t.Errorf("ended with %v", err)
					}
					if owner(t, a, credential) != "" && with != "link" {
						t.Error("the key still works")
					}
					if c.name != "an answer that nobody reads" {
						<-done
					}
				})
			}
		}
	}
}

// linked is holding for requests that come with the link of a key.
func linked(t *testing.T, a *Authenticator, key string, handle func(http.ResponseWriter, Request)) (url string, ended <-chan error) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", key)
	made, err := a.Begin(httptest.NewRecorder(), r)
	if err != nil {
		t.Fatal(err)
	}
	made.Release()
	ends := make(chan error, 8)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := a.BeginLink(w, r, made.Owner, made.Bearer.Fingerprint())
		if err != nil {
			ends <- err
			return
		}
		defer req.Release()
		handle(w, req)
		if Revoked(req.Context()) {
			ends <- ErrRevoked
			return
		}
		ends <- nil
	}))
	t.Cleanup(ts.Close)
	return ts.URL, ends
}

// A key that goes takes its own requests along, and nobody else's: not those of another key of the name.
func TestRevokedKeyEndsNothingElse(t *testing.T) {
	a, ann, second, bob, _ := authenticator(t)
	begun := make(chan struct{}, 3)
	ends := make(chan string, 3)
	release := make(chan struct{})
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, err := a.Begin(w, r)
		if err != nil {
			t.Error(err)
			return
		}
		defer req.Release()
		begun <- struct{}{}
		select {
		case <-req.Context().Done():
			ends <- "ended"
		case <-release:
			ends <- "answered"
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	defer ts.Close()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	answers := make(chan int, 3)
	for _, key := range []string{ann, second, bob} {
		go func() {
			answer, err := transport.RoundTrip(ask(t, ts.URL, key, nil))
			if err != nil {
				answers <- 0
				return
			}
			defer answer.Body.Close()
			answers <- answer.StatusCode
		}()
	}
	for range 3 {
		<-begun
	}
	if err := a.Ring.Revoke(ann); err != nil {
		t.Fatal(err)
	}
	if got := <-ends; got != "ended" {
		t.Errorf("the first was %s", got)
	}
	<-answers
	close(release)
	for range 2 {
		if got := <-ends; got != "answered" {
			t.Errorf("another was %s", got)
		}
		if status := <-answers; status != http.StatusNoContent {
			t.Errorf("status %d", status)
		}
	}
	a.Ring.mu.Lock()
	defer a.Ring.mu.Unlock()
	if len(a.Ring.held) != 0 {
		t.Errorf("%d requests are held that are over", len(a.Ring.held))
	}
}

// A request that comes after its key has gone is refused, and so is a link.
func TestNothingBeginsWithoutItsKey(t *testing.T) {
	a, ann, _, bob, _ := authenticator(t)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+bob)
	made, err := a.Begin(httptest.NewRecorder(), r)
	if err != nil {
		t.Fatal(err)
	}
	if made.Owner != "bob" || made.Admin || made.Bearer.Fingerprint() == "" {
		t.Errorf("%+v", made)
	}
	made.Release()
	for _, link := range [][2]string{{"ann", made.Bearer.Fingerprint()}, {"bob", ""}, {"bob", "x"}, {"", made.Bearer.Fingerprint()}} {
		if _, err := a.BeginLink(httptest.NewRecorder(), r, link[0], link[1]); !errors.Is(err, ErrUnknown) {
			t.Errorf("link of %q: %v", link, err)
		}
	}
	if err := a.Ring.Revoke(bob); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Begin(httptest.NewRecorder(), r); !errors.Is(err, ErrUnknown) {
		t.Errorf("the key: %v", err)
	}
	if _, err := a.BeginLink(httptest.NewRecorder(), r, made.Owner, made.Bearer.Fingerprint()); !errors.Is(err, ErrUnknown) {
		t.Errorf("the link: %v", err)
	}
	if err := a.Ring.Revoke(ann); err != nil {
		t.Fatal(err)
	}
	keyless := &Authenticator{Ring: &Ring{}, Tokens: a.Tokens}
	for _, begin := range []func() (Request, error){
		func() (Request, error) { return keyless.Begin(httptest.NewRecorder(), r) },
		func() (Request, error) { return keyless.BeginLink(httptest.NewRecorder(), r, "ann", "x") },
	} {
		req, err := begin()
		if err != nil || req.Owner != Anonymous || !req.Admin || req.Request != r {
			t.Errorf("without keys: %+v, %v", req, err)
			continue
		}
		req.Release()
	}
}

// Begin costs each request with a key this much.
func BenchmarkBegin(b *testing.B) {
	a, ann, _, _, _ := authenticator(b)
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", ann)
	w := httptest.NewRecorder()
	for b.Loop() {
		req, err := a.Begin(w, r)
		if err != nil {
			b.Fatal(err)
		}
		req.Release()
	}
}

// Without a keys file a request costs nothing, and what only links need is made for them only.
func TestBeginAllocatesLittle(t *testing.T) {
	a, ann, _, _, _ := authenticator(t)
	keyless := &Authenticator{Ring: &Ring{}, Tokens: a.Tokens}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("X-Api-Key", ann)
	w := httptest.NewRecorder()
	for name, c := range map[string]struct {
		by   *Authenticator
		most float64
	}{"without keys": {keyless, 0}, "with a key": {a, 12}} {
		n := testing.AllocsPerRun(100, func() {
			req, err := c.by.Begin(w, r)
			if err != nil {
				t.Fatal(err)
			}
			req.Release()
		})
		if n > c.most {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
