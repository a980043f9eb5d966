package layout

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// instruction is one of the Dockerfile's, its continued lines joined.
type instruction struct {
	name      string
	arguments []string
}

func readDockerfile(t *testing.T) []instruction {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	var all []instruction
	for line := range strings.SplitSeq(strings.ReplaceAll(string(text), "\\\n", " "), "\n") {
		if fields := strings.Fields(line); len(fields) > 0 && !strings.HasPrefix(fields[0], "#") {
			all = append(all, instruction{fields[0], fields[1:]})
		}
	}
	return all
}

// ignored tells whether .dockerignore keeps a path out of what an image is built from: everything but what is named in it.
func ignored(t *testing.T, path string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	top, _, _ := strings.Cut(path, "/")
	return !slices.Contains(strings.Split(string(text), "\n"), "!"+top)
}

// The stages of the container build on each other, what they copy is there, and the one that is built by default is the one without CUDA.
func TestDockerfile(t *testing.T) {
	known := []string{"FROM", "ARG", "WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
	parents := map[string]string{} // of the stages with a name
	last, cuda := "", map[string]bool{}
	for _, i := range readDockerfile(t) {
		if !slices.Contains(known, i.name) {
			t.Errorf("unknown instruction %s", i.name)
		}
		switch i.name {
		case "FROM":
			last = ""
			if len(i.arguments) == 3 && i.arguments[1] == "AS" {
				last = i.arguments[2]
			} else if len(i.arguments) != 1 {
				t.Errorf("FROM %v: want an image, and AS with a name", i.arguments)
			}
			parents[last] = i.arguments[0]
		case "COPY":
			from := ""
			sources := i.arguments[:len(i.arguments)-1]
			if name, ok := strings.CutPrefix(sources[0], "--from="); ok {
				from, sources = name, sources[1:]
				if _, there := parents[from]; !there || from == last {
					t.Errorf("COPY --from=%s: no stage before this one is called so", from)
				}
			}
			for _, s := range sources {
				if from != "" || s == "." {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, s)); err != nil || ignored(t, s) {
					t.Errorf("COPY %s: it is not in the repository, or .dockerignore keeps it out (%v)", s, err)
				}
			}
		case "ENV":
			for _, a := range i.arguments {
				if name, _, ok := strings.Cut(a, "="); !ok {
					t.Errorf("ENV %s: want NAME=VALUE", a)
				} else if last == "cuda" {
					cuda[name] = true
				}
			}
		}
	}
	if last != "" || parents["cuda"] != "base" || parents[""] != "base" {
		t.Errorf("the stages stand on %v; want cuda and the last one, which has no name, on base", parents)
	}
	for _, name := range []string{"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_CACHE_PATH"} {
		if !cuda[name] {
			t.Errorf("the stage cuda does not set %s", name)
		}
	}
}
