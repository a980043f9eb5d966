package tenants

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkOneKeysAttack: one key makes 2,000 sessions, opens 64 streams that are not read and sends 20,000 long samples, as far as its limits let it; the neighbour's smallest training step is measured. Each iteration is a round of
// steps with the server to itself, and one under attack. The times are of the forward_backward as its client sees it; what they consist of is told from the timeline of the neighbour's session. control is how much longer a computation of
// this process, of about as long as a quiet step, takes under attack: as much as the processors' other work alone makes of the ratio.
// With -url it is a server whose limits are chosen by who starts it.
func BenchmarkOneKeysAttack(b *testing.B) {
	server, ann, bob := start(b)
	server.chats(b)
	ctx := context.Background()
	run := must(bob.train(ctx, 4))(b)
	var quiet, beside, control, controlBeside []time.Duration
	measure := func(n int, times, controls *[]time.Duration) (passes []string) {
		for range n {
			begun := time.Now()
			seq := run.next()
			if _, err := run.finish(ctx, "forward_backward", passBytes(run.id, seq, []int32{70, 71}, []int64{71, 72})); err != nil {
				b.Fatal(err)
			}
			*times = append(*times, time.Since(begun))
			passes = append(passes, fmt.Sprintf("%s:%d", run.id, seq))
			if err := run.update(ctx, 1e-3); err != nil {
				b.Fatal(err)
			}
			begun = time.Now()
			compute()
			*controls = append(*controls, time.Since(begun))
		}
		return passes
	}
	var ignored []time.Duration
	measure(5, &ignored, &ignored)
	var alone, attacked []string
	refused := int64(0)
	for b.Loop() {
		alone = append(alone, measure(40, &quiet, &control)...)
		attack := startAttack(ctx, b, ann)
		attacked = append(attacked, measure(40, &beside, &controlBeside)...)
		refused += attack.refused.Load()
		attack.stop()
	}
	b.ReportMetric(percentile(quiet, 50), "ms-alone-p50")
	b.ReportMetric(percentile(quiet, 95), "ms-alone-p95")
	b.ReportMetric(percentile(beside, 50), "ms-beside-p50")
	b.ReportMetric(percentile(beside, 95), "ms-beside-p95")
	b.ReportMetric(percentile(beside, 50)/percentile(quiet, 50), "ratio-p50")
	b.ReportMetric(percentile(beside, 95)/percentile(quiet, 95), "ratio-p95")
	b.ReportMetric(percentile(controlBeside, 95)/percentile(control, 95), "control-p95")
	b.ReportMetric(float64(refused), "refused")
	b.ReportMetric(0, "ns/op")
	told := must(bob.timeline(ctx, run.session))(b)
	b.Logf("alone:  %s", told.sum(alone))
	b.Logf("beside: %s", told.sum(attacked))
}

// percentile in milliseconds.
func percentile(times []time.Duration, percent int) float64 {
	sorted := slices.Sorted(slices.Values(times))
	return float64(sorted[(len(sorted)*percent-1)/100]) / float64(time.Millisecond)
}

// compute keeps a processor busy for some milliseconds.
func compute() [sha256.Size]byte {
	sum := [sha256.Size]byte{}
	for range 20_000 {
		sum = sha256.Sum256(sum[:])
	}
	return sum
}

// attack is what one key does to the server.
type attack struct {
	refused atomic.Int64
	stop    func()
}

// startAttack gives the attack when all of it is there.
func startAttack(ctx context.Context, b *testing.B, ann client) *attack {
	b.Helper()
	a := &attack{}
	session := ""
	var made sync.Mutex
	inParallel(sized(2000, 300), func(int) {
		if id, err := ann.session(ctx, object{}); err == nil { // it may be bounded
			made.Lock()
			session = id
			made.Unlock()
		}
	})
	stopReaders := must(slowReaders(ctx, ann, 64))(b)
	s := must(ann.sampling(ctx, session, 0, ""))(b)
	inParallel(sized(20_000, 2000), func(i int) {
		if _, err := ann.post(ctx, "asample", s.request(i, ramp(i%50, 8), 3500, 1)); err != nil {
			a.refused.Add(1)
		}
	})
	a.stop = func() {
		stopReaders()
		_, _ = ann.post(ctx, "sessions/"+session+"/finish", object{"reason": object{"type": "success"}})
	}
	return a
}

// inParallel does n things, sixteen at a time.
func inParallel(n int, do func(i int)) {
	var next atomic.Int64
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	all.Wait()
}

// timeline is what the server tells of when each operation of a session was where.
type timeline map[string]*stages

// stages are the times of one operation.
type stages struct {
	accepted, begun, device, left, done float64 // microseconds
	turns, sampling                     float64 // turns of the sampler while the device had it, and their milliseconds
}

func (c client) timeline(ctx context.Context, session string) (timeline, error) {
	made, err := c.ok(ctx, http.MethodGet, "/api/v1/sessions/"+session+"/trace_export", nil)
	if err != nil {
		return nil, err
	}
	url, _ := made["url"].(string)
	a, err := c.do(ctx, http.MethodGet, strings.TrimPrefix(url, c.url), nil)
	if err != nil {
		return nil, err
	}
	var told struct {
		TraceEvents []struct {
			Phase    string         `json:"ph"`
			Category string         `json:"cat"`
			At       float64        `json:"ts"`
			For      float64        `json:"dur"`
			Args     map[string]any `json:"args"`
		} `json:"traceEvents"`
	}
	if err := json.Unmarshal(a.body, &told); err != nil {
		return nil, fmt.Errorf("timeline: %w: %s", err, a)
	}
	out := timeline{}
	for _, e := range told.TraceEvents {
		id, _ := e.Args["request_id"].(string)
		if id == "" {
			continue
		}
		s := out[id]
		if s == nil {
			s = &stages{}
			out[id] = s
		}
		switch e.Category + e.Phase {
		case "queueb":
			s.accepted = e.At
		case "backendb":
			s.begun = e.At
		case "backende":
			s.done = e.At
		case "deviceX":
			s.device, s.left = e.At, e.At+e.For
			s.turns, _ = e.Args["sampling_turns"].(float64)
			s.sampling, _ = e.Args["sampling_ms"].(float64)
		}
	}
	return out, nil
}

// sum tells where operations were how long, in milliseconds: the median and the 95th percentile of each stage.
func (t timeline) sum(ids []string) string {
	var text strings.Builder
	row := func(name string, of func(*stages) float64) {
		var all []float64
		for _, id := range ids {
			if s := t[id]; s != nil {
				all = append(all, of(s))
			}
		}
		slices.Sort(all)
		if n := len(all); n > 0 {
			fmt.Fprintf(&text, "%s %.2f %.2f; ", name, all[(n*50-1)/100], all[(n*95-1)/100])
		}
	}
	row("accepted to given", func(s *stages) float64 { return (s.begun - s.accepted) / 1000 })
	row("given to device", func(s *stages) float64 { return (s.device - s.begun) / 1000 })
	row("device", func(s *stages) float64 { return (s.left-s.device)/1000 - s.sampling })
	row("samples meanwhile", func(s *stages) float64 { return s.sampling })
	row("turns meanwhile", func(s *stages) float64 { return s.turns })
	row("device to durable", func(s *stages) float64 { return (s.done - s.left) / 1000 })
	return text.String()
}
