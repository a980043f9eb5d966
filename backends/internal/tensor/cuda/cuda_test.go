package cuda_test

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/optest"
	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// open gives a device and closes it with the test.
func open(t *testing.T, o cuda.Options) tensor.Device {
	t.Helper()
	d, err := cuda.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// promises is what the device says of itself beyond the interface.
var promises = optest.Options{RoundedAttention: true, ChoicesUnseen: true}

// slowly is promises of a device on the processor; with E2E_LEVEL=all as much is tested as on a GPU.
func slowly() optest.Options {
	o := promises
	o.Slow = os.Getenv("E2E_LEVEL") != "all"
	return o
}

// onProcessor gives a device whose kernels run on the processor.
func onProcessor(t *testing.T) tensor.Device {
	t.Helper()
	return open(t, cuda.Options{Device: "cuda:0", Libraries: []string{shim.Require(t, shim.Options{Sanitize: os.Getenv(sanitized) != ""})}})
}

// kernelsFile names the variable of the driver without a GPU that names a file for what becomes of every kernel.
const kernelsFile = "FAKE_CUDA_KERNELS"

// everyKernel fails if there are kernels that a device is opened with and does not run in a test. Where -run names parts of tests, some are not.
func everyKernel(t *testing.T, test func()) {
	t.Helper()
	if strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		test()
		return
	}
	file := filepath.Join(t.TempDir(), "kernels")
	t.Setenv(kernelsFile, file)
	test()
	wantEveryKernel(t, file)
}

// wantEveryKernel checks that all kernels that were looked up, by the file, were run.
func wantEveryKernel(t *testing.T, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var loaded []string
	run := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		switch what, name, _ := strings.Cut(strings.TrimSpace(line), " "); what {
		case "loaded":
			loaded = append(loaded, name)
		case "run":
			run[name] = true
		}
	}
	never := slices.DeleteFunc(slices.Clone(loaded), func(name string) bool { return run[name] })
	if len(loaded) == 0 || len(never) > 0 {
		t.Errorf("of %d kernels these were never run: %q", len(loaded), never)
	}
}

// sanitized is set in the process that TestSanitizer starts.
const sanitized = "TINSMITH_CUDA_SANITIZED"

// Every operation of the interface, by the kernels' own text on the processor. Threads run in a random order that is another in every launch, so the comparisons of bits are
// comparisons of orders as well.
func TestOperations(t *testing.T) {
	t.Setenv("FAKE_CUDA_ORDER", "20260101")
	everyKernel(t, func() { optest.RunAll(t, onProcessor(t), slowly()) })
}

// The lengths at which blocks of 64 begin and end, empty and single rows, and many adapters, in a random order of threads, with E2E_LEVEL=all in three; every kernel in each.
func TestRaggedLengths(t *testing.T) {
	orders := []string{"1", "20260102", "987654321"}
	if os.Getenv("E2E_LEVEL") != "all" {
		orders = orders[:1]
	}
	for _, order := range orders {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			everyKernel(t, func() { optest.RunRagged(t, onProcessor(t), slowly()) })
		})
	}
}

// sanitizedTests are the tests that TestSanitizer runs: of those that run each kernel the quickest, of operations that are many kernels at many lengths more than one.
var sanitizedTests = strings.Join([]string{
	"TestOperations/(values|drawing|fused)/^(adjustments|masks_of_65_|(1×1|3×17|2×257)_to|heads_.*lengths_.(3_0_70|17|0)._|65_columns|attention_.*lengths_.(([0-9]+|7_200_13)._heads_(6/2|4/2|15/1)|1_3_5_1|9_2|3_0_5|64_1_65|4166)|.*(matmul|outer).*(1×33×7|7×65×513|64×320×527|0×32×32|300×129)|(rms|swiglu|add|scale|round|rope|log-sum|adamw|sum|gather).*[^0-9](1×3|3×17|33×70|0×8|9×2×40×24|5×4096|3×17_step_1))",
	"TestOperations/^(packing|groups|eight_bits|products_of_adapters|layers_with_one_input|page_copies|derivatives)",
	"TestOperations/(sinks_values|fused_with_sinks)/^(attention_.*lengths_.(1|3_0_5|150|130_9)._|clamped_swiglu_(1×1|5×100)|biases_of_experts_(7|40|9)_tokens|3×2×17|5×64×64)",
	"TestRaggedLengths/order_1$/^(65_rows|many_rows|drawing|17_adapters|(route|dispatch|spread|combine|routed_outer).*|routed_matmul.*shared_false)",
}, "|")

