package fake

import (
	"math"

	"github.com/tinsmith/tinsmith/plugins"
)

// shape is the layout of an adapter's tensors in one flat slice.
type shape struct {
	rank    int
	alpha   float64
	tensors []*tensor
	a, b    [3]*tensor // by module; nil where the module carries no LoRA
	total   int
}

// tensor is one A or B.
type tensor struct {
	module     int
	half       string // "lora_A" or "lora_B"
	rows, cols int
	offset     int
}

func (t *tensor) size() int { return t.rows * t.cols }

func (s *shape) scale() float64 { return s.alpha / float64(s.rank) }

func newShape(m *model, rank int, has [3]bool) *shape {
	s := &shape{rank: rank, alpha: loraAlpha}
	add := func(module int, half string, rows, cols int) *tensor {
		t := &tensor{module: module, half: half, rows: rows, cols: cols, offset: s.total}
		s.tensors = append(s.tensors, t)
		s.total += t.size()
		return t
	}
	for i := range m.modules {
		if has[i] {
			s.a[i] = add(i, "lora_A", rank, m.modules[i].in)
			s.b[i] = add(i, "lora_B", m.modules[i].out, rank)
		}
	}
	return s
}

// tensorName is the tensor's name in a checkpoint.
func (m *model) tensorName(t *tensor, exportNames string) string {
	path := m.modules[t.module].path
	if t.module == moduleU && exportNames == plugins.ExportTinker {
		path = "base_model.model.model.unembed_tokens"
	}
	return path + "." + t.half + ".weight"
}

func (m *model) moduleNames(s *shape) []string {
	var names []string
	for i := range m.modules {
		if s.a[i] != nil {
			names = append(names, m.modules[i].name)
		}
	}
	return names
}

// parameters are the trainable values of one version.
type parameters struct {
	shape *shape
	flat  []float32
}

func (p *parameters) values(t *tensor) []float32 { return p.flat[t.offset:][:t.size()] }

// version is immutable once published.
type version struct {
	number int64
	step   int64
	parameters
	first, second []float32 // Adam's moments; nil for a frozen adapter
	users         int       // pins and running requests, guarded by Backend.mu
}

func (v *version) bytes() int64 { return 4 * int64(len(v.flat)+len(v.first)+len(v.second)) }

// adapter is guarded by Backend.mu, but for accumulated, passes, failure and broken, which belong to the goroutine that runs the queue.
type adapter struct {
	id       string
	config   plugins.AdapterConfig
	created  plugins.AdapterInfo // the answer to the call that made it
	origin   any                 // the request of that call, to recognise its repetition
	shape    *shape
	frozen   bool
	deleted  bool
	next     int64 // the lowest position that has not been started
	pending  map[int64]*operation
	running  bool
	latest   *version
	versions map[int64]*version
	pins     map[string]*version

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

func (m *model) freshVersion(s *shape, seed uint64) *version {
	v := &version{parameters: parameters{shape: s, flat: make([]float32, s.total)}, first: make([]float32, s.total), second: make([]float32, s.total)}
	for _, t := range s.tensors {
		if t.half == "lora_A" {
			fillUniform(v.values(t), seed, m.tensorName(t, plugins.ExportPEFT), 1/math.Sqrt(float64(t.cols)))
		}
	}
	return v
}

// release drops one use of a version and forgets it when nobody needs it. Backend.mu is held.
func (a *adapter) release(v *version) {
	v.users--
	a.forget(v)
}

func (a *adapter) forget(v *version) {
	if v != a.latest && v.users == 0 {
		delete(a.versions, v.number)
	}
}

// publish makes v the newest version. Backend.mu is held.
func (a *adapter) publish(v *version) {
	old := a.latest
	a.latest = v
	a.versions[v.number] = v
	if old != nil {
		a.forget(old)
	}
}
