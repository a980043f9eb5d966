package cmd

import (
	"archive/tar"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// names lists a folder.
func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return strings.Join(list, " ")
}

func TestExport(t *testing.T) {
	w := newWorld(t)
	mine := caller{w, ""}.settle()
	for _, c := range []struct{ name, what, holds string }{
		{"live run", "tinker://" + mine.run, "README.md adapter_config.json adapter_model.safetensors checkpoint.json checkpoint_complete"},
		{"bare run", mine.run, "README.md adapter_config.json adapter_model.safetensors checkpoint.json checkpoint_complete"},
		{"sampler checkpoint", mine.path("sampler_weights"), "README.md adapter_config.json adapter_model.safetensors checkpoint.json checkpoint_complete"},
		{"external checkpoint", mine.path("external_weights"), "README.md adapter_config.json adapter_model.safetensors checkpoint.json checkpoint_complete"},
		{"training checkpoint", mine.path("weights"), "README.md adapter_config.json adapter_model.safetensors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "new", "folder")
			out, err := w.run(exportCommand(), "", c.what, dir)
			if err != nil {
				t.Fatal(err)
			}
			if got := names(t, dir); got != c.holds {
				t.Errorf("it holds %s, expected %s", got, c.holds)
			}
			if !strings.Contains(out, ", step 0, of "+served) {
				t.Errorf("it says %q", out)
			}
			if left := names(t, filepath.Dir(dir)); left != "folder" {
				t.Errorf("beside it: %s", left)
			}
			if left, err := os.ReadDir(filepath.Join(w.data, "incoming")); err == nil && len(left) > 0 {
				t.Errorf("the server keeps %v", left)
			}
		})
	}
	for _, c := range []struct{ what, says string }{
		{"tinker://nothing/weights/x", "no checkpoint"}, {"nothing", "no training run"}, {"tinker://a/b", "expected tinker://RUN/KIND/NAME"}, {"", "expected tinker://"}, {"../../etc", "expected tinker://"},
	} {
		dir := filepath.Join(t.TempDir(), "x")
		if _, err := w.run(exportCommand(), "", c.what, dir); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, expected %q", c.what, err, c.says)
		}
		if left := names(t, filepath.Dir(dir)); left != "" {
			t.Errorf("%q left %s", c.what, left)
		}
	}
}

// TestExportIntoThisFolder: an empty folder that is there stays the folder it is, for a shell that is in it and for whoever may read it.
func TestExportIntoThisFolder(t *testing.T) {
	w := newWorld(t)
	mine := caller{w, ""}.settle()
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "link")
	w.ok(os.Symlink(dir, link))
	w.ok(os.Chmod(dir, 0o750))
	before, err := os.Stat(dir)
	w.ok(err)
	for _, target := range []string{".", link} {
		t.Run(target, func(t *testing.T) {
			t.Chdir(dir)
			if _, err := w.run(exportCommand(), "", mine.path("weights"), target); err != nil {
				t.Fatal(err)
			}
			if after, err := os.Stat(dir); err != nil || !os.SameFile(before, after) || after.Mode() != before.Mode() {
				t.Errorf("it is another folder: %v, %v", after, err)
			}
			if got := names(t, "."); got != "README.md adapter_config.json adapter_model.safetensors" {
				t.Errorf("it holds %s", got)
			}
			if _, err := w.run(exportCommand(), "", mine.path("weights"), target); err == nil || !strings.Contains(err.Error(), "is not empty") {
				t.Errorf("a second time: %v", err)
			}
			for _, file := range []string{cardFile, plugins.AdapterConfigFile, plugins.AdapterWeightsFile} {
				w.ok(os.Remove(file))
			}
			if _, err := w.run(exportCommand(), "", "tinker://nobody", target); err == nil || names(t, ".") != "" {
				t.Errorf("what fails leaves %s: %v", names(t, "."), err)
			}
		})
	}
}

