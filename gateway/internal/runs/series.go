package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// The series of a run (package history) are made of what its results say. An operation's result has that in its record, so nothing more is written when it becomes durable; now and then the rows since the last time go
// to the store, for each run in one batch with the number of the operation up to which they go. What a crash cuts off is made again at the next start, of the results behind that number, and so every row is
// there once. Operations that are replayed have their results already, and come here no second time. The rows of a client are written as they come (clientmetrics.go).

// seriesTable is one of the tables of a run.
type seriesTable int

// The tables.
const (
	training seriesTable = iota
	validation
	clients
	tables
)

// folded are the tables that are made of results.
var folded = [...]seriesTable{training, validation}

// String is the table's name in keys.
func (t seriesTable) String() string { return [...]string{"training", "validation", "client"}[t] }

// merge is how the table brings together what came for one step.
func (t seriesTable) merge() history.Merge {
	if t == validation {
		return history.Validate
	}
	return history.Replace
}

func (t seriesTable) key(runID string) string { return runID + ":" + t.String() }

// seriesOf names everything that the store has of a run's series.
func seriesOf(runID string) []store.ParentKey {
	keys := []store.ParentKey{{Collection: inHeads, Parent: runID}, {Collection: inEntropies, Parent: runID}}
	for t := range tables {
		keys = append(keys, store.ParentKey{Collection: inSeries, Parent: t.key(runID)})
	}
	return keys
}

// What of a run's series may be in memory before it is looked at: events that are not folded, and rows that are not written.
const (
	foldAt  = 32
	writeAt = history.BlockRows
)

// runSeries is what of a run's series is not in the store. mu of the core guards it.
type runSeries struct {
	fold    *history.Fold
	waiting []operationEvent // results that something before them may still be missing of
	after   int              // of waiting, when they were looked at last
	rows    [2][]history.Row // of the folded tables, not written
	base    [2]int64         // rows of the tables before those
	writing [2]int           // of rows: those that are just being written
	moved   bool             // the fold has gone on since it was written
	busy    bool             // a goroutine of its own writes
	news    chan struct{}    // closed when there is a new row; nil = nobody waits for one
	readers int              // that wait for new rows
}

type operationEvent struct {
	seq   int64
	event *history.Event
}

// unwritten tells whether something would be lost with the results.
func (s *runSeries) unwritten() bool {
	return len(s.waiting) > 0 || s.moved || len(s.rows[training]) > 0 || len(s.rows[validation]) > 0
}

// record takes the event of an operation that has its result. mu is held.
func (c *Core) record(r *run, seq int64, x *history.Event) {
	if r != nil && seq > 0 {
		r.series.waiting = append(r.series.waiting, operationEvent{seq, x})
	}
}

// foldSome folds what has come if that is worth while. mu is held.
func (c *Core) foldSome(r *run) {
	s := &r.series
	if len(s.waiting) == 0 || s.readers == 0 && len(s.waiting) < max(foldAt, 2*s.after) {
		return
	}
	c.fold(r)
	if len(s.rows[training])+len(s.rows[validation]) >= writeAt && !s.busy {
		s.busy = true
		c.start(func(ctx context.Context) {
			err := c.writeRunSeries(context.WithoutCancel(ctx), r)
			c.logged("series could not be written", err, "run", r.ID)
			c.mu.Lock()
			defer c.mu.Unlock()
			s.busy = false
		})
	}
}

// fold makes rows of the results before which nothing is missing. mu is held.
func (c *Core) fold(r *run) {
	s := &r.series
	if len(s.waiting) == 0 {
		return
	}
	lowest := int64(unloadSeq)
	for seq := range r.queue.pending {
		lowest = min(lowest, seq)
	}
	slices.SortFunc(s.waiting, func(a, b operationEvent) int { return cmp.Compare(a.seq, b.seq) })
	n, fresh := 0, false
	for ; n < len(s.waiting) && s.waiting[n].seq < lowest; n++ {
		one := s.waiting[n]
		if one.seq <= s.fold.UpTo { // a number that came too late
			continue
		}
		s.moved = true
		step, pass := s.fold.Add(one.seq, one.event)
		for t, row := range [...]*history.Row{training: step, validation: pass} {
			if row == nil {
				continue
			}
			fresh = true
			rows := s.rows[t]
			if k := len(rows) - 1; k >= s.writing[t] && rows[k].Step == row.Step {
				seriesTable(t).merge()(&rows[k], *row)
				continue
			}
			s.rows[t] = append(rows, *row)
		}
	}
	s.waiting = slices.Clone(s.waiting[n:]) // a part of it would keep all of it in memory
	s.after = len(s.waiting)
	if fresh && s.news != nil {
		close(s.news)
		s.news = nil
	}
}

