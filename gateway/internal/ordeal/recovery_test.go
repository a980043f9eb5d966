package ordeal

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/tinsmith/tinsmith/plugins"
)

var (
	kills      = flag.Int("kills", 0, "kill points to try, chosen at random; negative: all; 0: what fits into -kills-for")
	killsFor   = flag.Duration("kills-for", 40*time.Second, "time for kill points when -kills is 0; with E2E_LEVEL=all four times as long")
	killPlugin = flag.String("kills-plugin", "fake", "backend of TestKills: fake, a name in placements, or a whole `backend:` section as YAML, such as '{plugin: single, dtype: float32}'")
	pointEvery = flag.Int("kills-snapshot-operations", 2, "recovery.snapshot_operations while killing")
	killSeed   = flag.Uint64("kills-seed", 0, "of the choice; 0 draws one")
)

// findings are what a client of the script sees and finds on the disk, by name.
type findings map[string]string

// script is a short life of a client of a server whose files are in a folder: two runs, operations sent ahead, checkpoints, named and unnamed samplers, a run that goes on from a checkpoint, and one that goes back to it.
func script(c caller, data string) findings {
	c.Helper()
	return scriptOf(c, func() string { return data })
}

// scriptOf is script for files that data puts into a folder.
func scriptOf(c caller, data func() string) findings {
	c.Helper()
	f := findings{}
	passed := func(name string, s submitted) {
		c.Helper()
		_, b := s.must()
		f[name] = essence(c, b)
	}
	stepped := func(name string, s submitted) {
		c.Helper()
		out, _ := s.must()
		m := out["metrics"].(object)
		f[name] = fmt.Sprint(m["grad_norm"], m["adapter_norm"])
	}
	sampled := func(name string, s submitted) {
		c.Helper()
		_, b := s.must()
		f[name] = fmt.Sprintf("%x", b)
	}
	session := c.session()
	a, b := c.create(session, 0, 4), c.create(session, 1, 2)
	one, two, three := a.pass(0, 3, 12), a.step(1e-2), b.pass(1, 2, 20)
	passed("a: first pass", one)
	stepped("a: first step", two)
	passed("b: first pass", three)
	state, _ := a.save("middle").must()
	unnamed, _ := a.saveForSampler("", 0).must()
	frozen := unnamed["sampling_session_id"].(string)
	sampled("unnamed sampler", c.sample(frozen, 0, 6))
	sampled("with the likeliest", c.sampleWithLikeliest(frozen, 2, 6))
	one, two = b.step(1e-2), a.pass(2, 2, 8)
	three, four := a.pass(3, 1, 30), a.step(5e-3)
	late := c.sample(frozen, 1, 6)
	stepped("b: first step", one)
	passed("a: second pass", two)
	passed("a: third pass", three)
	stepped("a: second step", four)
	sampled("unnamed sampler later", late)
	named, _ := b.saveForSampler("best", 0).must()
	sampled("named sampler", c.sample(c.sampler(session, 1, named["path"].(string)), 0, 6))
	again := c.resume(session, 2, state["path"].(string))
	passed("resumed: pass", again.pass(2, 2, 8))
	stepped("resumed: step", again.step(5e-3))
	one, two = a.pass(4, 1, 10), a.load(state["path"].(string)) // whose gradient is cleared
	three, four = a.pass(2, 2, 8), a.step(5e-3)
	passed("a: pass before the load", one)
	two.must()
	passed("a: pass after the load", three)
	stepped("a: step after the load", four)
	sampled("base model", c.sample(c.sampler(session, 2, ""), 0, 4))
	for name, r := range map[string]*trainee{"a": a, "b": b, "resumed": again} {
		r.save("final-" + name).must()
		f[name+": weights and optimizer"] = sums(c, filepath.Join(data(), "checkpoints", "*", "weights", "final-"+name+"~*"))
	}
	f["a: entropies"] = c.series(a.id, "entropy_topk", "entropy_topk_rest", "prompt_entropy_topk", "prompt_entropy_topk_rest")
	if strings.Count(f["a: entropies"], "[2]") != 4 {
		c.Errorf("the entropies of the one sample that has the likeliest tokens are %s, wanted at the second step", f["a: entropies"])
	}
	if f["unnamed sampler"] != f["unnamed sampler later"] {
		c.Error("the unnamed sampler moved with its run")
	}
	if f["a: pass after the load"] != f["resumed: pass"] || f["a: step after the load"] != f["resumed: step"] {
		c.Error("a run that has loaded a checkpoint is not what one is that was made from it")
	}
	return f
}

