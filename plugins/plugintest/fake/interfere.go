package fake

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"syscall"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

// interfere applies the configured delay and fault of one run of an operation. ctx ends a wait.
func (b *Backend) interfere(ctx context.Context, operation string) error {
	b.mu.Lock()
	b.runs[operation]++
	n := b.runs[operation]
	b.mu.Unlock()
	for _, d := range b.config.Delays {
		if d.Operation != operation || d.Seconds == 0 {
			continue
		}
		b.takeTime(ctx, time.Duration(d.Seconds*float64(time.Second)))
	}
	for _, f := range b.config.Faults {
		if f.Operation != operation || !f.counted() || f.N != n {
			continue
		}
		if err := b.goWrong(f, n); err != nil {
			return err
		}
	}
	if operation == "optim_step" && b.starved.Load() {
		return &plugins.Error{Kind: plugins.KindCapacity, Message: "the fake backend was told to have no memory"}
	}
	if b.small.Load() && (operation == "create_adapter" || operation == "load_adapter" || operation == "optim_step") {
		return &plugins.Error{Kind: plugins.KindTooLarge, Message: "the fake backend was told to be too small"}
	}
	return b.stopped(ctx)
}

// takeTime is an operation that takes long: it makes progress all the while, where the fault "hang" makes none.
func (b *Backend) takeTime(ctx context.Context, d time.Duration) {
	end := time.NewTimer(d)
	defer end.Stop()
	alive := time.NewTicker(time.Second)
	defer alive.Stop()
	for {
		select {
		case <-alive.C:
			b.Progress(func(*plugins.Status) {})
		case <-end.C:
			return
		case <-ctx.Done():
			return
		case <-b.Lost():
			return
		}
	}
}

// Starve says whether optimizer steps find no memory. For tests in the same process.
func (b *Backend) Starve(starved bool) { b.starved.Store(starved) }

// Shrink says whether the backend is too small for an adapter to be made or to make a step. For tests in the same process.
func (b *Backend) Shrink(small bool) { b.small.Store(small) }

// before is told of every operation, once as such and once with what is in it.
func (b *Backend) before(ctx context.Context, o simple.Operation) error {
	if !o.Content {
		return b.interfere(ctx, o.Name)
	}
	for _, f := range b.config.Faults {
		if f.Operation != o.Name || f.counted() {
			continue
		}
		switch {
		case f.Rate != nil && *f.Rate == o.Rate:
		case f.Token != nil && slices.ContainsFunc(o.Tokens, func(t []int32) bool { return slices.Contains(t, *f.Token) }):
		default:
			continue
		}
		if err := b.goWrong(f, 0); err != nil {
			return err
		}
	}
	return b.stopped(ctx)
}

// goWrong does what a fault says; n is the number of the run, 0 if it was not counted.
func (b *Backend) goWrong(f Fault, n int64) error {
	switch f.Action {
	case "fail":
		kind, _ := kindByName(f.Kind)
		message := f.Message
		setDefault(&message, fmt.Sprintf("the fake backend was told to fail %s number %d", f.Operation, n))
		return &plugins.Error{Kind: kind, Field: f.Field, Message: message}
	case "crash":
		slog.Error("fake: told to crash", "operation", f.Operation, "number", n)
		b.options.Exit(f.ExitCode)
	case "hang":
		<-b.Lost()
	case "print":
		_, _ = syscall.Write(1, []byte("fake: a line on standard output\n"))
	}
	return nil
}

// stopped tells why an operation must not go on.
func (b *Backend) stopped(ctx context.Context) error {
	switch {
	case b.lost():
		return b.LostError()
	case ctx.Err() != nil:
		return plugins.Cancelled(ctx.Err())
	}
	return nil
}

func (b *Backend) lost() bool {
	select {
	case <-b.Lost():
		return true
	default:
		return false
	}
}
