package runs

import (
	"context"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Answers that clients may ask for again, or go on from. What is in them is their surface's.

func (c *Core) responses() shelf {
	return shelf{what: "response", records: inResponses, bytes: inResponseBytes, kept: c.cfg.ResponsesKept, most: c.cfg.MaxResponseBytes}
}

// KeepsResponses tells whether responses are stored at all.
func (c *Core) KeepsResponses() bool { return c.cfg.ResponsesKept > 0 }

// TakesResponses says, with KindUnavailable, why no response can be stored for now; nil if one can.
func (c *Core) TakesResponses() error { return notNow(c.cfg.Store.Err()) }

// KeepResponse stores a response under an id that no other one has. Older ones of the owner go if there are too many bytes of them.
func (c *Core) KeepResponse(ctx context.Context, owner, id string, content []byte) error {
	return c.shelve(ctx, c.responses(), owner, id, content)
}

// Response gives the content of a stored response. claim is asked before so many bytes are read. KindNotFound for one that is not there, is another owner's, or is too old.
func (c *Core) Response(ctx context.Context, owner, id string, claim func(bytes int64) error) ([]byte, error) {
	return c.fromShelf(ctx, c.responses(), owner, id, claim)
}

// DeleteResponse deletes a stored response, with KindNotFound as in Response.
func (c *Core) DeleteResponse(ctx context.Context, owner, id string) error {
	c.removing.Lock()
	defer c.removing.Unlock()
	rec, _, err := c.onShelf(ctx, c.responses(), owner, id)
	if err != nil {
		return err
	}
	return c.unshelve(ctx, c.responses(), []store.Record{rec})
}
