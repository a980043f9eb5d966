package shim

import (
	"errors"
	"os"
	"testing"
)

// `make test` is everything: there a machine without a C++ compiler fails this test, and it alone, because the tests of the kernels, which say that they were skipped, are most of what is known about CUDA.
func TestCompilerIsThere(t *testing.T) {
	if _, err := Directory(t.Context(), Options{}); errors.Is(err, ErrNoCompiler) && os.Getenv("E2E_LEVEL") == "" {
		t.Skipf("kernels on the processor: %v", err)
	} else if err != nil {
		t.Errorf("kernels on the processor: %v: their tests cannot run; on Debian the package g++ has one, and gcc has none", err)
	}
}

// A machine without a compiler is told from one on which it fails: tests that need the driver are skipped there.
func TestNoCompiler(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CXX", "")
	if _, err := Directory(t.Context(), Options{}); !errors.Is(err, ErrNoCompiler) {
		t.Errorf("error %v", err)
	}
}
