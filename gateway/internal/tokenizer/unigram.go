package tokenizer

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// unknownPenalty is how much worse than the worst token an unknown character
// scores, as in SentencePiece.
const unknownPenalty = 10

var errNoUnknown = errors.New("the text has a character outside the vocabulary and model.unk_id is null")

// unigram is the unigram language model of SentencePiece: of all ways to cut a
// word into tokens it takes the one with the highest sum of scores (Viterbi).
// Read-only after newUnigram but for its cache.
type unigram struct {
	vocab        *vocabulary
	scores       []float64
	unknown      int32 // -1: none
	unknownScore float64
	byteIDs      [256]int32
	byteFallback bool
	cache        *wordCache

	edges *pairTable // (node, byte) to node
	ends  []int32    // token that ends at a node, -1
}

func newUnigram(def *modelDefinition, vocab *vocabulary) (*unigram, error) {
	m := &unigram{vocab: vocab, unknown: -1, byteFallback: def.ByteFallback, cache: newWordCache()}
	if def.UnkID != nil {
		if *def.UnkID < 0 || *def.UnkID >= int64(len(def.pieces)) {
			return nil, fmt.Errorf("model.unk_id is %d: allowed are 0 to %d, the ids of model.vocab", *def.UnkID, len(def.pieces)-1)
		}
		m.unknown = int32(*def.UnkID)
	}
	lowest := math.Inf(1)
	bytes := 0
	for _, p := range def.pieces {
		bytes += len(p.token)
		m.scores = append(m.scores, p.score)
		lowest = min(lowest, p.score)
	}
	m.unknownScore = lowest - unknownPenalty
	m.edges = newPairTable(bytes)
	m.ends = []int32{-1}
	for i, p := range def.pieces {
		if p.token == "" {
			continue
		}
		node := int32(0)
		for j := 0; j < len(p.token); j++ {
			next, ok := m.edges.get(node, int32(p.token[j]))
			if !ok {
				next = uint64(len(m.ends))
				m.ends = append(m.ends, -1)
				m.edges.put(node, int32(p.token[j]), next)
			}
			node = int32(next)
		}
		m.ends[node] = int32(i) // the last of equal tokens counts
	}
	for b := range 256 {
		m.byteIDs[b] = vocab.idOr(fmt.Sprintf("<0x%02X>", b), -1)
	}
	return m, nil
}

func (m *unigram) appendIDs(b *budget.Budget, ids []int32, word string) ([]int32, error) {
	if err := b.Work(8); err != nil {
		return nil, costs("model (Unigram)", err)
	}
	if len(word) > wordCacheLength {
		ids, err := m.best(b, ids, word)
		return ids, costs("model (Unigram)", err)
	}
	slot := m.cache.slot(word)
	if hit, ok := m.cache.get(slot, word); ok {
		return append(ids, hit...), b.Take(idBytes * len(hit))
	}
	before := len(ids)
	ids, err := m.best(b, ids, word)
	if err != nil {
		return nil, costs("model (Unigram)", err)
	}
	m.cache.put(slot, word, ids[before:])
	return ids, nil
}

// unigramNode is the best way found to cover a text up to some byte.
type unigramNode struct {
	score float64
	start int32 // where its last token starts, -1: not reached
	id    int32
}

func (m *unigram) best(b *budget.Budget, ids []int32, word string) ([]int32, error) {
	const nodeBytes = 16
	if err := b.Take((nodeBytes + idBytes) * (len(word) + 1)); err != nil { // at most one id for each byte
		return nil, err
	}
	begun := len(ids)
	defer func() { b.Return((nodeBytes+idBytes)*(len(word)+1) - idBytes*(len(ids)-begun)) }()
	nodes := make([]unigramNode, len(word)+1)
	for i := range nodes {
		nodes[i].start = -1
	}
	reach := func(end, start int, score float64, id int32) {
		if n := &nodes[end]; n.start < 0 || score > n.score {
			*n = unigramNode{score, int32(start), id}
		}
	}
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRuneInString(word[at:])
		score := nodes[at].score
		covered := false
		node := int32(0)
		work := 8
		for end := at; end < len(word); {
			work += 4
			next, ok := m.edges.get(node, int32(word[end]))
			if !ok {
				break
			}
			node = int32(next)
			end++
			if id := m.ends[node]; id >= 0 {
				reach(end, at, m.scores[id]+score, id)
				covered = covered || end-at == size
			}
		}
		if !covered {
			if m.unknown < 0 {
				return nil, errNoUnknown
			}
			reach(at+size, at, m.unknownScore+score, m.unknown)
		}
		at += size
		if err := b.Work(work); err != nil {
			return nil, err
		}
	}
	before := len(ids)
	for end := len(word); end > 0; {
		n := nodes[end]
		if n.id != m.unknown {
			ids = append(ids, n.id)
			end = int(n.start)
			continue
		}
		start := int(n.start) // neighbouring unknowns are one
		for start > 0 && nodes[start].id == m.unknown {
			start = int(nodes[start].start)
		}
		ids = m.appendUnknown(ids, word[start:end])
		end = start
	}
	slices.Reverse(ids[before:])
	return ids, nil
}

// appendUnknown appends, last first, what stands for text that no token covers.
func (m *unigram) appendUnknown(ids []int32, text string) []int32 {
	if id, ok := m.vocab.id(text); ok {
		return append(ids, id) // the unknown token itself was the best match, or a run spells a token
	}
	if m.byteFallback {
		before := len(ids)
		for i := len(text) - 1; i >= 0 && m.byteIDs[text[i]] >= 0; i-- {
			ids = append(ids, m.byteIDs[text[i]])
		}
		if len(ids)-before == len(text) {
			return ids
		}
		ids = ids[:before]
	}
	return append(ids, m.unknown)
}
