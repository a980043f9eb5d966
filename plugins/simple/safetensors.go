package simple

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/tinsmith/tinsmith/plugins"
)

// maxHeaderBytes bounds a header and a manifest.
const maxHeaderBytes = 8 << 20

type tensorEntry struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// encodeSafetensors writes float32 tensors, in the order of the names, as a safetensors file.
func encodeSafetensors(names []string, shapes [][]int, values [][]float32) []byte {
	header := []byte{'{'}
	offset := int64(0)
	for i, name := range names {
		size := 4 * int64(len(values[i]))
		key, _ := json.Marshal(name)
		entry, _ := json.Marshal(tensorEntry{"F32", shapes[i], [2]int64{offset, offset + size}})
		if i > 0 {
			header = append(header, ',')
		}
		header = append(append(append(header, key...), ':'), entry...)
		offset += size
	}
	header = append(header, '}')
	header = append(header, bytes.Repeat([]byte{' '}, -len(header)&7)...)
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, 8+len(header)+int(offset)), uint64(len(header)))
	out = append(out, header...)
	for _, v := range values {
		for _, x := range v {
			out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
		}
	}
	return out
}

// decodeSafetensors reads float32 tensors. raw comes from outside.
func decodeSafetensors(raw []byte) (map[string]tensorEntry, map[string][]float32, error) {
	if len(raw) < 8 {
		return nil, nil, fmt.Errorf("%d bytes are no safetensors file", len(raw))
	}
	n := binary.LittleEndian.Uint64(raw)
	if n > maxHeaderBytes || n > uint64(len(raw)-8) {
		return nil, nil, fmt.Errorf("a header of %d bytes does not fit", n)
	}
	data := raw[8+n:]
	var header map[string]json.RawMessage
	if err := json.Unmarshal(raw[8:8+n], &header); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	entries, values := map[string]tensorEntry{}, map[string][]float32{}
	left := int64(len(data)) // tensors must not share bytes, else a small file could ask for much memory
	for name, rawEntry := range header {
		if name == "__metadata__" {
			continue
		}
		var e tensorEntry
		if err := json.Unmarshal(rawEntry, &e); err != nil {
			return nil, nil, fmt.Errorf("tensor %.200q: %w", name, err)
		}
		if e.DType != "F32" {
			return nil, nil, fmt.Errorf("tensor %.200q: dtype %.20q is not supported: F32", name, e.DType)
		}
		size, ok := int64(4), len(e.Shape) == 2 || len(e.Shape) == 3
		for _, d := range e.Shape {
			if ok = ok && d > 0 && int64(d) <= int64(len(data))/size; ok {
				size *= int64(d)
			}
		}
		if !ok {
			return nil, nil, fmt.Errorf("tensor %.200q: shape %v is not that of a matrix, or a stack of them, in this file", name, e.Shape)
		}
		if e.Offsets[0] < 0 || e.Offsets[1] > int64(len(data)) || e.Offsets[1]-e.Offsets[0] != size {
			return nil, nil, fmt.Errorf("tensor %.200q: offsets %v do not fit its shape %v in %d bytes", name, e.Offsets, e.Shape, len(data))
		}
		if left -= size; left < 0 {
			return nil, nil, fmt.Errorf("tensor %.200q: shares its bytes with another", name)
		}
		v := make([]float32, size/4)
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[e.Offsets[0]+4*int64(i):]))
		}
		entries[name], values[name] = e, v
	}
	return entries, values, nil
}

// readBounded reads a whole file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > limit {
		return nil, plugins.Invalidf("path", "file %s has more than the %d bytes that an adapter of this model can have", f.Name(), limit)
	}
	return raw, nil
}
