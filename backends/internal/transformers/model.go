package transformers

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/simple"
)

// keptAdapters is how many the worker has at most; one that is needed again is sent again.
const keptAdapters = 8

// model is the worker's model, as the contract's engine sees it.
type model struct {
	*worker
	modules []simple.Module
	vocab   int
	lastID  atomic.Uint64

	sent []uint64 // keys of adapters in the worker, the latest last; guarded by the worker's turn

	mu     sync.Mutex
	unused []uint64 // keys that can be dropped at the next opportunity
}

var _ simple.Model = (*model)(nil)

func newModel(w *worker, a *loadAnswer) *model {
	return &model{worker: w, modules: a.Modules, vocab: a.VocabSize}
}

// Modules implements simple.Model.
func (m *model) Modules() []simple.Module { return m.modules }

// Fill implements simple.Model: with the values that an adapter of our own engine begins with.
func (m *model) Fill(values []float32, seed uint64, name string, bound float64) {
	lora.Uniform(values, seed, name, bound)
}

// Immediate implements simple.Model: rows of a decoding step have other last bits than those of a pass.
func (m *model) Immediate() bool { return false }

// Forget implements simple.Model.
func (m *model) Forget(w *simple.Weights) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unused = append(m.unused, w.Key)
}

type request struct {
	Verb     string       `json:"verb"`
	ID       uint64       `json:"id,omitempty"`
	Key      uint64       `json:"key"`
	Tokens   int          `json:"tokens,omitempty"`
	Gradient bool         `json:"gradient"`
	From     uint64       `json:"from"`
	To       int          `json:"to,omitempty"`
	Token    int32        `json:"token"`
	Offset   int          `json:"offset"`
	Total    int          `json:"total,omitempty"`
	Scale    float64      `json:"scale,omitempty"`
	Tensors  []tensorSpec `json:"tensors,omitempty"`
}

type tensorSpec struct {
	Module int    `json:"module"`
	Half   string `json:"half"`
	Shape  []int  `json:"shape"`
}

// with runs f with the worker's turn held and the weights in the worker. f gets the key under which they are there, 0 for the base model.
func (m *model) with(ctx context.Context, w *simple.Weights, f func(key uint64) error) error {
	release, err := m.hold(ctx)
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	unused := m.unused
	m.unused = nil
	m.mu.Unlock()
	for _, key := range unused {
		if err := m.drop(key); err != nil {
			return err
		}
	}
	if w == nil {
		return f(0)
	}
	if at := slices.Index(m.sent, w.Key); at >= 0 {
		m.sent = append(slices.Delete(m.sent, at, at+1), w.Key)
		return f(w.Key)
	}
	if len(m.sent) == keptAdapters {
		if err := m.drop(m.sent[0]); err != nil {
			return err
		}
	}
	if err := m.send(w); err != nil {
		return err
	}
	return f(w.Key)
}

func (m *model) drop(key uint64) error {
	at := slices.Index(m.sent, key)
	if at < 0 {
		return nil
	}
	m.sent = slices.Delete(m.sent, at, at+1)
	_, err := m.exchange(request{Verb: "drop", Key: key}, nil)
	return err
}

// send gives weights to the worker.
func (m *model) send(w *simple.Weights) error {
	q := request{Verb: "adapter", Key: w.Key, Total: len(w.Values), Scale: w.Layout.Scale()}
	for _, t := range w.Layout.Tensors {
		q.Tensors = append(q.Tensors, tensorSpec{t.Module, t.Half, t.Shape})
	}
	for q.Offset < len(w.Values) {
		part := w.Values[q.Offset:min(q.Offset+chunk/4, len(w.Values))]
		if _, err := m.exchange(q, nil, encoded(part)); err != nil {
			return err
		}
		q.Offset += len(part)
	}
	m.sent = append(m.sent, w.Key)
	return nil
}

// wrongSize is an answer that does not have the tensors that were asked for.
func (m *model) wrongSize(verb string, got, want int) error {
	if got == want {
		return nil
	}
	return &plugins.Error{Kind: plugins.KindInternal, Message: "the Python worker's answer to " + verb + " has another size than was asked for"}
}

// release frees a pass, prefix or sequence of the worker.
func (m *model) release(id uint64) {
	_ = m.with(context.Background(), nil, func(uint64) error {
		_, err := m.exchange(request{Verb: "release", ID: id}, nil)
		return err
	})
}
