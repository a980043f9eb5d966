package runs

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// cycleBlock is how many numbers of clock cycles one record covers.
const cycleBlock = 1_000_000

// cycleCount numbers a model's clock cycles for clients. Each process counts its own from 1; here they come behind those of the processes before it, so that no number names two cycles. A server that ends does not
// say how far it came: the next one goes on behind what was reserved. mu of the core guards it.
//
// Where a model has several backends, each counts by itself, and the numbers of all take turns: those of the i-th of n are n times its own count plus i.
type cycleCount struct {
	before   map[string]int64 // the last count before a process's first cycle, by boot id
	last     []int64          // the highest count so far, by backend
	reserved int64            // the highest number of which a record says that it may have been given
}

func newCycleCount(backends int) cycleCount {
	return cycleCount{before: map[string]int64{}, last: make([]int64, backends)}
}

// cyclesRecord is the Value of a reservation; its key is the model.
type cyclesRecord struct {
	Model    string `json:"model"`
	Reserved int64  `json:"reserved"`
}

// loadCycles reads a reservation.
func (c *Core) loadCycles(rec store.Record) error {
	var r cyclesRecord
	if err := json.Unmarshal(rec.Value, &r); err != nil {
		return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
	}
	if m := c.byName[r.Model]; m != nil {
		n := int64(len(m.slots))
		for i := range m.cycles.last {
			m.cycles.last[i] = (r.Reserved + n - 1) / n
		}
		m.cycles.reserved = r.Reserved
	}
	return nil
}

// number replaces the number that a process gave an operation's clock cycle, in the execution and in the metric of that name, by the model's. The record, if there is one, is stored no later than the
// operation's result, and stored, for which mu is held, is called when it has been.
func (c *Core) number(b Backend, ran *plugins.Execution, metrics map[string]float64, name string) (now map[string]float64, record []store.Record, stored func()) {
	stored = func() {}
	if ran.Cycle <= 0 {
		return metrics, nil, stored
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, m := b.slot, b.slot.model
	k := &m.cycles
	before, known := k.before[b.BootID]
	if !known {
		before = k.last[s.index]
		k.before[b.BootID] = before
	}
	ran.Cycle += before
	k.last[s.index] = max(k.last[s.index], ran.Cycle)
	ran.Cycle = ran.Cycle*int64(len(m.slots)) + int64(s.index)
	if ran.Cycle > k.reserved {
		upTo := (ran.Cycle/cycleBlock + 1) * cycleBlock
		record = []store.Record{{Collection: inCycles, Key: m.Name, Value: mustJSON(cyclesRecord{m.Name, upTo})}}
		stored = func() { k.reserved = max(k.reserved, upTo) }
	}
	if _, ok := metrics[name]; ok {
		metrics = maps.Clone(metrics) // the backend's own may be kept there
		metrics[name] = float64(ran.Cycle)
	}
	return metrics, record, stored
}
