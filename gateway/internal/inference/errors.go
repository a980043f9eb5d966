package inference

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// Error is why a request gets no answer, in OpenAI's terms, which are the richest: other surfaces make theirs of them. Param is the field at fault, and with Code empty
// where there is none.
type Error struct {
	Status  int
	Message string
	Type    string
	Param   string
	Code    string
	// Prompt and Context count the tokens of a prompt that leaves no room, and of the model's context; 0 where nothing was counted.
	Prompt, Context int
	// After is when it is worth to repeat, with status 429 or 503; 0 = soon.
	After time.Duration
}

// Error gives the message.
func (e *Error) Error() string { return e.Message }

// Invalid is a 400 about one field.
func Invalid(param, format string, args ...any) error {
	return &Error{Status: http.StatusBadRequest, Message: param + ": " + fmt.Sprintf(format, args...), Type: "invalid_request_error", Param: param}
}

// Unsupported is a 400 about a field that this server does not serve: silence would be a wrong answer.
func Unsupported(param, why string) error {
	return &Error{Status: http.StatusBadRequest, Message: param + ": " + why, Type: "invalid_request_error", Param: param, Code: "unsupported_parameter"}
}

// AsError translates errors of the layers below; nil for one that is not meant for callers.
func AsError(err error) *Error {
	var e *Error
	var bad *body.Error
	var engine *plugins.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, keys.ErrRevoked):
		return errRevoked
	case errors.As(err, &bad):
		kind := "invalid_request_error"
		if bad.Status >= http.StatusInternalServerError {
			kind = "server_error"
		}
		return &Error{Status: bad.Status, Message: bad.Message, Type: kind}
	case errors.Is(err, budget.ErrBusy):
		return &Error{Status: http.StatusTooManyRequests, Message: budget.ErrBusy.Error(), Type: "rate_limit_error", Code: "rate_limit_exceeded"}
	}
	message := err.Error()
	switch runs.KindOf(err) {
	case runs.KindInvalid:
		return &Error{Status: http.StatusBadRequest, Message: message, Type: "invalid_request_error"}
	case runs.KindForbidden:
		return &Error{Status: http.StatusForbidden, Message: message, Type: "invalid_request_error"}
	case runs.KindNotFound, runs.KindGone:
		return &Error{Status: http.StatusNotFound, Message: message, Type: "invalid_request_error", Param: "model", Code: "model_not_found"}
	case runs.KindBusy:
		return &Error{Status: http.StatusTooManyRequests, Message: message, Type: "rate_limit_error", Code: "rate_limit_exceeded", After: runs.AfterOf(err)}
	case runs.KindUnavailable:
		return &Error{Status: http.StatusServiceUnavailable, Message: message, Type: "server_error"}
	case runs.KindFailed: // which clients do not repeat
		return &Error{Status: http.StatusFailedDependency, Message: message, Type: "server_error", Param: "model", Code: "model_not_loaded"}
	case runs.KindBackend:
		return &Error{Status: http.StatusInternalServerError, Message: message, Type: "server_error"}
	}
	if errors.As(err, &engine) {
		switch engine.Kind {
		case plugins.KindInvalid:
			return &Error{Status: http.StatusBadRequest, Message: engine.Error(), Type: "invalid_request_error", Param: engine.Field}
		case plugins.KindTooLarge:
			return &Error{Status: http.StatusBadRequest, Message: "this cannot be served as the server is configured: " + engine.Error(), Type: "invalid_request_error"}
		case plugins.KindNotFinite: // an adapter whose training has diverged, most of the time: asked again it gives the same
			return &Error{Status: http.StatusBadRequest, Message: "the model's weights give no probabilities: " + engine.Error(), Type: "invalid_request_error", Param: "model"}
		case plugins.KindNotFound:
			return &Error{Status: http.StatusNotFound, Message: "the model's weights were unloaded: " + engine.Error(), Type: "invalid_request_error", Param: "model", Code: "model_not_found"}
		case plugins.KindCapacity:
			return &Error{Status: http.StatusTooManyRequests, Message: engine.Error(), Type: "rate_limit_error", Code: "rate_limit_exceeded"}
		case plugins.KindUnavailable, plugins.KindBackendLost:
			return &Error{Status: http.StatusServiceUnavailable, Message: "the model's backend is not available: " + engine.Error(), Type: "server_error"}
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, plugins.ErrCancelled) { // not by the client: those get no answer
		return &Error{Status: http.StatusServiceUnavailable, Message: "the server ended the request: it is shutting down", Type: "server_error"}
	}
	return nil
}

