package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Training lowers the loss, and the answers say what was done.
func TestLearns(t *testing.T) {
	e := start(t, `{"recompute": "on"}`)
	d := create(t, e, "a", 1, 8)
	data := randomData(rand.New(rand.NewPCG(1, 9)), 4, 30)
	first := d.pass(data)
	d.step()
	var last plugins.ForwardBackwardResult
	for i := range 30 {
		last = d.pass(data)
		r := d.step()
		if r.Version != int64(i+2) || r.Step != int64(i+2) {
			t.Fatalf("step %d: %+v", i, r)
		}
		for _, name := range []string{"grad_norm", "adapter_norm", "learning_rate", "clock_cycle"} {
			if v, ok := r.Metrics[name]; !ok || !finite(v) || v <= 0 {
				t.Fatalf("metric %s is %v", name, v)
			}
		}
	}
	if a, b := first.Metrics["loss:sum"], last.Metrics["loss:sum"]; !(b < a/2) {
		t.Errorf("the loss went from %v to %v", a, b)
	}
	sum := 0.0
	for i, lp := range last.Logprobs {
		for k, v := range lp {
			sum -= float64(v) * float64(data[i].Weights[k])
		}
	}
	if got := last.Metrics["loss:sum"]; math.Abs(got-sum) > 1e-6*sum {
		t.Errorf("loss:sum %v, from the log-probabilities %v", got, sum)
	}
	if last.Metrics["clock_cycle:unique"] <= first.Metrics["clock_cycle:unique"] {
		t.Error("clock cycles do not count up")
	}
}

// A pinned version stays what it is while training goes on, and is freed when it is released.
func TestPinsSurviveTraining(t *testing.T) {
	e := start(t, "")
	random := rand.New(rand.NewPCG(2, 9))
	d := create(t, e, "a", 1, 4)
	d.pass(randomData(random, 2, 30))
	d.step()
	pin, err := e.Pin(t.Context(), plugins.PinRequest{Adapter: "a", Position: d.position(), Name: "reference"})
	if err != nil || pin.Version != 1 {
		t.Fatalf("pin %+v, %v", pin, err)
	}
	q := ask("q", "a", randomTokens(random, 20), 1, 20)
	want, err := collect(t.Context(), e, q)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		d.pass(randomData(random, 2, 30))
		d.step()
	}
	versions := func(n int) func() bool { return func() bool { return e.status(time.Now()).Versions == n } }
	eventually(t, "the latest and the pinned version are left", versions(2))
	now, err := collect(t.Context(), e, q)
	if err != nil || now.prompt.Version != 6 || slices.Equal(now.sequences[0].Logprobs, want.sequences[0].Logprobs) {
		t.Fatalf("the latest version is %d, %v", now.prompt.Version, err)
	}
	q.Version = 1
	again, err := collect(t.Context(), e, q)
	if err != nil || again.prompt.Version != 1 {
		t.Fatalf("version %d, %v", again.prompt.Version, err)
	}
	equalBits(t, "the pinned version", again.sequences[0].Logprobs, want.sequences[0].Logprobs)
	if r, err := e.Pin(t.Context(), plugins.PinRequest{Adapter: "a", Name: "reference"}); err != nil || r.Version != 1 {
		t.Errorf("the pin repeated: %+v, %v", r, err)
	}
	for range 2 {
		if err := e.Unpin(t.Context(), plugins.UnpinRequest{Adapter: "a", Name: "reference"}); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "the pinned version is freed", versions(1))
	if _, err := collect(t.Context(), e, q); !errors.Is(err, plugins.ErrNotFound) {
		t.Errorf("a freed version was sampled: %v", err)
	}
}

// invalidPass is an operation that fails when its turn comes.
func (d *driver) invalidPass() error {
	_, err := d.e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "cross_entropy",
		Data: []plugins.Datum{{Tokens: []int32{1, 2}, Targets: []int32{1, tinyVocabulary}, K: 1, Weights: []float32{1, 1}}}})
	return err
}

