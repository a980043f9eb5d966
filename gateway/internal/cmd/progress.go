package cmd

import (
	"context"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
)

// showLoading draws a bar on a terminal for every model while it is loaded the first time, and returns when none is loading any more.
func showLoading(ctx context.Context, f *fleet.Fleet) {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return
	}
	bars := map[string]*progressbar.ProgressBar{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		waiting := false
		for _, s := range f.States() {
			loading := s.Restarts == 0 && (s.Phase == supervisor.Starting || s.Phase == supervisor.Loading)
			waiting = waiting || loading
			if total := s.Progress.Total; loading && total > 0 {
				if bars[s.Name] == nil {
					bars[s.Name] = progressbar.DefaultBytes(total, "loading "+s.Name)
				}
				_ = bars[s.Name].Set64(s.Progress.Done) // only a picture
			} else if bar := bars[s.Name]; bar != nil && !loading {
				_ = bar.Finish()
				delete(bars, s.Name)
			}
		}
		if !waiting {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
