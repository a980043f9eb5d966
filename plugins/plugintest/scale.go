package plugintest

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/tinsmith/tinsmith/plugins"
)

// scale loads an adapter of another program, whose alpha is not 32, and demands that everything that is made of it has its scale, and A and B as they were.
func (s *suite) scale() {
	const theirs = 12
	d := s.datum(1, 7)
	r := s.create("a", allModules)
	r.train(2, d)
	path := r.save(plugins.ScopeWeights, "")
	if err := os.Remove(filepath.Join(path, plugins.ManifestFile)); err != nil {
		s.Fatal(err)
	}
	if err := edit(path, plugins.AdapterConfigFile, func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"lora_alpha": 32`), []byte(`"lora_alpha": 12`), 1)
	}); err != nil {
		s.Fatal(err)
	}
	info, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "f", Path: path})
	if err != nil || info.Config.Alpha != theirs || info.Config.Rank != 2 {
		s.Fatalf("loaded as %+v, %v; want alpha %d", info, err, theirs)
	}
	f := &run{suite: s, id: "f"}
	if got, ours := f.forward(d).Logprobs[0], r.forward(d).Logprobs[0]; got[len(got)-1] == ours[len(ours)-1] {
		s.Error("another alpha has changed nothing")
	}
	saved := f.save(plugins.ScopeWeights, "")
	for _, file := range []string{plugins.AdapterConfigFile, plugins.AdapterWeightsFile} {
		want, err := os.ReadFile(filepath.Join(path, file))
		if err != nil {
			s.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(saved, file)); err != nil || !bytes.Equal(got, want) {
			s.Errorf("%s of the adapter that was loaded is not as it was, %v", file, err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(saved, plugins.ManifestFile))
	if err != nil {
		s.Fatal(err)
	}
	if m, err := plugins.ParseManifest(raw); err != nil || m.Format != plugins.ScaledFormat {
		s.Errorf("the manifest %s, %v: want format %d, which versions that know one scale only refuse", raw, err, plugins.ScaledFormat)
	}

	f.train(1, d)
	f.forwardBackward(s.datum(2, 6))
	state, whole := f.save(plugins.ScopeOptimizer, ""), f.save(plugins.ScopeAccumulator, "")
	again := s.load("again", whole, plugins.ScopeAccumulator)
	if _, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "a", Position: r.position(), Path: whole, Scope: plugins.ScopeAccumulator}); err != nil {
		s.Fatal(err)
	}
	frozen, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "frozen", Path: state, Frozen: true})
	if err != nil || frozen.Config.Alpha != theirs {
		s.Fatalf("loaded to be sampled as %+v, %v; want alpha %d", frozen, err, theirs)
	}
	s.sameBits("sampled from it and from its checkpoint", s.sample(s.request("frozen", 1, 6)).logprobs[0], s.sample(s.request("f", 1, 6)).logprobs[0])
	for _, x := range []*run{f, again, r} {
		x.step()
		x.train(1, d)
	}
	s.sameBits("training that goes on from a checkpoint", again.forward(d).Logprobs[0], f.forward(d).Logprobs[0])
	s.sameBits("training that goes on from a checkpoint in an adapter of another scale", r.forward(d).Logprobs[0], f.forward(d).Logprobs[0])
	s.sameBits("what it samples then", s.sample(s.request("a", 1, 6)).logprobs[0], s.sample(s.request("f", 1, 6)).logprobs[0])

	q := s.create("fresh", allModules)
	if _, err := s.b.LoadAdapter(s.Context(), plugins.LoadAdapterRequest{Adapter: "fresh", Position: q.position(), Path: path}); err != nil {
		s.Fatal(err)
	}
	if raw, err := os.ReadFile(filepath.Join(q.save(plugins.ScopeWeights, ""), plugins.AdapterConfigFile)); err != nil || !bytes.Contains(raw, []byte(`"lora_alpha": 12`)) {
		s.Errorf("the checkpoint of an adapter into which another was loaded: %s, %v; want lora_alpha %d", raw, err, theirs)
	}
}
