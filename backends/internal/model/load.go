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
	"sync"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// Registry has the supported architectures by their Hugging Face name ("Qwen3ForCausalLM"). Package architectures has all of ours.
type Registry map[string]Architecture

// Architecture is one family of models.
type Architecture struct {
	// Check refuses, by name, what the configuration asks for and the family does not have.
	Check func(c *Config) error
	// Layer loads layer i.
	Layer func(ctx context.Context, l *Loader, i int) (nn.Layer, error)
	// Ignored are the beginnings of the names of tensors, as files have them, that lie beside those of the text model and are not loaded.
	Ignored []string
	// Defaults are those of keys of config.json.
	Defaults Defaults
	// NestedConfig tells that config.json may have the text model's settings in text_config.
	NestedConfig bool
	// OnePlusNorms tells that the weight of the final norm is one more than the files have it, see Loader.OnePlusNorm.
	OnePlusNorms bool
	// Recurrence tells that the layers need tensor.Recurrence of a device, whichever of them a model has.
	Recurrence bool
	// PEFTExperts is the form in which PEFT reads LoRA on the experts.
	PEFTExperts PEFTExperts
}

// PEFTExperts is what PEFT 0.21 makes of LoRA on the experts of a family's class in transformers 5, which has all of a layer in two parameters.
type PEFTExperts uint8

// The forms.
const (
	ExpertsApart              PEFTExperts = iota // each expert's modules, which it puts together
	ExpertsFused                                 // LoRA on the parameters
	ExpertsInterleaved                           // the same, where rows of gate and up take turns
	ExpertsAndSharedOnesFused                    // and on those of the shared expert, because it takes the names of its modules for those of experts, and leaves it out
)

// LoadOptions are the settings of Load.
type LoadOptions struct {
	DType      tensor.DType // of weights, products and pages; 0 = float32 if the embedding's file has it, else bfloat16
	FP8        FP8
	MaxContext int // positions; 0 = what the model allows
	// LogitsBytes bounds the memory for logits, which are computed in chunks of rows; 0 = 64 MiB. Training takes up to four times that. Chunks are multiples of the rows that the device's
	// kernels take at once, where there is room for as many: of 128 on devices with memory of their own. It changes no result.
	LogitsBytes int
	// Sizes tells that what a model takes is all that is asked for, on devices of package dry: no value of a tensor is read, and where the files of a directory's weights are not all there, the tensors are those that config.json
	// makes it have, with the names that model.safetensors.index.json has, where that is there.
	Sizes bool
	// Progress, when not nil, is called with bytes of weights packed so far and in all, by one goroutine at a time.
	Progress func(done, total int64)
}

const (
	embeddingName = "model.embed_tokens.weight"
	normName      = "model.norm.weight"
	headName      = "lm_head"
	// packBytes is about how much of a file is packed between two looks at the context.
	packBytes = 8 << 20
	// mostParameters bounds a model: where its weights are not there, nothing but config.json tells how many it has. Of so many all sizes in bytes can be counted.
	mostParameters = 1 << 44
)

// Load reads a Hugging Face model directory: config.json and safetensors files, which are mapped and packed piecewise, so no second copy is resident. It fails, naming the cause,
// for an architecture or a configuration value that is not supported, and for tensors that are missing, misshapen, not finite, of a type other than F32, BF16 and F16, or not known to the architecture.
func Load(ctx context.Context, dir string, device tensor.Device, registry Registry, o LoadOptions) (*Model, error) {
	models, err := LoadCut(ctx, dir, []tensor.Device{device}, registry, o)
	if err != nil {
		return nil, err
	}
	return models[0], nil
}

// LoadCut is Load for a model that is cut over several devices, for tensor parallelism: the model at r is rank r's, on devices[r], with its share of the attention heads, of the MLP's width and of the vocabulary. The caller
// sets Comm, and runs each pass on all ranks at once. It fails, naming the possible numbers, where the model cannot be cut over so many. The devices are used at the same time, from several goroutines, until it returns.
func LoadCut(ctx context.Context, dir string, devices []tensor.Device, registry Registry, o LoadOptions) ([]*Model, error) {
	copies, err := LoadSharded(ctx, dir, [][]tensor.Device{devices}, registry, o)
	if err != nil {
		return nil, err
	}
	return copies[0], nil
}

