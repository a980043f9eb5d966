package plugintest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

func (r *run) save(scope plugins.Scope, exportNames string) string {
	r.Helper()
	path := filepath.Join(r.TempDir(), "checkpoint")
	res, err := r.b.SaveAdapter(r.Context(), plugins.SaveAdapterRequest{
		Adapter: r.id, Position: r.position(), Scope: scope, Path: path, ExportNames: exportNames, Metadata: map[string]string{"note": "für später"},
	})
	if err != nil {
		r.Fatalf("save: %v", err)
	}
	var total int64
	entries, err := os.ReadDir(path)
	if err != nil {
		r.Fatal(err)
	}
	for _, e := range entries {
		i, err := e.Info()
		if err != nil {
			r.Fatal(err)
		}
		total += i.Size()
	}
	if res.Bytes != total {
		r.Errorf("save says %d bytes, the files have %d", res.Bytes, total)
	}
	return path
}

func (s *suite) load(id, path string, scope plugins.Scope) *run {
	s.Helper()
	if _, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: id, Path: path, Scope: scope}); err != nil {
		s.Fatalf("load: %v", err)
	}
	return &run{suite: s, id: id}
}

// saveAndLoad goes through a checkpoint with each scope and demands the same bits, then and after more training.
func (s *suite) saveAndLoad() {
	d := s.datum(1, 7)
	r := s.create("a", allModules)
	r.train(3, d)
	withMoments, weights, tinker := r.save(plugins.ScopeOptimizer, ""), r.save(plugins.ScopeWeights, plugins.ExportPEFT), r.save(plugins.ScopeWeights, plugins.ExportTinker)
	for _, file := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile, plugins.OptimizerFile, plugins.ManifestFile, plugins.CompleteFile} {
		if _, err := os.Stat(filepath.Join(withMoments, file)); err != nil {
			s.Error(err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(withMoments, plugins.ManifestFile))
	if err != nil {
		s.Fatal(err)
	}
	var m plugins.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		s.Fatal(err)
	}
	if m.Format != 2 || m.Scope != "optimizer" || m.ModelHash != s.model.ModelHash || m.Arithmetic != s.model.Arithmetic || m.Rank != 2 || m.Seed != 1 || !m.TrainAttn || !m.TrainMLP || !m.TrainUnembed ||
		m.Step != 3 || m.Version != 3 || m.Metadata["note"] != "für später" || m.SHA256[plugins.AdapterWeightsFile] == "" {
		s.Errorf("manifest %s", raw)
	}
	if peft, err := os.ReadFile(filepath.Join(tinker, plugins.AdapterWeightsFile)); err != nil || bytes.Contains(peft[:min(len(peft), 1<<16)], []byte("unembed_tokens")) == s.model.TiedHead {
		s.Errorf("export names tinker: the header has unembed_tokens where the head is the embedding's, or has not where it is not (%v), %v", s.model.TiedHead, err)
	}
	before := r.forward(d).Logprobs[0]
	for name, path := range map[string]string{"weights": weights, "tinker": tinker, "optimizer": withMoments} {
		loaded := s.load("from "+name, path, plugins.ScopeWeights)
		s.sameBits("weights of "+name, loaded.forward(d).Logprobs[0], before)
	}
	numbered, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "numbered", Path: withMoments, Scope: plugins.ScopeOptimizer, Version: 3})
	if err != nil || numbered.Version != 3 {
		s.Fatalf("a load that names its version: %+v, %v; want version 3", numbered, err)
	}
	rebuilt := &run{suite: s, id: "numbered"}
	rebuilt.forwardBackward(d)
	if res := rebuilt.step(); res.Version != 4 {
		s.Errorf("the step after a load as version 3 made version %d, want 4", res.Version)
	}
	resumed := s.load("resumed", withMoments, plugins.ScopeOptimizer)
	if again, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "resumed", Path: withMoments, Scope: plugins.ScopeOptimizer}); err != nil || again.Step != 3 || again.Version != 0 {
		s.Errorf("the same load again: %+v, %v; want step 3, version 0", again, err)
	}
	resumed.forwardBackward(d)
	if res := resumed.step(); res.Step != 4 {
		s.Errorf("first step after loading is %d, want 4", res.Step)
	}
	r.train(1, d)
	s.sameBits("a step after loading, and without", resumed.forward(d).Logprobs[0], r.forward(d).Logprobs[0])

	path := filepath.Join(s.TempDir(), "now")
	if _, err := s.b.SaveAdapter(s.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: path}); err != nil {
		s.Errorf("save outside the order: %v", err)
	}
	_, err = s.b.SaveAdapter(s.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: path})
	s.wantInvalid("save to a path that exists", err, "path")
	_, err = s.b.SaveAdapter(s.Context(), plugins.SaveAdapterRequest{Adapter: "a", Version: 77, Path: filepath.Join(s.TempDir(), "x")})
	s.wantKind("save of a version that never was", err, plugins.KindNotFound)
	for name, change := range map[string]func(*plugins.SaveAdapterRequest){
		"path":         func(r *plugins.SaveAdapterRequest) { r.Path = "relative" },
		"scope":        func(r *plugins.SaveAdapterRequest) { r.Scope = 9 },
		"export_names": func(r *plugins.SaveAdapterRequest) { r.ExportNames = "mine" },
		"version":      func(r *plugins.SaveAdapterRequest) { r.Version = -5 },
	} {
		req := plugins.SaveAdapterRequest{Adapter: "a", Version: plugins.LatestVersion, Path: filepath.Join(s.TempDir(), "y")}
		change(&req)
		_, err := s.b.SaveAdapter(s.Context(), req)
		s.wantInvalid("save", err, name)
	}
}

