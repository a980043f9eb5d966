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
}

var checks known

// opened is a device with what it uses.
type opened struct {
	*cudart.Device
	info    cudart.Information
	library *cudart.CuBLASLt // there, used or not, if its bits were found to be right for any shape; it is closed after the device
	routes  Routes
}

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

// openDevice opens a device and has it use warpgroups if it has them and they were found to be right, and cuBLASLt if o wants it, it was, and it is faster.
func openDevice(driver *cudart.Driver, ordinal int, o Options, known *known) (to opened, err error) {
	info, err := driver.Information(ordinal)
	if err != nil {
		if v, failed := driver.Open(ordinal); failed == nil {
			err = errors.Join(err, v.Close())
		} else { // which says more
			err = failed
		}
		return to, err
	}
	groups := o.warpgroups(driver, info, ordinal, known)
	if o.Products == ProductsBulk {
		if err := o.bulk(driver, info, ordinal, groups.err == nil, known); err != nil {
			return to, err
		}
	}
	if o.Attention == AttentionWarpgroups && !o.Trusted {
		if err := o.attention(driver, info, ordinal, known); err != nil {
			return to, err
		}
	}
	if o.Gradients == GradientsTensorCores && !o.Trusted {
		if err := o.gradients(driver, info, ordinal, known); err != nil {
			return to, err
		}
	}
	use, err := o.cublaslt(driver, info, ordinal, groups.err == nil, known)
	if err != nil {
		return to, err
	}
	if to.Device, err = driver.Open(ordinal); err != nil {
		use.library.Close()
		return to, err
	}
	if groups.err == nil {
		if groups.err = to.UseWarpgroups(true); groups.err != nil {
			slog.Warn("products of many rows do without warpgroups and take longer", "device", to.Name(), "reason", groups.err)
		}
	}
	to.info, to.routes = info, Routes{Warpgroups: groups.err == nil, Remembered: (groups.remembered || !info.Warpgroups()) && use.remembered}
	if groups.err != nil {
		to.routes.WithoutWarpgroups = groups.err.Error()
	}
	if o.Products == ProductsBulk {
		if err := to.UseBulk(); err != nil {
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrProducts, err), to.Close())
		}
		to.routes.Bulk, to.routes.Remembered = true, false
	}
	if o.Attention == AttentionWarpgroups {
		if err := to.UseGroupAttention(true); err != nil {
			use.library.Close()
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrAttention, err), to.Close())
		}
		to.routes.Attention, to.routes.Remembered = true, false
	}
	if o.Gradients == GradientsTensorCores {
		if err := to.UseOuterGroups(); err != nil {
			use.library.Close()
			return opened{}, errors.Join(fmt.Errorf("%w: %w", ErrGradients, err), to.Close())
		}
		to.routes.Gradients, to.routes.Remembered = true, false
	}
	if len(use.products) > 0 {
		if err := to.UseCuBLASLt(use.library, use.products, use.accumulate); err != nil {
			err = use.named(err)
			use.library.Close()
			if o.Products == ProductsCuBLASLt {
				return to, errors.Join(fmt.Errorf("%w: %w", ErrProducts, err), to.Close())
			}
			slog.Warn("products do without cuBLASLt", "device", to.Name(), "reason", err)
			use = cublasltUse{without: err.Error()}
		}
	}
	to.library = use.library
	use.route(&to.routes)
	return to, nil
}

func kindOf(driver *cudart.Driver, info cudart.Information) string {
	return fmt.Sprintf("%s %d %s", driver.Path(), driver.Version(), info.Name)
}
