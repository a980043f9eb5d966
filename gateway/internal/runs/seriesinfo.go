package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Viewer is who looks at runs.
type Viewer struct {
	Owner    string
	Everyone bool // an administrator, who sees everybody's
}

// SeriesInfo is one series of a run, as far as a list has it.
type SeriesInfo struct {
	Name    string
	Client  bool // a client's program made it, not the server
	Step    int64
	Time    time.Time // zero = not known
	Value   float64   // the newest; it may be NaN or infinite
	Thinned int64     // one step in so many is kept; 1 = all
}

// Curve is the points of one series.
type Curve struct {
	history.Series
	Client  bool
	Thinned int64 // see SeriesInfo
	Drawn   bool  // points were left out of the answer
}

// RunOverview is a run of a list, live or not.
type RunOverview struct {
	RunInfo
	Naming
	State  string       // creating, live, failed, ended, corrupted or stored
	Reason string       // why it is not live
	Series []SeriesInfo // in the order in which they came

	Queued       int         // operations accepted and not finished
	UnreadInputs []string    // see RunStatus
	Rebuilding   *Rebuilding // its way into a process; nil when it is there
}

// OverviewQuery selects runs.
type OverviewQuery struct {
	Everyone bool // of everybody; only for viewers who may see them
	Page     Page // default 100
}

// Overviews lists runs, live and ended, newest first, with the number there are in all.
func (c *Core) Overviews(ctx context.Context, v Viewer, q OverviewQuery) ([]RunOverview, int, error) {
	var found []store.Record
	var total int
	var err error
	if q.Everyone && v.Everyone {
		found, total, err = c.pageOfAll(ctx, q.Page)
	} else {
		found, total, err = c.page(ctx, inOwned, v.Owner, q.Page, 100)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("list runs: %w", err)
	}
	list, bytes := make([]RunOverview, 0, len(found)), int64(0)
	sessions := map[string]*session{}
	for _, rec := range found {
		o, err := c.overview(ctx, rec.Key, sessions)
		if errors.Is(err, store.ErrNotFound) { // it went with its session just now
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("list runs: %w", err)
		}
		if len(o.UserMetadata) > maxInline {
			o.UserMetadata = nil
		}
		if bytes += int64(len(o.UserMetadata) + len(o.SessionMetadata) + 100*len(o.Series)); bytes > maxListBytes {
			return nil, 0, tooLarge("runs", len(found), bytes)
		}
		list = append(list, o)
	}
	return list, total, nil
}

// pageOfAll is page over the runs of all owners.
func (c *Core) pageOfAll(ctx context.Context, p Page) ([]store.Record, int, error) {
	_, limit, err := p.cut(1<<31-1, 100)
	if err != nil {
		return nil, 0, err
	}
	total := 0
	var all []store.Record
	for after, first := "", true; ; first = false {
		const some = 500
		owners, err := c.cfg.Store.Parents(ctx, inOwned, after, some)
		if err != nil {
			return nil, 0, err
		}
		last := len(owners) < some
		if !last {
			after = owners[len(owners)-1]
		}
		if first {
			owners = append([]string{""}, owners...)
		}
		for _, owner := range owners {
			n, err := c.cfg.Store.Count(ctx, inOwned, owner, store.Range{})
			if err != nil {
				return nil, 0, err
			}
			if total += n; n == 0 {
				continue
			}
			page, _, err := c.cfg.Store.Page(ctx, inOwned, owner, store.PageQuery{Newest: true, Limit: max(limit, 1), Keys: true})
			if err != nil {
				return nil, 0, err
			}
			all = append(all, page...)
			slices.SortFunc(all, func(a, b store.Record) int { return cmp.Or(cmp.Compare(b.Rank, a.Rank), cmp.Compare(b.Key, a.Key)) })
			all = all[:min(limit, len(all))]
		}
		if last {
			return all[min(p.Offset, len(all)):], total, nil
		}
	}
}

// Overview describes one run.
func (c *Core) Overview(ctx context.Context, v Viewer, runID string) (RunOverview, error) {
	if err := c.recall(ctx, runID); err != nil {
		return RunOverview{}, err
	}
	if _, err := c.visible(v, runID); err != nil {
		return RunOverview{}, err
	}
	o, err := c.overview(ctx, runID, map[string]*session{})
	if errors.Is(err, store.ErrNotFound) {
		return RunOverview{}, notFoundf("no training run %s", quote(runID))
	}
	if err != nil {
		return RunOverview{}, err
	}
	_, err = c.wholeRun(ctx, &o.RunInfo)
	return o, err
}

// visible finds a run in memory that the viewer may see.
func (c *Core) visible(v Viewer, runID string) (*run, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[runID]
	if r == nil || r.Owner != v.Owner && !v.Everyone {
		return nil, notFoundf("no training run %s", quote(runID))
	}
	return r, nil
}

