package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Bounds of one call of AddMetrics.
const (
	MaxMetricRows   = 1000
	maxMetricValues = 50_000
	maxStep         = 1 << 53
)

// MetricRow is what a client's program says about one step of its own.
type MetricRow struct {
	Step   int64
	Values map[string]float64 // not empty; NaN and infinite ones are kept as such
}

// AddMetrics keeps a client's numbers with a run of its own, live or not. A step that was there gets the newer values; so a repeat changes nothing. It tells how many values were passed over: of names beyond
// those that a run may have, and of steps that were thinned out. KindBusy if the owner's runs would have more values than its limit is: then nothing is kept.
func (c *Core) AddMetrics(ctx context.Context, owner, runID string, rows []MetricRow) (passedOver int, err error) {
	if len(rows) == 0 || len(rows) > MaxMetricRows {
		return 0, invalidf("rows: has %d entries, must have 1 … %d", len(rows), MaxMetricRows)
	}
	sorted, err := c.metricRows(rows)
	if err != nil {
		return 0, err
	}
	if err := c.recall(ctx, runID); err != nil {
		return 0, err
	}
	r, err := c.visible(Viewer{Owner: owner}, runID)
	if err != nil {
		return 0, err
	}
	if err := notNow(c.cfg.Store.Err()); err != nil {
		return 0, err
	}
	mine := c.metricsMu.at(owner) // what it may have is of all of its runs together
	mine.Lock()
	defer mine.Unlock()
	b, passedOver, more, err := c.addRows(ctx, owner, runID, sorted)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	err = c.mayMeasure(owner, more)
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if err := c.commit(context.WithoutCancel(ctx), b); err != nil { // the session was recalled: nothing of the run is removed meanwhile
		return 0, fmt.Errorf("keep metrics: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metricValues[owner] += more
	c.changed(r, changedRun)
	if s := &r.series; s.news != nil {
		close(s.news)
		s.news = nil
	}
	return passedOver, nil
}

// metricRows checks rows, and gives them in the order of their steps, each once.
func (c *Core) metricRows(rows []MetricRow) ([]history.Row, error) {
	now, n := c.cfg.now().UnixMilli(), 0
	var out []history.Row
	for i, r := range rows {
		if r.Step < 0 || r.Step > maxStep {
			return nil, invalidf("rows[%d].step: is %d, must be in 0 … 2^53", i, r.Step)
		}
		if n += len(r.Values); n > maxMetricValues {
			return nil, invalidf("rows: has more than %d values", maxMetricValues)
		}
		if len(r.Values) == 0 {
			continue
		}
		if len(r.Values) > history.MaxNames {
			return nil, invalidf("rows[%d].values: has %d names, at most %d are allowed", i, len(r.Values), history.MaxNames)
		}
		row := history.Row{Step: r.Step, Time: now}
		for _, name := range sortedKeys(r.Values) {
			if err := history.CheckName(name); err != nil {
				return nil, invalidf("rows[%d].values: the name %s", i, err)
			}
			row.Values = append(row.Values, history.Value{Name: name, Number: r.Values[name]})
		}
		out = append(out, row)
	}
	slices.SortStableFunc(out, func(a, b history.Row) int { return int(max(min(a.Step-b.Step, 1), -1)) })
	merged := out[:0]
	for _, row := range out {
		if k := len(merged) - 1; k >= 0 && merged[k].Step == row.Step {
			history.Replace(&merged[k], row)
		} else {
			merged = append(merged, row)
		}
	}
	return merged, nil
}

// addRows makes the change that brings rows into the table of the client, and tells how many values more the run has with it.
func (c *Core) addRows(ctx context.Context, owner, runID string, rows []history.Row) (b store.Batch, passedOver int, more int64, err error) {
	heads, err := c.heads(ctx, runID)
	if err != nil || len(rows) == 0 {
		return b, 0, 0, err
	}
	h := heads[clients]
	had := h.Values()
	if len(h.Newest) > 0 && rows[0].Step < h.LastStep() {
		passedOver, err = c.amendRows(ctx, runID, h, &b, rows)
	} else {
		passedOver, err = c.appendRows(ctx, runID, clients, h, &b, rows)
	}
	b.Put = append(b.Put, store.Record{Collection: inMetrics, Key: runID, Parent: owner, Count: h.Values()})
	return b, passedOver, h.Values() - had, err
}

// amendRows adds the change to a batch that brings rows into the table of the client some of which do not belong behind the others.
func (c *Core) amendRows(ctx context.Context, runID string, h *history.Head, b *store.Batch, rows []history.Row) (passedOver int, err error) {
	blocks, err := c.blocks(ctx, runID, clients, nil)
	if err != nil {
		return 0, err
	}
	blocks, passedOver = h.Amend(blocks, rows, history.Replace)
	if h.Full() {
		blocks = h.Thin(blocks)
	}
	b.DeleteUnder = []store.ParentKey{{Collection: inSeries, Parent: clients.key(runID)}}
	putBlocks(b, runID, clients, 0, blocks)
	b.Put = append(b.Put, headRecord(runID, clients, h))
	return passedOver, nil
}

// loadMetricValues counts what clients keep with their runs.
func (c *Core) loadMetricValues(ctx context.Context) error {
	return c.cfg.Store.All(ctx, inMetrics, func(rec store.Record) error {
		c.metricValues[rec.Parent] += rec.Count
		return nil
	})
}

// forgetMetricValues adds to a batch that deletes the series of runs what counts their clients' values, and gives what is to be called, with mu held, when that is durable.
func (c *Core) forgetMetricValues(ctx context.Context, b *store.Batch, runs []string) (forget func(), err error) {
	gone := map[string]int64{}
	for _, id := range runs {
		rec, err := c.cfg.Store.Get(ctx, inMetrics, id)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err == nil {
			gone[rec.Parent] += rec.Count
		} else if !errors.Is(err, store.ErrCorrupt) {
			return nil, fmt.Errorf("read what metrics of run %s count: %w", id, err)
		}
		b.Delete = append(b.Delete, store.RecordKey{Collection: inMetrics, Key: id})
	}
	return func() {
		for owner, n := range gone {
			if c.metricValues[owner] -= n; c.metricValues[owner] <= 0 {
				delete(c.metricValues, owner)
			}
		}
	}, nil
}
