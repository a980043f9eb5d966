package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

const defaultLogitsBytes = 64 << 20

// trainingLogits is how many times the memory for logits a training pass may take: its backward product turns all weights of the head once per chunk of rows.
const trainingLogits = 4

// Sequence is one sequence's part of a batch: Tokens stand at positions First … First+len(Tokens)-1, and everything before First has been written to the pages. Pages[i] holds
// positions [64i, 64i+64) and there are enough for all; pages must be zero beyond what was written (tensor.Pages.Zero before a page is used again). Two sequences may share pages
// that lie wholly before both their First.
type Sequence struct {
	Adapter *lora.Weights // nil = the base model
	Tokens  []int32
	First   int
	Pages   []int32
	Slot    int // of Batch.States, where the sequence's state at First is, and then that at its end; without States it begins with the zero state
}

// Batch is what Forward runs: sequences, those of one adapter side by side (other orders are right but slower), and the pages they use.
type Batch struct {
	Sequences []Sequence
	Pages     tensor.Pages
	States    *States // nil: sequences are whole, or the model has no recurrent layers
	// Yield, when not nil, is called between the parts of a pass, about twice per layer and once per chunk of logits, with nothing running on the device. Its error ends the pass and is returned.
	Yield func() error
}

// Hidden is the result of Forward: rows after the final norm. It lives in the workspace, until its next pass.
type Hidden struct {
	Rows     tensor.Tensor // selected rows × hidden size
	segments []nn.Segment
	yield    func() error
}

// Forward runs the batch, writes keys and values to its pages, and gives the final hidden state of the selected rows, which ascend and count through the tokens of all sequences
// in order. With no rows selected only the pages are written.
func (m *Model) Forward(w *Workspace, b Batch, rows []int32) (_ Hidden, err error) {
	defer w.settle(&err)
	tokens := 0
	for _, s := range b.Sequences {
		tokens += len(s.Tokens)
	}
	if r := m.recorder(tokens); r != nil {
		return m.recordForward(r, w, b, rows)
	}
	return m.forward(w, b, rows)
}

// recordForward is apart because what a function value takes with it is allocated, which decoding on other devices does without.
func (m *Model) recordForward(r tensor.Recorder, w *Workspace, b Batch, rows []int32) (h Hidden, err error) {
	err = r.Record(func() error {
		h, err = m.forward(w, b, rows)
		return err
	})
	return h, err
}

// forward is Forward, whose operations come one by one.
func (m *Model) forward(w *Workspace, b Batch, rows []int32) (Hidden, error) {
	p, err := m.begin(w, b.Sequences, b.Pages, b.States, b.Yield)
	if err != nil {
		return Hidden{}, fmt.Errorf("forward: %w", err)
	}
	total := int32(len(w.tokens))
	for i, r := range rows {
		if r < 0 || r >= total || i > 0 && r <= rows[i-1] {
			return Hidden{}, fmt.Errorf("forward: selected row %d does not ascend within %d rows", r, total)
		}
	}
	p.Keep = w.temp
	x, err := m.embed(w, w.temp)
	if err != nil {
		return Hidden{}, fmt.Errorf("forward: %w", err)
	}
	out, err := w.temp.Get(x.Rows, x.Cols)
	if err != nil {
		return Hidden{}, fmt.Errorf("forward: %w", err)
	}
	for i := range m.layers {
		l, err := w.layer(m, i, i+1)
		if err != nil {
			return Hidden{}, fmt.Errorf("forward: layer %d: %w", i, err)
		}
		if err := l.Forward(p, out, x, w.activations[i]); err != nil {
			return Hidden{}, fmt.Errorf("forward: layer %d: %w", i, err)
		}
		x, out = out, x
	}
	h := Hidden{yield: b.Yield}
	if len(rows) == 0 {
		return h, nil
	}
	if h.Rows, err = w.keep.Get(len(rows), m.Config.HiddenSize); err != nil {
		return Hidden{}, fmt.Errorf("forward: %w", err)
	}
	for i := 0; i < len(rows); { // runs of neighbouring rows at once
		j := i + 1
		for j < len(rows) && rows[j] == rows[j-1]+1 {
			j++
		}
		if err := m.norm.Forward(p, h.Rows.Slice(i, j), x.Slice(int(rows[i]), int(rows[j-1])+1)); err != nil {
			return Hidden{}, fmt.Errorf("forward: final norm: %w", err)
		}
		i = j
	}
	w.selected = selectSegments(w.selected[:0], p.Segments, rows)
	h.segments = w.selected
	return h, nil
}

