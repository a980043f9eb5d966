package schema

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// BenchmarkMasks follows instances of JSON schemas and measures what e2e/bench/masks.py has measured of llguidance and written, with the instances in tokens,
// to the file that TINSMITH_MASKS names. Each schema is compiled once, and all by one thread; times are its processor time. What begins with both- is of the
// masks that llguidance made too. -v shows the slowest.
func BenchmarkMasks(b *testing.B) {
	file := os.Getenv("TINSMITH_MASKS")
	if file == "" {
		b.Skip("TINSMITH_MASKS is not set")
	}
	tokens, text := qwenVocabulary(b)
	cases := readMaskCases(b, file)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for b.Loop() {
		run := maskRun{tokens: tokens, text: text, bits: make([]uint64, tokens.Words())}
		for _, c := range cases {
			if err := run.follow(c); err != nil {
				b.Logf("%s: %v", c.ID, err)
			}
		}
		for _, at := range []struct {
			name string
			part float64
		}{{"p50", 0.5}, {"p95", 0.95}, {"p99", 0.99}, {"max", 1}} {
			b.ReportMetric(quantileOf(run.masks, at.part), at.name+"-µs")
			b.ReportMetric(quantileOf(run.both, at.part), "both-"+at.name+"-µs")
			b.ReportMetric(quantileOf(run.firsts, at.part)/1000, "compile-"+at.name+"-ms")
		}
		b.ReportMetric(meanOf(run.masks), "mean-µs")
		b.ReportMetric(meanOf(run.both), "both-mean-µs")
		b.ReportMetric(meanOf(run.firsts)/1000, "compile-mean-ms")
		b.ReportMetric(float64(run.refused), "refused")
		b.ReportMetric(float64(len(run.masks)), "masks")
		b.ReportMetric(float64(run.stopped), "stopped")
		slices.SortFunc(run.slow, func(a, b slowMask) int { return int(b.us - a.us) })
		for _, s := range run.slow[:min(len(run.slow), 20)] {
			b.Logf("%.0f µs: %s, behind %q", s.us, s.id, s.behind)
		}
	}
}

// maskCase is a line that e2e/bench/masks.py wrote. The times are absent where llguidance refuses the schema.
type maskCase struct {
	ID     string
	Schema json.RawMessage
	Tokens []int32
	Masks  []float64 `json:"masks_us"`
}

func readMaskCases(b *testing.B, file string) (cases []maskCase) {
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var c maskCase
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			b.Fatal(err)
		}
		cases = append(cases, c)
	}
	if err := lines.Err(); err != nil {
		b.Fatal(err)
	}
	return cases
}

// maskRun is what was measured of all cases.
type maskRun struct {
	tokens *grammar.TokenIndex
	text   [][]byte
	bits   []uint64

	firsts, masks, both []float64 // µs
	refused, stopped    int       // schemas that are refused, and instances that are not allowed: their members stand in another order than the schema's
	slow                []slowMask
}

type slowMask struct {
	us         float64
	id, behind string
}

func (r *maskRun) follow(c maskCase) error {
	start := threadTime()
	compiled, err := Compile(context.Background(), c.Schema, Options{})
	if err != nil {
		r.refused++
		return err
	}
	g, err := grammar.Compile(context.Background(), compiled.Grammar, r.tokens, grammar.DefaultLimits())
	if err != nil {
		return err
	}
	m := g.NewMatcher()
	if err := m.Mask(r.bits); err != nil {
		return err
	}
	r.firsts = append(r.firsts, since(start))
	behind := ""
	for i, id := range c.Tokens {
		start := threadTime()
		if err := m.Mask(r.bits); err != nil {
			return fmt.Errorf("behind %q: %w", behind, err)
		}
		us := since(start)
		r.masks = append(r.masks, us)
		if i < len(c.Masks) {
			r.both = append(r.both, us)
		}
		if us > 500 {
			r.slow = append(r.slow, slowMask{us, c.ID, behind[max(0, len(behind)-80):]})
		}
		if r.bits[id/64]>>(id%64)&1 == 0 {
			r.stopped++
			return nil
		}
		if err := m.Accept(id); err != nil {
			return err
		}
		behind += string(r.text[id])
	}
	return nil
}

// threadTime is the processor time of this thread, in which other processes hardly show.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}

func since(start time.Duration) float64 { return float64((threadTime() - start).Nanoseconds()) / 1000 }

func meanOf(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(1, len(values)))
}

func quantileOf(values []float64, part float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[min(len(values)-1, int(part*float64(len(values))))]
}
