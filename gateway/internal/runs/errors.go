package runs

import (
	"errors"
	"fmt"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Kind sorts refusals by what a front end answers.
type Kind int

// The kinds of refusal, each with the HTTP status that says the same.
const (
	KindInvalid     Kind = iota + 1 // 400: the request is wrong
	KindForbidden                   // 403: not allowed for this caller
	KindNotFound                    // 404: no such object, or not the caller's
	KindGone                        // 410: the object has ended (a finished session)
	KindBusy                        // 429: too much is queued; repeat later
	KindUnavailable                 // 503: the server is closing or a backend is restarting; repeat later
	KindBackend                     // 500: the model's backend failed for good; the message has its reason
	KindFailed                      // 424: nothing of the model can be had until the server is started again; the message has the reason
)

// Error is a refusal that the caller may see: one sentence in lower case that names the field, the value and what is allowed.
type Error struct {
	Kind    Kind
	Message string
	After   time.Duration // of KindBusy: when it is worth to repeat; 0 = soon
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// ErrPending says that a future is not complete yet.
var ErrPending = errors.New("the operation has not finished yet")

func refusef(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

func invalidf(format string, args ...any) *Error  { return refusef(KindInvalid, format, args...) }
func notFoundf(format string, args ...any) *Error { return refusef(KindNotFound, format, args...) }

// KindOf gives the kind of a refusal, 0 for any other error.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

// AfterOf gives when a refused request is worth to be repeated; 0 = soon, or it is no refusal.
func AfterOf(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.After
	}
	return 0
}

// Category says whose fault a failed operation is.
type Category string

// The categories.
const (
	CategoryUser   Category = "user"
	CategoryServer Category = "server"
)

// Failure is why an operation failed after it was accepted.
type Failure struct {
	Message  string
	Category Category
}

// failureOf translates an error met while an operation ran.
func failureOf(err error) *Failure {
	var refused *Error
	if errors.As(err, &refused) {
		switch refused.Kind {
		case KindBackend, KindFailed, KindUnavailable, KindBusy:
			return &Failure{Message: err.Error(), Category: CategoryServer}
		}
		return &Failure{Message: err.Error(), Category: CategoryUser}
	}
	switch plugins.KindOf(err) {
	case plugins.KindInvalid, plugins.KindNotFinite, plugins.KindTooLarge:
		return &Failure{Message: err.Error(), Category: CategoryUser}
	}
	return &Failure{Message: err.Error(), Category: CategoryServer}
}
