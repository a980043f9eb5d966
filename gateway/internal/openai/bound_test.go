package openai

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/plugins"
)

// unread is a body that fails the test when it is read.
type unread struct {
	*testing.T
	path string
}

func (u unread) Read([]byte) (int, error) {
	u.Errorf("%s reads the body of a request without a key", u.path)
	return 0, io.EOF
}

// The key is looked at before the body, on every route: whoever has none takes no memory.
func TestBodiesOfStrangersAreNotRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("ann "+strings.Repeat("ab", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ring, err := keys.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	answers, err := inference.New(nil, &keys.Authenticator{Ring: ring, Tokens: keys.Tokens{Secret: make([]byte, 32), Lifetime: time.Hour}}, []*catalog.Model{{}})
	if err != nil {
		t.Fatal(err)
	}
	New(answers).Register(r)
	checked := 0
	for _, route := range r.Routes() {
		if route.Method != http.MethodPost {
			continue
		}
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(route.Method, route.Path, unread{t, route.Path}))
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%s: status %d", route.Path, w.Code)
		}
		checked++
	}
	if checked < 12 {
		t.Errorf("%d routes were found", checked)
	}
}

func TestTextLimit(t *testing.T) {
	for context, want := range map[int]int{512: 1 << 20, 4096: 1 << 20, 32768: 2 << 20, 131072: 8 << 20} {
		if got := inference.TextLimit(plugins.ModelInfo{MaxContextLength: context}); got != want {
			t.Errorf("a context of %d tokens is %d bytes, want %d", context, got, want)
		}
	}
}

// Text that cannot be a prompt is refused by its length, in words that name the limit; as much as may be is looked at.
func TestLongText(t *testing.T) {
	w := newWorld(t, options{})
	const limit = inference.LeastTextBytes
	text := func(n int) string { return strings.Repeat("x", n) }
	ids := strings.Repeat("1,", mostTokens) + "1"
	for _, c := range []struct {
		name, path, body string
		status           int
		words            []string
	}{
		{"a chat", "/v1/chat/completions", `{"model":"` + modelName + `","messages":[{"role":"user","content":"` + text(limit) + `"}]}`, 400, []string{"messages", strconv.Itoa(limit), "context"}},
		{"many messages", "/v1/chat/completions", `{"model":"` + modelName + `","messages":[` + strings.Repeat(`{"role":"user","content":"`+text(1000)+`"},`, 1100) + `{}]}`, 400, []string{"messages", strconv.Itoa(limit)}},
		{"a prompt", "/v1/completions", `{"model":"` + modelName + `","prompt":"` + text(limit) + `"}`, 400, []string{"prompt", strconv.Itoa(limit)}},
		{"one of some prompts", "/v1/completions", `{"model":"` + modelName + `","prompt":["a","` + text(limit) + `"]}`, 400, []string{"prompt", strconv.Itoa(limit)}},
		{"a text to tokenize", "/tokenize", `{"prompt":"` + text(limit+1) + `"}`, 400, []string{"prompt", strconv.Itoa(limit)}},
		{"the longest text to tokenize", "/tokenize", `{"prompt":"` + text(limit) + `"}`, 200, nil},
		{"messages to tokenize", "/tokenize", `{"messages":[{"role":"user","content":"` + text(limit) + `"}]}`, 400, []string{"messages", strconv.Itoa(limit)}},
		{"tokens", "/detokenize", `{"tokens":[` + ids + `]}`, 400, []string{"tokens", strconv.Itoa(mostTokens)}},
		{"a body", "/v1/chat/completions", `{"model":"` + text(body.MaxTextBytes) + `"}`, 413, []string{"body", strconv.Itoa(body.MaxTextBytes)}},
		{"values", "/v1/chat/completions", `{"model":"` + modelName + `","messages":[` + strings.Repeat("0,", 7<<20) + `0]}`, 413, []string{"MiB"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, _, b := w.send(http.MethodPost, c.path, c.body)
			if status != c.status {
				t.Fatalf("status %d %.300s, want %d", status, b, c.status)
			}
			for _, word := range c.words {
				if !strings.Contains(string(b), word) {
					t.Errorf("%.300s does not name %q", b, word)
				}
			}
		})
	}
}
