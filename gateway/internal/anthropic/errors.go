package anthropic

import (
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// statusOverloaded is this API's for a server that cannot answer now. Clients repeat the request, as they do with every status from 500 on.
const statusOverloaded = 529

// failure is this API's form of an error, which is also the last event of a stream that fails.
type failure struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	RequestID string `json:"request_id"`
}

// errorBody is the form of an error.
func errorBody(c *gin.Context, e *inference.Error) (status int, value any) {
	out := failure{Type: "error", RequestID: requestID(c)}
	status, out.Error.Type = kindOf(e.Status)
	out.Error.Message = messageOf(e)
	return status, out
}

// kindOf gives the status and the type that stand for a status.
func kindOf(status int) (int, string) {
	switch status {
	case http.StatusUnauthorized:
		return status, "authentication_error"
	case http.StatusForbidden:
		return status, "permission_error"
	case http.StatusNotFound:
		return status, "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return status, "request_too_large"
	case http.StatusTooManyRequests:
		return status, "rate_limit_error"
	case http.StatusServiceUnavailable:
		return statusOverloaded, "overloaded_error"
	case http.StatusFailedDependency: // a model that could not be loaded: clients do not repeat the request
		return status, "api_error"
	}
	if status >= http.StatusInternalServerError {
		return status, "api_error"
	}
	return status, "invalid_request_error"
}

// messageOf is what an error says. Agents look for the words about a prompt that is too long, and make it shorter.
func messageOf(e *inference.Error) string {
	switch {
	case e.Code != "context_length_exceeded":
		return e.Message
	case e.Prompt > 0:
		return fmt.Sprintf("prompt is too long: %d tokens > %d maximum", e.Prompt, e.Context-1)
	}
	return "prompt is too long: " + e.Message
}