// LoadSharded is LoadCut for several copies of the model that share its weights out: copy c is over devices[c], all of them equally many, and each of its ranks holds an equal share of the rows of every matrix that the
// other copies' same rank holds the rest of (norms, biases and the table of positions are on all). A pass of a copy copies weights from the others' memory as it needs them, so they are freed together. One copy is LoadCut.
func LoadSharded(ctx context.Context, dir string, devices [][]tensor.Device, registry Registry, o LoadOptions) ([][]*Model, error) {
	d, err := openDirectory(dir, registry, len(devices[0]), o)
	if err != nil {
		return nil, fmt.Errorf("load model: %w", err)
	}
	models, err := d.load(ctx, devices, o)
	if err := errors.Join(err, d.files.Close()); err != nil {
		for _, m := range slices.Concat(models...) {
			m.Free()
		}
		return nil, fmt.Errorf("load model: %w", err)
	}
	return models, nil
}

// directory is a model's directory that has been found to be one that can be loaded, by all but the tensors. Its files are open.
type directory struct {
	config       *Config
	raw          []byte // config.json
	files        weightFiles
	architecture Architecture
	notes        []string // what of the files is not used, or otherwise than they say
}

// ErrContext says that LoadOptions.MaxContext is what a model was refused for.
var ErrContext = errors.New("context")

func openDirectory(dir string, registry Registry, ranks int, o LoadOptions) (*directory, error) {
	c, raw, err := readConfig(dir, registry)
	if err != nil {
		return nil, err
	}
	a, ok := registry[c.Architecture]
	if !ok {
		var known []string
		for name := range registry {
			known = append(known, name)
		}
		sort.Strings(known)
		return nil, fmt.Errorf("architecture %.80q is not supported: the supported ones are %s; other causal language models are trained and sampled, slowly, by the plugin transformers (docs/other-models.md)",
			c.Architecture, strings.Join(known, ", "))
	}
	if c.Nested && !a.NestedConfig {
		return nil, fmt.Errorf("%s: text_config is set, which a model of architecture %s does not have", configFile, c.Architecture)
	}
	if err := a.Check(c); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	if err := c.checkCut(ranks); err != nil {
		return nil, err
	}
	if o.LogitsBytes < 0 {
		return nil, fmt.Errorf("%d bytes for logits is negative", o.LogitsBytes)
	}
	if o.MaxContext < 0 || o.MaxContext > c.MaxPositionEmbeddings {
		return nil, fmt.Errorf("%w of %d tokens is not in 1 … %d (max_position_embeddings)", ErrContext, o.MaxContext, c.MaxPositionEmbeddings)
	}
	if err := refuseAdapter(dir); err != nil {
		return nil, err
	}
	files, err := openWeights(dir, c, raw, o)
	if err != nil {
		return nil, err
	}
	if files.nested && !a.NestedConfig {
		return nil, errors.Join(fmt.Errorf("there are tensors of the name %s…: the files are of a model of several kinds of input, which architecture %s does not have; write its text model alone with transformers, or name the whole one's architecture", nestedPrefix, c.Architecture), files.Close())
	}
	d := &directory{config: c, raw: raw, files: files, architecture: a}
	if files.Unused != "" {
		d.notes = append(d.notes, fmt.Sprintf("model.safetensors is served as transformers would load it; %s beside it, and the shards that it names, are not read", files.Unused))
	}
	if c.TieWordEmbeddings && o.Sizes {
		if files.has(embeddingName) && files.has(headName+".weight") {
			d.notes = append(d.notes, fmt.Sprintf("%s says tie_word_embeddings, and there are both %s and %s.weight: they count as one, and are two if their values differ", configFile, embeddingName, headName))
		}
	} else if c.TieWordEmbeddings && !sameHead(files) {
		c.TieWordEmbeddings = false
		d.notes = append(d.notes, fmt.Sprintf("%s says tie_word_embeddings, but %s and %s.weight have different values: both are used, as transformers 5 does; say false there", configFile, embeddingName, headName))
	}
	return d, nil
}

