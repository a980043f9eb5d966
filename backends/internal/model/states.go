package model

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// States holds, for sequences of a model with recurrent layers, what those layers remember of each: in slots, of which a sequence has one. All layers' states and the ends of their convolutions' inputs are in it.
type States struct {
	all    tensor.Tensor // slots × the elements of one
	device tensor.Device
}

// Recurrent tells whether layers of the model remember a sequence in a state.
func (m *Model) Recurrent() bool { return m.stateSize > 0 }

// StateBytes is the memory of one slot, of this rank's heads; 0 if the model has no recurrent layers.
func (m *Model) StateBytes() int64 { return int64(m.stateSize) * int64(tensor.Float32.Size()) }

// NewStates allocates so many slots, one at least. They hold the zero state, that of a sequence's beginning.
func (m *Model) NewStates(count int) (*States, error) {
	if !m.Recurrent() {
		return nil, errors.New("the model has no recurrent layers")
	}
	t, err := m.Device.Alloc(tensor.Float32, count, m.stateSize)
	if err != nil {
		return nil, fmt.Errorf("states of %d sequences: %w", count, err)
	}
	return &States{t, m.Device}, nil
}

// Count is the number of slots.
func (s *States) Count() int { return s.all.Rows }

// Bytes is the memory of all of them.
func (s *States) Bytes() int { return s.all.Rows * s.all.Cols * tensor.Float32.Size() }

// Zero makes a slot that of a sequence's beginning.
func (s *States) Zero(slot int) error {
	if err := s.check(slot); err != nil {
		return err
	}
	return s.device.Zero(s.all.Slice(slot, slot+1))
}

// Copy makes slot dst hold what src holds.
func (s *States) Copy(dst, src int) error {
	if err := errors.Join(s.check(dst), s.check(src)); err != nil || dst == src {
		return err
	}
	return s.device.Round(s.all.Slice(dst, dst+1), s.all.Slice(src, src+1))
}

func (s *States) check(slot int) error {
	if slot < 0 || slot >= s.Count() {
		return fmt.Errorf("slot %d of %d", slot, s.Count())
	}
	return nil
}

// Free gives the memory back.
func (s *States) Free() { s.device.Free(s.all) }
