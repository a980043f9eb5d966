package parallel

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// watched is team with options.
func watched(t *testing.T, n int, o Options) (*Team, []tensor.Device) {
	t.Helper()
	_, devices := team(t, n)
	team := NewTeam(devices, o)
	t.Cleanup(func() {
		if err := team.Close(); err != nil {
			t.Error(err)
		}
	})
	return team, devices
}

// eventually waits for something that comes to pass.
func eventually(f func() bool) {
	for !f() {
		time.Sleep(time.Millisecond)
	}
}

// rests tells whether a rank has begun so many tasks and waits.
func rests(team *Team, rank, tasks int) bool {
	team.mu.Lock()
	begun := team.next[rank]
	team.mu.Unlock()
	s := team.stations[rank]
	s.mu.Lock()
	defer s.mu.Unlock()
	return begun >= tasks && s.waits
}

// unwatched is a team that is only looked at when the test does it.
func unwatched(t *testing.T, n int, o Options) (*watch, []tensor.Device) {
	t.Helper()
	o.Patience = time.Hour
	o.Lost = func(err error) { t.Error(err) }
	team, devices := watched(t, n, o)
	return &watch{team, make([]uint64, n), make([]int, n)}, devices
}

// A rank that does not come while others wait for it is told of, by its number, its device and what it is missing from.
func TestRankThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		ranks int
		hang  []int
		run   func(c Comm, team *Team, d tensor.Device, rank int) error
		want  string
	}{
		"before an all-reduce": {3, []int{1}, func(c Comm, _ *Team, d tensor.Device, _ int) error {
			return with(d, make([]float32, 12), 3, 4, func(x tensor.Tensor) error { return c.AllReduce(x) })
		}, "rank 5 of 8 on cpu: missing for 1h0m0s from all-reduce of 3 × 4, where the others wait"},
		"two of three": {3, []int{0, 2}, func(c Comm, _ *Team, d tensor.Device, _ int) error {
			return with(d, make([]float32, 12), 3, 4, func(x tensor.Tensor) error { return c.Broadcast(x, 0) })
		}, "rank 4 of 8 on cpu and rank 6 of 8 on cpu: missing for 1h0m0s from broadcast of 3 × 4, where the others wait"},
		"before a sum in Go memory": {2, []int{0}, func(c Comm, _ *Team, _ tensor.Device, _ int) error {
			return c.AllReduceHost(make([]float32, 7))
		}, "rank 4 of 8 on cpu: missing for 1h0m0s from all-reduce in host memory of 7 values, where the others wait"},
		"before a meeting": {2, []int{0}, func(c Comm, _ *Team, _ tensor.Device, _ int) error {
			return c.AllReduceHost(nil)
		}, "rank 4 of 8 on cpu: missing for 1h0m0s from all-reduce in host memory, where the others wait"},
		"before it sends": {2, []int{1}, func(c Comm, _ *Team, d tensor.Device, rank int) error {
			return with(d, make([]float32, 2), 1, 2, func(x tensor.Tensor) error {
				if rank == 1 {
					return c.Send(x, 0)
				}
				return c.Recv(x, 1)
			})
		}, "rank 5 of 8 on cpu: missing for 1h0m0s from receive of 1 × 2, where the others wait"},
		"before a point": {2, []int{0}, func(_ Comm, team *Team, _ tensor.Device, rank int) error {
			return team.Point(rank)
		}, "rank 4 of 8 on cpu: no sign for 1h0m0s of what it runs"},
		"before its end": {2, []int{1}, func(Comm, *Team, tensor.Device, int) error { return nil }, "rank 5 of 8 on cpu: no sign for 1h0m0s of what it runs"},
		"alone":          {1, []int{0}, func(Comm, *Team, tensor.Device, int) error { return nil }, "rank 4 of 8 on cpu: no sign for 1h0m0s of what it runs"},
		"all":            {2, []int{0, 1}, func(Comm, *Team, tensor.Device, int) error { return nil }, "rank 4 of 8 on cpu and rank 5 of 8 on cpu: no sign for 1h0m0s of what it runs"},
	} {
		t.Run(name, func(t *testing.T) {
			w, devices := unwatched(t, c.ranks, Options{First: 4, Total: 8})
			hung, gate, done := make(chan struct{}, c.ranks), make(chan struct{}), make(chan error, 1)
			go func() {
				done <- w.team.Run(func(rank int) error {
					if slices.Contains(c.hang, rank) {
						hung <- struct{}{}
						<-gate
					}
					return c.run(w.team.Comm(rank), w.team, devices[rank], rank)
				}, nil)
			}()
			for rank := range c.ranks {
				if slices.Contains(c.hang, rank) {
					<-hung
				} else {
					eventually(func() bool { return rests(w.team, rank, 1) })
				}
			}
			for i := range looks {
				if err := w.look(); err != nil {
					t.Errorf("after %d looks: %v", i+1, err)
				}
			}
			if err := w.look(); err == nil || err.Error() != c.want {
				t.Errorf("told %v, want %q", err, c.want)
			}
			close(gate) // what only seemed to hang goes on and ends
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

// Ranks that wait for each other in different operations are told of.
func TestRanksThatWaitForEachOther(t *testing.T) {
	w, devices := unwatched(t, 2, Options{})
	done := make(chan error, 1)
	go func() {
		done <- w.team.Run(func(rank int) error {
			return with(devices[rank], make([]float32, 2), 1, 2, func(x tensor.Tensor) error {
				if rank == 0 {
					return w.team.Comm(rank).Recv(x, 1)
				}
				return w.team.Comm(rank).AllReduce(x)
			})
		}, nil)
	}()
	for rank := range 2 {
		eventually(func() bool { return rests(w.team, rank, 1) })
	}
	for range looks {
		if err := w.look(); err != nil {
			t.Error(err)
		}
	}
	want := "the ranks have come apart: for 1h0m0s rank 0 of 2 on cpu and rank 1 of 2 on cpu have waited in receive of 1 × 2 and all-reduce of 1 × 2, and nobody is at work"
	if err := w.look(); err == nil || err.Error() != want {
		t.Errorf("told %v, want %q", err, want)
	}
	w.team.group.fail()
	if err := <-done; !errors.Is(err, ErrLost) {
		t.Errorf("the run ended with %v", err)
	}
}

// Somebody looks without being asked, and tells once.
func TestPatrol(t *testing.T) {
	lost, gate, done := make(chan error, 2), make(chan struct{}), make(chan error, 1)
	team, _ := watched(t, 1, Options{Patience: 20 * time.Millisecond, Lost: func(err error) { lost <- err }})
	go func() { done <- team.Run(func(int) error { <-gate; return nil }, nil) }()
	if err, want := <-lost, "rank 0 of 1 on cpu: no sign for 20ms of what it runs"; err.Error() != want {
		t.Errorf("told %q, want %q", err, want)
	}
	close(gate)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := team.Close(); err != nil {
		t.Error(err)
	}
	if n := len(lost); n != 0 {
		t.Errorf("told %d times more", n)
	}
}

// A rank that moves is not lost, however often it is seen at work; nor is one that has nothing to do.
func TestRankThatMoves(t *testing.T) {
	w, _ := unwatched(t, 2, Options{})
	team := w.team
	look := func(where string, tasks, times int, ranks ...int) {
		t.Helper()
		for _, rank := range ranks {
			eventually(func() bool { return rests(team, rank, tasks) })
		}
		for range times {
			if err := w.look(); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
	look("idle", 0, 3*looks, 0, 1)
	release := team.Hold()
	look("held", 1, 3*looks, 0, 1)
	at, next, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- team.Run(func(rank int) error {
			for range 5 {
				if rank == 0 {
					at <- struct{}{}
					<-next
				}
				if err := team.Comm(rank).AllReduceHost(nil); err != nil {
					return err
				}
			}
			return nil
		}, nil)
	}()
	for range 5 {
		<-at
		look("at work", 2, looks, 1)
		next <- struct{}{}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	release()
}

// A panic of a rank is told of with its name and its stack, and the other ranks do not wait for it.
func TestRankThatPanics(t *testing.T) {
	for _, ranks := range []int{1, 2} {
		t.Run(fmt.Sprint(ranks), func(t *testing.T) {
			lost := make(chan error, 1)
			team, _ := watched(t, ranks, Options{Lost: func(err error) { lost <- err }})
			err := team.Run(func(rank int) error {
				if rank == ranks-1 {
					panic("out of order")
				}
				return team.Comm(rank).AllReduceHost(nil)
			}, nil)
			want := fmt.Sprintf("rank %d of %d on cpu has panicked: out of order", ranks-1, ranks)
			if err == nil || err.Error() != want {
				t.Errorf("the run ended with %v, want %q", err, want)
			}
			if err := <-lost; !strings.HasPrefix(err.Error(), want+"\n") || !strings.Contains(err.Error(), "watch_test.go") {
				t.Errorf("told %q, want %q and the stack", err, want)
			}
		})
	}
}
