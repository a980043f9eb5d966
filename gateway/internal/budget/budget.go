// Package budget bounds what one piece of outside input may cost: a chat template, or the rules of a tokenizer, which come with a model and run on
// what clients send. Work is counted in steps and memory in bytes, both as they are used, so that the same input always ends at the same place. It
// knows neither templates nor tokenizers.
//
// What costs little, or little for each byte that a client has sent, runs at once. What costs more needs one of a few places, works in turns with a rest after each, and ends with its context. A place rests too
// before somebody else has it, and keys that wait get one in turn. So many hostile requests at a time take half a core and the memory of one or two of them, and others hardly notice.
package budget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/metrics"
	"time"
)

// Limits bounds one piece of work. A field that is zero, or larger than that of [Most], is that of Most.
type Limits struct {
	// Steps is the work, in units of about three nanoseconds: a character looked at is one.
	Steps int
	// Bytes is the memory that is made, whether or not it is still needed.
	Bytes int
}

// Most is as much as anything may cost.
var Most = Limits{Steps: 100_000_000, Bytes: 64 << 20}

const (
	// lightSteps and lightBytes are what work may cost without a place: six thousand messages of an ordinary template.
	lightSteps = 2_000_000
	lightBytes = 2 << 20
	// ordinarySteps and ordinaryBytes are what work may cost without a place besides, for each byte of a client's text: that of tokenizers that we know is mostly less.
	ordinarySteps = 16
	ordinaryBytes = 4
	// lookEvery is how many steps pass between two looks at the context and the clock.
	lookEvery = 1 << 16
	// turn is how long work goes on between two rests; a rest is as long as what went before, but no longer than longestRest.
	turn        = 500 * time.Microsecond
	longestRest = time.Millisecond
	// longestPause is how long a place rests at most.
	longestPause = 100 * time.Millisecond
	// muchGarbage is how large the heap may be when large work ends, without what it has left behind being collected at once.
	muchGarbage = 128 << 20
	// patience is how long a place is waited for.
	patience = time.Second
	// bytesPerStep is how many bytes are made or copied in the time of a step.
	bytesPerStep = 16
)

// ErrBusy says that no place became free in time. The same work may succeed later.
var ErrBusy = errors.New("too many requests need long work on their text at the moment: send this one again later")

// Exceeded says that a limit was reached.
type Exceeded struct {
	What  string // "steps" or "bytes"
	Limit int
}

// Error implements error.
func (e *Exceeded) Error() string {
	if e.What == "bytes" {
		return fmt.Sprintf("more than %d bytes of memory", e.Limit)
	}
	return fmt.Sprintf("more than %d steps of work", e.Limit)
}

// Budget is what is left of one piece of work's limits. It belongs to one goroutine, and must be ended.
type Budget struct {
	ctx    context.Context
	owner  string
	limits Limits
	steps  int
	bytes  int
	text   int // bytes that the work is on
	next   int // look around when so many steps are done
	placed bool
	large  bool // much memory was made with the place
	rested time.Time
	worked time.Duration // with the place, but for the time since rested
}

// New makes a budget of nobody in particular. Work that it pays for ends with ctx.
func New(ctx context.Context, limits Limits) *Budget { return For(ctx, "", limits) }

// For is New for a key's holder.
func For(ctx context.Context, owner string, limits Limits) *Budget {
	b := &Budget{ctx: ctx, owner: owner}
	b.Renew(limits)
	return b
}

// Renew makes the budget whole again, for a next piece of the same request's work. A place is kept, and so is what On has told.
func (b *Budget) Renew(limits Limits) {
	if limits.Steps <= 0 || limits.Steps > Most.Steps {
		limits.Steps = Most.Steps
	}
	if limits.Bytes <= 0 || limits.Bytes > Most.Bytes {
		limits.Bytes = Most.Bytes
	}
	b.limits, b.steps, b.bytes = limits, 0, 0
	b.next = min(lookEvery, limits.Steps+1)
}

