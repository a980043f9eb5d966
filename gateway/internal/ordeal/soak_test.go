package ordeal

import (
	"bufio"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var (
	soakFor     = flag.Duration("soak", 0, "how long TestSoak runs; 0: 1 minute with E2E_LEVEL=all, else not at all")
	soakClients = flag.Int("soak-clients", 16, "clients of TestSoak")
	soakEvery   = flag.Duration("soak-report", time.Minute, "how often TestSoak tells the figures of the gateway, and has it write a heap profile where "+heapVariable+" names a folder")
	soakPlugin  = flag.String("soak-plugin", "fake", "backend of TestSoak: fake or single")
)

// reading is one look at the processes.
type reading struct {
	gateway, plugin int64 // resident bytes
	goroutines      int64
}

// look reads the figures of a server and its plugin.
func (s *server) look() (reading, error) {
	var r reading
	pid := s.process.Process.Pid
	plugins := children(pid)
	if len(plugins) != 1 {
		return r, fmt.Errorf("%d plugins", len(plugins))
	}
	own, err := measure(pid)
	if err != nil {
		return r, err
	}
	other, err := measure(plugins[0])
	if err != nil {
		return r, err
	}
	r.gateway, r.plugin = own.rss, other.rss
	r.goroutines, err = s.metric("go_goroutines")
	return r, err
}

// report logs what the gateway holds.
func (s *server) report(lives int64, r reading) {
	s.Helper()
	heap, err := s.metric("go_memstats_heap_inuse_bytes")
	s.ok(err)
	live, err := s.metric("go_memstats_heap_alloc_bytes")
	s.ok(err)
	s.Logf("%s: %d lives, gateway %.1f MiB (heap %.1f in use, %.1f allocated), plugin %.1f MiB, %d goroutines", time.Now().Format(time.TimeOnly), lives,
		mib(r.gateway), mib(heap), mib(live), mib(r.plugin), r.goroutines)
	if os.Getenv(heapVariable) != "" {
		s.ok(s.process.Process.Signal(syscall.SIGUSR1))
	}
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// metric reads one figure of /metrics that has a single series.
func (s *server) metric(name string) (int64, error) {
	answer, err := http.Get(s.url + "/metrics")
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	for lines := bufio.NewScanner(answer.Body); lines.Scan(); {
		if label, value, ok := strings.Cut(lines.Text(), " "); ok && (label == name || strings.HasPrefix(label, name+"{")) {
			v, err := strconv.ParseFloat(value, 64)
			return int64(v), err
		}
	}
	return 0, fmt.Errorf("no metric %s", name)
}

// life is what one client does once: a session with a run that trains, samples and saves, and ends in the orderly way.
func life(c caller, n int) error {
	session := c.session()
	r := c.create(session, 0, 4)
	for i := range 4 + n%5 {
		pass, step := r.pass(n+i, 1+n%3, 8+4*(i%4)), r.step(1e-3)
		if _, _, err := pass.result(); err != nil {
			return err
		}
		if _, _, err := step.result(); err != nil {
			return err
		}
	}
	made, _, err := r.saveForSampler("", 0).result()
	if err != nil {
		return err
	}
	var waiting []submitted
	for i := range 4 {
		waiting = append(waiting, c.sample(made["sampling_session_id"].(string), i, 4))
	}
	for _, s := range waiting {
		if _, _, err := s.result(); err != nil {
			return err
		}
	}
	if n%8 == 0 {
		// It goes again after a while: what is kept for good takes memory for good.
		kept := r.submit("/save_weights", object{"model_id": r.id, "path": "kept", "seq_id": r.next(), "type": "save_weights", "ttl_seconds": 60})
		if _, _, err := kept.result(); err != nil {
			return err
		}
	}
	_, err = c.post("/sessions/"+session+"/finish", object{"reason": object{"type": "success"}})
	return err
}

// TestSoak keeps clients on a server for as long as is wished. Memory and goroutines must be flat: the last quarter of the time like the third.
func TestSoak(t *testing.T) {
	duration := *soakFor
	if duration == 0 && os.Getenv("E2E_LEVEL") == "all" {
		duration = time.Minute
	}
	if duration == 0 {
		t.Skip("takes as long as one wants: -soak 10m, or E2E_LEVEL=all for a minute")
	}
	s := newServer(t, settings{"plugin": *soakPlugin}, nil)
	s.start()
	s.ready()
	before, err := s.look()
	s.ok(err)
	var (
		lives   atomic.Int64
		clients sync.WaitGroup
		c       = newCaller(t, s.url)
		end     = time.Now().Add(duration)
	)
	for range *soakClients {
		clients.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				if err := life(c, int(lives.Add(1))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var readings []reading
	report := time.Now().Add(*soakEvery)
	for time.Now().Before(end) && !t.Failed() {
		time.Sleep(min(time.Second, duration/40))
		r, err := s.look()
		if err != nil {
			t.Error(err)
			break
		}
		readings = append(readings, r)
		if now := time.Now(); !now.Before(report) {
			report = now.Add(*soakEvery)
			s.report(lives.Load(), r)
		}
	}
	clients.Wait()
	if t.Failed() {
		return
	}
	quarter := func(n int, of func(reading) int64) int64 {
		part := readings[len(readings)*n/4 : len(readings)*(n+1)/4]
		sum := int64(0)
		for _, r := range part {
			sum += of(r)
		}
		return sum / int64(len(part))
	}
	t.Logf("%d lives of clients in %v, %d requests sent again", lives.Load(), duration, c.repeats.Load())
	for _, f := range []struct {
		name  string
		of    func(reading) int64
		slack int64 // in which small figures move by themselves
	}{
		{"bytes of the gateway", func(r reading) int64 { return r.gateway }, 6 << 20},
		{"bytes of the plugin", func(r reading) int64 { return r.plugin }, 6 << 20},
		{"goroutines of the gateway", func(r reading) int64 { return r.goroutines }, int64(4 * *soakClients)},
	} {
		third, last := quarter(2, f.of), quarter(3, f.of)
		t.Logf("%s: %d in the third quarter, %d in the last, %d at first", f.name, third, last, f.of(before))
		if last > third+third/20+f.slack && !raced {
			t.Errorf("%s grow: %d in the third quarter, %d in the last", f.name, third, last)
		}
	}
	c.transport.CloseIdleConnections()
	const parked = 128 // goroutines that package runs keeps for what comes next, at most
	for deadline := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		after, err := s.look()
		s.ok(err)
		if after.goroutines <= before.goroutines+parked+10 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines at first, %d after the last client", before.goroutines, after.goroutines)
		}
	}
}
