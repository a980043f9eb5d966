package cuda

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/cudart"
	"github.com/tinsmith/tinsmith/cudart/shim"
)

// NCCL goes from GPU to GPU, but by itself not on a B200, which is said once; the configuration and NCCL's own variable win.
func TestDirectAccess(t *testing.T) {
	driver, err := cudart.Open(cudart.Options{Directories: []string{shim.Require(t, shim.Options{})}})
	if err != nil {
		t.Fatal(err)
	}
	defer driver.Close()
	on, off := true, false
	for _, c := range []struct {
		name     string
		device   string
		variable string // before; "" is none
		asked    *bool
		want     string // after
		warns    bool
	}{
		{"another GPU", "NVIDIA H200", "", nil, "", false},
		{"a B200", "NVIDIA B200", "", nil, "1", true},
		{"turned on", "NVIDIA B200", "1", &on, "0", false},
		{"turned off", "NVIDIA H200", "", &off, "1", false},
		{"the variable", "NVIDIA B200", "0", nil, "0", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("FAKE_CUDA_NAME", c.device)
			t.Setenv(peerVariable, c.variable) // has it set back afterwards
			if c.variable == "" {
				if err := os.Unsetenv(peerVariable); err != nil {
					t.Fatal(err)
				}
			}
			var said bytes.Buffer
			before := slog.Default()
			defer slog.SetDefault(before)
			slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
			sayOnce = sync.Once{}
			v, err := driver.Open(0)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := setDirectAccess([]*cudart.Device{v}, tensor.LinkOptions{DirectAccess: c.asked}); err != nil {
					t.Error(err)
				}
				if got := os.Getenv(peerVariable); got != c.want {
					t.Errorf("%s is %q, want %q", peerVariable, got, c.want)
				}
				if c.warns { // and asked again
					if err := os.Unsetenv(peerVariable); err != nil {
						t.Fatal(err)
					}
				}
			}
			if n := strings.Count(said.String(), "peer-to-peer access is turned off"); n != map[bool]int{true: 1}[c.warns] {
				t.Errorf("said %d times: %s", n, &said)
			}
			if err := v.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
