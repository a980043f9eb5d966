package safetensors

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// file puts a header before data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, data)...)
}

func TestHostileHeaders(t *testing.T) {
	for _, c := range []struct {
		name string
		file []byte
		want string // part of the error; "" = accepted
	}{
		{"empty object", file(`{}`, 0), ""},
		{"one tensor, padded header", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  `, 8), ""},
		{"tensor without elements", file(`{"a":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}`, 3), ""},
		{"scalar", file(`{"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}}`, 8), ""},
		{"metadata", file(`{"__metadata__":{"k":"v"}}`, 0), ""},
		{"short", []byte{1, 2}, "2 bytes are no safetensors file"},
		{"header longer than the file", file(`{}`, 0)[:9], "in a file of"},
		{"huge header", append(bytes.Repeat([]byte{255}, 8), '{'), "larger than"},
		{"no JSON", file(`xx`, 0), "not a JSON object"},
		{"array", file(`[]`, 0), "not a JSON object"},
		{"truncated JSON", file(`{"a":`, 0), "tensor"},
		{"rest behind JSON", file(`{}{}`, 0), "behind its JSON"},
		{"metadata of numbers", file(`{"__metadata__":{"k":1}}`, 0), "text to text"},
		{"unknown dtype", file(`{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}`, 1), `dtype "F4" is not one of BF16, BOOL`},
		{"size does not fit shape", file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8), "is 12"},
		{"shape overflows", file(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`, 0), "too large"},
		{"negative dimension", file(`{"a":{"dtype":"F32","shape":[-1,-2],"data_offsets":[0,8]}}`, 8), "negative"},
		{"many dimensions", file(`{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}`, 1), "9 dimensions"},
		{"beyond the data", file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}`, 8), "do not lie within"},
		{"backwards", file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[4,0]}}`, 8), "do not lie within"},
		{"one offset", file(`{"a":{"dtype":"F32","shape":[0],"data_offsets":[0]}}`, 0), "do not lie within"},
		{"overlap", file(`{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}`, 6), "overlaps"},
		{"gap", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}}`, 6), "gap"},
		{"data left over", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 6), "6 bytes of data"},
		{"same name twice", file(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`, 4), "twice"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.safetensors")
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := Open(path)
			if err == nil {
				defer f.Close()
			}
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

func TestWriteAndRead(t *testing.T) {
	values := []float32{1, -2.5, float32(math.Inf(1)), 0, 3e-39, 7}
	var b bytes.Buffer
	size, sum, err := Write(&b, map[string]string{"format": "pt"}, []Source{
		Float32Source("z", []int{2, 3}, func() ([]float32, error) { return values, nil }),
		Float32Source("a", []int{6}, func() ([]float32, error) { return values, nil }),
		Float32Source("none", []int{0, 5}, func() ([]float32, error) { return nil, nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	if size != int64(b.Len()) || sum != sha256.Sum256(b.Bytes()) {
		t.Errorf("size %d of %d, or checksum wrong", size, b.Len())
	}
	f, err := parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(f.Names(), f.Metadata); got != "[a none z] map[format:pt]" {
		t.Error(got)
	}
	z, _ := f.Tensor("z")
	got, err := z.Float32s()
	if err != nil || fmt.Sprint(got) != fmt.Sprint(values) || fmt.Sprint(z.Shape) != "[2 3]" {
		t.Errorf("read %v %v, %v", got, z.Shape, err)
	}
	if _, _, err := Write(&b, nil, []Source{Float32Source("a", []int{7}, func() ([]float32, error) { return values, nil })}); err == nil {
		t.Error("a tensor of the wrong size was written")
	}
	if _, _, err := Write(&b, nil, []Source{{Name: "a", DType: "U8"}, {Name: "a", DType: "U8"}}); err == nil {
		t.Error("a name was written twice")
	}
}

// TestModelTensors: which files of a model are missing is seen without opening one.
func TestModelTensors(t *testing.T) {
	const first, second = "model-1.safetensors", "model-2.safetensors"
	index := fmt.Sprintf(`{"weight_map": {"a": %q, "b": %q}}`, first, second)
	for _, c := range []struct {
		name  string
		files map[string]string
		there bool
		names int
		wrong string
	}{
		{name: "nothing", files: map[string]string{}},
		{name: "whole file", files: map[string]string{singleFile: "", indexFile: "{"}, there: true},
		{name: "all shards", files: map[string]string{indexFile: index, first: "", second: ""}, there: true},
		{name: "a shard is missing", files: map[string]string{indexFile: index, first: ""}, names: 2},
		{name: "index alone", files: map[string]string{indexFile: index}, names: 2},
		{name: "index of something else", files: map[string]string{indexFile: `{"weight_map": {"a": "../x.safetensors"}}`}, wrong: "plain name"},
		{name: "broken index", files: map[string]string{indexFile: "{"}, wrong: indexFile},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			names, there, err := ModelTensors(dir)
			if there != c.there || len(names) != c.names || (err != nil) != (c.wrong != "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%v, %v, %v", names, there, err)
			}
		})
	}
}

// TestOpenModel: what transformers 5 takes of a directory is taken, and what it would take without a word of another version is refused by name.
func TestOpenModel(t *testing.T) {
	// one is a file with tensors of one byte each, from pairs of name and value.
	one := func(tensors string) []byte {
		var header string
		var data []byte
		for i := 0; i < len(tensors); i += 2 {
			header += fmt.Sprintf(`,%q:{"dtype":"U8","shape":[1],"data_offsets":[%d,%d]}`, tensors[i:i+1], i/2, i/2+1)
			data = append(data, tensors[i+1])
		}
		b := file("{"+header[1:]+"}", len(data))
		copy(b[len(b)-len(data):], data)
		return b
	}
	index := func(pairs ...string) []byte {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		b, err := json.Marshal(map[string]any{"weight_map": m})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	const first, second = "model-1.safetensors", "model-2.safetensors"
	good := index("a", first, "b", second)
	pointer := []byte("version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("0", 64) + "\nsize 10\n")
	page := []byte("<!doctype html><html><body>Sign in</body></html>")
	type files = map[string][]byte
	for _, c := range []struct {
		name  string
		files files
		want  string // name and value of each tensor, or
		wrong string // part of the error
	}{
		{name: "whole file", files: files{singleFile: one("a1b2")}, want: "a1b2"},
		{name: "two shards", files: files{indexFile: good, first: one("a1"), second: one("b2")}, want: "a1b2"},
		{name: "whole file beside a stale index", files: files{singleFile: one("a1b2"), indexFile: good}, want: "a1b2"},
		{name: "whole file beside other shards", files: files{singleFile: one("a1b2"), indexFile: good, first: one("a3"), second: one("b4")}, want: "a1b2"},
		{name: "whole file beside a broken index", files: files{singleFile: one("a1b2"), indexFile: page}, want: "a1b2"},
		{name: "tensor in another shard", files: files{indexFile: index("a", second, "b", first), first: one("a1"), second: one("b2")}, want: "a1b2"},
		{name: "tensor that the index does not name", files: files{indexFile: good, first: one("a1c3"), second: one("b2")}, want: "a1b2c3"},
		{name: "the same tensor in two shards", files: files{indexFile: good, first: one("a1b2"), second: one("b2")}, want: "a1b2"},
		{name: "shard that the index does not name", files: files{indexFile: good, first: one("a1"), second: one("b2"), "model-3.safetensors": one("c3")}, want: "a1b2"},
		{name: "another tensor in two shards", files: files{indexFile: good, first: one("a1b3"), second: one("b2")}, wrong: `tensor "b" is in model-1.safetensors and, with other values, in model-2.safetensors`},
		{name: "tensor missing", files: files{indexFile: index("a", first, "c", second), first: one("a1"), second: one("b2")}, wrong: `model-2.safetensors has no tensor "c"`},
		{name: "shard missing", files: files{indexFile: good, first: one("a1")}, wrong: indexFile + " names model-2.safetensors, which is not in"},
		{name: "whole file is a pointer", files: files{singleFile: pointer, indexFile: good, first: one("a1"), second: one("b2")}, wrong: "Git LFS pointer"},
		{name: "whole file is a page", files: files{singleFile: page}, wrong: "model.safetensors: holds a web page"},
		{name: "shard is a pointer", files: files{indexFile: good, first: one("a1"), second: pointer}, wrong: "model-2.safetensors: holds a Git LFS pointer in place of its 10 bytes"},
		{name: "index is a pointer", files: files{indexFile: pointer, first: one("a1"), second: one("b2")}, wrong: indexFile + ": holds a Git LFS pointer"},
		{name: "index is a page", files: files{indexFile: page}, wrong: indexFile + ": holds a web page"},
		{name: "shards without an index", files: files{"model-00001-of-00002.safetensors": one("a1")}, wrong: "download model.safetensors.index.json"},
		{name: "other name", files: files{"weights.safetensors": one("a1")}, wrong: "it has weights.safetensors: the file is expected as model.safetensors"},
		{name: "PyTorch file", files: files{"pytorch_model.bin": nil}, wrong: "it has pytorch_model.bin: load it once with transformers"},
		{name: "whole file was cut off", files: files{singleFile: one("a1b2")[:len(one("a1b2"))-1]}, wrong: "was not downloaded as a whole: download it again"},
		{name: "shard was cut off", files: files{indexFile: good, first: one("a1"), second: one("b2")[:12]}, wrong: "model-2.safetensors: header of"},
		{name: "whole file is an error message", files: files{singleFile: []byte(`{"error":"Repository not found"}`)}, wrong: "holds the error message of a server"},
		{name: "parent directory", files: files{indexFile: index("a", "../model-1.safetensors")}, wrong: "plain name"},
		{name: "absolute", files: files{indexFile: index("a", "/model-1.safetensors")}, wrong: "plain name"},
		{name: "other file", files: files{indexFile: index("a", "config.json")}, wrong: "plain name"},
		{name: "hidden", files: files{indexFile: index("a", "..safetensors")}, wrong: "plain name"},
		{name: "backslash", files: files{indexFile: index("a", `b\model.safetensors`)}, wrong: "plain name"},
		{name: "empty", files: files{indexFile: index()}, wrong: "weight_map is empty"},
		{name: "nothing", wrong: "neither"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range c.files {
				if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, err := OpenModel(dir)
			if err != nil {
				if c.wrong == "" || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("error %v, want %q", err, c.wrong)
				}
				return
			}
			defer m.Close()
			var got string
			for _, n := range m.Names() {
				x, _ := m.Tensor(n)
				got += n + string(x.Data)
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			_, whole := c.files[singleFile]
			_, indexed := c.files[indexFile]
			if (m.Unused != "") != (whole && indexed) {
				t.Errorf("unused: %q", m.Unused)
			}
		})
	}
	t.Run("a link to nothing", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("gone", filepath.Join(dir, singleFile)); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenModel(dir); err == nil || !strings.Contains(err.Error(), "link to a file that is not there") {
			t.Error(err)
		}
	})
}

func TestHalfToFloat32(t *testing.T) {
	for bits, want := range map[uint16]float32{0: 0, 0x3c00: 1, 0xc000: -2, 0x7bff: 65504, 1: 1.0 / (1 << 24), 0x83ff: -1023.0 / (1 << 24), 0x0400: 1.0 / (1 << 14),
		0x7c00: float32(math.Inf(1)), 0xfc00: float32(math.Inf(-1))} {
		if got := halfToFloat32(bits); got != want {
			t.Errorf("%#x: %v, want %v", bits, got, want)
		}
	}
	if v := halfToFloat32(0x7e00); v == v {
		t.Error("NaN lost")
	}
	if !math.Signbit(float64(halfToFloat32(0x8000))) {
		t.Error("sign of zero lost")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{"__metadata__":{"k":"v"},"a":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[],"data_offsets":[4,5]}}`, 5))
	f.Add(file(`{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}`, 0))
	f.Add([]byte{255, 255, 255, 255, 255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := parse(b)
		if err != nil {
			return
		}
		total := 0
		for _, n := range file.Names() {
			tensor, _ := file.Tensor(n)
			want := dtypeSizes[tensor.DType]
			for _, s := range tensor.Shape {
				want *= s
			}
			if len(tensor.Data) != want {
				t.Fatalf("%q: %d bytes for %s %v", n, len(tensor.Data), tensor.DType, tensor.Shape)
			}
			total += want
		}
		if total > len(b) {
			t.Fatalf("tensors of %d bytes in a file of %d", total, len(b))
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{},"weight_map":{"a":"model-1.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Add([]byte(`{"weight_map":[]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, err := parseIndex(raw)
		if err != nil {
			return
		}
		for _, file := range in.files {
			if filepath.Join("dir", file) != "dir/"+file || filepath.Base(file) != file {
				t.Fatalf("file %q leaves its directory", file)
			}
		}
	})
}

func TestFinite(t *testing.T) {
	nan, infinite, most := float32(math.NaN()), float32(math.Inf(-1)), float32(math.MaxFloat32)
	half := map[float32]uint16{0: 0, 1: 0x3c00, -1: 0xbc00, most: 0x7bff, nan: 0x7e00, infinite: 0xfc00}
	encode := func(dtype string, x float32) []byte {
		bits := math.Float32bits(x)
		switch dtype {
		case "F16":
			if x != x {
				return binary.LittleEndian.AppendUint16(nil, 0x7e00)
			}
			return binary.LittleEndian.AppendUint16(nil, half[x])
		case "BF16":
			return binary.LittleEndian.AppendUint16(nil, uint16(bits>>16))
		}
		return binary.LittleEndian.AppendUint32(nil, bits)
	}
	for _, dtype := range []string{"F32", "BF16", "F16"} {
		for n := range 12 {
			for _, usual := range []float32{0, 1, -1, most} {
				for at := -1; at < n; at++ { // the place of the one that is not finite, if any
					for _, bad := range []float32{nan, infinite} {
						var data []byte
						for i := range n {
							x := usual
							if i == at {
								x = bad
							}
							data = append(data, encode(dtype, x)...)
						}
						if got := Finite(dtype, data); got != (at < 0) {
							t.Errorf("%s, %d times %v, %v at %d: finite is %v", dtype, n, usual, bad, at, got)
						}
					}
				}
			}
		}
	}
	if !Finite("I64", []byte{255, 255, 255, 255, 255, 255, 255, 127}) {
		t.Error("an integer is finite")
	}
}

func BenchmarkFinite(b *testing.B) {
	data := make([]byte, 1<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if !Finite("BF16", data) {
			b.Fatal("not finite")
		}
	}
}

// Rounding gives the nearest value, the even one in the middle, and leaves what is one already.
func TestRounding(t *testing.T) {
	for h := range 1 << 15 {
		v := halfToFloat32(uint16(h))
		if h >= 31<<10 { // infinity, NaN
			continue
		}
		for _, sign := range []float32{1, -1} {
			if got := RoundFloat16(sign * v); got != sign*v {
				t.Fatalf("half %v became %v", sign*v, got)
			}
			if h+1 == 31<<10 {
				continue
			}
			next := halfToFloat32(uint16(h + 1))
			even := v
			if h&1 == 1 {
				even = next
			}
			middle := (v + next) / 2 // exact
			for value, want := range map[float32]float32{
				middle: even, math.Nextafter32(middle, 0): v, math.Nextafter32(middle, next): next,
			} {
				if got := RoundFloat16(sign * value); got != sign*want {
					t.Fatalf("%v became the half %v, want %v", sign*value, got, sign*want)
				}
			}
		}
	}
	for value, want := range map[float32]float32{65519: 65504, 65520: float32(math.Inf(1)), -65520: float32(math.Inf(-1)), math.MaxFloat32: float32(math.Inf(1))} {
		if got := RoundFloat16(value); got != want {
			t.Errorf("%v became the half %v, want %v", value, got, want)
		}
	}
	for value, want := range map[uint32]uint32{
		0x3f800000: 0x3f800000, 0x3f808000: 0x3f800000, 0x3f808001: 0x3f810000, 0x3f818000: 0x3f820000, 0xbf818000: 0xbf820000, 0x3f807fff: 0x3f800000, 1: 0, 0x8000: 0, 0x8001: 0x10000,
	} {
		if got := math.Float32bits(RoundBFloat16(math.Float32frombits(value))); got != want {
			t.Errorf("%#x became the bfloat16 %#x, want %#x", value, got, want)
		}
	}
}
