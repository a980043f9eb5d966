// Package cuda is the tensor.Device of an NVIDIA GPU: it puts the kernels of package cudart into the device's stream. It knows no model.
//
// Operations return before they are done; because a device has one stream, what comes next sees their results. Download waits, and so does the first of what StartDownload, SumSquares and AdamW have been asked for. The host
// waits once for a training pass of any number of operations, at its end, when the log-probabilities of all targets come in one copy and the checks of the gradients that are complete have been launched as well (where
// ranks have devices of their own, each rank waits for its part, beside the others, and the engine for the checks); once in a clock cycle's optimizer steps of any number of adapters (norms, clipping, the step, the check of
// what was written and the packing of the new matrices are launched before); and once in a decoding step (the drawn tokens; where likeliest tokens are asked for as well, or ranks share the vocabulary, the logits come and
// draws are made in Go memory). It also waits for a full half of the staging memory, 4 MiB of lists or uploads before, and in a pass that
// takes longer than a device step for the step before the last one (tensor.Paced): so a sampler's turn comes when it is due, and the device always has work.
//
// Decoding steps and other passes over up to 256 rows are recorded (tensor.Recorder): their launches are put off and started in series, with one copy of all the lists that the kernels of a series read, and as a CUDA graph
// if the series has come before with mostly the same arguments. If a graph fails, kernels are launched one by one from then on. Nobody has seen this on a GPU yet.
// Products of few rows that do not depend on each other are one launch (MatMuls): those of q, k and v, or of gate and up, and their adapters' first products before them or, where the second ones do not ride, beside them.
//
// Mixtures of experts: what tokens choose stays on the device. Products of all experts are one launch with blocks for as many tiles as there can be, which find theirs in the table, so launches are the same whatever is chosen. What is
// counted of the choices in training comes to the host with the log-probabilities.
//
// Memory traffic: operations that follow one another are one where that saves passes over memory (tensor.Fuser), rows that only products read are bfloat16 where products round them, and so are the queries that attention
// reads; bits are those of the separate operations. With bfloat16 weights, gate, up, attention's output, and queries and keys before their norms are kept for the backward pass rounded to bfloat16 (tensor.Keeper); what the
// forward pass computes from is not rounded by that.
//
// Bits: every sum is a chain or a tree that depends on the row alone. Products with bfloat16 weights go over the inner axis in groups of 16, one tensor-core instruction each, in
// ascending order, for many rows on Hopper by warpgroups, if a check in another process found the same bits when the first device was opened; products with float32 weights, and the gradients of adapters, are chains of fused multiply-adds. Attention over bfloat16 pages multiplies bfloat16 values likewise (head dimensions
// that are multiples of 8), over others it computes in float32. Pages outside of a window are not read. The same kernels serve training, prefill and decoding.
//
// Matrices in eight bits (tensor.E4M3Device) are expanded in the products' blocks, chunk by chunk before a tile is multiplied, to the bfloat16 values that they stand for; for 512 rows or more, 256 by warpgroups, parts of a matrix are expanded before, in
// scratch memory. Chains are those of bfloat16 matrices.
//
// The gated delta rule goes token by token everywhere, by one chain of operations, with the state in registers; states lie on the device in their slots, which are copied and cleared there. Its gradient is computed in chunks, from
// states that are computed again and of which so many are kept at a time that the memory does not grow with the batch (tensor.DeltaBackwardScratch).
//
// With Options.Products of ProductsBulk or ProductsClusters, matrices of bfloat16 whose sides are multiples of 64 lie in blocks of 64 × 64, in which bulk copies bring them to the warpgroups of Hopper, of either orientation; kernels by warps read the same
// blocks. It is for devices where a check in another process finds the same bits, and less time, when they are opened; nobody has run it on a GPU.
//
// With Options.Attention of AttentionWarpgroups, attention of many rows and its gradient are by the warpgroups of Hopper for heads of up to 128 elements, likewise where a check in another process finds the same bits and less time.
//
// With Options.Gradients of GradientsTensorCores, adapters' gradients of rows whose positions are known are sums of groups of 16 rows on tensor cores, of float32 numbers as two of bfloat16 each: other bits, which depend on no cut, and
// another name of arithmetic.
//
// With Options.Launches of LaunchesDependent, the kernels of a graph are placed on Hopper while those before them run, and wait there: bits are the same.
//
// cuBLASLt may compute products of at least 128 rows with a model's weights. A row's bits may not depend on the rows beside it, and the library chooses the tile, the instruction and the cut of the inner axis by the whole
// product's shape: so it gets no workspace, may neither cut the inner axis nor reduce, keeps one algorithm for each shape and class of rows, and is used only for shapes whose bits another process has compared with the
// kernels' on this device when it was opened, or before (Options.Remember), by the very algorithm that process used; what differs stays with the kernels. An adapter's product, which rides in the kernels', needs a launch of its own behind it: where that takes longer they compute both. It adds what an output holds at the end of a sum, where the kernels begin with that, so products that are added to an output most likely stay with the kernels.
package cuda

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/checked"
	"github.com/tinsmith/tinsmith/cudart"
)

