package tinker

import (
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

func TestTryAgain(t *testing.T) {
	for _, c := range []struct {
		name  string
		pause runs.Pause
		state string
	}{
		{"only slow", runs.Pause{}, "active"},
		{"too many of one owner", runs.Pause{Limited: true, Reason: "why"}, "paused_rate_limit"},
		{"no backend", runs.Pause{Reason: "why"}, "paused_capacity"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := tryAgain("id", c.pause)
			if reason, told := b["queue_state_reason"]; b["type"] != "try_again" || b["request_id"] != "id" || b["queue_state"] != c.state || told != (c.pause.Reason != "") || told && reason != c.pause.Reason {
				t.Errorf("%v", b)
			}
		})
	}
}
