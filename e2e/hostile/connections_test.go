package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

// maxBody is the server's bound on a request body, and maxText that on one of JSON.
const (
	maxBody = 64 << 20
	maxText = 16 << 20
)

// bound is in the words that a refusal must have the path's bound on bodies.
const bound = "BOUND"

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestBodies(t *testing.T) {
	ann := start(t).as("ann")
	run, control := ann.create(t), ann.create(t)
	var bomb, quine bytes.Buffer
	w, err := gzip.NewWriterLevel(&bomb, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(w, zeros{}, 1<<30); err != nil {
		t.Fatal(err)
	}
	w.Close()
	z, err := zstd.NewWriter(&quine)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(z, zeros{}, 1<<30); err != nil {
		t.Fatal(err)
	}
	z.Close()
	p := ordinary(1)
	p.model, p.seq = run.id, run.next()
	for _, c := range []struct {
		name, encoding string
		body           io.Reader
		words          []string
	}{
		{"100 MB", "", io.LimitReader(zeros{}, 100<<20), []string{"body", bound}},
		{"gzip bomb", "gzip", bytes.NewReader(bomb.Bytes()), []string{"body", bound}},
		{"zstd bomb", "zstd", bytes.NewReader(quine.Bytes()), []string{"body", bound}},
		{"zstd window", "zstd", bytes.NewReader([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xf8, 0x01, 0x00, 0x00}), []string{"body"}},
		{"cut zstd", "zstd", bytes.NewReader(quine.Bytes()[:quine.Len()/2]), []string{"body"}},
		{"cut gzip", "gzip", bytes.NewReader(bomb.Bytes()[:1000]), []string{"body"}},
		{"not gzip", "gzip", strings.NewReader("hello"), []string{"gzip"}},
		{"unknown encoding", strings.Repeat("x", 1000), bytes.NewReader(p.encode()), []string{"content-encoding", "zstd"}},
		{"two encodings", "gzip, zstd", bytes.NewReader(p.encode()), []string{"content-encoding", "zstd"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, path := range []string{"/api/v1/forward_backward", "/api/v1/optim_step", "/v1/chat/completions"} {
				if s, ok := c.body.(io.Seeker); ok {
					if _, err := s.Seek(0, io.SeekStart); err != nil {
						t.Fatal(err)
					}
				} else {
					c.body = io.LimitReader(zeros{}, 100<<20)
				}
				// The server may end the connection before it has read all of a body that it refuses.
				r, err := http.NewRequest(http.MethodPost, ann.URL+path, c.body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("X-API-Key", ann.key)
				if c.encoding != "" {
					r.Header.Set("Content-Encoding", c.encoding)
				}
				got, err := http.DefaultClient.Do(r)
				if err != nil {
					if c.name != "100 MB" && c.name != "gzip bomb" { // the others are read whole
						t.Errorf("%s: %v", path, err)
					}
					continue
				}
				b, _ := io.ReadAll(got.Body)
				got.Body.Close()
				words := slices.Clone(c.words)
				if i := slices.Index(words, bound); i >= 0 {
					words[i] = fmt.Sprint(maxText)
					if path == "/api/v1/forward_backward" {
						words[i] = fmt.Sprint(maxBody)
					}
				}
				answer{got.StatusCode, got.Header, got.ContentLength, b}.refused(t, words...)
			}
		})
	}
	// The number was never used: the same request now is the first of it.
	run.finish(t, run.post(t, "/api/v1/forward_backward", p.encode(), "Content-Type", "application/x-protobuf"))
	run.finish(t, run.step(t, adam(1e-3)))
	control.good(t, 1)
	if !bytes.Equal(run.weights(t), control.weights(t)) {
		t.Error("refused bodies changed the weights")
	}
}

// goroutines reads the gateway's own count.
func (s *server) goroutines(t testing.TB) int {
	t.Helper()
	got, err := http.Get(s.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	lines := bufio.NewScanner(got.Body)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "go_goroutines "); ok {
			n := 0
			fmt.Sscan(rest, &n)
			return n
		}
	}
	return 0
}

// TestConnections opens many connections that say little and never end; the server goes on answering, and afterwards holds no more than before.
func TestConnections(t *testing.T) {
	s := start(t)
	ann := s.as("ann")
	run := ann.create(t)
	run.good(t, 1)
	transport.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	files, memory := s.Descriptors(t), s.Memory(t, "VmRSS")
	routines := s.goroutines(t)
	address := strings.TrimPrefix(s.URL, "http://")
	var open []net.Conn
	for i := range 400 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		begin := "POST /api/v1/forward_backward HTTP/1.1\r\nHost: x\r\nX-API-Key: " + ann.key + "\r\n"
		switch i % 4 {
		case 0: // a header that does not end
			begin = begin[:40]
		case 1: // a body that is announced and does not come
			begin += fmt.Sprintf("Content-Length: %d\r\n\r\n", maxBody)
		case 2: // chunks that do not end
			begin += "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
		case 3: // a poll that is held
			body := fmt.Sprintf(`{"request_id":%q}`, run.id+":99999")
			begin = fmt.Sprintf("POST /api/v1/retrieve_future HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Length: %d\r\n\r\n%s", ann.key, len(body), body)
		}
		if _, err := io.WriteString(c, begin); err != nil {
			t.Fatal(err)
		}
	}
	run.good(t, 2)
	if held := s.Memory(t, "VmRSS"); held > memory+512<<20 {
		t.Errorf("400 idle connections take %d MiB", (held-memory)>>10)
	}
	for _, c := range open {
		c.Close()
	}
	// Polls whose client went away, all at once.
	ctx, cancel := context.WithCancel(context.Background())
	sampler := ann.post(t, "/api/v1/create_sampling_session", object{"session_id": run.session, "sampling_session_seq_id": 0, "base_model": modelName}).ok(t)["sampling_session_id"].(string)
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/api/v1/retrieve_futures", strings.NewReader(fmt.Sprintf(`{"target":{"type":"sampling_session","sampling_session_id":%q,"cloned_sampler_id":0},"prev_cursor":0}`, sampler)))
			if err != nil {
				return
			}
			r.Header.Set("X-API-Key", ann.key)
			if got, err := http.DefaultClient.Do(r); err == nil {
				got.Body.Close()
			}
		})
	}
	run.good(t, 3)
	cancel()
	wg.Wait()
	transport.CloseIdleConnections()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for range 1200 {
		nowFiles := s.Descriptors(t)
		now := s.goroutines(t)
		if nowFiles <= files+10 && now <= routines+20 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	nowFiles := s.Descriptors(t)
	t.Errorf("descriptors %d → %d, goroutines %d → %d", files, nowFiles, routines, s.goroutines(t))
}

// TestSecretsAreNotLogged looks for keys and tokens in everything that the shared server wrote; it runs behind the other tests of this file's package.
func TestSecretsAreNotLogged(t *testing.T) {
	s := start(t)
	token, _ := s.as("ann").post(t, "/api/v1/auth/token", object{}).ok(t)["jwt"].(string)
	s.as("ann").send(t, http.MethodGet, "/api/v1/sessions?api_key="+s.Keys["ann"], nil)
	(client{s, "tml-a-key-that-is-wrong"}).send(t, http.MethodGet, "/api/v1/sessions", nil)
	log := s.Log()
	for name, secret := range map[string]string{"ann's key": s.Keys["ann"], "bob's key": s.Keys["bob"], "a token": token, "a wrong key": "tml-a-key-that-is-wrong"} {
		if secret == "" {
			t.Errorf("%s is empty", name)
		} else if strings.Contains(log, secret) {
			t.Errorf("%s is in the log", name)
		}
	}
}
