package cmd

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

// TestWhyAModelIsNotServed: users are not told where its directory is, however the configuration names it.
func TestWhyAModelIsNotServed(t *testing.T) {
	root := t.TempDir()
	t.Chdir(root)
	for _, dir := range []string{"conf/here/inside", "secret/place", "secret/file"} {
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, err := range []error{os.Mkdir("conf/here/inside", 0o700), os.Mkdir("secret/place", 0o700), os.WriteFile("secret/file", nil, 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"../secret/absent", "../secret/place", "../secret/file", "here/inside", "./here/absent", filepath.Join(root, "secret", "absent")} {
		text := "auth: {keys_file: keys}\nmodels: [{name: m, path: \"" + path + "\"}]\n"
		if err := os.WriteFile("conf/x.yaml", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load("conf/x.yaml")
		if err != nil {
			t.Fatal(err)
		}
		m, err := loadModel(t.Context(), cfg, 0, &health{})
		if err == nil { // it has no weights, which the plugin would say
			err = errors.New(m.Dir + ": no weights")
		}
		secrets, failed := redactor(cfg, []*catalog.Model{{Model: cfg.Models[0], Err: err}}, "/programs")
		if failed != nil {
			t.Fatal(failed)
		}
		if told := secrets.Fault(err.Error()); strings.Contains(told, "secret") || strings.Contains(told, "here") || !strings.Contains(told, "(a path)") {
			t.Errorf("%s: %q", path, told)
		}
	}
}

// TestFaultsTellNoPaths has the server fail in every way in which a caller learns of it, and compares what a user is told with what an administrator is told.
func TestFaultsTellNoPaths(t *testing.T) {
	w, ann, _, root := keyed(t)
	failing := func(c caller) string {
		run := c.settle().run
		submitted := c.demand(http.MethodPost, "/api/v1/optim_step", object{"model_id": run, "seq_id": 4, "adam_params": object{"learning_rate": 0.123}})
		_, answer := c.send(http.MethodPost, "/api/v1/retrieve_future", object{"request_id": c.field(submitted, "request_id")})
		return answer
	}
	sampling := func(stream bool) func(caller) string {
		return func(c caller) string {
			_, answer := c.send(http.MethodPost, "/v1/completions", object{"model": served, "prompt": []int{77}, "max_tokens": 1, "stream": stream})
			return answer
		}
	}
	unserved := func(ask func(caller) string) func(caller) string {
		return func(c caller) string {
			why := errors.New("load: it has no weights: " + w.secrets())
			w.failure.Store(&why)
			defer w.failure.Store(nil)
			return ask(c)
		}
	}
	refused := func(ask func(caller) string) func(caller) string {
		return func(c caller) string {
			why := errors.New("the store is failing: " + w.secrets())
			w.refuse.Store(&why)
			defer w.refuse.Store(nil)
			return ask(c)
		}
	}
	for _, fault := range []struct {
		name string
		meet func(caller) string
	}{
		{"a future", failing},
		{"a sample as a whole", sampling(false)},
		{"a sample streamed", sampling(true)},
		{"new work that is refused", refused(func(c caller) string {
			session := c.field(c.demand(http.MethodPost, "/api/v1/create_session", object{}), "session_id")
			_, answer := c.send(http.MethodPost, "/api/v1/create_model", object{"session_id": session, "model_seq_id": 0, "base_model": served, "lora_config": object{"rank": 4}})
			return answer
		})},
		{"a sample that is refused", refused(sampling(false))},
		{"a sample of a model that cannot be served", unserved(sampling(false))},
		{"a training run of a model that cannot be served", unserved(func(c caller) string {
			session := c.field(c.demand(http.MethodPost, "/api/v1/create_session", object{}), "session_id")
			_, answer := c.send(http.MethodPost, "/api/v1/create_model", object{"session_id": session, "model_seq_id": 0, "base_model": served, "lora_config": object{"rank": 4}})
			return answer
		})},
	} {
		t.Run(fault.name, func(t *testing.T) {
			for _, part := range []string{w.data, "/proc/self", "10.0.0.7", "user=tin", "records"} {
				if answer := fault.meet(root); !strings.Contains(answer, part) {
					t.Errorf("an administrator is not told of %q: %s", part, answer)
				}
				if answer := fault.meet(ann); strings.Contains(answer, part) || answer == "" {
					t.Errorf("a user is told of %q: %s", part, answer)
				}
			}
		})
	}
}
