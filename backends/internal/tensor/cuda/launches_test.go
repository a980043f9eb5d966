package cuda

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// Launches overlap for who asks for it, where another process has found equal bits and less time; else the error says why not.
func TestLaunchesAreChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	took := func(apart, dependent time.Duration) *launchesFinding {
		return &launchesFinding{DependentCheck: cudart.DependentCheck{Apart: apart, Dependent: dependent}}
	}
	for _, c := range []struct {
		name, launches, variable, value string
		found                           *launchesFinding
		want                            string
	}{
		{"faster", LaunchesDependent, "FAKE_CUDA_SKIP", "", took(2, 1), ""},
		{"not asked for", LaunchesAuto, "FAKE_CUDA_SKIP", "", took(2, 1), "unused"},
		{"slower", LaunchesDependent, "FAKE_CUDA_SKIP", "", took(1, 2), "dependent launches have the same bits and take longer: 2ns, and 1ns one after another"},
		{"kernels that do not wait", LaunchesDependent, "FAKE_CUDA_NO_WAIT", "1", nil, "check of dependent launches: exit status 1: dependent launches, 1 rows:"},
		{"no Hopper", LaunchesDependent, "FAKE_CUDA_MAJOR", "8", nil, "dependent launches are for compute capability 9.0, and no GPU: kernels on the processor has 8.0"},
		{"kernels that cannot be loaded", LaunchesDependent, "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:2:1", took(2, 1), "compiling the kernels (sm_90a)"},
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
				known.launches.found = map[string]launchesFinding{kindOf(driver, info): *c.found}
			}
			v, err := openDevice(driver, 0, Options{Libraries: libraries, Launches: c.launches}, known)
			if c.want != "" && c.want != "unused" {
				if !errors.Is(err, ErrLaunches) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want %q in it", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if used := c.want == ""; v.DependentLaunches() != used || strings.Contains(v.routes.String(), "launches of graphs overlap") != used {
				t.Errorf("launches overlap: %v; routes %q", v.DependentLaunches(), v.routes.String())
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
