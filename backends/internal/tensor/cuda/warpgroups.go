package cuda

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// Products by warpgroups are used on devices where another process has found their bits to be those of products by warps. It is another process because a kernel that faults takes the whole context with it.

// checkVariable has this program be that process: it holds a checkTask.
const checkVariable = "TINSMITH_CHECK_WARPGROUPS"

// checkTime bounds the check. Most of it is for a driver that compiles the kernels for the first time.
const checkTime = 10 * time.Minute

// checkTask is a device and where its driver is looked for.
type checkTask struct {
	Ordinal   int
	Libraries []string
}

func init() {
	if task := os.Getenv(checkVariable); task != "" {
		time.AfterFunc(checkTime, func() { os.Exit(2) }) // also where nobody waits any more
		if err := checkHere(task); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

func checkHere(text string) error {
	var task checkTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return fmt.Errorf("%s: %w", checkVariable, err)
	}
	driver, err := cudart.Open(cudart.Options{Directories: task.Libraries})
	if err != nil {
		return err
	}
	defer driver.Close()
	v, err := driver.Open(task.Ordinal)
	if err != nil {
		return err
	}
	return errors.Join(v.CheckWarpgroups(), v.Close())
}

// CheckWarpgroups has another process compare products by warpgroups with products by warps on a device, bit by bit. The error says what differs, or how that process failed. The program must have the same package in it,
// as every one that calls this function has.
func CheckWarpgroups(ordinal int, libraries []string) error {
	task, err := json.Marshal(checkTask{ordinal, libraries})
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), checkVariable+"="+string(task))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return nil
	}
	const most = 1000
	said := strings.TrimSpace(string(out))
	return fmt.Errorf("check of products by warpgroups: %w: %s", errors.Join(ctx.Err(), err), said[max(0, len(said)-most):])
}

// verdicts keeps what checks found, by kind of device: one check is enough for all of a kind, and for all times that a process opens one.
type verdicts struct {
	mu    sync.Mutex
	found map[string]error
}

var checks verdicts

func (v *verdicts) of(kind string, check func() error) (verdict error, first bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if err, ok := v.found[kind]; ok {
		return err, false
	}
	if v.found == nil {
		v.found = map[string]error{}
	}
	v.found[kind] = check()
	return v.found[kind], true
}

// openDevice opens a device and has it use warpgroups if it has them and they were found to be right.
func openDevice(driver *cudart.Driver, ordinal int, libraries []string, known *verdicts) (*cudart.Device, error) {
	usable := false
	if info, err := driver.Information(ordinal); err == nil && info.Warpgroups() {
		// Before the device is opened, because some are set up for one process at a time.
		verdict, first := known.of(fmt.Sprintf("%s %d %s", driver.Path(), driver.Version(), info.Name), func() error { return CheckWarpgroups(ordinal, libraries) })
		usable = verdict == nil
		switch {
		case first && usable:
			slog.Info("products of many rows use warpgroups", "device", info.Name)
		case first:
			slog.Warn("products of many rows do without warpgroups and take longer", "device", info.Name, "reason", verdict)
		}
	}
	v, err := driver.Open(ordinal)
	if err != nil || !usable {
		return v, err
	}
	if err := v.UseWarpgroups(true); err != nil {
		slog.Warn("products of many rows do without warpgroups and take longer", "device", v.Name(), "reason", err)
	}
	return v, nil
}
