package plugins

import (
	"context"
	"maps"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// TestCallsAreMeasured wants a series for every method and outcome.
func TestCallsAreMeasured(t *testing.T) {
	before := otel.GetMeterProvider()
	reader := metric.NewManualReader()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	defer otel.SetMeterProvider(before)
	fails := true
	c, _ := connect(t, &answers{deleteAdapter: func(context.Context) error {
		if fails {
			return &Error{Kind: KindInvalid, Message: "no"}
		}
		return nil
	}, sample: func(_ context.Context, _ SampleRequest, emit func(SampleEvent) error) error {
		if fails {
			return &Error{Kind: KindInvalid, Message: "no"}
		}
		return emit(SampleEvent{Finished: &SequenceFinished{Reason: StopLength}})
	}})
	sample := func() error {
		request := SampleRequest{ID: "1", Prompt: []int32{1}, NumSamples: 1, MaxTokens: 1, TopP: 1, RepetitionPenalty: 1}
		return c.Sample(t.Context(), request, func(SampleEvent) error { return nil })
	}
	if err := sample(); KindOf(err) != KindInvalid {
		t.Fatal(err)
	}
	if err := c.DeleteAdapter(t.Context(), "a"); KindOf(err) != KindInvalid {
		t.Fatal(err)
	}
	fails = false
	if err := sample(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.DeleteAdapter(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
				got[m.Name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Count
			}
		}
	}
	const method, code = "rpc.client.call.duration rpc.method=tinsmith.backend.v1.Backend/", ",rpc.response.status_code="
	if want := map[string]uint64{method + "DeleteAdapter" + code + "OK": 2, method + "DeleteAdapter" + code + "INVALID_ARGUMENT": 1, method + "Sample" + code + "OK": 1, method + "Sample" + code + "INVALID_ARGUMENT": 1}; !maps.Equal(got, want) {
		t.Errorf("series %v, wanted %v", got, want)
	}
}
