package merge

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// matrix is a tensor of a test.
type matrix struct {
	dtype  string
	shape  []int64
	values []float32
}

func random(draw *rand.Rand, dtype string, shape ...int64) matrix {
	n := int64(1)
	for _, s := range shape {
		n *= s
	}
	m := matrix{dtype, shape, make([]float32, n)}
	for i := range m.values {
		m.values[i] = float32(draw.NormFloat64())
	}
	return m
}

func (m matrix) bytes(t testing.TB) []byte {
	t.Helper()
	b := make([]byte, int64(len(m.values))*widths[m.dtype])
	if err := encodeFloats(b, m.dtype, m.values); err != nil {
		t.Fatal(err)
	}
	return b
}

// file writes a safetensors file.
func file(t testing.TB, path string, tensors map[string]matrix) {
	t.Helper()
	var names []string
	for name := range tensors {
		names = append(names, name)
	}
	slices.Sort(names)
	entries, data := map[string]entry{}, []byte(nil)
	for _, name := range names {
		b := tensors[name].bytes(t)
		entries[name] = entry{tensors[name].dtype, tensors[name].shape, [2]int64{int64(len(data)), int64(len(data) + len(b))}}
		data = append(data, b...)
	}
	head, err := encodeHeader(names, entries)
	if err != nil {
		t.Fatal(err)
	}
	text(t, path, string(append(head, data...)))
}

