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
type cycleCount struct {
	before   map[string]int64 // the last number before a process's first cycle, by boot id
	last     int64            // the highest one so far
	reserved int64            // the highest one of which a record says that it may have been given
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
		m.cycles.last, m.cycles.reserved = r.Reserved, r.Reserved
	}
	return nil
}

// number replaces the number that a process gave an operation's clock cycle, in the execution and in the metric of that name, by the model's. The record, if there is one, is stored no later than the
// operation's result, and stored, for which mu is held, is called when it has been.
func (c *Core) number(m *model, boot string, ran *plugins.Execution, metrics map[string]float64, name string) (now map[string]float64, record []store.Record, stored func()) {
	stored = func() {}
	if ran.Cycle <= 0 {
		return metrics, nil, stored
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &m.cycles
	before, known := k.before[boot]
	if !known {
		before = k.last
		k.before[boot] = before
	}
	ran.Cycle += before
	k.last = max(k.last, ran.Cycle)
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