// load gives the models of all ranks as far as they got, also on error.
func (d *directory) load(ctx context.Context, devices [][]tensor.Device, o LoadOptions) ([][]*Model, error) {
	if o.Sizes {
		models, err := d.pack(ctx, devices, o, &gauge{})
		for _, m := range slices.Concat(models...) {
			if m != nil {
				m.Notes = d.notes
			}
		}
		return models, err
	}
	// The hash reads the same pages of the files as packing does, beside it.
	type result struct {
		sum string
		err error
	}
	hashed := make(chan result, 1)
	hashContext, stop := context.WithCancel(ctx)
	defer func() { stop(); <-hashed }() // the files are closed after this function returns
	go func() {
		sum, err := hash(hashContext, d.raw, d.files.Collection)
		hashed <- result{sum, err}
		close(hashed)
	}()

	g := &gauge{report: o.Progress}
	models, err := d.pack(ctx, devices, o, g)
	if err != nil {
		return models, err
	}
	var r result
	select {
	case r = <-hashed:
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	if r.err != nil {
		return models, r.err
	}
	for _, m := range slices.Concat(models...) {
		m.Hash, m.Notes = r.sum, d.notes
	}
	g.finish()
	return models, nil
}

// pack gives the models of all ranks as far as they got, also on error, but for the hash.
func (d *directory) pack(ctx context.Context, devices [][]tensor.Device, o LoadOptions, g *gauge) ([][]*Model, error) {
	for _, n := range d.files.Names() {
		if t, ok := d.files.Collection.Tensor(n); ok && !ignored(n, d.architecture.Ignored) {
			g.total += int64(len(t.Data))
		}
	}
	copies, ranks := len(devices), len(devices[0])
	models, errs := make([][]*Model, copies), make([]error, copies*ranks)
	loadContext, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var group sync.WaitGroup
	loaded := devices
	if dry.Is(devices[0][0]) {
		loaded = devices[:1] // from which the others are told
	}
	for c, devices := range loaded {
		models[c] = make([]*Model, ranks)
		for rank, device := range devices {
			group.Go(func() {
				l := &Loader{Config: d.config, files: d.files, sizes: o.Sizes, used: map[string]bool{}, counted: map[string]bool{}, ignored: d.architecture.Ignored, gauge: g, copy: c, copies: copies}
				err := l.load(loadContext, device, rank, ranks, d.architecture, o)
				if models[c][rank] = l.model; err != nil {
					errs[c*ranks+rank] = err
					giveUp()
				}
			})
		}
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return models, err
	}
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) { // which the others are, when one has failed
			return models, err
		}
	}
	if len(loaded) < copies {
		return measuredCopies(models[0], devices)
	}
	for rank := range ranks {
		var same []*Model
		for _, m := range models {
			same = append(same, m[rank])
		}
		link(same)
	}
	return models, nil
}

// gauge measures the progress of all ranks.
type gauge struct {
	mu          sync.Mutex
	done, total int64
	report      func(done, total int64)
}

