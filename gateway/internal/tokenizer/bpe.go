package tokenizer

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// bpe is byte pair encoding over characters: a word starts as its characters
// and the neighbouring pair with the lowest rank is joined, the leftmost first,
// until no pair has a rank. Read-only after newBPE but for its cache.
type bpe struct {
	vocab        *vocabulary
	merges       *pairTable // value: rank<<32 | id of the joined token
	prefix       string     // continuing_subword_prefix
	suffix       string     // end_of_word_suffix
	unknown      int32      // -1: a character outside the vocabulary is dropped
	fuseUnknown  bool
	byteIDs      [256]int32 // ids of <0x00> … <0xFF> for byte_fallback, -1 where missing
	byteFallback bool
	ignoreMerges bool
	cache        *wordCache

	// Set by useRawBytes: words come as raw bytes, not in the byte-level alphabet.
	raw         bool
	rawIDs      [256]int32
	rawTokens   map[string]int32 // by raw bytes; filled only for ignoreMerges
	runeIDs     [256]int32       // ids of the characters below U+0100, -1 where missing
	plainSingle bool             // no prefix and no suffix
	cutAtSpace  bool             // no merge joins a ▁ to a character before it
}

// shortWord is the number of symbols up to which joinShort is used.
const shortWord = 48

// model turns one pre-token into ids.
type model interface {
	// appendIDs appends the ids of word, which is not empty, to ids, and pays for them.
	appendIDs(b *budget.Budget, ids []int32, word string) ([]int32, error)
}

func newBPE(def *modelDefinition, vocab *vocabulary) (*bpe, error) {
	m := &bpe{
		vocab: vocab, prefix: def.ContinuingSubwordPrefix, suffix: def.EndOfWordSuffix, unknown: -1,
		fuseUnknown: def.FuseUnk, byteFallback: def.ByteFallback, ignoreMerges: def.IgnoreMerges, cache: newWordCache(),
	}
	if def.Dropout != nil && *def.Dropout != 0 {
		return nil, fmt.Errorf("model.dropout is %v: only null or 0 is supported, encoding must give the same tokens every time", *def.Dropout)
	}
	if def.UnkToken != nil {
		if id, ok := vocab.id(*def.UnkToken); ok {
			m.unknown = id
		} else {
			return nil, fmt.Errorf("model.unk_token %q is not in model.vocab", *def.UnkToken)
		}
	}
	m.plainSingle = m.prefix == "" && m.suffix == ""
	for b := range 256 {
		m.byteIDs[b] = vocab.idOr(fmt.Sprintf("<0x%02X>", b), -1)
		m.runeIDs[b] = vocab.idOr(string(rune(b)), -1)
	}
	m.merges = newPairTable(len(def.Merges))
	_, m.cutAtSpace = vocab.id(visibleSpace)
	m.cutAtSpace = m.cutAtSpace && m.plainSingle && !m.ignoreMerges
	for rank, pair := range def.Merges {
		var ids [2]int32
		for i, part := range pair {
			id, ok := vocab.id(part)
			if !ok {
				return nil, fmt.Errorf("model.merges[%d] names %q, which is not in model.vocab", rank, part)
			}
			ids[i] = id
		}
		if len(pair[1]) < len(m.prefix) {
			return nil, fmt.Errorf("model.merges[%d]: %q is shorter than continuing_subword_prefix %q", rank, pair[1], m.prefix)
		}
		joined, ok := vocab.id(pair[0] + pair[1][len(m.prefix):])
		if !ok {
			return nil, fmt.Errorf("model.merges[%d] makes %q, which is not in model.vocab", rank, pair[0]+pair[1][len(m.prefix):])
		}
		if strings.HasPrefix(pair[1], visibleSpace) && !strings.HasSuffix(pair[0], visibleSpace) {
			m.cutAtSpace = false
		}
		m.merges.put(ids[0], ids[1], uint64(rank)<<32|uint64(uint32(joined)))
	}
	return m, nil
}

// useRawBytes makes the model take words as they are in the text instead of in
// the byte-level alphabet, and reports whether it can. The ids are the same; the
// translation of every word is saved.
func (m *bpe) useRawBytes() bool {
	if !m.plainSingle || m.byteFallback {
		return false
	}
	m.raw, m.cutAtSpace = true, false
	for b := range 256 {
		m.rawIDs[b] = m.vocab.idOr(string(byteToRune[b]), -1)
	}
	if m.ignoreMerges {
		m.rawTokens = make(map[string]int32, m.vocab.count())
		m.vocab.each(func(id int32, token string) {
			if b, ok := unmapBytes(nil, token); ok {
				m.rawTokens[string(b)] = id
			}
		})
	}
	return true
}

