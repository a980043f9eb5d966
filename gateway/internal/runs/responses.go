package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Answers that clients may ask for again, or go on from. What is in them is their surface's. They belong to an owner. They go when they are old, when the owner has too many
// bytes of them, the oldest first, or when the owner deletes them. How many bytes there are is counted in the same batches, so that the count is right after a crash. What takes
// away holds removing, so that nothing is taken off the count twice.

// responseRecord is the Value of a stored response; its payload is the content.
type responseRecord struct {
	Size int64 `json:"size"` // of the content
}

// responseBytes is what a stored response takes beside its content.
const responseBytes = 512

// trimPage is how many responses are looked at at a time where an owner has too many.
const trimPage = 100

// KeepsResponses tells whether responses are stored at all.
func (c *Core) KeepsResponses() bool { return c.cfg.ResponsesKept > 0 }

// TakesResponses says, with KindUnavailable, why no response can be stored for now; nil if one can.
func (c *Core) TakesResponses() error { return notNow(c.cfg.Store.Err()) }

func responseCount(owner string, bytes int64) store.Record {
	return store.Record{Collection: inResponseBytes, Key: "of " + owner, Count: bytes}
}

// KeepResponse stores a response under an id that no other one has. Older ones of the owner go if there are too many bytes of them.
func (c *Core) KeepResponse(ctx context.Context, owner, id string, content []byte) error {
	size := int64(len(content))
	err := c.commit(ctx, store.Batch{
		Put: []store.Record{{Collection: inResponses, Key: id, Parent: owner, Rank: c.cfg.now().UnixNano(), Value: mustJSON(responseRecord{size}), Payload: content}},
		Add: []store.Record{responseCount(owner, size+responseBytes)},
	})
	if err != nil {
		return err
	}
	c.logged("old responses could not be deleted", c.trimResponses(ctx, owner))
	return nil
}

// Response gives the content of a stored response. claim is asked before so many bytes are read. KindNotFound for one that is not there, is another owner's, or is too old.
func (c *Core) Response(ctx context.Context, owner, id string, claim func(bytes int64) error) ([]byte, error) {
	rec, size, err := c.response(ctx, owner, id)
	if err != nil {
		return nil, err
	}
	if err := claim(size); err != nil {
		return nil, err
	}
	content, err := c.cfg.Store.Payload(ctx, rec)
	if err != nil {
		return nil, fmt.Errorf("read response %s: %w", id, err)
	}
	return content, nil
}

// response reads the record of a response.
func (c *Core) response(ctx context.Context, owner, id string) (store.Record, int64, error) {
	unknown := notFoundf("response %s: there is none, or it is not kept any more", quote(id))
	rec, err := c.cfg.Store.Get(ctx, inResponses, id)
	if errors.Is(err, store.ErrNotFound) {
		return rec, 0, unknown
	}
	if err != nil {
		return rec, 0, fmt.Errorf("read response %s: %w", id, err)
	}
	if rec.Parent != owner || rec.Rank <= c.responsesFrom() {
		return rec, 0, unknown
	}
	of, err := readResponse(rec)
	return rec, of.Size, err
}

func readResponse(rec store.Record) (of responseRecord, err error) {
	if err := json.Unmarshal(rec.Value, &of); err != nil {
		return of, fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
	}
	return of, nil
}

// responsesFrom is the rank up to which responses are too old.
func (c *Core) responsesFrom() int64 { return c.cfg.now().Add(-c.cfg.ResponsesKept).UnixNano() }

// DeleteResponse deletes a stored response, with KindNotFound as in Response.
func (c *Core) DeleteResponse(ctx context.Context, owner, id string) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	rec, _, err := c.response(ctx, owner, id)
	if err != nil {
		return err
	}
	return c.removeResponses(ctx, []store.Record{rec})
}

// trimResponses deletes the oldest responses of an owner who has too many bytes of them.
func (c *Core) trimResponses(ctx context.Context, owner string) error {
	for {
		rec, err := c.cfg.Store.Get(ctx, inResponseBytes, responseCount(owner, 0).Key)
		if err != nil || rec.Count <= c.cfg.MaxResponseBytes {
			return err
		}
		more, err := c.trimOnce(ctx, owner)
		if err != nil || !more {
			return err
		}
	}
}

// trimOnce deletes some of the oldest responses of an owner, as far as there are too many bytes.
func (c *Core) trimOnce(ctx context.Context, owner string) (more bool, err error) {
	c.removing.Lock()
	defer c.removing.Unlock()
	count, err := c.cfg.Store.Get(ctx, inResponseBytes, responseCount(owner, 0).Key)
	if err != nil {
		return false, err
	}
	page, _, err := c.cfg.Store.Page(ctx, inResponses, owner, store.PageQuery{Limit: trimPage})
	if err != nil {
		return false, err
	}
	left := count.Count
	for i, rec := range page {
		if left <= c.cfg.MaxResponseBytes {
			page = page[:i]
			break
		}
		of, err := readResponse(rec)
		if err != nil {
			return false, err
		}
		left -= of.Size + responseBytes
	}
	return len(page) > 0, c.removeResponses(ctx, page)
}

// thinResponses deletes those that are too old.
func (c *Core) thinResponses(ctx context.Context) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	return c.eachOld(ctx, inResponses, c.responsesFrom()+1, c.removeResponses)
}

// removeResponses deletes responses that are there. removing is held.
func (c *Core) removeResponses(ctx context.Context, page []store.Record) error {
	var b store.Batch
	freed := map[string]int64{}
	for _, rec := range page {
		of, err := readResponse(rec)
		if err != nil {
			return err
		}
		b.Delete = append(b.Delete, store.RecordKey{Collection: rec.Collection, Key: rec.Key})
		freed[rec.Parent] += of.Size + responseBytes
	}
	for _, owner := range sortedKeys(freed) {
		b.Add = append(b.Add, responseCount(owner, -freed[owner]))
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
