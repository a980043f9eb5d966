// Package lora has LoRA adapters as a whole: which modules of a model carry one, how their parameters lie in memory, how they start, the gradients
// that are summed for them, and the names that their tensors have in files. y = Wx + s · B(Ax), where s is 32 / rank in adapters made here, see Scaling. It knows no run, no optimizer and no directory.
package lora

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Alpha is LoRA's scale before division by the rank, in adapters made here.
const Alpha = 32

// MaxRank is the largest rank.
const MaxRank = 512

// Group tells which switch of an adapter's configuration a module belongs to.
type Group uint8

// The groups.
const (
	Attention Group = iota + 1
	MLP
	Unembed
	Imported // trained where an adapter of another origin has it, and never made here
)

// Module is a linear layer of a model that can carry LoRA.
type Module struct {
	Name    string // path in a Hugging Face checkpoint: "model.layers.0.self_attn.q_proj", "lm_head"
	Group   Group
	Out, In int
	// Of a layer of experts, how many there are, and how many A and B: 1 or as many. 0 means that it is none, and has one of each. See ExpertModule.
	Experts, CopiesA, CopiesB int
}

// Kind is the last part of the name: "q_proj", …, "lm_head".
func (m Module) Kind() string {
	for i := len(m.Name) - 1; i >= 0; i-- {
		if m.Name[i] == '.' {
			return m.Name[i+1:]
		}
	}
	return m.Name
}

// rowLength is the row of the flat tensors that hold all parameters: long enough for vectors, short enough to be shared out over threads.
const rowLength = 4096

// Layout is the shape of an adapter on one model: its rank, its modules, and where A and B of each lie in one flat vector of float32 (module by module, A before B,
// row-major, without gaps). It is immutable.
type Layout struct {
	Modules []Module // all of the model, by module number
	Rank    int
	Size    int // parameters
	Scaling Scaling
	a, b    []int // offsets by module number, -1 where the module has no LoRA
}

// NewLayout puts LoRA of a rank on the modules that include names, scaled as adapters made here.
func NewLayout(modules []Module, rank int, include func(Module) bool) (*Layout, error) {
	if rank < 1 || rank > MaxRank {
		return nil, fmt.Errorf("rank %d is not in 1 … %d", rank, MaxRank)
	}
	l := &Layout{Modules: modules, Rank: rank, a: make([]int, len(modules)), b: make([]int, len(modules))}
	for i, m := range modules {
		if !include(m) {
			l.a[i], l.b[i] = -1, -1
			continue
		}
		a, _ := m.Copies()
		l.a[i] = l.Size
		l.b[i] = l.a[i] + a*rank*m.In
		l.Size += m.Parameters(rank)
	}
	if l.Size == 0 {
		return nil, fmt.Errorf("the adapter has no module: at least one of attention, MLP and unembed must be trained")
	}
	return l, nil
}

// Has tells whether module i carries LoRA.
func (l *Layout) Has(i int) bool { return l.a[i] >= 0 }

// Range is where the parameters of module i, which must carry LoRA, lie in the flat vector: A and B.
func (l *Layout) Range(i int) (from, to int) { return l.a[i], l.a[i] + l.Modules[i].Parameters(l.Rank) }

