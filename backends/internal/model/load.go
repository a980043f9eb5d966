package model

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Registry has the supported architectures by their Hugging Face name ("Qwen3ForCausalLM"). Package architectures has all of ours.
type Registry map[string]Architecture

// Architecture is one family of models.
type Architecture struct {
	// Check refuses, by name, what the configuration asks for and the family does not have.
	Check func(c *Config) error
	// Layer loads layer i.
	Layer func(ctx context.Context, l *Loader, i int) (nn.Layer, error)
}

// LoadOptions are the settings of Load.
type LoadOptions struct {
	DType      tensor.DType // of weights, products and pages; 0 = float32 if the embedding's file has it, else bfloat16
	MaxContext int          // positions; 0 = what the model allows
	// LogitsBytes bounds the memory for logits, which are computed in chunks of rows; 0 = 64 MiB. Training takes up to four times that. It changes no result.
	LogitsBytes int
	// Progress, when not nil, is called from one goroutine with bytes of weights packed so far and in all.
	Progress func(done, total int64)
}

const (
	embeddingName = "model.embed_tokens.weight"
	normName      = "model.norm.weight"
	headName      = "lm_head"
	// packBytes is about how much of a file is packed between two looks at the context.
	packBytes = 8 << 20
)

// Load reads a Hugging Face model directory: config.json and safetensors files, which are mapped and packed piecewise, so no second copy is resident. It fails, naming the cause,
// for an architecture or a configuration value that is not supported, and for tensors that are missing, misshapen, of a type other than F32, BF16 and F16, or not known to the architecture.
func Load(ctx context.Context, dir string, device tensor.Device, registry Registry, o LoadOptions) (*Model, error) {
	c, raw, err := readConfig(dir)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	a, ok := registry[c.Architecture]
	if !ok {
		var known []string
		for name := range registry {
			known = append(known, name)
		}
		sort.Strings(known)
		return nil, fmt.Errorf("load model: architecture %.80q is not supported: the supported ones are %s", c.Architecture, strings.Join(known, ", "))
	}
	if err := a.Check(c); err != nil {
		return nil, fmt.Errorf("load model: %s: %w", configFile, err)
	}
	if o.LogitsBytes < 0 {
		return nil, fmt.Errorf("load model: %d bytes for logits is negative", o.LogitsBytes)
	}
	if o.MaxContext < 0 || o.MaxContext > c.MaxPositionEmbeddings {
		return nil, fmt.Errorf("load model: context of %d tokens is not in 1 … %d (max_position_embeddings)", o.MaxContext, c.MaxPositionEmbeddings)
	}
	files, err := safetensors.OpenModel(dir)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	m, err := load(ctx, c, raw, files, device, a, o)
	if err := errors.Join(err, files.Close()); err != nil {
		if m != nil {
			m.Free()
		}
		return nil, fmt.Errorf("load model: %w", err)
	}
	return m, nil
}

// load gives the model as far as it got, also on error.
func load(ctx context.Context, c *Config, raw []byte, files *safetensors.Collection, device tensor.Device, a Architecture, o LoadOptions) (*Model, error) {
	m := &Model{Config: c, DType: o.DType, Device: device, MaxContext: c.MaxPositionEmbeddings, logitsBytes: defaultLogitsBytes}
	if o.LogitsBytes != 0 {
		m.logitsBytes = o.LogitsBytes
	}
	if o.MaxContext != 0 {
		m.MaxContext = o.MaxContext
	}
	l := &Loader{Config: c, model: m, files: files, used: map[string]bool{}, progress: o.Progress}
	for _, n := range files.Names() {
		t, _ := files.Tensor(n)
		l.total += int64(len(t.Data))
	}
	embedding := embeddingName
	if _, ok := files.Tensor(embedding); !ok && c.TieWordEmbeddings {
		embedding = headName + ".weight" // a tied matrix may be saved under either name
	}
	if m.DType == 0 {
		m.DType = tensor.BFloat16
		if t, ok := files.Tensor(embedding); ok && t.DType == "F32" {
			m.DType = tensor.Float32
		}
	}
	// The hash reads the same pages of the files as packing does, beside it.
	hashed := make(chan string, 1)
	hashContext, stop := context.WithCancel(ctx)
	defer func() { stop(); <-hashed }() // the files are closed after load returns
	go func() { hashed <- hash(hashContext, raw, files); close(hashed) }()

	var err error
	if m.rope, err = c.Rope.Table(device, m.MaxContext, c.HeadDim); err != nil {
		return m, err
	}
	if m.embedding, err = l.Matrix(ctx, embedding, c.VocabSize, c.HiddenSize); err != nil {
		return m, err
	}
	for i := 0; i < c.Layers; i++ {
		layer, err := a.Layer(ctx, l, i)
		if err != nil {
			return m, err
		}
		m.layers = append(m.layers, layer)
	}
	if m.norm, err = l.Norm(normName, c.HiddenSize); err != nil {
		return m, err
	}
	if c.TieWordEmbeddings {
		m.head = nn.Linear{Weight: m.embedding, Module: l.module(headName, lora.Unembed, c.VocabSize, c.HiddenSize)}
		l.used[headName+".weight"] = true
	} else if m.head, err = l.Linear(ctx, headName, lora.Unembed, c.VocabSize, c.HiddenSize, false); err != nil {
		return m, err
	}
	if err := l.checkAllUsed(); err != nil {
		return m, err
	}
	select {
	case m.Hash = <-hashed:
	case <-ctx.Done():
		return m, ctx.Err()
	}
	if m.Hash == "" {
		return m, ctx.Err()
	}
	return m, nil
}

