package bucket

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// named are the collections whose records name a folder in a field "dir".
var named = map[string]bool{"checkpoints": true, "recovery_points": true, "samplers": true}

// records are a store whose records name nothing that the bucket does not have.
type records struct {
	store.Store
	bucket *Bucket
}

// Store gives a store that brings to the bucket what a batch names before it commits the batch. While the bucket cannot be reached such batches are refused with ErrUnavailable, and new work as with a full disk.
func (b *Bucket) Store(s store.Store) store.Store { return &records{s, b} }

// Commit implements store.Store.
func (r *records) Commit(ctx context.Context, batch store.Batch) error {
	for i := range batch.Put {
		put := &batch.Put[i]
		if !named[put.Collection] {
			continue
		}
		var names struct {
			Dir string `json:"dir"`
		}
		if err := json.Unmarshal(put.Value, &names); err != nil {
			return err
		}
		if names.Dir == "" {
			continue
		}
		if err := r.bucket.Put(ctx, names.Dir); err != nil {
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
			return r.bucket.failed(err)
		}
	}
	return r.Store.Commit(ctx, batch)
}

// Err implements store.Store.
func (r *records) Err() error {
	if t := r.bucket.trouble.Load(); t != nil {
		return t
	}
	return r.Store.Err()
}

// Room implements store.Store.
func (r *records) Room(bytes int64) error {
	if t := r.bucket.trouble.Load(); t != nil {
		return t
	}
	return r.Store.Room(bytes)
}
