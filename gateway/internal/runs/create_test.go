package runs

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// vanishing is a backend whose process is replaced whenever an adapter is made, so many times.
type vanishing struct {
	plugins.Backend
	left  *atomic.Int64
	world *world
}

func (b vanishing) CreateAdapter(ctx context.Context, req plugins.CreateAdapterRequest) (plugins.AdapterInfo, error) {
	if b.left.Add(-1) < 0 {
		return b.Backend.CreateAdapter(ctx, req)
	}
	b.world.restartBackend()
	return plugins.AdapterInfo{}, plugins.ErrBackendLost
}

// However often the process goes away while an adapter is made, as a link to another machine may, the next one makes it.
func TestCreateOutlivesManyProcesses(t *testing.T) {
	left := &atomic.Int64{}
	left.Store(15)
	w := newWorld(t, func(w *world) {
		w.wrap = func(b plugins.Backend) plugins.Backend { return vanishing{b, left, w} }
	})
	run := w.newRun(w.session(), 0)
	w.good(w.ForwardBackward(t.Context(), w.pass(run, 1)))
	if left.Load() >= 0 {
		t.Errorf("%d processes were not tried", left.Load())
	}
}