// accumulatorCheckpoint saves between passes and goes on from there.
func (s *suite) accumulatorCheckpoint() {
	r := s.create("a", allModules)
	r.train(1, s.datum(1, 6))
	r.forwardBackward(s.datum(1, 6))
	loaded := s.load("b", r.save(plugins.ScopeAccumulator, ""), plugins.ScopeAccumulator)
	for _, x := range []*run{r, loaded} {
		x.forwardBackward(s.datum(2, 6))
		x.step()
	}
	s.sameBits("a window that a checkpoint cuts", loaded.forward(s.datum(1, 6)).Logprobs[0], r.forward(s.datum(1, 6)).Logprobs[0])

	bad := s.datum(1, 6)
	bad.Targets[0] = -1
	_, _ = r.tryForward(false, bad)
	failed := s.load("c", r.save(plugins.ScopeAccumulator, ""), plugins.ScopeAccumulator)
	if _, err := failed.tryStep(); plugins.KindOf(err) != plugins.KindInvalid || !strings.Contains(err.Error(), "target_tokens[0]") {
		s.Errorf("the step of a window that failed before the checkpoint: %v, want the reason", err)
	}
}

// loadInto loads into an adapter that exists.
func (s *suite) loadInto() {
	d := s.datum(1, 6)
	source := s.create("source", allModules)
	source.train(2, d)
	want := source.forward(d).Logprobs[0]
	path := source.save(plugins.ScopeOptimizer, "")
	small := s.create("small", plugins.AdapterConfig{Rank: 1, TrainMLP: true})
	smallPath := small.save(plugins.ScopeWeights, "")

	r := s.create("a", allModules)
	r.train(1, s.datum(2, 6))
	r.forwardBackward(s.datum(2, 6)) // is to be cleared by the load
	info, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: r.position(), Path: path, Scope: plugins.ScopeOptimizer})
	if err != nil || info.Version != 2 || info.Step != 2 {
		s.Fatalf("load into an adapter: %+v, %v; want version 2, step 2", info, err)
	}
	s.sameBits("after the load", r.forward(d).Logprobs[0], want)
	r.train(1, d)
	source.train(1, d)
	s.sameBits("a step after the load", r.forward(d).Logprobs[0], source.forward(d).Logprobs[0])

	_, err = s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: r.position(), Path: smallPath})
	s.wantInvalid("a checkpoint of another shape", err, "lora_config")
	_, err = r.tryForward(true, d)
	s.wantKind("an operation after a failed load", err, plugins.KindInvalid)
	_, err = s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: r.position(), Path: path})
	if err != nil {
		s.Errorf("a load after a failed load: %v", err)
	}
	s.sameBits("after a load that heals", r.forward(d).Logprobs[0], want)
	numbered, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: r.position(), Path: path, Scope: plugins.ScopeOptimizer, Version: 9})
	if err != nil || numbered.Version != 9 {
		s.Errorf("a load in order that names its version: %+v, %v; want version 9", numbered, err)
	}
	r.forwardBackward(d)
	if res := r.step(); res.Version != 10 {
		s.Errorf("the step after a load as version 9 made version %d, want 10", res.Version)
	}
	_, err = s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: r.position(), Path: path, Version: 10})
	s.wantInvalid("a version that the adapter has had", err, "version")
	_, err = s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Path: path})
	s.wantInvalid("creating under an id that is taken", err, "adapter")
	_, err = s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "none", Path: filepath.Join(s.TempDir(), "none")})
	s.wantKind("a checkpoint that does not exist", err, plugins.KindNotFound)
	_, err = s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "more", Path: smallPath, Scope: plugins.ScopeOptimizer})
	s.wantInvalid("more than the checkpoint holds", err, "scope")
}

