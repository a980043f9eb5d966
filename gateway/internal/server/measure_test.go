package server

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// observed is a server whose series and spans a test can read.
func observed(t *testing.T, traces bool) (http.Handler, prometheus.Gatherer, *tracetest.SpanRecorder) {
	t.Helper()
	tracers := otel.GetTracerProvider()
	t.Cleanup(func() { otel.SetTracerProvider(tracers) })
	registry, meter, spans := prometheus.NewRegistry(), NewMeter(), tracetest.NewSpanRecorder()
	registry.MustRegister(meter)
	otel.SetTracerProvider(trace.NewTracerProvider(trace.WithSpanProcessor(spans)))
	return New(Options{
		Health: func() Health { return Health{Status: "ok"} }, Metrics: http.NotFoundHandler(), Meter: meter, Traces: traces,
		Routes: []func(gin.IRouter){func(r gin.IRouter) {
			r.GET("/things/:id", func(c *gin.Context) { c.String(http.StatusOK, "a thing") })
			r.GET("/links/:token", func(c *gin.Context) { c.String(http.StatusOK, "what it opens") })
			r.GET("/broken", func(*gin.Context) { panic("broken") })
		}},
	}), registry, spans
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
	all, err := reader.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got, names []string
	for _, family := range all {
		names = append(names, family.GetName())
		if family.GetName() != "http_server_request_duration_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetName() + "=" + l.GetValue() + ","
			}
			got = append(got, fmt.Sprintf("%s %d", strings.TrimSuffix(labels, ","), m.GetHistogram().GetSampleCount()))
		}
	}
	if want := []string{"http_server_request_body_size_bytes", "http_server_request_duration_seconds", "http_server_response_body_size_bytes"}; !slices.Equal(names, want) {
		t.Errorf("there are the metrics %q, wanted %q", names, want)
	}
	slices.Sort(got)
	want := []string{
		"http_request_method=GET,http_response_status_code=200,http_route=/things/:id,url_scheme=http 2",
		"http_request_method=GET,http_response_status_code=404,url_scheme=http 2",
		"http_request_method=GET,http_response_status_code=500,http_route=/broken,url_scheme=http 1",
		"http_request_method=_OTHER,http_response_status_code=405,url_scheme=http 2",
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