// sums gives the checksums of the files of one checkpoint. A save that was repeated after a kill may have left a folder more, which must be the same.
func sums(t testing.TB, pattern string) string {
	t.Helper()
	found, _ := filepath.Glob(pattern)
	text := ""
	for _, dir := range found {
		b, err := os.ReadFile(filepath.Join(dir, plugins.ManifestFile))
		if err != nil {
			t.Fatal(err)
		}
		var m plugins.Manifest
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		one := fmt.Sprint(m.SHA256[plugins.AdapterWeightsFile], m.SHA256[plugins.OptimizerFile], m.Step)
		if text != "" && one != text {
			t.Errorf("%s: two saves of one operation differ", pattern)
		}
		text = one
	}
	if text == "" {
		t.Fatalf("no folder %s", pattern)
	}
	return text
}

// victim is a backend that is killed, and the model that it has: the built-in one, or that of a folder, with so many tokens.
type victim struct {
	backend settings
	model   string
	vocab   int
}

// live runs the script against a server that is killed at the given points and always comes back. It gives what was found, without kills the numbers of writes and calls,
// and how many gateways were killed.
func live(t *testing.T, m victim, kill ...string) (f findings, writes, calls, killed int) {
	t.Helper()
	// State is written for recovery after almost every step, so that kills fall into that too.
	more := settings{"recovery": settings{"snapshot_operations": *pointEvery, "disk_share": 1.0}}
	if m.model != "" {
		more["models"] = []any{settings{"name": modelName, "path": m.model, "backend": m.backend}}
	}
	s := newServer(t, m.backend, more)
	s.kill = kill
	s.start()
	s.revive()
	c := newCaller(t, s.url)
	c.vocab = m.vocab
	f = script(c, filepath.Join(s.dir, "data"))
	s.end()
	if len(kill) == 0 { // else the last kill may fall into the end, and nothing is written
		b, err := os.ReadFile(filepath.Join(s.dir, "counts"))
		s.ok(err)
		_, err = fmt.Sscan(string(b), &writes, &calls)
		s.ok(err)
	}
	return f, writes, calls, s.starts - 1
}

// compare reports what differs from an undisturbed run.
func compare(t *testing.T, got, want findings) {
	t.Helper()
	for name, w := range want {
		if got[name] != w {
			t.Errorf("%s: differs from the undisturbed run:\ngot  %.300s\nwant %.300s", name, got[name], w)
		}
	}
}

// placements are the ways in which the real backends put a model on processors, as the lines `backend:` of configurations.
var placements = map[string]settings{
	"single":         {"plugin": "single", "device": "cpu"},
	"dataparallel":   {"plugin": "dataparallel", "devices": []string{"cpu", "cpu"}},
	"tensorparallel": {"plugin": "tensorparallel", "devices": []string{"cpu", "cpu"}},
	"groups":         {"plugin": "dataparallel", "devices": [][]string{{"cpu", "cpu"}, {"cpu", "cpu"}}},
	"split":          {"plugin": "dataparallel", "devices": []string{"cpu"}, "sample_devices": []string{"cpu"}, "sample_plugin": "single"},
	"shard_base":     {"plugin": "dataparallel", "devices": []string{"cpu", "cpu"}, "shard_base": true},
}

// placement is the backend of that name, or the one that a `backend:` section says.
func placement(t *testing.T, name string) settings {
	t.Helper()
	if name == "fake" {
		return settings{"plugin": "fake"}
	}
	if section, known := placements[name]; known {
		return section
	}
	var section settings
	if err := yaml.Unmarshal([]byte(name), &section); err != nil || section["plugin"] == nil {
		t.Fatalf("-kills-plugin %q is neither a placement nor a `backend:` section: %v", name, err)
	}
	return section
}

// TestKills kills gateway, backend or both before and after every write of the store and every call of the contract, or at as many of these points as there is time
// for. No error may reach the client, and all that it gets and all that is saved must be what an undisturbed server gives, bit by bit.
func TestKills(t *testing.T) {
	patience := *killsFor
	if os.Getenv("E2E_LEVEL") == "all" {
		patience *= 4
	}
	killAt(t, victim{backend: placement(t, *killPlugin)}, *kills, patience)
}

