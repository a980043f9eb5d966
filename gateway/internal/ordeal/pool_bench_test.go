package ordeal

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// BenchmarkPool trains 16 runs at once with the real engine, in one backend with two threads and in two backends with one each. An iteration is a step of every run.
func BenchmarkPool(b *testing.B) {
	const runs, passes, sequences, tokens = 16, 2, 4, 256
	models := func(replicas, threads int) settings {
		more := ofPool(replicas, settings{"plugin": "single", "threads": threads})
		delete(more, "recovery") // as it is by default
		if path := os.Getenv("TINSMITH_BENCH_MODEL"); path != "" {
			more["models"].([]any)[0].(settings)["path"] = path
		}
		return more
	}
	for _, c := range []struct{ replicas, threads int }{{1, 2}, {2, 1}} {
		b.Run(fmt.Sprintf("backends=%d", c.replicas), func(b *testing.B) {
			s := newServer(b, nil, models(c.replicas, c.threads))
			s.start()
			s.ready()
			caller := newCaller(b, s.url)
			if vocab, err := strconv.Atoi(os.Getenv("TINSMITH_BENCH_VOCAB")); err == nil {
				caller.vocab = vocab
			}
			session := caller.session()
			trainees := make([]*trainee, runs)
			for n := range trainees {
				trainees[n] = caller.create(session, n, 8)
			}
			step := func(r *trainee, i int) {
				var all []submitted
				for k := range passes {
					all = append(all, r.pass(i+k, sequences, tokens))
				}
				for _, s := range append(all, r.step(1e-4)) {
					if _, _, err := s.result(); err != nil {
						b.Error(err)
					}
				}
			}
			for n, r := range trainees { // what is made once is made
				step(r, n)
			}
			b.ResetTimer()
			began := time.Now()
			var all sync.WaitGroup
			for n, r := range trainees {
				all.Go(func() {
					for i := range b.N {
						step(r, n+i)
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N*runs*passes*sequences*tokens)/time.Since(began).Seconds(), "tokens/s")
		})
	}
}
