package shim

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// What kernels do wrong with bulk copies, mbarriers and clusters is found and said, in whatever order threads run and copies arrive; what they do right gives the right numbers.
func TestBulkMisuse(t *testing.T) {
	const (
		nothing = iota
		fewerBytes
		moreBytes
		unaligned
		beyond
		noWait
		earlyCopy
		wrongParity
		stillRead
		oneArrivalMore
		noRelease
		notInitialised
		twice
		leftBehind
		_
		notPublished
		notBegun
		ownOnly
	)
	compiler, err := findCompiler()
	if err != nil {
		t.Skipf("kernels on the processor: %v", err)
	}
	work := t.TempDir()
	if err := writeSources(work); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/misuse.cpp")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(work, "misuse.cpp"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-psabi", "-march=native", "-ffp-contract=off", "-o", "misuse", "misuse.cpp", "shim.cpp", "bulk.cpp")
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compiling: %v\n%s", err, out)
	}
	for _, c := range []struct {
		name, kernel string
		wrong        int
		want         []string // one of them: what is found first depends on the order
	}{
		{"nothing", "ring", nothing, []string{"right"}},
		{"fewer bytes are expected than come", "ring", fewerBytes, []string{"8192 bytes was under way that began in it", "16 bytes were copied in phase 0 beyond those that were expected"}},
		{"more bytes are expected than come", "ring", moreBytes, []string{"waits at the mbarrier at byte 17392 of block 0 for the end of phase 0: 0 arrivals and 16 bytes are missing"}},
		{"a copy to what is no multiple of 16", "ring", unaligned, []string{"warp 4 of block (0, 0, 0): a bulk copy of 8192 bytes that does not go by 16 of them"}},
		{"a copy beyond the block's memory", "ring", beyond, []string{"a bulk copy beyond the shared memory of block 0"}},
		{"products before the wait", "ring", noWait, []string{"whose thread has not waited for phase 0 of the mbarrier at byte 17392"}},
		{"a copy before the release", "ring", earlyCopy, []string{"where another one is under way", "which a product of warp", "another arrival in phase", "whose thread has not waited for phase"}},
		{"always the same parity", "ring", wrongParity, []string{"whose thread has not waited for phase 1 of", "waits at the mbarrier", "after 2 phases, of which the thread has seen"}},
		{"released while products are under way", "ring", stillRead, []string{"which a product of warp", "is under way"}},
		{"an arrival too many", "ring", oneArrivalMore, []string{"another arrival in phase 0, which counts 1"}},
		{"no release", "ring", noRelease, []string{"warp 4 of block (0, 0, 0) waits at the mbarrier at byte 17400 of block 0 for the end of phase 0: 4 arrivals and 0 bytes are missing"}},
		{"a barrier that nobody initialised", "ring", notInitialised, []string{"at what is no mbarrier"}},
		{"a barrier that is initialised twice", "ring", twice, []string{"the mbarrier at byte 17400 is initialised twice"}},
		{"a cluster", "shared_by_two", nothing, []string{"right"}},
		{"a half that no block brings", "shared_by_two", noRelease, []string{"0 arrivals and 1024 bytes are missing"}},
		{"an arrival at a block that has ended", "shared_by_two", leftBehind, []string{"of block 0, which has ended"}},
		{"rows that four blocks share", "shared_rows", nothing, []string{"right"}},
		{"matrices loaded before the wait", "shared_rows", noWait, []string{"whose thread has not waited for phase 0 of the mbarrier at byte 2304"}},
		{"a copy before the release by all blocks", "shared_rows", earlyCopy, []string{"where another one is under way", "whose thread has not waited for phase", "another arrival in phase", "beyond those that were expected"}},
		{"a release by the own block alone", "shared_rows", ownOnly, []string{"was under way that began in it", "where another one is under way", "whose thread has not waited for phase", "beyond those that were expected"}},
		{"a block that the copies leave out", "shared_rows", noRelease, []string{"0 arrivals and 2048 bytes are missing"}},
		{"left matrices in registers", "fragments", nothing, []string{"right"}},
		{"products before the warpgroup's barrier", "fragments", noWait, []string{"of warpgroup"}},
		{"products with what was not published", "fragments", notPublished, []string{"a product after copies that were not published"}},
		{"products that were not begun", "fragments", notBegun, []string{"a product without begin_products"}},
		{"phases that a thread missed", "phases", nothing, []string{"a wait for parity 0 after 3 phases, of which the thread has seen 0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, order := range []string{"0", "1", "20261127", "7"} {
				out, err := exec.CommandContext(t.Context(), filepath.Join(work, "misuse"), c.kernel, strconv.Itoa(c.wrong), order).CombinedOutput()
				found := false
				for _, want := range c.want {
					found = found || strings.Contains(string(out), want)
				}
				if err != nil || !found {
					t.Errorf("order %s: error %v, it says %q, want one of %q in it", order, err, strings.TrimSpace(string(out)), c.want)
				}
			}
		})
	}
}
