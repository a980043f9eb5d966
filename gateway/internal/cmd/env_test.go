package cmd

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// variables runs `tinsmith env` in an environment, has a shell read what it prints, and gives the variables.
func variables(t *testing.T, w *world, arguments ...string) (map[string]string, error) {
	t.Helper()
	out, err := w.run(envCommand(), "", arguments...)
	if err != nil {
		if strings.Contains(out, "export") {
			t.Errorf("it fails, and prints %s", out)
		}
		return nil, err
	}
	shell := exec.Command("sh", "-c", `eval "$1"; env`, "sh", out)
	shell.Env = []string{"PATH=" + os.Getenv("PATH")}
	text, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s\n%s", err, text, out)
	}
	values := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		values[name] = value
	}
	return values, nil
}

func TestEnv(t *testing.T) {
	w := newWorld(t)
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Setenv("TINKER_API_KEY", "tml-meant-for-another-server")
	// The data directory of a server has its address in it.
	w.ok(os.WriteFile(filepath.Join(w.data, "address"), []byte(w.url+"\n"), 0o600))
	got, err := variables(t, w)
	w.ok(err)
	cache := filepath.Join(w.data, "huggingface", "hub")
	for name, wanted := range map[string]string{
		"TINKER_BASE_URL": w.url, "TINKER_API_KEY": "tml-local", "OPENAI_BASE_URL": w.url + "/v1", "OPENAI_API_KEY": "tml-local", "TINSMITH_URL": w.url, "HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "1",
	} {
		if got[name] != wanted {
			t.Errorf("%s is %q, expected %q", name, got[name], wanted)
		}
	}
	for _, name := range []string{"tinsmith--tiny-chat", "an--alias"} {
		commit, err := os.ReadFile(filepath.Join(cache, "models--"+name, "refs", "main"))
		w.ok(err)
		snapshot := filepath.Join(cache, "models--"+name, "snapshots", string(commit))
		for _, file := range []string{"tokenizer.json", "tokenizer_config.json", "config.json"} {
			have, err := os.ReadFile(filepath.Join(snapshot, file))
			w.ok(err)
			wanted, err := os.ReadFile(filepath.Join("../../../configs/models/tiny-chat", file))
			w.ok(err)
			if string(have) != string(wanted) {
				t.Errorf("%s of %s differs", file, name)
			}
		}
		if _, err := os.Stat(filepath.Join(snapshot, "model.safetensors")); err == nil {
			t.Error("the weights are in the cache")
		}
	}
}

// TestEnvFolders: a place that the user names, whatever is in its name, and one of the user's own where the server's data directory is not here.
func TestEnvFolders(t *testing.T) {
	w := newWorld(t)
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	odd := filepath.Join(t.TempDir(), "it's $HOME; \"`x`\"")
	got, err := variables(t, w, "--cache", odd)
	w.ok(err)
	if got["HF_HUB_CACHE"] != odd {
		t.Errorf("%q, expected %q", got["HF_HUB_CACHE"], odd)
	}
	own := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", own)
	w.ok(os.WriteFile(filepath.Join(w.data, "address"), []byte("http://127.0.0.1:1\n"), 0o600)) // of another server
	got, err = variables(t, w)
	w.ok(err)
	wanted := filepath.Join(own, "tinsmith", strings.ReplaceAll(strings.TrimPrefix(w.url, "http://"), ":", "_"), "huggingface", "hub")
	if got["HF_HUB_CACHE"] != wanted {
		t.Errorf("%q, expected %q", got["HF_HUB_CACHE"], wanted)
	}
	if _, err := os.Stat(filepath.Join(w.data, "huggingface")); err == nil {
		t.Error("the data directory of another machine's server was made")
	}
}

// TestEnvOfBadServers: a server cannot make the command take any amount of memory, nor fail with half of what it prints.
func TestEnvOfBadServers(t *testing.T) {
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	const configuration = `{"name": "config.json", "size": 2}`
	for name, c := range map[string]struct {
		models int
		files  string
		says   string
	}{
		"a large file":       {1, configuration + `,{"name": "a.json", "size": 300000000}`, "more than 256 MiB"},
		"sizes that wrap":    {1, configuration + `,{"name": "a.json", "size": 9223372036854775807},{"name": "b.json", "size": 9223372036854775807}`, "more than 256 MiB"},
		"a negative size":    {1, configuration + `,{"name": "a.json", "size": -5}`, "more than 256 MiB"},
		"many models":        {100, configuration + `,{"name": "a.json", "size": 260000000}`, "more than 2048 MiB"},
		"no configuration":   {1, `{"name": "a.json", "size": 1}`, "gives out no config.json"},
		"a way out":          {1, configuration + `,{"name": "../../x", "size": 2}`, "cannot be the name of a file"},
		"the whole of files": {1, `{"name": "config.json", "size": 1}`, "sent the whole of config.json"},
	} {
		t.Run(name, func(t *testing.T) {
			ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case strings.HasSuffix(r.URL.Path, "/environment"):
					fmt.Fprintf(w, `{"models":[{"name":"a/b"}%s]}`, strings.Repeat(`,{"name":"a/b"}`, c.models-1))
				case !r.URL.Query().Has("file"):
					fmt.Fprintf(w, `{"files":[%s]}`, c.files)
				case name == "the whole of files":
					fmt.Fprint(w, "{}")
				default:
					w.WriteHeader(http.StatusPartialContent)
					fmt.Fprint(w, "{}")
				}
			}))
			defer ts.Close()
			if _, err := variables(t, &world{T: t, url: ts.URL}); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, expected %q", err, c.says)
			}
		})
	}
}

// TestEnvKeys: where a key is needed the one that was given is set, and without one it says how to give it.
func TestEnvKeys(t *testing.T) {
	w, ann, _, _ := keyed(t)
	t.Setenv("HF_HUB_CACHE", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("TINKER_API_KEY", "")
	if _, err := variables(t, w); err == nil || !strings.Contains(err.Error(), "needs a key: give yours with --key, or in TINKER_API_KEY") {
		t.Errorf("without a key: %v", err)
	}
	if _, err := variables(t, w, "--key", "tml-wrong"); err == nil || !strings.Contains(err.Error(), "401") {
		t.Errorf("with a wrong key: %v", err)
	}
	for name, arguments := range map[string][]string{"flag": {"--key", ann.key}, "environment": nil} {
		if arguments == nil {
			t.Setenv("TINKER_API_KEY", ann.key)
		}
		got, err := variables(t, w, arguments...)
		w.ok(err)
		if got["TINKER_API_KEY"] != ann.key || got["OPENAI_API_KEY"] != ann.key {
			t.Errorf("%s: %v", name, got)
		}
		if strings.HasPrefix(got["HF_HUB_CACHE"], w.data) {
			t.Errorf("%s: tenants are told where the server's data are", name)
		}
	}
}