// damagedCheckpoints flips and cuts and sees each refused.
func (s *suite) damagedCheckpoints() {
	r := s.create("a", allModules)
	r.train(1, s.datum(1, 6))
	for i, c := range []struct {
		name   string
		damage func(dir string) error
	}{
		{"a flipped bit in the weights", func(dir string) error {
			return edit(dir, plugins.AdapterWeightsFile, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		}},
		{"cut weights", func(dir string) error {
			return edit(dir, plugins.AdapterWeightsFile, func(b []byte) []byte { return b[:len(b)-4] })
		}},
		{"a flipped bit in the moments", func(dir string) error {
			return edit(dir, plugins.OptimizerFile, func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
		}},
		{"no moments", func(dir string) error { return os.Remove(filepath.Join(dir, plugins.OptimizerFile)) }},
		{"another base model", func(dir string) error {
			return edit(dir, plugins.ManifestFile, func(b []byte) []byte {
				return bytes.ReplaceAll(b, []byte(s.model.ModelHash), []byte(strings.Repeat("0", 64)))
			})
		}},
		{"a manifest that is no JSON", func(dir string) error {
			return edit(dir, plugins.ManifestFile, func(b []byte) []byte { return b[:len(b)/2] })
		}},
		{"no manifest but moments asked for", func(dir string) error { return os.Remove(filepath.Join(dir, plugins.ManifestFile)) }},
	} {
		path := r.save(plugins.ScopeOptimizer, "")
		if err := c.damage(path); err != nil {
			s.Fatal(err)
		}
		_, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: string(rune('b' + i)), Path: path, Scope: plugins.ScopeOptimizer})
		if plugins.KindOf(err) != plugins.KindInvalid {
			s.Errorf("%s: %v, want an invalid checkpoint", c.name, err)
		}
	}
	// Without a manifest it is a PEFT adapter of unknown origin: its weights can be had.
	path := r.save(plugins.ScopeWeights, "")
	if err := os.Remove(filepath.Join(path, plugins.ManifestFile)); err != nil {
		s.Fatal(err)
	}
	foreign := s.load("foreign", path, plugins.ScopeWeights)
	s.sameBits("a foreign adapter", foreign.forward(s.datum(1, 6)).Logprobs[0], r.forward(s.datum(1, 6)).Logprobs[0])
	if err := edit(path, plugins.AdapterWeightsFile, func(b []byte) []byte { // the last value becomes NaN
		copy(b[len(b)-4:], []byte{0, 0, 0xc0, 0x7f})
		return b
	}); err != nil {
		s.Fatal(err)
	}
	_, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "nan", Path: path})
	s.wantKind("weights that are not finite", err, plugins.KindNotFinite)
}

func edit(dir, name string, change func([]byte) []byte) error {
	path := filepath.Join(dir, name)
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return os.WriteFile(path, change(raw), 0o600)
}

func (s *suite) frozen() {
	r := s.create("a", allModules)
	r.train(2, s.datum(1, 6))
	path := r.save(plugins.ScopeOptimizer, "")
	info, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "f", Path: path, Frozen: true})
	if err != nil {
		s.Fatal(err)
	}
	if info.Config.Rank != 2 || info.Step != 0 || len(info.Config.Modules) == 0 {
		s.Errorf("answer %+v", info)
	}
	f := &run{suite: s, id: "f"}
	_, err = f.tryForward(false, s.datum(1, 6))
	s.wantInvalid("training a frozen adapter", err, "adapter")
	a, b := s.request("a", 1, 6), s.request("f", 1, 6)
	s.sameBits("sampled from the original and from the frozen copy", s.sample(b).logprobs[0], s.sample(a).logprobs[0])
}
