package simple

import (
	"context"
	"errors"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// ForwardBackward implements plugins.Backend.
func (b *Backend) ForwardBackward(ctx context.Context, req plugins.ForwardBackwardRequest) (plugins.ForwardBackwardResult, error) {
	return ordered(ctx, b, req.Adapter, req.Position, true, func(a *adapter) (plugins.ForwardBackwardResult, error) {
		var res plugins.ForwardBackwardResult
		err := b.turn(a, "forward_backward")
		if err == nil {
			tokens := make([][]int32, len(req.Data))
			for i := range req.Data {
				tokens[i] = req.Data[i].Tokens
			}
			err = b.options.Before(context.Background(), Operation{Name: "forward_backward", Tokens: tokens, Content: true})
		}
		if err == nil {
			res, err = b.pass(context.Background(), a, &req, b.latest(a))
		}
		switch {
		case req.ForwardOnly:
		case err == nil:
			a.passes++
		case a.failure == nil:
			a.failure = asError(err)
		}
		return res, err
	})
}

func asError(err error) *plugins.Error {
	var e *plugins.Error
	if errors.As(err, &e) {
		return e
	}
	return &plugins.Error{Kind: plugins.KindInternal, Message: err.Error()}
}

func (b *Backend) latest(a *adapter) *version {
	b.mu.Lock()
	defer b.mu.Unlock()
	return a.latest
}

// OptimStep implements plugins.Backend.
func (b *Backend) OptimStep(ctx context.Context, req plugins.OptimStepRequest) (plugins.OptimStepResult, error) {
	return ordered(ctx, b, req.Adapter, req.Position, true, func(a *adapter) (plugins.OptimStepResult, error) {
		begin := time.Now()
		passes, failure, gradient := a.passes, a.failure, a.accumulated
		wrong := b.turn(a, "optim_step")
		if wrong == nil {
			wrong = b.options.Before(context.Background(), Operation{Name: "optim_step", Rate: req.Adam.LearningRate, Content: true})
		}
		if plugins.NoRoom(wrong) && (passes > 0 || failure == nil) {
			return plugins.OptimStepResult{}, wrong // as if it had not been sent
		}
		a.passes, a.failure, a.accumulated = 0, nil, make([]float32, a.layout.Total) // whatever happens now, the window ends
		if wrong != nil {
			return plugins.OptimStepResult{}, wrong
		}
		if err := req.Validate(); err != nil {
			return plugins.OptimStepResult{}, err
		}
		if failure != nil && passes == 0 {
			return plugins.OptimStepResult{}, &plugins.Error{Kind: failure.Kind, Field: failure.Field, Message: "no forward_backward since the last step succeeded: " + failure.Message}
		}
		next, metrics, err := b.adamStep(b.latest(a), gradient, &req.Adam)
		if err != nil {
			return plugins.OptimStepResult{}, err
		}
		b.mu.Lock()
		a.publish(next)
		b.mu.Unlock()
		return plugins.OptimStepResult{Version: next.number, Step: next.step, Metrics: metrics, Execution: plugins.Execution{Cycle: int64(metrics["clock_cycle"]), Begin: begin, End: time.Now()}}, nil
	})
}