// hash is SHA-256 over config.json and every tensor's name, type, shape and bytes in order of names; "" if the context ends.
func hash(ctx context.Context, config []byte, files *safetensors.Collection) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", len(config))
	h.Write(config)
	for _, n := range files.Names() {
		t, _ := files.Tensor(n)
		fmt.Fprintf(h, "%q %s %v\n", n, t.DType, t.Shape)
		for data := t.Data; len(data) > 0; {
			if ctx.Err() != nil {
				return ""
			}
			part := data[:min(len(data), packBytes)]
			h.Write(part)
			data = data[len(part):]
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Loader takes a model's tensors from its files, for an Architecture. What it has handed out belongs to the model.
type Loader struct {
	Config *Config

	model       *Model
	files       *safetensors.Collection
	used        map[string]bool
	done, total int64
	progress    func(done, total int64)
}

// Rope is the model's table of rotary positions.
func (l *Loader) Rope() tensor.Tensor { return l.model.rope }

// find looks a tensor up and checks its shape and type.
func (l *Loader) find(name string, shape ...int) (safetensors.Tensor, error) {
	t, ok := l.files.Tensor(name)
	if !ok {
		return t, fmt.Errorf("tensor %q is missing", name)
	}
	if !slices.Equal(t.Shape, shape) {
		return t, fmt.Errorf("tensor %q has shape %v, the configuration makes it %v", name, t.Shape, shape)
	}
	if t.DType != "F32" && t.DType != "BF16" && t.DType != "F16" {
		return t, fmt.Errorf("tensor %q has type %s, only F32, BF16 and F16 are supported", name, t.DType)
	}
	l.used[name] = true
	return t, nil
}

// Matrix packs a tensor of out × in, until ctx ends.
func (l *Loader) Matrix(ctx context.Context, name string, out, in int) (tensor.Matrix, error) {
	t, err := l.find(name, out, in)
	if err != nil {
		return nil, err
	}
	w, err := l.model.Device.NewMatrix(l.model.DType, out, in)
	if err != nil {
		return nil, fmt.Errorf("tensor %q: %w", name, err)
	}
	l.model.matrices = append(l.model.matrices, w)
	row := len(t.Data) / out
	for from := 0; from < out; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n := min(out-from, max(1, packBytes/row))
		if err := l.model.Device.PackRows(w, from, n, t.DType, t.Data[from*row:(from+n)*row]); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", name, err)
		}
		from += n
		l.advance(n * row)
	}
	l.model.Parameters += int64(out) * int64(in)
	return w, nil
}

// Vector uploads a tensor of n elements as float32. In a bfloat16 model its values are rounded to bfloat16, as if the file held them so.
func (l *Loader) Vector(name string, n int) (tensor.Tensor, error) {
	t, err := l.find(name, n)
	if err != nil {
		return tensor.Tensor{}, err
	}
	values, err := t.Float32s()
	if err != nil {
		return tensor.Tensor{}, err
	}
	v, err := l.model.Device.Alloc(tensor.Float32, 1, n)
	if err != nil {
		return v, fmt.Errorf("tensor %q: %w", name, err)
	}
	l.model.vectors = append(l.model.vectors, v)
	if err := l.model.Device.Upload(v, values); err != nil {
		return v, fmt.Errorf("tensor %q: %w", name, err)
	}
	if l.model.DType == tensor.BFloat16 {
		if err := l.model.Device.Scale(v, 1, tensor.BFloat16); err != nil {
			return v, err
		}
	}
	l.advance(len(t.Data))
	l.model.Parameters += int64(n)
	return v, nil
}

// Norm loads the weight of an RMSNorm.
func (l *Loader) Norm(name string, n int) (nn.RMSNorm, error) {
	w, err := l.Vector(name, n)
	return nn.RMSNorm{Weight: w, Eps: l.Config.RMSNormEps}, err
}

// Linear loads NAME.weight (out × in), with bias NAME.bias, and makes it a module that can carry LoRA.
func (l *Loader) Linear(ctx context.Context, name string, group lora.Group, out, in int, bias bool) (nn.Linear, error) {
	w, err := l.Matrix(ctx, name+".weight", out, in)
	if err != nil {
		return nn.Linear{}, err
	}
	linear := nn.Linear{Weight: w, Module: l.module(name, group, out, in)}
	if bias {
		linear.Bias, err = l.Vector(name+".bias", out)
	}
	return linear, err
}

func (l *Loader) module(name string, group lora.Group, out, in int) int {
	l.model.Modules = append(l.model.Modules, lora.Module{Name: name, Group: group, Out: out, In: in})
	return len(l.model.Modules) - 1
}

func (l *Loader) advance(n int) {
	l.done += int64(n)
	if l.progress != nil {
		l.progress(l.done, l.total)
	}
}

// checkAllUsed refuses tensors that the architecture does not have: the files are of something else.
func (l *Loader) checkAllUsed() error {
	for _, n := range l.files.Names() {
		// Old Llama files hold the rotary frequencies, which follow from the configuration.
		if !l.used[n] && !strings.HasSuffix(n, ".rotary_emb.inv_freq") {
			return fmt.Errorf("tensor %q is not known to architecture %s with this configuration", n, l.Config.Architecture)
		}
	}
	if l.progress != nil {
		l.progress(l.total, l.total)
	}
	return nil
}
