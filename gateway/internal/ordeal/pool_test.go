package ordeal

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire/tinkerpb"
)

var (
	poolKills = flag.Int("pool-kills", 0, "backends that TestPoolKills kills; 0: 12, with E2E_LEVEL=all 200")
	poolSeed  = flag.Uint64("pool-seed", 0, "of which and when; 0 draws one")
)

// drawn is what of a sample's answer must repeat bit by bit: the sequences, and not what of the prompt was there already.
func drawn(t testing.TB, answer []byte) string {
	t.Helper()
	var out tinkerpb.SampleResponse
	if err := proto.Unmarshal(answer, &out); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(out.Sequences)
}

// ofPool is the model with so many backends that are alike.
func ofPool(replicas int, backend settings) settings {
	return pooled(settings{"backend": backend, "replicas": replicas})
}

// ofBackends is the model with these backends.
func ofBackends(sections ...any) settings { return pooled(settings{"backends": sections}) }

// pooled is the configuration of the model with what its section says of its backends.
func pooled(section settings) settings {
	section["name"], section["path"] = modelName, filepath.Join(root(), "configs", "models", "tiny-chat")
	return settings{"models": []any{section}, "recovery": settings{"snapshot_operations": 4, "disk_share": 1.0}}
}

// studies has so many runs trained at once, each with samples of what it has become, and gives what each of them said and what its files are.
func studies(c caller, data string, runs, steps int) []findings {
	session := c.session()
	out := make([]findings, runs)
	trainees := make([]*trainee, runs)
	for n := range runs {
		trainees[n] = c.create(session, n, 4)
	}
	var all sync.WaitGroup
	for n, r := range trainees {
		all.Go(func() {
			f := findings{}
			out[n] = f
			fail := func(err error) bool {
				if err != nil {
					c.Errorf("run %d: %v", n, err)
				}
				return err != nil
			}
			for i := range steps {
				one, two := r.pass(n+i, 2, 10), r.step(5e-3)
				_, b, err := one.result()
				if fail(err) {
					return
				}
				f[fmt.Sprintf("pass %d", i)] = essence(c, b)
				step, _, err := two.result()
				if fail(err) {
					return
				}
				m := step["metrics"].(object)
				f[fmt.Sprintf("step %d", i)] = fmt.Sprint(m["grad_norm"], m["adapter_norm"])
				if i%3 != 2 {
					continue
				}
				saved, _, err := r.saveForSampler("", 1000*n+i).result()
				if fail(err) {
					return
				}
				sampler := saved["sampling_session_id"].(string)
				samples := []submitted{c.sample(sampler, 0, 6), c.sample(sampler, 1, 6)}
				for k, s := range samples {
					_, b, err := s.result()
					if fail(err) {
						return
					}
					f[fmt.Sprintf("sample %d of step %d", k, i)] = drawn(c, b)
				}
			}
			name := fmt.Sprintf("final-%d", n)
			_, _, err := r.save(name).result()
			if !fail(err) {
				f["weights and optimizer"] = sums(c, filepath.Join(data, "checkpoints", "*", "weights", name+"~*"))
			}
		})
	}
	all.Wait()
	return out
}

// TestPoolKills kills the backends of a model that has four, at random and while many runs train and are sampled: nothing is lost, nothing is done twice, and everything that was saved is what an undisturbed server saves.
func TestPoolKills(t *testing.T) {
	kills, runs, steps := *poolKills, 12, 9
	if all := os.Getenv("E2E_LEVEL") == "all"; kills == 0 && all {
		kills, runs, steps = 200, 64, 60
	} else if kills == 0 {
		kills = 12
	}
	if kills > 100 {
		runs, steps = 64, 60
	}
	seed := *poolSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d kills, %d runs of %d steps, -pool-seed %d", kills, runs, steps, seed)
	calm := newServer(t, settings{"plugin": "fake"}, nil)
	calm.start()
	calm.ready()
	want := studies(newCaller(t, calm.url), filepath.Join(calm.dir, "data"), runs, steps)
	calm.end()

	s := newServer(t, nil, ofPool(4, settings{"plugin": "fake", "delays": []any{settings{"operation": "forward_backward", "seconds": 0.02}, settings{"operation": "sample", "seconds": 0.02}}}))
	s.start()
	s.ready()
	over, killed := make(chan struct{}), 0
	var killing sync.WaitGroup
	killing.Go(func() {
		source := rand.New(rand.NewPCG(seed, 1))
		for killed < kills {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(source.IntN(400)) * time.Millisecond):
			}
			if pids := children(s.process.Process.Pid); len(pids) > 0 && syscall.Kill(pids[source.IntN(len(pids))], syscall.SIGKILL) == nil {
				killed++
			}
		}
	})
	got := studies(newCaller(t, s.url), filepath.Join(s.dir, "data"), runs, steps)
	close(over)
	killing.Wait()
	t.Logf("%d backends were killed", killed)
	for n := range want {
		compare(t, got[n], want[n])
	}
}

