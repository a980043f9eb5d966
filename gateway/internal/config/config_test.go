package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.bad.yaml")
	if err != nil || len(files) < 15 {
		t.Fatalf("found %d bad files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			first, _, _ := strings.Cut(string(data), "\n")
			want, ok := strings.CutPrefix(first, "# want: ")
			if !ok {
				t.Fatalf("the first line must be `# want: text`")
			}
			_, err = Load(file)
			if err == nil {
				t.Fatalf("loaded without error, want %q", want)
			}
			if !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), file) {
				t.Errorf("got  %s\nwant %s … %s", err, file, want)
			}
		})
	}
}

func TestFullFile(t *testing.T) {
	cfg, err := Load("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	m, far := cfg.Models[0], cfg.Models[1]
	for _, c := range []struct{ name, got, want string }{
		{"listen", cfg.Listen, "127.0.0.1:0"},
		{"data_dir", cfg.DataDir, filepath.Join("testdata", "state")},
		{"keys_file", cfg.Auth.KeysFile, filepath.Join("testdata", "keys")},
		{"expire_after", cfg.Sessions.ExpireAfter.String(), (10 * time.Minute).String()},
		{"sessions", fmt.Sprint(cfg.Sessions.MaxActive, cfg.Sessions.MaxMemoryMiB), "50 16"},
		{"records", fmt.Sprint(cfg.Records), "{7 0 14}"},
		{"openai", fmt.Sprint(cfg.OpenAI), "{72h0m0s}"},
		{"progress_timeout", cfg.Backends.ProgressTimeout.String(), "30s"},
		{"reserve", strconv.Itoa(cfg.Store.ReserveMiB), "100"},
		{"gap_wait", cfg.Training.GapWait.String(), "500ms"},
		{"snapshots", fmt.Sprint(cfg.Recovery), "{30s 20 0.5}"},
		{"sampling", fmt.Sprint(cfg.Sampling), "{100 50 all 500}"},
		{"weights", fmt.Sprint(cfg.Scheduling.Weights), "map[ann:2.5 bob:1]"},
		{"tls", fmt.Sprint(cfg.TLS), "{testdata/tls/cert.pem testdata/tls/key.pem}"},
		{"limits of ann", limitText(cfg.Limits.Of("ann")), "8 100 100000 0 0 0"},
		{"limits of others", limitText(cfg.Limits.Of("bob")), "4 100 100000 0 500 70000"},
		{"path", m.Path, "hf://org/model@main"},
		{"alias", strings.Join(m.Aliases, ","), "Qwen/Qwen3-8B"},
		{"plugin", m.Plugin, "dataparallel"},
		{"backend", string(m.Backend), `{"devices":[["cuda:0","cuda:1"],["cuda:2"]],"dtype":"bfloat16","plugin":"dataparallel","threads":2}`},
		{"chat", m.Chat, "latest"},
		{"far", fmt.Sprintf("%+v %q %s", *far.Remote, far.Plugin, far.Backend), `{Address:gpu-1:7000 Model:/models/far TLS:{CertFile:testdata/tls/gateway.pem KeyFile:testdata/tls/gateway.key CAFile:/etc/ca.pem}} "" {"dtype":"bfloat16"}`},
		{"level", cfg.Log.Level, "debug"},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, c.got, c.want)
		}
	}
}

func limitText(l Limit) string {
	return fmt.Sprint(*l.Runs, *l.Samples, *l.TrainedTokens, *l.SampledTokens, *l.CheckpointMiB, *l.MetricValues)
}

func TestDefaults(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg, err := Parse(filepath.Join(dir, "c.yaml"), []byte("models: [{name: a, path: m}, {name: b, path: org/b}]"))
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Models[0].Path; got != filepath.Join(dir, "m") {
		t.Errorf("a directory beside the file: got %q", got)
	}
	if got := cfg.Models[1].Path; got != "org/b" {
		t.Errorf("a name for the cache: got %q", got)
	}
	if m := cfg.Models[1]; m.Plugin != "single" || m.Chat != "base" || string(m.Backend) != `{"plugin":"single"}` {
		t.Errorf("model defaults: %+v", m)
	}
	if cfg.Listen != "127.0.0.1:8000" {
		t.Errorf("listen: got %q", cfg.Listen)
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("c.yaml", data)
		if err == nil && (len(cfg.Models) == 0 || cfg.Validate() != nil) {
			t.Errorf("accepted an invalid configuration: %+v", cfg)
		}
	})
}

// Files that are shared have their paths beside the configuration, and are on this machine where a folder says so.
func TestSharedFiles(t *testing.T) {
	parse := func(files string) Config {
		t.Helper()
		cfg, err := Parse(filepath.Join("etc", "tinsmith.yaml"), []byte("data_dir: state\nstore: {driver: postgres, url_file: url, lease: 5s}\nfiles: "+files+"\nmodels: [{name: a, path: /models/a, backend: {plugin: fake}}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	cfg := parse("{dir: mount}")
	if want := filepath.Join("etc", "mount"); cfg.FilesDir() != want || !cfg.Files.Shared() || cfg.Store.Lease != 5*time.Second {
		t.Errorf("%+v: files are in %s, want %s", cfg.Files, cfg.FilesDir(), want)
	}
	cfg = parse(`{s3: {endpoint: "http://127.0.0.1:9000", bucket: my-bucket, prefix: a/b, key_file: keys}}`)
	if s := cfg.Files.S3; cfg.FilesDir() != filepath.Join("etc", "state") || !cfg.Files.Shared() || s.KeyFile != filepath.Join("etc", "keys") || s.CAFile != "" {
		t.Errorf("%+v: files are in %s", s, cfg.FilesDir())
	}
	if cfg := Default(); cfg.Files.Shared() || cfg.FilesDir() != cfg.DataDir {
		t.Errorf("without files: %+v", cfg.Files)
	}
}
