package merge

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
	maxHeader   = 32 << 20 // the largest released models have about 100,000 tensors in all, at some 150 bytes each
	maxIndex    = 64 << 20
)

// widths are the bytes of an element of each type.
var widths = map[string]int64{
	"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}

// tensor is where a tensor lies.
type tensor struct {
	dtype  string
	shape  []int64
	file   string
	offset int64
	size   int64
}

// entry is a tensor in a header.
type entry struct {
	DType   string   `json:"dtype"`
	Shape   []int64  `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// parseHeader reads the JSON header of a file with so many bytes of data behind it. Offsets are relative to the data.
func parseHeader(raw []byte, data int64) (map[string]entry, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	delete(members, "__metadata__")
	entries := make(map[string]entry, len(members))
	for name, text := range members {
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return nil, fmt.Errorf("tensor %.200q: %w", name, err)
		}
		size, known := widths[e.DType]
		if !known {
			return nil, fmt.Errorf("tensor %.200q: the type %.40q is not known", name, e.DType)
		}
		for _, n := range e.Shape {
			if n < 0 || n > 0 && size > math.MaxInt64/n {
				return nil, fmt.Errorf("tensor %.200q: the shape %v is not possible", name, e.Shape)
			}
			size *= n
		}
		if e.Offsets[0] < 0 || e.Offsets[1] > data || e.Offsets[1] < e.Offsets[0] || e.Offsets[1]-e.Offsets[0] != size {
			return nil, fmt.Errorf("tensor %.200q: the place %v in %d bytes does not hold %s of shape %v", name, e.Offsets, data, e.DType, e.Shape)
		}
		entries[name] = e
	}
	return entries, checkTiling(entries, data)
}

// checkTiling wants each byte to be of one tensor, as the server's backends do: with tensors over each other a small file could become a model of any size.
func checkTiling(entries map[string]entry, data int64) error {
	names := slices.SortedFunc(maps.Keys(entries), func(a, b string) int {
		one, other := entries[a].Offsets, entries[b].Offsets
		return slices.Compare(one[:], other[:]) // one without elements comes before what begins there
	})
	end := int64(0)
	for _, name := range names {
		if from := entries[name].Offsets[0]; from != end {
			return fmt.Errorf("tensor %.200q: begins at byte %d of the data, and the tensor before it ends at %d", name, from, end)
		}
		end = entries[name].Offsets[1]
	}
	if end != data {
		return fmt.Errorf("the file has %d bytes of data, its tensors %d", data, end)
	}
	return nil
}

// readTensors reads the header of a file.
func readTensors(ctx context.Context, s Source, f File) (map[string]tensor, error) {
	if f.Size < 8 {
		return nil, fmt.Errorf("%s: %d bytes are no safetensors file", f.Name, f.Size)
	}
	b, err := readPart(ctx, s, f.Name, 0, 8)
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(b)
	if n > maxHeader || int64(n) > f.Size-8 {
		return nil, fmt.Errorf("%s: is no safetensors file: a header of %d bytes in %d", f.Name, n, f.Size)
	}
	raw, err := readPart(ctx, s, f.Name, 8, int64(n))
	if err != nil {
		return nil, err
	}
	begin := 8 + int64(n)
	entries, err := parseHeader(raw, f.Size-begin)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Name, err)
	}
	tensors := make(map[string]tensor, len(entries))
	for name, e := range entries {
		tensors[name] = tensor{e.DType, e.Shape, f.Name, begin + e.Offsets[0], e.Offsets[1] - e.Offsets[0]}
	}
	return tensors, nil
}

// modelTensors finds all tensors of a model directory, as the server's backends and transformers 5 do: those of model.safetensors, whatever index lies beside it, else those of all shards that the index names.
func modelTensors(ctx context.Context, s Source, files []File) (map[string]tensor, error) {
	sizes := map[string]int64{}
	for _, f := range files {
		sizes[f.Name] = f.Size
	}
	if size, ok := sizes[weightsFile]; ok {
		return readTensors(ctx, s, File{weightsFile, size})
	}
	if _, ok := sizes[indexFile]; !ok {
		return nil, fmt.Errorf("the base model has neither %s nor %s", weightsFile, indexFile)
	}
	raw, err := read(ctx, s, File{indexFile, sizes[indexFile]}, maxIndex)
	if err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, fmt.Errorf("%s: %w", indexFile, err)
	}
	if len(index.WeightMap) == 0 {
		return nil, fmt.Errorf("%s: weight_map is empty", indexFile)
	}
	shards := map[string]bool{}
	for name, file := range index.WeightMap {
		if _, ok := sizes[file]; !ok || !strings.HasSuffix(file, ".safetensors") {
			return nil, fmt.Errorf("%s: weight_map[%.200q] is %.200q, which is not a .safetensors file of the directory", indexFile, name, file)
		}
		shards[file] = true
	}
	tensors := map[string]tensor{}
	for _, file := range slices.Sorted(maps.Keys(shards)) {
		some, err := readTensors(ctx, s, File{file, sizes[file]})
		if err != nil {
			return nil, err
		}
		for name, t := range some {
			if other, ok := tensors[name]; ok {
				return nil, fmt.Errorf("tensor %.200q is in %s and in %s: leave one of them", name, min(other.file, file), max(other.file, file))
			}
			tensors[name] = t
		}
	}
	for name, file := range index.WeightMap {
		if _, ok := tensors[name]; !ok {
			return nil, fmt.Errorf("%s has no tensor %.200q, nor has another shard, but %s places it there", file, name, indexFile)
		}
	}
	return tensors, nil
}

// encodeHeader gives the beginning of a file of tensors that lie one behind the other in the given order.
func encodeHeader(names []string, entries map[string]entry) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`{"__metadata__":{"format":"pt"}`) // transformers asks for it
	for _, name := range names {
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(entries[name])
		if err != nil {
			return nil, err
		}
		b.WriteByte(',')
		b.Write(key)
		b.WriteByte(':')
		b.Write(text)
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > maxHeader {
		return nil, errors.New("the header would be too large")
	}
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(b.Len())), b.Bytes()), nil
}
