package cuda

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// Gradients on tensor cores are for who asks for them, and had where another process has found them right and faster; else the error says why not. They have another name of arithmetic.
func TestGradientsAreChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	took := func(chains, groups time.Duration) *gradientsFinding {
		return &gradientsFinding{OuterGroupCheck: cudart.OuterGroupCheck{Chains: chains, Groups: groups}}
	}
	for _, c := range []struct {
		name, gradients, variable, value string
		found                            *gradientsFinding
		want                             string
	}{
		{"faster", GradientsTensorCores, "FAKE_CUDA_SKIP", "", took(2, 1), ""},
		{"not asked for", GradientsAuto, "FAKE_CUDA_SKIP", "", took(2, 1), "unused"},
		{"slower", GradientsTensorCores, "FAKE_CUDA_SKIP", "", took(1, 2), "adapters' gradients on tensor cores take longer: 2ns, and 1ns without"},
		{"wrong", GradientsTensorCores, "FAKE_CUDA_SKIP", "outer_group", nil, "check of adapters' gradients on tensor cores: exit status 1: outer products by groups of rows, 8 × 130,"},
		{"no Hopper", GradientsTensorCores, "FAKE_CUDA_MAJOR", "8", nil, "the kernel is for compute capability 9.0, and no GPU: kernels on the processor has 8.0"},
		{"a module that cannot be loaded", GradientsTensorCores, "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:3:1", took(2, 1), "compiling the kernels (sm_90a_outer)"},
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
				known.gradients.found = map[string]gradientsFinding{kindOf(driver, info): *c.found}
			}
			v, err := openDevice(driver, 0, Options{Libraries: libraries, Gradients: c.gradients}, known)
			if c.want != "" && c.want != "unused" {
				if !errors.Is(err, ErrGradients) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			name := (&device{v: v.Device}).Arithmetic()
			if used := c.want == ""; v.OuterGroupsLoaded() != used || strings.HasSuffix(name, "-gradients16") != used || strings.Contains(v.routes.String(), "on tensor cores") != used {
				t.Errorf("gradients on tensor cores: %v; arithmetic %q, routes %q", v.OuterGroupsLoaded(), name, v.routes.String())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
