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
