package cmd

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/plugins"
)

var writePlans = flag.Bool("write-plans", false, "write the texts of testdata/plans anew")

// TestDescribePlan: the plans that the engine's tests have of large models, as people read them.
func TestDescribePlan(t *testing.T) {
	plans, err := filepath.Glob("../../../backends/internal/engine/testdata/plans/*/plan.json")
	if err != nil || len(plans) < 3 {
		t.Fatalf("%v, %v", plans, err)
	}
	for _, path := range plans {
		name := filepath.Base(filepath.Dir(path))
		t.Run(name, func(t *testing.T) {
			raw, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var p plugins.Plan
			if err := json.Unmarshal(raw, &p); err != nil {
				t.Fatal(err)
			}
			got := describePlan(&p)
			for line := range strings.Lines(got) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > planWidth {
					t.Errorf("a line has %d columns: %s", n, line)
				}
			}
			file := filepath.Join("testdata", "plans", name+".txt")
			if *writePlans {
				if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got (-write-plans writes it)\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestParseMemory(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64 // -1: refused
	}{
		{"", 0}, {"80GiB", 80 << 30}, {"80 GiB", 80 << 30}, {"0.5TiB", 1 << 39}, {"512MiB", 512 << 20}, {"80GB", 80_000_000_000},
		{"80", -1}, {"GiB", -1}, {"-1GiB", -1}, {"0GiB", -1}, {"65TiB", -1}, {"1e300GiB", -1}, {"NaNGiB", -1}, {"80gib", -1},
	} {
		got, err := parseMemory(c.text)
		if (err != nil) != (c.want < 0) || err == nil && got != c.want {
			t.Errorf("%q: %d, %v", c.text, got, err)
		}
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -1000: "-1,000", 235093634560: "235,093,634,560"} {
		if got := thousands(n); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// planning writes a folder of plugins with one program, which a script is, and gives the path of the folder.
func planning(t *testing.T, plugin, script string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, plugin), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPlanCommand: the options reach the plugin, and what it says the user; one that cannot plan is named.
func TestPlanCommand(t *testing.T) {
	model := t.TempDir()
	if err := os.WriteFile(filepath.Join(model, "config.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	const answer = `{"version": 1, "plan": {"model": {"architecture": "A", "dtype": "bfloat16", "source": "config.json alone"}, "machine": {"device": "cuda", "devices": 8, "memory_bytes": 85899345920}}}`
	for _, c := range []struct {
		name, script string
		args         []string
		out, err     string
	}{
		{"plan", `cat > "$0.question"; echo '` + answer + `'`, []string{"--devices", "8", "--device", "cuda", "--memory", "80GiB", "--rank", "16", "--context", "4096", "--dtype", "bfloat16"}, "8 GPUs with 80.0 GiB each", ""},
		{"JSON", `cat > "$0.question"; echo '` + answer + `'`, []string{"--json"}, `"memory_bytes": 85899345920`, ""},
		{"a request that is wrong", `echo '{"version": 1, "kind": "invalid", "field": "memory", "message": "is not known"}'`, nil, "", "--memory is not known"},
		{"a model that is wrong", `echo '{"version": 1, "kind": "invalid", "field": "model_dir", "message": "head_dim is 3"}'`, nil, "", "head_dim is 3"},
		{"a plugin that cannot", `exit 1`, nil, "", "the plugin single cannot tell"},
		{"a plugin of another version", `echo '{"version": 2, "plan": {}}'`, nil, "", "the plugin single cannot tell"},
		{"no devices", `exit 1`, []string{"--devices", "0"}, "", "--devices is 0"},
		{"no unit", `exit 1`, []string{"--memory", "80"}, "", "--memory is \"80\""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := planning(t, "single", c.script)
			var out strings.Builder
			command := planCommandOf(func() (string, error) { return dir, nil })
			command.SetArgs(append([]string{model}, c.args...))
			command.SetOut(&out)
			command.SetErr(&out)
			command.SilenceUsage, command.SilenceErrors = true, true
			err := command.ExecuteContext(t.Context())
			if (err != nil) != (c.err != "") || c.err != "" && !strings.Contains(err.Error(), c.err) || !strings.Contains(out.String(), c.out) {
				t.Errorf("%v\n%s", err, out.String())
			}
			if c.name != "plan" {
				return
			}
			raw, err := os.ReadFile(filepath.Join(dir, "single.question"))
			if err != nil {
				t.Fatal(err)
			}
			want := fmt.Sprintf(`{"version":1,"model_dir":%q,"config":{"plugin":"single"},"device":"cuda","devices":8,"memory_bytes":85899345920,"rank":16,"context":4096,"dtype":"bfloat16"}`, model)
			if string(raw) != want {
				t.Errorf("the question is %s, want %s", raw, want)
			}
		})
	}
}