// On tells that the work to come is on n bytes of a client's text. It raises no limit: more of it may be done without a place.
func (b *Budget) On(n int) { b.text += n }

// light tells whether no place is needed so far.
func (b *Budget) light() bool {
	return b.steps <= lightSteps+ordinarySteps*b.text && !b.isLarge()
}

// isLarge tells whether that is not so for the memory's sake.
func (b *Budget) isLarge() bool { return b.bytes > lightBytes+ordinaryBytes*b.text }

// End gives the place back, if there is one.
func (b *Budget) End() {
	if !b.placed {
		return
	}
	if b.large {
		heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		if metrics.Read(heap); heap[0].Value.Uint64() > muchGarbage {
			runtime.GC() // else the next one's memory comes on top of what this one has left behind
		}
	}
	now := time.Now()
	collecting := time.Duration(b.bytes / 2) // a byte that was made costs the collector half a nanosecond, while others work
	shared.give(now.Add(min(b.worked+now.Sub(b.rested)+collecting, longestPause)))
	b.placed, b.large, b.worked = false, false, 0
}

// Steps is the work that was paid for.
func (b *Budget) Steps() int { return b.steps }

// Bytes is the memory that was paid for.
func (b *Budget) Bytes() int { return b.bytes }

// Limits are what the budget began with.
func (b *Budget) Limits() Limits { return b.limits }

// Work pays for n steps, before they are done. The error is an *[Exceeded], [ErrBusy], or the cause of an ended context; after an error nothing more may be done.
func (b *Budget) Work(n int) error {
	b.steps += n
	if uint(b.steps) < uint(b.next) { // a sum that overflows is negative, which is larger than anything here
		return nil
	}
	return b.look()
}

// Take pays for n bytes, before they are made, and for the time of making them. Errors are as those of Work.
func (b *Budget) Take(n int) error {
	b.bytes += n
	if uint(b.bytes) > uint(b.limits.Bytes) {
		return &Exceeded{"bytes", b.limits.Bytes}
	}
	if !b.placed && b.isLarge() {
		b.next = 0
	}
	return b.Work(n / bytesPerStep)
}

// Spend pays for steps and for bytes.
func (b *Budget) Spend(steps, bytes int) error {
	if err := b.Work(steps); err != nil {
		return err
	}
	return b.Take(bytes)
}

// TakeEach pays for count times n bytes.
func (b *Budget) TakeEach(count, n int) error {
	if n > 0 && count > math.MaxInt/n/2 {
		return &Exceeded{"bytes", b.limits.Bytes}
	}
	return b.Take(count * n)
}

// Return tells that n bytes that were paid for are not held any more. Who never returns any bounds what is made in all; who does bounds what is held.
func (b *Budget) Return(n int) { b.bytes = max(0, b.bytes-n) }

// look is what Work does now and then.
func (b *Budget) look() error {
	if uint(b.steps) > uint(b.limits.Steps) {
		return &Exceeded{"steps", b.limits.Steps}
	}
	b.next = min(b.steps+lookEvery, b.limits.Steps+1)
	b.large = b.large || b.isLarge()
	if err := context.Cause(b.ctx); err != nil {
		return err
	}
	if b.placed {
		return b.rest()
	}
	if b.light() {
		return nil
	}
	free, err := shared.take(b.ctx, b.owner)
	if err != nil {
		return err
	}
	time.Sleep(time.Until(free))
	b.placed, b.rested = true, time.Now()
	return context.Cause(b.ctx)
}

// rest leaves the processor to others when a turn is over.
func (b *Budget) rest() error {
	worked := time.Since(b.rested)
	if worked < turn {
		return nil
	}
	b.worked += worked
	time.Sleep(min(worked, longestRest))
	b.rested = time.Now()
	return context.Cause(b.ctx)
}
