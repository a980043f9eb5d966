package merge

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
	"github.com/tinsmith/tinsmith/plugins"
)

const (
	configFile      = "config.json"
	textPrefix      = "model."
	nestedPrefix    = "model.language_model." // of a text model among others
	embeddingTensor = textPrefix + "embed_tokens.weight"
	headTensor      = headName + ".weight"
	shardBytes      = 5_000_000_000 // what transformers writes too
	maxCopied       = 1 << 30       // a tokenizer has a few MiB
	chunkElements   = 1 << 20       // of a matrix, that are worked on at once
)

// Options say what is merged.
type Options struct {
	Base    Source
	Adapter string // a PEFT directory on this machine
	// DType is the type of the result: "float32", "bfloat16" or "float16"; "" = each tensor keeps its own.
	DType string
	// BaseHash is the base model's hash as the backend that trained the adapter states it; "" = it is not compared.
	BaseHash string
	// ShardBytes is the size from which on the result is cut into several files.
	ShardBytes int64
}

// Plan is a merge whose inputs have been checked.
type Plan struct {
	options Options
	adapter *adapter
	tensors []output
	copied  []File
	config  []byte // of the base
	changed []byte // what takes its place
	// Bytes is the size of the tensors that will be written.
	Bytes int64
}

// output is a tensor of the result.
type output struct {
	name  string
	from  tensor
	dtype string
	lora  []placed // none = as it is
	added bool     // not a tensor of the base: head or embedding, which shared the other's weights

	packed *packed // what it is unpacked from; nil = it is not
	sum    bool    // only the base's hash has it: it is unpacked with another one
}

// place is what tensors are in the order of: the names of the base's, in which its hash has them.
func (o output) place() string {
	if o.packed != nil {
		return o.name + blocksSuffix
	}
	return o.name
}

func (o output) elements() int64 { return o.from.size / widths[o.from.dtype] }

// size is that of the result.
func (o output) size() int64 {
	if o.sum {
		return 0
	}
	return o.elements() * widths[o.dtype]
}

// Prepare reads configuration, index and headers, and finds for each module of the adapter the matrix that it belongs to. A module that has none, and a matrix of another shape or of a type that is not
// computed with, are errors.
func Prepare(ctx context.Context, o Options) (*Plan, error) {
	p := &Plan{options: o}
	dtype, known := dtypes[o.DType]
	if o.DType != "" && !known {
		return nil, fmt.Errorf("dtype: %.40q is not one of %s", o.DType, strings.Join(slices.Sorted(maps.Keys(dtypes)), ", "))
	}
	var err error
	if p.adapter, err = openAdapter(ctx, o.Adapter); err != nil {
		return nil, err
	}
	files, err := o.Base.Files(ctx)
	if err != nil {
		return nil, err
	}
	if err := p.takeFiles(ctx, files); err != nil {
		return nil, err
	}
	tensors, err := modelTensors(ctx, o.Base, files)
	if err != nil {
		return nil, err
	}
	unpacked, err := unpack(p.config, tensors)
	if err != nil {
		return nil, err
	}
	layout, err := readLayout(p.config, tensors)
	if err != nil {
		return nil, err
	}
	nested := layout.nested
	embeddingTensor := inFile(nested, embeddingTensor)
	ownHead := p.adapter.modules[headName] != nil
	_, hasHead := tensors[headTensor]
	embedding, hasEmbedding := tensors[embeddingTensor]
	if ownHead && hasEmbedding && !hasHead {
		tensors[headTensor] = embedding
	}
	if ownHead && hasHead && !hasEmbedding { // a tied matrix may be saved under either name
		tensors[embeddingTensor] = tensors[headTensor]
	}
	for name, t := range tensors {
		p.tensors = append(p.tensors, output{name: name, from: t, added: name == headTensor && !hasHead || name == embeddingTensor && !hasEmbedding, packed: unpacked[name]})
	}
	for name, u := range unpacked {
		p.tensors = append(p.tensors, output{name: name + scalesSuffix, from: u.scales, sum: true})
	}
	slices.SortFunc(p.tensors, func(a, b output) int { return strings.Compare(a.place(), b.place()) })
	used := map[string]bool{}
	for i := range p.tensors {
		t := &p.tensors[i]
		if t.dtype = t.from.dtype; dtype != "" && isFloat(t.dtype) {
			t.dtype = dtype
		}
		if t.lora, err = p.adapter.lorasOf(t.name, t.from, layout, used); err != nil {
			return nil, err
		}
		p.Bytes += t.size()
	}
	if err := p.adapter.checkUsed(used, nested); err != nil {
		return nil, err
	}
	return p, p.changeConfig(ctx, ownHead, len(unpacked) > 0, tensors)
}

