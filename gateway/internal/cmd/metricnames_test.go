package cmd

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/telemetry"
)

// servedMetrics are the names of everything that /metrics has, as Prometheus stores them, once a request was answered. Calls to plugins are not among them.
func servedMetrics(t *testing.T) map[string]bool {
	t.Helper()
	tel, err := telemetry.Start(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tel.Stop(context.WithoutCancel(t.Context())) }()
	models, err := fleet.New(fleet.Config{DataDir: t.TempDir(), Models: []*catalog.Model{{Model: config.Model{Name: "m"}, Err: errors.New("it is not here")}}})
	if err != nil {
		t.Fatal(err)
	}
	unregister, err := models.RegisterMetrics()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unregister() }()
	meter := server.NewMeter()
	if err := tel.Registry.Register(meter); err != nil {
		t.Fatal(err)
	}
	handler := server.New(server.Options{Health: func() server.Health { return server.Health{Status: "ok"} }, Metrics: tel.Handler, Meter: meter, Routes: []func(gin.IRouter){}})
	text := ""
	for _, path := range []string{"/version", "/metrics"} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
		text = answer.Body.String()
	}
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-zA-Z_:][a-zA-Z0-9_:]*)[ {]`).FindAllStringSubmatch(text, -1) {
		names[m[1]] = true
	}
	return names
}
