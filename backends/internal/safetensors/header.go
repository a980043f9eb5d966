// Package safetensors reads and writes tensor files in the safetensors format: eight bytes of header length (little-endian), a JSON header with name, type, shape and place of every
// tensor, then the data. Files are mapped, never copied. Files are hostile until checked: every size is bounded by the file's own before anything is allocated for it. The
// package knows no model and no device.
package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
)

// maxHeader bounds the JSON header. The largest released models have about 100,000 tensors in all, at some 150 bytes each.
const maxHeader = 32 << 20

// maxDimensions bounds a shape.
const maxDimensions = 8

// dtypeSizes are the bytes of an element of each type that a file may hold.
var dtypeSizes = map[string]int{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
	"I16": 2, "U16": 2, "F16": 2, "BF16": 2,
	"I32": 4, "U32": 4, "F32": 4,
	"I64": 8, "U64": 8, "F64": 8,
}

// entry is one tensor of a header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets []uint64 `json:"data_offsets"`
}

// header is a parsed and checked header.
type header struct {
	metadata map[string]string
	entries  map[string]entry
}

// parseHeader checks a header against the size of the data behind it: known types, sizes that agree with shapes, and places that tile the data without overlap or gap.
func parseHeader(raw []byte, dataSize uint64) (header, error) {
	h := header{entries: map[string]entry{}}
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return h, errors.New("header is not a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return h, fmt.Errorf("header: %w", err)
		}
		name, _ := t.(string)
		if name == "__metadata__" {
			if h.metadata != nil {
				return h, errors.New("header has __metadata__ twice")
			}
			if err := d.Decode(&h.metadata); err != nil {
				return h, fmt.Errorf("header: __metadata__ must map text to text: %w", err)
			}
			if h.metadata == nil {
				h.metadata = map[string]string{}
			}
			continue
		}
		if _, ok := h.entries[name]; ok {
			return h, fmt.Errorf("tensor %.200q is there twice", name)
		}
		var e entry
		if err := d.Decode(&e); err != nil {
			return h, fmt.Errorf("tensor %.200q: %w", name, err)
		}
		size, err := byteSize(e.DType, e.Shape)
		if err != nil {
			return h, fmt.Errorf("tensor %.200q: %w", name, err)
		}
		if len(e.Offsets) != 2 || e.Offsets[0] > e.Offsets[1] || e.Offsets[1] > dataSize {
			return h, fmt.Errorf("tensor %.200q: data_offsets %v do not lie within %d bytes of data", name, e.Offsets, dataSize)
		}
		if e.Offsets[1]-e.Offsets[0] != size {
			return h, fmt.Errorf("tensor %.200q: data_offsets %v hold %d bytes, but %s of shape %v is %d", name, e.Offsets, e.Offsets[1]-e.Offsets[0], e.DType, e.Shape, size)
		}
		h.entries[name] = e
	}
	if _, err := d.Token(); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return h, errors.New("header has something behind its JSON object")
	}
	return h, h.checkTiling(dataSize)
}

func (h header) checkTiling(dataSize uint64) error {
	names := make([]string, 0, len(h.entries))
	for n := range h.entries {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool {
		a, b := h.entries[names[i]].Offsets, h.entries[names[j]].Offsets
		if a[0] != b[0] {
			return a[0] < b[0]
		}
		return a[1] < b[1]
	})
	var end uint64
	for _, n := range names {
		o := h.entries[n].Offsets
		if o[0] < end {
			return fmt.Errorf("tensor %.200q: data from byte %d overlaps another tensor, which ends at %d", n, o[0], end)
		}
		if o[0] > end {
			return fmt.Errorf("tensor %.200q: data from byte %d leaves a gap behind byte %d", n, o[0], end)
		}
		end = o[1]
	}
	if end != dataSize {
		return fmt.Errorf("file has %d bytes of data, its tensors %d", dataSize, end)
	}
	return nil
}

// byteSize is the size of a tensor, refused if it cannot be held in an int.
func byteSize(dtype string, shape []int64) (uint64, error) {
	size, ok := dtypeSizes[dtype]
	if !ok {
		known := make([]string, 0, len(dtypeSizes))
		for d := range dtypeSizes {
			known = append(known, d)
		}
		sort.Strings(known)
		return 0, fmt.Errorf("dtype %.40q is not one of %s", dtype, strings.Join(known, ", "))
	}
	if len(shape) > maxDimensions {
		return 0, fmt.Errorf("shape has %d dimensions, more than %d", len(shape), maxDimensions)
	}
	n := uint64(size)
	for _, s := range shape {
		if s < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", shape)
		}
		if s > 0 && n > math.MaxInt64/uint64(s) {
			return 0, fmt.Errorf("shape %v is too large", shape)
		}
		n *= uint64(s)
	}
	return n, nil
}
