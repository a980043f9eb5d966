package simulation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// fault is a defect that is planted to see whether the simulation finds it. Each stands for a mistake that the core, the store or a backend could have.
type fault int

const (
	noFault            fault = iota
	faultLostCommit          // a commit is answered and never made
	faultEarlyAccept         // an operation is acknowledged before it is durable
	faultEarlyResult         // a future is completed before its result is durable
	faultNoSkip              // that a number was skipped is not journalled
	faultNoSync              // files are not synced
	faultRunTwice            // a pass runs twice, as after a repeated call
	faultEarlyDeletion       // files of a checkpoint are deleted before its record
	faultReplayedSave        // recovery runs a save that is finished
	faultPosition            // a position is given to two operations
	faultOlderRecord         // an older record replaces a newer one
	faults
)

var faultNames = [faults]string{"none", "lost commit", "early acceptance", "early result", "skip not journalled", "no sync", "pass run twice", "early deletion", "finished save replayed", "position given twice", "older record over newer"}

func (f fault) String() string { return faultNames[f] }

// planted tells whether a fault shows here.
func (w *world) planted(f fault, what ...any) bool {
	often := map[fault]float64{faultLostCommit: 0.02, faultRunTwice: 0.03, faultPosition: 0.02}
	share, some := often[f]
	return w.fault == f && (!some || w.chance(share, f, what))
}

// commit is what a store does with a batch, faults apart.
func (r *records) commit(ctx context.Context, key string, b store.Batch) error {
	w := r.of.w
	has := func(collection string) bool {
		for _, rec := range b.Put {
			if rec.Collection == collection {
				return true
			}
		}
		return false
	}
	switch {
	case (has(store.Operations) || has(store.Results) || has("sessions")) && w.planted(faultLostCommit, key):
		return nil
	case has(store.Operations) && w.planted(faultEarlyAccept), has(store.Results) && w.planted(faultEarlyResult):
		r.of.background.Go(func() {
			if w.park(parked{place: beforeWrite, key: "late " + key, of: r.of}) != gone {
				_ = r.Store.Commit(context.WithoutCancel(ctx), b)
			}
		})
		return nil
	case has("skips") && w.planted(faultNoSkip):
		return nil
	case w.planted(faultEarlyDeletion):
		for _, k := range b.Delete {
			if k.Collection != "checkpoints" {
				continue
			}
			if dir := r.folder(ctx, k.Key); dir != "" {
				mustBe(os.RemoveAll(filepath.Join(r.of.dir, dir)))
				if w.park(parked{place: beforeWrite, key: "deleted already " + key, of: r.of}) == gone {
					return store.ErrClosed
				}
			}
		}
	case w.planted(faultOlderRecord):
		var older []store.Record
		for _, rec := range b.Put {
			switch rec.Collection {
			case "sessions", "runs", "samplers", "checkpoints":
				if old, err := r.Get(ctx, rec.Collection, rec.Key); err == nil {
					older = append(older, old)
				}
			}
		}
		if err := r.Store.Commit(ctx, b); err != nil || len(older) == 0 {
			return err
		}
		return r.Store.Commit(ctx, store.Batch{Put: older})
	}
	return r.Store.Commit(ctx, b)
}

// folder gives that of a checkpoint's files.
func (r *records) folder(ctx context.Context, path string) string {
	rec, err := r.Get(ctx, "checkpoints", path)
	if err != nil {
		return ""
	}
	return checkpointOf(rec).Dir
}

// Missing is what a restart takes for unfinished.
func (r *records) Missing(ctx context.Context, collection, other string) ([]store.Record, error) {
	list, err := r.Store.Missing(ctx, collection, other)
	if err != nil || collection != store.Operations || !r.of.w.planted(faultReplayedSave) {
		return list, err
	}
	err = r.All(ctx, store.Results, func(res store.Record) error {
		if strings.Contains(string(res.Value), `"kind":"save_weights"`) {
			if rec, err := r.Get(ctx, store.Operations, res.Key); err == nil {
				list = append(list, rec)
			}
		}
		return nil
	})
	return list, err
}

// misplace changes the position of an operation as a fault would; again runs a pass once more.
func (p *process) misplace(ctx context.Context, adapter string, position *int64, again func(position int64)) {
	at := *position
	if at == 0 {
		return
	}
	if p.w.fault == faultPosition && at > 1 && p.w.planted(faultPosition, p.number, adapter, at) {
		*position--
	}
	if p.w.fault != faultRunTwice {
		return
	}
	for q := int64(1); q < at; q++ {
		if p.w.planted(faultRunTwice, p.number, adapter, q) {
			*position++
		}
	}
	if !p.w.planted(faultRunTwice, p.number, adapter, at) {
		return
	}
	if again != nil {
		again(*position)
	} else { // something has to be there
		_, _ = p.backend.Pin(ctx, plugins.PinRequest{Adapter: adapter, Position: *position, Name: fmt.Sprint("filled ", at)})
	}
	*position++
}
