package engine

import (
	"fmt"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/plugins"
)

// kind tells what an operation with a position does.
type kind uint8

const (
	kindPass kind = iota + 1 // ForwardBackward, with or without gradient
	kindStep                 // OptimStep
	kindPin                  // Pin
	kindSave                 // SaveAdapter
	kindLoad                 // LoadAdapter
)

// operation is one request that waits for its turn in its run. It is decided exactly once: done is closed after result or err has been set.
type operation struct {
	kind     kind
	position int64
	tokens   int     // of a pass
	weight   float64 // of its share of a cycle, see plan
	invalid  error   // what validation found: the operation fails with it when its turn comes

	pass *plugins.ForwardBackwardRequest
	loss loss.Loss // of pass
	step *plugins.OptimStepRequest
	span trace.SpanContext // of the call
	host func()            // kindPin, kindSave and kindLoad: runs on the device goroutine at the operation's turn and decides it, at once or later

	done   chan struct{}
	result any
	err    error
}

// key is for whom the operation, a pass, is done.
func (o *operation) key() string {
	if o.pass == nil {
		return ""
	}
	return o.pass.Share.Key
}

// gradient tells whether the operation belongs to the window of the next step.
func (o *operation) gradient() bool { return o.kind == kindPass && !o.pass.ForwardOnly }

// queue holds the operations of one run from their arrival to their decision, in order of position.
type queue struct {
	next    int64 // the lowest position that is not decided
	waiting map[int64]*operation
}

func newQueue() queue { return queue{next: 1, waiting: map[int64]*operation{}} }

// admit takes an operation in. A position that was decided, or that waits already, is refused with KindAlreadyApplied; one beyond what may be sent ahead with KindCapacity. A refused
// operation does not use up its position.
func (q *queue) admit(o *operation) error {
	switch {
	case o.position < 1:
		return plugins.Invalidf("position", "is %d; positions count from 1", o.position)
	case o.position < q.next:
		return &plugins.Error{Kind: plugins.KindAlreadyApplied, Field: "position", Message: fmt.Sprintf("%d was decided before; the next is %d", o.position, q.next)}
	case o.position >= q.next+plugins.MaxAhead:
		return &plugins.Error{Kind: plugins.KindCapacity, Field: "position", Message: fmt.Sprintf("is %d, more than %d ahead of %d, the next to be decided", o.position, plugins.MaxAhead, q.next)}
	case q.waiting[o.position] != nil:
		return &plugins.Error{Kind: plugins.KindAlreadyApplied, Field: "position", Message: fmt.Sprintf("%d has been accepted and waits for its turn", o.position)}
	}
	q.waiting[o.position] = o
	return nil
}

// first gives the next operation, nil if it has not arrived.
func (q *queue) first() *operation { return q.waiting[q.next] }

// passes gives the leading series of passes: those from the next operation on, in order, to the first that is something else or has not arrived.
func (q *queue) passes() (leading []*operation) {
	for o := q.first(); o != nil && o.kind == kindPass; o = q.waiting[q.next+int64(len(leading))] {
		leading = append(leading, o)
	}
	return leading
}

// pop removes the next operation, which has been decided.
func (q *queue) pop() {
	delete(q.waiting, q.next)
	q.next++
}

// window is what has happened since the last optimizer step.
type window struct {
	passes  int   // with gradients, that succeeded
	failure error // of the first that failed
}

// add notes the outcome of a pass with gradients.
func (w *window) add(err error) {
	if err == nil {
		w.passes++
	} else if w.failure == nil {
		w.failure = err
	}
}

// verdict is the reason for which a step must fail without changing anything: a failed pass and none that succeeded.
func (w *window) verdict() error {
	if w.failure == nil || w.passes > 0 {
		return nil
	}
	cause := internal("forward_backward", w.failure)
	return &plugins.Error{Kind: cause.Kind, Field: cause.Field, Message: "no forward_backward since the last step succeeded: " + cause.Message}
}