// Form is how a surface writes an error: its status and its body.
type Form func(c *gin.Context, e *Error) (status int, value any)

// Fail answers with an error in a surface's form, unless the client is gone or the answer has begun.
func Fail(c *gin.Context, err error, form Form) {
	revoked := keys.Revoked(c.Request.Context())
	if c.Request.Context().Err() != nil && !revoked || c.Writer.Written() {
		c.Abort()
		return
	}
	if revoked {
		c.Header("Connection", "close") // nothing more comes of it
		err = keys.ErrRevoked
	}
	e := Told(c, err, "request failed")
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		c.Header("Retry-After", strconv.Itoa(max(1, int(math.Ceil(e.After.Seconds())))))
	}
	status, value := form(c, e)
	body.SendJSON(c.Writer, c.Request, status, value, internalBody(c, form))
}

// internalBody is what is sent where an answer cannot be made.
func internalBody(c *gin.Context, form Form) []byte {
	_, value := form(c, errInternal)
	b, err := json.Marshal(value)
	if err != nil {
		slog.Error("an error cannot be made JSON", "error", err)
	}
	return b
}

// Told is the form of an error in which the caller may be told of it. One that is not meant for callers is logged, with what it is.
func Told(c *gin.Context, err error, what string) *Error {
	e := AsError(err)
	if e == nil {
		slog.ErrorContext(c.Request.Context(), what, "path", c.FullPath(), "error", err)
		return errInternal
	}
	out := *e
	if out.Status >= http.StatusInternalServerError || out.Status == http.StatusFailedDependency {
		out.Message = keys.TellFault(c.Request.Context(), out.Message)
	} else {
		out.Message = keys.TellRequest(c.Request.Context(), out.Message)
	}
	return &out
}

// errKey is what a request without a valid key gets.
var errKey = &Error{Status: http.StatusUnauthorized, Message: "Incorrect API key provided.", Type: "invalid_request_error", Code: "invalid_api_key"}

var errRevoked = &Error{Status: http.StatusUnauthorized, Message: keys.ErrRevoked.Error(), Type: "invalid_request_error", Code: "invalid_api_key"}

var errInternal = &Error{Status: http.StatusInternalServerError, Message: "The server had an error while processing your request.", Type: "server_error"}

// jsonCopies is how many copies of a text decoding makes, at most.
const jsonCopies = 2

// Decode reads a JSON object. Unknown fields are left alone, as every server of this API does.
func (c Call) Decode(into any) error {
	b, err := c.Claim.Read(c.Request, body.MaxTextBytes)
	if err == nil {
		err = c.Claim.TakeJSON(b, jsonCopies)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		return WrongType("", err)
	}
	return nil
}

// WrongType says which field of a JSON object has a value of a wrong type. at is where the object stands, "" for the whole body.
func WrongType(at string, err error) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) || wrong.Field == "" && at == "" {
		return &Error{Status: http.StatusBadRequest, Message: "We could not parse the JSON body of your request, which must be an object: " + err.Error(), Type: "invalid_request_error"}
	}
	field := fieldPath(wrong.Field)
	if at != "" && field != "" {
		field = at + "." + field
	}
	return Invalid(cmp.Or(field, at), "a JSON %.40s is not allowed here: %s", wrong.Value, kindName(wrong.Type))
}

// DecodePart reads a part of a request, and names the field that has another type than it must. at is where the part stands.
func DecodePart(at string, raw json.RawMessage, into any) error {
	if err := json.Unmarshal(raw, into); err != nil {
		return WrongType(at, err)
	}
	return nil
}

// fieldPath takes the names of embedded structs, which only we know, out of a path.
func fieldPath(path string) string {
	for _, embedded := range []string{"Parameters.", "Unserved.", "thinkingFields.", "formFields.", "Function."} {
		path = strings.TrimPrefix(path, embedded)
	}
	return path
}

// kindName says what a field takes.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int32:
		return "an integer"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}
