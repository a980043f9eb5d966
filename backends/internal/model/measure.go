package model

import (
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// MeasureTraining tells what a training pass of so many tokens takes of a workspace, with adapters of a layout at most: the pass is run over a device that computes nothing. It may be called while passes run.
func (m *Model) MeasureTraining(tokens int, layout *lora.Layout, recompute bool) (Memory, error) {
	d, adapter, err := m.dry(layout)
	if err != nil {
		return Memory{}, err
	}
	gradient, err := lora.NewGradient(d.Device, layout)
	if err != nil {
		return Memory{}, err
	}
	form, err := loss.New("cross_entropy", nil)
	if err != nil {
		return Memory{}, err
	}
	sequences, pages, err := d.drySequences(tokens, adapter)
	if err != nil {
		return Memory{}, err
	}
	var most Memory
	for _, first := range []float32{0, 1} { // some positions count and some do not, or all do: which takes more depends on how chunks of rows come out
		var examples []Example
		for _, s := range sequences {
			weights := make([]float32, len(s.Tokens))
			for i := range weights {
				weights[i] = 1
			}
			weights[0] = first
			examples = append(examples, Example{Sequence: s, Targets: make([]int32, len(s.Tokens)), K: 1, Loss: form, Inputs: loss.Inputs{Weights: weights}, Gradient: gradient})
		}
		w := d.NewWorkspace()
		if _, err := d.Train(w, pages, examples, TrainOptions{Recompute: recompute}); err != nil {
			return Memory{}, fmt.Errorf("measure: %w", err)
		}
		m := d.peak(w)
		most = Memory{max(most.Scratch, m.Scratch), max(most.Kept, m.Kept), max(most.Gathered, m.Gathered), max(most.Operations, m.Operations)}
	}
	return most, nil
}

// MeasureForward tells what Forward over so many tokens takes of a workspace, with adapters of a layout at most (nil: none), and Logits of so many rows that are drawn from, with a copy
// beside each chunk: of whole rows, where those are gathered. Prompts of which more positions are scored at once take more.
func (m *Model) MeasureForward(tokens, drawn int, layout *lora.Layout) (Memory, error) {
	d, adapter, err := m.dry(layout)
	if err != nil {
		return Memory{}, err
	}
	sequences, pages, err := d.drySequences(tokens, adapter)
	if err != nil {
		return Memory{}, err
	}
	rows := make([]int32, min(drawn, tokens))
	for i := range rows {
		rows[i] = int32(i)
	}
	w := d.NewWorkspace()
	h, err := d.Forward(w, Batch{Sequences: sequences, Pages: pages}, rows)
	if err != nil {
		return Memory{}, fmt.Errorf("measure: %w", err)
	}
	d.vocabulary = extent{0, m.widest()} // of the rank that has most
	if err := d.Logits(w, h, func(_ int, logits tensor.Tensor) error { return d.takeVisit(w, logits) }); err != nil {
		return Memory{}, fmt.Errorf("measure: %w", err)
	}
	if err := d.decode(drawn, adapter); err != nil {
		return Memory{}, fmt.Errorf("measure: %w", err)
	}
	return d.peak(w), nil
}

// takeVisit takes the scratch memory of a visit of logits that are drawn from.
func (m *Model) takeVisit(w *Workspace, logits tensor.Tensor) error {
	const numbers = 8 + 2*tensor.MaxSegments // of a row at most, beside a log-sum-exp of each rank: its own, those of segments, a token, a logit
	columns := logits.Cols
	if m.gathersLogits() {
		if _, err := m.wholeRows(w, logits.Rows); err != nil {
			return err
		}
		columns = m.Config.VocabSize
	}
	if _, err := w.Scratch(logits.Rows, numbers+m.Ranks); err != nil {
		return err
	}
	_, err := w.Scratch(logits.Rows, columns)
	return err
}

// decode goes on with so many of the longest sequences by a token: operations take the most beside their arguments for those. Its workspace is not counted: a pass over prompts takes more.
func (m *Model) decode(sequences int, adapter *lora.Weights) error {
	if _, ok := m.Device.(tensor.Scratcher); !ok {
		return nil
	}
	var b Batch
	ids := make([]int32, roundUp(m.MaxContext, tensor.PageSize)/tensor.PageSize)
	for range sequences {
		b.Sequences = append(b.Sequences, Sequence{Adapter: adapter, Tokens: make([]int32, 1), First: m.MaxContext - 1, Pages: ids})
	}
	var err error
	if b.Pages, err = m.NewPages(1); err != nil {
		return err
	}
	if m.Recurrent() {
		if b.States, err = m.NewStates(1); err != nil {
			return err
		}
	}
	_, err = m.Forward(m.NewWorkspace(), b, nil)
	return err
}

// dry is the model over a device that computes nothing, and an adapter for it. Of a model that is cut it is one rank's part, alone.
func (m *Model) dry(layout *lora.Layout) (*Model, *lora.Weights, error) {
	d := *m
	d.Device = dry.Device{}
	if m.Remote() { // its passes keep results on the device, and rows as products read them
		scratcher, ok := m.Device.(tensor.Scratcher)
		d.Device = dry.Remote{Scratch: new(int64), Blocks: ok && scratcher.RowsInBlocks()}
	}
	if layout == nil {
		return &d, nil, nil
	}
	place := lora.Place{Device: d.Device}
	if m.Ranks > 1 {
		place.Parts = m.Parts
	}
	d.Place, d.Comm = 0, nil
	adapter, err := lora.NewWeights(d.Device, layout, m.DType, place)
	return &d, adapter, err
}

// drySequences cuts so many tokens into the longest sequences.
func (m *Model) drySequences(tokens int, adapter *lora.Weights) ([]Sequence, tensor.Pages, error) {
	var sequences []Sequence
	count := 0
	for tokens > 0 {
		n := min(tokens, m.MaxContext)
		tokens -= n
		ids := make([]int32, roundUp(n, tensor.PageSize)/tensor.PageSize)
		for i := range ids {
			ids[i] = int32(count + i)
		}
		count += len(ids)
		sequences = append(sequences, Sequence{Adapter: adapter, Tokens: make([]int32, n), Pages: ids})
	}
	pages, err := m.NewPages(count)
	return sequences, pages, err
}

// peak is the most memory that the passes of a workspace have used at once, on a device that computes nothing.
func (m *Model) peak(w *Workspace) Memory {
	all := w.Peak()
	if d, ok := m.Device.(dry.Remote); ok {
		if d.Scratch != nil {
			all.Operations = *d.Scratch
		}
		for _, part := range []*int64{&all.Scratch, &all.Kept, &all.Operations} { // each is one allocation
			*part = tensor.OwnMemoryBytes(*part)
		}
	}
	return all
}