func (m *bpe) appendIDs(b *budget.Budget, ids []int32, word string) ([]int32, error) {
	if m.cutAtSpace {
		if err := b.Work(len(word)); err != nil {
			return nil, costs("model (BPE)", err)
		}
		// A SentencePiece text comes as one word. Cut where nothing is ever joined,
		// it gives the same ids from short words that the cache knows.
		for i := len(visibleSpace); i < len(word); {
			at := strings.Index(word[i:], visibleSpace)
			if at < 0 {
				break
			}
			if at += i; !strings.HasSuffix(word[:at], visibleSpace) {
				var err error
				if ids, err = m.appendWord(b, ids, word[:at]); err != nil {
					return nil, costs("model (BPE)", err)
				}
				word, at = word[at:], 0
			}
			i = at + len(visibleSpace)
		}
	}
	ids, err := m.appendWord(b, ids, word)
	return ids, costs("model (BPE)", err)
}

// visibleSpace is what SentencePiece writes for a space.
const visibleSpace = "▁"

// appendWord appends the ids of a word, from the cache if it is there.
func (m *bpe) appendWord(b *budget.Budget, ids []int32, word string) ([]int32, error) {
	if err := b.Work(8); err != nil {
		return nil, err
	}
	if m.ignoreMerges {
		if m.raw {
			if id, ok := m.rawTokens[word]; ok {
				return append(ids, id), b.Take(idBytes)
			}
		} else if id, ok := m.vocab.id(word); ok {
			return append(ids, id), b.Take(idBytes)
		}
	}
	if len(word) > wordCacheLength {
		return m.merge(b, ids, word)
	}
	slot := m.cache.slot(word)
	if hit, ok := m.cache.get(slot, word); ok {
		return append(ids, hit...), b.Take(idBytes * len(hit))
	}
	before := len(ids)
	ids, err := m.merge(b, ids, word)
	if err != nil {
		return nil, err
	}
	m.cache.put(slot, word, ids[before:])
	return ids, nil
}

// merge appends the ids of word, merged.
func (m *bpe) merge(b *budget.Budget, ids []int32, word string) ([]int32, error) {
	before := len(ids)
	// At most one symbol for each byte; a long word has a list and a queue besides.
	cost := idBytes * len(word)
	if len(word) > shortWord {
		cost += symbolBytes * len(word)
	}
	if err := b.Work(16 * len(word)); err != nil {
		return nil, err
	}
	if err := b.Take(cost); err != nil {
		return nil, err
	}
	if m.raw {
		ids = m.appendBytes(ids, word)
	} else {
		ids = m.appendCharacters(ids, word)
	}
	symbols := ids[before:]
	var err error
	if len(symbols) > shortWord {
		symbols, err = m.joinLong(b, symbols)
	} else {
		symbols = m.joinShort(symbols)
	}
	b.Return(cost - idBytes*len(symbols))
	return ids[:before+len(symbols)], err
}

// symbolBytes is what joinLong takes for a symbol: two places in a list and one in a queue.
const symbolBytes = 16

func (m *bpe) appendBytes(ids []int32, word string) []int32 {
	unknowns := unknownRun{model: m}
	for i := 0; i < len(word); i++ {
		id := m.rawIDs[word[i]]
		if id >= 0 {
			ids = append(unknowns.flush(ids), id)
			continue
		}
		ids = unknowns.add(ids)
	}
	return unknowns.flush(ids)
}

func (m *bpe) appendCharacters(ids []int32, word string) []int32 {
	unknowns := unknownRun{model: m}
	for i, r := range word {
		end := i + utf8.RuneLen(r)
		var id int32
		symbol := word[i:end]
		if m.plainSingle && r < 256 {
			id = m.runeIDs[r]
		} else {
			if i > 0 {
				symbol = m.prefix + symbol
			}
			if end == len(word) {
				symbol += m.suffix
			}
			id = m.vocab.idOr(symbol, -1)
		}
		if id >= 0 {
			ids = append(unknowns.flush(ids), id)
			continue
		}
		if m.byteFallback {
			if out, ok := m.appendByteTokens(ids, symbol); ok {
				ids = out
				continue
			}
		}
		ids = unknowns.add(ids)
	}
	return unknowns.flush(ids)
}

