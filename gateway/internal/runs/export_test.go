package runs

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// forgetful is a backend whose first answer to the writing of an export does not arrive.
type forgetful struct {
	plugins.Backend
	forgot *atomic.Bool
}

func (b forgetful) SaveAdapter(ctx context.Context, r plugins.SaveAdapterRequest) (plugins.SaveAdapterResult, error) {
	saved, err := b.Backend.SaveAdapter(ctx, r)
	if err == nil && strings.Contains(r.Path, ".export-") && !b.forgot.Swap(true) {
		return plugins.SaveAdapterResult{}, &plugins.Error{Kind: plugins.KindUnavailable, Message: "the answer is lost"}
	}
	return saved, err
}

// TestExportOfALiveRun: it is what a checkpoint of the same moment has, also when a process wrote it and could not say so, and leaves nothing behind.
func TestExportOfALiveRun(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		w := newWorld(t, func(w *world) {
			forgot := &atomic.Bool{}
			forgot.Store(!forgets)
			w.wrap = func(b plugins.Backend) plugins.Backend { return forgetful{b, forgot} }
		})
		run := w.trained(w.session(), 0)
		e, err := w.Export(t.Context(), owner, run)
		w.ok(err)
		var got bytes.Buffer
		w.ok(e.Write(&got))
		e.Close()
		saved := w.good(w.SaveWeightsForSampler(t.Context(), SaveWeightsForSampler{Operation: at(run, 5), Name: "s"})).Saved.Path
		if !bytes.Equal(got.Bytes(), w.archive(saved)) {
			t.Errorf("forgets %v: the export is not what a checkpoint of the same weights is", forgets)
		}
		if _, err := w.Export(t.Context(), other, run); KindOf(err) != KindNotFound {
			t.Errorf("somebody else's run is exported: %v", err)
		}
		left, err := os.ReadDir(filepath.Join(w.dir, "incoming"))
		if err != nil || len(left) > 0 {
			t.Errorf("forgets %v: %v are left, %v", forgets, left, err)
		}
	}
}
