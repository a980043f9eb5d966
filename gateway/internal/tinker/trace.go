package tinker

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// traceExport says how the export of a session's timeline stands; the SDK polls while it is pending.
func (s *Service) traceExport(c call) (any, error) {
	if _, err := s.core.Session(c, c.owner, c.Param("session"), runs.ScopeOwned); err != nil {
		return nil, err
	}
	return gin.H{"status": "failed", "error": "this server does not record timelines yet"}, nil
}
