package cuda

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// Attention by warpgroups is for who asks for it, and had where another process has found equal bits and less time, forward and backward; else the error says why not.
func TestAttentionIsChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	took := func(forwardWarps, forwardGroups, backwardWarps, backwardGroups time.Duration) *attentionFinding {
		return &attentionFinding{GroupAttentionCheck: cudart.GroupAttentionCheck{Forward: cudart.AttentionTimes{Warps: forwardWarps, Groups: forwardGroups}, Backward: cudart.AttentionTimes{Warps: backwardWarps, Groups: backwardGroups}}}
	}
	for _, c := range []struct {
		name, attention, variable, value string
		found                            *attentionFinding
		want                             string
	}{
		{"faster", AttentionWarpgroups, "FAKE_CUDA_SKIP", "", took(2, 1, 2, 1), ""},
		{"not asked for", AttentionAuto, "FAKE_CUDA_SKIP", "", took(2, 1, 2, 1), "unused"},
		{"slower", AttentionWarpgroups, "FAKE_CUDA_SKIP", "", took(1, 2, 2, 1), "attention by warpgroups has the same bits and takes longer: 2ns, and 1ns by warps"},
		{"a slower gradient", AttentionWarpgroups, "FAKE_CUDA_SKIP", "", took(2, 1, 1, 2), "the gradient of attention by warpgroups has the same bits and takes longer: 2ns, and 1ns by warps"},
		{"other bits", AttentionWarpgroups, "FAKE_CUDA_SKIP", "group_attention_64", nil, "check of attention by warpgroups: exit status 1: attention by warpgroups, dimension 64,"},
		{"no Hopper", AttentionWarpgroups, "FAKE_CUDA_MAJOR", "8", nil, "warpgroups are for compute capability 9.0, and no GPU: kernels on the processor has 8.0"},
		{"a module that cannot be loaded", AttentionWarpgroups, "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:3:1", took(2, 1, 2, 1), "compiling the kernels (sm_90a_attention)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			driver, err := cudart.Open(cudart.Options{Directories: libraries})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			t.Setenv(c.variable, c.value)
			known := found(t, driver, nil)
			if c.found != nil {
				info, err := driver.Information(0)
				if err != nil {
					t.Fatal(err)
				}
				known.attention.found = map[string]attentionFinding{kindOf(driver, info): *c.found}
			}
			v, err := openDevice(driver, 0, Options{Libraries: libraries, Attention: c.attention}, known)
			if c.want != "" && c.want != "unused" {
				if !errors.Is(err, ErrAttention) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if used := c.want == ""; v.GroupAttention() != used || strings.Contains(v.routes.String(), "attention by warpgroups") != used {
				t.Errorf("attention uses warpgroups: %v; routes %q", v.GroupAttention(), v.routes.String())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
