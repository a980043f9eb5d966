package runs

import (
	"fmt"
	"math"
	"runtime"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/plugins"
)

// heap is what lives in memory.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// moduleKinds are those of a plain transformer's modules.
var moduleKinds = []string{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"}

// BenchmarkHistory lists 200 runs of 10,000 steps each, live ones in memory, and reads one series of one.
func BenchmarkHistory(b *testing.B) { benchmarkHistory(b) }

// BenchmarkHistoryOnPostgres is BenchmarkHistory with the records in PostgreSQL.
func BenchmarkHistoryOnPostgres(b *testing.B) { benchmarkHistory(b) }

func benchmarkHistory(b *testing.B) {
	const many, steps = 200, history.MaxRows
	w := newWorld(b, nil)
	session := w.session()
	var ids []string
	for i := range int64(many) {
		ids = append(ids, w.newRun(session, i))
	}
	before := heap()
	norms := func(x float64) []history.Value { // all of it, and by kind of module
		list := []history.Value{{Name: history.AdapterNorm, Number: math.Sqrt(x)}}
		for i, kind := range moduleKinds {
			list = append(list, history.Value{Name: plugins.AdapterNormOf(kind), Number: math.Sqrt(x) / float64(i+2)})
		}
		return list
	}
	event := func(step int64) *history.Event {
		x := float64(step)
		return &history.Event{Kind: history.Step, Number: step, LearningRate: 1e-3, GradientNorm: 1 + math.Sin(x), Norms: norms(x), Cycle: step, Queued: 1e6, Begin: step * 1e9, End: step*1e9 + 5e8}
	}
	pass := func(step int64) *history.Event {
		x := float64(step)
		return &history.Event{Kind: history.Pass, Tokens: 1000 + step%7, Loss: 900 / math.Sqrt(x), Weight: 333, Cycle: step, Queued: 1e6, Begin: step * 1e9, End: step*1e9 + 5e8}
	}
	for step := int64(1); step <= steps; step++ {
		w.Core.mu.Lock()
		for _, id := range ids {
			r := w.runs[id]
			w.record(r, 2*step-1, pass(step))
			w.record(r, 2*step, event(step))
			if step > steps-50 {
				w.foldSome(r)
			}
		}
		w.Core.mu.Unlock()
		if step%500 == 0 || step == steps-50 { // what is not yet written is part of it
			w.ok(w.writeSeries(b.Context()))
		}
	}
	for end := time.Now().Add(longest); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // the store brings it to the database
		if rec, err := w.store.Get(b.Context(), inSeries, training.key(ids[many-1])+":"+itoa(100)); err == nil && rec.Key != "" {
			break
		}
	}
	time.Sleep(3 * time.Second)
	held := heap() - before
	ctx, v := b.Context(), Viewer{Owner: owner}
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			list, _, err := w.Overviews(ctx, v, OverviewQuery{Page: Page{Limit: many}})
			w.ok(err)
			if len(list) != many || list[0].Series[0].Step != steps {
				b.Fatalf("%d runs, %+v", len(list), list[0].Series[0])
			}
		}
		b.ReportMetric(held, "MiB")
	})
	b.Run("series", func(b *testing.B) {
		for b.Loop() {
			found, err := w.Curves(ctx, v, ids[many/2], CurveQuery{Names: []string{history.Loss}})
			w.ok(err)
			if len(found) != 1 || len(found[0].Steps) != 1000 {
				b.Fatal(len(found))
			}
		}
	})
	b.Run("all series", func(b *testing.B) {
		for b.Loop() {
			_, err := w.Curves(ctx, v, ids[many/2], CurveQuery{})
			w.ok(err)
		}
	})
}

// BenchmarkRecording is what one smallest pass and one step cost that are recorded: their events, their part of the results, folding and writing; and what of it their results take by themselves.
func BenchmarkRecording(b *testing.B) {
	req := plugins.ForwardBackwardRequest{Loss: "cross_entropy", Data: []plugins.Datum{{Tokens: make([]int32, 12), Targets: make([]int32, 12), Weights: make([]float32, 12), K: 1}}}
	got := plugins.ForwardBackwardResult{Metrics: map[string]float64{"loss:sum": 3}}
	step := plugins.OptimStepResult{Metrics: map[string]float64{"grad_norm": 1, "adapter_norm": 2, "learning_rate": 3}}
	for _, kind := range moduleKinds {
		step.Metrics[plugins.AdapterNormOf(kind)] = 1
	}
	result := func() *resultRecord {
		return &resultRecord{Done: time.Now(), Ran: &ranRecord{Cycle: 1, Begin: time.Now(), End: time.Now()}}
	}
	b.Run("without", func(b *testing.B) {
		for b.Loop() {
			_, _ = result().json(), result().json()
		}
	})
	b.Run("with", func(b *testing.B) {
		w := newWorld(b, nil)
		id := w.newRun(w.session(), 0)
		r := w.runs[id]
		seq := int64(0)
		for b.Loop() {
			for _, f := range []*future{{event: eventOfPass(&req, &got, 12)}, {event: eventOfStep(&step, &plugins.AdamParams{})}} {
				res := result()
				x := f.recorded(res)
				_ = res.json()
				seq++
				w.Core.mu.Lock()
				w.record(r, seq, x)
				w.foldSome(r)
				w.Core.mu.Unlock()
			}
			if seq%2000 == 0 {
				w.ok(w.writeRunSeries(b.Context(), r))
			}
		}
		_, err := w.store.Get(b.Context(), inHeads, training.key(id))
		if err != nil && seq > 2000 {
			b.Fatal(fmt.Errorf("nothing was written: %w", err))
		}
	})
}
