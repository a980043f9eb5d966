package plugins

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// A process that serves gateways on other machines leaves a note of how it ended to the next one with the same data directory: a gateway whose connection was refused learns from that one whether the work was to blame. A process that was
// killed cannot write anything. So what is written is the contrary: the reason of an end of its own. Without one somebody else ended it.
const (
	lifeFile  = "process.json"
	faultFile = "fault" // what the Go runtime says when it ends the process, and the reason of Exit; empty while all is well
)

// maxEnded bounds how many processes are remembered: a gateway asks about the last one that it had.
const maxEnded = 32

// life is which process serves, on which start of which machine, and what is known of those before.
type life struct {
	Process string   `json:"process"` // random
	Machine string   `json:"machine"` // of the machine's start; "" where it does not tell
	Starved int64    `json:"starved"` // OutOfMemoryKills when it began
	Outside []string `json:"outside"` // processes before it that somebody else ended, the last one last: no fault of their own, and not the kernel for want of memory
}

// fault is where the reason of this process's end goes; nil: nowhere.
var fault atomic.Pointer[os.File]

// beginLife notes the process that begins with a data directory, which is locked, and how the one before it ended.
func beginLife(dir, process string) (*life, error) {
	outside, err := endedOutside(dir)
	if err != nil {
		return nil, fmt.Errorf("read how the last process ended: %w", err)
	}
	l := &life{process, machineStart(), OutOfMemoryKills(), outside}
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	// In this order: an end between the two counts as one by a fault, which is the careful side.
	if err := transfer.WriteFile(filepath.Join(dir, lifeFile), text, 0o600); err != nil {
		return nil, fmt.Errorf("note which process this is: %w", err)
	}
	if err := os.Remove(filepath.Join(dir, faultFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return l, nil
}

// endedOutside are the processes of a data directory that somebody else ended.
func endedOutside(dir string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, lifeFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var last life
	if err := json.Unmarshal(text, &last); err != nil {
		slog.Warn("how former processes ended is not known", "file", filepath.Join(dir, lifeFile), "error", err)
		return nil, nil
	}
	said, err := os.Stat(filepath.Join(dir, faultFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all := last.Outside
	switch {
	case err == nil && said.Size() > 0: // its own fault
	case last.Machine != machineStart(), last.Starved >= 0 && last.Starved == OutOfMemoryKills(): // it went with its machine, or memory was there
		all = append(all, last.Process)
	}
	return all[max(0, len(all)-maxEnded):], nil
}

// noteFaults has the reason of an end of this process's own written to its data directory: those of the Go runtime, which also knows of signals in C code, and those of Exit. There is one such directory in a process.
func noteFaults(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, faultFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := debug.SetCrashOutput(f, debug.CrashOptions{}); err != nil {
		return errors.Join(err, f.Close())
	}
	fault.Store(f) // open to the end
	return nil
}

// noteFault writes why the process ends itself.
func noteFault(why error) {
	if f := fault.Load(); f != nil {
		_, _ = fmt.Fprintln(f, why)
	}
}

// machineStart is another one after each start of the machine.
func machineStart() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// OutOfMemoryKills is how many processes of this machine the kernel has ended for want of memory; -1 where it does not tell.
func OutOfMemoryKills() int64 {
	b, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return -1
	}
	_, rest, _ := strings.Cut(string(b), "\noom_kill ")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		return -1
	}
	return n
}
