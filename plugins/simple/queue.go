package simple

import (
	"context"
	"fmt"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// failPending fails the operations that have not started. b.mu is held.
func (b *Backend) failPending(a *adapter, err error) {
	for position, op := range a.pending {
		delete(a.pending, position)
		op.fail(err)
		close(op.done)
	}
}

// ordered runs f when the operation's position has come, and waits for it. f runs on the adapter's queue, one at a time.
func ordered[T any](ctx context.Context, b *Backend, id string, position int64, trains bool, f func(*adapter) (T, error)) (T, error) {
	var result, zero T
	var failure error
	op := &operation{done: make(chan struct{}), fail: func(err error) { failure = err }}
	b.mu.Lock()
	a, err := b.enqueue(id, position, trains, op)
	if err != nil {
		b.mu.Unlock()
		return zero, err
	}
	op.run = func() (err error) {
		result, err = f(a)
		return err
	}
	if !a.running {
		a.running = true
		b.begin()
		go b.work(a)
	}
	b.mu.Unlock()
	select {
	case <-op.done:
		if failure != nil {
			return zero, failure
		}
		return result, nil
	case <-b.lost:
		return zero, b.LostError()
	case <-ctx.Done():
		return zero, plugins.Cancelled(ctx.Err())
	}
}

// turn comes first in every ordered operation but a load: and fails after a failed load.
func (b *Backend) turn(a *adapter, name string) error {
	if err := b.before(context.Background(), name); err != nil {
		return err
	}
	if a.broken != nil {
		return &plugins.Error{Kind: a.broken.Kind, Field: a.broken.Field, Message: "an earlier load failed: " + a.broken.Message}
	}
	return nil
}

// before tells the program that an operation is to run, and why it must not.
func (b *Backend) before(ctx context.Context, name string) error {
	if err := b.options.Before(ctx, Operation{Name: name}); err != nil {
		return err
	}
	return b.stopped(ctx)
}

// stopped tells why an operation must not go on.
func (b *Backend) stopped(ctx context.Context) error {
	switch {
	case b.isLost():
		return b.LostError()
	case ctx.Err() != nil:
		return plugins.Cancelled(ctx.Err())
	}
	return nil
}

func (b *Backend) enqueue(id string, position int64, trains bool, op *operation) (*adapter, error) { // b.mu is held
	if err := b.accept(); err != nil {
		return nil, err
	}
	a, err := b.find(id)
	switch {
	case err != nil:
		return nil, err
	case position < 1:
		return nil, plugins.Invalidf("position", "%d is not allowed: at least 1", position)
	case trains && a.frozen:
		return nil, plugins.Invalidf("adapter", "%.200q is only to be sampled", id)
	case position < a.next || a.pending[position] != nil:
		return nil, &plugins.Error{Kind: plugins.KindAlreadyApplied, Field: "position", Message: fmt.Sprintf("%d was accepted before", position)}
	case position >= a.next+plugins.MaxAhead:
		return nil, &plugins.Error{Kind: plugins.KindCapacity, Field: "position", Message: fmt.Sprintf("%d is too far ahead: %d is next", position, a.next)}
	}
	a.pending[position] = op
	return a, nil
}

// work runs an adapter's queue as far as it is without gaps.
func (b *Backend) work(a *adapter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for op := a.pending[a.next]; op != nil && !b.isLost(); op = a.pending[a.next] {
		delete(a.pending, a.next)
		a.next++
		b.mu.Unlock()
		if err := op.run(); err != nil {
			op.fail(err)
		}
		b.mu.Lock()
		close(op.done)
		b.lastAlive = time.Now()
	}
	a.running = false
	b.end()
}
