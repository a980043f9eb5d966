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

// share is a rank's part of n: equal ones where they divide.
func share(n, rank, ranks int) extent { return extent{rank * n / ranks, (rank + 1) * n / ranks} }

// maxRanks bounds how many ranks messages propose.
const maxRanks = 64

// cuts tells whether a model can be cut over so many ranks: every rank has equally many heads and an equal width of the MLP; key heads are divided, or shared by equally many ranks. The vocabulary need not divide.
func (c *Config) cuts(ranks int) bool {
	return c.Heads%ranks == 0 && c.IntermediateSize%ranks == 0 && (c.KVHeads%ranks == 0 || ranks%c.KVHeads == 0) && c.VocabSize >= ranks
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
	return fmt.Errorf("%d heads, %d key-value heads and an MLP of %d %w over %d devices: %s are possible", c.Heads, c.KVHeads, c.IntermediateSize, ErrCut, ranks, strings.Join(allowed, ", "))
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
