package model

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// extent is a range of rows, columns, heads: [from, to).
type extent struct{ from, to int }

func (e extent) size() int { return e.to - e.from }

func (e extent) times(n int) extent { return extent{e.from * n, e.to * n} }

func (e extent) behind(n int) extent { return extent{e.from + n, e.to + n} }

// share is a rank's part of n: equal ones where they divide.
func share(n, rank, ranks int) extent { return extent{rank * n / ranks, (rank + 1) * n / ranks} }

// segmented tells whether so many ranks have whole segments of all that they share out (tensor.Segments), on devices that know them: they give the bits of one then.
func (c *Config) segmented(device tensor.Device, ranks int) bool {
	if !device.Segmented() || tensor.MaxSegments%ranks != 0 {
		return false
	}
	if ranks == 1 {
		return true
	}
	for _, width := range c.widths() {
		if width/ranks%2 != 0 {
			return false
		}
	}
	if d := c.DeltaNet; d != nil {
		for _, n := range []int{d.KeyHeads * d.KeyHeadDim, d.ValueHeads * d.ValueHeadDim, d.ValueHeads} {
			if n/ranks%2 != 0 {
				return false
			}
		}
	}
	return c.Heads*c.HeadDim/ranks%2 == 0
}

// Segmented tells whether the model has the bits of one that is whole.
func (m *Model) Segmented() bool { return m.Config.segmented(m.Device, m.Ranks) }

// vocabularyExtent is the tokens of a rank: whole segments, where that can be.
func (c *Config) vocabularyExtent(rank, ranks int) extent {
	if tensor.MaxSegments%ranks != 0 {
		return share(c.VocabSize, rank, ranks)
	}
	each := tensor.MaxSegments / ranks
	return extent{tensor.SegmentStart(c.VocabSize, rank*each), tensor.SegmentStart(c.VocabSize, (rank+1)*each)}
}

// segments are those of the part e, which a rank has, of an axis of n elements that ranks share out: whole ones. Of a key head that several ranks have, they are the segments that are the rank's to count; the elements before and behind them
// are in the first and in the last one, with zeros.
func (c *Config) segments(device tensor.Device, n, rank, ranks int, e extent) tensor.Segments {
	if !c.segmented(device, ranks) {
		return tensor.Segments{}
	}
	s, from := tensor.RankSegments(n, rank, ranks)
	for i := range s.Count {
		s.Ends[i] += int32(from - e.from)
	}
	s.Ends[s.Count-1] = int32(e.size())
	return s
}

// keyParts is how many parts of the query heads of a key head a rank sums the gradients by keys over: the most that ranks could share these heads out in.
func (c *Config) keyParts(device tensor.Device, ranks int) int {
	all := tensor.MaxSegments
	for c.Heads%all != 0 {
		all /= 2
	}
	if !c.segmented(device, ranks) || all <= c.KVHeads || all%c.KVHeads != 0 {
		return 1
	}
	return all / max(c.KVHeads, ranks)
}

// keySharers is how many ranks have each key head.
func (c *Config) keySharers(ranks int) int { return max(1, ranks/c.KVHeads) }

// maxRanks bounds how many ranks messages propose.
const maxRanks = 64

// cuts tells whether a model can be cut over so many ranks: every rank has equally many heads and an equal width of every MLP, experts' too, and equally many heads of linear attention; key heads are divided, or shared by equally many ranks. The vocabulary need not divide.
func (c *Config) cuts(ranks int) bool {
	for _, width := range c.widths() {
		if width%ranks != 0 {
			return false
		}
	}
	if c.DeltaNet != nil && c.DeltaNet.KeyHeads%ranks != 0 {
		return false
	}
	return c.Heads%ranks == 0 && (c.KVHeads%ranks == 0 || ranks%c.KVHeads == 0) && c.VocabSize >= 2*ranks
}

// ErrCut says that the number of devices is what a model was refused for.
var ErrCut = errors.New("cannot be cut")