func TestWindowRules(t *testing.T) {
	e := start(t, "")
	random := rand.New(rand.NewPCG(3, 9))
	data := randomData(random, 2, 30)
	stepOf := func(d *driver) (plugins.OptimStepResult, error) {
		return e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: d.adapter, Position: d.position(), Adam: adamDefaults})
	}
	t.Run("a failure and no success", func(t *testing.T) {
		d := create(t, e, t.Name(), 1, 4)
		before := d.weights()
		if err := d.invalidPass(); !errors.Is(err, plugins.ErrInvalid) || !strings.Contains(err.Error(), "data[0].target_tokens[1]") {
			t.Fatalf("got %v", err)
		}
		_, err := stepOf(d)
		var own *plugins.Error
		if !errors.As(err, &own) || own.Kind != plugins.KindInvalid || own.Field != "data[0].target_tokens[1]" {
			t.Fatalf("the step does not fail with the reason: %v", err)
		}
		equalTensors(t, "weights", d.weights(), before)
		// The next window is another one.
		d.pass(data)
		if r := d.step(); r.Version != 1 || r.Step != 1 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a failure adds nothing", func(t *testing.T) {
		a, b := create(t, e, t.Name()+"a", 1, 4), create(t, e, t.Name()+"b", 1, 4)
		a.pass(data)
		if err := a.invalidPass(); err == nil {
			t.Fatal("no failure")
		}
		a.step()
		b.pass(data)
		b.step()
		equalTensors(t, "weights", a.weights(), b.weights())
	})
	t.Run("no pass is a zero gradient", func(t *testing.T) {
		d := create(t, e, t.Name(), 1, 4)
		before := d.weights()
		if r := d.step(); r.Version != 1 || r.Step != 1 || r.Metrics["grad_norm"] != 0 {
			t.Errorf("%+v", r)
		}
		equalTensors(t, "weights", d.weights(), before) // no weight decay
	})
	t.Run("forward only leaves no trace", func(t *testing.T) {
		d := create(t, e, t.Name(), 1, 4)
		if _, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "cross_entropy", Data: data, ForwardOnly: true}); err != nil {
			t.Fatal(err)
		}
		if r := d.step(); r.Metrics["grad_norm"] != 0 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a ratio that overflows fails its operation alone", func(t *testing.T) {
		d := create(t, e, t.Name(), 1, 4)
		bad := plugins.Datum{Tokens: []int32{1, 2}, Targets: []int32{2, 3}, K: 1, Logprobs: []float32{-1, -3e38}, Advantages: []float32{1, 1}}
		_, err := e.ForwardBackward(t.Context(), plugins.ForwardBackwardRequest{Adapter: d.adapter, Position: d.position(), Loss: "importance_sampling", Data: []plugins.Datum{bad}})
		if !errors.Is(err, plugins.ErrNotFinite) {
			t.Fatalf("got %v", err)
		}
		d.pass(data)
		want := create(t, e, t.Name()+"b", 1, 4)
		want.pass(data)
		d.step()
		want.step()
		equalTensors(t, "weights", d.weights(), want.weights())
	})
	t.Run("a step that overflows keeps the weights and drops the gradient", func(t *testing.T) {
		d := create(t, e, t.Name(), 1, 4)
		before := d.weights()
		d.pass(data)
		adam := adamDefaults
		adam.LearningRate = 1e300
		_, err := e.OptimStep(t.Context(), plugins.OptimStepRequest{Adapter: d.adapter, Position: d.position(), Adam: adam})
		var own *plugins.Error
		if !errors.As(err, &own) || own.Kind != plugins.KindNotFinite || !strings.HasPrefix(own.Field, "base_model.model.") {
			t.Fatalf("got %v", err)
		}
		equalTensors(t, "weights", d.weights(), before)
		if r := d.step(); r.Metrics["grad_norm"] != 0 || r.Step != 1 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a position is used once", func(t *testing.T) {
		d := create(t, e, t.Name(), 1, 4)
		d.pass(data)
		d.next--
		if _, err := stepOf(d); !errors.Is(err, plugins.ErrAlreadyApplied) {
			t.Errorf("got %v", err)
		}
	})
}

