package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// turn is the place of an operation that a limit has refused: its client repeats it, and until then nothing of the run that has a later number is taken,
// nor is the number given up. It is in the journal before the refusal is answered, so that a restart keeps it too, and goes from there with what decides
// about the number: its operation, or that it is skipped.
type turn struct {
	seq     int64
	until   time.Time
	why     *Error
	durable bool
}

// turnRecord is the Value of a turn. It has no end: a client that was told to repeat can do so only when the server is there again, and has its time from
// then on.
type turnRecord struct {
	Message string        `json:"message"`
	After   time.Duration `json:"after"`
}

// patienceForTurn is how much later than a refusal says its client may repeat the operation: the Tinker SDK pauses for up to 30 s by itself.
const patienceForTurn = 35 * time.Second

// holdTurn keeps the place of an operation that was refused, and tells whether it has yet to become durable. mu is held.
func (c *Core) holdTurn(r *run, seq int64, why error) (news bool) {
	refused, ok := why.(*Error) //nolint:errorlint // it comes from overLimit
	if !ok || refused.After == 0 {
		return false
	}
	held := &r.turn
	if held.seq != 0 && seq > held.seq && c.cfg.now().Before(held.until) {
		return false
	}
	durable := held.durable && held.seq == seq
	*held = turn{seq, c.cfg.now().Add(refused.After + patienceForTurn), refused, durable}
	return !durable
}

// journalTurn makes the place of an operation that was refused durable.
func (c *Core) journalTurn(ctx context.Context, r *run, seq int64, why error) error {
	value := mustJSON(turnRecord{Message: why.Error(), After: AfterOf(why)})
	b := store.Batch{Put: []store.Record{{Collection: inTurns, Key: r.ID, Rank: seq, Value: value}}}
	if err := c.commit(context.WithoutCancel(ctx), b); err != nil {
		return fmt.Errorf("keep the place of a refused operation: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.turn.seq == seq {
		r.turn.durable = true
	}
	return nil
}

// behindTurn refuses an operation that comes behind one for which a place is kept. mu is held.
func (c *Core) behindTurn(r *run, seq int64) error {
	t := r.turn
	if t.seq == 0 || seq <= t.seq || !c.cfg.now().Before(t.until) {
		return nil
	}
	return &Error{Kind: KindBusy, After: t.why.After, Message: fmt.Sprintf("operation %d of this model comes first, and was refused: %s", t.seq, t.why.Message)}
}

// tookTurn ends a place: its operation is there, or will not come. It adds that to the batch that says so. mu is held.
func (r *run) tookTurn(seq int64, b *store.Batch) {
	if r.turn.seq != seq {
		return
	}
	r.turn = turn{}
	b.Delete = append(b.Delete, store.RecordKey{Collection: inTurns, Key: r.ID})
}

// readTurn reads the place that is kept in a run; nil if there is none, or it is damaged.
func (c *Core) readTurn(ctx context.Context, runID string) (*turn, error) {
	rec, err := c.cfg.Store.Get(ctx, inTurns, runID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	var told turnRecord
	if err == nil && json.Unmarshal(rec.Value, &told) != nil {
		err = store.ErrCorrupt
	}
	if errors.Is(err, store.ErrCorrupt) { // its number is waited for like any other
		c.log.Error("the place of a refused operation cannot be read", "run", runID, "error", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	return &turn{seq: rec.Rank, why: &Error{Kind: KindBusy, Message: told.Message, After: told.After}, durable: true}, nil
}

// restoreTurn keeps a place on after a restart, if nothing was decided about its number. mu is held.
func (c *Core) restoreTurn(r *run, t *turn) {
	if t == nil || r.queue.sequence.seen(t.seq) {
		return
	}
	t.until = c.cfg.now().Add(t.why.After + patienceForTurn)
	r.turn = *t
}
