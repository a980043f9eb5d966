package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Completion is one finished future of a sampling session.
type Completion struct {
	RequestID string
	Failed    bool
	Size      int64 // bytes of the stored result, about what it takes on the wire; 0 when Failed
}

// CompletionQuery asks for the news of one client of a sampling session.
type CompletionQuery struct {
	Owner     string
	SamplerID string
	Clone     int64         // seq_id div 1e9 of that client
	Cursor    int64         // of the last answer; 0 at first. Everything up to it is acknowledged
	Hold      time.Duration // how long to wait for news
}

// completionQueue is what has finished for one client of a sampling session since it first asked. Cursors are positions in it, counted from a base that no earlier process
// reached, so that an old cursor is recognised: its owner gets everything again, since what it has seen is not known any more.
type completionQueue struct {
	base  int64
	first int64 // cursor of the entry before list[0]
	list  []Completion
	known map[string]bool // while the stored results are read: what has come in meanwhile
	news  chan struct{}   // closed and replaced at every addition
}

func (q *completionQueue) add(x Completion) {
	q.list = append(q.list, x)
	if q.known != nil {
		q.known[x.RequestID] = true
	}
	close(q.news)
	q.news = make(chan struct{})
}

// after gives what is newer than the cursor and the cursor of its end, and forgets what the cursor acknowledges.
func (q *completionQueue) after(cursor int64) ([]Completion, int64) {
	end := q.first + int64(len(q.list))
	if cursor > end {
		cursor = end
	}
	if cursor > q.first {
		q.list = q.list[cursor-q.first:]
		q.first = cursor
	}
	return append([]Completion{}, q.list...), end
}

// announce tells a waiting client of a sampling session that a future is complete. mu is held.
func (c *Core) announce(f *future, size int64) {
	if f.kind != OpSample {
		return
	}
	id, seq := parentOf(f.id)
	if s := c.samplers[id]; s != nil {
		if q := s.completions[seq/cloneSize]; q != nil {
			q.add(Completion{RequestID: f.id, Failed: f.outcome.Failure != nil, Size: size})
		}
	}
}

// Completions returns what has finished after the cursor, at once if there is anything, and the new cursor. Without news until the hold has passed: an empty
// list and the old cursor. A cursor of an earlier process gets everything again.
func (c *Core) Completions(ctx context.Context, q CompletionQuery) ([]Completion, int64, error) {
	queue, err := c.completionQueue(ctx, q)
	if err != nil {
		return nil, 0, err
	}
	var timeout <-chan time.Time
	if q.Hold > 0 {
		timer := time.NewTimer(q.Hold)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		c.mu.Lock()
		cursor := q.Cursor
		if cursor < queue.base {
			cursor = queue.base
		}
		list, end := queue.after(cursor)
		news := queue.news
		c.mu.Unlock()
		if len(list) > 0 {
			return list, end, nil
		}
		if q.Hold <= 0 {
			return nil, q.Cursor, nil
		}
		select {
		case <-news:
		case <-timeout:
			return nil, q.Cursor, nil
		case <-c.closed:
			return nil, 0, errClosing
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// completionQueue finds the queue of a client, filling a new one with what is stored.
func (c *Core) completionQueue(ctx context.Context, q CompletionQuery) (*completionQueue, error) {
	if q.Clone < 0 || q.Clone > math.MaxInt64/cloneSize-1 {
		return nil, invalidf("cloned_sampler_id: is %d, must be in 0 … %d", q.Clone, math.MaxInt64/cloneSize-1)
	}
	if err := c.recall(ctx, q.SamplerID); err != nil {
		return nil, err
	}
	c.mu.Lock()
	s, err := c.ownSampler(q.Owner, q.SamplerID)
	if err != nil {
		c.mu.Unlock()
		return nil, err
	}
	s.session.seen = c.cfg.now() // as in Wait
	if queue := s.completions[q.Clone]; queue != nil && queue.known == nil {
		c.mu.Unlock()
		return queue, nil
	}
	if len(s.completions) >= 10_000 {
		c.mu.Unlock()
		return nil, refusef(KindBusy, "sampling session %s: has too many clients", s.ID)
	}
	if s.completions == nil {
		s.completions = map[int64]*completionQueue{}
	}
	queue := s.completions[q.Clone]
	if queue == nil {
		base := c.cfg.now().UnixMilli() << 12 // no process completes 4,096 samples in every millisecond that it lives
		queue = &completionQueue{base: base, first: base, known: map[string]bool{}, news: make(chan struct{})}
		s.completions[q.Clone] = queue
	}
	c.mu.Unlock()

	stored, err := c.cfg.Store.List(ctx, inResults, q.SamplerID, store.Range{From: q.Clone * cloneSize, To: (q.Clone + 1) * cloneSize}, 0)
	if err != nil {
		return nil, fmt.Errorf("list results: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if queue.known == nil {
		return queue, nil // another call was faster
	}
	for _, rec := range stored {
		if queue.known[rec.Key] {
			continue
		}
		var r resultRecord
		if err := json.Unmarshal(rec.Value, &r); err != nil {
			return nil, fmt.Errorf("read result %s: %w", rec.Key, err)
		}
		queue.add(Completion{RequestID: rec.Key, Failed: r.Failure != nil, Size: r.Size})
	}
	queue.known = nil
	return queue, nil
}