// stripes are turnstiles, one of which is a run's, with others.
type stripes [64]turnstile

func newStripes() (s stripes) {
	for i := range s {
		s[i] = make(turnstile, 1)
	}
	return s
}

func (s *stripes) at(runID string) turnstile {
	h := fnv.New32a()
	h.Write([]byte(runID))
	return s[h.Sum32()%uint32(len(s))]
}

// writeSeries writes what is new of all runs in memory.
func (c *Core) writeSeries(ctx context.Context) error {
	c.mu.Lock()
	var list []*run
	for _, r := range c.runs {
		if r.series.unwritten() {
			list = append(list, r)
		}
	}
	c.mu.Unlock()
	slices.SortFunc(list, byID)
	return c.writeSeriesOf(ctx, list)
}

func (c *Core) writeSeriesOf(ctx context.Context, list []*run) error {
	for _, r := range list {
		if err := c.writeRunSeries(ctx, r); err != nil {
			return fmt.Errorf("write the series of run %s: %w", r.ID, err)
		}
	}
	return nil
}

// writeRunSeries writes what is new of a run.
func (c *Core) writeRunSeries(ctx context.Context, r *run) error {
	mine := c.seriesMu.at(r.ID)
	mine.Lock()
	defer mine.Unlock()
	c.mu.Lock()
	s := &r.series
	c.fold(r)
	rows := [2][]history.Row{}
	for _, t := range folded {
		rows[t] = s.rows[t][:len(s.rows[t]):len(s.rows[t])]
		s.writing[t] = len(rows[t])
	}
	state, base, moved := s.fold.Encode(), s.base, s.moved
	s.moved = false
	c.mu.Unlock()
	if !moved && len(rows[training])+len(rows[validation]) == 0 {
		return nil
	}
	var b store.Batch
	err := c.putRows(ctx, r.ID, &b, rows, base, state)
	if err == nil {
		err = c.cfg.Store.Commit(ctx, b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.writing = [2]int{}
	if err != nil {
		s.moved = true
		return err
	}
	for _, t := range folded {
		s.base[t] += int64(len(rows[t]))
		s.rows[t] = slices.Clone(s.rows[t][len(rows[t]):]) // a part of it would keep all of it in memory
	}
	return nil
}

// putRows adds rows of the folded tables to a batch, and the fold's state.
func (c *Core) putRows(ctx context.Context, runID string, b *store.Batch, rows [2][]history.Row, base [2]int64, state []byte) error {
	heads, err := c.heads(ctx, runID)
	if err != nil {
		return err
	}
	for _, t := range folded {
		h := heads[t]
		if t == training {
			h.State = state
		} else if len(rows[t]) == 0 {
			continue
		}
		if h.Taken != base[t] { // its head was damaged: this process counts on
			h.Taken = base[t]
		}
		if _, err := c.appendRows(ctx, runID, t, h, b, rows[t]); err != nil {
			return err
		}
	}
	return nil
}

// appendRows adds the change to a batch that brings rows behind those of a table. It tells how many values were passed over.
func (c *Core) appendRows(ctx context.Context, runID string, t seriesTable, h *history.Head, b *store.Batch, rows []history.Row) (passedOver int, err error) {
	if len(rows) > 0 {
		tail, err := c.block(ctx, runID, t, h.Blocks-1)
		if err != nil {
			return 0, err
		}
		first, changed, dropped := h.Append(tail, rows, t.merge())
		passedOver = dropped
		if h.Full() {
			blocks, err := c.blocks(ctx, runID, t, nil)
			if err != nil {
				return 0, err
			}
			blocks = append(blocks[:min(int(first), len(blocks))], changed...)
			b.DeleteUnder = append(b.DeleteUnder, store.ParentKey{Collection: inSeries, Parent: t.key(runID)})
			first, changed = 0, h.Thin(blocks)
		}
		putBlocks(b, runID, t, first, changed)
	}
	b.Put = append(b.Put, headRecord(runID, t, h))
	return passedOver, nil
}

func headRecord(runID string, t seriesTable, h *history.Head) store.Record {
	return store.Record{Collection: inHeads, Key: t.key(runID), Parent: runID, Rank: int64(t), Value: h.Encode()}
}

func putBlocks(b *store.Batch, runID string, t seriesTable, first int64, blocks []*history.Block) {
	for i, block := range blocks {
		n := first + int64(i)
		b.Put = append(b.Put, store.Record{Collection: inSeries, Key: t.key(runID) + ":" + itoa(n), Parent: t.key(runID), Rank: n, Value: block.Encode()})
	}
}

// heads reads the heads of a run's tables. One that is damaged is as if it were not there, which is logged.
func (c *Core) heads(ctx context.Context, runID string) (heads [tables]*history.Head, err error) {
	for t := range tables {
		heads[t] = &history.Head{}
	}
	list, err := c.cfg.Store.List(ctx, inHeads, runID, store.Range{}, 0)
	if err = c.others(err); err != nil {
		return heads, fmt.Errorf("read series: %w", err)
	}
	for _, rec := range list {
		if rec.Rank < 0 || rec.Rank >= int64(tables) {
			continue
		}
		h, err := history.DecodeHead(rec.Value)
		if err != nil {
			c.log.Error("the head of series cannot be read", "run", runID, "table", seriesTable(rec.Rank).String(), "error", err)
			continue
		}
		heads[rec.Rank] = h
	}
	return heads, nil
}

// block reads one block; nil if it is not there, or damaged.
func (c *Core) block(ctx context.Context, runID string, t seriesTable, n int64) (*history.Block, error) {
	if n < 0 {
		return nil, nil
	}
	rec, err := c.cfg.Store.Get(ctx, inSeries, t.key(runID)+":"+itoa(n))
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	b, err := history.DecodeBlock(rec.Value, nil)
	if err != nil {
		c.log.Error("a block of series cannot be read", "run", runID, "table", t.String(), "block", n, "error", err)
		return nil, nil
	}
	return b, nil
}

// blocks reads the blocks of a table, of the columns those that are wanted; nil = all. Those that are damaged are left out.
func (c *Core) blocks(ctx context.Context, runID string, t seriesTable, wanted func(string) bool) (all []*history.Block, err error) {
	list, err := c.cfg.Store.List(ctx, inSeries, t.key(runID), store.Range{}, 0)
	if err = c.others(err); err != nil {
		return nil, fmt.Errorf("read series: %w", err)
	}
	for _, rec := range list {
		b, err := history.DecodeBlock(rec.Value, wanted)
		if err != nil {
			c.log.Error("a block of series cannot be read", "run", runID, "table", t.String(), "block", rec.Rank, "error", err)
			continue
		}
		all = append(all, b)
	}
	return all, nil
}

// loadSeries takes up the series of all runs in memory where an earlier process left them, with the results that it did not come to.
func (c *Core) loadSeries(ctx context.Context) error {
	for r := range inOrder(c.runs) {
		if r.session == nil {
			continue
		}
		heads, err := c.heads(ctx, r.ID)
		if err != nil {
			return err
		}
		fold, err := history.DecodeFold(heads[training].State)
		if err != nil {
			c.log.Error("the state of series cannot be read", "run", r.ID, "error", err)
			fold = &history.Fold{}
		}
		s := &r.series
		s.fold, s.base = fold, [2]int64{heads[training].Taken, heads[validation].Taken}
		results, err := c.cfg.Store.List(ctx, inResults, r.ID, store.Range{From: fold.UpTo + 1, To: unloadSeq}, 0)
		if errors.Is(err, store.ErrCorrupt) && !errors.Is(err, store.ErrRows) { // the rebuild says what is wrong with them
			continue
		}
		if err = c.others(err); err != nil {
			return fmt.Errorf("load series: %w", err)
		}
		for _, rec := range results {
			var res resultRecord
			if json.Unmarshal(rec.Value, &res) != nil {
				continue
			}
			if x, err := eventOf(&res); err != nil {
				c.log.Error("what series have of a result cannot be read", "request", rec.Key, "error", err)
			} else if x != nil {
				c.record(r, rec.Rank, x)
			}
		}
	}
	return c.loadEntropies(ctx)
}
