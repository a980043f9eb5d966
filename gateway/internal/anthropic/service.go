// Package anthropic serves Anthropic's Messages API: messages, the counting of their tokens, and models. It reads requests and writes answers; how they are made is
// package inference's.
package anthropic

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// Prefixes are where the API lives: clients put /v1/messages behind the address that they are given, which may have a path.
var Prefixes = []string{"/v1", "/anthropic/v1", "/anthropic/api/v1"}

// VersionHeader is what every client of this API sends, and none of another.
const VersionHeader = "Anthropic-Version"

// Service answers the Messages API.
type Service struct{ *inference.Service }

// New makes a service.
func New(answers *inference.Service) *Service { return &Service{answers} }

// Register adds the routes. Models under /v1 are not among them: OpenAI's clients ask for theirs there too.
func (s *Service) Register(r gin.IRouter) {
	for i, prefix := range Prefixes {
		g := r.Group(prefix)
		g.POST("/messages", s.handler(s.messages))
		g.POST("/messages/count_tokens", s.handler(s.countTokens))
		g.POST("/messages/batches", s.handler(noBatches))
		if i > 0 {
			g.GET("/models", s.ListModels())
			g.GET("/models/*model", s.GetModel()) // ids hold slashes
		}
	}
}

// handler wraps a handler of a known caller.
func (s *Service) handler(h func(inference.Call) error) gin.HandlerFunc {
	handle := s.Handler(errorBody, h)
	return func(c *gin.Context) {
		c.Header("Request-Id", requestID(c))
		handle(c)
	}
}

// requestID is the id of a request in this API's form: the one that the log has, where that has the form.
func requestID(c *gin.Context) string {
	id := c.Writer.Header().Get("X-Request-Id")
	if strings.HasPrefix(id, "req_") {
		return id
	}
	return "req_" + id
}

func noBatches(inference.Call) error {
	return &inference.Error{Status: http.StatusNotFound, Message: "message batches are not served: POST /v1/messages answers one request"}
}
