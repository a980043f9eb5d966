package cudart

import (
	"errors"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The module has exactly the kernels of the table, with their numbers of threads, and none of them runs in clusters.
func TestGroupAttentionTable(t *testing.T) {
	text, err := module(attentionModule)
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\([^)]*\)\s*\.maxntid (\d+), 1, 1\b`).FindAllStringSubmatch(string(text), -1) {
		have[m[1]], _ = strconv.Atoi(m[2])
	}
	if len(have) != len(groupAttentionKernels) || kBulk+len(bulkKernels) > kGroupAttention || kGroupAttention+len(groupAttentionKernels) > kWarpgroup+56 || strings.Contains(string(text), "reqnctapercluster") {
		t.Errorf("%d kernels in the PTX, %d in the table, which begins at %d", len(have), len(groupAttentionKernels), kGroupAttention)
	}
	for _, k := range groupAttentionKernels {
		if have[k.name] != k.threads {
			t.Errorf("kernel %s: %d threads in the table, %d in the PTX", k.name, k.threads, have[k.name])
		}
	}
}

// Attention by warpgroups and its gradient have the bits of those by warps, in whatever order threads run: with an order, copies come and products read as late as they may.
func TestGroupAttentionBits(t *testing.T) {
	for _, order := range orders("20261128", "1") {
		t.Run("order "+order, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_ORDER", order)
			v := openDevice(t, openDriver(t), 0)
			found, err := v.CheckGroupAttention()
			if err != nil {
				t.Fatal(err)
			}
			if found.Forward.Warps <= 0 || found.Forward.Groups <= 0 || found.Backward.Warps <= 0 || found.Backward.Groups <= 0 {
				t.Errorf("times %+v", found)
			}
		})
	}
}

// A kernel that does nothing, or faults, is found.
func TestGroupAttentionDiffers(t *testing.T) {
	for _, c := range []struct{ name, variable, value, want string }{
		{"nothing is computed", "FAKE_CUDA_SKIP", "group_attention_64", "rows 0 to 2: output: element (0, 0) is 0x3c3c3c3c and not"},
		{"no gradient of keys", "FAKE_CUDA_SKIP", "group_attention_backward_keys_64", "rows 0 to 2: dv: element (0, 0) is 0x3c3c3c3c and not"},
		{"no gradient of queries", "FAKE_CUDA_SKIP", "group_attention_backward_queries_128", "rows 0 to 75: dq: element (0, 0) is 0x3c3c3c3c and not"},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:9:719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"a module that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:1:1", "compiling the kernels (sm_90a_attention)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := openDevice(t, openDriver(t), 0)
			t.Setenv(c.variable, c.value)
			if _, err := v.CheckGroupAttention(); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if v.GroupAttention() {
				t.Error("the device uses what was found to be wrong")
			}
			t.Setenv(c.variable, "")
			if err := v.UseGroupAttention(true); err != nil || !v.GroupAttention() {
				t.Errorf("another try: %v", err)
			}
		})
	}
}

// Warps have what there are no kernels by warpgroups for, what is too short for them, and gradients that there is no memory to round rows for; the bits are theirs either way.
func TestGroupAttentionIsChosen(t *testing.T) {
	v := openDevice(t, openDriver(t), 0)
	if err := v.UseGroupAttention(true); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name                    string
		dim, rows               int64
		fail, forward, backward string
	}{
		{name: "many rows", dim: 64, rows: 65, forward: "group_attention_64", backward: "group_attention_backward_keys_64"},
		{name: "a tile of warps", dim: 64, rows: 64, forward: "tensor_attention_64", backward: "group_attention_backward_keys_64"},
		{name: "few rows", dim: 128, rows: 5, forward: "tensor_attention_few_128", backward: "group_attention_backward_queries_128"},
		{name: "a large head", dim: 136, rows: 70, forward: "tensor_attention_256", backward: "tensor_attention_backward_keys_256"},
		{name: "a head that is no multiple of 8", dim: 36, rows: 70, forward: "attention_64", backward: "attention_backward_keys_64"},
		{name: "no memory", dim: 128, rows: 70, fail: "cuMemAlloc_v2:1:2", forward: "group_attention_128", backward: "tensor_attention_backward_queries_128"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := v.attentionOperandsOf(attentionCase{dim: c.dim, heads: 1, group: 1, sequences: []Sequence{whole(c.rows, 0)}, qType: Float32}, rand.New(rand.NewPCG(1, 2)))
			defer func() {
				if err := o.free(); err != nil {
					t.Error(err)
				}
			}()
			if o.err != nil {
				t.Fatal(o.err)
			}
			for _, part := range []struct {
				do         func() error
				want, fail string
			}{{o.forward, c.forward, ""}, {o.backward, c.backward, c.fail}} {
				path := t.TempDir() + "/kernels"
				t.Setenv("FAKE_CUDA_KERNELS", path)
				if part.fail != "" { // but for delta there is none
					if err := errors.Join(v.ReleaseScratch(), v.pool.giveBack(), v.ReserveScratch(int(4*c.rows))); err != nil {
						t.Fatal(err)
					}
				}
				t.Setenv("FAKE_CUDA_FAIL", part.fail)
				if err := errors.Join(part.do(), v.Synchronize()); err != nil {
					t.Fatal(err)
				}
				t.Setenv("FAKE_CUDA_FAIL", "")
				ran, err := os.ReadFile(path)
				if err != nil || !strings.Contains(string(ran), "run "+part.want+"\n") {
					t.Errorf("%q ran, error %v, want %s", ran, err, part.want)
				}
			}
		})
	}
}
