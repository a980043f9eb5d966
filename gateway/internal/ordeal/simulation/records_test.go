package simulation

import (
	"context"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// records is a server's store, where every commit waits before it comes there and before the core knows of it.
type records struct {
	store.Store
	of *server
}

// described names a batch by what it changes, without what is random in it.
func described(b store.Batch) string {
	var parts []string
	for _, k := range b.DeleteUnder {
		parts = append(parts, "-"+k.Collection+"/"+k.Parent+"/*")
	}
	for _, k := range b.Delete {
		parts = append(parts, "-"+k.Collection+"/"+stable(k.Key))
	}
	for _, r := range b.Put {
		if r.Collection == "audit" {
			parts = append(parts, "audit")
			continue
		}
		parts = append(parts, r.Collection+"/"+stable(r.Key))
	}
	for _, s := range b.Release {
		parts = append(parts, fmt.Sprint("released ", s.Parent, s.Range))
	}
	if len(b.Add) > 0 {
		parts = append(parts, "usage")
	}
	return strings.Join(parts, " ")
}

// stable cuts off what makes a folder's name unique.
func stable(key string) string {
	head, _, _ := strings.Cut(key, "~")
	return head
}

func (r *records) Commit(ctx context.Context, b store.Batch) error {
	key := described(b)
	w := r.of.w
	if w.park(parked{place: beforeWrite, key: key, of: r.of}) == gone {
		return store.ErrClosed
	}
	err := r.commit(ctx, key, b)
	if w.chance(w.plan.parked, "park after", key, r.of.number) && w.park(parked{place: afterWrite, key: key, of: r.of}) == gone || r.of.isDead() {
		return store.ErrClosed
	}
	return err
}
