package server

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
)

// Meter records requests in the instruments of OpenTelemetry's conventions, under the names that its exporter for Prometheus gives them. A series is a method, a route and a status, none of
// which a client can make up: whatever else a request says of itself, such as its Host, would make new series as long as somebody likes. It is registered where the metrics are gathered from,
// and the handlers that New makes may share one.
//
// It counts by Prometheus' own histograms: those of OpenTelemetry look at every attribute at every record, which took a fiftieth of the processor time of a small request, for each of three.
type Meter struct {
	mu     sync.RWMutex
	series map[series]*instruments
}

type series struct {
	method, route string
	status        int
}

// instruments are those of a series.
type instruments struct{ duration, request, response prometheus.Histogram }

// methods are those that have a series of their own.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace}

var (
	// A poll is held for 30 s and a stream goes on for minutes, but what is slow and should not be is found below a second.
	durations = []float64{0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10}
	sizes     = []float64{0, 5, 10, 25, 50, 75, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10000} // OpenTelemetry's own
)

// NewMeter makes one that has seen nothing.
func NewMeter() *Meter { return &Meter{series: map[series]*instruments{}} }

// Describe implements prometheus.Collector. The series come with the requests, so that none is named before.
func (m *Meter) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *Meter) Collect(to chan<- prometheus.Metric) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, in := range m.series {
		to <- in.duration
		to <- in.request
		to <- in.response
	}
}

// measure is the middleware.
func (m *Meter) measure(c *gin.Context) {
	if unobserved(c.Request) {
		c.Next()
		return
	}
	begun := time.Now()
	c.Next()
	in := m.instruments(c.Request.Method, c.FullPath(), c.Writer.Status())
	in.duration.Observe(time.Since(begun).Seconds())
	in.request.Observe(float64(max(c.Request.ContentLength, 0)))
	in.response.Observe(float64(max(c.Writer.Size(), 0)))
}

// unobserved tells the requests of those who only look whether the server is well.
func unobserved(r *http.Request) bool {
	return r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/metrics"
}

// instruments gives those of a series. route is "" for a path that there is not.
func (m *Meter) instruments(method, route string, status int) *instruments {
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
	m.mu.Lock()
	defer m.mu.Unlock()
	if in = m.series[key]; in == nil { // nobody was faster
		in = key.instruments()
		m.series[key] = in
	}
	return in
}

func (s series) instruments() *instruments {
	labels := prometheus.Labels{"http_request_method": s.method, "url_scheme": "http", "http_response_status_code": strconv.Itoa(s.status)}
	if s.route != "" {
		labels["http_route"] = s.route
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
	}
	return &instruments{
		duration: histogram("http_server_request_duration_seconds", "Duration of HTTP server requests.", durations),
		request:  histogram("http_server_request_body_size_bytes", "Size of HTTP server request bodies.", sizes),
		response: histogram("http_server_response_body_size_bytes", "Size of HTTP server response bodies.", sizes),
	}
}
