package tinker

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
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
	service := &Service{auth: &keys.Authenticator{Ring: ring, Tokens: keys.Tokens{Secret: make([]byte, 32), Lifetime: time.Hour}}}
	service.Register(r)
	checked := 0
	for _, route := range r.Routes() {
		if route.Method == http.MethodGet {
			continue // has no body
		}
		w, path := httptest.NewRecorder(), strings.ReplaceAll(route.Path, ":", "")
		r.ServeHTTP(w, httptest.NewRequest(route.Method, path, unread{t, path}))
		if w.Code != http.StatusUnauthorized {
			t.Errorf("%s %s: status %d", route.Method, path, w.Code)
		}
		checked++
	}
	if checked < 20 {
		t.Errorf("%d routes were found", checked)
	}
}
