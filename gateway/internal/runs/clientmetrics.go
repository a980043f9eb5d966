package runs

import (
	"context"
	"fmt"
	"math"
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
// those that a run may have, and of steps that were thinned out.
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
	mine := c.metricsMu.at(runID)
	mine.Lock()
	defer mine.Unlock()
	b, passedOver, err := c.addRows(ctx, runID, sorted)
	if err != nil {
		return 0, err
	}
	if err := c.commit(context.WithoutCancel(ctx), b); err != nil { // the session was recalled: nothing of the run is removed meanwhile
		return 0, fmt.Errorf("keep metrics: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
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

// addRows makes the change that brings rows into the table of the client.
func (c *Core) addRows(ctx context.Context, runID string, rows []history.Row) (b store.Batch, passedOver int, err error) {
	heads, err := c.heads(ctx, runID)
	if err != nil || len(rows) == 0 {
		return b, 0, err
	}
	h := heads[clients]
	before := int64(math.MinInt64)
	if len(h.Newest) > 0 {
		before = h.LastStep()
	}
	late := rows[:0:0]
	for len(rows) > 0 && rows[0].Step < before {
		late, rows = append(late, rows[0]), rows[1:]
	}
	if len(late) == 0 {
		passedOver, err = c.appendRows(ctx, runID, clients, h, &b, rows)
		return b, passedOver, err
	}
	blocks, err := c.blocks(ctx, runID, clients, nil)
	if err != nil {
		return b, 0, err
	}
	blocks, passedOver = h.Amend(blocks, append(late, rows...), history.Replace)
	if h.Full() {
		blocks = h.Thin(blocks)
	}
	b.DeleteUnder = []store.ParentKey{{Collection: inSeries, Parent: clients.key(runID)}}
	putBlocks(&b, runID, clients, 0, blocks)
	b.Put = append(b.Put, headRecord(runID, clients, h))
	return b, passedOver, nil
}
