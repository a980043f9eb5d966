package podrole

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// cluster is Kubernetes' API as far as one pod is concerned.
type cluster struct {
	mu      sync.Mutex
	token   string
	said    int // refused so far
	refuse  int // so many requests are refused first
	labels  map[string]string
	patched int
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var patch struct {
		Metadata struct{ Labels map[string]string }
	}
	switch {
	case r.Method != http.MethodPatch || r.URL.Path != "/api/v1/namespaces/team/pods/gateway-1" || r.Header.Get("Content-Type") != "application/merge-patch+json":
		w.WriteHeader(http.StatusNotFound)
	case r.Header.Get("Authorization") != "Bearer "+c.token:
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"kind":"Status","message":"Unauthorized"}`))
	case c.refuse > 0:
		c.refuse--
		c.said++
		w.WriteHeader(http.StatusInternalServerError)
	case json.NewDecoder(r.Body).Decode(&patch) != nil:
		w.WriteHeader(http.StatusBadRequest)
	default:
		c.patched++
		c.labels = patch.Metadata.Labels
		_, _ = w.Write([]byte("{}"))
	}
}

// refused is how many requests were refused.
func (c *cluster) refused() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.said
}

// accept has so many more requests refused, and then none.
func (c *cluster) accept(after int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = after
}

func (c *cluster) start(t *testing.T) *Pod {
	t.Helper()
	s := httptest.NewTLSServer(c)
	t.Cleanup(s.Close)
	account := t.TempDir()
	for file, content := range map[string]string{
		"namespace": "team", "token": "first\n", "ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})),
	} {
		if err := os.WriteFile(filepath.Join(account, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	pod, err := open("gateway-1", u.Hostname(), u.Port(), account)
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

func TestSet(t *testing.T) {
	c := &cluster{token: "first"}
	pod := c.start(t)
	ctx := context.Background()
	if err := pod.set(ctx, Standby); err != nil || c.labels[Label] != "standby" || len(c.labels) != 1 {
		t.Fatalf("%v, %v", c.labels, err)
	}
	// Tokens are renewed where they lie.
	c.token = "second"
	if err := pod.set(ctx, Active); err == nil || !strings.Contains(err.Error(), "status 401: Unauthorized") || strings.Contains(err.Error(), "first") {
		t.Errorf("an old token: %v", err)
	}
	if err := os.WriteFile(filepath.Join(pod.account, "token"), []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := pod.set(ctx, Active); err != nil || c.labels[Label] != "active" {
		t.Errorf("%v, %v", c.labels, err)
	}
}

// A role is told until it is taken or there is another, and no longer than somebody wants it.
func TestBecome(t *testing.T) {
	c := &cluster{token: "first", refuse: 1 << 30}
	pod := c.start(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := func() { pod.mu.Lock(); last := pod.stopped; pod.mu.Unlock(); <-last }
	pod.Become(ctx, Standby) // which nobody takes
	for c.refused() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.accept(1)
	pod.Become(ctx, Active)
	ended()
	if c.patched != 1 || c.labels[Label] != "active" {
		t.Errorf("patched %d times, %v", c.patched, c.labels)
	}
	cancel()
	pod.Become(ctx, Standby)
	ended()
	if c.labels[Label] != "active" {
		t.Error("a role was told that nobody wanted any more")
	}
	(*Pod)(nil).Become(context.Background(), Active)
}

func TestOpen(t *testing.T) {
	t.Setenv(EnvPod, "")
	if pod, err := Open(); pod != nil || err != nil {
		t.Errorf("outside of a cluster: %v, %v", pod, err)
	}
	t.Setenv(EnvPod, "gateway-1")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Open(); err == nil || !strings.Contains(err.Error(), "TINSMITH_POD is set: KUBERNETES_SERVICE_HOST") {
		t.Errorf("half of an environment: %v", err)
	}
	for _, missing := range []string{"namespace", "ca.crt"} {
		account := t.TempDir()
		for _, file := range []string{"namespace", "ca.crt"} {
			if file != missing {
				if err := os.WriteFile(filepath.Join(account, file), []byte("x"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := open("gateway-1", "10.0.0.1", "443", account); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
}