// place is where a run is.
func (r *trainee) place() (backend string, settled bool) {
	answer, err := http.Get(r.url + "/api/v1/tinsmith/runs")
	if err != nil {
		r.Error(err)
		return "", false
	}
	defer answer.Body.Close()
	var list struct {
		Runs []struct {
			ID         string `json:"run_id"`
			Backend    string `json:"backend"`
			Inexact    string `json:"inexact"`
			Rebuilding any    `json:"rebuilding"`
		} `json:"runs"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil {
		r.Error(err)
	}
	for _, one := range list.Runs {
		if one.ID == r.id {
			if one.Inexact != "" {
				r.Errorf("%s: %s", r.id, one.Inexact)
			}
			return one.Backend, one.Rebuilding == nil
		}
	}
	return "", false
}

// drain drains a backend, or takes that back.
func (c caller) drain(backend string, on bool) {
	c.Helper()
	body, err := json.Marshal(object{"backend": backend, "drained": on})
	if err != nil {
		c.Fatal(err)
	}
	answer, err := http.Post(c.url+"/api/v1/tinsmith/backends/drain", "application/json", bytes.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		c.Fatalf("drain %s: %d", backend, answer.StatusCode)
	}
}

// journey trains a run for so many steps with the real engine, has it sampled from meanwhile, and calls between after each step.
func journey(c caller, data string, steps int, between func(*trainee)) findings {
	c.Helper()
	f := findings{}
	r := c.create(c.session(), 0, 8)
	var samples []submitted
	for i := range steps {
		one, two := r.pass(i, 3, 24), r.step(5e-3)
		saving := r.saveForSampler("", i)
		_, b := one.must()
		f[fmt.Sprintf("pass %d", i)] = essence(c, b)
		step, _ := two.must()
		m := step["metrics"].(object)
		f[fmt.Sprintf("step %d", i)] = fmt.Sprint(m["grad_norm"], m["adapter_norm"])
		saved, _ := saving.must()
		for k := range 3 { // they are in flight while the run moves
			samples = append(samples, c.sample(saved["sampling_session_id"].(string), k, 60))
		}
		ahead := r.pass(1000+i, 2, 16) // its gradient is what moves with the run
		between(r)
		_, b = ahead.must()
		f[fmt.Sprintf("pass %d, ahead", i)] = essence(c, b)
	}
	for i, s := range samples {
		_, b := s.must()
		f[fmt.Sprintf("sample %d", i)] = drawn(c, b)
	}
	r.step(5e-3).must()
	r.save("final").must()
	f["weights and optimizer"] = sums(c, filepath.Join(data, "checkpoints", "*", "weights", "final~*"))
	return f
}

// TestPoolMovesTheEngine moves a run after each of 20 steps between two backends with the real engine, of one machine or of two, with samples in flight: it has the bits of one that never moved, and its client notices nothing.
func TestPoolMovesTheEngine(t *testing.T) {
	const steps = 20
	backend := settings{"plugin": "single", "threads": 1}
	still := newServer(t, backend, nil)
	still.start()
	still.ready()
	want := journey(newCaller(t, still.url), filepath.Join(still.dir, "data"), steps, func(*trainee) {})
	still.end()

	for _, c := range []struct {
		name string
		more func(t *testing.T) settings
	}{
		{"one machine", func(*testing.T) settings { return ofPool(2, backend) }},
		{"two machines", func(t *testing.T) settings {
			p := newPlatform(t, "single")
			return ofBackends(backend, p.section(p.address, settings{"threads": 1}))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t, nil, c.more(t))
			s.start()
			s.await("ready", func(h health) bool {
				return h.Status == "ok" && len(h.Models) == 1 && !slices.ContainsFunc(h.Models[0].Backends, func(b backendHealth) bool { return b.State != "ready" })
			})
			moves := 0
			got := journey(newCaller(t, s.url), filepath.Join(s.dir, "data"), steps, func(r *trainee) {
				from, _ := r.place()
				r.drain(from, true)
				for deadline := time.Now().Add(within); ; time.Sleep(2 * time.Millisecond) {
					if now, settled := r.place(); now != from && settled {
						break
					} else if time.Now().After(deadline) {
						t.Fatalf("the run is still in %s", from)
					}
				}
				r.drain(from, false)
				moves++
			})
			if moves != steps {
				t.Errorf("%d moves", moves)
			}
			compare(t, got, want)
		})
	}
}
