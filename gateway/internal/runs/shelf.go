package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// shelf is where things are stored that belong to an owner and that nothing else needs. They go when they are old, or when the owner has too many bytes of them, the oldest first. How
// many bytes there are is counted in the same batches, so that the count is right after a crash. What takes away holds removing, so that nothing is taken off the count twice.
type shelf struct {
	what    string // one of them, for messages
	records string // their collection. Parent: the owner; Rank: when one was stored, in Unix nanoseconds
	bytes   string // the collection of the counts
	kept    time.Duration
	most    int64 // bytes of one owner
}

// shelved is the Value of a record.
type shelved struct {
	Size int64 `json:"size"` // of the content
}

// shelvedBytes is what one takes beside its content.
const shelvedBytes = 512

// trimPage is how many are looked at at a time where an owner has too many.
const trimPage = 100

func (s shelf) count(owner string, bytes int64) store.Record {
	return store.Record{Collection: s.bytes, Key: "of " + owner, Count: bytes}
}

// from is the rank up to which things are too old.
func (c *Core) from(s shelf) int64 { return c.cfg.now().Add(-s.kept).UnixNano() }

// shelve stores something under an id that nothing else has. Older ones of the owner go if there are too many bytes of them.
func (c *Core) shelve(ctx context.Context, s shelf, owner, id string, content []byte) error {
	size := int64(len(content))
	err := c.commit(ctx, store.Batch{
		Put: []store.Record{{Collection: s.records, Key: id, Parent: owner, Rank: c.cfg.now().UnixNano(), Value: mustJSON(shelved{size}), Payload: content}},
		Add: []store.Record{s.count(owner, size+shelvedBytes)},
	})
	if err != nil {
		return err
	}
	c.logged("what an owner has too much of could not be deleted", c.trim(ctx, s, owner), "what", s.what)
	return nil
}

// onShelf reads the record of something. KindNotFound if it is not there, is another owner's, or is too old.
func (c *Core) onShelf(ctx context.Context, s shelf, owner, id string) (store.Record, int64, error) {
	unknown := notFoundf("%s %s: there is none, or it is not kept any more", s.what, quote(id))
	rec, err := c.cfg.Store.Get(ctx, s.records, id)
	if errors.Is(err, store.ErrNotFound) {
		return rec, 0, unknown
	}
	if err != nil {
		return rec, 0, fmt.Errorf("read %s %s: %w", s.what, id, err)
	}
	if rec.Parent != owner || rec.Rank <= c.from(s) {
		return rec, 0, unknown
	}
	of, err := readShelved(rec)
	return rec, of.Size, err
}

// fromShelf gives the content of something, with KindNotFound as onShelf. claim is asked before so many bytes are read.
func (c *Core) fromShelf(ctx context.Context, s shelf, owner, id string, claim func(bytes int64) error) ([]byte, error) {
	rec, size, err := c.onShelf(ctx, s, owner, id)
	if err != nil {
		return nil, err
	}
	if err := claim(size); err != nil {
		return nil, err
	}
	content, err := c.cfg.Store.Payload(ctx, rec)
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", s.what, id, err)
	}
	return content, nil
}

func readShelved(rec store.Record) (of shelved, err error) {
	if err := json.Unmarshal(rec.Value, &of); err != nil {
		return of, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
	}
	return of, nil
}

// trim deletes the oldest of an owner who has too many bytes.
func (c *Core) trim(ctx context.Context, s shelf, owner string) error {
	for {
		rec, err := c.cfg.Store.Get(ctx, s.bytes, s.count(owner, 0).Key)
		if err != nil || rec.Count <= s.most {
			return err
		}
		more, err := c.trimOnce(ctx, s, owner)
		if err != nil || !more {
			return err
		}
	}
}

// trimOnce deletes some of the oldest of an owner, as far as there are too many bytes.
func (c *Core) trimOnce(ctx context.Context, s shelf, owner string) (more bool, err error) {
	c.removing.Lock()
	defer c.removing.Unlock()
	count, err := c.cfg.Store.Get(ctx, s.bytes, s.count(owner, 0).Key)
	if err != nil {
		return false, err
	}
	page, _, err := c.cfg.Store.Page(ctx, s.records, owner, store.PageQuery{Limit: trimPage})
	if err != nil {
		return false, err
	}
	left := count.Count
	for i, rec := range page {
		if left <= s.most {
			page = page[:i]
			break
		}
		of, err := readShelved(rec)
		if err != nil {
			return false, err
		}
		left -= of.Size + shelvedBytes
	}
	return len(page) > 0, c.unshelve(ctx, s, page)
}

// thinShelf deletes what is too old.
func (c *Core) thinShelf(ctx context.Context, s shelf) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	return c.eachOld(ctx, s.records, c.from(s)+1, func(ctx context.Context, page []store.Record) error { return c.unshelve(ctx, s, page) })
}

// unshelve deletes what is there. removing is held.
func (c *Core) unshelve(ctx context.Context, s shelf, page []store.Record) error {
	var b store.Batch
	freed := map[string]int64{}
	for _, rec := range page {
		of, err := readShelved(rec)
		if err != nil {
			return err
		}
		b.Delete = append(b.Delete, store.RecordKey{Collection: rec.Collection, Key: rec.Key})
		freed[rec.Parent] += of.Size + shelvedBytes
	}
	for _, owner := range sortedKeys(freed) {
		b.Add = append(b.Add, s.count(owner, -freed[owner]))
	}
	if len(b.Delete) == 0 {
		return nil
	}
	if err := c.commit(ctx, b); err != nil {
		return err
	}
	c.mu.Lock()
	c.released = true
	c.mu.Unlock()
	return nil
}
