package engine

import (
	"fmt"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// budget counts the memory of a backend, or of one device of several. Its methods may be called from any goroutine: training passes take memory on the threads of their ranks.
type budget struct {
	device string  // empty: all
	all    *budget // of a device's: that of the backend, which counts the same bytes; nil otherwise
	limit  atomic.Int64
	used   atomic.Int64
}

func newBudget(limit, used int64) *budget {
	b := &budget{}
	b.limit.Store(limit)
	b.used.Store(used)
	return b
}

// budgets makes the backend's by a plan, and one for each home: the backend's where there is one home only.
func budgets(p *memoryPlan) (all *budget, homes []*budget) {
	all = newBudget(p.limit, p.fixed())
	if len(p.devices) == 1 {
		return all, []*budget{all}
	}
	for i := range p.devices {
		d := &p.devices[i]
		b := newBudget(d.limit, d.fixed())
		b.device, b.all = d.name, all
		homes = append(homes, b)
	}
	return all, homes
}

// take counts so many bytes more, unless they are more than the limit allows.
func (b *budget) take(bytes int64) bool {
	for {
		used := b.used.Load()
		if used+bytes > b.limit.Load() {
			return false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			break
		}
	}
	if b.all != nil && !b.all.take(bytes) {
		b.used.Add(-bytes)
		return false
	}
	return true
}

// give counts so many bytes less; with a negative number more, whatever the limit.
func (b *budget) give(bytes int64) {
	b.used.Add(-bytes)
	if b.all != nil {
		b.all.give(bytes)
	}
}

// free is what can be taken.
func (b *budget) free() int64 {
	n := b.limit.Load() - b.used.Load()
	if b.all != nil {
		n = min(n, b.all.free())
	}
	return n
}

// bounds says what is left of which limit.
func (b *budget) bounds() string {
	return fmt.Sprintf("%s are left of the %s that the backend may take%s (backend.memory_mib)", mebibytes(b.free()), mebibytes(b.limit.Load()), b.on())
}

// on names the device in a message, where there are several.
func (b *budget) on() string {
	if b.device == "" {
		return ""
	}
	return " of " + b.device
}

// room takes or, with a negative number, gives; see model.Workspace.Bound.
func (b *budget) room(bytes int64) error {
	if bytes < 0 {
		b.give(-bytes)
		return nil
	}
	if !b.take(bytes) {
		return fmt.Errorf("%s more are needed, and %s: %w", mebibytes(bytes), b.bounds(), tensor.ErrMemory)
	}
	return nil
}