// Kinds lists the kinds of the modules that carry LoRA, each once, in the model's order.
func (l *Layout) Kinds() []string {
	var kinds []string
	seen := map[string]bool{}
	for i, m := range l.Modules {
		if k := m.Kind(); l.Has(i) && !seen[k] {
			seen[k] = true
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Parameters is one value per parameter of a layout, float32, on a device: weights, a gradient, or a moment of Adam.
type Parameters struct {
	Layout *Layout
	Flat   tensor.Tensor // all of it; what lies behind Layout.Size is zero
	device tensor.Device
}

// ParameterBytes is the device memory of one value per parameter.
func ParameterBytes(l *Layout) int64 {
	return int64((l.Size+rowLength-1)/rowLength) * rowLength * int64(tensor.Float32.Size())
}

// NewParameters allocates zeros.
func NewParameters(device tensor.Device, l *Layout) (*Parameters, error) {
	return newParameters(device, l, device.Alloc)
}

// NewUnsetParameters allocates parameters that are written before they are read.
func NewUnsetParameters(device tensor.Device, l *Layout) (*Parameters, error) {
	p, err := newParameters(device, l, device.AllocUnset)
	if err != nil {
		return nil, err
	}
	behind := p.view(l.Size, 1, p.Flat.Rows*rowLength-l.Size)
	if err := device.Zero(behind); err != nil {
		p.Free()
		return nil, fmt.Errorf("clear what lies behind adapter parameters: %w", err)
	}
	return p, nil
}

func newParameters(device tensor.Device, l *Layout, alloc func(tensor.DType, int, int) (tensor.Tensor, error)) (*Parameters, error) {
	t, err := alloc(tensor.Float32, (l.Size+rowLength-1)/rowLength, rowLength)
	if err != nil {
		return nil, fmt.Errorf("allocate adapter parameters: %w", err)
	}
	return &Parameters{Layout: l, Flat: t, device: device}, nil
}

// A is the rank × in matrix of module i, which must carry LoRA; of several copies one below the other.
func (p *Parameters) A(i int) tensor.Tensor {
	copies, _ := p.Layout.Modules[i].Copies()
	return p.view(p.Layout.a[i], copies*p.Layout.Rank, p.Layout.Modules[i].In)
}

// B is the out × rank matrix of module i, which must carry LoRA; of several copies one below the other.
func (p *Parameters) B(i int) tensor.Tensor {
	_, copies := p.Layout.Modules[i].Copies()
	return p.view(p.Layout.b[i], copies*p.Layout.Modules[i].Out, p.Layout.Rank)
}

func (p *Parameters) view(offset, rows, cols int) tensor.Tensor {
	t := p.Flat
	t.Offset += offset
	t.Rows, t.Cols, t.Stride = rows, cols, cols
	return t
}

// Each calls visit for every tensor in the layout's order, with the name that it has in a PEFT file.
func (p *Parameters) Each(visit func(name string, t tensor.Tensor) error) error {
	for i, m := range p.Layout.Modules {
		if !p.Layout.Has(i) {
			continue
		}
		if err := visit(TensorName(m.Name, "A", PEFT), p.A(i)); err != nil {
			return err
		}
		if err := visit(TensorName(m.Name, "B", PEFT), p.B(i)); err != nil {
			return err
		}
	}
	return nil
}

// Values is all of it as one row, without what lies behind Layout.Size.
func (p *Parameters) Values() tensor.Tensor { return p.view(0, 1, p.Layout.Size) }

// CheckFinite gives an error that names the first tensor with a value that is not finite. It waits for the device.
func (p *Parameters) CheckFinite() error {
	finite := func(t tensor.Tensor) (bool, error) {
		wait, err := p.device.SumSquares(t)
		if err != nil {
			return false, err
		}
		sums, err := wait()
		return err == nil && isFinite(sums[0]), err
	}
	if ok, err := finite(p.Values()); err != nil || ok {
		return err
	}
	return p.Each(func(name string, t tensor.Tensor) error {
		ok, err := finite(t)
		if err == nil && !ok {
			err = fmt.Errorf("%s: %w", name, ErrNotFinite)
		}
		return err
	})
}

// Zero clears.
func (p *Parameters) Zero() error { return p.device.Zero(p.Flat) }

// Bytes is the device memory held.
func (p *Parameters) Bytes() int64 { return int64(p.Flat.Buffer.Bytes) }

// Free gives the memory back.
func (p *Parameters) Free() { p.device.Free(p.Flat) }

// Weights is one version of an adapter: float32 masters and the packed matrices that products read. It is immutable once Pack has returned, and may be shared by passes.
type Weights struct {
	Masters *Parameters
	places  []Place
	modules [][]nn.LoRA // by place
}

// NewWeights allocates a version, to be filled through Masters (or Initialize), all of it, and made ready by Pack. Its masters are on the home device, its matrices at the places; with none there is one place, which is whole
// and on the home device.
func NewWeights(device tensor.Device, l *Layout, d tensor.DType, places ...Place) (*Weights, error) {
	if len(places) == 0 {
		places = []Place{{Device: device}}
	}
	masters, err := NewUnsetParameters(device, l)
	if err != nil {
		return nil, err
	}
	w := &Weights{Masters: masters, places: places}
	for _, place := range places {
		modules := make([]nn.LoRA, len(l.Modules))
		w.modules = append(w.modules, modules)
		for i, m := range l.Modules {
			if !l.Has(i) {
				continue
			}
			if modules[i], err = m.pair(place.Device, d, l.Rank, l.Scale(i), place.Part(i, m)); err != nil {
				w.Free()
				return nil, fmt.Errorf("allocate LoRA of %s: %w", m.Name, err)
			}
		}
	}
	return w, nil
}

// Layout is the adapter's shape.
func (w *Weights) Layout() *Layout { return w.Masters.Layout }

// Modules gives the matrices at a place by module number, for passes.
func (w *Weights) Modules(place int) []nn.LoRA {
	if w == nil {
		return nil
	}
	return w.modules[place]
}

// Pack writes the packed matrices from the masters.
func (w *Weights) Pack() error { return Pack(w) }

// Pack is Weights.Pack of several versions, which have their places in common: all matrices of a place are packed at once.
func Pack(versions ...*Weights) error {
	if len(versions) == 0 {
		return nil
	}
	home := versions[0].Masters.device
	var list []tensor.MatrixSource
	for p, place := range versions[0].places {
		list = list[:0]
		for _, w := range versions {
			for i, m := range w.modules[p] {
				if m.A == nil {
					continue
				}
				list = place.Part(i, w.Layout().Modules[i]).sources(list, m, w.Masters, i)
			}
		}
		if err := tensor.Await(place.Device, home); err != nil {
			return err
		}
		if err := place.Device.Repack(list...); err != nil {
			return err
		}
		if err := tensor.Await(home, place.Device); err != nil {
			return err
		}
	}
	return nil
}

// PlaceBytes is the device memory that the matrices at a place take.
func (w *Weights) PlaceBytes(place int) int64 {
	var n int64
	for _, m := range w.modules[place] {
		if m.A != nil {
			n += int64(m.A.Bytes() + m.B.Bytes())
		}
	}
	return n
}

// Bytes is the device memory held, at all places.
func (w *Weights) Bytes() int64 {
	n := w.Masters.Bytes()
	for place := range w.modules {
		n += w.PlaceBytes(place)
	}
	return n
}

// Free gives the memory back. No pass may use the version any more.
func (w *Weights) Free() {
	for _, modules := range w.modules {
		for i, m := range modules {
			if m.A != nil {
				m.A.Free()
			}
			if m.B != nil {
				m.B.Free()
			}
			modules[i] = nn.LoRA{}
		}
	}
	w.Masters.Free()
}

// Gradient is a sum of gradients for one adapter.
type Gradient struct {
	*Parameters
	modules []nn.LoRAGradient
	ranks   []*Gradient // of a Reduction over a model that is cut: the ranks' parts, which are all there is
}

// NewGradient allocates zeros.
func NewGradient(device tensor.Device, l *Layout) (*Gradient, error) {
	g, err := NewUnsetGradient(device, l)
	if err != nil {
		return nil, err
	}
	if err := g.Zero(); err != nil {
		g.Free()
		return nil, fmt.Errorf("clear a gradient: %w", err)
	}
	return g, nil
}

// NewUnsetGradient allocates a gradient for passes to add to, which find nothing in it. Only after Settle has it a value in all of its tensors.
func NewUnsetGradient(device tensor.Device, l *Layout) (*Gradient, error) {
	p, err := NewUnsetParameters(device, l)
	if err != nil {
		return nil, err
	}
	g := &Gradient{Parameters: p, modules: make([]nn.LoRAGradient, len(l.Modules))}
	for i := range l.Modules {
		if l.Has(i) {
			g.modules[i] = nn.LoRAGradient{A: p.A(i), B: p.B(i), Unset: true}
		}
	}
	return g, nil
}

// Zero clears.
func (g *Gradient) Zero() error {
	for i := range g.modules {
		g.modules[i].Unset = false
	}
	return g.Parameters.Zero()
}

// Settle clears the tensors that no pass has added to: those of an output head, say, that no loss went through. Joined ones stay as they are.
func (g *Gradient) Settle() error {
	for i := range g.modules {
		m := &g.modules[i]
		if !m.Unset || m.Joined {
			continue
		}
		if err := errors.Join(g.device.Zero(m.A), g.device.Zero(m.B)); err != nil {
			return fmt.Errorf("clear the gradient of %s: %w", g.Layout.Modules[i].Name, err)
		}
		m.Unset = false
	}
	for _, rank := range g.ranks {
		if err := rank.Settle(); err != nil {
			return err
		}
	}
	return nil
}

// Modules gives a rank's tensors by module number, for passes.
func (g *Gradient) Modules(rank int) []nn.LoRAGradient {
	switch {
	case g == nil:
		return nil
	case g.ranks != nil:
		return g.ranks[rank].modules
	}
	return g.modules
}
