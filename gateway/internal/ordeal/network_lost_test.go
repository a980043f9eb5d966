package ordeal

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/plugintest/lan"
)

// TestLostMachineOnBrokenNetwork takes the network from the machine of one backend of two, in each way, and does not give it back before the work is
// done: the gateway notices by itself, and the runs that were there go on in the other one, with the bits of an undisturbed server.
func TestLostMachineOnBrokenNetwork(t *testing.T) {
	if !lan.Inside(t) {
		return
	}
	const runs, steps, takes = 4, 9, 0.05
	calm := newServer(t, settings{"plugin": "fake"}, nil)
	calm.start()
	calm.ready()
	want := studies(newCaller(t, calm.url), filepath.Join(calm.dir, "data"), runs, steps)
	calm.end()
	delays := settings{"delays": []any{settings{"operation": "forward_backward", "seconds": takes}, settings{"operation": "sample", "seconds": takes}}}
	names := faultNames
	if os.Getenv("E2E_LEVEL") != "all" {
		names = names[:2]
	}
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			network := lan.New(t)
			var platforms [2]*platform
			var sections []any
			for k := range platforms {
				platforms[k] = newPlatformOn(t, "fake", network.Machine())
				sections = append(sections, platforms[k].section(platforms[k].address, delays))
			}
			s := newServerOn(t, network.Machine(), nil, ofBackends(sections...))
			s.start()
			// The states of that which is lost, and of the other one.
			await := func(what string, is func(lost, other string) bool) {
				s.await(what, func(h health) bool {
					return h.Status == "ok" && len(h.Models) == 1 && len(h.Models[0].Backends) == 2 && is(h.Models[0].Backends[i%2].State, h.Models[0].Backends[1-i%2].State)
				})
			}
			await("ready", func(lost, other string) bool { return lost == "ready" && other == "ready" })
			var losing sync.WaitGroup
			losing.Go(func() {
				time.Sleep(300 * time.Millisecond)
				faultsOf(platforms[i%2].machine)[name](true)
			})
			got := studies(newCaller(t, s.url), filepath.Join(s.dir, "data"), runs, steps)
			losing.Wait()
			await("one of two", func(lost, other string) bool { return lost != "ready" && other == "ready" })
			for n := range want {
				compare(t, got[n], want[n])
			}
			faultsOf(platforms[i%2].machine)[name](false)
			await("ready again", func(lost, other string) bool { return lost == "ready" && other == "ready" })
		})
	}
}
