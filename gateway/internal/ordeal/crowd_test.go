package ordeal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestCrowd holds 2,000 polls and lets 10,000 samples wait: neither takes a goroutine per sample, half a core or half a gigabyte, and every one gets its answer.
func TestCrowd(t *testing.T) {
	const polls, samples, batch = 2000, 10000, 20
	waiting, held := samples, polls
	if raced {
		waiting, held = samples/10, polls/10
	}
	s := newServer(t, settings{"plugin": "fake", "delays": []any{settings{"operation": "optim_step", "seconds": 30}, settings{"operation": "sample", "seconds": 0.2}}}, nil)
	s.start()
	s.ready()
	c := newCaller(t, s.url)
	session := c.session()
	slow := c.create(session, 0, 4)
	id := slow.step(1e-3).id // 30 seconds, in which all polls come and are measured
	body, err := json.Marshal(object{"request_id": id})
	s.ok(err)
	var answered, retried atomic.Int64
	var all sync.WaitGroup
	client := http.Client{Transport: c.transport, Timeout: time.Minute}
	for range held {
		all.Go(func() {
			for {
				answer, err := client.Post(s.url+"/api/v1/retrieve_future", "application/json", bytes.NewReader(body))
				if err != nil {
					retried.Add(1) // the machine may be short of ports or of time
					time.Sleep(50 * time.Millisecond)
					continue
				}
				b, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				if answer.StatusCode == http.StatusOK && strings.Contains(string(b), "optim_step") {
					answered.Add(1)
					return
				}
				if answer.StatusCode != http.StatusRequestTimeout {
					t.Errorf("poll: %d %.200s", answer.StatusCode, b)
					return
				}
			}
		})
	}
	s.await("holding the polls", func(health) bool {
		n, err := s.metric("go_goroutines")
		return err == nil && n >= int64(held)
	})
	before, err := measure(s.process.Process.Pid)
	s.ok(err)
	begun := time.Now()
	time.Sleep(3 * time.Second)
	after, err := measure(s.process.Process.Pid)
	s.ok(err)
	share := (after.cpu - before.cpu).Seconds() / time.Since(begun).Seconds()
	t.Logf("%d held polls: %.3f of a core, %d MiB", held, share, after.rss>>20)
	if !raced && (share > 0.5 || after.rss > 500<<20) {
		t.Errorf("held polls take %.2f of a core and %d MiB, want at most half a core and 500 MiB", share, after.rss>>20)
	}
	all.Wait()
	if int(answered.Load()) != held {
		t.Errorf("%d of %d polls were answered", answered.Load(), held)
	}

	c.transport.CloseIdleConnections()
	sampler := c.sampler(session, 0, "")
	goroutines, err := s.metric("go_goroutines")
	s.ok(err)
	most := int64(0)
	ids := make([]submitted, waiting)
	var next atomic.Int64
	for range batch {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= waiting {
					return
				}
				ids[i] = c.sample(sampler, i, 2)
			}
		})
	}
	watched := make(chan struct{})
	go func() {
		all.Wait()
		close(watched)
	}()
	for done := false; !done; {
		select {
		case <-watched:
			done = true
		case <-time.After(20 * time.Millisecond):
		}
		n, err := s.metric("go_goroutines")
		s.ok(err)
		most = max(most, n)
	}
	full, err := measure(s.process.Process.Pid)
	s.ok(err)
	t.Logf("%d samples accepted, %d goroutines at most (%d before), %d MiB", waiting, most, goroutines, full.rss>>20)
	// A request in the backend has its goroutines: 256 at a time, some of them in gRPC.
	if most > goroutines+4*256+10*batch {
		t.Errorf("%d goroutines while %d samples waited", most, waiting)
	}
	for i, one := range ids {
		if _, b, err := one.result(); err != nil || len(b) == 0 {
			t.Fatal(fmt.Errorf("sample %d: %w", i, err))
		}
	}
}
