package ordeal

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestRunUnderOtherPlacements kills a server and starts it again over the same data with another placement, several times: ones that promise the same bits, and one that cannot have the model, under which operations fail with the reason and
// nothing is lost. All that the run gives and what it ends with must be what a server gives that has one device from the first to the last.
func TestRunUnderOtherPlacements(t *testing.T) {
	more := settings{"recovery": settings{"snapshot_operations": *pointEvery, "disk_share": 1.0}} // a part of the past is loaded, a part runs again
	live := func(moved bool) findings {
		s := newServer(t, placements["single"], more)
		s.start()
		s.ready()
		c, f := newCaller(t, s.url), findings{}
		r := c.create(c.session(), 0, 4)
		place := func(backend settings) {
			if !moved {
				return
			}
			s.ok(s.process.Process.Kill())
			<-s.ended
			s.configure(backend, more)
			s.ok(s.startAgain())
		}
		round := func(i int, name string) {
			pass, step := r.pass(i, 3, 20), r.step(1e-2)
			place(placements[name]) // which gets what is not done
			_, b := pass.must()
			out, _ := step.must()
			made, _ := r.saveForSampler("", i).must()
			_, tokens := c.sample(made["sampling_session_id"].(string), 0, 6).must()
			f[fmt.Sprint("round ", i)] = fmt.Sprintf("%s %v %x", essence(t, b), out["metrics"].(object)["grad_norm"], tokens)
		}
		round(0, "single")
		round(1, "shard_base")
		if moved {
			const reason = "cannot be cut over 3 devices"
			place(settings{"plugin": "tensorparallel", "devices": []string{"cpu", "cpu", "cpu"}})
			s.await("refused", func(h health) bool {
				return len(h.Models) == 1 && h.Models[0].State == "failed" && strings.Contains(h.Models[0].Reason, reason)
			})
			for _, failed := range []submitted{r.pass(9, 3, 20), r.step(1e-2)} {
				if _, _, err := failed.result(); err == nil || !strings.Contains(err.Error(), reason) {
					t.Errorf("an operation under a backend that cannot have the model ended with %v", err)
				}
			}
		}
		place(placements["split"])
		round(2, "dataparallel")
		round(3, "single")
		r.save("end").must()
		f["weights and optimizer"] = sums(t, filepath.Join(s.dir, "data", "checkpoints", "*", "weights", "end~*"))
		if strings.Contains(s.log(), "may differ in its bits") {
			t.Error("the log says that bits may differ")
		}
		return f
	}
	compare(t, live(true), live(false))
}
