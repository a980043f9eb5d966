package server

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/semconv/v1.39.0/httpconv"
)

// meter records requests in the instruments of OpenTelemetry's conventions. A series is a method, a route and a status, none of which a client can make up: whatever else a
// request says of itself, such as its Host, would make new series as long as somebody likes. The attributes of a series are made once.
type meter struct {
	duration metric.Float64Histogram
	request  metric.Int64Histogram
	response metric.Int64Histogram

	mu     sync.RWMutex
	series map[series][]metric.RecordOption
}

type series struct {
	method, route string
	status        int
}

// methods are those that have a series of their own.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace}

func newMeter() (*meter, error) {
	from := otel.Meter("github.com/tinsmith/tinsmith/gateway/internal/server")
	// A poll is held for 30 s and a stream goes on for minutes, but what is slow and should not be is found below a second.
	duration, err := httpconv.NewServerRequestDuration(from, metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w", duration.Name(), err)
	}
	request, err := httpconv.NewServerRequestBodySize(from)
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w", request.Name(), err)
	}
	response, err := httpconv.NewServerResponseBodySize(from)
	if err != nil {
		return nil, fmt.Errorf("metric %s: %w", response.Name(), err)
	}
	return &meter{duration: duration.Inst(), request: request.Inst(), response: response.Inst(), series: map[series][]metric.RecordOption{}}, nil
}

// measure is the middleware.
func (m *meter) measure(c *gin.Context) {
	if unobserved(c.Request) {
		c.Next()
		return
	}
	begun := time.Now()
	c.Next()
	in := m.attributes(c.Request.Method, c.FullPath(), c.Writer.Status())
	m.duration.Record(c.Request.Context(), time.Since(begun).Seconds(), in...)
	m.request.Record(c.Request.Context(), max(c.Request.ContentLength, 0), in...)
	m.response.Record(c.Request.Context(), int64(max(c.Writer.Size(), 0)), in...)
}

// unobserved tells the requests of those who only look whether the server is well.
func unobserved(r *http.Request) bool { return r.URL.Path == "/healthz" || r.URL.Path == "/metrics" }

// attributes gives those of a series. route is "" for a path that there is not.
func (m *meter) attributes(method, route string, status int) []metric.RecordOption {
	if !slices.Contains(methods, method) {
		method = "_OTHER"
	}
	key := series{method, route, status}
	m.mu.RLock()
	in := m.series[key]
	m.mu.RUnlock()
	if in != nil {
		return in
	}
	list := []attribute.KeyValue{semconv.HTTPRequestMethodKey.String(method), semconv.URLScheme("http"), semconv.HTTPResponseStatusCode(status)}
	if route != "" {
		list = append(list, semconv.HTTPRoute(route))
	}
	in = []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(list...))}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.series[key] = in
	return in
}