// TestRanksUnderKills does a little of the same to placements over several ranks, and compares those with each other that promise each other's bits. TestKills does as much as one wants to any of them.
func TestRanksUnderKills(t *testing.T) {
	points := 4
	if os.Getenv("E2E_LEVEL") == "all" {
		points = 20
	}
	undisturbed := map[string]findings{}
	for _, name := range []string{"tensorparallel", "groups", "split", "shard_base"} {
		t.Run(name, func(t *testing.T) { undisturbed[name] = killAt(t, victim{backend: placements[name]}, points, 0) })
	}
	for one, other := range map[string]string{"groups": "tensorparallel", "shard_base": "split", "split": "tensorparallel"} {
		if undisturbed[one] != nil { // -run may have left it out
			compare(t, undisturbed[one], undisturbed[other])
		}
	}
}

// TestFamiliesUnderKills does it to models with experts, and with layers whose state is not keys and values, on one device and where ranks share them out, which promises the same bits.
func TestFamiliesUnderKills(t *testing.T) {
	points, models, cuts := 3, []string{"qwen3.5-moe"}, []string{"tensorparallel"} // the model has both
	if os.Getenv("E2E_LEVEL") == "all" {
		points, models, cuts = 20, append(models, "qwen3-moe-mixed", "qwen3.5", "gpt-oss"), append(cuts, "shard_base", "groups")
	}
	for _, name := range models {
		dir := t.TempDir()
		for _, file := range []string{"config.json", "model.safetensors"} {
			unpack(t, filepath.Join(root(), "backends", "internal", "model", "testdata", name, file), filepath.Join(dir, file))
		}
		var one findings
		under := func(backend settings, points int) func(t *testing.T) {
			return func(t *testing.T) {
				got := killAt(t, victim{backend, dir, 250}, points, 0) // all have 256 at least
				if one == nil {
					one = got
				}
				compare(t, got, one)
			}
		}
		t.Run(name, under(settings{"plugin": "single", "device": "cpu"}, points))
		for _, cut := range cuts {
			t.Run(name+" "+cut, under(placements[cut], (points+2)/3))
		}
	}
}

// unpack copies a file, which may be compressed.
func unpack(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		if b, err = os.ReadFile(from + ".gz"); err == nil {
			var r *gzip.Reader
			if r, err = gzip.NewReader(bytes.NewReader(b)); err == nil {
				b, err = io.ReadAll(r)
			}
		}
	}
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// killAt tries so many kill points of a server with this backend, as -kills counts them. It gives what an undisturbed server gives.
func killAt(t *testing.T, m victim, budget int, patience time.Duration) findings {
	t.Helper()
	want, writes, calls, _ := live(t, m)
	var points []point
	for _, e := range []struct {
		event string
		n     int
	}{{"write", writes}, {"call", calls}} {
		for n := range e.n {
			for _, when := range []string{"before", "after"} {
				for _, victim := range []string{"gateway", "backend", "both"} {
					points = append(points, point{e.event, when, n + 1, victim})
				}
			}
		}
	}
	seed := *killSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d writes, %d calls, %d points; -kills-seed %d", writes, calls, len(points), seed)
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(points), func(i, j int) { points[i], points[j] = points[j], points[i] })
	begun, tried, due, reached := time.Now(), 0, 0, 0
	for i, p := range points {
		if budget > 0 && i >= budget || budget == 0 && i >= 6 && time.Since(begun) > patience {
			break
		}
		spec := []string{p.String()}
		if i%4 == 3 { // and once more while it recovers
			spec = append(spec, point{p.event, p.when, 1 + random.IntN(8), p.victim}.String())
		}
		tried++
		if !t.Run(fmt.Sprint(spec), func(t *testing.T) {
			got, _, _, killed := live(t, m, spec...)
			compare(t, got, want)
			if p.victim != "backend" {
				due++
				reached += min(killed, 1)
			}
		}) && t.Failed() && budget == 0 {
			break // the first one tells enough
		}
	}
	t.Logf("%d kill points in %v; %d of %d gateways were killed", tried, time.Since(begun).Round(time.Second), reached, due)
	// How many writes and calls there are depends on how many recovery points there was time for, so the last points are not reached every time.
	if due >= 8 && reached < due/2 || due > 2 && reached == 0 {
		t.Errorf("only %d of %d points were reached", reached, due)
	}
	return want
}

// TestUndisturbedRunsAreEqual is what the comparison of TestKills rests on, for both backends.
func TestUndisturbedRunsAreEqual(t *testing.T) {
	for _, backend := range []settings{{"plugin": "fake"}, {"plugin": "single", "device": "cpu", "dtype": "float32", "threads": 2}} {
		t.Run(backend["plugin"].(string), func(t *testing.T) {
			want, _, _, _ := live(t, victim{backend: backend})
			got, _, _, _ := live(t, victim{backend: backend})
			compare(t, got, want)
		})
	}
}
