package tinker

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// traceExport gives a link to the session's timeline. The times are recorded with every result, so nothing has to be prepared: it is ready at once.
func (s *Service) traceExport(c call) (any, error) {
	token, _, err := s.core.TraceToken(c.Request.Context(), c.owner, c.Param("session"))
	if err != nil {
		return nil, err
	}
	return gin.H{"status": "ready", "url": s.baseURL(c) + Prefix + "/traces/" + token}, nil
}

// traces sends a timeline in the Chrome trace event format, which Perfetto reads: a row per run and sampling session; each operation as one bar while it waits and one
// while the backend has it.
func (s *Service) traces(c *gin.Context) {
	session, events, err := s.core.Trace(c.Request.Context(), c.Param("token"))
	if err != nil {
		fail(c, err)
		return
	}
	c.Header("Content-Disposition", `attachment; filename="trace.json"`)
	sendJSON(c, 200, gin.H{"traceEvents": chromeEvents(session, events), "displayTimeUnit": "ms"})
}

func chromeEvents(session string, events []runs.TraceEvent) []gin.H {
	const process = 1
	out := []gin.H{{"ph": "M", "pid": process, "name": "process_name", "args": gin.H{"name": "session " + session}}}
	rows := map[string]int{}
	async := func(phase, name, category, id string, row int, at time.Time, failed bool) gin.H {
		return gin.H{"ph": phase, "pid": process, "tid": row, "name": name, "cat": category, "id": id, "ts": at.UnixMicro(), "args": gin.H{"request_id": id, "failed": failed}}
	}
	for _, e := range events {
		row, known := rows[e.Object]
		if !known {
			row = len(rows) + 1
			rows[e.Object] = row
			out = append(out, gin.H{"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": gin.H{"name": e.Object}})
		}
		waited := e.Begun
		if waited.IsZero() {
			waited = e.Done
		}
		if waited.IsZero() { // still waiting: a bar without an end
			out = append(out, async("b", "waiting: "+string(e.Kind), "queue", e.RequestID, row, e.Accepted, false))
			continue
		}
		out = append(out, async("b", "waiting: "+string(e.Kind), "queue", e.RequestID, row, e.Accepted, false), async("e", "waiting: "+string(e.Kind), "queue", e.RequestID, row, waited, e.Failed))
		if !e.Begun.IsZero() {
			out = append(out, async("b", string(e.Kind), "backend", e.RequestID, row, e.Begun, false), async("e", string(e.Kind), "backend", e.RequestID, row, e.Done, e.Failed))
		}
	}
	return out
}