// isNested tells whether the files have the text model's tensors among others, under names of their own.
func isNested(tensors map[string]tensor) bool {
	for name := range tensors {
		if strings.HasPrefix(name, nestedPrefix) {
			return true
		}
	}
	return false
}

// inFile is the name that what belongs to the text model has in the files; inAdapter goes the other way.
func inFile(nested bool, name string) string {
	if rest, ok := strings.CutPrefix(name, textPrefix); ok && nested {
		return nestedPrefix + rest
	}
	return name
}

func inAdapter(nested bool, name string) string {
	if rest, ok := strings.CutPrefix(name, nestedPrefix); ok && nested {
		return textPrefix + rest
	}
	return name
}

// takeFiles notes what is copied as it is: all but weights and configuration.
func (p *Plan) takeFiles(ctx context.Context, files []File) error {
	for _, f := range files {
		switch {
		case f.Name == configFile:
			var err error
			if p.config, err = read(ctx, p.options.Base, f, maxConfig); err != nil {
				return err
			}
		case f.Name != filepath.Base(f.Name):
			return fmt.Errorf("the base model has a file of the name %.200q, which cannot be", f.Name)
		case !copies(f.Name):
		case f.Size > maxCopied:
			return fmt.Errorf("%s: has %d bytes, more than %d", f.Name, f.Size, int64(maxCopied))
		default:
			p.copied = append(p.copied, f)
		}
	}
	if p.config == nil {
		return fmt.Errorf("the base model has no %s", configFile)
	}
	return nil
}

// copies tells whether a file of the base belongs to the merged model too: configurations, tokenizer, templates, licences. Weights in other forms, their indexes, an adapter's configuration, the model card and
// hidden files (.gitattributes) do not.
func copies(name string) bool {
	if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".index.json") || name == plugins.AdapterConfigFile {
		return false
	}
	upper := strings.ToUpper(name)
	return slices.Contains([]string{".json", ".jinja", ".txt", ".model", ".tiktoken"}, filepath.Ext(name)) || strings.HasPrefix(upper, "LICENSE") || strings.HasPrefix(upper, "NOTICE")
}

// changeConfig makes the configuration of the result: a head that was trained, or was another matrix before, is not the embedding, a type that was asked for is stated,
// and what was unpacked is not quantized.
func (p *Plan) changeConfig(ctx context.Context, ownHead, unpacked bool, tensors map[string]tensor) error {
	var c map[string]json.RawMessage
	if err := json.Unmarshal(p.config, &c); err != nil {
		return fmt.Errorf("%s: %w", configFile, err)
	}
	text, err := inner(c)
	if err != nil {
		return err
	}
	if unpacked {
		delete(c, quantizationKey)
	}
	for _, part := range []map[string]json.RawMessage{c, text} {
		for _, key := range []string{quantizationKey, "compression_config"} {
			if text := string(part[key]); text != "" && text != "null" {
				return fmt.Errorf("%s: the base model is quantized (%s); merge into the model that is not", configFile, key)
			}
		}
	}
	untie := ownHead
	if !untie && sharesHead(c, text) {
		if untie, err = twoHeads(ctx, p.options.Base, tensors); err != nil {
			return err
		}
	}
	if !untie && !unpacked && p.options.DType == "" {
		p.changed = p.config
		return nil
	}
	if untie {
		c[tiedKey] = json.RawMessage("false")
		if _, ok := text[tiedKey]; ok {
			text[tiedKey] = json.RawMessage("false")
		}
	}
	d := p.options.DType
	if d == "" && unpacked {
		d = "bfloat16"
	}
	if d != "" {
		stated := false
		for _, part := range []map[string]json.RawMessage{c, text} {
			for _, key := range []string{"dtype", "torch_dtype"} { // the one is the other's newer name
				if _, ok := part[key]; ok {
					part[key], stated = json.RawMessage(`"`+d+`"`), true
				}
			}
		}
		if !stated {
			c["torch_dtype"] = json.RawMessage(`"` + d + `"`)
		}
	}
	if text != nil {
		if c[textConfigKey], err = json.Marshal(text); err != nil {
			return err
		}
	}
	changed, err := json.MarshalIndent(c, "", "  ")
	p.changed = append(changed, '\n')
	return err
}

