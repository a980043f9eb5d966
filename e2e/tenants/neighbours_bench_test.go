package tenants

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// beside measures a neighbour's request alone, and while something else goes on: the 95th percentiles in milliseconds, and their ratio.
func beside(b *testing.B, request func() error, disturb func() (stop func(), err error)) {
	b.Helper()
	measure := func(n int) float64 {
		var times []time.Duration
		for range n {
			begun := time.Now()
			if err := request(); err != nil {
				b.Fatal(err)
			}
			times = append(times, time.Since(begun))
		}
		slices.Sort(times)
		return float64(times[(len(times)*95-1)/100]) / float64(time.Millisecond)
	}
	measure(5)
	quiet := measure(40)
	stop, err := disturb()
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	b.ResetTimer()
	disturbed := 0.0
	for b.Loop() {
		disturbed = measure(40)
	}
	b.ReportMetric(quiet, "ms-alone")
	b.ReportMetric(disturbed, "ms-beside")
	b.ReportMetric(disturbed/quiet, "ratio")
	b.ReportMetric(0, "ns/op")
}

// shortSample is a neighbour's sample of 4 tokens.
func shortSample(b *testing.B, c client) func() error {
	b.Helper()
	ctx := context.Background()
	session := must(c.session(ctx, object{}))(b)
	s := must(c.sampling(ctx, session, 0, ""))(b)
	number := 0
	return func() error {
		number++
		_, err := s.draw(ctx, number, ramp(9, 8), 4, 0)
		return err
	}
}

// smallStep is a neighbour's optimizer step on two tokens.
func smallStep(b *testing.B, c client) func() error {
	b.Helper()
	run := must(c.train(context.Background(), 4))(b)
	return func() error { return run.step(context.Background(), []int32{70, 71}, []int64{71, 72}, 1e-3) }
}

// BenchmarkLongSamples: 20,000 long samples wait.
func BenchmarkLongSamples(b *testing.B) {
	_, ann, bob := start(b)
	beside(b, shortSample(b, bob), func() (func(), error) {
		_, stop, err := manySamples(context.Background(), ann, sized(20_000, 2000), 3500)
		return stop, err
	})
}

// BenchmarkStalledUploads: 24 uploads send nothing more.
func BenchmarkStalledUploads(b *testing.B) {
	_, ann, bob := start(b)
	beside(b, smallStep(b, bob), func() (func(), error) { return stalledUploads(context.Background(), ann, 24, 60<<20) })
}

// BenchmarkSessionLists: sessions with much metadata are there, and eight lists of one are asked for again and again.
func BenchmarkSessionLists(b *testing.B) {
	_, ann, bob := start(b)
	ctx, cancel := context.WithCancel(context.Background())
	beside(b, smallStep(b, bob), func() (func(), error) {
		for range sized(1500, 300) {
			if _, err := ann.session(ctx, object{"notes": strings.Repeat("m", 250<<10)}); err != nil {
				break // it may be bounded
			}
		}
		var lists sync.WaitGroup
		for range 8 {
			lists.Go(func() {
				for ctx.Err() == nil {
					_, _ = ann.do(ctx, http.MethodGet, "/api/v1/sessions?limit=1", nil)
				}
			})
		}
		return func() { cancel(); lists.Wait() }, nil
	})
	cancel()
}

// BenchmarkCreations: 300 models of rank 64 are made.
func BenchmarkCreations(b *testing.B) {
	_, ann, bob := start(b)
	ctx := context.Background()
	beside(b, smallStep(b, bob), func() (func(), error) {
		session, err := ann.session(ctx, object{})
		if err != nil {
			return nil, err
		}
		var refused error // it may be bounded
		for i := 0; i < sized(300, 60) && refused == nil; i++ {
			_, refused = ann.post(ctx, "create_model", creation(session, i, 64))
		}
		return func() {
			_, _ = ann.post(ctx, "sessions/"+session+"/finish", object{"reason": object{"type": "success"}})
		}, nil
	})
}

// BenchmarkSlowReaders: 64 streams are not read.
func BenchmarkSlowReaders(b *testing.B) {
	server, ann, bob := start(b)
	server.chats(b)
	chat := func() error {
		_, err := bob.ok(context.Background(), http.MethodPost, "/v1/chat/completions", object{"model": *flagModel, "max_tokens": 4, "messages": []any{object{"role": "user", "content": "hi"}}})
		return err
	}
	beside(b, chat, func() (func(), error) { return slowReaders(context.Background(), ann, 64) })
}
