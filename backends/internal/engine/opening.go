package engine

import (
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

const (
	openingPace = 5 * time.Second // between two reports
	// openingTime is how long a load says so at most: two checks of products, each of which another process ends after 10 minutes (package tensor/cuda), and time for the driver to compile the kernels. Of a driver that hangs
	// nothing is heard then, and whoever waits ends this process.
	openingTime = 25 * time.Minute
)

// opening reports until stop that devices are being opened, which can take minutes where a driver compiles kernels for the first time and nothing tells how far it is. No report comes after stop has returned.
func opening(pace, longest time.Duration, report func(plugins.LoadProgress)) (stop func()) {
	report(plugins.LoadProgress{Stage: plugins.StageOpen})
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for range longest / pace {
			select {
			case <-stopped:
				return
			case <-tick.C:
				report(plugins.LoadProgress{Stage: plugins.StageOpen})
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stopped)
		<-ended
	})
}