// Options choose the device.
type Options struct {
	// Device is "cuda:0", "cuda:1", …; "cuda" means the first.
	Device string
	// Libraries are folders that the driver, and NCCL and cuBLASLt where they are used, are looked for in before the system's.
	Libraries []string
	// Products says who computes products with bfloat16 weights of many rows, and of few where it is ProductsClusters: ProductsAuto, ProductsOwn, ProductsCuBLASLt, ProductsBulk, ProductsClusters. Empty means own.
	Products string
	// Attention says who computes attention of many rows over bfloat16 pages: AttentionAuto, AttentionOwn, AttentionWarpgroups. Empty means own.
	Attention string
	// Gradients says how the gradients of adapters are summed where their rows' positions are known: GradientsAuto, GradientsOwn, GradientsTensorCores. Empty means own.
	Gradients string
	// Launches says whether launches of a decoding step overlap: LaunchesAuto, LaunchesPlain, LaunchesDependent. Empty means plain.
	Launches string
	// Trusted has what Attention, Gradients and Launches ask for used without a check of it in another process: for tests, where no time is less.
	Trusted bool
	// Weights are the shapes of the model's weights, each an Out and an In: cuBLASLt is checked, and used, for no others.
	Weights [][2]int
	// Remember is a folder, made if need be, where what was found out about products on a device is kept, so that it need not be found out at the next start: of the same device, kernels, driver, library and shapes. Empty: nowhere.
	Remember string
	// Lost, if not nil, is called by the goroutine of an operation after which the device is of no more use, with its error. Nothing that the device holds can be read any more: the
	// process should end, so that another one begins with a fresh device.
	Lost func(error)
}

// Ordinal reads the number of a device's name; false if it is no CUDA device's.
func Ordinal(name string) (int, bool) {
	if name == "cuda" {
		return 0, true
	}
	digits, ok := strings.CutPrefix(name, "cuda:")
	n, err := strconv.Atoi(digits)
	return n, ok && err == nil && n >= 0 && digits == strconv.Itoa(n)
}

// Available tells whether this machine has a CUDA driver and a device that Open would take. The reason is nil if so.
func Available(libraries []string) error {
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return err
	}
	defer driver.Close()
	n, err := driver.Devices()
	if err == nil && n == 0 {
		err = errors.New("the CUDA driver has no devices")
	}
	return err
}

// New opens a device. The caller closes it.
func New(o Options) (tensor.Device, error) {
	ordinal, ok := Ordinal(o.Device)
	if !ok {
		return nil, fmt.Errorf("cuda: device %q: must be cuda or cuda:N", o.Device)
	}
	driver, err := cudart.Open(cudart.Options{Directories: o.Libraries})
	if err != nil {
		return nil, fmt.Errorf("cuda: %w", err)
	}
	v, err := openDevice(driver, ordinal, o, &checks)
	if err != nil {
		driver.Close()
		return nil, fmt.Errorf("cuda: %w", err)
	}
	slog.Info("the routes of products are chosen", "device", fmt.Sprintf("cuda:%d", ordinal), "name", v.info.Name, "routes", v.routes.String(), "remembered", v.routes.Remembered)
	v.TimeKernels(os.Getenv(TimesVariable) != "")
	return checked.New(&device{v: v.Device, driver: driver, info: v.info, name: fmt.Sprintf("cuda:%d", ordinal), library: v.library, routes: v.routes, libraries: o.Libraries, lost: o.Lost}), nil
}

// device is the operations under package checked, which has checked the arguments. One goroutine at a time calls it.
type device struct {
	v      *cudart.Device
	driver *cudart.Driver
	info   cudart.Information
	name   string
	lost   func(error)
	closed bool

	library   *cudart.CuBLASLt // nil: not there, or its bits are others for every shape; else products may use it
	routes    Routes
	libraries []string // see Options

	// Kept between calls, so that operations do not allocate.
	runs           []cudart.Sequence
	stateRuns      []cudart.StateRun
	single, paired []cudart.Multiplication
	rowGroups      []cudart.RowGroup
	outer          []cudart.OuterProduct
	outerGroups    []cudart.OuterGroupJob
	routed         []cudart.RoutedProduct
	outerRouted    []cudart.RoutedOuter

	adjustments []cudart.Adjustment
	draws       []cudart.Draw
	terms       []cudart.LossTerm
	updates     []cudart.AdamWJob
	norms       []float64
	repacks     []cudart.RepackJob

	pacing pacing
}

func (d *device) Name() string { return d.name }

// Segmented implements tensor.Device: every product is one chain of groups of 16, so what several GPUs compute together differs from what one computes by rounding.
func (d *device) Segmented() bool { return false }

