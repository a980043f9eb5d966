package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/cudart"
)

// The model of cost: a launch takes the longest of its operations at the rate that its class of kernels is expected to reach, its bytes at the class's
// share of the memory's speed, its longest chain of dependent steps, and, of products in tiles, what all blocks and the blocks of a multiprocessor read
// through the second-level cache; and what every launch takes beside. Fewer blocks than multiprocessors reach that part of the rate. **Every number here is
// an estimate**, from counting instructions, shared memory and second-level cache in the assembler's output, until a device has been measured.

// class is kernels that are expected to reach the same.
type class struct {
	kernels string  // their names begin with one of these, by commas; the first class that fits is a kernel's
	flop    float64 // TFLOP/s
	share   float64 // of what a copy reaches of the memory
	step    float64 // µs of a step of the longest chain; 0: it is hidden
}

// gpu is what is expected of a device.
type gpu struct {
	kind   string  // of cudart.AbsentGPUs
	stated float64 // GB/s that NVIDIA states
	copies float64 // GB/s that a copy is expected to reach
	peak   float64 // TFLOP/s of bfloat16 products that NVIDIA states, without sparsity
	launch float64 // µs of a launch beside its work: the gap between two (1.3), and first reads and last writes that nothing hides (1.7)
	blocks int64   // multiprocessors, each of which has a block at least where a launch has as many
	cache  float64 // GB/s of the second-level cache
	share  float64 // GB/s into one multiprocessor
	of     []class
}

// memory is the classes whose kernels only read and write; the last one is everything else.
func memory(of ...class) []class { return append(of, class{"", 0, 1, 0}) }

// gpus are in the order of cudart.AbsentGPUs.
var gpus = func() []gpu {
	hopper := memory(
		// A tile of 128 × 256 × 64 reads 48 KB in 1,024 clocks, 11 TB/s for 132 multiprocessors at full rate, where the second-level cache gives about 6:
		// 480 to 580.
		class{"product_group", 530, 1, 0},
		// Large tiles by mma.sync, which reaches about a third of wgmma's rate.
		class{"product_128x128,product_transposed_128x128", 330, 1, 0},
		// An expert's last tile is half empty, and there are blocks that find nothing to do.
		class{"routed_128x128,routed_transposed_128x128", 250, 1, 0}, class{"routed_64x96,routed_transposed_64x96", 150, 0.65, 0.02},
		// In eight bits a block also expands what it multiplies with.
		class{"product_e4m3_128x128,product_e4m3_transposed_128x128", 200, 1, 0}, class{"routed_e4m3_128x128,routed_e4m3_transposed_128x128", 150, 1, 0},
		class{"product_float32,product_transposed_float32,routed_float32,routed_transposed_float32", 45, 1, 0},
		// Adapters' first products of many rows: a chain of tiles 64 deep with a barrier each, 16 columns of the inner axis in about 58 ns.
		class{"product_32x32,product_transposed_32x32", 250, 1, 0.058},
		// Few rows: what the second-level cache gives, up to three times the weights' bytes, is counted by tiles; an expert's small tiles, of which the
		// host does not know which are empty, are taken to reach two thirds of the memory.
		class{"product_", 250, 1, 0.02}, class{"routed", 100, 0.65, 0.02},
		// Adapters' gradients: 128 multiply-adds in 162 instructions, 75 % of 67 TFLOP/s where all multiprocessors have a block; a row of the chain takes
		// 28 ns.
		// Six instructions for each product; a group of 16 rows takes a warp about 400 clocks.
		class{"outer_group", 300, 1, 0.23}, class{"outer_", 50, 1, 0.028},
		// With exp computed before it is selected; without, 215.
		class{"tensor_attention_few,tensor_attention_part", 100, 0.8, 0}, class{"tensor_attention_backward_keys", 150, 1,
			0}, class{"tensor_attention_backward_queries", 140, 1, 0}, class{"tensor_attention", 300, 1, 0},
		// By warpgroups: the forward pass hides exp of one warpgroup behind products of the other. The gradient of keys reads as much of shared memory as its products take at full rate, that of queries two thirds of it.
		class{"group_attention_backward_keys", 330, 1, 0}, class{"group_attention_backward_queries", 380, 1, 0}, class{"group_attention", 450, 1, 0},
		class{"attention", 20, 0.8, 0}, // float32
		// A token of one sequence is one chain of operations. Gradients are float32 without tensor cores, in blocks that are few.
		class{"delta_rule", 25, 1, 0.11}, class{"delta_across", 20, 1, 0.05}, class{"delta", 20, 1, 0}, class{"conv", 30, 1, 0},
	)
	ampere := memory(
		// mma.sync is all there is: 64 % of 312 in large tiles.
		class{"product_128x128,product_transposed_128x128", 200, 1, 0}, class{"routed_128x128,routed_transposed_128x128", 150, 1,
			0}, class{"routed_64x96,routed_transposed_64x96", 100, 0.65, 0.025},
		class{"product_e4m3_128x128,product_e4m3_transposed_128x128", 130, 1, 0}, class{"routed_e4m3_128x128,routed_e4m3_transposed_128x128", 100, 1, 0},
		class{"product_float32,product_transposed_float32,routed_float32,routed_transposed_float32", 13, 1, 0},
		class{"product_32x32,product_transposed_32x32", 150, 1, 0.07}, class{"product_", 150, 1, 0.025}, class{"routed", 60, 0.65,
			0.025}, class{"outer_", 14.5, 1, 0.035},
		class{"tensor_attention_few,tensor_attention_part", 70, 0.8, 0}, class{"tensor_attention_backward_keys", 90, 1,
			0}, class{"tensor_attention_backward_queries", 85, 1, 0}, class{"tensor_attention", 160, 1, 0},
		class{"attention", 6, 0.8, 0}, class{"delta_rule", 7, 1, 0.14}, class{"delta_across", 6, 1, 0.065}, class{"delta", 6, 1, 0}, class{"conv", 9, 1, 0},
	)
	// Kernels are the ones for sm_80, which know neither wgmma nor tcgen05: what Hopper's mma.sync is expected to reach, times 148 / 132 multiprocessors.
	// The share of this memory is the same only where as many bytes are under way.
	blackwell := memory(
		class{"product_128x128,product_transposed_128x128", 370, 1, 0}, class{"routed_128x128,routed_transposed_128x128", 280, 1,
			0}, class{"routed_64x96,routed_transposed_64x96", 170, 0.5, 0.02},
		class{"product_e4m3_128x128,product_e4m3_transposed_128x128", 220, 1, 0}, class{"routed_e4m3_128x128,routed_e4m3_transposed_128x128", 170, 1, 0},
		class{"product_float32,product_transposed_float32,routed_float32,routed_transposed_float32", 50, 1, 0},
		class{"product_32x32,product_transposed_32x32", 280, 1, 0.058}, class{"product_", 280, 1, 0.02}, class{"routed", 110, 0.5,
			0.02}, class{"outer_", 56, 1, 0.028},
		class{"tensor_attention_few,tensor_attention_part", 110, 0.6, 0}, class{"tensor_attention_backward_keys", 165, 1,
			0}, class{"tensor_attention_backward_queries", 155, 1, 0}, class{"tensor_attention", 320, 1, 0},
		class{"attention", 22, 0.6, 0}, class{"delta_rule", 28, 1, 0.11}, class{"delta_across", 22, 1, 0.05}, class{"delta", 22, 1, 0}, class{"conv", 33, 1, 0},
	)
	// Copies reach nine tenths of what is stated, on the A100 a little less.
	return []gpu{
		{"H100", 3350, 3000, 989, 3, 132, 6000, 75, hopper}, {"H200", 4800, 4300, 989, 3, 132, 6000, 75, hopper},
		{"A100", 2039, 1750, 312, 3, 108, 4000, 60, ampere}, {"B200", 8000, 7000, 2250, 3, 148, 9000, 75, blackwell},
	}
}()

