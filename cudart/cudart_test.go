package cudart

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/tinsmith/tinsmith/cudart/shim"
)

// orders are those of threads that a test runs in: their own and a random one, with E2E_LEVEL=all every one of them.
func orders(random ...string) []string {
	if os.Getenv("E2E_LEVEL") != "all" {
		random = random[:1]
	}
	return append([]string{"0"}, random...)
}

// openDriver opens the driver that needs no GPU.
func openDriver(t *testing.T) *Driver {
	t.Helper()
	d, err := Open(Options{Directories: []string{"", shim.Require(t, shim.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// openDevice gives a device of it. The test fails if it leaves memory behind.
func openDevice(t *testing.T, d *Driver, ordinal int) *Device {
	t.Helper()
	v, err := d.Open(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func alloc(t *testing.T, v *Device, bytes int) Address {
	t.Helper()
	a, err := v.Alloc(bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, ok := v.pool.taken[a]; ok {
			if err := v.Free(a); err != nil {
				t.Error(err)
			}
		}
	})
	return a
}

// What was found out about kernels holds for them all, those of modules that Hopper alone has among them.
func TestKernelsHash(t *testing.T) {
	for _, c := range []struct {
		info    Information
		modules []string
	}{{Information{Major: 8, Minor: 9}, nil}, {Information{Major: 9}, []string{warpgroupModule, bulkModule, attentionModule, outerModule}}} {
		_, text, err := ptx(c.info.Major, c.info.Minor)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range c.modules {
			more, err := module(name)
			if err != nil {
				t.Fatal(err)
			}
			text = append(text, more...)
		}
		want := sha256.Sum256(text)
		if got, err := c.info.KernelsHash(); err != nil || got != hex.EncodeToString(want[:]) {
			t.Errorf("%d.%d: %s, %v; want %x", c.info.Major, c.info.Minor, got, err, want)
		}
	}
}

// The PTX has exactly the kernels of the table, with their numbers of threads: a launch with another would fail on a device only.
func TestKernelTable(t *testing.T) {
	entry := regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), 1, 1\b`)
	for _, arch := range []struct {
		major, minor int
		want         string
	}{{8, 0, "sm_80"}, {8, 9, "sm_80"}, {9, 0, "sm_90a"}, {10, 0, "sm_80"}, {12, 0, "sm_80"}} {
		t.Run(fmt.Sprintf("%d.%d", arch.major, arch.minor), func(t *testing.T) {
			name, text, err := ptx(arch.major, arch.minor)
			if err != nil {
				t.Fatal(err)
			}
			if name != arch.want || !bytes.Contains(text, []byte(".target "+arch.want+"\n")) {
				t.Errorf("kernels for %s, want %s", name, arch.want)
			}
			have := map[string]int{}
			for _, m := range entry.FindAllStringSubmatch(string(text), -1) {
				have[m[1]], err = strconv.Atoi(m[2])
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, k := range kernels {
				if have[k.name] != k.threads {
					t.Errorf("kernel %s: %d threads in the table, %d in the PTX", k.name, k.threads, have[k.name])
				}
				delete(have, k.name)
			}
			for name := range have {
				t.Errorf("kernel %s is not in the table", name)
			}
		})
	}
}

// Every number names the kernel that is meant.
func TestKernelNumbers(t *testing.T) {
	if len(kernels) > kWarpgroup {
		t.Errorf("%d kernels have numbers of the module that follows, which begin at %d", len(kernels), kWarpgroup)
	}
	for number, name := range map[int]string{kAdd: "add", kPackRows: "pack_rows", kNorm: "rms_norm", kNormBackwardNarrow: "rms_norm_backward_narrow", kRope: "rope",
		kOuterProduct: "outer_product", kProduct: "product_16x32", kProductTransposed + 4: "product_transposed_128x128", kCopyPage: "copy_page", kHeadsBackward: "heads_backward", kAttention: "attention_32",
		kAttentionFew + 1: "attention_few_64", kAttentionPart + 2: "attention_part_128", kAttentionMerge: "attention_merge", kAttentionDelta: "attention_delta",
		kAttentionBackwardKeys: "attention_backward_keys_32", kAttentionBackwardQueries + 2: "attention_backward_queries_128", kTensorAttention: "tensor_attention_64",
		kTensorAttentionPart + 1: "tensor_attention_part_128", kTensorAttentionBackwardQueries: "tensor_attention_backward_queries_64", kLogSumExp: "log_sum_exp",
		kSoftmaxGradient: "softmax_gradient", kAdamW: "adamw", kSumPartials: "sum_partials",
		kHeadsBackwardWide: "heads_backward_wide", kTensorAttentionBackwardQueries + 2: "tensor_attention_backward_queries_256", kMaskColumns: "mask_columns", kConv: "conv", kDeltaRule256: "delta_rule_256",
		kDeltaGradients: "delta_gradients", kSink: "sink", kAddRoutedBackward: "add_routed_backward", kSigmoidGateBackward: "sigmoid_gate_backward"} {
		if kernels[number].name != name {
			t.Errorf("number %d is %s, want %s", number, kernels[number].name, name)
		}
	}
}

func TestInformation(t *testing.T) {
	d := openDriver(t)
	info, err := d.Information(0)
	if err != nil {
		t.Fatal(err)
	}
	if info.Name != "no GPU: kernels on the processor" || info.Major != 9 || info.Multiprocessors != 2 || info.Memory != 1<<30 {
		t.Errorf("%+v", info)
	}
	if info.Clock != 0 || info.UUID != strings.Repeat("ab", 15)+"00" {
		t.Errorf("clock %d, UUID %s", info.Clock, info.UUID)
	}
	t.Setenv("FAKE_CUDA_CLOCK", "1980000")
	if info, err = d.Information(0); err != nil || info.Clock != 1980e6 {
		t.Errorf("clock %d, error %v", info.Clock, err)
	}
	if d.Version() != 12080 || filepath.Base(d.Path()) != "libcuda.so.1" {
		t.Errorf("version %d at %s", d.Version(), d.Path())
	}
}

// Peaks are those of NVIDIA's data sheets, of dense products of bfloat16 with sums in float32 and of float32 without tensor cores, to what their clocks are rounded to.
func TestPeakRates(t *testing.T) {
	for _, c := range []struct {
		name              string
		info              Information
		bfloat16, float32 float64
	}{
		{"A100", Information{Major: 8, Multiprocessors: 108, Clock: 1410e6}, 312e12, 19.5e12},
		{"H100 SXM", Information{Major: 9, Multiprocessors: 132, Clock: 1830e6}, 989e12, 61.8e12},
		{"B200", Information{Major: 10, Multiprocessors: 148, Clock: 1860e6}, 2250e12, 70.5e12},
		{"RTX 4090", Information{Major: 8, Minor: 9, Multiprocessors: 128, Clock: 2520e6}, 165e12, 82.6e12},
		{"not told", Information{Major: 9, Multiprocessors: 132}, 0, 0},
	} {
		if got := c.info.BFloat16Rate(); math.Abs(got-c.bfloat16) > 0.01*c.bfloat16 {
			t.Errorf("%s: %g, want %g", c.name, got, c.bfloat16)
		}
		if got := c.info.Float32Rate(); math.Abs(got-c.float32) > 0.01*c.float32 {
			t.Errorf("%s: %g in float32, want %g", c.name, got, c.float32)
		}
	}
}

// Kernels are loaded when a device is opened, unless the environment has it otherwise.
func TestModulesAreLoadedEagerly(t *testing.T) {
	for set, want := range map[string]string{"": eagerly, "LAZY": "LAZY"} {
		t.Setenv(moduleLoading, set) // which puts back what there was
		if set == "" {
			os.Unsetenv(moduleLoading)
		}
		file := filepath.Join(t.TempDir(), "calls")
		t.Setenv("FAKE_CUDA_COUNT", file)
		openDriver(t)
		calls, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(calls), "modules "+want+"\n") {
			t.Errorf("with %q: calls %q, want modules loaded %s", set, calls, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		name, variable, value string
		ordinal               int
		want                  string
	}{
		{"too old a driver", "FAKE_CUDA_VERSION", "11080", 0, "supports CUDA 11.8: 12.0 is needed"},
		{"no devices", "FAKE_CUDA_DEVICES", "0", 0, "this machine has 0 CUDA devices that this process may use"},
		{"a number too high", "FAKE_CUDA_DEVICES", "2", 2, "cuda:2: this machine has 2 CUDA devices"},
		{"a negative number", "FAKE_CUDA_DEVICES", "1", -1, "cuda:-1: this machine has 1 CUDA devices"},
		{"too old a device", "FAKE_CUDA_MAJOR", "7", 0, "compute capability 7.0: 8.0 is needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := shim.Require(t, shim.Options{})
			t.Setenv(c.variable, c.value)
			d, err := Open(Options{Directories: []string{dir}})
			if err == nil {
				defer d.Close()
				_, err = d.Open(c.ordinal)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// Where there is no driver the error says that there are no devices, what was looked for and where.
func TestNoDriver(t *testing.T) {
	empty := t.TempDir()
	if d, err := Open(Options{}); err == nil {
		d.Close()
		t.Skip("this machine has a CUDA driver")
	}
	_, err := Open(Options{Directories: []string{empty}})
	if !errors.Is(err, ErrNoDriver) || !strings.HasPrefix(err.Error(), "this machine has 0 CUDA devices that this process may use: no CUDA driver was found: libcuda.so.1 ") || !strings.Contains(err.Error(), filepath.Join(empty, "libcuda.so.1")) {
		t.Errorf("error %v", err)
	}
	wrong := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(wrong, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Directories: []string{filepath.Dir(wrong)}}); err == nil || !strings.Contains(err.Error(), wrong) {
		t.Errorf("error %v, want %s in it", err, wrong)
	}
}

// The error of a library that is nowhere names each place that was searched, once: the folders that were given, the value of LD_LIBRARY_PATH, the roots of Python environments.
func TestPlacesOfAMissingLibrary(t *testing.T) {
	const name = "libtinsmith-absent.so"
	given, environment := t.TempDir(), t.TempDir()
	t.Setenv("VIRTUAL_ENV", environment)
	for _, c := range []struct{ name, path, want string }{
		{"set", "/opt/ld:/opt/other", `LD_LIBRARY_PATH "/opt/ld:/opt/other" and the system's cache: `},
		{"not set", "", "LD_LIBRARY_PATH, which is not set, and the system's cache: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("LD_LIBRARY_PATH", c.path)
			_, err := search([]string{name}, []string{given}, func(path string) error { return fmt.Errorf("%s: no such file", path) })
			for _, want := range []string{c.want + name + ": no such file", "(" + filepath.Join(given, name) + ": no such file; ", "below " + environment + ", ", ", /usr/local, /usr: ", "/usr/lib/wsl/lib"} {
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("error %v, want %q in it", err, want)
				}
			}
		})
	}
}

// The loader takes the first place that works: given folders, the system, an active Python environment.
func TestLibraryOrder(t *testing.T) {
	environment := t.TempDir()
	packaged := filepath.Join(environment, "lib", "python3.11", "site-packages", "nvidia", "cublas", "lib", "libx.so")
	if err := os.MkdirAll(filepath.Dir(packaged), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(packaged, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("VIRTUAL_ENV", environment)
	for _, c := range []struct {
		name    string
		refused []string
		want    string
	}{
		{"given", nil, "/given/libx.so"},
		{"system", []string{"/given/libx.so"}, "libx.so"},
		{"package", []string{"/given/libx.so", "libx.so"}, packaged},
		{"nowhere", []string{"/given/libx.so", "libx.so", packaged}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, err := search([]string{"libx.so"}, []string{"", "/given"}, func(path string) error {
				for _, r := range c.refused {
					if path == r {
						return fmt.Errorf("refused %s", path)
					}
				}
				return nil
			})
			if path != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v; want %q", path, err, c.want)
			}
			for _, r := range c.refused {
				if err != nil && !strings.Contains(err.Error(), "refused "+r) {
					t.Errorf("the error does not tell of %s: %v", r, err)
				}
			}
		})
	}
}

func used(t *testing.T, v *Device) int64 {
	t.Helper()
	free, total, err := v.Memory()
	if err != nil {
		t.Fatal(err)
	}
	return total - free
}

// A step that repeats asks the driver for nothing.
func TestPool(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	first := alloc(t, v, 1000)
	if err := v.Free(first); err != nil {
		t.Fatal(err)
	}
	before := used(t, v)
	t.Setenv("FAKE_CUDA_FAIL", "cuMemAlloc_v2:1:2")
	again := alloc(t, v, 700) // of the same rounded size
	if again != first || used(t, v) != before {
		t.Errorf("memory at %#x after %#x was freed, %d bytes more", again, first, used(t, v)-before)
	}
	if err := v.Free(again); err != nil {
		t.Fatal(err)
	}
	for name, a := range map[string]Address{"freed twice": again, "not allocated": again + 8, "null": 0} {
		if err := v.Free(a); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// What is kept for reuse goes back before an allocation fails.
func TestOutOfMemory(t *testing.T) {
	t.Setenv("FAKE_CUDA_MEMORY", strconv.Itoa(64<<20))
	v := openDevice(t, openDriver(t), 0)
	for size := 10; size < 40; size += 10 {
		if err := v.Free(alloc(t, v, size<<20)); err != nil {
			t.Fatal(err)
		}
	}
	alloc(t, v, 40<<20)
	if _, err := v.Alloc(40 << 20); !errors.Is(err, ErrOutOfMemory) || !strings.Contains(err.Error(), "41943040 bytes") {
		t.Errorf("error %v", err)
	}
}

// Devices of one GPU have what the others keep, when all that was put off and put into streams is done with it. What there would be no room for all the same leaves it to them.
func TestMemoryOfOtherDevices(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	t.Setenv("FAKE_CUDA_MEMORY", strconv.Itoa(64<<20))
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	d := openDriver(t)
	v, other, elsewhere := openDevice(t, d, 0), openDevice(t, d, 0), openDevice(t, d, 1)
	const large = 30 << 20
	if err := elsewhere.Free(alloc(t, elsewhere, large)); err != nil {
		t.Fatal(err)
	}
	to := View{At: alloc(t, other, 4), Rows: 1, Cols: 1, Stride: 1}
	if err := other.Record(func() error {
		a := alloc(t, other, large)
		from := View{At: a, Rows: 1, Cols: 1, Stride: 1}
		err := errors.Join(other.Zero(to.At, 4), other.Upload(a, 4, []byte{0, 0, 128, 63}, 4, 1), other.Add(to, from), other.Free(a))
		if err != nil {
			return err
		}
		if _, err := v.Alloc(60 << 20); !errors.Is(err, ErrOutOfMemory) || other.pool.kept() == 0 {
			t.Errorf("error %v; %d bytes are kept", err, other.pool.kept())
		}
		alloc(t, v, large)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := other.Download(got, to.At, 4, 4, 1); err != nil || floats(got)[0] != 1 {
		t.Errorf("%v, %v", floats(got), err)
	}
	if other.pool.kept() != 0 || elsewhere.pool.kept() == 0 {
		t.Errorf("the device keeps %d bytes, one of another GPU %d", other.pool.kept(), elsewhere.pool.kept())
	}
}

// Two goroutines, each with a device of one GPU, get all of its memory in turns.
func TestMemoryOfOneGPUInTurns(t *testing.T) {
	t.Setenv("FAKE_CUDA_MEMORY", strconv.Itoa(64<<20))
	d := openDriver(t)
	var turns sync.Mutex
	var done sync.WaitGroup
	for _, v := range []*Device{openDevice(t, d, 0), openDevice(t, d, 0)} {
		done.Go(func() {
			for i := range 20 {
				small, err := v.Alloc(4 << 20) // beside the other one's turn
				if err != nil {
					t.Error(err)
					return
				}
				turns.Lock()
				a, err := v.Alloc(32<<20 + i%2<<20)
				if err == nil {
					err = errors.Join(v.Zero(a, 8), v.Free(a))
				}
				turns.Unlock()
				if err := errors.Join(err, v.Free(small)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done.Wait()
}

// A leak is said when the device is closed, and given back all the same.
func TestLeak(t *testing.T) {
	d := openDriver(t)
	v, err := d.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Alloc(10); err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err == nil || !strings.Contains(err.Error(), "1 allocations have not been freed") {
		t.Errorf("error %v", err)
	}
	if err := v.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	if _, err := v.Alloc(10); err == nil {
		t.Error("memory of a closed device")
	}
	if other := openDevice(t, d, 0); used(t, other) > 2*stageHalf {
		t.Errorf("%d bytes in use on a fresh device", used(t, other))
	}
}

// Whatever fails while a device is opened, the error names it and everything is given back.
func TestOpenFails(t *testing.T) {
	d := openDriver(t)
	for _, call := range []string{"cuDeviceGetCount", "cuDeviceGetName", "cuDeviceTotalMem_v2", "cuDeviceGetAttribute", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate",
		"cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncSetAttribute", "cuMemHostAlloc", "cuMemAlloc_v2", "cuEventCreate"} {
		t.Run(call, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_FAIL", call+":1:1")
			v, err := d.Open(0)
			if err == nil {
				t.Fatal(errors.Join(errors.New("no error"), v.Close()))
			}
			var e *Error
			if !errors.As(err, &e) || e.Name != "CUDA_ERROR_INVALID_VALUE" {
				t.Errorf("error %v", err)
			}
			t.Setenv("FAKE_CUDA_FAIL", "")
			if other := openDevice(t, d, 0); used(t, other) > 2*stageHalf {
				t.Errorf("%d bytes in use on a fresh device", used(t, other))
			}
		})
	}
}

// Errors are told apart: out of memory can be met, a fault ends the process.
func TestErrorClasses(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	a := alloc(t, v, 4)
	x := View{At: a, Rows: 1, Cols: 1, Stride: 1}
	type class struct {
		code         int
		lost, memory bool
	}
	classes := []class{{1, false, false}, {2, false, true}, {400, false, false}, {500, false, false}, {701, false, false}, {704, false, false}}
	for _, code := range []int{46, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999} {
		classes = append(classes, class{code, true, false})
	}
	for _, c := range classes {
		t.Setenv("FAKE_CUDA_FAIL", fmt.Sprintf("cuLaunchKernel:1:%d", c.code))
		err := v.Add(x, x)
		if errors.Is(err, ErrDeviceLost) != c.lost || errors.Is(err, ErrOutOfMemory) != c.memory || !strings.Contains(err.Error(), "add: ") {
			t.Errorf("code %d: %v", c.code, err)
		}
	}
	t.Setenv("FAKE_CUDA_FAIL", "")
	if err := v.Add(View{At: a, Rows: 1 << 31, Cols: 1, Stride: 1}, x); err == nil {
		t.Error("a grid that no device takes: no error")
	}
}

func floats(b []byte) []float32 { return unsafe.Slice((*float32)(unsafe.Pointer(&b[0])), len(b)/4) }

// Copies of every shape arrive, also those that are larger than the staging memory, and leave what is between rows alone.
func TestCopies(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	for _, c := range []struct{ width, pitch, rows int }{
		{4, 4, 1}, {4, 12, 3}, {1000, 1000, 77}, {1000, 1024, 5000}, {stageHalf + 20, stageHalf + 24, 2}, {3 * stageHalf, 3 * stageHalf, 1}, {0, 8, 3}, {8, 8, 0},
	} {
		t.Run(fmt.Sprintf("%d of %d bytes, %d rows", c.width, c.pitch, c.rows), func(t *testing.T) {
			a := alloc(t, v, c.pitch*c.rows)
			if err := v.Zero(a, c.pitch*c.rows); err != nil {
				t.Fatal(err)
			}
			data := make([]byte, c.width*c.rows)
			for i := range data {
				data[i] = byte(i*7 + i>>8 + 1)
			}
			if err := v.Upload(a, c.pitch, data, c.width, c.rows); err != nil {
				t.Fatal(err)
			}
			got, all := make([]byte, len(data)), make([]byte, c.pitch*c.rows)
			if err := v.Download(got, a, c.pitch, c.width, c.rows); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, data) {
				t.Error("other bytes came back")
			}
			for i := range all {
				all[i] = 3
			}
			if err := v.DownloadRows(all, c.pitch, a, c.pitch, c.width, c.rows); err != nil {
				t.Fatal(err)
			}
			for r := range c.rows {
				if row := all[r*c.pitch : (r+1)*c.pitch]; !bytes.Equal(row[:c.width], data[r*c.width:(r+1)*c.width]) || bytes.ContainsFunc(row[c.width:], func(r rune) bool { return r != 3 }) {
					t.Fatalf("row %d came back as something else, or something beside it was written", r)
				}
			}
			if err := v.Download(all, a, c.pitch, c.pitch, c.rows); err != nil {
				t.Fatal(err)
			}
			for r := range c.rows {
				if i := bytes.IndexFunc(all[r*c.pitch+c.width:(r+1)*c.pitch], func(r rune) bool { return r != 0 }); i >= 0 {
					t.Fatalf("row %d: byte %d behind it was written", r, i)
				}
			}
		})
	}
}

// Lists stay where they are until their kernel has run, through many turns of the staging memory.
func TestPut(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	for _, n := range []int{0, 1, 1 << 20, stageHalf/4 + 1, 100, 1 << 20, 1 << 20} {
		data := bytes.Repeat([]byte{0, 0, 128, 63}, n) // ones
		at, release, err := v.Put(data)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			x := View{At: at, Rows: 1, Cols: int64(n), Stride: int64(n)}
			if err := v.Add(x, x); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4)
			if err := v.Download(got, at+Address(4*(n-1)), 4, 4, 1); err != nil {
				t.Fatal(err)
			}
			if floats(got)[0] != 2 {
				t.Errorf("%d elements: the last is %v", n, floats(got)[0])
			}
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
	if n := v.Allocations(); n != 1 {
		t.Errorf("%d allocations, want the staging memory's", n)
	}
}

func TestEventsAndPeers(t *testing.T) {
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	d := openDriver(t)
	a, b := openDevice(t, d, 0), openDevice(t, d, 1)
	if can, err := a.EnablePeer(b); err != nil || !can {
		t.Fatalf("peer access: %v, %v", can, err)
	}
	x, y := alloc(t, a, 8), alloc(t, b, 8)
	if err := a.Upload(x, 8, []byte("eight by"), 8, 1); err != nil {
		t.Fatal(err)
	}
	ready, err := a.NewEvent(false)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 8)
	for _, step := range []func() error{ready.Record, func() error { return ready.Order(b) }, func() error { return b.Copy(y, a, x, 8) }, ready.Wait,
		func() error { return b.Download(got, y, 8, 8, 1) }, ready.Free} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	if string(got) != "eight by" {
		t.Errorf("%q arrived", got)
	}
	if err := ready.Free(); err == nil {
		t.Error("an event freed twice: no error")
	}
}

// Where streams run late, what one device reads of another's is there only if it waits for it.
func TestLateStreams(t *testing.T) {
	t.Setenv("FAKE_CUDA_LATE", "1")
	d := openDriver(t)
	for _, c := range []struct {
		name  string
		order bool
	}{{"ordered", true}, {"not ordered", false}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := openDevice(t, d, 0), openDevice(t, d, 0)
			x, y := alloc(t, a, 4), alloc(t, b, 4)
			if err := errors.Join(a.Upload(x, 4, []byte{0, 0, 128, 63}, 4, 1), b.Zero(y, 4)); err != nil {
				t.Fatal(err)
			}
			if c.order {
				e, err := a.NewEvent(false)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(e.Record(), e.Order(b), e.Free()); err != nil {
					t.Fatal(err)
				}
			}
			one := func(at Address) View { return View{At: at, Rows: 1, Cols: 1, Stride: 1} }
			if err := b.Add(one(y), one(x)); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 4)
			if err := b.Download(got, y, 4, 4, 1); err != nil {
				t.Fatal(err)
			}
			if (floats(got)[0] == 1) != c.order {
				t.Errorf("%v", floats(got)[0])
			}
		})
	}
}

// A device with less shared memory than an H200 runs all kernels but the largest, and says so before any is launched.
func TestSharedMemory(t *testing.T) {
	for _, c := range []struct {
		name   string
		shared int
		pages  Cache
		want   string
	}{
		{"all of it", 227 << 10, Cache{Dim: 128, Type: Float32}, ""},
		{"99 KiB, bfloat16", 99 << 10, Cache{Dim: 128, Type: BFloat16}, ""},
		{"99 KiB, float32, small heads", 99 << 10, Cache{Dim: 64, Type: Float32}, ""},
		{"99 KiB, float32, large heads", 99 << 10, Cache{Dim: 128, Type: Float32}, "attention_backward_keys_128 needs 115712 bytes of shared memory per block, and"},
		{"163 KiB, bfloat16, heads of 256", 163 << 10, Cache{Dim: 256, Type: BFloat16}, ""},
		{"163 KiB, float32, heads of 256", 163 << 10, Cache{Dim: 256, Type: Float32}, "attention_backward_keys_256 needs 214016 bytes of shared memory per block, and"},
		{"227 KiB, float32, heads of 256", 227 << 10, Cache{Dim: 256, Type: Float32}, ""},
		{"a head that is too large", 227 << 10, Cache{Dim: 264, Type: BFloat16}, "head dimension 264: must be at most 256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_SHARED", strconv.Itoa(c.shared))
			v := openDevice(t, openDriver(t), 0)
			err := v.Supports(c.pages)
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want one with %q", err, c.want)
			}
		})
	}
}
