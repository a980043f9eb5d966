package plugins

import (
	"context"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// tracesExported tells whether this process sends its spans anywhere. The gateway and its plugins have these variables in common.
func tracesExported() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != ""
}

// exportTraces sends the spans of this process to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names; without it nothing is recorded. Spans join the trace of the
// gateway's call. The result sends what is still buffered.
func exportTraces(ctx context.Context, info Info) (flush func(), err error) {
	if !tracesExported() {
		return func() {}, nil
	}
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, err
	}
	attributes, err := resource.Merge(resource.Environment(), resource.NewSchemaless(
		attribute.String("service.name", "tinsmith-plugin-"+info.Plugin),
		attribute.String("service.version", info.Version),
		attribute.String("service.instance.id", info.BootID),
	))
	if err != nil {
		return nil, err
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(attributes))
	otel.SetTracerProvider(provider)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			slog.Warn("traces were not all exported", "error", err)
		}
	}, nil
}
