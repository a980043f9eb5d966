package engine

import (
	"context"
	"math"
	"slices"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/plugins"
)

// submit enters an operation with a position and waits for its decision. describe fills it in; it is called with mu held and must not wait.
func (e *Engine) submit(ctx context.Context, adapter string, describe func(*run, *operation)) (any, error) {
	o := &operation{done: make(chan struct{}), weight: 1, span: trace.SpanContextFromContext(ctx)}
	e.mu.Lock()
	if _, err := e.accept(); err != nil {
		e.mu.Unlock()
		return nil, err
	}
	r, err := e.find(adapter)
	if err != nil {
		e.mu.Unlock()
		return nil, err
	}
	describe(r, o)
	if r.frozen && (o.kind == kindPass || o.kind == kindStep || o.kind == kindLoad) {
		e.mu.Unlock()
		return nil, plugins.Invalidf("adapter", "%q was loaded frozen, only to be sampled", adapter)
	}
	if err := r.queue.admit(o); err != nil {
		e.mu.Unlock()
		return nil, err
	}
	e.wake.Signal()
	e.mu.Unlock()
	select {
	case <-o.done:
		return o.result, o.err
	case <-ctx.Done():
		return nil, plugins.Cancelled(ctx.Err())
	}
}

// ForwardBackward runs the model over training data.
func (e *Engine) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	l, err := e.ifLoaded()
	if err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	// The operation may outlive the call, in which alone the caller's slices may be read.
	data, tokens := copyData(req.Data)
	req.Data = data
	var form loss.Loss
	invalid := req.Validate(&l.info)
	if invalid == nil {
		if form, err = loss.New(req.Loss, req.LossConfig); err != nil {
			invalid = plugins.Invalidf("loss", "%v", err)
		}
	}
	result, err := e.submit(ctx, req.Adapter, func(_ *run, o *operation) {
		o.kind, o.position, o.invalid, o.tokens, o.pass, o.loss = kindPass, req.Position, invalid, tokens, &req, form
		if w := req.Share.Weight; w > 0 && invalid == nil {
			o.weight = w
		}
	})
	if err != nil {
		return plugins.ForwardBackwardResult{}, err
	}
	return result.(plugins.ForwardBackwardResult), nil
}

// copyData copies data with all that is in them, into few pieces of memory however many they are, and counts their tokens.
func copyData(data []plugins.Datum) (copied []plugins.Datum, tokens int) {
	ints, floats := 0, 0
	for i := range data {
		d := &data[i]
		tokens += len(d.Tokens)
		ints += len(d.Tokens) + len(d.Targets)
		floats += len(d.Weights) + len(d.Logprobs) + len(d.Advantages) + len(d.SequenceRatioMask)
	}
	copied = slices.Clone(data)
	intRoom, floatRoom := make([]int32, 0, ints), make([]float32, 0, floats)
	for i := range copied {
		d := &copied[i]
		d.Tokens, intRoom = copyInto(intRoom, d.Tokens)
		d.Targets, intRoom = copyInto(intRoom, d.Targets)
		for _, values := range []*[]float32{&d.Weights, &d.Logprobs, &d.Advantages, &d.SequenceRatioMask} {
			*values, floatRoom = copyInto(floatRoom, *values)
		}
	}
	return copied, tokens
}

// copyInto appends values to room, which has room for them, and gives the copy: nil for nil.
func copyInto[T any](room, values []T) (copied, rest []T) {
	if values == nil {
		return nil, room
	}
	n := len(room)
	room = append(room, values...)
	return room[n:len(room):len(room)], room
}

// OptimStep applies AdamW.
func (e *Engine) OptimStep(ctx context.Context, req plugins.OptimStepRequest) (plugins.OptimStepResult, error) {
	result, err := e.submit(ctx, req.Adapter, func(_ *run, o *operation) {
		o.kind, o.position, o.invalid, o.step = kindStep, req.Position, req.Validate(), &req
	})
	if err != nil {
		return plugins.OptimStepResult{}, err
	}
	return result.(plugins.OptimStepResult), nil
}

func adam(p plugins.AdamParams) optim.Adam {
	return optim.Adam{LearningRate: p.LearningRate, Beta1: p.Beta1, Beta2: p.Beta2, Eps: p.Eps, WeightDecay: p.WeightDecay, GradClipNorm: p.GradClipNorm}
}

// ifLoaded gives what was loaded, or why no work is taken.
func (e *Engine) ifLoaded() (*loaded, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.accept()
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
