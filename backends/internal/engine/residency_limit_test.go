package engine

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/plugins"
)

// An adapter that cannot be trained within the limit is refused with the numbers, whatever else is in memory.
func TestAdapterBeyondLimit(t *testing.T) {
	e, f, _ := startScratch(t)
	create(t, e, "a", 1, 16)
	limitTo(t, e, f, "a", 3)
	_, err := e.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: "b", Config: plugins.AdapterConfig{Rank: 512, TrainAttention: true}})
	if !errors.Is(err, plugins.ErrTooLarge) || !strings.Contains(err.Error(), "adapter_memory_mib") || !strings.Contains(err.Error(), "rank 512") {
		t.Errorf("got %v", err)
	}
	create(t, e, "c", 1, 16)
}

// What can never fit, because the limit is below it, is told so wherever it is met, and at once; when the limit is raised while the backend runs everything goes on, with the same bits.
func TestLimitBelowAnAdapter(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	data, prompt := randomData(random, 2, 20), []int32{1, 2, 3}
	want := func(t *testing.T) map[string][]float32 {
		e, _, _ := startScratch(t)
		d := create(t, e, "a", 1, 512)
		d.pass(data)
		d.pass(data)
		d.step()
		return d.weights()
	}(t)
	e, _, _ := startScratch(t)
	d := create(t, e, "a", 1, 512)
	saved := d.save(plugins.ScopeWeights)
	d.pass(data)
	configure := func(section string) {
		t.Helper()
		if _, err := e.Configure(t.Context(), plugins.ConfigureRequest{Config: []byte(section)}); err != nil {
			t.Fatal(err)
		}
	}
	load := func(id string) error {
		_, err := e.LoadAdapter(t.Context(), plugins.LoadAdapterRequest{Adapter: id, Path: saved, Frozen: true})
		return err
	}
	sampled := func(id string) error {
		_, err := collect(t.Context(), e, ask("q", id, prompt, 1, 4))
		return err
	}
	pass := func() error {
		_, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: data, Loss: "cross_entropy"})
		return err
	}
	step := func() error {
		_, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: "a", Position: d.position(), Adam: adamDefaults})
		return err
	}
	if err := load("saved"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, section, setting string }{
		{"the limit of adapters", `{"adapter_memory_mib": 1}`, "backend.adapter_memory_mib"},
		{"what weights and sampler leave", "", "backend.memory_mib"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.section != "" {
				configure(c.section)
			} else {
				hook(t, e, func() { // as if the adapters' own limit were far above
					e.loaded.adapters.most = func(int) int64 { return 1 << 20 }
					for {
						if moved, err := e.loaded.adapters.moveOut(0); err != nil {
							t.Fatal(err)
						} else if !moved {
							return
						}
					}
				})
			}
			for _, call := range []struct {
				name string
				do   func() error
			}{
				{"a saved adapter is loaded", func() error { return load("another") }},
				{"the adapter is sampled", func() error { return sampled("a") }},
				{"the saved adapter is sampled", func() error { return sampled("saved") }},
				{"a pass", pass},
				{"a step behind the pass", step},
			} {
				err := call.do()
				if !errors.Is(err, plugins.ErrTooLarge) || !strings.Contains(err.Error(), c.setting) || !strings.Contains(err.Error(), " MiB") || strings.Contains(err.Error(), "tokens") {
					t.Errorf("%s: %v", call.name, err)
				}
			}
			if c.section != "" {
				configure(`{}`)
			} else {
				hook(t, e, func() { e.loaded.adapters.most = func(int) int64 { return unlimited } })
			}
			if err := errors.Join(load("another"), sampled("a"), sampled("saved"), e.DeleteAdapter(t.Context(), "another")); err != nil {
				t.Error(err)
			}
		})
	}
	d.pass(data)
	d.step()
	equalTensors(t, "weights", d.weights(), want)
}

// A pass whose adapter fits, but not with the gradients that it sums, says so with what both take.
func TestLimitBelowAPass(t *testing.T) {
	e, _, _ := startScratch(t)
	d := create(t, e, "a", 1, 64)
	data := randomData(rand.New(rand.NewPCG(5, 6)), 2, 20)
	pass := func(data []plugins.Datum) error {
		_, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: data, Loss: "cross_entropy"})
		return err
	}
	hook(t, e, func() {
		m, layout := e.loaded.adapters, e.runs["a"].layout
		m.limit = m.weightBytes(layout) + 2*lora.ParameterBytes(layout) - 1
		if err := m.trim(); err != nil {
			t.Error(err)
		}
	})
	if err := pass(data[:1]); err != nil {
		t.Errorf("a datum that fits: %v", err)
	}
	err := pass(data)
	if !errors.Is(err, plugins.ErrTooLarge) || !strings.Contains(err.Error(), "data[1]: the weights of an adapter of rank 64, and the gradients of 2 data, take ") || !strings.Contains(err.Error(), "backend.adapter_memory_mib") {
		t.Errorf("two data: %v", err)
	}
	if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: "a", Position: d.position(), Data: data, Loss: "cross_entropy", ForwardOnly: true}); err != nil {
		t.Errorf("two data without gradients: %v", err)
	}
}
