// Package telemetry sets up OpenTelemetry for the gateway: traces go out by OTLP when OTEL_EXPORTER_OTLP_ENDPOINT is set, metrics are served for Prometheus. It
// knows the names of the instruments and nothing of what they measure.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/sdk/trace"
)

// ServiceName is the name in traces, unless OTEL_SERVICE_NAME says another.
const ServiceName = "tinsmith"

// Telemetry is the running set-up.
type Telemetry struct {
	// Handler serves the metrics.
	Handler http.Handler
	// Registry takes collectors whose metrics it serves beside those of the global meter provider.
	Registry prometheus.Registerer
	// Traces tells whether spans go anywhere.
	Traces bool
	stops  []func(context.Context) error
}

// Start installs the global providers.
func Start(ctx context.Context, version string) (*Telemetry, error) {
	res, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", ServiceName), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	t := &Telemetry{}
	options := []trace.TracerProviderOption{trace.WithResource(res)}
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "" {
		exporter, err := otlptracegrpc.New(ctx)
		if err != nil {
			return nil, fmt.Errorf("telemetry: OTLP exporter: %w", err)
		}
		options = append(options, trace.WithBatcher(exporter))
		traces := trace.NewTracerProvider(options...)
		otel.SetTracerProvider(traces)
		t.Traces = true
		t.stops = append(t.stops, traces.Shutdown)
	}
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := otelprometheus.New(otelprometheus.WithRegisterer(registry), otelprometheus.WithoutScopeInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: metrics: %w", err)
	}
	metrics := metric.NewMeterProvider(metric.WithReader(reader), metric.WithResource(res))
	otel.SetMeterProvider(metrics)
	t.stops = append(t.stops, metrics.Shutdown)
	t.Registry = registry
	t.Handler = promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
	return t, nil
}

// Stop sends what is left.
func (t *Telemetry) Stop(ctx context.Context) error {
	var errs []error
	for _, stop := range t.stops {
		errs = append(errs, stop(ctx))
	}
	return errors.Join(errs...)
}
