package tinker

import (
	"log/slog"

	"github.com/gin-gonic/gin"
)

// maxTelemetryEvents is the most that the SDK sends in one batch, and some.
const maxTelemetryEvents = 1000

// telemetry accepts a client's events. Only their kinds are logged, at debug level: event data can hold request headers with the API key in them.
func (s *Service) telemetry(c call) (any, error) {
	var in struct {
		SessionID  string `json:"session_id"`
		SDKVersion string `json:"sdk_version"`
		Events     []struct {
			Event     string `json:"event"`
			Severity  string `json:"severity"`
			EventName string `json:"event_name"`
			ErrorType string `json:"error_type"`
		} `json:"events"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if len(in.Events) > maxTelemetryEvents {
		return nil, badRequestf("events: %d are more than %d", len(in.Events), maxTelemetryEvents)
	}
	for _, e := range in.Events {
		slog.DebugContext(c.Request.Context(), "client telemetry", "session", cut(in.SessionID), "event", cut(e.Event), "severity", cut(e.Severity), "name", cut(e.EventName), "error_type", cut(e.ErrorType))
	}
	return gin.H{"status": "accepted"}, nil
}

func cut(s string) string { return s[:min(len(s), 100)] }
