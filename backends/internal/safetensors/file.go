package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sort"
	"syscall"

	"github.com/tinsmith/tinsmith/plugins/modelfile"
)

// Tensor is one tensor of an open file. Data is the mapped file: read-only, little-endian, row-major, not necessarily aligned, valid until the file is closed. A file that another
// process truncates while it is mapped kills this one; files must be replaced by renaming.
type Tensor struct {
	Name  string
	DType string // "F32", "BF16", …
	Shape []int
	Data  []byte
}

// File is an open file. It may be used by several goroutines until Close.
type File struct {
	Metadata map[string]string
	tensors  map[string]Tensor
	mapped   []byte
}

// errFormat is what errors.Is finds in an error about a file that is no safetensors file, or not a whole one.
var errFormat = errors.New("not a safetensors file")

type formatError struct{ error }

func (e formatError) Is(target error) bool { return target == errFormat }

func (e formatError) Unwrap() error { return e.error }

// openRegular opens a file that is no pipe: opening one waits for its other end.
func openRegular(path string) (*os.File, error) {
	if info, err := os.Stat(path); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	return os.Open(path)
}

// Open maps a file and checks its header.
func Open(path string) (*File, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if info.Size() < 8 || info.Size() > math.MaxInt {
		return nil, fmt.Errorf("%s: %d bytes are no safetensors file", path, info.Size())
	}
	mapped, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%s: map: %w", path, err)
	}
	file, err := parse(mapped)
	if err != nil {
		if placeholder := modelfile.Placeholder(mapped); placeholder != nil {
			err = placeholder
		} else {
			err = formatError{err}
		}
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), syscall.Munmap(mapped))
	}
	file.mapped = mapped
	return file, nil
}

// parse reads a whole file in memory.
func parse(b []byte) (*File, error) {
	if len(b) < 8 {
		return nil, errors.New("shorter than the header's length")
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeader {
		return nil, fmt.Errorf("header of %d bytes is larger than %d", n, maxHeader)
	}
	if n > uint64(len(b)-8) {
		return nil, fmt.Errorf("header of %d bytes in a file of %d", n, len(b))
	}
	data := b[8+n:]
	h, err := parseHeader(b[8:8+n], uint64(len(data)))
	if err != nil {
		return nil, err
	}
	f := &File{Metadata: h.metadata, tensors: make(map[string]Tensor, len(h.entries))}
	for name, e := range h.entries {
		shape := make([]int, len(e.Shape))
		for i, s := range e.Shape {
			if s > math.MaxInt {
				return nil, fmt.Errorf("tensor %.200q: shape %v is too large", name, e.Shape)
			}
			shape[i] = int(s)
		}
		f.tensors[name] = Tensor{Name: name, DType: e.DType, Shape: shape, Data: data[e.Offsets[0]:e.Offsets[1]:e.Offsets[1]]}
	}
	return f, nil
}

// Close unmaps the file; its tensors must not be used any more.
func (f *File) Close() error {
	f.tensors = nil
	if f.mapped == nil {
		return nil
	}
	m := f.mapped
	f.mapped = nil
	return syscall.Munmap(m)
}

// Tensor finds a tensor.
func (f *File) Tensor(name string) (Tensor, bool) {
	t, ok := f.tensors[name]
	return t, ok
}

// Names lists the tensors, sorted.
func (f *File) Names() []string { return sortedNames(f.tensors) }

func sortedNames(tensors map[string]Tensor) []string {
	names := make([]string, 0, len(tensors))
	for n := range tensors {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Float32s converts a tensor of type F32, F16, BF16 or F64 (rounded) to Go memory.
func (t Tensor) Float32s() ([]float32, error) {
	size := dtypeSizes[t.DType]
	out := make([]float32, len(t.Data)/max(size, 1))
	switch t.DType {
	case "F32":
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	case "BF16":
		for i := range out {
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Data[2*i:])) << 16)
		}
	case "F16":
		for i := range out {
			out[i] = halfToFloat32(binary.LittleEndian.Uint16(t.Data[2*i:]))
		}
	case "F64":
		for i := range out {
			out[i] = float32(math.Float64frombits(binary.LittleEndian.Uint64(t.Data[8*i:])))
		}
	default:
		return nil, fmt.Errorf("tensor %q has type %s, not F32, F16, BF16 or F64", t.Name, t.DType)
	}
	return out, nil
}

// halfToFloat32 widens an IEEE half, exactly.
func halfToFloat32(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch {
	case exponent == 31: // infinity, NaN
		return math.Float32frombits(sign | 255<<23 | fraction<<13)
	case exponent == 0: // zero, subnormal: fraction · 2⁻²⁴ is exact
		v := float32(fraction) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// RoundBFloat16 rounds a finite value to the nearest bfloat16, to the even one in the middle.
func RoundBFloat16(v float32) float32 {
	b := math.Float32bits(v)
	return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
}

// RoundFloat16 rounds a finite value to the nearest IEEE half, to the even one in the middle; what is too large becomes infinite.
func RoundFloat16(v float32) float32 {
	const (
		largest = 65520           // the first that rounds up to 2¹⁶, which is none any more
		step    = 1.0 / (1 << 24) // of subnormals
	)
	magnitude := math.Abs(float64(v))
	switch {
	case magnitude >= largest:
		return float32(math.Inf(int(math.Copysign(1, float64(v)))))
	case magnitude < 1.0/(1<<14):
		return float32(math.Copysign(math.RoundToEven(magnitude/step)*step, float64(v)))
	}
	b := math.Float32bits(v)
	return math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
}

// Finite tells whether all elements of data, which are of a type, are finite: their exponents are not all ones. Those of types other than F32, F16 and BF16 are not looked at.
func Finite(dtype string, data []byte) bool {
	var exponent, lowest, highest uint64 // of each element in eight bytes: the bits of its exponent, its lowest and its highest one
	switch dtype {
	case "F32":
		exponent, lowest, highest = 0x7f800000_7f800000, 0x00000001_00000001, 0x80000000_80000000
	case "BF16":
		exponent, lowest, highest = 0x7f80_7f80_7f80_7f80, 0x0001_0001_0001_0001, 0x8000_8000_8000_8000
	case "F16":
		exponent, lowest, highest = 0x7c00_7c00_7c00_7c00, 0x0001_0001_0001_0001, 0x8000_8000_8000_8000
	default:
		return true
	}
	// The bits that an exponent lacks are zero where it is all ones. Taking one away from each element sets the highest bit of such a one; of another it may only where such a one is before it.
	var found uint64
	for ; len(data) >= 8; data = data[8:] {
		found |= ^binary.LittleEndian.Uint64(data)&exponent - lowest
	}
	var last [8]byte // what is missing is zero
	copy(last[:], data)
	found |= ^binary.LittleEndian.Uint64(last[:])&exponent - lowest
	return found&highest == 0
}
