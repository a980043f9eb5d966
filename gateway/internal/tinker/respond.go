package tinker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire"
)

// refusal is an HTTP status with its reason.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func badRequestf(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func notFoundf(format string, args ...any) error {
	return &refusal{http.StatusNotFound, fmt.Sprintf(format, args...)}
}

// statusOf maps refusals of package runs. 409 is never used: the SDK repeats it for minutes.
var statusOf = map[runs.Kind]int{
	runs.KindInvalid:     http.StatusBadRequest,
	runs.KindForbidden:   http.StatusForbidden,
	runs.KindNotFound:    http.StatusNotFound,
	runs.KindGone:        http.StatusGone,
	runs.KindBusy:        http.StatusTooManyRequests,
	runs.KindUnavailable: http.StatusServiceUnavailable,
	runs.KindBackend:     http.StatusInternalServerError,
	runs.KindFailed:      http.StatusFailedDependency, // which clients do not repeat
}

// fail answers with {"detail": text} and the status of the error.
func fail(c *gin.Context, err error) {
	var refused *refusal
	var bad *body.Error
	var field *wire.FieldError
	code, text := http.StatusInternalServerError, "internal error"
	switch {
	case keys.Revoked(c.Request.Context()):
		c.Header("Connection", "close") // nothing more comes of it
		unauthorized(c, keys.ErrRevoked.Error())
		return
	case errors.As(err, &refused) && refused.status == http.StatusUnauthorized:
		unauthorized(c, refused.text)
		return
	case errors.As(err, &refused):
		code, text = refused.status, refused.text
	case errors.As(err, &bad):
		code, text = bad.Status, bad.Message
	case errors.As(err, &field):
		code, text = http.StatusBadRequest, field.Error()
	case statusOf[runs.KindOf(err)] != 0:
		code, text = statusOf[runs.KindOf(err)], err.Error()
	case errors.Is(err, context.Canceled) || c.Request.Context().Err() != nil:
		c.Abort() // the client is gone: nobody reads an answer
		return
	default:
		slog.ErrorContext(c.Request.Context(), "request failed", "path", c.FullPath(), "error", err)
	}
	if code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests {
		c.Header("Retry-After", strconv.Itoa(max(1, int(math.Ceil(runs.AfterOf(err).Seconds())))))
	}
	tell := keys.TellRequest
	if code >= http.StatusInternalServerError || code == http.StatusFailedDependency {
		tell = keys.TellFault
	}
	body.SendJSON(c.Writer, c.Request, code, gin.H{"detail": tell(c.Request.Context(), text)}, internalErrorBody)
}

// tellFailure gives what the caller may be told of why something failed.
func tellFailure(c call, category runs.Category, text string) string {
	if category == runs.CategoryUser {
		return keys.TellRequest(c.Request.Context(), text)
	}
	return keys.TellFault(c.Request.Context(), text)
}

var internalErrorBody = []byte(`{"detail":"internal error"}`)

// accepts says whether the client names a type among those that it takes. The SDK names protobuf since 0.19 where it takes it; who names nothing gets JSON.
func accepts(c call, kind string) bool {
	return slices.ContainsFunc(c.Request.Header.Values("Accept"), func(accepted string) bool { return strings.Contains(accepted, kind) })
}

func sendJSON(c *gin.Context, claim *body.Claim, code int, value any) error {
	return claim.SendJSON(c.Writer, c.Request, code, value, internalErrorBody)
}

// jsonCopies is how many copies of a text there are at most between the body and package runs.
const jsonCopies = 3

// decode reads a JSON body into value. Unknown keys are left alone: newer clients send more.
func decode(c call, value any) error {
	b, err := c.claim.Read(c.Request, body.MaxTextBytes)
	if err == nil {
		err = c.claim.TakeJSON(b, jsonCopies)
	}
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(bytes.TrimLeft(b, " \t\r\n"), []byte("{")) && json.Valid(b) { // null would be taken for an object without fields
		return badRequestf("body: must be a JSON object")
	}
	if err := json.Unmarshal(b, value); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) {
			field := wrong.Field
			if field == "" {
				field = "body"
			}
			return badRequestf("%s: a JSON %s is not allowed here, expected %s", field, wrong.Value, jsonName(wrong))
		}
		var field *wire.FieldError
		if errors.As(err, &field) {
			return field
		}
		return badRequestf("body: not valid JSON: %v", err)
	}
	return nil
}

func jsonName(e *json.UnmarshalTypeError) string {
	name := e.Type.String()
	switch {
	case strings.HasPrefix(name, "int"), strings.HasPrefix(name, "uint"):
		return "an integer in the range of " + name
	case strings.HasPrefix(name, "float"):
		return "a number"
	case name == "bool":
		return "true or false"
	case name == "string":
		return "a string"
	case strings.HasPrefix(name, "[]"):
		return "a list"
	}
	return "an object"
}

// number reads a query parameter as a whole number within bounds.
func number(c call, name string, absent, least, most int) (int, error) {
	text := c.Query(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, badRequestf("%s: %.40q is not a whole number from %d to %d", name, text, least, most)
	}
	return n, nil
}

// page reads limit and offset.
func page(c call, limit int) (runs.Page, error) {
	limit, err := number(c, "limit", limit, 1, 1000)
	if err != nil {
		return runs.Page{}, err
	}
	offset, err := number(c, "offset", 0, 0, 1<<31-1)
	return runs.Page{Limit: limit, Offset: offset}, err
}

// scope reads access_scope.
func scope(c call) (runs.Scope, error) {
	switch text := c.Query("access_scope"); text {
	case "", "owned":
		return runs.ScopeOwned, nil
	case "accessible":
		return runs.ScopeAccessible, nil
	default:
		return runs.ScopeOwned, badRequestf("access_scope: %.40q is not one of owned, accessible", text)
	}
}

// cursor tells where a page stands in the whole list.
type cursor struct {
	Offset     int `json:"offset"`
	Limit      int `json:"limit"`
	TotalCount int `json:"total_count"`
}

// baseURL is where the client reached us.
func (s *Service) baseURL(c call) string {
	if s.opts.PublicURL != "" {
		return strings.TrimSuffix(s.opts.PublicURL, "/")
	}
	scheme := "http"
	if c.Request.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + c.Request.Host
}

// accessOwner finds whose private checkpoints a weights access token opens; "" without one.
func (s *Service) accessOwner(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	owner, err := s.auth.Owner(token)
	if err != nil {
		return "", &refusal{http.StatusForbidden, "weights_access_token: unknown or expired"}
	}
	return owner, nil
}
