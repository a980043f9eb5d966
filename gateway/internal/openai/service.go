// Package openai serves the OpenAI API under /v1 and, as the official Tinker service has it, under /oai/api/v1: chat completions, completions and models, and
// beside them vLLM's tokenizer endpoints. It turns messages into tokens and tokens into text; which weights a model name means, and the sampling itself, are
// package runs'. Nothing here is journalled: a request ends with its connection.
package openai

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// Prefixes are where the API lives.
var Prefixes = []string{"/v1", "/oai/api/v1"}

// Service answers the OpenAI API.
type Service struct {
	core   *runs.Core
	auth   *keys.Authenticator
	models map[string]*catalog.Model // by configured name
	order  []*catalog.Model          // as configured

	wholeBytes int // of an answer that is not streamed
}

// New makes a service; models are the served ones in the order of the configuration.
func New(core *runs.Core, auth *keys.Authenticator, models []*catalog.Model) (*Service, error) {
	if len(models) == 0 {
		return nil, errors.New("openai: no models")
	}
	s := &Service{core: core, auth: auth, models: map[string]*catalog.Model{}, order: models, wholeBytes: wholeBytes}
	for _, m := range models {
		s.models[m.Name] = m
	}
	return s, nil
}

// Register adds the routes.
func (s *Service) Register(r gin.IRouter) {
	for _, prefix := range Prefixes {
		g := r.Group(prefix)
		g.POST("/chat/completions", s.auths(s.chatCompletions))
		g.POST("/completions", s.auths(s.completions))
		g.GET("/models", s.auths(s.listModels))
		g.GET("/models/*model", s.auths(s.getModel)) // ids hold slashes
	}
	r.POST("/tokenize", s.auths(s.tokenize))
	r.POST("/detokenize", s.auths(s.detokenize))
	r.GET("/tokenizer_info", s.auths(s.tokenizerInfo))
}

// call is one authenticated request.
type call struct {
	*gin.Context
	owner string
	claim *body.Claim // what its body and its answer take
}

// auths wraps a handler of a known caller. A handler that streams answers itself and returns an error only before it has begun.
func (s *Service) auths(h func(call) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		r, err := s.auth.Begin(c.Writer, c.Request)
		if err != nil {
			fail(c, &apiError{Status: http.StatusUnauthorized, Message: "Incorrect API key provided.", Type: "invalid_request_error", Code: "invalid_api_key"})
			return
		}
		defer r.Release()
		c.Request = r.Request
		claim := body.NewClaim(r.Owner)
		defer claim.Release()
		if err := h(call{c, r.Owner, claim}); err != nil {
			fail(c, err)
		}
	}
}

// model finds what a name means for the caller: the weights, and the text side of its base model.
func (s *Service) model(c call, name string) (runs.Target, *catalog.Model, error) {
	if name == "" {
		return runs.Target{}, nil, invalid("model", "you must provide a model parameter")
	}
	target, err := s.core.Resolve(c.Request.Context(), c.owner, name)
	if err != nil {
		if runs.KindOf(err) == runs.KindNotFound {
			err = &apiError{Status: http.StatusNotFound, Message: err.Error(), Type: "invalid_request_error", Param: "model", Code: "model_not_found"}
		}
		if runs.KindOf(err) == runs.KindInvalid {
			err = &apiError{Status: http.StatusBadRequest, Message: err.Error(), Type: "invalid_request_error", Param: "model"}
		}
		return runs.Target{}, nil, err
	}
	return target, s.models[target.ServedModel], nil
}
