package engine

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// How passes are cut, recomputation and limits of memory change while a run trains, and its bits do not.
func TestConfigure(t *testing.T) {
	random := rand.New(rand.NewPCG(14, 14))
	var data [][]plugins.Datum
	for range 6 {
		data = append(data, randomData(random, 9, 60))
	}
	sections := []string{
		`{"threads": 1}`,
		`{"threads": 1, "batch_tokens": 50}`,
		`{"threads": 1, "batch_tokens": 50, "recompute": "on", "adapter_memory_mib": 3}`,
		`{"threads": 1, "recompute": "off", "cycle_tokens": 10}`,
		`{"threads": 1, "memory_mib": 300, "training_memory_mib": 10}`,
		`{"threads": 1, "memory_mib": 200}`,
	}
	changes := [][]string{nil, {"batch_tokens"}, {"adapter_memory_mib", "recompute"}, {"adapter_memory_mib", "batch_tokens", "cycle_tokens", "recompute"},
		{"cycle_tokens", "memory_mib", "recompute", "training_memory_mib"}, {"memory_mib", "training_memory_mib"}}
	play := func(configure bool) map[string][]float32 {
		e, _ := startShape(t, shape{tinyVocabulary, 32, 48, 2, 4, 2, 16}, tinyContext, sections[0])
		d := create(t, e, "a", 1, 8)
		for i := range 3 {
			create(t, e, fmt.Sprint("idle", i), uint64(i), 32)
		}
		for i := range data {
			if configure {
				r, err := e.Configure(t.Context(), plugins.ConfigureRequest{Config: []byte(sections[i])})
				if err != nil || !slices.Equal(r.Changed, changes[i]) {
					t.Fatalf("%s: changed %v, want %v: %v", sections[i], r.Changed, changes[i], err)
				}
				hook(t, e, func() {
					l := e.loaded
					if l.adapters.used > l.adapters.limit || l.memory.free() < 0 {
						t.Errorf("%s: %d bytes of adapters, the limit is %d; %d bytes are free", sections[i], l.adapters.used, l.adapters.limit, l.memory.free())
					}
					if i == 1 && l.plan.batchTokens != 50 || i == 2 && (l.plan.recompute != RecomputeOn || l.adapters.limit != 3<<20) || i == 4 && (l.plan.limit != 300<<20 || l.plan.training != 10<<20) {
						t.Errorf("%s: plan %+v", sections[i], l.plan)
					}
				})
			}
			d.pass(data[i])
			d.step()
		}
		return d.weights()
	}
	equalTensors(t, "weights", play(true), play(false))
}

func TestConfigureRefuses(t *testing.T) {
	e, _ := startShape(t, shape{tinyVocabulary, 32, 48, 2, 4, 2, 16}, tinyContext, `{"threads": 1, "memory_mib": 300}`)
	for _, c := range []struct{ name, section, field, message string }{
		{"a key that cannot be changed", `{"threads": 2, "memory_mib": 300, "batch_tokens": 9}`, "backend.threads", "batch_tokens"},
		{"an unknown key", `{"threads": 1, "memory_mib": 300, "batch_token": 9}`, "backend.batch_token", "batch_tokens"},
		{"a value out of range", `{"threads": 1, "memory_mib": 300, "batch_tokens": 0}`, "backend.batch_tokens", "from 1"},
		{"no limit any more", `{"threads": 1}`, "backend.memory_mib", "not be left"},
		{"a limit below what is needed", `{"threads": 1, "memory_mib": 1}`, "backend.memory_mib", "limit"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before memoryPlan
			hook(t, e, func() { before = e.loaded.plan })
			_, err := e.Configure(t.Context(), plugins.ConfigureRequest{Config: []byte(c.section)})
			var own *plugins.Error
			if !errors.As(err, &own) || own.Field != c.field || !strings.Contains(own.Message, c.message) {
				t.Errorf("got %v, want field %s and %q", err, c.field, c.message)
			}
			hook(t, e, func() {
				if !reflect.DeepEqual(e.loaded.plan, before) || e.loaded.config.BatchTokens != 0 {
					t.Errorf("the plan has changed to %+v", e.loaded.plan)
				}
			})
		})
	}
}

// A limit below what adapters take that are there is told when it is set, with how many they are, and once it is high enough no more.
func TestConfigureBelowAdapters(t *testing.T) {
	var log bytes.Buffer
	e, _, _ := startScratch(t)
	hook(t, e, func() { e.options.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	create(t, e, "large", 1, 512)
	create(t, e, "larger", 2, 512)
	create(t, e, "small", 3, 1)
	for _, c := range []struct {
		section string
		warns   bool
	}{
		{`{"adapter_memory_mib": 4}`, true},
		{`{"adapter_memory_mib": 400}`, false},
		{`{}`, false},
	} {
		hook(t, e, log.Reset)
		if _, err := e.Configure(t.Context(), plugins.ConfigureRequest{Config: []byte(c.section)}); err != nil {
			t.Fatal(err)
		}
		hook(t, e, func() {
			if text := log.String(); strings.Contains(text, "do not fit into the memory of adapters any more") != c.warns || c.warns && !strings.Contains(text, "adapters=2 ") {
				t.Errorf("%s: the log: %s", c.section, text)
			}
		})
	}
}