// advance counts bytes of files. What every rank has a copy of is counted by each, so that the sum may be a little too large.
func (g *gauge) advance(n int) {
	if g.report == nil {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = min(g.done+int64(n), g.total)
	g.report(g.done, g.total)
}

func (g *gauge) finish() {
	if g.report != nil {
		g.report(g.total, g.total)
	}
}

// load makes one rank's model, as far as it gets.
func (l *Loader) load(ctx context.Context, device tensor.Device, rank, ranks int, a Architecture, o LoadOptions) error {
	c, files := l.Config, l.files
	m := &Model{Config: c, DType: o.DType, Device: device, MaxContext: c.MaxPositionEmbeddings, Rank: rank, Ranks: ranks, Place: rank, logitsBytes: defaultLogitsBytes, NestedNames: c.Nested, PEFTExperts: a.PEFTExperts}
	l.model = m
	if a.Recurrence && !device.HasRecurrence() { // said before anything is packed
		return fmt.Errorf("%s: device %s has no kernels for its layers yet, linear attention and gated attention", c.Architecture, device.Name())
	}
	m.vocabulary, m.kvHeads = c.vocabularyExtent(rank, ranks), c.kvExtent(rank, ranks).size()
	if o.LogitsBytes != 0 {
		m.logitsBytes = o.LogitsBytes
	}
	if o.MaxContext != 0 {
		m.MaxContext = o.MaxContext
	}
	embedding := strings.TrimSuffix(embeddingName, ".weight")
	if !l.Has(embeddingName) && c.TieWordEmbeddings && l.Has(headName+".weight") { // a tied matrix may be saved under either name
		embedding = headName
	}
	if t, ok := files.Tensor(embedding + ".weight"); ok {
		l.wide = t.DType == "F32"
	} else if files.absent != nil {
		l.wide = files.absent.dtype == "F32"
	}
	if m.DType == 0 {
		m.DType = tensor.BFloat16
		if l.wide {
			m.DType = tensor.Float32
		}
	}
	var err error
	if l.fp8Kept, err = l.keepsFP8(o.FP8); err != nil {
		return err
	}
	m.FP8 = l.fp8Kept
	if l.measures() {
		m.rope, err = device.Alloc(tensor.Float32, m.MaxContext, c.RotaryDim)
	} else {
		m.rope, err = c.Rope.Table(device, m.MaxContext, c.RotaryDim)
	}
	if err != nil {
		return err
	}
	if m.embedding, err = l.Matrix(ctx, embedding, c.VocabSize, c.HiddenSize, m.vocabulary, extent{0, c.HiddenSize}); err != nil {
		return err
	}
	for i := 0; i < c.Layers; i++ {
		if err := ctx.Err(); err != nil { // finding a layer's tensors takes a while where it has experts
			return err
		}
		layer, err := a.Layer(ctx, l, i)
		if err != nil {
			return err
		}
		m.layers = append(m.layers, layer)
		if m.Parameters > mostParameters {
			return fmt.Errorf("%s: the first %d of %d layers have %d parameters, a model can have %d", configFile, i+1, c.Layers, m.Parameters, int64(mostParameters))
		}
	}
	norm := l.Norm
	if a.OnePlusNorms {
		norm = l.OnePlusNorm
	}
	if m.norm, err = norm(normName, c.HiddenSize); err != nil {
		return err
	}
	if c.TieWordEmbeddings {
		m.head = nn.Linear{Weight: m.embedding, Module: l.module(headName, lora.Unembed, c.VocabSize, c.HiddenSize, m.vocabulary, extent{0, c.HiddenSize})}
		l.used[headName+".weight"] = true // they are equal
	} else if m.head, err = l.Linear(ctx, headName, lora.Unembed, c.VocabSize, c.HiddenSize, m.vocabulary, extent{0, c.HiddenSize}, false); err != nil {
		return err
	}
	l.shareOut(&m.head, nn.CutOutputs, c.VocabSize, m.vocabulary)
	if err := l.checkAllUsed(); err != nil || l.copies == 1 {
		return err
	}
	return m.Finish() // others will read the device's memory
}

// hash is SHA-256 over config.json and every tensor's name, type, shape and bytes in order of names. Because it sees all of them it is also what refuses a value that is not finite: every result would be, later and elsewhere.
func hash(ctx context.Context, config []byte, files *safetensors.Collection) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%d\n", len(config))
	h.Write(config)
	for _, n := range files.Names() {
		t, _ := files.Tensor(n)
		fmt.Fprintf(h, "%q %s %v\n", n, t.DType, t.Shape)
		for data := t.Data; len(data) > 0; {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			part := data[:min(len(data), packBytes)]
			if !safetensors.Finite(t.DType, part) {
				return "", fmt.Errorf("tensor %q has a value that is not finite", n)
			}
			h.Write(part)
			data = data[len(part):]
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Loader takes a model's tensors from its files, for an Architecture. What it has handed out belongs to the model.
type Loader struct {
	Config *Config

	model   *Model
	files   weightFiles
	used    map[string]bool // of the files' tensors, those that were found
	counted map[string]bool // and those whose parameters are in the model's number of them
	ignored []string
	wide    bool // the embedding's file is float32: so is the whole model
	fp8Kept bool // weights in FP8 are not expanded
	sizes   bool // LoadOptions.Sizes
	gauge   *gauge

	stillRope tensor.Tensor
	scratch   scratch
	some      []byte // of rows, where not all columns are wanted

	copy, copies int // of a model that is sharded; else 0 of 1
}

// measures tells that memory alone is of interest, so that no data are needed.
func (l *Loader) measures() bool { return dry.Is(l.model.Device) }

// Rope is the model's table of rotary positions.
func (l *Loader) Rope() tensor.Tensor { return l.model.rope }

// still is a table of rotary positions that turn nothing.
func (l *Loader) still() (tensor.Tensor, error) {
	if l.stillRope.Buffer != nil {
		return l.stillRope, nil
	}
	var err error
	if l.measures() {
		l.stillRope, err = l.model.Device.Alloc(tensor.Float32, l.model.MaxContext, nn.StillColumns)
	} else {
		l.stillRope, err = nn.StillTable(l.model.Device, l.model.MaxContext)
	}
	if err == nil {
		l.model.vectors = append(l.model.vectors, l.stillRope)
	}
	return l.stillRope, err
}

// Matrix packs rows and columns of NAME.weight, out × in, until ctx ends; where the model is sharded, those of the rows that this copy holds.
func (l *Loader) Matrix(ctx context.Context, name string, out, in int, rows, cols extent) (tensor.Matrix, error) {
	s, err := l.Weight(name, out, in)
	if err != nil {
		return nil, err
	}
	return l.Pack(ctx, s.Slice(rows.from, rows.to), cols)
}

// Vector uploads elements of a tensor of n as float32. In a model of bfloat16 its values are rounded to bfloat16, as if the file held them so.
func (l *Loader) Vector(name string, n int, part extent) (tensor.Tensor, error) {
	return l.vector(name, []int{n}, part, vectorForm{})
}

// PreciseVector is Vector for one that a family has in float32 in a model of bfloat16: its values are rounded only where the whole model is of float32 and is loaded as bfloat16.
func (l *Loader) PreciseVector(name string, n int, part extent) (tensor.Tensor, error) {
	return l.vector(name, []int{n}, part, vectorForm{precise: true})
}

// Rows uploads rows of a small matrix of n × width, or of n × 1 × width, as float32 like Vector: weights that no product reads. More parts lie below the first one.
func (l *Loader) Rows(name string, n, width int, part extent, more ...extent) (tensor.Tensor, error) {
	shape := []int{n, width}
	if t, ok := l.files.Tensor(name); ok && len(t.Shape) == 3 {
		shape = []int{n, 1, width}
	}
	var form vectorForm
	for _, p := range more {
		form.more = append(form.more, p.times(width))
	}
	v, err := l.vector(name, shape, part.times(width), form)
	if err != nil {
		return v, err
	}
	return v.Reshape(v.Cols/width, width), nil
}

// vectorForm is what is made of a vector's values.
type vectorForm struct {
	precise bool    // see Loader.PreciseVector
	add     float32 // to each value, behind rounding
	turns   int     // above 1: of so many that take turns every value of one, which is turn; parts are of those
	turn    int
	more    []extent // parts behind the first one
}

// vector uploads elements of a tensor.
func (l *Loader) vector(name string, shape []int, part extent, form vectorForm) (tensor.Tensor, error) {
	t, err := l.findFloats(name, shape...)
	if err != nil {
		return tensor.Tensor{}, err
	}
	elements := 1
	for _, n := range shape {
		elements *= n
	}
	l.count(t, elements)
	size := part.size()
	for _, p := range form.more {
		size += p.size()
	}
	v, err := l.model.Device.Alloc(tensor.Float32, 1, size)
	if err != nil {
		return v, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	l.model.vectors = append(l.model.vectors, v)
	if l.measures() {
		return v, nil
	}
	values, err := t.Float32s()
	if err != nil {
		return v, err
	}
	if l.model.DType == tensor.BFloat16 && (l.wide || !form.precise || t.DType != "F32") {
		for i, x := range values {
			values[i] = safetensors.RoundBFloat16(x)
		}
	}
	for i := range values {
		values[i] += form.add // in float32, and kept so: in bfloat16 the sum would lose bits of the weight
	}
	if form.turns > 1 {
		every := make([]float32, 0, len(values)/form.turns)
		for i := form.turn; i < len(values); i += form.turns {
			every = append(every, values[i])
		}
		values = every
	}
	own := values[part.from:part.to:part.to]
	for _, p := range form.more {
		own = append(own, values[p.from:p.to]...)
	}
	if err := l.model.Device.Upload(v, own); err != nil {
		return v, fmt.Errorf("tensor %q: %w", t.Name, err)
	}
	l.gauge.advance(len(t.Data))
	return v, nil
}

// Norm loads the weight of an RMSNorm.
func (l *Loader) Norm(name string, n int) (nn.RMSNorm, error) {
	w, err := l.Vector(name, n, extent{0, n})
	return nn.RMSNorm{Weight: w, Eps: l.Config.RMSNormEps}, err
}

// PreciseNorm is Norm of a PreciseVector.
func (l *Loader) PreciseNorm(name string, n int) (nn.RMSNorm, error) {
	w, err := l.PreciseVector(name, n, extent{0, n})
	return nn.RMSNorm{Weight: w, Eps: l.Config.RMSNormEps}, err
}

// OnePlusNorm loads the weight of an RMSNorm of which the files have what it is above one, like PreciseVector.
func (l *Loader) OnePlusNorm(name string, n int) (nn.RMSNorm, error) {
	w, err := l.vector(name, []int{n}, extent{0, n}, vectorForm{precise: true, add: 1})
	return nn.RMSNorm{Weight: w, Eps: l.Config.RMSNormEps}, err
}

// Linear loads rows and columns of NAME.weight (out × in), with those rows of bias NAME.bias, and makes it a module that can carry LoRA.
func (l *Loader) Linear(ctx context.Context, name string, group lora.Group, out, in int, rows, cols extent, bias bool) (nn.Linear, error) {
	s, err := l.Weight(name, out, in)
	if err != nil {
		return nn.Linear{}, err
	}
	linear, err := l.LinearOf(ctx, s, name, group, rows, cols)
	if err == nil && bias {
		linear.Bias, err = l.Vector(name+".bias", out, rows)
	}
	return linear, err
}

// LinearOf packs rows and columns of a source, and makes it the module of a name.
func (l *Loader) LinearOf(ctx context.Context, s Source, name string, group lora.Group, rows, cols extent) (nn.Linear, error) {
	w, err := l.Pack(ctx, s.Slice(rows.from, rows.to), cols)
	if err != nil {
		return nn.Linear{}, err
	}
	return nn.Linear{Weight: w, Module: l.module(name, group, s.Out, s.In, rows, cols)}, nil
}

// shareOut says that ranks share out an axis of a layer of n elements, of which this one has part.
func (l *Loader) shareOut(linear *nn.Linear, cut nn.Cut, n int, part extent) {
	linear.Cut, linear.Segments = cut, l.Config.segments(l.model.Device, n, l.model.Rank, l.model.Ranks, part)
}

func (l *Loader) module(name string, group lora.Group, out, in int, rows, cols extent) int {
	return l.add(lora.Module{Name: name, Group: group, Out: out, In: in}, rows, cols)
}

// add makes m a module that can carry LoRA, of which the rank has some rows and columns.
func (l *Loader) add(m lora.Module, rows, cols extent) int {
	l.model.Modules = append(l.model.Modules, m)
	l.model.Parts = append(l.model.Parts, lora.Part{OutFrom: rows.from, OutTo: rows.to, InFrom: cols.from, InTo: cols.to})
	return len(l.model.Modules) - 1
}

// checkAllUsed refuses tensors that the architecture does not have: the files are of something else.
func (l *Loader) checkAllUsed() error {
	for _, n := range l.files.Names() {
		// Old Llama files hold the rotary frequencies, which follow from the configuration.
		if !l.used[n] && !ignored(n, l.ignored) && !strings.HasSuffix(n, ".rotary_emb.inv_freq") {
			return fmt.Errorf("tensor %q is not known to architecture %s with this configuration", n, l.Config.Architecture)
		}
	}
	return nil
}
