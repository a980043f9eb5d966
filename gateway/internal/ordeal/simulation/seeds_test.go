package simulation

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var (
	seeds   = flag.Int("seeds", 0, "how many seeds TestSimulation runs; 0: 300, with E2E_LEVEL=all 10,000, with the race detector 20")
	seed    = flag.Uint64("seed", 1, "the first seed of TestSimulation")
	trace   = flag.Bool("trace", false, "print what was decided also for seeds that are well")
	repeats = flag.Int("repeats", 0, "how many seeds TestSeedsRepeatThemselves runs twice; 0: 20, with E2E_LEVEL=all 300")
	worker  = flag.Bool("worker", false, "run the seeds in this process; TestSimulation gives them to several")
)

// One goroutine at a time: what runs at the same time takes turns in the same order, so that a seed repeats itself. Seeds run in as many processes as there are processors.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

// level chooses a number of seeds.
func level(given, standard, all int) int {
	switch {
	case given > 0:
		return given
	case race:
		return max(standard/15, 2)
	case os.Getenv("E2E_LEVEL") == "all":
		return all
	}
	return standard
}

func TestSimulation(t *testing.T) {
	n := level(*seeds, 300, 10_000)
	if *worker || n == 1 {
		for i := range uint64(n) {
			t.Run(fmt.Sprint(*seed+i), func(t *testing.T) { oneSeed(t, *seed+i, n == 1) })
		}
		return
	}
	const chunk = 25
	var next, broken atomic.Int64
	var all sync.WaitGroup
	begun := time.Now()
	for range runtime.NumCPU() {
		all.Go(func() {
			for broken.Load() < 5 {
				from := next.Add(chunk) - chunk
				if from >= int64(n) {
					return
				}
				if !runWorker(t, *seed+uint64(from), min(chunk, n-int(from))) {
					broken.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d seeds, %.0f a minute", n, float64(n)/time.Since(begun).Minutes())
}

// oneSeed runs a seed and tells how to repeat it if it fails.
func oneSeed(t *testing.T, seed uint64, whole bool) {
	violated, decided := simulate(t, seed, noFault)
	if len(violated) == 0 && !*trace {
		return
	}
	if last := 300; !whole && len(decided) > last {
		decided = append([]string{"…"}, decided[len(decided)-last:]...)
	}
	t.Logf("what was decided:\n%s", strings.Join(decided, "\n"))
	for _, v := range violated {
		t.Error(v)
	}
	if len(violated) > 0 {
		t.Logf("to repeat: go test ./gateway/internal/ordeal/simulation -run 'TestSimulation$' -v -seed %d -seeds 1", seed)
	}
}

// runWorker has another process run seeds.
func runWorker(t *testing.T, first uint64, n int) bool {
	var out bytes.Buffer
	c := exec.CommandContext(t.Context(), must(os.Executable()), "-test.run=^TestSimulation$", "-test.v", "-test.timeout=1h", "-worker", fmt.Sprint("-seed=", first), fmt.Sprint("-seeds=", n))
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	if err == nil {
		return true
	}
	var lines []string
	running := ""
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "=== RUN") {
			running = line
		} else if !strings.Contains(line, "--- PASS") {
			lines = append(lines, line)
		}
	}
	t.Errorf("seeds %d to %d: %v; the last one that was begun: %s%s", first, first+uint64(n)-1, err, running, strings.Join(lines, ""))
	return false
}

// The same seed decides the same twice, nearly always: while SQLite waits for the operating system another goroutine may get the processor. Lines of the log may change places: timers of one moment
// fire in any order.
func TestSeedsRepeatThemselves(t *testing.T) {
	if race {
		t.Skip("the race detector shuffles what runs at the same time")
	}
	decisions := func(seed uint64) []string {
		_, decided := simulate(t, seed, noFault)
		return slices.DeleteFunc(decided, func(line string) bool { return strings.Contains(line, says) })
	}
	n, differ := level(*repeats, 20, 300), 0
	for seed := range uint64(n) {
		first, second := decisions(seed), decisions(seed)
		for i := range max(len(first), len(second)) {
			if i >= len(first) || i >= len(second) || first[i] != second[i] {
				upTo := func(list []string) string {
					return strings.Join(list[max(0, min(i-5, len(list))):min(i+1, len(list))], "\n")
				}
				differ++
				t.Logf("seed %d, decision %d of %d:\n%s\nand of %d:\n%s", seed, i, len(first), upTo(first), len(second), upTo(second))
				break
			}
		}
	}
	if 5*differ > n {
		t.Errorf("%d of %d seeds did not repeat themselves", differ, n)
	}
}

// Each planted fault is found soon. The usual tests begin where it was found before, which may have moved a little since.
func TestPlantedFaults(t *testing.T) {
	const within = 1000
	if race {
		t.Skip("it looks for mistakes in the simulation, not for races, and takes long with the race detector")
	}
	usually := map[fault]uint64{faultEarlyDeletion: 190, faultNoSkip: 210}
	for f := noFault + 1; f < faults; f++ {
		t.Run(f.String(), func(t *testing.T) {
			begin := usually[f]
			if os.Getenv("E2E_LEVEL") == "all" {
				begin = 0
			}
			for seed := begin; seed < begin+within; seed++ {
				if violated, _ := simulate(t, seed, f); len(violated) > 0 {
					t.Logf("found by seed %d: %s", seed, violated[0])
					return
				}
			}
			t.Errorf("not found within %d seeds from %d", within, begin)
		})
	}
}
