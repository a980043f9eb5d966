package cudart

/*
#include <stdlib.h>
#include "driver.h"
*/
import "C"

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"unsafe"

	"github.com/klauspost/compress/zstd"
)

// The compiled kernels; kernels/make.sh makes them. Those that every architecture has are the same text for all but for the line that names it (make.sh
// compares), so there is one file of them: they travel in every plugin.
//
//go:embed ptx/*.ptx.zst
var ptxFiles embed.FS

// ptx gives the kernels for a compute capability: Hopper's own, or Ampere's, which the driver compiles for everything else from 8.0 on.
func ptx(major, minor int) (architecture string, text []byte, err error) {
	if text, err = module(commonModule); major != 9 || minor != 0 || err != nil {
		return commonModule, text, err
	}
	const name, line = "sm_90a", ".target "
	return name, bytes.Replace(text, []byte(line+commonModule+"\n"), []byte(line+name+"\n"), 1), nil
}

// commonModule is the file of the kernels that every architecture has, named for the one that it is for as it is.
const commonModule = "sm_80"

// module unpacks a file of PTX.
func module(name string) ([]byte, error) {
	packed, err := ptxFiles.ReadFile("ptx/" + name + ".ptx.zst")
	if err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("the kernels for %s: %w", name, err)
	}
	defer r.Close()
	text, err := r.DecodeAll(packed, nil)
	if err != nil {
		return nil, fmt.Errorf("the kernels for %s: %w", name, err)
	}
	return text, nil
}

// KernelsHash is a hash of the kernels for devices like this one, those by warpgroups, by bulk copies, for attention and for gradients included: what was found out about them holds for no others.
func (i Information) KernelsHash() (string, error) {
	_, text, err := ptx(i.Major, i.Minor)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write(text)
	for _, extra := range []struct {
		name string
		has  bool
	}{{warpgroupModule, i.Warpgroups()}, {bulkModule, i.Bulk()}, {attentionModule, i.Warpgroups()}, {outerModule, i.Warpgroups()}} {
		if !extra.has {
			continue
		}
		if text, err = module(extra.name); err != nil {
			return "", err
		}
		h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// loadKernels has the driver compile the kernels; it keeps the result in its own cache, so only the first time takes seconds.
func (v *Device) loadKernels() error {
	architecture, text, err := ptx(v.major, v.minor)
	if err != nil {
		return err
	}
	return v.loadModule(0, architecture, text, 0, kernels)
}

// loadModule loads one of the modules, whose kernels have the numbers from first on.
func (v *Device) loadModule(number int, name string, text []byte, first int, kernels []kernel) error {
	if v.c.dependent != 0 {
		text = waiting(text)
	}
	source := C.CString(string(text))
	defer C.free(unsafe.Pointer(source))
	names := (*[C.KERNEL_LIMIT]*C.char)(C.calloc(C.KERNEL_LIMIT, C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	shared := (*[C.KERNEL_LIMIT]C.int)(C.calloc(C.KERNEL_LIMIT, C.sizeof_int))
	defer C.free(unsafe.Pointer(names))
	defer C.free(unsafe.Pointer(shared))
	for i, k := range kernels {
		names[i], shared[i] = C.CString(k.name), C.int(k.shared)
		defer C.free(unsafe.Pointer(names[i]))
	}
	const logBytes = 4096
	log := (*C.char)(C.calloc(1, logBytes))
	defer C.free(unsafe.Pointer(log))
	var step *C.char
	if err := v.failed("", C.cuda_device_load(v.c, C.int(number), source, C.int(first), C.int(len(kernels)), &names[0], &shared[0], C.int(v.shared), log, logBytes, &step)); err != nil {
		return fmt.Errorf("compiling the kernels (%s) with the driver, at %s: %w %s", name, C.GoString(step), err, C.GoString(log))
	}
	return nil
}
