package runs

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

func unclaimed(int64) error { return nil }

// counted is how many bytes of responses an owner has, by the record that says so.
func (w *world) counted(owner string) int64 {
	w.t.Helper()
	rec, err := w.store.Get(w.t.Context(), inResponseBytes, w.responses().count(owner, 0).Key)
	if errors.Is(err, store.ErrNotFound) {
		return 0
	}
	w.ok(err)
	return rec.Count
}

// keptBytes is the same, by the responses themselves.
func (w *world) keptBytes(owner string) (sum int64) {
	w.t.Helper()
	w.ok(w.store.All(w.t.Context(), inResponses, func(rec store.Record) error {
		of, err := readShelved(rec)
		if rec.Parent == owner {
			sum += of.Size + shelvedBytes
		}
		return err
	}))
	return sum
}

// TestResponsesAreTheOwners: what is stored is there for its owner alone, also after a restart, until it is deleted.
func TestResponsesAreTheOwners(t *testing.T) {
	w := newWorld(t, func(w *world) { w.config.ResponsesKept = time.Hour })
	ctx := t.Context()
	small, large := []byte("small"), bytes.Repeat([]byte("large"), 100_000)
	w.ok(w.KeepResponse(ctx, owner, "resp_small", small))
	w.ok(w.KeepResponse(ctx, owner, "resp_large", large))
	w.ok(w.KeepResponse(ctx, "", "resp_of_nobody", small))
	for _, restarted := range []bool{false, true} {
		if restarted {
			w.restart()
		}
		for id, want := range map[string][]byte{"resp_small": small, "resp_large": large} {
			if got, err := w.Response(ctx, owner, id, unclaimed); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes, %v", id, len(got), err)
			}
			_, err := w.Response(ctx, other, id, unclaimed)
			w.refused(err, KindNotFound, id)
			w.refused(w.DeleteResponse(ctx, other, id), KindNotFound, id)
		}
	}
	var asked int64
	refusal := errors.New("no memory")
	if _, err := w.Response(ctx, owner, "resp_large", func(n int64) error { asked = n; return refusal }); !errors.Is(err, refusal) || asked != int64(len(large)) {
		t.Errorf("asked for %d bytes, %v", asked, err)
	}
	w.ok(w.DeleteResponse(ctx, owner, "resp_large"))
	_, err := w.Response(ctx, owner, "resp_large", unclaimed)
	w.refused(err, KindNotFound, "resp_large")
	w.refused(w.DeleteResponse(ctx, owner, "resp_large"), KindNotFound, "resp_large")
	if got := w.counted(owner); got != int64(len(small))+shelvedBytes || got != w.keptBytes(owner) {
		t.Errorf("%d bytes are counted, %d are there", got, w.keptBytes(owner))
	}
	if _, err := w.Response(ctx, "", "resp_of_nobody", unclaimed); err != nil {
		t.Error(err)
	}
}

// TestResponsesExpire: what is too old is not there, whether it is deleted yet or not; with the setting at 0 all is.
func TestResponsesExpire(t *testing.T) {
	w, clock := clocked(t, func(w *world) { w.config.ResponsesKept = time.Hour })
	ctx := t.Context()
	w.ok(w.KeepResponse(ctx, owner, "resp_old", []byte("a")))
	clock.add(40 * time.Minute)
	w.ok(w.KeepResponse(ctx, owner, "resp_young", []byte("a")))
	w.quiet()
	if n := w.records()[inResponses]; n != 2 {
		t.Errorf("%d responses", n)
	}
	clock.add(20 * time.Minute)
	_, err := w.Response(ctx, owner, "resp_old", unclaimed)
	w.refused(err, KindNotFound, "resp_old")
	w.quiet()
	if n := w.records()[inResponses]; n != 1 || w.counted(owner) != w.keptBytes(owner) {
		t.Errorf("%d responses, %d bytes of %d", n, w.counted(owner), w.keptBytes(owner))
	}
	if _, err := w.Response(ctx, owner, "resp_young", unclaimed); err != nil {
		t.Error(err)
	}
	w.config.ResponsesKept = 0
	w.restart()
	if w.KeepsResponses() {
		t.Error("responses are stored")
	}
	w.quiet()
	if n := w.records()[inResponses]; n != 0 || w.counted(owner) != 0 {
		t.Errorf("%d responses, %d bytes", n, w.counted(owner))
	}
}

// TestResponsesAreBounded: of an owner who has too many bytes the oldest go, and nobody else's.
func TestResponsesAreBounded(t *testing.T) {
	const each, most = 20_000, 10
	w, clock := clocked(t, func(w *world) {
		w.config.ResponsesKept, w.config.MaxResponseBytes = time.Hour, most*(each+shelvedBytes)
	})
	ctx := t.Context()
	w.ok(w.KeepResponse(ctx, other, "resp_other", make([]byte, each)))
	name := func(i int) string { return fmt.Sprintf("resp_%d", i) }
	for i := range 3 * most {
		clock.add(time.Second)
		w.ok(w.KeepResponse(ctx, owner, name(i), make([]byte, each)))
	}
	for i := range 3 * most {
		if _, err := w.Response(ctx, owner, name(i), unclaimed); (err == nil) != (i >= 2*most) {
			t.Errorf("%s: %v", name(i), err)
		}
	}
	if _, err := w.Response(ctx, other, "resp_other", unclaimed); err != nil {
		t.Error(err)
	}
	if got := w.counted(owner); got != w.config.MaxResponseBytes || got != w.keptBytes(owner) {
		t.Errorf("%d bytes are counted, %d are there", got, w.keptBytes(owner))
	}
}
