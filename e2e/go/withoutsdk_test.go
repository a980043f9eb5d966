package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The programs of docs/clients-without-sdk.md run as they are printed and do what the page says.
func TestProgramsWithoutTheSDK(t *testing.T) {
	page, err := os.ReadFile("../../docs/clients-without-sdk.md")
	if err != nil {
		t.Fatal(err)
	}
	url := serve(t)
	for _, c := range []struct {
		language, file string
		command        []string
	}{
		{"bash", "train.sh", []string{"bash", "train.sh"}},
		{"go", "main.go", []string{"go", "run", "main.go"}},
	} {
		t.Run(c.language, func(t *testing.T) {
			program := regexp.MustCompile("(?ms)^```"+c.language+"\n(.*?)^```$").FindAllSubmatch(page, -1)
			if len(program) != 1 {
				t.Fatalf("the page has %d programs", len(program))
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, c.file), program[0][1], 0o600); err != nil {
				t.Fatal(err)
			}
			run := exec.CommandContext(t.Context(), c.command[0], c.command[1:]...)
			run.Dir, run.Env = dir, append(os.Environ(), "TINKER_BASE_URL="+url, "TINKER_API_KEY=tml-local", "NO_PROXY=127.0.0.1")
			var failures strings.Builder
			run.Stderr = &failures
			out, err := run.Output()
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out, failures.String())
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(lines) != 21 {
				t.Fatalf("%d lines:\n%s", len(lines), out)
			}
			loss := func(line string) float64 {
				_, text, _ := strings.Cut(line, " ")
				v, err := strconv.ParseFloat(text, 64)
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				return v
			}
			if first, last := loss(lines[0]), loss(lines[19]); !(last < first/10) {
				t.Errorf("the loss went from %v to %v", first, last)
			}
			if !regexp.MustCompile(`^tinker://\S+/sampler_weights/tin says I am Tin\.(<\|im_end\|>)?$`).MatchString(lines[20]) {
				t.Errorf("the last line is %q", lines[20])
			}
		})
	}
}
