package tinker

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/body"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// traceExport gives a link to the session's timeline. The times are recorded with every result, so nothing has to be prepared: it is ready at once.
func (s *Service) traceExport(c call) (any, error) {
	token, _, err := s.core.TraceToken(c.Request.Context(), c.requester(), c.Param("session"))
	if err != nil {
		return nil, err
	}
	return gin.H{"status": "ready", "url": s.baseURL(c) + Prefix + "/traces/" + token}, nil
}

// traces sends a timeline in the Chrome trace event format, which Perfetto reads: a row per run and sampling session; each operation as one bar while it waits and one
// while the backend has it; below it, as one block, the time in which the device ran a training operation, with its clock cycle; and a row of these cycles, as far as they were the session's.
// Of a large session it is large, so it counts as one of its owner's lists.
func (s *Service) traces(c *gin.Context, owner string) {
	done, err := s.core.AwaitList(c.Request.Context(), owner)
	if err != nil {
		fail(c, err)
		return
	}
	defer done()
	session, events, err := s.core.Trace(c.Request.Context(), c.Param("token"))
	if err != nil {
		fail(c, err)
		return
	}
	c.Header("Content-Disposition", `attachment; filename="trace.json"`)
	claim := body.NewClaim(owner)
	defer claim.Release()
	if err := sendJSON(c, claim, http.StatusOK, gin.H{"traceEvents": chromeEvents(session, events), "displayTimeUnit": "ms"}); err != nil {
		fail(c, err)
	}
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
		if x := e.Ran; x.Cycle > 0 {
			out = append(out, block(string(e.Kind), "device", process, row, x.Begin, x.End, gin.H{
				"request_id": e.RequestID, "cycle": x.Cycle, "sampling_turns": x.SamplingTurns, "sampling_ms": float64(x.Sampling) / float64(time.Millisecond),
			}))
		}
	}
	return append(out, cycleEvents(process, events)...)
}

// block is a bar with a beginning and an end.
func block(name, category string, process, row int, begin, end time.Time, args gin.H) gin.H {
	return gin.H{"ph": "X", "pid": process, "tid": row, "name": name, "cat": category, "ts": begin.UnixMicro(), "dur": end.Sub(begin).Microseconds(), "args": args}
}

// cycleEvents are the clock cycles that had operations of the session, in a row of their own.
func cycleEvents(process int, events []runs.TraceEvent) []gin.H {
	type name struct { // each process counts its cycles from 1
		boot   string
		number int64
	}
	type cycle struct {
		number     int64
		begin, end time.Time
		operations []string
	}
	ran := slices.DeleteFunc(slices.Clone(events), func(e runs.TraceEvent) bool { return e.Ran.Cycle == 0 })
	slices.SortStableFunc(ran, func(a, b runs.TraceEvent) int { return a.Ran.Begin.Compare(b.Ran.Begin) })
	var cycles []*cycle
	named := map[name]*cycle{}
	for _, e := range ran {
		n := name{e.Boot, e.Ran.Cycle}
		c := named[n]
		if c == nil {
			c = &cycle{number: n.number, begin: e.Ran.Begin}
			named[n] = c
			cycles = append(cycles, c)
		}
		c.operations = append(c.operations, e.RequestID)
		if e.Ran.End.After(c.end) {
			c.end = e.Ran.End
		}
	}
	if len(cycles) == 0 {
		return nil
	}
	const row = 0
	out := []gin.H{{"ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": gin.H{"name": "clock cycles"}}}
	for _, c := range cycles {
		out = append(out, block(fmt.Sprint("cycle ", c.number), "cycle", process, row, c.begin, c.end, gin.H{"cycle": c.number, "operations": c.operations}))
	}
	return out
}
