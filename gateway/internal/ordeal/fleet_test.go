package ordeal

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/plugintest/link"
)

var (
	fleetKills = flag.Int("fleet-kills", 0, "what TestFleetUnderKills does to its machines and the network between them; 0: 12, with E2E_LEVEL=all 200")
	fleetSeed  = flag.Uint64("fleet-seed", 0, "of what and when; 0 draws one")
)

// fleetOf are backends on so many machines, each by a link of its own, and the configuration of a gateway that has them all.
func fleetOf(t testing.TB, machines int, more settings) ([]*platform, []*link.Link, settings) {
	t.Helper()
	platforms, links, sections := make([]*platform, machines), make([]*link.Link, machines), make([]any, machines)
	for i := range machines {
		platforms[i] = newPlatform(t, "fake")
		links[i] = link.New(t, platforms[i].address)
		sections[i] = platforms[i].section(links[i].Address(), more)
	}
	return platforms, links, ofBackends(sections...)
}

// disturber does to a fleet what is drawn, until its work is over. One goroutine uses it.
type disturber struct {
	t      *testing.T
	s      *server // the gateway
	source *rand.Rand
	over   <-chan struct{}
	back   []time.Duration // how long the gateway was waited for, each time
}

// pause waits for a while, at most so long. False when the work is over.
func (d *disturber) pause(most time.Duration) bool {
	select {
	case <-d.over:
		return false
	case <-time.After(time.Duration(d.source.Int64N(int64(most)))):
		return true
	}
}

// replaceGateway kills the gateway, and starts it again a little later. False if it does not start.
func (d *disturber) replaceGateway() bool {
	if err := d.s.process.Process.Kill(); err != nil {
		d.t.Error(err)
	}
	<-d.s.ended
	d.pause(time.Second)
	err := d.s.startAgain()
	if err != nil {
		d.t.Error(err)
	}
	return err == nil
}

// awaitGateway waits until the gateway serves again, at times less long: then what comes next finds most runs half rebuilt.
func (d *disturber) awaitGateway() {
	begun := time.Now()
	patience := begun.Add(time.Duration(d.source.Int64N(int64(30 * time.Second))))
	for d.s.healthz().Status != "ok" && time.Now().Before(patience) && d.pause(50*time.Millisecond) {
	}
	d.back = append(d.back, time.Since(begun).Round(time.Millisecond))
}

// kill ends the backend's process. False if there is none.
func (p *platform) kill() bool {
	pid := pidIn(p.pidFile())
	return pid != 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
}

// TestFleetUnderKills has a gateway with backends on four machines while everything breaks at random: backends are killed, the gateway is killed, connections are cut, become slow, and go silent in one direction or in both. Many runs train
// and are sampled all the while: nothing is lost, nothing is done twice, and everything that was saved is what an undisturbed server saves.
func TestFleetUnderKills(t *testing.T) {
	kills, runs, steps, takes := *fleetKills, 8, 40, 0.15
	if kills == 0 {
		kills = 12
		if os.Getenv("E2E_LEVEL") == "all" {
			kills = 200
		}
	}
	if kills > 100 {
		runs, steps, takes = 64, 160, 0.03
	}
	seed := *fleetSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("%d disturbances, %d runs of %d steps, -fleet-seed %d", kills, runs, steps, seed)
	calm := newServer(t, settings{"plugin": "fake"}, nil)
	calm.start()
	calm.ready()
	want := studies(newCaller(t, calm.url), filepath.Join(calm.dir, "data"), runs, steps)
	calm.end()

	platforms, links, config := fleetOf(t, 4, settings{"delays": []any{settings{"operation": "forward_backward", "seconds": takes}, settings{"operation": "sample", "seconds": takes}}})
	s := newServer(t, nil, config)
	s.start()
	s.ready()
	over, done, happened := make(chan struct{}), make(map[string]int), 0
	d := disturber{t: t, s: s, source: rand.New(rand.NewPCG(seed, 1)), over: over}
	var disturbing sync.WaitGroup
	disturbing.Go(func() {
		for happened < kills && d.pause(500*time.Millisecond) {
			i, what := d.source.IntN(len(links)), ""
			switch d.source.IntN(8) {
			case 0:
				what = "gateway"
				if !d.replaceGateway() {
					return
				}
				d.awaitGateway()
			case 1:
				what = "connections cut"
				links[i].Cut()
			case 2:
				what = "link slow"
				links[i].Delay(time.Duration(d.source.IntN(20)) * time.Millisecond)
			case 3, 4:
				what = "link silent"
				both, direction := d.source.IntN(2) == 0, d.source.IntN(2)
				hold := func(held bool) {
					links[i].Hold(direction, held)
					if both {
						links[i].Hold(1-direction, held)
					}
				}
				hold(true)
				d.pause(4 * time.Second)
				hold(false)
			default:
				what = "backend"
				if !platforms[i].kill() {
					continue
				}
			}
			done[what]++
			happened++
		}
	})
	got := studies(newCaller(t, s.url), filepath.Join(s.dir, "data"), runs, steps)
	close(over)
	disturbing.Wait()
	t.Logf("what happened: %v; gateways were waited for so long: %v", done, d.back)
	if happened < kills/2 {
		t.Errorf("the work was over after %d disturbances", happened)
	}
	for n := range want {
		compare(t, got[n], want[n])
	}
	if strings.Contains(s.log(), "crashes the backend") {
		t.Error("somebody's work was blamed for what was done to the backends")
	}
}
