package ordeal

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRankThatIsLost has one of two ranks hang in a pass, and later panic: each time the plugin ends itself and says which rank it was and what it was missing from, and everything goes on with the bits of an undisturbed run.
// The plugins are the programs with devices that take faults (backends/internal/programtest).
func TestRankThatIsLost(t *testing.T) {
	for plugin, missing := range map[string]string{
		"dataparallel":   "rank 1 of 2 on cpu: no sign for 10s of what it runs",
		"tensorparallel": "rank 1 of 2 on cpu: missing for 10s from all-reduce",
	} {
		t.Run(plugin, func(t *testing.T) {
			faulty := t.TempDir() // the programs without faults stay what they are
			if err := copyProgram(filepath.Join(programs, "tinsmith"), filepath.Join(faulty, "tinsmith")); err != nil {
				t.Fatal(err)
			}
			program := filepath.Join(faulty, "plugins", plugin)
			build := exec.Command("go", "test", "-c", "-o", program, "./backends/"+plugin)
			build.Dir = root()
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("build %s: %v\n%s", plugin, err, out)
			}
			live := func(lost bool) findings {
				s := newServer(t, settings{"plugin": plugin, "devices": []string{"cpu", "cpu"}, "dtype": "float32", "threads": 2}, settings{"backends": settings{"progress_timeout": "20s"}})
				s.programs = faulty
				s.start()
				s.ready()
				c, f, losses := newCaller(t, s.url), findings{}, 0
				r := c.create(c.session(), 0, 4)
				round := func(i int, fault, reason string) {
					if lost && fault != "" {
						losses++
						s.ok(os.WriteFile(program+".fault", []byte(fault), 0o600))
					}
					pass, step := r.pass(i, 4, 12), r.step(1e-2)
					_, b := pass.must()
					step.must()
					f[fmt.Sprint("round ", i)] = essence(t, b)
					s.await(fmt.Sprintf("well after %q", fault), func(h health) bool {
						return h.Status == "ok" && h.Models[0].State == "ready" && h.Models[0].Restarts >= losses &&
							(losses == 0 || reason == "" || strings.Contains(h.Models[0].LastLoss, "exit status 1: "+reason))
					})
				}
				round(0, "", "")
				round(1, "hang 1", missing)
				round(2, "", "")
				round(3, "panic 1", "rank 1 of 2 on cpu has panicked: told to panic")
				round(4, "", "")
				r.save("end").must()
				f["weights and optimizer"] = sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
				return f
			}
			compare(t, live(true), live(false))
		})
	}
}
