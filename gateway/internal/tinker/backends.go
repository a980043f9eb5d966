package tinker

import (
	"net/http"

	"github.com/gin-gonic/gin"
)

// drainBackend has the runs of one of a model's backends move to the others and has it get nothing new, or takes that back. How far that is stands in /healthz. It is for administrators, and for everybody where nobody has a key.
func (s *Service) drainBackend(c call) (any, error) {
	var req struct {
		Backend string `json:"backend"`
		Drained *bool  `json:"drained"`
	}
	if err := decode(c, &req); err != nil {
		return nil, err
	}
	if !c.admin && s.auth.Ring.Required() {
		return nil, &refusal{http.StatusForbidden, "backends are drained with an administrator's key"}
	}
	switch {
	case req.Backend == "":
		return nil, badRequestf("backend: is required")
	case req.Drained == nil:
		return nil, badRequestf("drained: is required: true, or false to take it back")
	}
	if err := s.core.Drain(c.request, req.Backend, *req.Drained); err != nil {
		return nil, err
	}
	return gin.H{"backend": req.Backend, "drained": *req.Drained}, nil
}