// appendByteTokens appends the <0x..> tokens of symbol if all of them exist.
func (m *bpe) appendByteTokens(ids []int32, symbol string) ([]int32, bool) {
	before := len(ids)
	for i := 0; i < len(symbol); i++ {
		id := m.byteIDs[symbol[i]]
		if id < 0 {
			return ids[:before], false
		}
		ids = append(ids, id)
	}
	return ids, true
}

// unknownRun holds back an unknown token until what follows is known, as the
// reference does: a byte-fallback character in between overtakes it.
type unknownRun struct {
	model   *bpe
	pending bool
}

func (u *unknownRun) add(ids []int32) []int32 {
	if u.model.unknown < 0 {
		return ids
	}
	if u.pending && !u.model.fuseUnknown {
		ids = append(ids, u.model.unknown)
	}
	u.pending = true
	return ids
}

func (u *unknownRun) flush(ids []int32) []int32 {
	if u.pending {
		u.pending = false
		ids = append(ids, u.model.unknown)
	}
	return ids
}

// joinShort merges in place by looking for the best pair again after each join:
// quadratic, and the fastest way for words of ordinary length.
func (m *bpe) joinShort(symbols []int32) []int32 {
	var values [shortWord + 1]uint64
	for i := 0; i+1 < len(symbols); i++ {
		values[i] = m.pairValue(symbols[i], symbols[i+1])
	}
	for len(symbols) > 1 {
		best, at := uint64(math.MaxUint64), -1
		for i, v := range values[:len(symbols)-1] {
			if v>>32 < best>>32 {
				best, at = v, i
			}
		}
		if at < 0 {
			break
		}
		symbols[at] = int32(uint32(best))
		copy(symbols[at+1:], symbols[at+2:])
		copy(values[at+1:], values[at+2:])
		symbols = symbols[:len(symbols)-1]
		if at > 0 {
			values[at-1] = m.pairValue(symbols[at-1], symbols[at])
		}
		if at+1 < len(symbols) {
			values[at] = m.pairValue(symbols[at], symbols[at+1])
		}
	}
	return symbols
}

// pairValue returns rank<<32 | joined id, all ones for a pair without a merge.
func (m *bpe) pairValue(a, b int32) uint64 {
	if v, ok := m.merges.get(a, b); ok {
		return v
	}
	return math.MaxUint64
}

// joinLong merges in place with a heap over a linked list: n log n, so that a
// word of millions of characters ends.
func (m *bpe) joinLong(b *budget.Budget, symbols []int32) ([]int32, error) {
	n := int32(len(symbols))
	next := make([]int32, n)
	prev := make([]int32, n)
	queue := make(rankHeap, 0, n)
	for i := range n {
		next[i], prev[i] = i+1, i-1
		if i+1 < n {
			if v, ok := m.merges.get(symbols[i], symbols[i+1]); ok {
				queue.push(v&^math.MaxUint32 | uint64(i))
			}
		}
	}
	for len(queue) > 0 {
		if err := b.Work(16); err != nil {
			return nil, err
		}
		top := queue.pop()
		at := int32(uint32(top))
		if symbols[at] < 0 || next[at] >= n {
			continue
		}
		right := next[at]
		v, ok := m.merges.get(symbols[at], symbols[right])
		if !ok || v>>32 != top>>32 {
			continue // the pair has changed since it was queued
		}
		symbols[at] = int32(uint32(v))
		symbols[right] = -1
		next[at] = next[right]
		if next[at] < n {
			prev[next[at]] = at
			if v, ok := m.merges.get(symbols[at], symbols[next[at]]); ok {
				queue.push(v&^math.MaxUint32 | uint64(at))
			}
		}
		if before := prev[at]; before >= 0 {
			if v, ok := m.merges.get(symbols[before], symbols[at]); ok {
				queue.push(v&^math.MaxUint32 | uint64(before))
			}
		}
	}
	out := symbols[:0]
	for i := int32(0); i < n; i = next[i] {
		out = append(out, symbols[i])
	}
	return out, nil
}

// rankHeap is a binary minimum heap of rank<<32 | position: container/heap
// without its boxing.
type rankHeap []uint64

func (h *rankHeap) push(v uint64) {
	q := append(*h, v)
	i := len(q) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if q[parent] <= v {
			break
		}
		q[i] = q[parent]
		i = parent
	}
	q[i] = v
	*h = q
}

func (h *rankHeap) pop() uint64 {
	q := *h
	top, last := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	i := 0
	for {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1] < q[child] {
			child++
		}
		if q[child] >= last {
			break
		}
		q[i] = q[child]
		i = child
	}
	if len(q) > 0 {
		q[i] = last
	}
	*h = q
	return top
}
