package supervisor

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWatchdogTime(t *testing.T) {
	const timeout = 30 * time.Second
	for _, c := range []struct {
		name string
		do   func(w *watchdog)
		want time.Duration // from the start to the bark; 0: never
	}{
		{"nothing happens", func(*watchdog) {}, timeout},
		{"reset", func(w *watchdog) { time.Sleep(20 * time.Second); w.reset() }, 50 * time.Second},
		{"stopped", func(w *watchdog) { w.stop() }, 0},
		{"this process was stopped", func(w *watchdog) {
			w.mu.Lock()
			w.timer.Reset(time.Hour) // what a timer sees of it: it fires long after it was due
			w.mu.Unlock()
		}, time.Hour + timeout},
		{"it is a little late", func(w *watchdog) {
			w.mu.Lock()
			w.timer.Reset(timeout + timeout/lateShare)
			w.mu.Unlock()
		}, timeout + timeout/lateShare},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var barked time.Duration
				w := watchdogAfter(timeout, func() { barked = time.Since(start) })
				c.do(w)
				time.Sleep(3 * time.Hour)
				synctest.Wait()
				if barked != c.want {
					t.Errorf("after %v, want %v", barked, c.want)
				}
				if w.timer != nil {
					w.stop()
				}
			})
		})
	}
}

func TestStandstill(t *testing.T) {
	const sec = time.Second
	for _, c := range []struct {
		name       string
		ages, want []time.Duration
	}{
		{"reports that come once a second", []time.Duration{0, sec, 2 * sec, 3 * sec}, []time.Duration{0, sec, 2 * sec, 3 * sec}},
		{"progress", []time.Duration{5 * sec, 6 * sec, sec / 2, sec}, []time.Duration{5 * sec, 6 * sec, sec / 2, sec}},
		{"stopped for an hour", []time.Duration{0, 2 * sec, time.Hour, time.Hour + sec, sec}, []time.Duration{0, 2 * sec, 12 * sec, 13 * sec, sec}},
		{"stopped right after progress", []time.Duration{9 * sec, time.Minute, sec, 0}, []time.Duration{9 * sec, 19 * sec, sec, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := standstill{longest: 10 * sec}
			for i, age := range c.ages {
				if got := s.reported(age); got != c.want[i] {
					t.Errorf("report %d: %v, want %v", i, got, c.want[i])
				}
			}
		})
	}
}
