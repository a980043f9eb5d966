// Package model has decoder language models: reading a Hugging Face model directory onto a device, and running packed batches of sequences through it, forward
// for sampling, forward and backward for training LoRA adapters. Each architecture is a package below this one; architectures.All has them by their Hugging Face names.
// The package knows no run, no request, no sampling and no optimizer.
//
// Bits: a sequence's log-probabilities and gradients are the same whatever else is in the batch, however it was cut, whether it went through at once or token by token over its
// pages, and on any number of threads.
package model

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Model is a loaded base model. It is immutable. Its passes run on its device, so they may be called from one goroutine at a time (see Workspace for passes inside passes).
type Model struct {
	Config     *Config
	DType      tensor.DType // of weights, products and pages
	FP8        bool         // weights that the files have in FP8 are kept so, where their blocks allow it
	MaxContext int          // positions
	Parameters int64
	Hash       string           // SHA-256 over config.json and the names, types, shapes and bytes of all tensors, hex
	Notes      []string         // what of the directory's files is not used, or otherwise than they say, a sentence each
	Modules    []lora.Module    // what LoRA can be put on, by module number
	Wholes     map[string]Whole // what files and PEFT have as one module, and LoRA here is on the parts of, by name
	// NestedNames tells that the class that loads the files calls the text model model.language_model, which is one of several parts; Modules have the names without that. The files of the text model's own class may have these names too.
	NestedNames bool
	PEFTExperts PEFTExperts
	Device      tensor.Device

	// Of a model that is cut over ranks (LoadCut); one that is whole is rank 0 of 1.
	Rank, Ranks int
	Comm        nn.Comm     // with the other ranks; set by whoever runs them, nil if whole
	Place       int         // of adapters' matrices (lora.Weights.Modules)
	Parts       []lora.Part // what this rank has of Modules

	vocabulary extent // rows of embedding and head
	kvHeads    int    // that this rank has
	stateSize  int    // elements of a slot of States
	embedding  tensor.Matrix
	layers     []nn.Layer
	norm       nn.RMSNorm
	head       nn.Linear
	rope       tensor.Tensor

	logitsBytes int

	spreads []*spread // weights in the order of loading, of a model that is sharded

	matrices []tensor.Matrix // all that were loaded, to be freed
	vectors  []tensor.Tensor
	borrowed bool // by Share
}

// Share gives the same model for another device that can address this one's memory. It owns none of the weights: it may be freed before m, not used after it.
func (m *Model) Share(device tensor.Device) *Model {
	shared := *m
	shared.Device, shared.borrowed = device, true
	return &shared
}

// Layout gives the shape of an adapter on this model: rank and which groups of modules are trained.
func (m *Model) Layout(rank int, attention, mlp, unembed bool) (*lora.Layout, error) {
	return lora.NewLayout(m.Modules, rank, func(module lora.Module) bool {
		switch module.Group {
		case lora.Attention:
			return attention
		case lora.MLP:
			return mlp
		case lora.Unembed:
			return unembed
		}
		return false
	})
}

// NewPages allocates pages of keys and values for this model, all its layers that have some, in its type: those of the rank's heads.
func (m *Model) NewPages(count int) (tensor.Pages, error) {
	return m.Device.NewPages(m.DType, m.Config.AttentionLayers(), count, m.kvHeads, m.Config.HeadDim)
}

// WeightBytes is the device memory of the weights; of a model that is sharded that of the shards which it holds.
func (m *Model) WeightBytes() int64 {
	var n int64
	for _, w := range m.matrices {
		n += int64(w.Bytes())
	}
	for _, v := range append(m.vectors, m.rope) {
		if v.Buffer != nil {
			n += int64(v.Buffer.Bytes)
		}
	}
	return n
}

// Finish waits until the device has done all that it has been given.
func (m *Model) Finish() error {
	if m.norm.Weight.Buffer == nil {
		return nil // it has not been loaded
	}
	return m.Device.Download(make([]float32, 1), m.norm.Weight.Columns(0, 1))
}

// Free gives the weights back to the device. No pass may run any more, on any copy of a model that is sharded.
func (m *Model) Free() {
	if m.borrowed {
		return
	}
	for _, w := range m.matrices {
		w.Free()
	}
	for _, v := range m.vectors {
		m.Device.Free(v)
	}
	if m.rope.Buffer != nil {
		m.Device.Free(m.rope)
	}
	m.matrices, m.vectors, m.rope = nil, nil, tensor.Tensor{}
}

