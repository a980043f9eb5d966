package supervisor

import (
	"sync"
	"time"
)

// watchdog calls a function when it has not been reset for a while. Where this process itself did not run when that time was over (it was stopped, or its container
// or machine was paused), the other process may have been stopped with it, and what it said lies unread: then it has the whole time once more.
type watchdog struct {
	timeout time.Duration
	bark    func()

	mu    sync.Mutex
	due   time.Time
	timer *time.Timer // nil once it has been stopped
}

func watchdogAfter(timeout time.Duration, bark func()) *watchdog {
	w := &watchdog{timeout: timeout, bark: bark, due: time.Now().Add(timeout)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer = time.AfterFunc(timeout, w.over)
	return w
}

func (w *watchdog) over() {
	w.mu.Lock()
	late := time.Since(w.due)
	if w.timer == nil || late < 0 { // stopped or reset while the timer fired
		w.mu.Unlock()
		return
	}
	if late > w.timeout/lateShare {
		w.restart()
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	w.bark()
}

// lateShare is the part of its timeout by which a timer may be late in a process that runs.
const lateShare = 10

// restart grants the whole time from now on. mu is held.
func (w *watchdog) restart() {
	w.due = time.Now().Add(w.timeout)
	w.timer.Reset(w.timeout)
}

func (w *watchdog) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.restart()
	}
}

func (w *watchdog) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timer.Stop()
	w.timer = nil
}

// standstill counts how long a process that runs makes no progress, from the ages of its last progress that it reports once a second. An age that has grown by more
// than longest from one report to the next says that the process was stopped between them: no more than longest of that counts.
type standstill struct {
	longest   time.Duration
	age, idle time.Duration
}

// reported takes note of an age and gives the time without progress.
func (s *standstill) reported(age time.Duration) time.Duration {
	grown := age - s.age
	if grown < 0 { // progress was made
		s.idle, grown = 0, age
	}
	s.age = age
	s.idle += min(grown, s.longest)
	return s.idle
}
