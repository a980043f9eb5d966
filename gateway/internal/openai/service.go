// Package openai serves the OpenAI API under /v1 and, as the official Tinker service has it, under /oai/api/v1: chat completions, completions and models, and
// beside them vLLM's tokenizer endpoints. It reads requests and writes answers; how they are made is package inference's.
package openai

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// Prefixes are where the API lives.
var Prefixes = []string{"/v1", "/oai/api/v1"}

// Service answers the OpenAI API.
type Service struct{ *inference.Service }

// New makes a service.
func New(answers *inference.Service) *Service { return &Service{answers} }

// Register adds the routes.
func (s *Service) Register(r gin.IRouter) {
	for _, prefix := range Prefixes {
		g := r.Group(prefix)
		g.POST("/chat/completions", s.Handler(errorBody, s.chatCompletions))
		g.POST("/chat/completions/tokens", s.Handler(errorBody, s.chatOfTokens))
		g.GET("/sessions/:session/datums", s.Handler(errorBody, s.sessionDatums))
		g.DELETE("/sessions/:session", s.Handler(errorBody, s.forgetSession))
		g.POST("/completions", s.Handler(errorBody, s.completions))
		g.GET("/models", s.Handler(errorBody, s.listModels))
		g.GET("/models/*model", s.Handler(errorBody, s.getModel)) // ids hold slashes
	}
	r.POST("/tokenize", s.Handler(errorBody, s.tokenize))
	r.POST("/detokenize", s.Handler(errorBody, s.detokenize))
	r.GET("/tokenizer_info", s.Handler(errorBody, s.tokenizerInfo))
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
