package tinker

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// TestLargeAnswersNeedMemory: what there is no memory for is refused before it is made.
func TestLargeAnswersNeedMemory(t *testing.T) {
	result := &runs.ForwardBackwardResult{}
	for same := make([]float32, 1<<20); len(result.Logprobs) < 1+body.MaxTotalBytes/2/(12<<20); {
		result.Logprobs, result.K = append(result.Logprobs, same), append(result.K, 0)
	}
	gin.SetMode(gin.ReleaseMode)
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	c.Request = httptest.NewRequest(http.MethodPost, "/", nil)
	claim := body.NewClaim("ann")
	defer claim.Release()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := answerOutcome(call{Context: c, request: c.Request.Context(), claim: claim}, &runs.Outcome{ForwardBackward: result})
	runtime.ReadMemStats(&after)
	var refused *body.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusRequestEntityTooLarge {
		t.Errorf("got %v", err)
	}
	if made := after.TotalAlloc - before.TotalAlloc; made > 16<<20 {
		t.Errorf("%d MiB were made", made>>20)
	}
}

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
