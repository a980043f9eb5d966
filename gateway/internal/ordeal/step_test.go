package ordeal

import (
	"flag"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var wholeStep = flag.Bool("step", false, "run TestReinforcementStep, which is a measurement")

// TestReinforcementStep takes the gateway through one step of reinforcement learning of the cookbook's size: 2,048 samples, each submitted and polled by a client of its own
// as the SDK does, then a pass over all of them and an optimizer step. It tells what processor time and memory that takes.
func TestReinforcementStep(t *testing.T) {
	if !*wholeStep {
		t.Skip("a measurement: -step")
	}
	const group, prompt, answer, chunks = 16, 200, 100, 16
	samples := 2048
	if raced {
		samples /= 8
	}
	// The model is as small as its tokens let it be: what it computes is not of interest.
	s := newServer(t, settings{"plugin": "fake", "vocab_size": 1000, "hidden_size": 4, "delays": []any{settings{"operation": "sample", "seconds": 1}}}, nil)
	s.start()
	s.ready()
	c := newCaller(t, s.url)
	session := c.session()
	run := c.create(session, 0, 4)
	made, _ := run.saveForSampler("", 0).must()
	sampler := made["sampling_session_id"].(string)

	pid := s.process.Process.Pid
	before, err := measure(pid)
	s.ok(err)
	begun := time.Now()
	most, ended, watched := int64(0), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		for {
			if now, err := measure(pid); err == nil {
				most = max(most, now.rss)
			}
			select {
			case <-ended:
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	var all sync.WaitGroup
	var failed atomic.Value
	for i := range samples {
		all.Go(func() {
			tokens := make([]int, prompt)
			for k := range tokens {
				tokens[k] = 100 + (i/group*37+k*11)%900
			}
			one := c.submit("/asample", object{"sampling_session_id": sampler, "seq_id": i, "num_samples": 1, "type": "sample",
				"prompt":          object{"chunks": []any{object{"type": "encoded_text", "tokens": tokens}}},
				"sampling_params": object{"max_tokens": answer, "seed": i, "stop": []int{}, "temperature": 1.0, "top_p": 1.0}})
			if _, _, err := one.result(); err != nil {
				failed.Store(err)
			}
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		t.Fatal(err)
	}
	var passes []submitted
	for i := range chunks {
		passes = append(passes, run.pass(i, samples/chunks, prompt+answer))
	}
	passes = append(passes, run.step(1e-4))
	for _, p := range passes {
		p.must()
	}
	wall := time.Since(begun)
	close(ended)
	<-watched
	after, err := measure(pid)
	s.ok(err)
	cpu := after.cpu - before.cpu
	t.Logf("a step of %d samples: %.1f s of processor time, %d MiB; it took %.0f s", samples, cpu.Seconds(), most>>20, wall.Seconds())
	if !raced && most > 500<<20 {
		t.Errorf("the gateway took %d MiB, want at most 500", most>>20)
	}
}