// selectSegments appends the segments of the selected rows, which count anew from 0, to to.
func selectSegments(to, segments []nn.Segment, rows []int32) []nn.Segment {
	i := 0
	for _, s := range segments {
		from := i
		for i < len(rows) && int(rows[i]) < s.To {
			i++
		}
		if i > from {
			to = append(to, nn.Segment{From: from, To: i, Modules: s.Modules})
		}
	}
	return to
}

// Logits runs the output head over the rows of h in chunks of bounded memory (LoadOptions.LogitsBytes). visit gets the logits of rows [first, first+logits.Rows), each as wide as
// the rank's part of the vocabulary; it may overwrite them, and they are gone when it returns.
func (m *Model) Logits(w *Workspace, h Hidden, visit func(first int, logits tensor.Tensor) error) (err error) {
	if h.Rows.Buffer == nil {
		return nil
	}
	defer w.settle(&err)
	if r := m.recorder(h.Rows.Rows); r != nil {
		return m.recordLogits(r, w, h, visit)
	}
	return m.visitLogits(w, h, visit)
}

func (m *Model) recordLogits(r tensor.Recorder, w *Workspace, h Hidden, visit func(first int, logits tensor.Tensor) error) error {
	return r.Record(func() error { return m.visitLogits(w, h, visit) })
}

// visitLogits is Logits, whose operations come one by one.
func (m *Model) visitLogits(w *Workspace, h Hidden, visit func(first int, logits tensor.Tensor) error) error {
	for from := 0; from < h.Rows.Rows; {
		to := min(h.Rows.Rows, from+m.visitedRows())
		mark := w.temp.Mark()
		p := w.slice(h.segments, nil, from, to)
		logits, err := m.logits(w, p, h.Rows.Slice(from, to))
		if err != nil {
			return fmt.Errorf("logits: %w", err)
		}
		if err := visit(from, logits); err != nil {
			return err
		}
		if err := w.temp.Release(mark); err != nil {
			return fmt.Errorf("logits: %w", err)
		}
		if h.yield != nil {
			if err := h.yield(); err != nil {
				return err
			}
		}
		from = to
	}
	return nil
}

// recordedRows is the most rows of a pass that is given to the device as a whole (tensor.Recorder). Over more rows an operation takes longer than it takes to give the device the next one.
const recordedRows = 256

// recorder gives the device if it is to have a pass over so many rows as a whole.
func (m *Model) recorder(rows int) tensor.Recorder {
	if rows > recordedRows {
		return nil
	}
	r, _ := m.Device.(tensor.Recorder)
	return r
}

// record runs what gives the device the operations of a pass over so many rows.
func (m *Model) record(rows int, pass func() error) error {
	if r := m.recorder(rows); r != nil {
		return r.Record(pass)
	}
	return pass()
}

// tileRows are the numbers of rows that kernels take at once, the most first: on a processor, and on devices with memory of their own, where the largest tiles are the fastest by far.
var tileRows, remoteTileRows = []int{12}, []int{128, 16}

// tiles gives those of the model's device.
func (m *Model) tiles() []int {
	if m.Remote() {
		return remoteTileRows
	}
	return tileRows
}

// visitedRows is how many rows of logits are visited at once at most: whole rows, where those are gathered (WholeLogits), are within logitsBytes, too.
func (m *Model) visitedRows() int {
	if m.gathersLogits() {
		return chunkRows(m.logitsBytes, m.Config.VocabSize, m.tiles())
	}
	return chunkRows(m.logitsBytes, m.widest(), m.tiles())
}

// Remote tells whether the device has memory of its own, and draws tokens there. It holds of the device that only measures for such a one as well.
func (m *Model) Remote() bool {
	_, ok := m.Device.(tensor.Differentiator)
	return ok
}

// chunkRows is how many rows of logits take so many bytes, at least one: where there are enough, a multiple of the rows that kernels take at once, so that they work on whole tiles.
func chunkRows(bytes, columns int, tiles []int) int {
	n := max(1, bytes/(columns*tensor.Float32.Size()))
	for _, tile := range tiles {
		if n > tile {
			return n - n%tile
		}
	}
	return n
}

// evenChunks is how many rows, at most so many, pieces of nearly equal size have, in whole tiles where there are enough rows.
func evenChunks(rows, most int, tiles []int) int {
	pieces := (rows + most - 1) / most
	if pieces <= 1 {
		return most
	}
	even := (rows + pieces - 1) / pieces
	for _, tile := range tiles {
		if even > tile {
			return min(most, roundUp(even, tile))
		}
	}
	return min(most, roundUp(even, tiles[len(tiles)-1]))
}

func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

