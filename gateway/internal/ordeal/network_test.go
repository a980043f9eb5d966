package ordeal

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/plugintest/lan"
)

var (
	networkFaults = flag.Int("network-faults", 0, "what TestFleetOnBrokenNetwork does to its machines and to their network; 0: 10, with E2E_LEVEL=all 200")
	networkSeed   = flag.Uint64("network-seed", 0, "of what and when, also in TestStandbyOnBrokenNetwork; 0 draws one")
)

// faultsOf are the ways in which a machine loses the network, in both directions or in one. None of them tells anybody.
func faultsOf(m *lan.Machine) map[string]func(on bool) {
	return map[string]func(bool){
		"down": m.Down, "mute": func(on bool) { m.Mute(on) }, "deaf": func(on bool) { m.Deaf(on) }, "silent": func(on bool) { m.Mute(on); m.Deaf(on) },
	}
}

var faultNames = []string{"down", "mute", "deaf", "silent"}

// networkRandom is what draws the faults of a test.
func networkRandom(t *testing.T) *rand.Rand {
	seed := *networkSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-network-seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// TestFleetOnBrokenNetwork is TestFleetUnderKills on a network of the kernel: the gateway and each of four backends have a machine, and what goes silent
// is not even acknowledged. Machines lose the network, wholly or in one direction, or have little of it; backends and the gateway are killed. Many runs
// train and are sampled all the while: nothing is lost, nothing is done twice, and everything that was saved is what an undisturbed server saves.
func TestFleetOnBrokenNetwork(t *testing.T) {
	if !lan.Inside(t) {
		return
	}
	faults, runs, steps, takes, pace := *networkFaults, 8, 20, 0.15, time.Second
	if faults == 0 {
		faults = 10
		if os.Getenv("E2E_LEVEL") == "all" {
			faults = 200
		}
	}
	if faults > 100 {
		// A loaded machine writes recovery points slowly. It must write them more often than they are needed, or nothing gets on.
		runs, steps, takes, pace = 16, 60, 0.1, 1500*time.Millisecond
	}
	source := networkRandom(t)
	network := lan.New(t)
	calm := newServer(t, settings{"plugin": "fake"}, nil)
	calm.start()
	calm.ready()
	want := studies(newCaller(t, calm.url), filepath.Join(calm.dir, "data"), runs, steps)
	calm.end()

	delays := settings{"delays": []any{settings{"operation": "forward_backward", "seconds": takes}, settings{"operation": "sample", "seconds": takes}}}
	platforms, sections := make([]*platform, 4), make([]any, 4)
	for i := range platforms {
		platforms[i] = newPlatformOn(t, "fake", network.Machine())
		sections[i] = platforms[i].section(platforms[i].address, delays)
	}
	s := newServerOn(t, network.Machine(), nil, ofBackends(sections...))
	s.start()
	s.ready()
	over, finished := make(chan struct{}), make(chan struct{})
	done, happened := make(map[string]int), 0
	d := disturber{t: t, s: s, source: source, over: over}
	var disturbing sync.WaitGroup
	disturbing.Go(func() {
		defer close(finished)
		for happened < faults && d.pause(pace) {
			p, what := platforms[source.IntN(len(platforms))], ""
			switch source.IntN(12) {
			case 0:
				what = "gateway killed"
				d.replaceGateway()
				d.awaitGateway()
			case 1:
				what = "backend narrow"
				p.machine.Narrow([]string{"300kbit", "2mbit"}[source.IntN(2)])
				d.pause(4 * time.Second)
				p.machine.Narrow("")
			case 2, 3, 4, 5: // for longer than a lease, or shorter
				name := faultNames[source.IntN(len(faultNames))]
				what = "backend " + name
				fault := faultsOf(p.machine)[name]
				fault(true)
				if source.IntN(3) == 0 { // and the gateway cannot know
					what += " and killed"
					d.pause(time.Second)
					p.kill()
				}
				d.pause(5 * time.Second)
				fault(false)
			case 6:
				name := faultNames[source.IntN(len(faultNames))]
				what = "gateway " + name
				fault := faultsOf(s.machine)[name]
				fault(true)
				if source.IntN(3) == 0 { // neither the backends nor the clients are told
					what += " and killed"
					d.pause(time.Second)
					d.replaceGateway()
				}
				d.pause(4 * time.Second)
				fault(false)
				d.awaitGateway()
			default:
				what = "backend killed"
				if !p.kill() {
					continue
				}
			}
			done[what]++
			happened++
		}
	})
	rounds := 0
	for working := true; working && !t.Failed(); rounds++ {
		got := studies(newCaller(t, s.url), filepath.Join(s.dir, "data"), runs, steps)
		for n := range want {
			compare(t, got[n], want[n])
		}
		select {
		case <-finished:
			working = false
		default:
		}
	}
	close(over)
	disturbing.Wait()
	t.Logf("%d times %d runs of %d steps; what happened: %v; the gateway was waited for so long: %v", rounds, runs, steps, done, d.back)
	if strings.Contains(s.log(), "crashes the backend") {
		t.Error("somebody's work was blamed for what was done to the backends")
	}
}