// gpuOf finds a device by its kind or the name that its driver gives; false if nothing is expected of it.
func gpuOf(name string) (gpu, bool) {
	if strings.Contains(name, "GH200") || strings.Contains(name, "H100 PCIe") || strings.Contains(name, "A100-PCIE") { // of other memory or clocks
		return gpu{}, false
	}
	i := slices.IndexFunc(gpus, func(g gpu) bool { return strings.Contains(name, g.kind) })
	if i < 0 {
		return gpu{}, false
	}
	return gpus[i], true
}

// class is a kernel's.
func (g *gpu) class(kernel string) class {
	for _, c := range g.of {
		if slices.ContainsFunc(strings.Split(c.kernels, ","), func(name string) bool { return strings.HasPrefix(kernel, name) }) {
			return c
		}
	}
	return class{share: 1}
}

// What bounds a launch.
const (
	boundOperations = "operations"
	boundMemory     = "memory"
	boundChain      = "chain"
	boundCache      = "cache"
	boundLaunch     = "launch"
)

// seconds predicts a launch, and says what bounds it.
func (g *gpu) seconds(l cudart.Launch) (seconds float64, bound string) {
	c, work := g.class(l.Kernel), 0.0
	bound = boundLaunch
	for _, part := range []struct {
		bound   string
		seconds float64
	}{{boundMemory, l.Bytes / (g.copies * c.share * 1e9)}, {boundOperations, ratio(l.FLOP, c.flop*1e12*g.filled(l))}, {boundChain,
		float64(l.Steps) * c.step * 1e-6}, {boundCache, g.cached(l)}} {
		if part.seconds > work {
			work, bound = part.seconds, part.bound
		}
	}
	if work < g.launch*1e-6 {
		bound = boundLaunch
	}
	return work + g.launch*1e-6, bound
}

// filled is which part of the multiprocessors have work: of warpgroups, of which a multiprocessor has one block, on average over the rounds.
func (g *gpu) filled(l cudart.Launch) float64 {
	if l.Blocks >= g.blocks && !strings.HasPrefix(l.Kernel, "product_group") {
		return 1
	}
	return float64(l.Blocks) / float64((l.Blocks+g.blocks-1)/g.blocks*g.blocks)
}

var tilePattern = regexp.MustCompile(`^product(_e4m3)?_.*?([0-9]+)x([0-9]+)$`)

// cached is how long blocks of products in tiles read: each a row of x and of w for every row and column of its tile.
func (g *gpu) cached(l cudart.Launch) float64 {
	found := tilePattern.FindStringSubmatch(l.Kernel)
	if found == nil {
		return 0
	}
	rows, _ := strconv.Atoi(found[2]) // they are digits
	columns, _ := strconv.Atoi(found[3])
	weight := 2
	if found[1] != "" {
		weight = 1
	}
	each := float64(l.Steps) * 16 * float64(2*rows+weight*columns)
	return max(float64(l.Blocks)*each/(g.cache*1e9), float64((l.Blocks+g.blocks-1)/g.blocks)*each/(g.share*1e9))
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func (g gpu) String() string {
	return fmt.Sprintf("%s: copies %.0f GB/s of %.0f, products %.0f TFLOP/s at the most", g.kind, g.copies, g.stated, g.peak)
}
