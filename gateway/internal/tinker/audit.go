package tinker

import (
	"time"

	"github.com/gin-gonic/gin"
)

func (s *Service) audit(c call) (any, error) {
	var day time.Time
	if text := c.Query("day"); text != "" {
		var err error
		if day, err = time.Parse(time.DateOnly, text); err != nil {
			return nil, badRequestf("day: %.40q is not a date YYYY-MM-DD", text)
		}
	}
	eventType := c.DefaultQuery("event_type", "all")
	entries, err := s.core.Audit(c, c.owner, eventType, day)
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(entries))
	for i, e := range entries {
		details := e.Details
		if details == nil {
			details = map[string]any{}
		}
		if e.Count > 0 {
			details["count"] = e.Count
		}
		out[i] = gin.H{"timestamp": e.Time, "event": e.Event, "event_details": details}
		for name, value := range map[string]string{"model_id": e.RunID, "tinker_path": e.Path, "purpose": e.Purpose} {
			if value != "" {
				out[i][name] = value
			}
		}
	}
	return gin.H{"entries": out}, nil
}