// TestExportOfOthers: what somebody has published can be exported by everybody, and nothing else of theirs.
func TestExportOfOthers(t *testing.T) {
	_, ann, bob, _ := keyed(t)
	theirs := ann.settle()
	ann.demand(http.MethodPost, "/api/v1/training_runs/"+theirs.run+"/checkpoints/weights/"+theirs.name+"/publish", nil)
	for what, wanted := range map[string]int{theirs.path("weights"): 200, theirs.path("sampler_weights"): 404, "tinker://" + theirs.run: 404} {
		if status, answer := bob.send(http.MethodGet, "/api/v1/tinsmith/export?path="+what, nil); status != wanted {
			t.Errorf("%s: %d %.200s, expected %d", what, status, answer, wanted)
		}
	}
}

// TestExportOfDamage: files that are not as they were saved are not given out.
func TestExportOfDamage(t *testing.T) {
	w := newWorld(t)
	mine := caller{w, ""}.settle()
	found, err := filepath.Glob(filepath.Join(w.data, "checkpoints", "*", "weights", "*", plugins.AdapterWeightsFile))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	w.ok(os.WriteFile(found[0], []byte("something else"), 0o600))
	if _, err := w.run(exportCommand(), "", mine.path("weights"), filepath.Join(t.TempDir(), "x")); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("%v", err)
	}
}

// TestExportOfBadServers: whatever a server sends, nothing is written outside of the folder, and nothing is left that is not whole.
func TestExportOfBadServers(t *testing.T) {
	for name, send := range map[string]func(out *tar.Writer){
		"a path": func(out *tar.Writer) {
			out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "../../x", Size: 1})
			out.Write([]byte("x"))
		},
		"a link": func(out *tar.Writer) {
			out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: plugins.AdapterWeightsFile, Linkname: "/etc/passwd"})
		},
		"nothing": func(*tar.Writer) {},
		"twice": func(out *tar.Writer) {
			for range 2 {
				out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: plugins.AdapterConfigFile})
			}
		},
		"an early end": func(out *tar.Writer) {
			out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: plugins.AdapterWeightsFile, Size: 1000})
			out.Write([]byte("x"))
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				out := tar.NewWriter(w)
				send(out)
				out.Close()
			}))
			defer ts.Close()
			dir := t.TempDir()
			c := exportCommand()
			c.SetArgs([]string{"run", filepath.Join(dir, "x"), "--url", ts.URL})
			c.SilenceErrors, c.SilenceUsage = true, true
			if err := c.ExecuteContext(t.Context()); err == nil {
				t.Error("it succeeds")
			}
			if left := names(t, dir); left != "" {
				t.Errorf("it left %s", left)
			}
		})
	}
}

// TestExportWithoutAHash: a base model of the user's is not merged into unless it can be compared.
func TestExportWithoutAHash(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		out := tar.NewWriter(w)
		for name, content := range map[string]string{plugins.AdapterConfigFile: "{}", plugins.AdapterWeightsFile: "\x02\x00\x00\x00\x00\x00\x00\x00{}"} {
			out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content))})
			out.Write([]byte(content))
		}
		out.Close()
	}))
	defer ts.Close()
	c := exportCommand()
	c.SetArgs([]string{"run", filepath.Join(t.TempDir(), "x"), "--url", ts.URL, "--merge", "--base", "../../../configs/models/tiny-chat"})
	c.SilenceErrors, c.SilenceUsage = true, true
	if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "does not say on which base model") {
		t.Errorf("%v", err)
	}
}

// TestModelFiles: what of a model's directory is given out, and to whom.
func TestModelFiles(t *testing.T) {
	_, ann, _, root := keyed(t)
	const path = "/api/v1/tinsmith/models/files?model=an/alias"
	for _, c := range []struct {
		name, file string
		who        caller
		status     int
	}{
		{"list", "", ann, 200}, {"tokenizer", "&file=tokenizer.json", ann, 200}, {"weights", "&file=model.safetensors", ann, 403}, {"weights, administrator", "&file=model.safetensors", root, 200},
		{"model card", "&file=README.md", root, 404}, {"a way out", "&file=../default.yaml", root, 404}, {"a folder", "&file=make", root, 404}, {"no file", "&file=x.json", ann, 404},
	} {
		if status, answer := c.who.send(http.MethodGet, path+c.file, nil); status != c.status {
			t.Errorf("%s: %d %.200s, expected %d", c.name, status, answer, c.status)
		}
	}
	if status, _ := ann.send(http.MethodGet, "/api/v1/tinsmith/models/files?model=x", nil); status != 404 {
		t.Errorf("an unknown model: %d", status)
	}
}
