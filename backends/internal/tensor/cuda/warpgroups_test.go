package cuda

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// A check ends with the process that waits for it.
func TestAbandonedCheck(t *testing.T) {
	weights := make([][2]int64, 500) // for minutes
	for i := range weights {
		weights[i] = [2]int64{int64(8 * (1 + i%40)), int64(8 * (1 + i))}
	}
	task, err := json.Marshal(checkTask{Libraries: shim.WithCuBLASLt(shim.Require(t, shim.Options{})), CuBLASLt: &cublasltTask{Weights: weights}})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), checkVariable+"="+string(task))
	waiting, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := waiting.Close(); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != abandoned {
		t.Errorf("error %v, want exit status %d", err, abandoned)
	}
}

// A device uses warpgroups where they give the same bits, and does without where they differ, fault or cannot be loaded; the reason is known, and asked for once.
func TestWarpgroupsAreChecked(t *testing.T) {
	libraries := []string{shim.Require(t, shim.Options{})}
	for _, c := range []struct{ name, variable, value, want string }{
		{"right", "FAKE_CUDA_SKIP", "", ""},
		{"other bits", "FAKE_CUDA_SKIP", "product_group_transposed_wide", "transposed, accumulated, of bfloat16: with 256 columns of a block, element (0, 0) is"},
		{"a fault", "FAKE_CUDA_FAIL", "cuLaunchKernel:5:719", "CUDA_ERROR_LAUNCH_FAILED"},
		{"a module that cannot be loaded", "FAKE_CUDA_FAIL", "cuModuleLoadDataEx:2:1", "compiling the kernels (sm_90a_warpgroup)"},
		{"no Hopper", "FAKE_CUDA_MAJOR", "8", "none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(c.variable, c.value)
			driver, err := cudart.Open(cudart.Options{Directories: libraries})
			if err != nil {
				t.Fatal(err)
			}
			defer driver.Close()
			var known known
			for range 2 {
				v, err := openDevice(driver, 0, Options{Libraries: libraries}, &known)
				if err != nil {
					t.Fatal(err)
				}
				if v.Warpgroups() != (c.want == "") {
					t.Errorf("the device uses warpgroups: %v", v.Warpgroups())
				}
				if err := v.Close(); err != nil {
					t.Error(err)
				}
				if c.variable == "FAKE_CUDA_FAIL" {
					t.Setenv(c.variable, "") // it counts calls of this process, too
				}
			}
			if c.want == "none" {
				if len(known.warpgroups.found) != 0 {
					t.Errorf("checked: %v", known.warpgroups.found)
				}
				return
			}
			if len(known.warpgroups.found) != 1 {
				t.Fatalf("%d verdicts", len(known.warpgroups.found))
			}
			for _, found := range known.warpgroups.found {
				err := found.err
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("verdict %v, want %q in it", err, c.want)
				}
			}
		})
	}
}
