// Package shim builds a CUDA driver that needs no GPU: a shared library with the driver's functions, which runs the kernels' own text on the processor with one fiber per
// CUDA thread; and an NCCL and a cuBLASLt over it. They are for tests, slow, and say nothing about speed.
package shim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/tinsmith/tinsmith/cudart/kernels"
)

//go:embed fakedriver
var sources embed.FS

// Options say how the library is built.
type Options struct {
	// Sanitize has the compiler check every access to memory. The process must have been started with SanitizerEnvironment.
	Sanitize bool
}

// ErrNoCompiler is wrapped when there is no C++ compiler.
var ErrNoCompiler = errors.New("no C++ compiler (g++ or clang++) is installed")

// libraryFolder is where cuBLASLt is: apart, because what finds it uses it.
const libraryFolder = "cublaslt"

// WithCuBLASLt gives the folders that Directory's libraries and cuBLASLt are in.
func WithCuBLASLt(dir string) []string { return []string{dir, filepath.Join(dir, libraryFolder)} }

// lock waits until no other process has the file locked, as tests of several packages that begin at once would: compiling takes half a minute.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks it
}

// Directory builds the libraries if they have not been built from these sources before and gives the folder that libcuda.so.1 and libnccl.so.2 are in, below the user's cache directory.
func Directory(ctx context.Context, o Options) (string, error) {
	compiler, err := findCompiler()
	if err != nil {
		return "", err
	}
	flags := []string{"-std=c++17", "-O2", "-g", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall", "-Wextra", "-Wno-psabi"}
	if o.Sanitize {
		flags = append(flags, "-fsanitize=address", "-O1")
	}
	h := sha256.New()
	version, err := exec.CommandContext(ctx, compiler, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", compiler, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "tinsmith")
	fmt.Fprintln(h, compiler, string(version), flags, cache)
	err = eachSource(func(path string, data []byte) error {
		fmt.Fprintln(h, path, len(data))
		h.Write(data)
		return nil
	})
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "cuda-shim-"+hex.EncodeToString(h.Sum(nil)[:8]))
	built := func() bool {
		_, err := os.Stat(filepath.Join(dir, "libnccl.so.2"))
		return err == nil
	}
	if built() {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if built() { // by another process meanwhile
		return dir, nil
	}
	work, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := writeSources(work); err != nil {
		return "", err
	}
	if err := os.Mkdir(filepath.Join(work, libraryFolder), 0o700); err != nil {
		return "", err
	}
	// The driver's name inside is its path: NCCL then needs just this one, and who asks for libcuda.so.1 without a path gets the machine's own, although this one is loaded.
	for _, library := range []struct {
		name      string
		arguments []string
	}{
		{"libcuda.so.1", []string{"-Wl,-soname," + filepath.Join(dir, "libcuda.so.1"), "-x", "c++", "kernels.cu", "warpgroup.cu", "bulk.cu", "attention_group.cu", "outer_group.cu", "shim.cpp", "bulk.cpp", "streams.cpp", "driver.cpp"}},
		{"libnccl.so.2", []string{"nccl.cpp", "-L.", "-l:libcuda.so.1"}},
		{libraryFolder + "/libcublasLt.so.12", []string{"cublaslt.cpp", "-L.", "-l:libcuda.so.1"}},
	} {
		cmd := exec.CommandContext(ctx, compiler, append(append(slices.Clone(flags), "-o", library.name), library.arguments...)...)
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("compiling %s for the processor: %w\n%s", library.name, err, bytes.TrimSpace(out))
		}
	}
	// The last one says that all are there.
	if err := os.MkdirAll(filepath.Join(dir, libraryFolder), 0o700); err != nil {
		return "", err
	}
	for _, name := range []string{libraryFolder + "/libcublasLt.so.12", "libcuda.so.1", "libnccl.so.2"} {
		if err := os.Rename(filepath.Join(work, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// eachSource gives f each file of the libraries and of the kernels.
func eachSource(f func(path string, data []byte) error) error {
	for _, from := range []fs.FS{sources, kernels.Sources} {
		err := fs.WalkDir(from, ".", func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			data, err := fs.ReadFile(from, path)
			if err != nil {
				return err
			}
			return f(path, data)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writeSources writes all of them into one folder.
func writeSources(dir string) error {
	return eachSource(func(path string, data []byte) error {
		return os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o600)
	})
}

func findCompiler() (string, error) {
	for _, name := range []string{os.Getenv("CXX"), "g++", "clang++"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoCompiler
}

// Require is Directory for a test, which is skipped where there is no compiler.
func Require(t testing.TB, o Options) string {
	t.Helper()
	dir, err := Directory(t.Context(), o)
	if errors.Is(err, ErrNoCompiler) {
		t.Skipf("kernels on the processor: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// SanitizerEnvironment gives the variables that a process needs before it loads a library with Options.Sanitize: the sanitizer's runtime must be there first.
func SanitizerEnvironment(ctx context.Context) ([]string, error) {
	compiler, err := findCompiler()
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, compiler, "-print-file-name=libasan.so").Output()
	if err != nil {
		return nil, fmt.Errorf("looking for the address sanitizer: %w", err)
	}
	runtime := string(bytes.TrimSpace(out))
	if !filepath.IsAbs(runtime) {
		return nil, fmt.Errorf("%s has no address sanitizer", compiler)
	}
	// Fibers have stacks of their own, and the test's own process is not what is looked at for leaks.
	return []string{"LD_PRELOAD=" + runtime, "ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:verify_asan_link_order=0:abort_on_error=0:exitcode=66"}, nil
}
