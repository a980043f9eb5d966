package grammar

import (
	"bytes"
	"fmt"
	"slices"
)

// Vocabulary is what a model's tokens are. NewTokens copies what it needs.
type Vocabulary struct {
	Tokens  [][]byte // the bytes of each token by its id; a token without bytes is never allowed
	Special []bool   // tokens that never stand for their bytes as text: all added tokens, <tool_call> and </think> among them; nil is none
	Ends    []int32  // tokens that end a sequence; they are allowed where the text may end and stand for nothing else
}

// maxTokenBytes is above the length of any token that is followed; tokenizers know runs of some hundred spaces.
const maxTokenBytes = 4096

// TokenIndex is a vocabulary prepared for masks. It is safe for concurrent use.
type TokenIndex struct {
	size    int
	trie    *trie
	bytes   [][]byte         // of tokens that are text, else nil
	special map[string]int32 // the first special token of a text
	role    []role
	ends    []int32
	written []uint64 // all tokens with text or special, as a mask
	plain   *plainSlices
	wide    *wideMasks
}

type role uint8

const (
	roleNone role = iota // never allowed
	roleText
	roleSpecial
	roleEnd
)

// NewTokens prepares a vocabulary. It takes some ten milliseconds for 150,000 tokens.
func NewTokens(v Vocabulary) (*TokenIndex, error) {
	if v.Special != nil && len(v.Special) != len(v.Tokens) {
		return nil, fmt.Errorf("vocabulary: %d tokens and %d marks of special ones: allowed are as many or none", len(v.Tokens), len(v.Special))
	}
	x := &TokenIndex{size: len(v.Tokens), special: make(map[string]int32), role: make([]role, len(v.Tokens)), bytes: make([][]byte, len(v.Tokens))}
	for _, id := range v.Ends {
		if id < 0 || int(id) >= len(v.Tokens) {
			return nil, fmt.Errorf("vocabulary: end token %d: allowed is 0 to %d", id, len(v.Tokens)-1)
		}
		if x.role[id] != roleEnd {
			x.role[id] = roleEnd
			x.ends = append(x.ends, id)
		}
	}
	var text []int32
	total := 0
	for i, b := range v.Tokens {
		id := int32(i)
		switch {
		case x.role[id] == roleEnd || len(b) == 0:
		case v.Special != nil && v.Special[i]:
			x.role[id] = roleSpecial
			if _, ok := x.special[string(b)]; !ok {
				x.special[string(b)] = id
			}
		case len(b) > maxTokenBytes:
			return nil, fmt.Errorf("vocabulary: token %d has %d bytes: allowed are %d", id, len(b), maxTokenBytes)
		default:
			x.role[id] = roleText
			total += len(b)
			text = append(text, id)
		}
	}
	all := make([]byte, 0, total)
	for _, id := range text {
		from := len(all)
		all = append(all, v.Tokens[id]...)
		x.bytes[id] = all[from:len(all):len(all)]
	}
	x.written = make([]uint64, x.Words())
	for id, r := range x.role {
		if r == roleText || r == roleSpecial {
			x.written[id/64] |= 1 << (id % 64)
		}
	}
	x.trie = newTrie(text, x.bytes)
	x.plain = newPlainSlices(x)
	x.wide = newWideMasks()
	return x, nil
}

// Size is the number of tokens. A mask has one bit for each.
func (x *TokenIndex) Size() int { return x.size }

// Words is the length of a mask.
func (x *TokenIndex) Words() int { return (x.size + 63) / 64 }

// Ends are the tokens that end a sequence. They must not be changed.
func (x *TokenIndex) Ends() []int32 { return x.ends }

// trie is the texts of tokens by their bytes, in preorder. The first node, 0, is the empty text.
type trie struct {
	nodes  []trieNode // one more than there are, so that what belongs to a node ends where the next begins
	tokens []int32    // in the order of nodes
	roots  []trieRoot
	depth  int // the largest
}

type trieNode struct {
	skip  int32 // the node behind all that begin with this one
	token int32 // where its tokens begin in tokens
	depth uint16
	byte  byte
}

// trieRoot is a node of one byte.
type trieRoot struct {
	node int32
	byte byte
}

// newTrie makes the trie of some tokens.
func newTrie(ids []int32, text [][]byte) *trie {
	ids = slices.Clone(ids)
	slices.SortStableFunc(ids, func(a, b int32) int { return bytes.Compare(text[a], text[b]) })
	t := &trie{tokens: ids}
	t.nodes = append(t.nodes, trieNode{})
	var path []int32 // nodes that the last text went through, without the first
	var last []byte
	for k, id := range ids {
		b := text[id]
		common := 0
		for common < len(last) && common < len(b) && last[common] == b[common] {
			common++
		}
		for len(path) > common {
			t.nodes[path[len(path)-1]].skip = int32(len(t.nodes))
			path = path[:len(path)-1]
		}
		for i := common; i < len(b); i++ {
			n := int32(len(t.nodes))
			if i == 0 {
				t.roots = append(t.roots, trieRoot{n, b[0]})
			}
			path = append(path, n)
			t.nodes = append(t.nodes, trieNode{token: int32(k), depth: uint16(i + 1), byte: b[i]})
		}
		t.depth = max(t.depth, len(b))
		last = b
	}
	end := int32(len(t.nodes))
	for _, n := range path {
		t.nodes[n].skip = end
	}
	t.nodes[0].skip = end
	t.nodes = append(t.nodes, trieNode{skip: end, token: int32(len(ids))})
	return t
}

// at is the tokens whose text ends in a node.
func (t *trie) at(node int32) []int32 { return t.tokens[t.nodes[node].token:t.nodes[node+1].token] }

// below is the tokens whose text begins with a node's.
func (t *trie) below(node int32) []int32 {
	return t.tokens[t.nodes[node].token:t.nodes[t.nodes[node].skip].token]
}
