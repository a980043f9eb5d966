package cuda

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// Products by warpgroups, by cuBLASLt and by bulk copies are used on devices where another process has found their bits to be those of products by warps. It is another process because a kernel that faults takes the whole context with
// it.

// checkVariable has this program be that process: it holds a checkTask.
const checkVariable = "TINSMITH_CHECK_PRODUCTS"

// checkTime bounds the check. Most of it is for a driver that compiles the kernels for the first time.
const checkTime = 10 * time.Minute

// abandoned is the exit status of a check that nobody waits for any more.
const abandoned = 2

// checkTask is a device and where its driver is looked for.
type checkTask struct {
	Ordinal   int
	Libraries []string
	CuBLASLt  *cublasltTask // nil: warpgroups are checked
	Bulk      *bulkTask     // not nil: bulk copies are
	Attention bool          // attention by warpgroups is
	Gradients bool          // adapters' gradients on tensor cores are
	Launches  bool          // launches that overlap are
	Clusters  bool          // products of few rows by clusters are
}

func init() {
	if task := os.Getenv(checkVariable); task != "" {
		time.AfterFunc(checkTime, func() { os.Exit(abandoned) })
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // ends with the process that waits: the device and its memory are for who comes next
			os.Exit(abandoned)
		}()
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
	switch {
	case task.CuBLASLt != nil:
		err = task.checkCuBLASLt(driver, v)
	case task.Bulk != nil:
		err = task.Bulk.check(v)
	case task.Gradients:
		err = checkGradients(v)
	case task.Attention:
		err = checkAttention(v)
	case task.Launches:
		err = checkLaunches(v)
	case task.Clusters:
		err = checkClusters(v)
	default:
		err = v.CheckWarpgroups()
	}
	return errors.Join(err, v.Close())
}

// CheckWarpgroups has another process compare products by warpgroups with products by warps on a device, bit by bit. The error says what differs, or how that process failed. The program must have the same package in it,
// as every one that calls this function has.
func CheckWarpgroups(ordinal int, libraries []string) error {
	if _, err := (checkTask{Ordinal: ordinal, Libraries: libraries}).elsewhere(); err != nil {
		return fmt.Errorf("check of products by warpgroups: %w", err)
	}
	return nil
}

// elsewhere has another process do the task, and gives what it wrote to its standard output.
func (c checkTask) elsewhere() ([]byte, error) {
	task, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), checkTime)
	defer cancel()
	var out, wrong bytes.Buffer
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), checkVariable+"="+string(task))
	cmd.Stdout, cmd.Stderr = &out, &wrong
	if _, err = cmd.StdinPipe(); err != nil { // open for as long as this process waits
		return nil, err
	}
	if err = cmd.Run(); err == nil {
		return out.Bytes(), nil
	}
	const most = 1000
	said := strings.TrimSpace(wrong.String() + out.String())
	return nil, fmt.Errorf("%w: %s", errors.Join(ctx.Err(), err), said[max(0, len(said)-most):])
}

// tell has the process that checks write what it has found, as JSON.
func tell[T any](found T, err error) error {
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

// foundElsewhere has another process check, and gives what it has told.
func foundElsewhere[T any](t checkTask) (found T, err error) {
	out, err := t.elsewhere()
	if err == nil {
		err = json.Unmarshal(out, &found)
	}
	return found, err
}

// findings keeps what checks found, by kind of device: one check is enough for all of a kind, and for all times that a process opens one.
type findings[T any] struct {
	mu    sync.Mutex
	found map[string]T
}

func (f *findings[T]) of(kind string, check func() T) (finding T, first bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if known, ok := f.found[kind]; ok {
		return known, false
	}
	if f.found == nil {
		f.found = map[string]T{}
	}
	f.found[kind] = check()
	return f.found[kind], true
}

// known is what was found in this process.
type known struct {
	warpgroups findings[verdict]
	cublaslt   findings[cublasltFinding]
	bulk       findings[bulkFinding]
	attention  findings[attentionFinding]
	gradients  findings[gradientsFinding]
	launches   findings[launchesFinding]
	clusters   findings[clustersFinding]
}

var checks known

// verdict is what the check of warpgroups has found.
type verdict struct {
	remembered bool
	err        error
}

// warpgroups says whether a device that is not open yet is to use them. It is found out before it is opened, because some are set up for one process at a time.
func (o *Options) warpgroups(driver *cudart.Driver, info cudart.Information, ordinal int, known *known) verdict {
	if !info.Warpgroups() {
		return verdict{err: fmt.Errorf("there are none for compute capability %d.%d", info.Major, info.Minor)}
	}
	found, first := known.warpgroups.of(kindOf(driver, info), func() (f verdict) {
		_, f.remembered, f.err = once(o.Remember, func() (circumstances, error) { return o.circumstances("warpgroups", driver, info, nil, true) }, func() (bool, error) {
			err := CheckWarpgroups(ordinal, o.Libraries)
			return err == nil, err // only that they are right is kept: what failed may have lacked memory, or a driver that works
		})
		return f
	})
	switch {
	case first && found.err == nil:
		slog.Info("products of many rows use warpgroups", "device", info.Name, "remembered", found.remembered)
	case first:
		slog.Warn("products of many rows do without warpgroups and take longer", "device", info.Name, "reason", found.err)
	}
	return found
}

func kindOf(driver *cudart.Driver, info cudart.Information) string {
	return fmt.Sprintf("%s %d %s", driver.Path(), driver.Version(), info.Name)
}
