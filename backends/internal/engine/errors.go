package engine

import (
	"errors"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// internal wraps a fault of the device or the model; want of memory becomes KindCapacity. What is a plugins.Error already stays as it is.
func internal(operation string, err error) *plugins.Error {
	var known *plugins.Error
	if errors.As(err, &known) {
		return known
	}
	kind := plugins.KindInternal
	if errors.Is(err, tensor.ErrMemory) {
		kind = plugins.KindCapacity
	}
	return &plugins.Error{Kind: kind, Message: operation + ": " + err.Error()}
}

// crowdedError is about memory for adapters that what runs holds now. Without what runs it may be enough.
type crowdedError struct{ err *plugins.Error }

func (e crowdedError) Error() string { return e.err.Error() }
func (e crowdedError) Unwrap() error { return e.err }

// capacity makes a failed allocation into a KindCapacity error.
func capacity(what string, err error) *plugins.Error {
	return &plugins.Error{Kind: plugins.KindCapacity, Message: what + ": " + err.Error()}
}

// isMemory tells whether something failed for want of memory, the device's or that for adapters, so that less of it may succeed.
func isMemory(err error) bool {
	return errors.Is(err, tensor.ErrMemory) || plugins.NoRoom(err)
}

// errClosed answers what was not finished when the engine was closed.
var errClosed = &plugins.Error{Kind: plugins.KindUnavailable, Message: "the backend is shutting down"}

// notFinite makes a check's failure of package lora or optim into a KindNotFinite error whose field is the tensor; other errors are internal.
func notFinite(operation string, err error) *plugins.Error {
	if !errors.Is(err, lora.ErrNotFinite) {
		return internal(operation, err)
	}
	what := strings.TrimSuffix(err.Error(), ": "+lora.ErrNotFinite.Error())
	tensor := what
	if i := strings.LastIndexByte(what, ' '); i >= 0 {
		tensor = what[i+1:] // "new weight of base_model…": the name has no spaces
	}
	return &plugins.Error{Kind: plugins.KindNotFinite, Field: tensor, Message: operation + ": " + what + " has a value that is not finite"}
}
