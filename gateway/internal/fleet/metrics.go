package fleet

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
)

// observed is one figure that is read from the state of a backend whenever metrics are asked for.
type observed struct {
	name, unit, description string
	counter                 bool // never falls while a process lives
	read                    func(supervisor.State) float64
}

var figures = []observed{
	{"tinsmith.backend.up", "1", "1 when the model's backend is ready", false, func(s supervisor.State) float64 {
		if s.Phase == supervisor.Ready {
			return 1
		}
		return 0
	}},
	{"tinsmith.backend.restarts", "{restart}", "restarts of the plugin process", true, func(s supervisor.State) float64 { return float64(s.Restarts) }},
	{"tinsmith.adapters", "{adapter}", "live adapters", false, func(s supervisor.State) float64 { return float64(s.Status.Adapters) }},
	{"tinsmith.adapter.versions", "{version}", "live adapter versions", false, func(s supervisor.State) float64 { return float64(s.Status.Versions) }},
	{"tinsmith.adapter.memory", "By", "memory of adapters with their optimizer states", false, func(s supervisor.State) float64 { return float64(s.Status.AdapterBytes) }},
	{"tinsmith.adapter.spilled", "By", "adapters in files for want of memory", false, func(s supervisor.State) float64 { return float64(s.Status.SpilledBytes) }},
	{"tinsmith.backend.memory", "By", "memory of the backend: weights, keys and values, adapters, passes", false, func(s supervisor.State) float64 { return float64(s.Status.MemoryBytes) }},
	{"tinsmith.backend.memory.limit", "By", "memory that the backend may take, 0 if that is not known", false, func(s supervisor.State) float64 { return float64(s.Status.MemoryLimit) }},
	{"tinsmith.weights.memory", "By", "memory of the base model's weights", false, func(s supervisor.State) float64 { return float64(s.Status.WeightBytes) }},
	{"tinsmith.queue.training", "{operation}", "training operations that wait or run in the backend", false, func(s supervisor.State) float64 { return float64(s.Status.QueuedTraining) }},
	{"tinsmith.queue.sampling", "{sequence}", "sequences that wait for a place in the decoding batch", false, func(s supervisor.State) float64 { return float64(s.Status.WaitingSamples) }},
	{"tinsmith.sampling.running", "{sequence}", "sequences being decoded", false, func(s supervisor.State) float64 { return float64(s.Status.RunningSamples) }},
	{"tinsmith.kv.pages", "{page}", "pages of the key-value cache", false, func(s supervisor.State) float64 { return float64(s.Status.KVPages) }},
	{"tinsmith.kv.pages.free", "{page}", "free pages of the key-value cache", false, func(s supervisor.State) float64 { return float64(s.Status.KVPagesFree) }},
	{"tinsmith.cycles", "{cycle}", "clock cycles done", true, func(s supervisor.State) float64 { return float64(s.Status.Cycles) }},
	{"tinsmith.cycles.duration", "s", "time spent in clock cycles; divided by their number, the mean cycle time", true, func(s supervisor.State) float64 { return s.Status.CycleSeconds }},
	{"tinsmith.cycles.passes", "{operation}", "forward and forward_backward operations in clock cycles", true, func(s supervisor.State) float64 { return float64(s.Status.CyclePasses) }},
	{"tinsmith.cycles.steps", "{operation}", "optimizer steps in clock cycles", true, func(s supervisor.State) float64 { return float64(s.Status.CycleSteps) }},
	{"tinsmith.sampling.turns", "{turn}", "turns of the sampler on the device", true, func(s supervisor.State) float64 { return float64(s.Status.SamplingTurns) }},
	{"tinsmith.sampling.duration", "s", "time that the sampler had the device", true, func(s supervisor.State) float64 { return s.Status.SamplingSeconds }},
	{"tinsmith.tokens.trained", "{token}", "tokens of forward and forward_backward passes", true, func(s supervisor.State) float64 { return float64(s.Status.TrainedTokens) }},
	{"tinsmith.tokens.sampled", "{token}", "tokens generated", true, func(s supervisor.State) float64 { return float64(s.Status.SampledTokens) }},
	{"tinsmith.tokens.prefilled", "{token}", "prompt tokens computed", true, func(s supervisor.State) float64 { return float64(s.Status.PrefillTokens) }},
}

// RegisterMetrics makes the figures of every backend readable; the result ends that.
func (f *Fleet) RegisterMetrics() (unregister func() error, err error) {
	meter := otel.Meter("github.com/tinsmith/tinsmith/gateway/internal/fleet")
	instruments := make([]metric.Observable, len(figures))
	record := make([]func(metric.Observer, float64, metric.ObserveOption), len(figures))
	for i, figure := range figures {
		if figure.counter {
			c, err := meter.Float64ObservableCounter(figure.name, metric.WithUnit(figure.unit), metric.WithDescription(figure.description))
			if err != nil {
				return nil, fmt.Errorf("metric %s: %w", figure.name, err)
			}
			instruments[i] = c
			record[i] = func(o metric.Observer, v float64, model metric.ObserveOption) { o.ObserveFloat64(c, v, model) }
			continue
		}
		g, err := meter.Float64ObservableGauge(figure.name, metric.WithUnit(figure.unit), metric.WithDescription(figure.description))
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", figure.name, err)
		}
		instruments[i] = g
		record[i] = func(o metric.Observer, v float64, model metric.ObserveOption) { o.ObserveFloat64(g, v, model) }
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range f.States() {
			of := []attribute.KeyValue{attribute.String("model", s.Serves)}
			if s.Name != s.Serves { // it has several
				of = append(of, attribute.String("backend", s.Name))
			}
			model := metric.WithAttributes(of...)
			for i, figure := range figures {
				record[i](o, figure.read(s.State), model)
			}
		}
		return nil
	}, instruments...)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return registration.Unregister, nil
}