// The kernels stay within their memory, shared and global: the compiler's checks say so of every one, in a process of their own.
func TestSanitizer(t *testing.T) {
	shim.Require(t, shim.Options{Sanitize: true})
	environment, err := shim.SanitizerEnvironment(t.Context())
	if err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "kernels")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", sanitizedTests, "-test.v")
	cmd.Env = append(append(os.Environ(), environment...), sanitized+"=1", kernelsFile+"="+file)
	out, err := cmd.CombinedOutput()
	passed := func(what string) int { return strings.Count(string(out), "--- PASS: "+what+"/") }
	if err != nil || passed("TestOperations/values") < 20 || passed("TestOperations/drawing") < 5 || passed("TestOperations/fused") < 15 || passed("TestOperations/layers_with_one_input") < 30 || passed("TestRaggedLengths/order_1") < 30 {
		t.Fatalf("%d cases of values, %d of drawing, %d of fused operations, %d of layers and %d of ragged lengths, %v:\n%s",
			passed("TestOperations/values"), passed("TestOperations/drawing"), passed("TestOperations/fused"), passed("TestOperations/layers_with_one_input"), passed("TestRaggedLengths/order_1"), err, out)
	}
	wantEveryKernel(t, file)
}

// So do the products by warpgroups, in the process that checks them.
func TestWarpgroupsSanitizer(t *testing.T) {
	dir := shim.Require(t, shim.Options{Sanitize: true})
	environment, err := shim.SanitizerEnvironment(t.Context())
	if err != nil {
		t.Skip(err)
	}
	for _, variable := range append(environment, "FAKE_CUDA_ORDER=20261122") {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	if err := cuda.CheckWarpgroups(0, []string{dir}); err != nil {
		t.Error(err)
	}
}

// So does attention by warpgroups, which also says how long it takes. With E2E_LEVEL=all only: it takes a minute.
func TestAttentionSanitizer(t *testing.T) {
	if os.Getenv("E2E_LEVEL") != "all" {
		t.Skip("runs with E2E_LEVEL=all")
	}
	dir := shim.Require(t, shim.Options{Sanitize: true})
	environment, err := shim.SanitizerEnvironment(t.Context())
	if err != nil {
		t.Skip(err)
	}
	for _, variable := range append(environment, "FAKE_CUDA_ORDER=20261128") {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	found, err := cuda.CheckAttention(0, []string{dir})
	if err != nil || found.Forward.Groups <= 0 || found.Backward.Groups <= 0 {
		t.Errorf("%+v, error %v", found, err)
	}
}

// On a machine with a GPU the same holds there.
func TestOperationsOnDevice(t *testing.T) {
	if err := cuda.Available(nil); err != nil {
		t.Skipf("no CUDA device: %v", err)
	}
	d := open(t, cuda.Options{Device: "cuda:0"})
	optest.RunAll(t, d, promises)
	optest.RunRagged(t, d, promises)
}

func TestOrdinal(t *testing.T) {
	for name, want := range map[string]int{"cuda": 0, "cuda:0": 0, "cuda:7": 7, "cuda:-1": -1, "cuda:": -1, "cuda:07": -1, "cuda:x": -1, "cpu": -1, "": -1} {
		n, ok := cuda.Ordinal(name)
		if ok != (want >= 0) || (ok && n != want) {
			t.Errorf("%q is %d, %v", name, n, ok)
		}
	}
}

func TestOpenFails(t *testing.T) {
	dir := shim.Require(t, shim.Options{})
	for name, o := range map[string]cuda.Options{
		`device "cpu": must be cuda or cuda:N`:    {Device: "cpu", Libraries: []string{dir}},
		"cuda:3: this machine has 1 CUDA devices": {Device: "cuda:3", Libraries: []string{dir}},
	} {
		if _, err := cuda.New(o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want %q", err, name)
		}
	}
	if err := cuda.Available([]string{dir}); err != nil {
		t.Errorf("the driver that needs no GPU is not available: %v", err)
	}
}

// A kernel that faults is told from a lack of memory, and names the operation.
func TestErrors(t *testing.T) {
	lost := 0
	d := open(t, cuda.Options{Device: "cuda:0", Libraries: []string{shim.Require(t, shim.Options{})}, Lost: func(err error) {
		lost++
		if !strings.HasPrefix(err.Error(), "cuda:0: ") {
			t.Errorf("the loss does not name the device: %v", err)
		}
	}})
	x, err := d.Alloc(tensor.Float32, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Free(x)
	wantLost := 0
	for _, c := range []struct {
		plan   string
		run    func() error
		target error
		want   string
	}{
		{"cuLaunchKernel:1:719", func() error { return d.Add(x, x) }, cudart.ErrDeviceLost, "cuda: add: add: CUDA_ERROR_LAUNCH_FAILED"},
		{"cuMemAlloc_v2:1:2", func() error { _, err := d.Alloc(tensor.Float32, 1000, 1000); return err }, cudart.ErrOutOfMemory, "cuda: alloc: 4194304 bytes"},
		{"cuMemcpyHtoDAsync_v2:1:1", func() error { return d.Upload(x, make([]float32, 6)) }, nil, "cuda: upload: cuMemcpyHtoD"},
		{"cuStreamSynchronize:1:700", func() error { return d.Download(make([]float32, 6), x) }, cudart.ErrDeviceLost, "cuda: download: cuStreamSynchronize"},
	} {
		t.Setenv("FAKE_CUDA_FAIL", c.plan)
		err := c.run()
		t.Setenv("FAKE_CUDA_FAIL", "")
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || (c.target != nil && !errors.Is(err, c.target)) {
			t.Errorf("%s: %v, want %q", c.plan, err, c.want)
		}
		if errors.Is(c.target, cudart.ErrDeviceLost) {
			wantLost++
		}
		if lost != wantLost || errors.Is(err, tensor.ErrMemory) != errors.Is(c.target, cudart.ErrOutOfMemory) {
			t.Errorf("%s: told of %d losses, want %d; %v", c.plan, lost, wantLost, err)
		}
	}
	if err := d.Add(x, x); err != nil {
		t.Errorf("after the errors: %v", err)
	}
}

// A device that computes nothing, for the plan of memory, has matrices of the same size, and has kernels for what this one has.
func TestDryDevice(t *testing.T) {
	d := onProcessor(t)
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, shape := range [][2]int{{1, 1}, {6, 33}, {33, 64}, {65, 130}} {
			var bytes []int
			for _, d := range []tensor.Device{d, dry.Remote{}} {
				m, err := d.NewMatrix(dtype, shape[0], shape[1])
				if err != nil {
					t.Fatal(err)
				}
				bytes = append(bytes, m.Bytes())
				m.Free()
			}
			if bytes[0] != bytes[1] {
				t.Errorf("%v of %v takes %d bytes, planned %d", dtype, shape, bytes[0], bytes[1])
			}
		}
	}
	for _, shape := range [][3]int{{1, 1, 2}, {33, 77, 64}, {256, 300, 128}} {
		var bytes []int
		for _, d := range []tensor.Device{d, dry.Remote{}} {
			m, err := d.NewE4M3Matrix(shape[0], shape[1], shape[2])
			if err != nil {
				t.Fatal(err)
			}
			bytes = append(bytes, m.Bytes())
			m.Free()
		}
		if bytes[0] != bytes[1] || int64(bytes[0]) != (int64(shape[0])+31)/32*cudart.E4M3GroupBytes(int64(shape[1]), int64(shape[2])) {
			t.Errorf("%v in eight bits takes %d bytes, planned %d", shape, bytes[0], bytes[1])
		}
	}
	if a, b := d.HasE4M3(), (dry.Remote{}).HasE4M3(); a != b {
		t.Errorf("eight bits: %v, planned %v", a, b)
	}
	if a, b := d.HasRecurrence(), (dry.Remote{}).HasRecurrence(); a != b {
		t.Errorf("recurrence: %v, planned %v", a, b)
	}
}

// A pass that computes nothing, for the plan of memory, keeps queries as the device does.
func TestQueryTypes(t *testing.T) {
	d := onProcessor(t)
	for _, dtype := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
		for _, headDim := range []int{4, 8, 12, 36, 64, 128, 256} {
			var types []tensor.DType
			for _, d := range []tensor.Device{d, dry.Remote{}} {
				pages, err := d.NewPages(dtype, 1, 1, 1, headDim)
				if err != nil {
					t.Fatal(err)
				}
				types = append(types, d.(tensor.Fuser).QueryType(pages))
				pages.Free()
			}
			if types[0] != types[1] || (types[0] == tensor.BFloat16) != (dtype == tensor.BFloat16 && headDim%8 == 0) {
				t.Errorf("%v pages of dimension %d: queries are %v", dtype, headDim, types)
			}
		}
	}
}
