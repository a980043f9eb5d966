package openai

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// apiError is an error in OpenAI's form. Param and Code are null when empty.
type apiError struct {
	Status  int
	Message string
	Type    string
	Param   string
	Code    string
}

// Error gives the message.
func (e *apiError) Error() string { return e.Message }

func (e *apiError) body() gin.H {
	return gin.H{"error": gin.H{"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code)}}
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// invalid is a 400 about one field.
func invalid(param, format string, args ...any) error {
	return &apiError{Status: http.StatusBadRequest, Message: param + ": " + fmt.Sprintf(format, args...), Type: "invalid_request_error", Param: param}
}

// unsupported is a 400 about a field that this server does not serve yet: silence would be a wrong answer.
func unsupported(param, why string) error {
	return &apiError{Status: http.StatusBadRequest, Message: param + ": " + why, Type: "invalid_request_error", Param: param, Code: "unsupported_parameter"}
}

// asAPIError translates errors of the layers below.
func asAPIError(err error) *apiError {
	var e *apiError
	var bad *body.Error
	var engine *plugins.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &bad):
		kind := "invalid_request_error"
		if bad.Status >= http.StatusInternalServerError {
			kind = "server_error"
		}
		return &apiError{Status: bad.Status, Message: bad.Message, Type: kind}
	case errors.Is(err, budget.ErrBusy):
		return &apiError{Status: http.StatusTooManyRequests, Message: budget.ErrBusy.Error(), Type: "rate_limit_error", Code: "rate_limit_exceeded"}
	}
	message := err.Error()
	switch runs.KindOf(err) {
	case runs.KindInvalid:
		return &apiError{Status: http.StatusBadRequest, Message: message, Type: "invalid_request_error"}
	case runs.KindForbidden:
		return &apiError{Status: http.StatusForbidden, Message: message, Type: "invalid_request_error"}
	case runs.KindNotFound, runs.KindGone:
		return &apiError{Status: http.StatusNotFound, Message: message, Type: "invalid_request_error", Param: "model", Code: "model_not_found"}
	case runs.KindBusy:
		return &apiError{Status: http.StatusTooManyRequests, Message: message, Type: "rate_limit_error", Code: "rate_limit_exceeded"}
	case runs.KindUnavailable:
		return &apiError{Status: http.StatusServiceUnavailable, Message: message, Type: "server_error"}
	case runs.KindFailed: // which clients do not repeat
		return &apiError{Status: http.StatusFailedDependency, Message: message, Type: "server_error", Param: "model", Code: "model_not_loaded"}
	case runs.KindBackend:
		return &apiError{Status: http.StatusInternalServerError, Message: message, Type: "server_error"}
	}
	if errors.As(err, &engine) {
		switch engine.Kind {
		case plugins.KindInvalid:
			return &apiError{Status: http.StatusBadRequest, Message: engine.Error(), Type: "invalid_request_error", Param: engine.Field}
		case plugins.KindTooLarge:
			return &apiError{Status: http.StatusBadRequest, Message: "this cannot be served as the server is configured: " + engine.Error(), Type: "invalid_request_error"}
		case plugins.KindNotFinite: // an adapter whose training has diverged, most of the time: asked again it gives the same
			return &apiError{Status: http.StatusBadRequest, Message: "the model's weights give no probabilities: " + engine.Error(), Type: "invalid_request_error", Param: "model"}
		case plugins.KindNotFound:
			return &apiError{Status: http.StatusNotFound, Message: "the model's weights were unloaded: " + engine.Error(), Type: "invalid_request_error", Param: "model", Code: "model_not_found"}
		case plugins.KindCapacity:
			return &apiError{Status: http.StatusTooManyRequests, Message: engine.Error(), Type: "rate_limit_error", Code: "rate_limit_exceeded"}
		case plugins.KindUnavailable, plugins.KindBackendLost:
			return &apiError{Status: http.StatusServiceUnavailable, Message: "the model's backend is not available: " + engine.Error(), Type: "server_error"}
		}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, plugins.ErrCancelled) { // not by the client: those get no answer
		return &apiError{Status: http.StatusServiceUnavailable, Message: "the server ended the request: it is shutting down", Type: "server_error"}
	}
	return nil
}

// fail answers with an error, unless the client is gone or the answer has begun.
func fail(c *gin.Context, err error) {
	revoked := keys.Revoked(c.Request.Context())
	if c.Request.Context().Err() != nil && !revoked || c.Writer.Written() {
		c.Abort()
		return
	}
	if revoked {
		c.Header("Connection", "close") // nothing more comes of it
		err = revokedError
	}
	e := told(c, err, "request failed")
	if e.Status == http.StatusTooManyRequests || e.Status == http.StatusServiceUnavailable {
		c.Header("Retry-After", "1")
	}
	body.SendJSON(c.Writer, c.Request, e.Status, e.body(), internalErrorBody)
}

// told is the form of an error in which the caller may be told of it. One that is not meant for callers is logged, with what it is.
func told(c *gin.Context, err error, what string) *apiError {
	e := asAPIError(err)
	if e == nil {
		slog.ErrorContext(c.Request.Context(), what, "path", c.FullPath(), "error", err)
		return internalError
	}
	out := *e
	if out.Status >= http.StatusInternalServerError || out.Status == http.StatusFailedDependency {
		out.Message = keys.TellFault(c.Request.Context(), out.Message)
	} else {
		out.Message = keys.TellRequest(c.Request.Context(), out.Message)
	}
	return &out
}

var revokedError = &apiError{Status: http.StatusUnauthorized, Message: keys.ErrRevoked.Error(), Type: "invalid_request_error", Code: "invalid_api_key"}

var internalError = &apiError{Status: http.StatusInternalServerError, Message: "The server had an error while processing your request.", Type: "server_error"}

func sendJSON(c call, code int, value any) error {
	return c.claim.SendJSON(c.Writer, c.Request, code, value, internalErrorBody)
}

// internalErrorBody is internalError as clients read it.
var internalErrorBody, _ = json.Marshal(internalError.body())

// jsonCopies is how many copies of a text decoding makes, at most.
const jsonCopies = 2

// decode reads a JSON object. Unknown fields are left alone, as every server of this API does.
func decode(c call, into any) error {
	b, err := c.claim.Read(c.Request, body.MaxTextBytes)
	if err == nil {
		err = c.claim.TakeJSON(b, jsonCopies)
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, into); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return invalid(fieldPath(wrong.Field), "a JSON %.40s is not allowed here: %s", wrong.Value, kindName(wrong.Type))
		}
		return &apiError{Status: http.StatusBadRequest, Message: "We could not parse the JSON body of your request, which must be an object: " + err.Error(), Type: "invalid_request_error"}
	}
	return nil
}

// fieldPath takes the names of embedded structs, which only we know, out of a path.
func fieldPath(path string) string {
	for _, embedded := range []string{"samplingFields.", "unserved."} {
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
