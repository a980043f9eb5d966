package simple

import (
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/plugins"
)

// loraAlpha over rank is the scale of an adapter that is made here.
const loraAlpha = 32

// Layout is the order of an adapter's tensors in one flat slice. It is not changed once it is in use.
type Layout struct {
	Rank    int
	Alpha   float64
	Tensors []*Tensor
	Pairs   []Pair // by module
	Total   int
}

// Pair is the A and B of a module, nil where it carries no LoRA.
type Pair struct{ A, B *Tensor }

// Tensor is one A or B.
type Tensor struct {
	Module int
	Half   string // "lora_A" or "lora_B"
	Shape  []int  // two sizes, or three with experts
	Offset int
}

// Size is how many values it has.
func (t *Tensor) Size() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Scale is what B·(A·x) is multiplied with.
func (l *Layout) Scale() float64 { return l.Alpha / float64(l.Rank) }

// NewLayout lays out A and B of the modules that have LoRA, with the scale of an adapter that is made here.
func NewLayout(modules []Module, rank int, has func(i int) bool) *Layout {
	l := &Layout{Rank: rank, Alpha: loraAlpha, Pairs: make([]Pair, len(modules))}
	add := func(module int, half string, copies, rows, cols int) *Tensor {
		t := &Tensor{Module: module, Half: half, Shape: []int{rows, cols}, Offset: l.Total}
		if copies > 0 {
			t.Shape = []int{copies, rows, cols}
		}
		l.Tensors = append(l.Tensors, t)
		l.Total += t.Size()
		return t
	}
	for i, m := range modules {
		if has(i) {
			l.Pairs[i] = Pair{A: add(i, "lora_A", m.CopiesA, rank, m.In), B: add(i, "lora_B", m.CopiesB, m.Out, rank)}
		}
	}
	return l
}

// follows says which modules carry LoRA under the switches of a configuration.
func (b *Backend) follows(c *plugins.AdapterConfig) func(i int) bool {
	return func(i int) bool {
		switch b.modules[i].Group {
		case Attention:
			return c.TrainAttention
		case MLP:
			return c.TrainMLP
		}
		return c.TrainUnembed
	}
}

// tinkerHead is the head's name under plugins.ExportTinker.
const tinkerHead = "model.unembed_tokens"

// tensorName is the tensor's name in a checkpoint.
func (b *Backend) tensorName(t *Tensor, exportNames string) string {
	m := &b.modules[t.Module]
	path := m.Path
	if m.Group == Unembed && exportNames == plugins.ExportTinker && !b.info.TiedHead {
		path = tinkerHead
	}
	return "base_model.model." + path + "." + t.Half + ".weight"
}

// namesRead are those under which a tensor is found in a file; the head has two, whatever it would be written as.
func (b *Backend) namesRead(t *Tensor) []string {
	names := []string{b.tensorName(t, plugins.ExportPEFT)}
	if b.modules[t.Module].Group == Unembed {
		names = append(names, "base_model.model."+tinkerHead+"."+t.Half+".weight")
	}
	return names
}

// moduleNames gives the last parts of the names of the modules that carry LoRA, each once.
func (b *Backend) moduleNames(l *Layout) []string {
	var names []string
	for i, p := range l.Pairs {
		if p.A == nil {
			continue
		}
		if name := b.kind(i); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// kind is the last part of a module's name.
func (b *Backend) kind(module int) string {
	name := b.modules[module].Path
	return name[strings.LastIndexByte(name, '.')+1:]
}

// Weights are the trainable values of one version, in the order of their layout. They are not changed once they are published.
type Weights struct {
	Layout *Layout
	Values []float32
	Key    uint64 // unique in this process
}

var lastKey atomic.Uint64

// NewWeights makes weights of zeros.
func NewWeights(l *Layout) Weights {
	return Weights{Layout: l, Values: make([]float32, l.Total), Key: lastKey.Add(1)}
}

// Of gives a tensor's values.
func (w *Weights) Of(t *Tensor) []float32 { return w.Values[t.Offset:][:t.Size()] }

// version is immutable once published.
type version struct {
	number int64
	step   int64
	Weights
	first, second []float32 // Adam's moments; nil for a frozen adapter
	users         int       // pins and running requests, guarded by Backend.mu
}

func (v *version) bytes() int64 { return 4 * int64(len(v.Values)+len(v.first)+len(v.second)) }

// adapter is guarded by Backend.mu, but for accumulated, passes, failure and broken, which belong to the goroutine that runs the queue.
type adapter struct {
	id       string
	config   plugins.AdapterConfig
	created  plugins.AdapterInfo // the answer to the call that made it
	origin   any                 // the request of that call, to recognise its repetition
	layout   *Layout
	frozen   bool
	deleted  bool
	next     int64 // the lowest position that has not been started
	pending  map[int64]*operation
	running  bool
	latest   *version
	versions map[int64]*version
	pins     map[string]*version
	forget   func(*Weights) // tells the model

	accumulated []float32
	passes      int            // successful forward_backward operations of the window
	failure     *plugins.Error // first failure of the window
	broken      *plugins.Error // why the last load failed; later operations fail with it
}

// operation is one call with a position.
type operation struct {
	run  func() error // called once, in order
	fail func(error)
	done chan struct{}
}

func (b *Backend) freshVersion(l *Layout, seed uint64) *version {
	v := &version{Weights: NewWeights(l), first: make([]float32, l.Total), second: make([]float32, l.Total)}
	for _, t := range l.Tensors {
		if t.Half == "lora_A" {
			b.model.Fill(v.Of(t), seed, b.tensorName(t, plugins.ExportPEFT), 1/math.Sqrt(float64(t.Shape[len(t.Shape)-1])))
		}
	}
	return v
}

// release drops one use of a version and forgets it when nobody needs it. Backend.mu is held.
func (a *adapter) release(v *version) {
	v.users--
	a.drop(v)
}

// drop forgets a version that is neither in use nor the latest, or whose adapter was deleted. Backend.mu is held.
func (a *adapter) drop(v *version) {
	if v.users == 0 && (v != a.latest || a.deleted) {
		delete(a.versions, v.number)
		a.forget(&v.Weights)
	}
}

// publish makes v the newest version. Backend.mu is held.
func (a *adapter) publish(v *version) {
	old := a.latest
	a.latest = v
	a.versions[v.number] = v
	if old != nil {
		a.drop(old)
	}
}