// checkCut names the allowed numbers of ranks where one is not.
func (c *Config) checkCut(ranks int) error {
	if c.cuts(ranks) {
		return nil
	}
	var allowed []string
	for n := 1; n <= maxRanks; n++ {
		if c.cuts(n) {
			allowed = append(allowed, fmt.Sprint(n))
		}
	}
	widths := strings.ReplaceAll(strings.Trim(fmt.Sprint(c.widths()), "[]"), " ", " and ")
	more := ""
	if c.DeltaNet != nil {
		more = fmt.Sprintf(", %d key heads of linear attention", c.DeltaNet.KeyHeads)
	}
	return fmt.Errorf("%d heads, %d key-value heads%s and an MLP of %s %w over %d devices: %s are possible", c.Heads, c.KVHeads, more, widths, ErrCut, ranks, strings.Join(allowed, ", "))
}

// kvExtent is the key-value heads of a rank: its share, or the one that its query heads need.
func (c *Config) kvExtent(rank, ranks int) extent {
	if c.KVHeads%ranks == 0 {
		return share(c.KVHeads, rank, ranks)
	}
	head := rank * c.KVHeads / ranks
	return extent{head, head + 1}
}

// embedCut gathers the rows that this rank has, zeros for the others, and adds the ranks'.
func (m *Model) embedCut(w *Workspace, x tensor.Tensor, tokens []int32) error {
	if err := m.embeddingRows(w, x, m.own(tokens)); err != nil {
		return err
	}
	return m.Comm.AllReduce(x)
}

// own gives tokens as rows of this rank's embedding and head, or columns of its logits: -1 for those that other ranks have.
func (m *Model) own(tokens []int32) []int32 {
	if m.Comm == nil {
		return tokens
	}
	own := make([]int32, len(tokens))
	for i, t := range tokens {
		own[i] = t - int32(m.vocabulary.from)
		if own[i] < 0 || int(own[i]) >= m.vocabulary.size() {
			own[i] = -1
		}
	}
	return own
}

// Vocabulary is the range [from, to) of tokens whose logits this rank has.
func (m *Model) Vocabulary() (from, to int) { return m.vocabulary.from, m.vocabulary.to }

// KVHeads is the number of key-value heads that this rank has.
func (m *Model) KVHeads() int { return m.kvHeads }

// widest is the largest part of the vocabulary that a rank has, the same on all ranks. The others may have some tokens less.
func (m *Model) widest() int {
	most := 0
	for rank := range m.Ranks {
		most = max(most, m.Config.vocabularyExtent(rank, m.Ranks).size())
	}
	return most
}

// gathersLogits tells whether tokens are drawn from whole rows, which ranks have gathered.
func (m *Model) gathersLogits() bool { return m.Ranks > 1 && m.Remote() }

// WholeLogits gives rows of logits over the whole vocabulary (rows × vocabulary, float32) on every rank, from the rank's own (rows × its part), in scratch memory of the workspace. All ranks call it with as many rows, at the same
// place; of a model that is not cut it is logits themselves. An error is one of memory or of the exchange.
func (m *Model) WholeLogits(w *Workspace, logits tensor.Tensor) (tensor.Tensor, error) {
	if m.Comm == nil {
		return logits, nil
	}
	to, err := m.wholeRows(w, logits.Rows)
	if err != nil {
		return to.whole, err
	}
	if to.parts.Buffer == nil {
		return to.whole, m.Comm.AllGather(to.whole, logits)
	}
	if err := m.Device.Round(to.own.Columns(0, logits.Cols), logits); err != nil { // a copy
		return to.whole, err
	}
	if err := m.Comm.AllGather(to.parts, to.own); err != nil {
		return to.whole, err
	}
	for rank := range m.Ranks {
		from, e := rank*m.widest(), m.Config.vocabularyExtent(rank, m.Ranks)
		if err := m.Device.Round(to.whole.Columns(e.from, e.to), to.parts.Columns(from, from+e.size())); err != nil {
			return to.whole, err
		}
	}
	return to.whole, nil
}

// wholeRows is the memory of WholeLogits. Where ranks' parts are not equally wide, they are gathered with room for the widest.
type wholeRows struct{ whole, parts, own tensor.Tensor }

func (m *Model) wholeRows(w *Workspace, rows int) (to wholeRows, err error) {
	if to.whole, err = w.temp.Get(rows, m.Config.VocabSize); err != nil || m.widest()*m.Ranks == m.Config.VocabSize {
		return
	}
	if to.parts, err = w.temp.Get(rows, m.Ranks*m.widest()); err != nil {
		return
	}
	to.own, err = w.temp.Get(rows, m.widest())
	return
}