// textConfigKey is where a model of several kinds of input has the configuration of its text model.
const textConfigKey = "text_config"

// tiedKey says whether the output head is the embedding.
const tiedKey = "tie_word_embeddings"

// inner is the configuration of the text model, nil where it is the model's own.
func inner(c map[string]json.RawMessage) (text map[string]json.RawMessage, err error) {
	if raw := string(c[textConfigKey]); raw == "" || raw == "null" {
		return nil, nil
	}
	if err := json.Unmarshal(c[textConfigKey], &text); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", configFile, textConfigKey, err)
	}
	return text, nil
}

// Write writes the merged model into an empty folder; when it returns nil everything is on disk. progress is told of bytes of tensors as they are written.
func (p *Plan) Write(ctx context.Context, dir string, progress func(bytes int)) error {
	w := &writer{plan: p, dir: dir, progress: progress, sum: sha256.New()}
	fmt.Fprintf(w.sum, "%d\n", len(p.config))
	w.sum.Write(p.config)
	shards := p.shards()
	weightMap := map[string]string{}
	for i, shard := range shards {
		file := weightsFile
		if len(shards) > 1 {
			file = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		}
		for _, t := range shard {
			if !t.sum {
				weightMap[t.name] = file
			}
		}
		if err := w.shard(ctx, file, shard); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(w.sum.Sum(nil)); p.options.BaseHash != "" && got != p.options.BaseHash {
		return fmt.Errorf("these are not the files of the base model that the adapter was trained on: its hash is %s, that of these is %s", p.options.BaseHash, got)
	}
	if len(shards) > 1 {
		text, err := json.MarshalIndent(map[string]any{"metadata": map[string]any{"total_size": p.Bytes}, "weight_map": weightMap}, "", "  ")
		if err == nil {
			err = w.plain(indexFile, text)
		}
		if err != nil {
			return err
		}
	}
	if err := w.plain(configFile, p.changed); err != nil {
		return err
	}
	for _, f := range p.copied {
		content, err := p.options.Base.Open(ctx, f.Name, 0, f.Size)
		if err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		err = writeFile(filepath.Join(dir, f.Name), func(out io.Writer) error {
			_, err := io.CopyN(out, content, f.Size)
			return err
		})
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return durable.SyncFolder(dir)
}

// shards cuts the tensors into files.
func (p *Plan) shards() [][]output {
	var shards [][]output
	size := int64(0)
	for _, t := range p.tensors {
		if len(shards) == 0 || size > 0 && !t.sum && size+t.size() > p.options.ShardBytes {
			shards, size = append(shards, nil), 0
		}
		last := len(shards) - 1
		shards[last] = append(shards[last], t)
		size += t.size()
	}
	return shards
}

// writer writes the files of a plan.
type writer struct {
	plan     *Plan
	dir      string
	progress func(bytes int)
	sum      hash.Hash // of the base, as a backend computes it
}

func (w *writer) plain(name string, content []byte) error {
	return writeFile(filepath.Join(w.dir, name), func(out io.Writer) error {
		_, err := out.Write(content)
		return err
	})
}

func (w *writer) shard(ctx context.Context, file string, tensors []output) error {
	var names []string
	entries, end := map[string]entry{}, int64(0)
	for _, t := range tensors {
		if t.sum {
			continue
		}
		names = append(names, t.name)
		entries[t.name] = entry{t.dtype, t.from.shape, [2]int64{end, end + t.size()}}
		end += t.size()
	}
	head, err := encodeHeader(names, entries)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(w.dir, file), func(f io.Writer) error {
		out := bufio.NewWriterSize(f, 1<<20)
		if _, err := out.Write(head); err != nil {
			return err
		}
		for _, t := range tensors {
			if err := w.tensor(ctx, out, t); err != nil {
				return fmt.Errorf("tensor %q: %w", t.name, err)
			}
		}
		return out.Flush()
	})
}

// tensor writes one tensor, some rows at a time.
func (w *writer) tensor(ctx context.Context, out io.Writer, t output) error {
	if t.sum {
		return w.addToSum(ctx, t.name, t.from)
	}
	source, err := w.source(ctx, t)
	if err != nil {
		return err
	}
	defer source.Close()
	var in io.Reader = source
	if !t.added && t.packed == nil {
		w.head(t.name, t.from)
		in = io.TeeReader(source, w.sum)
	}
	rows, row := t.elements(), int64(1) // without LoRA nothing depends on rows
	if len(t.lora) > 0 {
		row = t.from.shape[len(t.from.shape)-1]
		rows /= row
	}
	addLoRA := w.plan.adapter.rowsAdder(ctx, t.lora, row)
	step := max(1, chunkElements/max(1, row))
	raw := make([]byte, min(rows, step)*row*widths[t.from.dtype])
	encoded := make([]byte, min(rows, step)*row*widths[t.dtype])
	values := make([]float32, min(rows, step)*row)
	for from := int64(0); from < rows; from += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(step, rows-from)
		data := raw[:n*row*widths[t.from.dtype]]
		if _, err := io.ReadFull(in, data); err != nil {
			return err
		}
		if len(t.lora) > 0 || t.dtype != t.from.dtype {
			part := values[:n*row]
			decodeFloats(part, t.from.dtype, data)
			if err := addLoRA(part, from, n); err != nil {
				return err
			}
			data = encoded[:n*row*widths[t.dtype]]
			if err := encodeFloats(data, t.dtype, part); err != nil {
				return err
			}
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		w.progress(len(data))
	}
	return nil
}

// add adds scale · B·A to rows of W, which has so many columns, from a column on, in columns that lie so far apart. B has one row of rank values for each.
func add(w, a, b []float32, rank, stride, column, apart int, scale float32) {
	rows, columns := len(w)/stride, len(a)/rank
	workers := min(runtime.GOMAXPROCS(0), rows)
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			sum := make([]float32, columns)
			for r := rows * k / workers; r < rows*(k+1)/workers; r++ {
				clear(sum)
				factors := b[r*rank : (r+1)*rank]
				i := 0
				for ; i+4 <= rank; i += 4 { // four at a time: each sum is loaded and stored once for them
					b0, b1, b2, b3 := factors[i], factors[i+1], factors[i+2], factors[i+3]
					a0, a1, a2, a3 := a[i*columns:][:columns], a[(i+1)*columns:][:columns], a[(i+2)*columns:][:columns], a[(i+3)*columns:][:columns]
					for j := range sum {
						sum[j] += b0*a0[j] + b1*a1[j] + b2*a2[j] + b3*a3[j]
					}
				}
				for ; i < rank; i++ {
					for j, v := range a[i*columns:][:columns] {
						sum[j] += factors[i] * v
					}
				}
				for j, v := range sum {
					w[r*stride+column+j*apart] += scale * v
				}
			}
		})
	}
	wg.Wait()
}

