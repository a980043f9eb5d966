// Package openai serves the OpenAI API under /v1 and, as the official Tinker service has it, under /oai/api/v1: chat completions, completions, responses and models, and
// beside them vLLM's tokenizer endpoints. It reads requests and writes answers; how they are made is package inference's.
package openai

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// Prefixes are where the API lives.
var Prefixes = []string{"/v1", "/oai/api/v1"}

// Service answers the OpenAI API.
type Service struct {
	*inference.Service
	// Others is set before Register.
	Others Others
}

// Others answer requests for models that carry a header of another API, which has models under the same paths. Without a header there are none.
type Others struct {
	Header    string
	List, Get gin.HandlerFunc
}

// New makes a service.
func New(answers *inference.Service) *Service { return &Service{Service: answers} }

// Register adds the routes.
func (s *Service) Register(r gin.IRouter) {
	for _, prefix := range Prefixes {
		g := r.Group(prefix)
		g.POST("/chat/completions", s.Handler(errorBody, s.chatCompletions))
		g.POST("/chat/completions/tokens", s.Handler(errorBody, s.chatOfTokens))
		g.GET("/sessions/*session", s.Handler(errorBody, s.sessionDatums)) // names may hold slashes
		g.DELETE("/sessions/*session", s.Handler(errorBody, s.forgetSession))
		g.POST("/completions", s.Handler(errorBody, s.completions))
		g.POST("/responses", s.Handler(errorBody, s.createResponse))
		g.POST("/responses/input_tokens", s.Handler(errorBody, s.countResponse))
		g.GET("/responses/:response", s.Handler(errorBody, s.getResponse))
		g.DELETE("/responses/:response", s.Handler(errorBody, s.deleteResponse))
		g.GET("/responses/:response/input_items", s.Handler(errorBody, s.listInput))
		g.POST("/responses/:response/cancel", s.Handler(errorBody, s.cancelResponse))
		g.GET("/models", s.unless(s.Others.List, s.Handler(errorBody, s.listModels)))
		g.GET("/models/*model", s.unless(s.Others.Get, s.Handler(errorBody, s.getModel))) // ids hold slashes
		s.registerUnserved(g)
	}
	r.POST("/inference/v1/generate", s.Handler(errorBody, s.generate))
	r.POST("/tokenize", s.Handler(errorBody, s.tokenize))
	r.POST("/detokenize", s.Handler(errorBody, s.detokenize))
	r.GET("/tokenizer_info", s.Handler(errorBody, s.tokenizerInfo))
}

// unless has a request with the other API's header answered by other.
func (s *Service) unless(other, own gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if s.Others.Header != "" && c.GetHeader(s.Others.Header) != "" {
			other(c)
			return
		}
		own(c)
	}
}

// errorBody is OpenAI's form of an error.
func errorBody(_ *gin.Context, e *inference.Error) (status int, value any) {
	return e.Status, gin.H{"error": gin.H{"message": e.Message, "type": e.Type, "param": orNull(e.Param), "code": orNull(e.Code)}}
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