func text(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tensorsOf reads all tensors of a directory as float32.
func tensorsOf(t *testing.T, dir string) map[string]matrix {
	t.Helper()
	files, err := Directory(dir).Files(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found, err := modelTensors(t.Context(), Directory(dir), files)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]matrix{}
	for name, at := range found {
		raw, err := readPart(t.Context(), Directory(dir), at.file, at.offset, at.size)
		if err != nil {
			t.Fatal(err)
		}
		m := matrix{at.dtype, at.shape, make([]float32, at.size/widths[at.dtype])}
		decodeFloats(m.values, at.dtype, raw)
		out[name] = m
	}
	return out
}

const (
	expert = "model.layers.0.mlp.experts.3.down_proj"
	query  = "model.layers.0.self_attn.q_proj"
)

// models makes a base model and an adapter: an attention matrix, an expert's, and the head.
func models(t testing.TB, tied bool, dtype string) (base, adapter map[string]matrix, baseDir, adapterDir string) {
	t.Helper()
	draw := rand.New(rand.NewPCG(1, 2))
	base = map[string]matrix{
		"model.embed_tokens.weight": random(draw, dtype, 11, 6), query + ".weight": random(draw, dtype, 8, 6), "model.norm.weight": random(draw, dtype, 6), expert + ".weight": random(draw, dtype, 6, 5),
	}
	if !tied {
		base["lm_head.weight"] = random(draw, dtype, 11, 6)
	}
	adapter = map[string]matrix{}
	for name, shape := range map[string][2]int64{query: {8, 6}, expert: {6, 5}, "lm_head": {11, 6}} {
		adapter[namePrefix+name+".lora_A.weight"] = random(draw, typeFloat32, 7, shape[1])
		adapter[namePrefix+name+".lora_B.weight"] = random(draw, typeFloat32, shape[0], 7)
	}
	baseDir, adapterDir = t.TempDir(), t.TempDir()
	file(t, filepath.Join(baseDir, weightsFile), base)
	text(t, filepath.Join(baseDir, configFile), fmt.Sprintf(`{"tie_word_embeddings": %v, "torch_dtype": "float32", "a": 1}`, tied))
	text(t, filepath.Join(baseDir, "tokenizer.json"), "{}")
	text(t, filepath.Join(baseDir, "chat_template.jinja"), "{{ x }}")
	text(t, filepath.Join(baseDir, "README.md"), "the base")
	file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
	text(t, filepath.Join(adapterDir, "adapter_config.json"), `{"peft_type": "LORA", "r": 7, "lora_alpha": 14, "bias": "none", "rank_pattern": {}}`)
	return base, adapter, baseDir, adapterDir
}

func mergeInto(ctx context.Context, dir string, o Options) error {
	p, err := Prepare(ctx, o)
	if err != nil {
		return err
	}
	written := int64(0)
	if err := p.Write(ctx, dir, func(n int) { written += int64(n) }); err != nil {
		return err
	}
	if written != p.Bytes {
		return fmt.Errorf("%d bytes were told of, %d were planned", written, p.Bytes)
	}
	return nil
}

// TestMerge compares with W + scale · B·A in float64, rounded once.
func TestMerge(t *testing.T) {
	for _, c := range []struct {
		name          string
		tied          bool
		stored, asked string
		shard         int64
		config        string // of the adapter; "" = alpha / r is 2
		scale         float64
		scales        map[string]float64 // of modules that have another one
	}{
		{name: "own head", stored: typeFloat32, shard: 1 << 30, scale: 2},
		{name: "the head is the embedding", tied: true, stored: typeFloat32, shard: 1 << 30, scale: 2},
		{name: "bfloat16 is kept", tied: true, stored: typeBFloat16, shard: 1 << 30, scale: 2},
		{name: "another type", stored: typeBFloat16, asked: "float32", shard: 1 << 30, scale: 2},
		{name: "smaller type", stored: typeFloat32, asked: "float16", shard: 1 << 30, scale: 2},
		{name: "cut", tied: true, stored: typeFloat32, shard: 200, scale: 2},
		{name: "rsLoRA", stored: typeFloat32, shard: 1 << 30, config: `{"r": 7, "lora_alpha": 3, "use_rslora": true}`, scale: 3 / math.Sqrt(7)},
		{name: "alpha by module", stored: typeFloat32, shard: 1 << 30, config: `{"r": 7, "alpha_pattern": {"` + query + `": 7, "` + expert + `": 14, "lm_head": 21}}`, scale: 2, scales: map[string]float64{query: 1, "lm_head": 3}},
		{name: "alpha by module, the head in the Tinker convention", stored: typeFloat32, shard: 1 << 30, config: `{"r": 7, "alpha_pattern": {"` + query + `": 14, "` + expert + `": 14, "model.unembed_tokens": 21}}`, scale: 2, scales: map[string]float64{"lm_head": 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			base, adapter, baseDir, adapterDir := models(t, c.tied, c.stored)
			if c.config != "" {
				text(t, filepath.Join(adapterDir, "adapter_config.json"), c.config)
			}
			dir := t.TempDir()
			if err := mergeInto(t.Context(), dir, Options{Base: Directory(baseDir), Adapter: adapterDir, DType: c.asked, ShardBytes: c.shard}); err != nil {
				t.Fatal(err)
			}
			stored := tensorsOf(t, baseDir)
			if c.tied {
				stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
			}
			got := tensorsOf(t, dir)
			if len(got) != len(stored) {
				t.Errorf("%d tensors, expected %d", len(got), len(stored))
			}
			for name, w := range stored {
				wanted := matrix{w.dtype, w.shape, slices.Clone(w.values)}
				if c.asked != "" {
					wanted.dtype = dtypes[c.asked]
				}
				module := namePrefix + strings.TrimSuffix(name, ".weight")
				if a, ok := adapter[module+".lora_A.weight"]; ok {
					b, scale := adapter[module+".lora_B.weight"], c.scale
					if own, ok := c.scales[strings.TrimSuffix(name, ".weight")]; ok {
						scale = own
					}
					for i := range w.shape[0] {
						for j := range w.shape[1] {
							sum := 0.0
							for k := range int64(7) {
								sum += float64(b.values[i*7+k]) * float64(a.values[k*w.shape[1]+j])
							}
							wanted.values[i*w.shape[1]+j] += float32(scale * sum)
						}
					}
				}
				g := got[name]
				if g.dtype != wanted.dtype || !slices.Equal(g.shape, wanted.shape) {
					t.Fatalf("%s: %s %v, expected %s %v", name, g.dtype, g.shape, wanted.dtype, wanted.shape)
				}
				round := map[string]float64{typeFloat32: 1e-5, typeBFloat16: 1. / 128, typeFloat16: 1. / 1024}[g.dtype]
				for i := range g.values {
					if d := math.Abs(float64(g.values[i]) - float64(wanted.values[i])); d > round*(1+math.Abs(float64(wanted.values[i]))) {
						t.Fatalf("%s[%d] is %v, expected %v", name, i, g.values[i], wanted.values[i])
					}
				}
			}
			if c.tied && slices.Equal(got["lm_head.weight"].values, got["model.embed_tokens.weight"].values) {
				t.Error("the head is the embedding still")
			}
			var config struct {
				Tied  bool   `json:"tie_word_embeddings"`
				DType string `json:"torch_dtype"`
				A     int
			}
			raw, err := os.ReadFile(filepath.Join(dir, configFile))
			if err == nil {
				err = json.Unmarshal(raw, &config)
			}
			asked := c.asked
			if asked == "" {
				asked = "float32"
			}
			if err != nil || config.Tied || config.DType != asked || config.A != 1 {
				t.Errorf("config.json: %v %s", err, raw)
			}
			_, err = os.Stat(filepath.Join(dir, indexFile))
			if cut := err == nil; cut != (c.shard < 1000) {
				t.Errorf("an index: %v", cut)
			}
			for name, there := range map[string]bool{"tokenizer.json": true, "chat_template.jinja": true, "README.md": false} {
				if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != there {
					t.Errorf("%s: %v", name, err)
				}
			}
			_ = base
		})
	}
}

// TestHash compares with the hash as the backends state it: of the configuration, and of names, types, shapes and data in the order of the names.
func TestHash(t *testing.T) {
	base, _, baseDir, adapterDir := models(t, true, typeFloat32)
	config, err := os.ReadFile(filepath.Join(baseDir, configFile))
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s", len(config), config)
	var names []string
	for name := range base {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(h, "%q %s %v\n", name, base[name].dtype, base[name].shape)
		h.Write(base[name].bytes(t))
	}
	o := Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: 1 << 30, BaseHash: hex.EncodeToString(h.Sum(nil))}
	if err := mergeInto(t.Context(), t.TempDir(), o); err != nil {
		t.Error(err)
	}
	o.BaseHash = strings.Repeat("0", 64)
	if err := mergeInto(t.Context(), t.TempDir(), o); err == nil || !strings.Contains(err.Error(), "not the files of the base model") {
		t.Errorf("another base: %v", err)
	}
}

