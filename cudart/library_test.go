package cudart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// placesVariable has TestLibraryPlaces open each library and say where it was found, with this folder in the configuration.
const placesVariable = "TINSMITH_TEST_LIBRARY_PLACES"

// Every library is looked for in the folders of the configuration, then where LD_LIBRARY_PATH and the system say, then in pip's folders; the error says where it was not. One that does not fit is passed over, unless it is in the configuration, and told of where none fits.
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
	// made makes a folder with libraries that tell a version and have no other function.
	made := func(dir string, driver, nccl, cublaslt int) string {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		source := fmt.Sprintf("#include <stddef.h>\nint cuDriverGetVersion(int *v) { *v = %d; return 0; }\nint ncclGetVersion(int *v) { *v = %d; return 0; }\nsize_t cublasLtGetVersion(void) { return %d; }\n", driver, nccl, cublaslt)
		for _, name := range libraries {
			cmd := exec.CommandContext(t.Context(), "cc", "-shared", "-fPIC", "-Wl,-soname,"+name, "-x", "c", "-", "-o", filepath.Join(dir, name))
			cmd.Stdin = strings.NewReader(source)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		return dir
	}
	old, lacking := made(filepath.Join(t.TempDir(), "old"), 11080, 21003, 111103), t.TempDir()
	incomplete := made(filepath.Join(lacking, "lib", "python3.11", "site-packages", "nvidia", "some", "lib"), 12020, 21905, 120304)
	says := [][2]string{{"supports CUDA 11.8: 12.0 is needed", "supports CUDA 12.2 and has no function cuInit"}, {"is version 2.10.3: 2.16.0 is needed", "is version 2.19.5 and has no function ncclGetErrorString"},
		{"is version 11.11.3: 12.0.0 is needed", "is version 12.3.4 and has no function cublasLtGetStatusString"}}
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
			{"behind one that is too old", empty, old + ":" + system, environment, filepath.Join(system, name)},
			{"of pip behind one that is too old", empty, old, environment, filepath.Join(pip, name)},
		} {
			if got := found(c.configured, c.system, c.environment); !strings.Contains(got, name+" is "+c.want+", error <nil>\n") {
				t.Errorf("%s: want %s at %q:\n%s", c.what, name, c.want, got)
			}
		}
		for _, c := range []struct {
			what, configured, system, environment string
			want                                  []string
		}{
			{"too old in the configuration", old, system, environment, []string{filepath.Join(old, name) + " " + says[i][0] + "; it is in a folder that was set, so no other is taken"}},
			{"too old, and without functions", empty, old, lacking, []string{name + " is there, but none that can be used (" + filepath.Join(empty, name) + ": ", `LD_LIBRARY_PATH "` + old + `" and the system's cache: ` + filepath.Join(old, name) + " " + says[i][0] + "; ", filepath.Join(incomplete, name) + " " + says[i][1] + "; pip's folders "}},
		} {
			got := found(c.configured, c.system, c.environment)
			line := ""
			for l := range strings.Lines(got) {
				if strings.HasPrefix(l, name+" is , error ") {
					line = l
				}
			}
			for _, want := range c.want {
				if !strings.Contains(line, want) || strings.Contains(line, "not found") || strings.Count(line, says[i][0]) != 1 {
					t.Errorf("%s: want %q for %s:\n%s", c.what, want, name, got)
				}
			}
		}
	}
}

// What ldconfig prints of one library.
func TestCachedLibraries(t *testing.T) {
	const list = "2 libs found in cache `/etc/ld.so.cache'\n\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2\n\tlibnccl.so.2.1 (libc6,x86-64) => /opt/libnccl.so.2.1\n\tlibnccl.so.2 (libc6,x86-64, hwcap: \"x86-64-v3\") => /opt/my libraries/libnccl.so.2\n\tlibnccl.so.2\n"
	if got := cached(list, "libnccl.so.2"); !slices.Equal(got, []string{"/usr/lib/x86_64-linux-gnu/libnccl.so.2", "/opt/my libraries/libnccl.so.2"}) {
		t.Errorf("%q", got)
	}
	if got := cached("", "libnccl.so.2"); len(got) != 0 {
		t.Errorf("%q", got)
	}
}

// A driver that was started stays in memory after Close: its threads outlive the handle, as do the functions that it has called when the program's threads end. One that finds no device is given back.
func TestDriverStaysLoaded(t *testing.T) {
	library, err := os.ReadFile(filepath.Join(shim.Require(t, shim.Options{}), "libcuda.so.1"))
	if err != nil {
		t.Fatal(err)
	}
	openDriver(t) // a first copy of a C++ library may stay for what all of them share
	for _, c := range []struct {
		name, devices string
		stays         bool
	}{{"started", "1", true}, {"no device", "0", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_DEVICES", c.devices)
			dir := t.TempDir() // that no other test has loaded it from
			if err := os.WriteFile(filepath.Join(dir, "libcuda.so.1"), library, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				d, err := Open(Options{Directories: []string{dir}})
				if (err == nil) != c.stays {
					t.Fatalf("error %v", err)
				}
				if err == nil {
					d.Close()
				}
			}
			maps, err := os.ReadFile("/proc/self/maps")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(maps), dir) != c.stays {
				t.Errorf("in memory: %v, want %v", !c.stays, c.stays)
			}
		})
	}
}
