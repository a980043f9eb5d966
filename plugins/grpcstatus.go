package plugins

import (
	"context"
	"errors"
	"strings"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxErrorBytes bounds a message in a status: it crosses in HTTP/2 trailers, which are not made for more.
const maxErrorBytes = 8 << 10

var kindCodes = [...]codes.Code{
	KindInternal:       codes.Internal,
	KindInvalid:        codes.InvalidArgument,
	KindNotFound:       codes.NotFound,
	KindAlreadyApplied: codes.AlreadyExists,
	KindCapacity:       codes.ResourceExhausted,
	KindUnavailable:    codes.Unavailable,
	KindNotFinite:      codes.FailedPrecondition,
	KindCancelled:      codes.Canceled,
	KindBackendLost:    codes.Unavailable,
	KindTooLarge:       codes.OutOfRange,
}

// toStatus is the error of a backend as gRPC carries it: an *Error whole, as a detail.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			e = Cancelled(err)
		} else {
			e = &Error{Kind: KindInternal, Message: err.Error()}
		}
	}
	code := codes.Internal
	if e.Kind >= 0 && int(e.Kind) < len(kindCodes) {
		code = kindCodes[e.Kind]
	}
	s := status.New(code, bounded(e.Error()))
	with, detailErr := s.WithDetails(&backendpb.ErrorDetail{Kind: e.Kind.String(), Field: bounded(e.Field), Message: bounded(e.Message)})
	if detailErr != nil {
		return s.Err()
	}
	return with.Err()
}

// fromStatus undoes toStatus. The second result is false where the status carries no detail of ours: then gRPC itself made it.
func fromStatus(err error) (*Error, bool) {
	s, ok := status.FromError(err)
	if !ok {
		return nil, false
	}
	for _, d := range s.Details() {
		detail, ok := d.(*backendpb.ErrorDetail)
		if !ok {
			continue
		}
		kind, _ := ParseKind(detail.Kind) // a kind that we do not know is an internal failure to us
		return &Error{Kind: kind, Field: detail.Field, Message: detail.Message}, true
	}
	return nil, false
}

// bounded makes a string fit for a status: valid UTF-8 of at most maxErrorBytes.
func bounded(s string) string {
	if len(s) > maxErrorBytes {
		s = s[:maxErrorBytes] + " (cut)"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