// overview describes a run, also one that is not in memory. sessions are those that were read for others of the list.
func (c *Core) overview(ctx context.Context, id string, sessions map[string]*session) (RunOverview, error) {
	r, err := c.runOf(ctx, id)
	if err != nil {
		return RunOverview{}, err
	}
	s, err := c.sessionBehind(ctx, r, sessions)
	if err != nil {
		return RunOverview{}, err
	}
	c.mu.Lock()
	o := RunOverview{RunInfo: c.describeRun(r), Naming: namingOf(s, r.UserMetadata), State: string(r.State), Reason: r.Reason, Queued: r.queue.unfinished, UnreadInputs: r.Unread, Rebuilding: r.rebuilding()}
	pending := c.pendingRows(r)
	c.mu.Unlock()
	heads, err := c.heads(ctx, id)
	if err != nil {
		return RunOverview{}, err
	}
	for t, h := range heads {
		t := seriesTable(t)
		if t != clients {
			h.Append(nil, pending.behind(t, h.Taken), t.merge())
		}
		for _, l := range h.Newest {
			o.Series = append(o.Series, SeriesInfo{Name: l.Name, Client: t == clients, Step: l.Step, Time: timeOf(l.Time), Value: l.Number, Thinned: h.Thinned()})
		}
	}
	return o, nil
}

func timeOf(milliseconds int64) time.Time {
	if milliseconds == 0 {
		return time.Time{}
	}
	return time.UnixMilli(milliseconds).UTC()
}