// logits runs the head over rows in the part pass p.
func (m *Model) logits(w *Workspace, p *nn.Pass, hidden tensor.Tensor) (tensor.Tensor, error) {
	logits, err := w.temp.Get(hidden.Rows, m.vocabulary.size())
	if err != nil {
		return logits, err
	}
	return logits, w.headOf(m).Forward(p, logits, hidden, &w.head)
}

// slice makes the workspace's second pass one over rows [from, to).
func (w *Workspace) slice(segments []nn.Segment, gradients []nn.GradientRange, from, to int) *nn.Pass {
	p := &w.part
	p.Device, p.Comm, p.Temp, p.Keep, p.Yield, p.StepWork = w.pass.Device, w.pass.Comm, w.temp, w.temp, w.pass.Yield, w.pass.StepWork
	if p.Comm != nil {
		p.StepWork = 0 // ranks' parts of the vocabulary may differ by one, so that they would yield at different places
	}
	p.Segments, p.Gradients = p.Segments[:0], p.Gradients[:0]
	for _, s := range segments {
		if a, b := max(s.From, from), min(s.To, to); a < b {
			p.Segments = append(p.Segments, nn.Segment{From: a - from, To: b - from, Modules: s.Modules})
		}
	}
	for _, g := range gradients {
		if a, b := max(g.From, from), min(g.To, to); a < b {
			p.Gradients = append(p.Gradients, nn.GradientRange{From: a - from, To: b - from, Modules: g.Modules, Onto: g.Onto, Whole: g.Whole && a == g.From && b == g.To})
		}
	}
	return p
}

// LogSumExp writes the log-sum-exp of each row of logits over the whole vocabulary to sums (rows × 1); it takes scratch memory of the workspace. Logits of the sampler and of the trainer go through it alike.
// It is that of the log-sum-exps of the vocabulary's segments, of which ranks have whole ones; without segments, that of the ranks'.
func (m *Model) LogSumExp(w *Workspace, sums, logits tensor.Tensor) error {
	segments := m.head.Segments
	parts, err := sums, error(nil)
	if segments.Count > 0 {
		if parts, err = w.temp.Get(logits.Rows, segments.Count); err != nil {
			return err
		}
		err = m.Device.LogSumExps(parts, logits, segments)
	} else {
		err = m.Device.LogSumExp(sums, logits)
	}
	if err != nil {
		return err
	}
	if m.Comm != nil {
		all, err := w.temp.Get(logits.Rows, m.Ranks*parts.Cols)
		if err != nil {
			return err
		}
		if err := m.Comm.AllGather(all, parts); err != nil {
			return err
		}
		parts = all
	} else if segments.Count == 0 {
		return nil
	}
	return m.Device.LogSumExp(sums, parts)
}

// Logprobs gives, for rows of logits, the log-probability of targets (rows × k, row-major): logit minus the log-sum-exp of the row, for the sampler and the trainer alike. k may be 0 for
// the log-sum-exps alone, which it gives too. Both live in the workspace, until its next use; it takes scratch memory there.
func (m *Model) Logprobs(w *Workspace, logits tensor.Tensor, targets []int32, k int) (logprobs, lse []float32, err error) {
	if len(targets) != logits.Rows*k {
		return nil, nil, fmt.Errorf("%d targets for %d rows of %d", len(targets), logits.Rows, k)
	}
	w.elements = m.appendTargets(w.elements[:0], 0, targets, k)
	_, lse, logprobs, err = m.logprobs(w, logits)
	return logprobs, lse, err
}

// appendTargets adds the elements of logits, from a row on, that targets (rows × k) are.
func (m *Model) appendTargets(to []tensor.Element, row int, targets []int32, k int) []tensor.Element {
	for i, t := range targets {
		column := int(t) - m.vocabulary.from
		if column < 0 || column >= m.vocabulary.size() {
			column = -1 // another rank's
		}
		to = append(to, tensor.Element{Row: int32(row + i/k), Column: int32(column)})
	}
	return to
}

// logprobs gives the log-sum-exps of rows of logits, on the device and in Go memory, and the log-probabilities of w.elements. The host waits for the device once: everything comes in one copy.
func (m *Model) logprobs(w *Workspace, logits tensor.Tensor) (sums tensor.Tensor, lse, logprobs []float32, err error) {
	both, err := w.temp.Get(1, logits.Rows+len(w.elements))
	if err != nil {
		return
	}
	sums = both.Columns(0, logits.Rows).Reshape(logits.Rows, 1)
	if err = m.LogSumExp(w, sums, logits); err != nil {
		return
	}
	if err = m.Device.GatherElements(both.Columns(logits.Rows, both.Cols), logits, w.elements); err != nil {
		return
	}
	w.host = slices.Grow(w.host[:0], both.Cols)[:both.Cols]
	host := w.host
	if err = m.Device.Download(host, both); err != nil {
		return
	}
	lse, logprobs = host[:logits.Rows], host[logits.Rows:]
	if m.Comm != nil { // each rank has the logits of its own columns, and zeros
		if err = m.Comm.AllReduceHost(logprobs); err != nil {
			return
		}
	}
	for i, e := range w.elements {
		logprobs[i] -= lse[e.Row]
	}
	return
}