// SharesHead tells whether the output head of a model has no weights of its own, by its configuration: the weights may not be given to who asks.
func SharesHead(ctx context.Context, s Source) (bool, error) {
	files, err := s.Files(ctx)
	if err != nil {
		return false, err
	}
	config := slices.IndexFunc(files, func(f File) bool { return f.Name == configFile })
	if config < 0 {
		return false, fmt.Errorf("the base model has no %s", configFile)
	}
	raw, err := read(ctx, s, files[config], maxConfig)
	if err != nil {
		return false, err
	}
	var c map[string]json.RawMessage
	if err := json.Unmarshal(raw, &c); err != nil {
		return false, fmt.Errorf("%s: %w", configFile, err)
	}
	text, err := inner(c)
	if err != nil {
		return false, err
	}
	return sharesHead(c, text), nil
}

// sharesHead tells whether the head is the embedding by a configuration: of a model of several kinds of input by the whole's key before the text part's, and where neither has it by what the class in transformers takes then.
func sharesHead(c, text map[string]json.RawMessage) bool {
	for _, part := range []map[string]json.RawMessage{c, text} {
		if tied := string(part[tiedKey]); tied != "" && tied != "null" {
			return tied == "true"
		}
	}
	return string(c["model_type"]) == `"smollm3"` || strings.Contains(string(c["architectures"]), `"SmolLM3ForCausalLM"`)
}