// sessionBehind is the session of a run, in memory or read; nil if there is none.
func (c *Core) sessionBehind(ctx context.Context, r *run, read map[string]*session) (*session, error) {
	if r.session != nil || r.SessionID == "" {
		return r.session, nil
	}
	if s, ok := read[r.SessionID]; ok {
		return s, nil
	}
	rec, err := c.cfg.Store.Get(ctx, inSessions, r.SessionID)
	var s *session
	if err == nil {
		s, err = decodeSession(rec)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	read[r.SessionID] = s
	return s, nil
}

// pendingRows are the rows of a run that may not be in the store.
type pendingRows struct {
	rows [2][]history.Row
	base [2]int64
}

// pendingRows copies what is not in the store. mu is held.
func (c *Core) pendingRows(r *run) pendingRows {
	c.fold(r)
	p := pendingRows{base: r.series.base}
	for t, rows := range r.series.rows {
		p.rows[t] = slices.Clone(rows)
		if n := len(rows); n > 0 { // others may yet be merged into the last one
			p.rows[t][n-1].Values = slices.Clone(rows[n-1].Values)
		}
	}
	return p
}

// behind are those that a table does not have which was read after them, and has taken so many rows.
func (p pendingRows) behind(t seriesTable, taken int64) []history.Row {
	rows := p.rows[t]
	return rows[min(max(taken-p.base[t], 0), int64(len(rows))):]
}

// CurveQuery selects points.
type CurveQuery struct {
	Names  []string // nil = all that there are
	From   int64    // steps from here on
	Points int      // of each series at most; 0 = 1,000
}

// maxCurves bounds the series, and maxPoints what they have together, of one answer.
const (
	maxCurves = 200
	maxPoints = 400_000
)

// Curves reads series of a run. Names that it does not have are left out. A name that both the server and a client use is there twice.
func (c *Core) Curves(ctx context.Context, v Viewer, runID string, q CurveQuery) ([]Curve, error) {
	if q.Points == 0 {
		q.Points = 1000
	}
	if q.Points < 3 || q.Points > history.MaxRows {
		return nil, invalidf("points: is %d, must be in 3 … %d", q.Points, history.MaxRows)
	}
	if len(q.Names) > maxCurves {
		return nil, invalidf("names: has %d names, at most %d are allowed", len(q.Names), maxCurves)
	}
	if err := c.recall(ctx, runID); err != nil {
		return nil, err
	}
	r, err := c.visible(v, runID)
	if err != nil {
		return nil, err
	}
	// Nothing is written between the reading of what is not written, of the heads and of the blocks: a row would come twice.
	writing := c.seriesMu.at(runID)
	writing.Lock()
	defer writing.Unlock()
	c.mu.Lock()
	pending := c.pendingRows(r)
	c.mu.Unlock()
	heads, err := c.heads(ctx, runID)
	if err != nil {
		return nil, err
	}
	var out []Curve
	for t, h := range heads {
		t := seriesTable(t)
		var rows []history.Row
		if t != clients {
			rows = pending.behind(t, h.Taken)
		}
		found, err := c.curves(ctx, runID, t, h, rows, q)
		if err != nil {
			return nil, err
		}
		if out = append(out, found...); !fitAnswer(out) {
			return nil, invalidf("names: the answer would have more than %d series or %d points; name fewer series, or ask for fewer points of each", maxCurves, maxPoints)
		}
	}
	return out, nil
}

// fitAnswer tells whether curves are within the bounds of one answer.
func fitAnswer(list []Curve) bool {
	points := 0
	for i := range list {
		points += len(list[i].Steps)
	}
	return len(list) <= maxCurves && points <= maxPoints
}

// curves reads series of one table. rows are not in it yet.
func (c *Core) curves(ctx context.Context, runID string, t seriesTable, h *history.Head, rows []history.Row, q CurveQuery) ([]Curve, error) {
	seen := *h
	seen.Newest = slices.Clone(h.Newest)
	seen.Append(nil, rows, t.merge())
	var names []string
	for _, l := range seen.Newest {
		if q.Names == nil || slices.Contains(q.Names, l.Name) {
			names = append(names, l.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	collect := history.NewCollect(names, q.From)
	blocks, err := c.blocks(ctx, runID, t, collect.Wanted)
	if err != nil {
		return nil, err
	}
	for _, b := range blocks {
		if n := len(rows); n > 0 && b.Len() > 0 && b.Steps[b.Len()-1] == rows[0].Step { // the last one goes on in memory
			row := b.Pop()
			t.merge()(&row, rows[0])
			rows[0] = row
		}
		collect.Block(b)
	}
	for _, row := range rows {
		collect.Row(row)
	}
	var out []Curve
	for _, s := range collect.Series() {
		drawn := s.Draw(q.Points)
		out = append(out, Curve{Series: drawn, Client: t == clients, Thinned: h.Thinned(), Drawn: len(drawn.Steps) < len(s.Steps)})
	}
	return out, nil
}

// Point is one step of a run as a watcher is told of it.
type Point struct {
	Client bool
	Row    history.Row
}

// maxWatchers bounds who waits for the points of one run at a time.
const maxWatchers = 64

// Watch calls tell with the rows of a run as they come, those of the training table from a step on, until the run has ended, ctx ends, or tell returns an error. Rows of before are told first.
func (c *Core) Watch(ctx context.Context, v Viewer, runID string, from int64, tell func([]Point) error) error {
	if err := c.recall(ctx, runID); err != nil {
		return err
	}
	r, err := c.visible(v, runID)
	if err != nil {
		return err
	}
	c.mu.Lock()
	if r.series.readers >= maxWatchers {
		c.mu.Unlock()
		return refusef(KindBusy, "run %s: %d others wait for its points already", quote(runID), maxWatchers)
	}
	r.series.readers++
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		r.series.readers--
	}()
	known := [tables]lastTold{{from: from}, {from: from}, {from: from}}
	for {
		c.mu.Lock()
		if c.sessions[r.SessionID] != nil {
			c.sessions[r.SessionID].asked = c.cfg.now() // it stays in memory
		}
		c.fold(r)
		ended := !r.usable() && len(r.queue.pending) == 0 && len(r.series.waiting) == 0
		if r.series.news == nil {
			r.series.news = make(chan struct{})
		}
		news := r.series.news
		c.mu.Unlock()
		points, err := c.since(ctx, r, &known)
		if err != nil {
			return err
		}
		if len(points) > 0 {
			if err := tell(points); err != nil {
				return err
			}
		}
		if ended {
			return nil
		}
		if err := c.rest(ctx); err != nil {
			return err
		}
		select {
		case <-news:
		case <-c.closed:
			return errClosing
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(watchAgain):
		}
	}
}

// rest keeps a watcher from being told more often than anybody can see.
func (c *Core) rest(ctx context.Context) error {
	select {
	case <-time.After(100 * time.Millisecond):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watchAgain is how long a watcher waits at most until it looks whether the run has ended.
const watchAgain = 5 * time.Second

// lastTold is what a watcher knows of one table.
type lastTold struct {
	from int64       // steps that were not told
	last history.Row // what was told of the step before those: more may come for it
}

// since gives the rows of all tables that were not told, and those that have changed since.
func (c *Core) since(ctx context.Context, r *run, known *[tables]lastTold) ([]Point, error) {
	c.mu.Lock()
	pending := c.pendingRows(r)
	c.mu.Unlock()
	heads, err := c.heads(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	var points []Point
	for t, h := range heads {
		t, k := seriesTable(t), &known[t]
		rows, err := c.rowsFrom(ctx, r.ID, t, h, k.from-1)
		if err != nil {
			return nil, err
		}
		if t != clients {
			for _, row := range pending.behind(t, h.Taken) {
				if n := len(rows) - 1; n >= 0 && rows[n].Step == row.Step {
					t.merge()(&rows[n], row)
				} else {
					rows = append(rows, row)
				}
			}
		}
		for _, row := range rows {
			if row.Step >= k.from || row.Step == k.last.Step && len(k.last.Values) > 0 && !row.Equal(&k.last) {
				points = append(points, Point{Client: t == clients, Row: row})
				k.from, k.last = row.Step+1, row
			}
		}
	}
	return points, nil
}

// rowsFrom reads the rows of a table from a step on.
func (c *Core) rowsFrom(ctx context.Context, runID string, t seriesTable, h *history.Head, step int64) (rows []history.Row, err error) {
	if h.Rows == 0 || h.LastStep() < step {
		return nil, nil
	}
	for n := h.Blocks - 1; n >= 0; n-- {
		b, err := c.block(ctx, runID, t, n)
		if err != nil {
			return nil, err
		}
		if b == nil {
			continue
		}
		var some []history.Row
		for i := range b.Len() {
			if b.Steps[i] >= step {
				some = append(some, b.Row(i))
			}
		}
		rows = append(some, rows...)
		if len(some) < b.Len() {
			break
		}
	}
	return rows, nil
}