// begin checks sequences and makes the workspace's pass one over them.
func (m *Model) begin(w *Workspace, sequences []Sequence, pages tensor.Pages, states *States, yield func() error) (*nn.Pass, error) {
	if len(sequences) == 0 {
		return nil, errors.New("no sequences")
	}
	if err := errors.Join(w.temp.Release(nn.Mark{}), w.keep.Release(nn.Mark{})); err != nil {
		return nil, err
	}
	if err := w.gather.reserve(); err != nil {
		return nil, err
	}
	p := &w.pass
	p.Reset()
	p.Comm = m.Comm
	p.Device, p.Temp, p.Keep, p.Pages, p.Yield = m.Device, w.temp, w.keep, pages, yield
	if states != nil {
		p.States = states.all
	}
	w.tokens = w.tokens[:0]
	for i, s := range sequences {
		if err := m.check(s, pages, states); err != nil {
			return nil, fmt.Errorf("sequence %d: %w", i, err)
		}
		row := len(w.tokens)
		end := row + len(s.Tokens)
		w.tokens = append(w.tokens, s.Tokens...)
		for position := s.First; position < s.First+len(s.Tokens); position++ {
			p.Positions = append(p.Positions, int32(position))
		}
		run := tensor.StateRun{Row: row, Count: len(s.Tokens), Slot: tensor.NoSlot}
		if states != nil {
			run.Slot = s.Slot
		}
		p.StateRuns = append(p.StateRuns, run)
		p.Runs = append(p.Runs, tensor.AttentionRun{Row: row, Count: len(s.Tokens), First: s.First, Pages: s.Pages})
		if i > 0 && sequences[i-1].Adapter == s.Adapter {
			p.Segments[len(p.Segments)-1].To = end
		} else {
			p.Segments = append(p.Segments, nn.Segment{From: row, To: end, Modules: s.Adapter.Modules(m.Place)})
		}
	}
	return p, nil
}

func (m *Model) check(s Sequence, pages tensor.Pages, states *States) error {
	switch end := s.First + len(s.Tokens); {
	case len(s.Tokens) == 0:
		return errors.New("no tokens")
	case s.First < 0 || end > m.MaxContext:
		return fmt.Errorf("positions %d … %d are not within the context of %d", s.First, end-1, m.MaxContext)
	case len(s.Pages)*tensor.PageSize < end:
		return fmt.Errorf("%d pages do not hold %d positions", len(s.Pages), end)
	case states != nil && (s.Slot < 0 || s.Slot >= states.Count()):
		return fmt.Errorf("slot %d of %d", s.Slot, states.Count())
	case states == nil && m.Recurrent() && s.First != 0:
		return fmt.Errorf("position %d is not the first: without states the model cannot go on from there", s.First)
	case s.Adapter != nil && len(s.Adapter.Modules(m.Place)) != len(m.Modules):
		return fmt.Errorf("adapter has %d modules, the model %d", len(s.Adapter.Modules(m.Place)), len(m.Modules))
	}
	for i, t := range s.Tokens {
		if t < 0 || int(t) >= m.Config.VocabSize {
			return fmt.Errorf("token %d is %d, it must be in 0 … %d", i, t, m.Config.VocabSize-1)
		}
	}
	for _, p := range s.Pages {
		if p < 0 || int(p) >= pages.Count() {
			return fmt.Errorf("page %d is not in 0 … %d", p, pages.Count()-1)
		}
	}
	return nil
}

// embed gives the residual stream before the first layer.
func (m *Model) embed(w *Workspace, arena *nn.Arena) (tensor.Tensor, error) {
	x, err := arena.Get(len(w.tokens), m.Config.HiddenSize)
	if err != nil {
		return x, err
	}
	if m.Comm == nil {
		err = m.embeddingRows(w, x, w.tokens)
	} else {
		err = m.embedCut(w, x, w.tokens)
	}
	if err != nil {
		return x, fmt.Errorf("embedding: %w", err)
	}
	return x, nil
}

// embeddingRows writes rows of this rank's part of the embedding.
func (m *Model) embeddingRows(w *Workspace, x tensor.Tensor, ids []int32) error {
	if w.gather != nil {
		return w.gather.gatherRows(x, m.embedding.(*spread), ids)
	}
	return m.Device.GatherRows(x, m.embedding, ids)
}
