package inference

import (
	"container/list"
	"sync"
)

// Bounds of the forms that are kept.
const (
	keptForms       = 256
	keptFormsWeight = 64 << 20
	formWeight      = 40 // bytes in memory for each byte of a schema
)

// forms keeps the forms that were used last: an agent sends the same tools with every request. It may be used concurrently.
type forms struct {
	mu     sync.Mutex
	byKey  map[[32]byte]*list.Element
	order  *list.List // of keptForm, used last first
	weight int
}

type keptForm struct {
	key  [32]byte
	form *Held
}

func newForms() *forms { return &forms{byKey: map[[32]byte]*list.Element{}, order: list.New()} }

func (f *forms) get(key [32]byte) *Held {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.byKey[key]
	if e == nil {
		return nil
	}
	f.order.MoveToFront(e)
	kept, _ := e.Value.(keptForm)
	return kept.form
}

func (f *forms) put(key [32]byte, made *Held) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey[key] != nil {
		return
	}
	f.byKey[key] = f.order.PushFront(keptForm{key, made})
	f.weight += made.weight
	for f.order.Len() > keptForms || f.weight > keptFormsWeight && f.order.Len() > 1 {
		last := f.order.Back()
		kept, _ := f.order.Remove(last).(keptForm)
		delete(f.byKey, kept.key)
		f.weight -= kept.form.weight
	}
}