// TestDirectories: of files that do not agree the model is merged that the server serves.
func TestDirectories(t *testing.T) {
	for _, c := range []struct {
		name   string
		tied   bool
		change func(t *testing.T, dir string, w map[string]matrix)
	}{
		{"a stale index", false, func(t *testing.T, dir string, _ map[string]matrix) {
			text(t, filepath.Join(dir, indexFile), `{"weight_map": {"x": "model-1.safetensors"}}`)
		}},
		{"other shards", false, func(t *testing.T, dir string, w map[string]matrix) {
			text(t, filepath.Join(dir, indexFile), `{"weight_map": {"model.norm.weight": "model-1.safetensors"}}`)
			file(t, filepath.Join(dir, "model-1.safetensors"), map[string]matrix{"model.norm.weight": {typeFloat32, []int64{6}, make([]float32, 6)}})
		}},
		{"an index that mixes shards up", false, func(t *testing.T, dir string, w map[string]matrix) {
			os.Remove(filepath.Join(dir, weightsFile))
			first, second := map[string]matrix{"lm_head.weight": w["lm_head.weight"]}, maps.Clone(w)
			delete(second, "lm_head.weight")
			file(t, filepath.Join(dir, "model-1.safetensors"), first)
			file(t, filepath.Join(dir, "model-2.safetensors"), second)
			text(t, filepath.Join(dir, indexFile), `{"weight_map": {"lm_head.weight": "model-2.safetensors", "model.norm.weight": "model-1.safetensors"}}`)
		}},
		{"a tied matrix under the head's name", true, func(t *testing.T, dir string, w map[string]matrix) {
			w = maps.Clone(w)
			w["lm_head.weight"] = w["model.embed_tokens.weight"]
			delete(w, "model.embed_tokens.weight")
			file(t, filepath.Join(dir, weightsFile), w)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			base, _, plain, adapter := models(t, c.tied, typeFloat32)
			changed := t.TempDir()
			if err := os.CopyFS(changed, os.DirFS(plain)); err != nil {
				t.Fatal(err)
			}
			c.change(t, changed, base)
			var merged [2]map[string]matrix
			for i, dir := range []string{plain, changed} {
				out := t.TempDir()
				if err := mergeInto(t.Context(), out, Options{Base: Directory(dir), Adapter: adapter, ShardBytes: 1 << 30}); err != nil {
					t.Fatal(err)
				}
				merged[i] = tensorsOf(t, out)
			}
			if !reflect.DeepEqual(merged[0], merged[1]) {
				t.Errorf("merged to other weights: %v, want those of %v", slices.Sorted(maps.Keys(merged[1])), slices.Sorted(maps.Keys(merged[0])))
			}
		})
	}
}

