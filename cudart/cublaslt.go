package cudart

/*
#include <stdlib.h>
#include "cublaslt.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"log/slog"
	"unsafe"
)

// CuBLASLt is NVIDIA's library of matrix products, loaded when OpenCuBLASLt is called. It may be used by several goroutines.
type CuBLASLt struct {
	c       *C.cublaslt
	path    string
	version int
}

// leastCuBLASLt is the first version for Hopper and of the binary interface that cublaslt.h has: 12.0.
const leastCuBLASLt = 120000

// ErrNoCuBLASLt is what OpenCuBLASLt's error wraps when the library was not found.
var ErrNoCuBLASLt = errors.New("cuBLASLt was not found")

// OpenCuBLASLt loads libcublasLt.so.13 where the driver is for CUDA 13, else or without that one libcublasLt.so.12: the first one that is new enough and has every function, where none of the given folders has one. The error
// names what was looked for and where, and every one that was found with its version and what is wrong with it.
func (d *Driver) OpenCuBLASLt(o Options) (*CuBLASLt, error) {
	names := []string{"libcublasLt.so.12"}
	if d.version >= 13000 {
		names = []string{"libcublasLt.so.13", "libcublasLt.so.12"}
	}
	return openCuBLASLt(names, o)
}

func openCuBLASLt(names []string, o Options) (*CuBLASLt, error) {
	l := &CuBLASLt{c: (*C.cublaslt)(C.calloc(1, C.sizeof_cublaslt))}
	t := table{at: unsafe.Pointer(l.c), functions: C.cublaslt_functions[:], least: leastCuBLASLt, text: libraryVersionText, version: func() int { return int(C.cublaslt_version(l.c)) }}
	var err error
	if l.path, l.version, err = t.find(names, o.Directories); err != nil {
		C.free(unsafe.Pointer(l.c))
		if errors.Is(err, errAbsent) {
			err = fmt.Errorf("%w: %w", ErrNoCuBLASLt, err)
		}
		return nil, err
	}
	C.library_keep(unsafe.Pointer(l.c))
	return l, nil
}

// Path is where the library was found.
func (l *CuBLASLt) Path() string { return l.path }

// Version is like "12.8.4".
func (l *CuBLASLt) Version() string { return libraryVersionText(l.version) }

// Close gives the library back, which stays in memory. No device may use it any more. Another Close, and one of nil, does nothing.
func (l *CuBLASLt) Close() {
	if l != nil && l.c != nil {
		C.library_close(unsafe.Pointer(l.c))
		C.free(unsafe.Pointer(l.c))
		l.c = nil
	}
}

// cublasltError is a call of the library that failed.
type cublasltError struct {
	call, text string
	code       int
}

func (e *cublasltError) Error() string { return fmt.Sprintf("%s: %s (%d)", e.call, e.text, e.code) }

// notSupported is the code for what the library has no algorithm for.
const notSupported = 15

// refused says that the call has done nothing.
func (e *cublasltError) refused() bool {
	switch e.code {
	case 1, 3, 7, 8, notSupported: // not initialized, no memory, invalid value, architecture
		return true
	}
	return false
}

func (l *CuBLASLt) failed(call string, code C.cublaslt_result) error {
	if code == 0 {
		return nil
	}
	return &cublasltError{call, C.GoString(C.cublaslt_error_text(l.c, code)), int(code)}
}

// ProductShape is products with the weights of one shape, for up to a number of rows: y has Columns columns, the inner axis has Depth elements.
type ProductShape struct {
	Columns, Depth int64
	Transposed     bool
	Rows           int64 // at most, as rowsClass gives it
}

func (s ProductShape) String() string {
	text := fmt.Sprintf("up to %d rows, %d columns, %d deep", s.Rows, s.Columns, s.Depth)
	if s.Transposed {
		text += ", transposed"
	}
	return text
}

// LibraryAlgorithm is one of those that cuBLASLt offers for products of a shape, as the library writes it. It may be kept and given to another process, for the same version and the same kind of device.
type LibraryAlgorithm [8]uint64

// leastLibraryRows is the number of rows from which on products may be the library's.
const leastLibraryRows = 128

// rowsClasses are the numbers of rows that algorithms are chosen for. What is more than the last is taken as the last: there are tiles for all multiprocessors then.
var rowsClasses = []int64{256, 512, 1024, 2048}

func rowsClass(rows int64) int64 {
	for _, class := range rowsClasses {
		if rows <= class {
			return class
		}
	}
	return rowsClasses[len(rowsClasses)-1]
}

// library is how a device uses cuBLASLt.
type library struct {
	*CuBLASLt
	handle     unsafe.Pointer
	accumulate bool
	algorithms map[ProductShape]LibraryAlgorithm
	apart      map[ProductShape]bool             // see LibraryProduct.Apart
	plans      map[ProductShape]*C.cublaslt_plan // made when the first product asks
}

// UseCuBLASLt has Product use the library for products of at least 128 rows with these shapes, each by its algorithm, those in which an adapter's product would ride only where that is said (LibraryProduct.Apart), also those that go on from what y holds if accumulate is true, until Close or a call with nil. That
// the bits are those of the kernels is the caller's word; CheckCuBLASLt finds out. The library is not closed by the device.
func (v *Device) UseCuBLASLt(l *CuBLASLt, products []LibraryProduct, accumulate bool) error {
	if v.c == nil {
		return errClosed
	}
	err := v.leaveLibrary()
	if err != nil || l == nil {
		return err
	}
	to := &library{CuBLASLt: l, accumulate: accumulate, algorithms: map[ProductShape]LibraryAlgorithm{}, apart: map[ProductShape]bool{}, plans: map[ProductShape]*C.cublaslt_plan{}}
	for _, p := range products {
		to.algorithms[p.ProductShape], to.apart[p.ProductShape] = p.Algorithm, p.Apart
	}
	if err := l.failed("cublasLtCreate", C.cublaslt_create(l.c, v.c, &to.handle)); err != nil {
		return err
	}
	v.library = to
	return nil
}

// leaveLibrary gives back what the device has of the library, after what it has been given.
func (v *Device) leaveLibrary() error {
	l := v.library
	if l == nil {
		return nil
	}
	v.library = nil
	err := v.wait()
	for _, p := range l.plans {
		err = errors.Join(err, l.forget(p))
	}
	return errors.Join(err, l.failed("cublasLtDestroy", C.cublaslt_destroy(l.c, v.c, l.handle)))
}

func (l *CuBLASLt) forget(p *C.cublaslt_plan) error {
	if p == nil {
		return nil
	}
	err := l.failed("giving a description back", C.cublaslt_forget(l.c, p))
	C.free(unsafe.Pointer(p))
	return err
}

// describe makes the plan of a shape without its algorithm.
func (l *CuBLASLt) describe(s ProductShape) (*C.cublaslt_plan, error) {
	p := (*C.cublaslt_plan)(C.calloc(1, C.sizeof_cublaslt_plan))
	var failed *C.char
	if code := C.cublaslt_describe(l.c, p, flag(s.Transposed), C.int64_t(s.Rows), C.int64_t(s.Columns), C.int64_t(s.Depth), &failed); code != 0 {
		return nil, errors.Join(l.failed(C.GoString(failed), code), l.forget(p))
	}
	return p, nil
}

// plan gives how the products of a shape are computed, the same from the first one on: it depends on the shape alone, not on the product that asks first.
func (l *library) plan(s ProductShape) (*C.cublaslt_plan, error) {
	if p := l.plans[s]; p != nil {
		return p, nil
	}
	p, err := l.describe(s)
	if err != nil {
		return nil, err
	}
	l.plans[s] = p
	l.choose(s, l.algorithms[s])
	return p, nil
}

// choose has the products of a shape computed by another algorithm from now on.
func (l *library) choose(s ProductShape, a LibraryAlgorithm) {
	l.algorithms[s] = a
	if p := l.plans[s]; p != nil {
		for i, word := range a {
			p.algorithm[i] = C.uint64_t(word)
		}
	}
}

// offers gives the algorithms of the library that sum an element of a product of this shape in one piece, in its order and at most so many; none is no error.
func (l *library) offers(v *Device, s ProductShape, most int) (algorithms []LibraryAlgorithm, err error) {
	p, err := l.plan(s)
	if err != nil {
		return nil, err
	}
	var failed *C.char
	var found C.int
	words := make([][8]C.uint64_t, most)
	code := C.cublaslt_offers(l.c, v.c, l.handle, p, &words[0], C.int(most), &found, &failed)
	if code == notSupported {
		return nil, nil
	}
	for _, from := range words[:found] {
		var a LibraryAlgorithm
		for i, word := range from {
			a[i] = uint64(word)
		}
		algorithms = append(algorithms, a)
	}
	return algorithms, l.failed(C.GoString(failed), code)
}

// LibraryProducts says whether Product uses cuBLASLt for any shape.
func (v *Device) LibraryProducts() bool { return v.library != nil }

// productByLibrary is Product for what cuBLASLt is used for; false if it is not, and nothing has been done. A product that the library refuses ends its use: kernels compute it and all after it.
func (v *Device) productByLibrary(y, x View, xType Type, groups []RowGroup, transposed, accumulate bool) (bool, error) {
	s, ok := v.libraryShape(y, groups, transposed, accumulate)
	if !ok {
		return false, nil
	}
	g := groups[0]
	done, err := v.multiply(y, x, xType, g, s, accumulate)
	var wrong *cublasltError
	if errors.As(err, &wrong) && wrong.refused() {
		slog.Warn("cuBLASLt is not used any more: kernels compute products", "device", fmt.Sprintf("cuda:%d", v.Ordinal()), "product", s, "error", err)
		return false, v.leaveLibrary()
	}
	return done, err
}

// libraryShape gives the shape of a product that cuBLASLt is used for; false if it is not.
func (v *Device) libraryShape(y View, groups []RowGroup, transposed, accumulate bool) (ProductShape, bool) {
	l := v.library
	if l == nil || len(groups) != 1 || groups[0].Factor != 0 || accumulate && !l.accumulate || v.recording() {
		return ProductShape{}, false
	}
	g := groups[0]
	s := ProductShape{Columns: g.Weight.Out, Depth: g.Weight.In, Transposed: transposed, Rows: rowsClass(g.To - g.From)}
	if transposed {
		s.Columns, s.Depth = g.Weight.In, g.Weight.Out
	}
	_, ok := l.algorithms[s]
	return s, ok && g.To-g.From >= leastLibraryRows && s.fits() && y.At%16 == 0 && y.Stride%4 == 0 && g.Weight.At%16 == 0
}

// fits says whether rows of every matrix can begin at multiples of 16 bytes.
func (s ProductShape) fits() bool { return s.Columns%8 == 0 && s.Depth%8 == 0 }

// multiply has the library compute a product; false if there is no memory for rounded rows.
func (v *Device) multiply(y, x View, xType Type, g RowGroup, s ProductShape, accumulate bool) (done bool, err error) {
	l := v.library
	p, err := l.plan(s)
	if err != nil {
		return false, err
	}
	if xType != BFloat16 || x.At%16 != 0 || x.Stride%8 != 0 {
		to, failed := v.rounded(x, xType)
		if errors.Is(failed, ErrOutOfMemory) {
			return false, nil
		}
		if failed != nil {
			return false, failed
		}
		defer func() { err = errors.Join(err, v.giveRounded(to)) }()
		x = to
	}
	if err := v.flush(); err != nil {
		return false, err
	}
	const name = "cublasLtMatmul"
	err = v.times.around(v, name, func() error {
		return l.failed(name, C.cublaslt_multiply(l.c, v.c, l.handle, p, C.int64_t(g.To-g.From), C.uint64_t(y.At+Address(4*g.From*y.Stride)), C.int64_t(y.Stride), C.uint64_t(x.At+Address(2*g.From*x.Stride)),
			C.int64_t(x.Stride), C.uint64_t(g.Weight.At), C.int64_t(g.Weight.Pitch), flag(accumulate)))
	})
	return err == nil, err
}
