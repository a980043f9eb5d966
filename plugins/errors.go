package plugins

import (
	"errors"
	"fmt"
	"slices"
)

// Kind sorts failures by what the caller does about them.
type Kind int

// The kinds of failure.
const (
	KindInternal       Kind = iota // a fault of the backend: report, nothing was changed
	KindInvalid                    // the request is wrong: tell the user, do not repeat
	KindNotFound                   // no such adapter, version or checkpoint
	KindAlreadyApplied             // that position was decided before
	KindCapacity                   // no room now: repeat later
	KindUnavailable                // loading or ending: repeat later
	KindNotFinite                  // a value was NaN or infinite; Field names the tensor
	KindCancelled                  // ended by Cancel or by the caller's context
	KindBackendLost                // the process is gone; whether the operation ran is unknown
	KindTooLarge                   // there is never room, as the backend is configured: tell the user, do not repeat
)

var kindNames = [...]string{"internal", "invalid", "not found", "already applied", "capacity", "unavailable", "not finite", "cancelled", "backend lost", "too large"}

// String gives the kind's name for messages and logs.
func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return kindNames[k]
}

// ParseKind undoes Kind.String.
func ParseKind(name string) (Kind, bool) {
	i := slices.Index(kindNames[:], name)
	return Kind(max(0, i)), i >= 0
}

// Error is a failure that crosses the process border whole.
type Error struct {
	Kind    Kind
	Field   string // the request field or tensor at fault, "" if none: "data[3].target_tokens", "layers.0.q_proj.lora_A"
	Message string // lower case, one sentence: what, the value, what is allowed
	cause   error  // what Unwrap gives, on this side of the border only: a context's error
}

// Error gives the message, led by the field where there is one.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Unwrap gives the context error behind a KindCancelled that arose on this side, nil otherwise.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, ErrBackendLost) and its like true for every Error of that kind.
func (e *Error) Is(target error) bool {
	s, ok := target.(*Error)
	return ok && s.Field == "" && s.Message == s.Kind.String() && s.Kind == e.Kind
}

// Sentinels for errors.Is, one per decision that a caller makes.
var (
	ErrInvalid        = sentinel(KindInvalid)
	ErrNotFound       = sentinel(KindNotFound)
	ErrAlreadyApplied = sentinel(KindAlreadyApplied)
	ErrCapacity       = sentinel(KindCapacity)
	ErrUnavailable    = sentinel(KindUnavailable)
	ErrNotFinite      = sentinel(KindNotFinite)
	ErrCancelled      = sentinel(KindCancelled)
	ErrBackendLost    = sentinel(KindBackendLost)
	ErrTooLarge       = sentinel(KindTooLarge)
)

func sentinel(k Kind) *Error { return &Error{Kind: k, Message: k.String()} }

// Invalidf makes a KindInvalid error about one field.
func Invalidf(field, format string, args ...any) *Error {
	return &Error{Kind: KindInvalid, Field: field, Message: fmt.Sprintf(format, args...)}
}

// Cancelled makes a KindCancelled error from the error of a context, which errors.Is still finds.
func Cancelled(cause error) *Error {
	return &Error{Kind: KindCancelled, Message: "cancelled: " + cause.Error(), cause: cause}
}

// KindOf gives the kind of err, KindInternal if it has none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return KindInternal
}

// NoRoom tells whether something failed because there is no room for it, now or ever.
func NoRoom(err error) bool {
	k := KindOf(err)
	return k == KindCapacity || k == KindTooLarge
}