// Arithmetic names the architecture, whose tensor cores decide how a group of 16 is summed, the driver, which compiles the kernels, and cuBLASLt where its products of any shape were found to have the kernels' bits. Which shapes it is used
// for is decided by bits and by time, and may be other ones at the next start, with the same bits and so the same name: what is left out is computed by kernels, whose bits the others have.
func (d *device) Arithmetic() string {
	major, minor := d.v.Capability()
	name := fmt.Sprintf("cuda-sm%d%d-driver%d", major, minor, d.v.DriverVersion())
	if d.library != nil {
		name += "-cublaslt" + d.library.Version()
	}
	if d.v.OuterGroupsLoaded() {
		name += "-gradients16"
	}
	return name
}

// Close gives the device back, with all its memory.
func (d *device) Close() error {
	err := errors.Join(d.pacing.free(), d.v.Close())
	d.logTimes()
	d.library.Close()
	d.driver.Close()
	d.closed = true
	return d.failed("close", err)
}

// failed names the operation in an error, and makes the device's lack of memory the interface's.
func (d *device) failed(op string, err error) error {
	if errors.Is(err, cudart.ErrDeviceLost) && d.lost != nil {
		d.lost(fmt.Errorf("%s: %s: %w", d.name, op, err))
	}
	if errors.Is(err, cudart.ErrOutOfMemory) {
		err = fmt.Errorf("%w: %w", err, tensor.ErrMemory)
	}
	if err != nil {
		return fmt.Errorf("cuda: %s: %w", op, err)
	}
	return nil
}

// FreeMemory implements tensor.OwnMemory.
func (d *device) FreeMemory() (int64, error) {
	free, _, err := d.v.Memory()
	return free, d.failed("memory", err)
}

// TotalMemory implements tensor.OwnMemory.
func (d *device) TotalMemory() (int64, error) {
	_, total, err := d.v.Memory()
	return total, d.failed("memory", err)
}

// memory gives zeroed memory.
func (d *device) memory(what string, bytes int) (uintptr, error) {
	at, err := d.v.Alloc(bytes)
	if err != nil {
		return 0, d.failed(what, err)
	}
	if err := d.v.Zero(at, bytes); err != nil {
		return 0, d.failed(what, errors.Join(err, d.v.Free(at)))
	}
	return uintptr(at), nil
}

func (d *device) release(at uintptr) {
	if !d.closed {
		_ = d.v.Free(cudart.Address(at)) // fails for what is not this device's; the pool's own account says so at Close
	}
}

func typeOf(t tensor.DType) cudart.Type {
	if t == tensor.BFloat16 {
		return cudart.BFloat16
	}
	return cudart.Float32
}

// view is a tensor as kernels take it.
func view(t tensor.Tensor) cudart.View {
	v := cudart.View{Rows: int64(t.Rows), Cols: int64(t.Cols), Stride: int64(max(t.Stride, t.Cols))}
	if !t.Empty() {
		v.At = cudart.Address(t.Address())
	}
	return v
}

func (d *device) Alloc(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	at, err := d.memory("alloc", rows*cols*t.Size())
	return allocated(at, t, rows, cols), err
}

func (d *device) AllocUnset(t tensor.DType, rows, cols int) (tensor.Tensor, error) {
	at, err := d.v.Alloc(rows * cols * t.Size())
	return allocated(uintptr(at), t, rows, cols), d.failed("alloc", err)
}

// allocated is a whole tensor at an address; at 0, where there is no memory, none.
func allocated(at uintptr, t tensor.DType, rows, cols int) tensor.Tensor {
	if at == 0 {
		return tensor.Tensor{}
	}
	return tensor.Tensor{Buffer: &tensor.Buffer{Addr: at, Bytes: rows * cols * t.Size()}, Rows: rows, Cols: cols, Stride: cols, DType: t}
}

func (d *device) Free(t tensor.Tensor) { d.release(t.Buffer.Addr) }

// Trim implements tensor.Device. Devices of this process take from each other's pools; this is for other processes. An error of it that matters is that of a lost device, of which failed tells.
func (d *device) Trim() { _ = d.failed("trim", d.v.Trim()) }

func (d *device) Upload(dst tensor.Tensor, src []float32) error {
	v := view(dst)
	return d.failed("upload", d.v.Upload(v.At, int(4*v.Stride), bytesOf(src), int(4*v.Cols), dst.Rows))
}

func (d *device) Download(dst []float32, src tensor.Tensor) error {
	return d.DownloadRows(dst, src.Cols, src)
}

func (d *device) DownloadRows(dst []float32, pitch int, src tensor.Tensor) error {
	v := view(src)
	return d.failed("download", d.v.DownloadRows(bytesOf(dst), 4*pitch, v.At, int(4*v.Stride), int(4*v.Cols), src.Rows))
}