// TestTwoHeads: a base that is tied by its configuration and has two heads is merged into one that is not tied.
func TestTwoHeads(t *testing.T) {
	for _, c := range []struct {
		name string
		last float32 // of the head
		two  bool
	}{{"equal", 0, false}, {"different", 1, true}} {
		t.Run(c.name, func(t *testing.T) {
			base, adapter, dir, adapterDir := models(t, true, typeFloat32)
			head := base["model.embed_tokens.weight"]
			head.values = slices.Clone(head.values)
			head.values[len(head.values)-1] += c.last
			base["lm_head.weight"] = head
			file(t, filepath.Join(dir, weightsFile), base)
			for _, part := range []string{"A", "B"} {
				delete(adapter, namePrefix+"lm_head.lora_"+part+".weight")
			}
			file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
			out := t.TempDir()
			if err := mergeInto(t.Context(), out, Options{Base: Directory(dir), Adapter: adapterDir, ShardBytes: 1 << 30}); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(out, configFile))
			if err != nil {
				t.Fatal(err)
			}
			var config struct {
				Tied bool `json:"tie_word_embeddings"`
			}
			if err := json.Unmarshal(text, &config); err != nil || config.Tied == c.two {
				t.Errorf("%s, %v", text, err)
			}
			if merged := tensorsOf(t, out); !reflect.DeepEqual(merged["lm_head.weight"], head) {
				t.Error("the head has other values")
			}
		})
	}
}