// Workspace is the memory of one pass at a time: scratch, and activations between forward and backward. It grows to the largest pass and is used again. A Yield hook may run a pass
// on another workspace (a sampler's between the layers of a trainer's), never on the one that yields.
type Workspace struct {
	temp, keep  *nn.Arena
	gather      *gatherer // nil: the model is not sharded
	operations  operations
	pass        nn.Pass // of all rows
	part        nn.Pass // of a range of rows, for the head
	tokens      []int32
	selected    []nn.Segment     // of the rows of Hidden
	elements    []tensor.Element // of the logits that are read
	terms       []tensor.LossTerm
	host        []float32 // what was copied from the device
	slopes      []float32 // derivatives of losses
	counting    []span    // of a training pass
	idle        []span
	parts       []span  // of a chunk of logits
	rows        []int32 // that were chosen
	activations []nn.Activations
	residuals   []tensor.Tensor
	head        nn.LinearActivations
}

// NewWorkspace makes an empty workspace.
func (m *Model) NewWorkspace() *Workspace {
	w := &Workspace{temp: nn.NewArena(m.Device), keep: nn.NewArena(m.Device), gather: newGatherer(m)}
	w.operations.device, _ = m.Device.(tensor.Scratcher)
	for _, l := range m.layers {
		w.activations = append(w.activations, l.NewActivations())
	}
	return w
}

// Memory is the device memory of a workspace, in bytes: scratch that a pass takes and gives back as it goes, what it keeps to its end, weights of a sharded model that are put together, and what operations of its
// device take beside their arguments (tensor.Scratcher).
type Memory struct{ Scratch, Kept, Gathered, Operations int64 }

// Bytes is the sum.
func (m Memory) Bytes() int64 { return m.Scratch + m.Kept + m.Gathered + m.Operations }

// Reserved is what a workspace takes from the device for it: small parts are rounded up.
func (m Memory) Reserved() int64 {
	all := m.Gathered + m.Operations
	for _, bytes := range []int64{m.Scratch, m.Kept} {
		if bytes > 0 {
			all += max(bytes, nn.LeastBytes)
		}
	}
	return all
}

// Bound has room asked before a workspace takes so many bytes more from the device, its error ends the pass that needs them; and told with a negative number what has been given back, for which its answer does not matter.
func (w *Workspace) Bound(room func(bytes int64) error) {
	w.temp.Room, w.keep.Room, w.operations.room = room, room, room
	if w.gather != nil {
		w.gather.room = room
	}
}

// Reserve takes the memory that a pass will need (see MeasureTraining) at once, so that none is lost between pieces. No pass may be under way.
func (w *Workspace) Reserve(m Memory) error {
	if err := errors.Join(w.temp.Release(nn.Mark{}), w.keep.Release(nn.Mark{})); err != nil {
		return err
	}
	if err := w.gather.reserve(); err != nil {
		return err
	}
	if err := w.operations.reserve(m.Operations); err != nil {
		return err
	}
	if err := w.keep.Reserve(m.Kept); err != nil {
		return err
	}
	return w.temp.Reserve(m.Scratch)
}

// Bytes is the device memory held.
func (w *Workspace) Bytes() int64 {
	return w.temp.Bytes() + w.keep.Bytes() + w.gather.held() + w.operations.bytes
}

// Free gives all memory back; the workspace can be used again.
func (w *Workspace) Free() { w.temp.Free(); w.keep.Free(); w.gather.free(); w.operations.free() }

// Peak is the most memory that passes have used at once, of that which arenas hold, and what of weights is put together.
func (w *Workspace) Peak() Memory {
	return Memory{Scratch: w.temp.Peak(), Kept: w.keep.Peak(), Gathered: w.gather.held()}
}

// layer gives layer i of the workspace's model, ready to run; next is the one that runs after it, the number of layers for the head, -1 for none.
func (w *Workspace) layer(m *Model, i, next int) (nn.Layer, error) {
	if w.gather == nil {
		return m.layers[i], nil
	}
	return w.gather.layer(i, next)
}

// headOf gives the output head of the workspace's model.
func (w *Workspace) headOf(m *Model) *nn.Linear {
	if w.gather == nil {
		return &m.head
	}
	return &w.gather.head
}

// settle ends what a pass has under way beside itself, and adds its error to the pass's.
func (w *Workspace) settle(err *error) { *err = errors.Join(*err, w.gather.settle()) }

// Scratch hands out a float32 tensor of undefined content that lives until the visit of Logits in which it was asked for returns, or ReleaseScratch gives it back.
func (w *Workspace) Scratch(rows, cols int) (tensor.Tensor, error) { return w.temp.Get(rows, cols) }

// MarkScratch gives the present position of scratch memory.
func (w *Workspace) MarkScratch() nn.Mark { return w.temp.Mark() }

// ReleaseScratch gives back what Scratch, and methods of Model that take scratch memory, have handed out after the mark.
func (w *Workspace) ReleaseScratch(m nn.Mark) error { return w.temp.Release(m) }
