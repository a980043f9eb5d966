// Package inference makes answers: from a request's turns to the prompt's tokens by the model's chat template, through the sampling, to text, thoughts and tool calls. All surfaces of
// the gateway that answer with text stand on it, and differ in nothing but how requests are read and answers written. Which weights a model's name means, and the sampling itself, are
// package runs'. Nothing here is journalled: a request ends with its connection.
package inference

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// Service is what the surfaces share. It may be used concurrently.
type Service struct {
	Core *runs.Core
	// Order are the served models as configured.
	Order []*catalog.Model
	// WholeBytes is how much memory an answer may take that is not streamed.
	WholeBytes int

	sessions *Sessions
	forms    *forms
	checked  checked

	auth   *keys.Authenticator
	models map[string]*catalog.Model // by configured name
}

// New makes a service; models are the served ones in the order of the configuration.
func New(core *runs.Core, auth *keys.Authenticator, models []*catalog.Model) (*Service, error) {
	if len(models) == 0 {
		return nil, errors.New("inference: no models")
	}
	s := &Service{Core: core, Order: models, WholeBytes: wholeBytes, sessions: NewSessions(), forms: newForms(), auth: auth, models: map[string]*catalog.Model{}}
	for _, m := range models {
		s.models[m.Name] = m
	}
	var err error
	if s.checked, err = newChecked(); err != nil {
		return nil, fmt.Errorf("inference: %w", err)
	}
	return s, nil
}

// Named is the served model of a configured name, nil if there is none.
func (s *Service) Named(name string) *catalog.Model { return s.models[name] }

// Sessions are the remembered conversations.
func (s *Service) Sessions() *Sessions { return s.sessions }

// Call is one authenticated request.
type Call struct {
	*gin.Context
	Owner string
	Claim *body.Claim // what its body and its answer take

	form Form
}

// Handler wraps a handler of a known caller. A handler that streams answers itself and returns an error only before it has begun.
func (s *Service) Handler(form Form, h func(Call) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		r, err := s.auth.Begin(c.Writer, c.Request)
		if err != nil {
			refused := *errKey
			if errors.Is(err, keys.ErrExpired) {
				refused.Message = keys.TellRefused(err)
			}
			Fail(c, &refused, form)
			return
		}
		defer r.Release()
		c.Request = r.Request
		claim := body.NewClaim(r.Owner)
		defer claim.Release()
		if err := h(Call{c, r.Owner, claim, form}); err != nil {
			Fail(c, err, form)
		}
	}
}

// Send answers with a value as JSON.
func (c Call) Send(code int, value any) error {
	return c.Claim.SendJSON(c.Writer, c.Request, code, value, internalBody(c.Context, c.form))
}

// Model finds what a name means for the caller: the weights, and the text side of its base model.
func (s *Service) Model(c Call, name string) (runs.Target, *catalog.Model, error) {
	if name == "" {
		return runs.Target{}, nil, Invalid("model", "you must provide a model parameter")
	}
	target, err := s.Core.Resolve(c.Request.Context(), c.Owner, name)
	if err != nil {
		if runs.KindOf(err) == runs.KindNotFound {
			err = &Error{Status: http.StatusNotFound, Message: err.Error(), Type: "invalid_request_error", Param: "model", Code: "model_not_found"}
		}
		if runs.KindOf(err) == runs.KindInvalid {
			err = &Error{Status: http.StatusBadRequest, Message: err.Error(), Type: "invalid_request_error", Param: "model"}
		}
		return runs.Target{}, nil, err
	}
	return target, s.models[target.ServedModel], nil
}
