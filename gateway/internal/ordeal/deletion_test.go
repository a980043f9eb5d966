package ordeal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// request repeats a request until the server answers it otherwise than with a failure of its own, and gives the status.
func (c caller) request(method, path, body string) int {
	c.Helper()
	client := http.Client{Transport: c.transport, Timeout: time.Minute}
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		req, err := http.NewRequestWithContext(c.Context(), method, c.url+"/api/v1"+path, bytes.NewReader([]byte(body)))
		if err != nil {
			c.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		answer, err := client.Do(req)
		if err != nil {
			continue
		}
		answer.Body.Close()
		if answer.StatusCode < 500 {
			return answer.StatusCode
		}
	}
	c.Fatalf("%s %s: no answer", method, path)
	return 0
}

// deletions is a life in which everything is deleted that can be: by the user, by a time to live, by a save of the same name, and by the end of the run.
func deletions(c caller) (run string) {
	c.Helper()
	session := c.session()
	a := c.create(session, 0, 2)
	a.pass(0, 1, 8).must()
	a.step(1e-2).must()
	a.save("deleted").must()
	a.save("mortal").must()
	a.save("overwritten").must()
	a.saveForSampler("", 1).must()
	checkpoints := "/training_runs/" + a.id + "/checkpoints/weights/"
	if status := c.request(http.MethodDelete, checkpoints+"deleted", ""); status >= 400 && status != http.StatusNotFound { // the latter when it is asked again after the kill
		c.Errorf("deletion: status %d", status)
	}
	if status := c.request(http.MethodPut, checkpoints+"mortal/ttl", `{"ttl_seconds": 1}`); status >= 400 && status != http.StatusNotFound {
		c.Errorf("ttl: status %d", status)
	}
	c.submit("/save_weights", object{"model_id": a.id, "path": "overwritten", "overwrite": true, "seq_id": a.next(), "type": "save_weights"}).must()
	a.pass(1, 1, 8).must()
	a.step(1e-2).must()
	c.submit("/unload_model", object{"model_id": a.id, "type": "unload_model"}).must()
	return a.id
}

// TestDeletionsUnderKills kills the server before and after every write of such a life. When it has come back, and has had its time, what was to be deleted is, whatever step it was at, what was not is whole, and nothing that was being deleted is unclaimed.
func TestDeletionsUnderKills(t *testing.T) {
	live := func(t *testing.T, kill ...string) (writes int) {
		s := newServer(t, settings{"plugin": "fake"}, settings{"recovery": settings{"snapshot_operations": 1, "disk_share": 1.0}})
		s.kill = kill
		s.start()
		s.revive()
		c := newCaller(t, s.url)
		run := deletions(c)
		data := filepath.Join(s.dir, "data")
		left := func() (found []string) {
			for _, pattern := range []string{"checkpoints/*/weights/deleted~*", "checkpoints/*/weights/mortal~*", "recovery/*/*"} {
				some, _ := filepath.Glob(filepath.Join(data, pattern))
				found = append(found, some...)
			}
			kept, _ := filepath.Glob(filepath.Join(data, "checkpoints/*/weights/overwritten~*"))
			return append(found, kept[min(1, len(kept)):]...)
		}
		for deadline := time.Now().Add(within); len(left()) > 0 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		}
		if found := left(); len(found) > 0 {
			t.Errorf("left are %v", found)
		}
		c.resume(c.session(), 0, "tinker://"+run+"/weights/overwritten").pass(0, 1, 8).must()
		s.end()
		out, errs, err := s.command("recover", "--json")
		if err != nil {
			t.Fatalf("recover: %v\n%s%s", err, out, errs)
		}
		var report struct{ Items, Missing []object }
		s.ok(json.Unmarshal([]byte(out), &report))
		if len(report.Missing) > 0 {
			t.Errorf("records without files: %v", report.Missing)
		}
		if len(kill) == 0 {
			if len(report.Items) > 0 {
				t.Errorf("without a kill something is unclaimed: %v", report.Items)
			}
			b, err := os.ReadFile(filepath.Join(s.dir, "counts"))
			s.ok(err)
			var calls int
			_, err = fmt.Sscan(string(b), &writes, &calls)
			s.ok(err)
		}
		return writes
	}
	writes := live(t)
	begun := time.Now()
	budget := *killsFor
	if os.Getenv("E2E_LEVEL") == "all" {
		budget *= 4
	}
	var points []string
	for n := range writes {
		points = append(points, point{"write", "before", n + 1, "gateway"}.String(), point{"write", "after", n + 1, "gateway"}.String())
	}
	rand.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	tried := 0
	for time.Since(begun) < budget && tried < len(points) {
		some := points[tried:min(tried+6, len(points))]
		tried += len(some)
		t.Run("together", func(t *testing.T) { // mostly they wait for the end of a time to live
			for _, p := range some {
				t.Run(p, func(t *testing.T) { t.Parallel(); live(t, p) })
			}
		})
	}
	t.Logf("%d of %d kill points", tried, len(points))
}
