package cudart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// placesVariable has TestLibraryPlaces open each library and say where it was found, with this folder in the configuration.
const placesVariable = "TINSMITH_TEST_LIBRARY_PLACES"

// Every library is looked for in the folders of the configuration, then where LD_LIBRARY_PATH and the system say, then in pip's folders; the error says where it was not.
func TestLibraryPlaces(t *testing.T) {
	libraries := []string{"libcuda.so.1", "libnccl.so.2", "libcublasLt.so.12"}
	if dir, is := os.LookupEnv(placesVariable); is {
		o := Options{Directories: []string{dir}}
		say := func(name, path string, err error) { fmt.Printf("%s is %s, error %v\n", name, path, err) }
		if d, err := Open(o); err != nil {
			say(libraries[0], "", err)
		} else {
			say(libraries[0], d.Path(), nil)
			d.Close()
		}
		if n, err := OpenNCCL(o); err != nil {
			say(libraries[1], "", err)
		} else {
			say(libraries[1], n.Path(), n.Close())
		}
		if l, err := openCuBLASLt(libraries[2:], o); err != nil {
			say(libraries[2], "", err)
		} else {
			say(libraries[2], l.Path(), nil)
			l.Close()
		}
		return
	}
	from := shim.WithCuBLASLt(shim.Require(t, shim.Options{}))
	// folder makes one with all libraries.
	folder := func(dir string) string {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for i, name := range libraries {
			if err := os.Symlink(filepath.Join(from[i/2], name), filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	empty, configured, system, environment := t.TempDir(), folder(filepath.Join(t.TempDir(), "configured")), folder(filepath.Join(t.TempDir(), "system")), t.TempDir()
	pip := folder(filepath.Join(environment, "lib", "python3.11", "site-packages", "nvidia", "some", "lib"))
	found := func(configured, system, environment string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestLibraryPlaces$")
		for _, v := range os.Environ() {
			if name, _, _ := strings.Cut(v, "="); name != "LD_LIBRARY_PATH" && name != "VIRTUAL_ENV" && name != "CONDA_PREFIX" && name != "HOME" {
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, placesVariable+"="+configured, "LD_LIBRARY_PATH="+system, "VIRTUAL_ENV="+environment, "HOME="+empty)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	nowhere := found(empty, "", "")
	for i, name := range libraries {
		if !strings.Contains(nowhere, name+" is , error ") {
			t.Logf("this machine has a %s", name)
			continue
		}
		if i == 2 && !strings.Contains(nowhere, "cuBLASLt was not found") || !strings.Contains(nowhere, name+" could not be loaded ("+filepath.Join(empty, name)+": ") || !strings.Contains(nowhere, "; pip's folders lib/python3*/{site,dist}-packages/nvidia/*/lib below ") {
			t.Errorf("the error does not say where %s was looked for:\n%s", name, nowhere)
		}
		for _, c := range []struct{ what, configured, system, environment, want string }{
			{"in the configuration", configured, "", "", filepath.Join(configured, name)},
			{"for the loader", empty, system, "", name},
			{"of pip", empty, "", environment, filepath.Join(pip, name)},
			{"in the configuration first", configured, system, environment, filepath.Join(configured, name)},
			{"for the loader before pip", empty, system, environment, name},
		} {
			if got := found(c.configured, c.system, c.environment); !strings.Contains(got, name+" is "+c.want+", error <nil>\n") {
				t.Errorf("%s: want %s at %q:\n%s", c.what, name, c.want, got)
			}
		}
	}
}