// fb1, opt1, fb2, opt2 sent at once, and out of order, are what they are one by one.
func TestSentAhead(t *testing.T) {
	e := start(t, "")
	data := randomData(rand.New(rand.NewPCG(4, 9)), 3, 30)
	a, b := create(t, e, "a", 1, 4), create(t, e, "b", 1, 4)
	for range 2 {
		a.pass(data)
		a.step()
	}
	var calls []func()
	for p := int64(4); p >= 1; p-- {
		calls = append(calls, func() {
			var err error
			if p%2 == 1 {
				_, err = e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: "b", Position: p, Data: data, Loss: "cross_entropy"})
			} else {
				_, err = e.OptimStep(context.Background(), plugins.OptimStepRequest{Adapter: "b", Position: p, Adam: adamDefaults})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	together(calls...)
	equalTensors(t, "weights", b.weights(), a.weights())
}

func TestDeleteAdapter(t *testing.T) {
	e := start(t, "")
	random := rand.New(rand.NewPCG(5, 9))
	for i := range 20 {
		id := fmt.Sprint("a", i)
		create(t, e, id, 1, 4)
		data := randomData(random, 8, 60)
		var calls []func()
		// Position 2 never comes: 3 waits.
		for _, p := range []int64{1, 3} {
			calls = append(calls, func() {
				if _, err := e.ForwardBackward(context.Background(), plugins.ForwardBackwardRequest{Adapter: id, Position: p, Data: data, Loss: "cross_entropy"}); err != nil && !errors.Is(err, plugins.ErrNotFound) {
					t.Errorf("position %d: %v", p, err)
				}
			})
		}
		calls = append(calls, func() {
			if _, err := collect(context.Background(), e, ask("q"+id, id, randomTokens(random, 5), 2, 400)); !errors.Is(err, plugins.ErrNotFound) {
				t.Errorf("sampling a deleted adapter: %v", err)
			}
		}, func() {
			eventually(t, "sampling has begun", func() bool { s := e.status(time.Now()); return s.RunningSamples > 0 || s.QueuedTraining == 0 })
			if err := e.DeleteAdapter(context.Background(), id); err != nil {
				t.Error(err)
			}
		})
		together(calls...)
		if err := e.DeleteAdapter(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "everything is freed", func() bool {
		s := e.status(time.Now())
		return s.Adapters == 0 && s.Versions == 0 && s.AdapterBytes == 0 && s.QueuedTraining == 0 && s.KVPagesFree == s.KVPages && s.RunningSamples == 0
	})
}

func TestCreateAdapterAgain(t *testing.T) {
	e := start(t, "")
	q := plugins.CreateAdapterRequest{Adapter: "a", Config: plugins.AdapterConfig{Rank: 4, Seed: 3, TrainMLP: true}}
	first, err := e.CreateAdapter(t.Context(), q)
	if err != nil || first.Version != 0 || !slices.Equal(first.Config.Modules, []string{"gate_proj", "up_proj", "down_proj"}) || first.Bytes <= 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	d := &driver{t: t, e: e, adapter: "a"}
	d.step()
	if again, err := e.CreateAdapter(t.Context(), q); err != nil || again.Version != 0 || again.Bytes != first.Bytes {
		t.Errorf("the same call repeated: %+v, %v", again, err)
	}
	q.Config.Seed = 4
	if _, err := e.CreateAdapter(t.Context(), q); !errors.Is(err, plugins.ErrInvalid) {
		t.Errorf("another configuration: %v", err)
	}
	for rank, want := range map[int]error{0: plugins.ErrInvalid, 3: plugins.ErrInvalid, 1024: plugins.ErrInvalid, 512: nil} {
		q := plugins.CreateAdapterRequest{Adapter: fmt.Sprint("rank", rank), Config: plugins.AdapterConfig{Rank: rank, TrainAttention: true}}
		if _, err := e.CreateAdapter(t.Context(), q); !errors.Is(err, want) {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestLoadErrors(t *testing.T) {
	good := t.TempDir()
	if err := writeTiny(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, dir, section, message string
		kind                        error
	}{
		{"no directory", good + "/none", "", "does not exist", plugins.ErrNotFound},
		{"no model", t.TempDir(), "", "config.json", plugins.ErrInvalid},
		{"unknown key", good, `{"thread": 1}`, "threads", plugins.ErrInvalid},
		{"longer than the model allows", good, `{"max_context_length": 513}`, "512", plugins.ErrInvalid},
		{"cache for less than a sequence", good, `{"kv_cache_tokens": 64}`, "max_context_length to 64", plugins.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := New(testOptions())
			defer e.Close()
			if _, err := e.CreateAdapter(t.Context(), plugins.CreateAdapterRequest{Adapter: "a"}); !errors.Is(err, plugins.ErrUnavailable) {
				t.Errorf("before the load: %v", err)
			}
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: c.dir, Config: []byte(c.section)}, nil)
			if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("got %v, want %v with %q", err, c.kind, c.message)
			}
			if _, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: good}, nil); !errors.Is(err, plugins.ErrInvalid) {
				t.Errorf("a second load: %v", err)
			}
		})
	}
	t.Run("progress", func(t *testing.T) {
		e := New(testOptions())
		defer e.Close()
		var stages []string
		var last plugins.LoadProgress
		info, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: good}, func(p plugins.LoadProgress) {
			if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
				stages = append(stages, p.Stage)
			}
			last = p
		})
		if err != nil || !slices.Equal(stages, []string{plugins.StageOpen, "map", "pack", "ready"}) || last.Done != last.Total {
			t.Errorf("stages %v, last %+v, %v", stages, last, err)
		}
		if info.VocabSize != tinyVocabulary || info.MaxContextLength != tinyContext || info.Device != "cpu" || info.Layers != 2 || info.MaxRank != 512 || len(info.ModelHash) != 64 || info.Parameters == 0 {
			t.Errorf("%+v", info)
		}
		var s plugins.Status
		ctx, cancel := context.WithCancel(t.Context())
		if err := e.Status(ctx, func(now plugins.Status) { s = now; cancel() }); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if s.KVPages < 1024 || s.KVPagesFree != s.KVPages || s.WeightBytes == 0 || s.LastProgressAge != 0 || s.BootID == "" {
			t.Errorf("%+v", s)
		}
	})
}
