package server

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// observed is a server whose series and spans a test can read.
func observed(t *testing.T, traces bool) (http.Handler, *metric.ManualReader, *tracetest.SpanRecorder) {
	t.Helper()
	meters, tracers := otel.GetMeterProvider(), otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetMeterProvider(meters); otel.SetTracerProvider(tracers) })
	reader, spans := metric.NewManualReader(), tracetest.NewSpanRecorder()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
	return New(Options{
		Health: func() Health { return Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Traces: traces,
		Routes: []func(gin.IRouter){func(r gin.IRouter) {
			r.GET("/things/:id", func(c *gin.Context) { c.String(http.StatusOK, "a thing") })
			r.GET("/links/:token", func(c *gin.Context) { c.String(http.StatusOK, "what it opens") })
			r.GET("/broken", func(*gin.Context) { panic("broken") })
		}},
	}), reader, spans
}

func TestRequestsAreMeasured(t *testing.T) {
	handler, reader, _ := observed(t, false)
	for _, x := range []struct{ method, path, host string }{
		{"GET", "/things/1", "a:1"},
		{"GET", "/things/2", "b:2"},
		{"GET", "/broken", "a"},
		{"GET", "/nowhere/1", "a"},
		{"GET", "/nowhere/2", "a"},
		{"MADEUP", "/things/1", "a"},
		{"INVENTED", "/things/1", "a"},
		{"GET", "/healthz", "a"},
		{"GET", "/metrics", "a"},
	} {
		r := httptest.NewRequest(x.method, x.path, nil)
		r.Host = x.host
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != "http.server.request.duration" {
				continue
			}
			for _, p := range m.Data.(metricdata.Histogram[float64]).DataPoints {
				got = append(got, p.Attributes.Encoded(attribute.DefaultEncoder())+" "+string(rune('0'+p.Count)))
			}
		}
	}
	slices.Sort(got)
	want := []string{
		"http.request.method=GET,http.response.status_code=200,http.route=/things/:id,url.scheme=http 2",
		"http.request.method=GET,http.response.status_code=404,url.scheme=http 2",
		"http.request.method=GET,http.response.status_code=500,http.route=/broken,url.scheme=http 1",
		"http.request.method=_OTHER,http.response.status_code=405,url.scheme=http 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("series:\n%q\nwanted:\n%q", got, want)
	}
}

func TestSpansAreMadeWhereSomebodyTakesThem(t *testing.T) {
	for _, traces := range []bool{true, false} {
		handler, _, spans := observed(t, traces)
		for _, path := range []string{"/things/1", "/links/secret", "/healthz", "/metrics"} {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil))
		}
		var names []string
		for _, s := range spans.Ended() {
			names = append(names, s.Name())
		}
		if traces && !slices.Equal(names, []string{"GET /things/:id"}) || !traces && len(names) > 0 {
			t.Errorf("with Traces %v there are the spans %q", traces, names)
		}
	}
}
