package cmd

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// repository is a hub with one repository, org/mine, that keeps everything in its commits. What is large, expires or fails is tested in package hub.
type repository struct {
	t       *testing.T
	files   map[string][]byte
	commits int
	private bool
}

func newRepository(t *testing.T) *repository {
	h := &repository{t: t, files: map[string][]byte{}}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	t.Setenv("HF_ENDPOINT", s.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("HF_HUB_CACHE", "")
	t.Setenv("HF_TOKEN", "secret")
	return h
}

func (h *repository) sha() string { return fmt.Sprintf("%040x", h.commits) }

func (h *repository) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	type m = map[string]any
	var answer any = m{}
	switch path := r.URL.Path; {
	case path == "/api/repos/create":
		var q struct{ Visibility string }
		_ = json.NewDecoder(r.Body).Decode(&q)
		h.private = q.Visibility == "private"
	case strings.HasPrefix(path, "/api/models/org/mine/revision/"):
		siblings := []m{}
		for name, content := range h.files {
			siblings = append(siblings, m{"rfilename": name, "size": len(content), "lfs": m{"sha256": fmt.Sprintf("%x", sha256.Sum256(content)), "size": len(content)}})
		}
		answer = m{"sha": h.sha(), "private": h.private, "siblings": siblings}
	case strings.HasSuffix(path, "/preupload/main"):
		var q struct{ Files []struct{ Path string } }
		_ = json.NewDecoder(r.Body).Decode(&q)
		modes := []m{}
		for _, f := range q.Files {
			modes = append(modes, m{"path": f.Path, "uploadMode": "regular"})
		}
		answer = m{"files": modes}
	case strings.HasSuffix(path, "/commit/main"):
		lines := json.NewDecoder(r.Body)
		for lines.More() {
			var op struct {
				Key   string
				Value struct{ Path, Content string }
			}
			if err := lines.Decode(&op); err != nil {
				h.t.Error(err)
				return
			}
			if content, err := base64.StdEncoding.DecodeString(op.Value.Content); err == nil && op.Key == "file" {
				h.files[op.Value.Path] = content
			}
			if op.Key == "deletedFile" {
				delete(h.files, op.Value.Path)
			}
		}
		h.commits++
		answer = m{"commitOid": h.sha()}
	case strings.HasPrefix(path, "/org/mine/resolve/"):
		if content, ok := h.files[filepath.Base(path)]; ok {
			_, _ = w.Write(content)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func TestPushAndPull(t *testing.T) {
	w := newWorld(t)
	h := newRepository(t)
	run := w.trained()
	work := t.TempDir()
	out, err := w.run(pushCommand(), "", run, "hf://org/mine", "--private", "--work", work)
	w.ok(err)
	if !strings.Contains(out, "tinker://"+run+", step 1, of "+served+" pushed as\nhf://org/mine@"+h.sha()) || names(t, work) != "" {
		t.Errorf("it says %q and leaves %q", out, names(t, work))
	}
	if !h.private || len(h.files) != 3 || h.files[plugins.AdapterConfigFile] == nil {
		t.Errorf("private %v, %d files", h.private, len(h.files))
	}
	card := string(h.files[cardFile])
	head, body, _ := strings.Cut(strings.TrimPrefix(card, "---\n"), "---\n")
	var fields struct {
		Base     string `yaml:"base_model"`
		Relation string `yaml:"base_model_relation"`
		Library  string `yaml:"library_name"`
		Pipeline string `yaml:"pipeline_tag"`
		Tags     []string
	}
	decoder := yaml.NewDecoder(strings.NewReader(head))
	decoder.KnownFields(true)
	w.ok(decoder.Decode(&fields))
	if fields.Base != served || fields.Relation != "adapter" || fields.Library != "peft" || len(fields.Tags) != 2 {
		t.Errorf("the card's head is %+v", fields)
	}
	sum := fmt.Sprintf("%x", sha256.Sum256(h.files[plugins.AdapterWeightsFile]))
	for _, wanted := range []string{cardMark, "| rank | 4 |", "| on | attention, MLP, output head |", "| steps of the optimizer | `1` |", "| tokens trained | 2 |", "| SHA-256 of `adapter_model.safetensors` | `" + sum + "` |"} {
		if !strings.Contains(body, wanted) {
			t.Errorf("the card lacks %q:\n%s", wanted, card)
		}
	}
	if rows := regexp.MustCompile(`(?m)^\| step \| loss per token \|\n\|---\|---\|\n\| 1 \| [0-9.]+ \|$`).FindAllString(body, -1); len(rows) != 1 {
		t.Errorf("the card does not say how the loss went:\n%s", card)
	}

	// And back: into the server, with its origin.
	source := "hf://org/mine@" + h.sha()
	out, err = w.run(pullCommand(), "", "hf://org/mine", "--base", served)
	w.ok(err)
	imported := strings.TrimSpace(strings.TrimPrefix(strings.Split(out, "\n")[1], "sample it:"))
	if !strings.HasSuffix(imported, "/sampler_weights/mine") {
		t.Errorf("it says %q", out)
	}
	if out, err := w.run(runsCommand(), ""); err != nil || !strings.Contains(out, "/weights/mine\n  "+served+", rank 4, imported ") {
		t.Errorf("%v: %s", err, out)
	}
	for _, c := range []struct{ name, holds string }{
		{"runs", " s ago\n  imported from " + source + "\n  sha256 " + sum},
		{"models", "  imported from " + source + "\n  sha256 " + sum},
	} {
		command := runsCommand()
		if c.name == "models" {
			command = modelsCommand()
		}
		if out, err := w.run(command, ""); err != nil || !strings.Contains(out, c.holds) {
			t.Errorf("%s: %v: %s, expected %q", c.name, err, out, c.holds)
		}
	}
	dir := filepath.Join(t.TempDir(), "again")
	_, err = w.run(exportCommand(), "", imported, dir)
	w.ok(err)
	exported, err := os.ReadFile(filepath.Join(dir, cardFile))
	w.ok(err)
	if !bytes.Contains(exported, []byte("| imported from | `"+source+"` |")) || !bytes.Contains(exported, []byte("| SHA-256 of the weights as they were imported | `"+sum+"` |")) {
		t.Errorf("the export's card does not say where it is from:\n%s", exported)
	}

	// A run that goes on from it says with what it began, and so does what is exported of that run.
	session, err := w.core.CreateSession(w.Context(), runs.NewSession{Owner: keys.Anonymous})
	w.ok(err)
	further := w.await(w.core.CreateRunFromCheckpoint(w.Context(), runs.NewRunFromCheckpoint{Owner: keys.Anonymous, SessionID: session.ID, Path: strings.Replace(imported, "/sampler_weights/", "/weights/", 1)})).Loaded.RunID
	if out, err := w.run(runsCommand(), ""); err != nil || !strings.Contains(out, "  began as an import from "+source+"\n  sha256 "+sum) {
		t.Errorf("%v: %s", err, out)
	}
	dir = filepath.Join(t.TempDir(), "further")
	_, err = w.run(exportCommand(), "", further, dir)
	w.ok(err)
	if exported, err = os.ReadFile(filepath.Join(dir, cardFile)); err != nil || !bytes.Contains(exported, []byte("| began as an import from | `"+source+"` |")) || bytes.Contains(exported, []byte("| imported from")) {
		t.Errorf("%v: the card of what was trained on says:\n%s", err, exported)
	}

	// Into a folder, at a revision.
	dir = filepath.Join(t.TempDir(), "folder")
	out, err = w.run(pullCommand(), "", source, dir)
	w.ok(err)
	if got := names(t, dir); got != "README.md adapter_config.json adapter_model.safetensors" || out != source+"\n" {
		t.Errorf("it holds %s and says %q", got, out)
	}
	if content, err := os.ReadFile(filepath.Join(dir, plugins.AdapterWeightsFile)); err != nil || !bytes.Equal(content, h.files[plugins.AdapterWeightsFile]) {
		t.Errorf("other bytes: %v", err)
	}

	// A model, which is served and not imported.
	h.files = map[string][]byte{"config.json": []byte("{}"), "model.safetensors": []byte("weights")}
	h.commits++
	var fetched bytes.Buffer
	fetch := fetchCommand()
	fetch.SetArgs([]string{"hf://org/mine"})
	fetch.SetOut(&fetched)
	w.ok(fetch.ExecuteContext(w.Context()))
	if got := names(t, strings.TrimSuffix(fetched.String(), "\n")); !strings.Contains(got, "config.json model.safetensors") {
		t.Errorf("fetch gave %q, which holds %s", &fetched, got)
	}
	if out, err = w.run(pullCommand(), "", "hf://org/mine"); err != nil || !strings.Contains(out, "serve it:  tinsmith serve --model hf://org/mine@"+h.sha()) {
		t.Errorf("%v: %q", err, out)
	}
	for _, c := range []struct {
		name, wants string
		run         func() (string, error)
	}{
		{"a model in the way", "--replace", func() (string, error) { return w.run(pushCommand(), "", run, "hf://org/mine", "--private") }},
		{"a revision", "is not hf://org/name", func() (string, error) { return w.run(pushCommand(), "", run, "hf://org/mine@main") }},
		{"no organization", "is not hf://org/name", func() (string, error) { return w.run(pushCommand(), "", run, "hf://mine") }},
		{"no hub", "is not hf://org/name", func() (string, error) { return w.run(pushCommand(), "", run, "org/mine") }},
		{"no run", "no training run", func() (string, error) { return w.run(pushCommand(), "", "nothing", "hf://org/mine") }},
		{"a base of a model", "no adapter", func() (string, error) { return w.run(pullCommand(), "", "hf://org/mine", "--base", served) }},
		{"a base and a folder", "for an import", func() (string, error) {
			return w.run(pullCommand(), "", "hf://org/mine", filepath.Join(t.TempDir(), "x"), "--base", served)
		}},
		{"another repository", "no such repository", func() (string, error) { return w.run(pullCommand(), "", "hf://org/other") }},
	} {
		if out, err := c.run(); err == nil || !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%s: %q, %v, expected %q", c.name, out, err, c.wants)
		}
	}
	if h.files["config.json"] == nil || h.commits != 2 {
		t.Errorf("what was refused has changed something: %d commits", h.commits)
	}
	if _, err := w.run(pushCommand(), "", run, "hf://org/mine", "--private", "--replace"); err != nil || len(h.files) != 3 || h.files["config.json"] != nil {
		t.Errorf("%v: %d files", err, len(h.files))
	}
}

// TestSource: what is said of where an adapter comes from is one line that is shown as it is.
func TestSource(t *testing.T) {
	w := newWorld(t)
	mine := caller{w, ""}.settle()
	dir := filepath.Join(t.TempDir(), "named `|\u202e")
	_, err := w.run(exportCommand(), "", mine.path("weights"), dir)
	w.ok(err)
	_, err = w.run(importCommand(), "", dir, "--base", served, "--name", "x")
	w.ok(err)
	if out, err := w.run(runsCommand(), ""); err != nil || strings.Contains(out, "imported from") || !strings.Contains(out, "  sha256 ") {
		t.Errorf("a name that turns the line is said: %v, %q", err, out)
	}
	if status, answer := (caller{w, ""}).send(http.MethodPost, "/api/v1/tinsmith/import?base_model="+served+"&name=x&source=a%E2%80%AEb", nil); status != http.StatusBadRequest || !strings.Contains(answer, "printable") {
		t.Errorf("a source that turns the line is taken: %d %s", status, answer)
	}
	if got := cell("a`|\u202e\n# b"); got != "`a# b`" {
		t.Errorf("a cell is %q", got)
	}
}
