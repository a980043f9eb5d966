package openai

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// unservedEndpoints are OpenAI's that this server does not have. Chat completions are not stored either; responses are.
var unservedEndpoints = []string{"embeddings", "moderations", "audio", "images", "files", "uploads", "batches", "fine_tuning", "vector_stores", "assistants", "threads", "conversations"}

// registerUnserved answers for them, so that a client is told what there is.
func (s *Service) registerUnserved(r *gin.RouterGroup) {
	refuse := s.Handler(errorBody, s.unserved)
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		for _, name := range unservedEndpoints {
			r.Handle(method, "/"+name, refuse)
			r.Handle(method, "/"+name+"/*rest", refuse)
		}
	}
	r.POST("/responses/compact", refuse)
	r.Handle(http.MethodGet, "/chat/completions", refuse) // those that were stored
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		r.Handle(method, "/chat/completions/:completion", refuse)
	}
	r.Handle(http.MethodGet, "/chat/completions/:completion/messages", refuse)
}

func (s *Service) unserved(c inference.Call) error {
	return &inference.Error{
		Status: http.StatusNotFound, Type: "invalid_request_error", Code: "unsupported_endpoint",
		Message: fmt.Sprintf("%s %.200s is not served here. There are /v1/chat/completions, /v1/completions, /v1/responses and /v1/models, and for training the Tinker API.",
			c.Request.Method, strings.TrimSpace(c.Request.URL.Path)),
	}
}