// TestSharesHead: what each configuration means to transformers 5.
func TestSharesHead(t *testing.T) {
	for _, c := range []struct {
		name, config string
		shares       bool
	}{
		{"true", `{"tie_word_embeddings": true}`, true},
		{"false", `{"model_type": "smollm3", "tie_word_embeddings": false}`, false},
		{"absent", `{"model_type": "qwen3"}`, false},
		{"absent where the class says true", `{"model_type": "smollm3"}`, true},
		{"of the text part", `{"text_config": {"tie_word_embeddings": true}}`, true},
		{"of the whole before the part", `{"tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}}`, false},
		{"null", `{"tie_word_embeddings": null, "text_config": null}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			text(t, filepath.Join(dir, configFile), c.config)
			if shares, err := SharesHead(t.Context(), Directory(dir)); err != nil || shares != c.shares {
				t.Errorf("%v, %v", shares, err)
			}
		})
	}
}

func TestUsePEFTNames(t *testing.T) {
	dir := t.TempDir()
	draw := rand.New(rand.NewPCG(3, 4))
	tensors := map[string]matrix{}
	for _, name := range []string{tinkerHead, query} {
		tensors[namePrefix+name+".lora_A.weight"] = random(draw, typeFloat32, 2, 6)
		tensors[namePrefix+name+".lora_B.weight"] = random(draw, typeFloat32, 8, 2)
	}
	path := filepath.Join(dir, "adapter_model.safetensors")
	file(t, path, tensors)
	text(t, filepath.Join(dir, "checkpoint.json"), "{}")
	if err := UsePEFTNames(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	wanted := filepath.Join(t.TempDir(), "wanted")
	for _, matrix := range []string{".lora_A.weight", ".lora_B.weight"} {
		tensors[namePrefix+"lm_head"+matrix] = tensors[namePrefix+tinkerHead+matrix]
		delete(tensors, namePrefix+tinkerHead+matrix)
	}
	file(t, wanted, tensors)
	if _, err := os.Stat(filepath.Join(dir, "checkpoint.json")); !os.IsNotExist(err) {
		t.Error("the manifest is there still")
	}
	os.Rename(path, filepath.Join(dir, weightsFile))
	os.Rename(wanted, filepath.Join(filepath.Dir(wanted), weightsFile))
	got, want := tensorsOf(t, dir), tensorsOf(t, filepath.Dir(wanted))
	for name, m := range want {
		if !slices.Equal(m.values, got[name].values) || len(got) != len(want) {
			t.Errorf("%s: %v, expected %v", name, got[name], m)
		}
	}
}

// TestNumbers goes through every value of the small types: what is read and written is the same, and what lies between two is rounded to the nearer, to the even one in the middle.
func TestNumbers(t *testing.T) {
	for _, dtype := range []string{typeFloat16, typeBFloat16} {
		read := func(bits uint16) float32 {
			var v [1]float32
			decodeFloats(v[:], dtype, binary.LittleEndian.AppendUint16(nil, bits))
			return v[0]
		}
		write := func(v float32) uint16 {
			if dtype == typeBFloat16 {
				return toBFloat16(v)
			}
			return toHalf(v)
		}
		for i := range 1 << 16 {
			bits := uint16(i)
			v := read(bits)
			got := write(v)
			if v != v {
				if w := read(got); w == w {
					t.Fatalf("%s %#x: NaN became %v", dtype, bits, w)
				}
				continue
			}
			if got != bits {
				t.Fatalf("%s: %v is %#x, not %#x", dtype, v, got, bits)
			}
			next := read(bits + 1)
			if bits&0x7fff == 0x7fff || next != next || math.IsInf(float64(next), 0) || math.IsInf(float64(v), 0) {
				continue
			}
			middle := float32((float64(v) + float64(next)) / 2)
			even := bits
			if bits&1 == 1 {
				even++
			}
			if got := write(middle); got != even {
				t.Fatalf("%s: %v, between %v and %v, is %#x, not %#x", dtype, middle, v, next, got, even)
			}
			if got := write(math.Nextafter32(middle, v)); got != bits {
				t.Fatalf("%s: below the middle of %v and %v: %#x, not %#x", dtype, v, next, got, bits)
			}
		}
	}
}

// TestOnlyAHead: a tied model whose files have the head and no embedding gets both; and what is not the model's is left behind.
func TestOnlyAHead(t *testing.T) {
	base, _, baseDir, adapterDir := models(t, true, typeFloat32)
	base["lm_head.weight"] = base["model.embed_tokens.weight"]
	delete(base, "model.embed_tokens.weight")
	file(t, filepath.Join(baseDir, weightsFile), base)
	left := []string{"adapter_config.json", "pytorch_model.bin.index.json", ".gitattributes", ".hidden.json"}
	for _, name := range left {
		text(t, filepath.Join(baseDir, name), "{}")
	}
	dir := t.TempDir()
	if err := mergeInto(t.Context(), dir, Options{Base: Directory(baseDir), Adapter: adapterDir, ShardBytes: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	got := tensorsOf(t, dir)
	if !slices.Equal(got["model.embed_tokens.weight"].values, base["lm_head.weight"].values) {
		t.Error("the embedding is not what the base has")
	}
	if slices.Equal(got["lm_head.weight"].values, base["lm_head.weight"].values) {
		t.Error("the head was not merged")
	}
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was copied", name)
		}
	}
}

// TestMergeOfNamesAndFusedModules: the text model of a model of several kinds of input has other names in the files, which an adapter may have too; and modules that the files have as one have a rank and an alpha of
// their own, or each part has.
func TestMergeOfNamesAndFusedModules(t *testing.T) {
	const layer = "model.layers.0.self_attn."
	whole := map[string][3]int64{"qkv_proj": {8, 6, 0}} // rows, rank, first row in the base
	parts := map[string][3]int64{"q_proj": {4, 3, 0}, "k_proj": {2, 2, 4}, "v_proj": {2, 1, 6}}
	for _, c := range []struct {
		name           string
		nestedBase     bool
		nestedAdapter  bool
		modules        map[string][3]int64
		nestedPatterns bool
	}{
		{"nested, and the adapter not", true, false, whole, false},
		{"nested, the adapter too", true, true, whole, true},
		{"nested, with the keys of alpha_pattern not", true, true, whole, false},
		{"parts", false, false, parts, false},
		{"parts, nested", true, true, parts, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			draw := rand.New(rand.NewPCG(3, 4))
			inBase := func(name string) string { return inFile(c.nestedBase, name) + ".weight" }
			base := map[string]matrix{inBase("model.embed_tokens"): random(draw, typeFloat32, 11, 6), inBase(layer + "qkv_proj"): random(draw, typeFloat32, 8, 6)}
			if c.nestedBase {
				base["model.visual.pos_embed.weight"] = random(draw, typeFloat32, 3, 3)
			}
			type module struct {
				from       string
				row        int64
				a, b       matrix
				rows, rank int64
			}
			var modules []module
			adapter, ranks, alphas := map[string]matrix{}, map[string]int64{}, map[string]int64{}
			put := func(name, from string, rows, rank, row int64) {
				m := module{from, row, random(draw, typeFloat32, rank, 6), random(draw, typeFloat32, rows, rank), rows, rank}
				modules = append(modules, m)
				stored := inFile(c.nestedAdapter, name)
				adapter[namePrefix+stored+".lora_A.weight"], adapter[namePrefix+stored+".lora_B.weight"] = m.a, m.b
				key := inFile(c.nestedPatterns, name)
				ranks[key], alphas[key] = rank, 2*rank
			}
			for _, name := range slices.Sorted(maps.Keys(c.modules)) {
				s := c.modules[name]
				put(layer+name, inBase(layer+"qkv_proj"), s[0], s[1], s[2])
			}
			put("lm_head", inBase("model.embed_tokens"), 11, 2, 0)
			baseDir, adapterDir, dir := t.TempDir(), t.TempDir(), t.TempDir()
			file(t, filepath.Join(baseDir, weightsFile), base)
			text(t, filepath.Join(baseDir, configFile), `{"tie_word_embeddings": true, "text_config": {"tie_word_embeddings": true, "dtype": "float32", "b": 2}, "a": 1}`)
			file(t, filepath.Join(adapterDir, "adapter_model.safetensors"), adapter)
			config, err := json.Marshal(map[string]any{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none", "rank_pattern": ranks, "alpha_pattern": alphas})
			if err != nil {
				t.Fatal(err)
			}
			text(t, filepath.Join(adapterDir, "adapter_config.json"), string(config))
			if err := mergeInto(t.Context(), dir, Options{Base: Directory(baseDir), Adapter: adapterDir, DType: "float32", ShardBytes: shardBytes}); err != nil {
				t.Fatal(err)
			}
			want := map[string][]float64{}
			for _, m := range modules {
				to := m.from
				if strings.Contains(to, "embed_tokens") {
					to = headTensor
				}
				if want[to] == nil {
					for _, v := range base[m.from].values {
						want[to] = append(want[to], float64(v))
					}
				}
				for i := range m.rows {
					for j := range int64(6) {
						for k := range m.rank {
							want[to][(m.row+i)*6+j] += 2 * float64(m.b.values[i*m.rank+k]) * float64(m.a.values[k*6+j])
						}
					}
				}
			}
			got := tensorsOf(t, dir)
			for name, values := range want {
				for i, v := range got[name].values {
					if math.Abs(float64(v)-values[i]) > 1e-5 {
						t.Fatalf("%s: value %d is %v, want %v", name, i, v, values[i])
					}
				}
			}
			if len(got) != len(base)+1 || !slices.Equal(got["model.visual.pos_embed.weight"].values, base["model.visual.pos_embed.weight"].values) {
				t.Errorf("%d tensors", len(got))
			}
			raw, err := os.ReadFile(filepath.Join(dir, configFile))
			if err != nil || strings.Count(string(raw), `"tie_word_embeddings": false`) != 2 || !strings.Contains(string(raw), `"b": 2`) {
				t.Errorf("%s, %v", raw, err)
			}
		})
	}
}
