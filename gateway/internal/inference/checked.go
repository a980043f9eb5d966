package inference

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
)

// checked counts finished answers that were checked against a schema which they were not held to in full, and those of them that it does not allow. What the
// models make of keywords that no mask has shows there.
type checked struct{ answers, invalid metric.Int64Counter }

func newChecked() (c checked, err error) {
	meter := otel.Meter("github.com/tinsmith/tinsmith/gateway/internal/inference")
	for name, x := range map[string]struct {
		counter     *metric.Int64Counter
		description string
	}{
		"tinsmith.answers.checked": {&c.answers, "finished answers that were checked against a schema that they were not held to in full"},
		"tinsmith.answers.invalid": {&c.invalid, "those of them that their schema does not allow; they are sent with schema_errors"},
	} {
		if *x.counter, err = meter.Int64Counter(name, metric.WithUnit("{answer}"), metric.WithDescription(x.description)); err != nil {
			return c, fmt.Errorf("metric %s: %w", name, err)
		}
	}
	return c, nil
}

// Checked counts an answer that has ended, and gives on what is wrong with it. finish is why it ended: one that was cut is not checked.
func (s *Service) Checked(ctx context.Context, m *catalog.Model, held *Held, finish string, wrong []SchemaError) []SchemaError {
	if !held.Checks() || finish != FinishStop && finish != FinishCalls {
		return wrong
	}
	model := metric.WithAttributes(attribute.String("model", m.Name))
	s.checked.answers.Add(ctx, 1, model)
	if len(wrong) > 0 {
		s.checked.invalid.Add(ctx, 1, model)
	}
	return wrong
}
