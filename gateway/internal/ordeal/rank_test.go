package ordeal

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// driverVariable has a program with faults print the folder of a CUDA driver that needs no GPU (backends/internal/programtest); nothing where there is no compiler for it.
const driverVariable = "TINSMITH_TEST_DRIVER"

// loss is a fault of a rank and what is told of it.
type loss struct{ fault, reason string }

// TestRankThatIsLost has one of two ranks hang in a pass, and later panic, and CUDA's second device fail: each time the plugin ends itself and says which rank or device it was and what went wrong there, and everything
// goes on with the bits of an undisturbed run. The plugins are the programs with devices that take faults (backends/internal/programtest).
func TestRankThatIsLost(t *testing.T) {
	processors := settings{"devices": []string{"cpu", "cpu"}, "threads": 2}
	gpus := settings{"devices": []string{"cuda:0", "cuda:1"}, "kv_cache_tokens": 4096, "max_batch": 4, "batch_tokens": 64}
	lost := []loss{{"lose 1", "cuda:1: "}}
	losses := func(missing string) []loss {
		return []loss{{"hang 1", "rank 1 of 2 on cpu: " + missing}, {"panic 1", "rank 1 of 2 on cpu has panicked: told to panic"}}
	}
	for _, c := range []struct {
		name, plugin string
		section      settings
		losses       []loss
	}{
		{"copies", "dataparallel", processors, losses("no sign for 10s of what it runs")},
		{"a model that is cut", "tensorparallel", processors, losses("missing for 10s from all-reduce")},
		{"copies on GPUs", "dataparallel", gpus, lost},
		{"a model that is cut over GPUs", "tensorparallel", gpus, lost},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "copies on GPUs" && os.Getenv("E2E_LEVEL") != "all" {
				t.Skip("kernels on the processor take half a minute; E2E_LEVEL=all runs it")
			}
			faulty := t.TempDir() // the programs without faults stay what they are
			if err := copyProgram(filepath.Join(programs, "tinsmith"), filepath.Join(faulty, "tinsmith")); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(faulty, "plugins", c.plugin)
			build := exec.Command("go", "test", "-c", "-o", program, "./backends/"+c.plugin)
			build.Dir = root()
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build %s: %v\n%s", c.plugin, err, out)
			}
			backend := settings{"plugin": c.plugin, "dtype": "float32"}
			maps.Copy(backend, c.section)
			if c.losses[0] == lost[0] {
				driver := exec.Command(program)
				driver.Env = append(os.Environ(), driverVariable+"=1")
				folder, err := driver.Output()
				if err != nil {
					t.Fatal(err)
				}
				if len(folder) == 0 {
					t.Skip("no C++ compiler (g++ or clang++) is installed")
				}
				backend["cuda_libraries"] = []string{string(folder)}
			}
			live := func(disturbed bool) findings {
				s := newServer(t, backend, settings{"backends": settings{"progress_timeout": "20s"}})
				s.programs = faulty
				s.start()
				s.ready()
				c, f, losses := newCaller(t, s.url), findings{}, c.losses
				r := c.create(c.session(), 0, 4)
				round := func(i int, l loss) {
					if disturbed && l.fault != "" {
						s.ok(os.WriteFile(program+".fault", []byte(l.fault), 0o600))
					}
					pass, step := r.pass(i, 4, 12), r.step(1e-2)
					_, b := pass.must()
					step.must()
					f[fmt.Sprint("round ", i)] = essence(t, b)
					s.await(fmt.Sprintf("well after %q", l.fault), func(h health) bool {
						return h.Status == "ok" && h.Models[0].State == "ready" && (!disturbed || h.Models[0].Restarts >= (i+1)/2) &&
							(!disturbed || l.reason == "" || strings.Contains(h.Models[0].LastLoss, "exit status 1: "+l.reason))
					})
				}
				for i, l := range losses {
					round(2*i, loss{})
					round(2*i+1, l)
				}
				round(2*len(losses), loss{})
				r.save("end").must()
				f["weights and optimizer"] = sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
				return f
			}
			compare(t, live(true), live(false))
		})
	}
}
