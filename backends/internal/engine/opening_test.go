package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// While a device is being opened the load goes on to say so, whether it is opened in the end or not; then the other stages come.
func TestProgressWhileADeviceIsOpened(t *testing.T) {
	broken := errors.New("no such device")
	for _, c := range []struct {
		name   string
		fails  error
		stages []string
	}{{"opened", nil, []string{plugins.StageOpen, "map", "pack", "ready"}}, {"not opened", broken, []string{plugins.StageOpen}}} {
		t.Run(c.name, func(t *testing.T) {
			o, seen := testOptions(), make(chan struct{})
			open := o.OpenDevice
			o.OpenDevice = func(config Config) (tensor.Device, error) {
				<-seen
				if c.fails != nil {
					return nil, c.fails
				}
				return open(config)
			}
			e := New(o)
			defer e.Close()
			e.openingPace = time.Millisecond
			var stages []string
			opening := 0
			dir := t.TempDir()
			if err := writeTiny(dir); err != nil {
				t.Fatal(err)
			}
			_, err := e.Load(t.Context(), plugins.LoadRequest{ModelDir: dir}, func(p plugins.LoadProgress) {
				if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
					stages = append(stages, p.Stage)
				}
				if p.Stage == plugins.StageOpen {
					if opening++; opening == 4 {
						close(seen)
					}
				}
			})
			if (err == nil) != (c.fails == nil) || !slices.Equal(stages, c.stages) {
				t.Errorf("stages %v, want %v; error %v", stages, c.stages, err)
			}
		})
	}
}

// A device that is never opened is not reported for ever, and a load that nobody waits for is not held up.
func TestOpeningHasAnEnd(t *testing.T) {
	reports := make(chan plugins.LoadProgress, 100)
	stop := opening(time.Millisecond, 3*time.Millisecond, func(p plugins.LoadProgress) { reports <- p })
	for range 4 { // the first at once
		<-reports
	}
	stop()
	stop()
	if n := len(reports); n != 0 {
		t.Errorf("%d reports more", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	o, cancelled := testOptions(), make(chan struct{})
	open := o.OpenDevice
	o.OpenDevice = func(config Config) (tensor.Device, error) {
		<-cancelled
		return open(config)
	}
	e := New(o)
	defer e.Close()
	e.openingPace = time.Microsecond
	_, err := e.Load(ctx, plugins.LoadRequest{ModelDir: t.TempDir()}, func(plugins.LoadProgress) {
		if ctx.Err() == nil {
			cancel()
			close(cancelled)
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
