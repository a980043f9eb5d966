package grammar

import (
	"slices"
	"sort"
)

// plainSlices is what is known once for all about tokens within a JSON string of which nothing is asked but how many characters may follow: most of what a
// model writes is that, and nearly all tokens may stand there.
type plainSlices struct {
	inside  []uint64               // tokens after which the string goes on, whatever its length
	most    int                    // characters of the longest such token
	lengths []int                  // numbers of characters that such tokens have, ascending, up to maxLength
	upTo    [][]uint64             // of each length, the tokens with at most so many
	longer  [len(longerThan)]*trie // tokens inside with more characters than that
	closing closingTokens
	below   []belowNode // of each node of the vocabulary's trie that is between two characters
}

// belowNode is what is below a node of the trie, if that is between two characters of a string.
type belowNode struct {
	kinds uint64 // of the bytes, as byteKinds says; notPlain if not all of it may stand within a string as it is
	chars int32  // the most that a token there has, from its beginning
}

// maxLength is up to which number of characters there is a slice for each.
const maxLength = 64

// longerThan are numbers of characters.
var longerThan = [...]int{32, 16, 8}

// closingTokens are the tokens that hold the end of a string: what stands before it and the quote, and the rest behind. Many have the same rest.
type closingTokens struct {
	prefixes *trie   // its tokens are numbers of pairs
	tokens   []int32 // of each pair
	rests    []int32 // of each pair, a number of a rest; 0 is the empty one
	behind   *trie   // of rests
	count    int     // of rests
}

// Places within a string.
const (
	plainOutside uint8 = iota // behind the end, or not possible
	plainInside               // between two characters
	plainWithin               // within an escape or a character of several bytes
	plainQuoted               // right behind the closing quote
)

// plainState is where a text is within a JSON string.
type plainState struct {
	place uint8
	rest  uint8 // within: continuation bytes that are missing, or a state of an escape
	low   byte  // the next continuation byte is at least this
	high  byte
	chars int32
}

// Escapes under way, above any number of continuation bytes.
const (
	plainEscape = 10 + iota
	plainHex0
	plainHex1
	plainHex2
	plainHex3
	plainHex4
	plainHex7
)

// step follows one byte. It agrees with the derivatives of kindBody.
func (s plainState) step(b byte) plainState {
	out := plainState{place: plainOutside, chars: s.chars}
	inside := func() plainState { out.place = plainInside; return out }
	within := func(rest uint8) plainState {
		out.place, out.rest, out.low, out.high = plainWithin, rest, 0x80, 0xbf
		return out
	}
	hex := b >= '0' && b <= '9' || b >= 'a' && b <= 'f' || b >= 'A' && b <= 'F'
	switch s.place {
	case plainInside:
		out.chars++
		switch {
		case b == '"':
			out.chars--
			out.place = plainQuoted
			return out
		case b == '\\':
			return within(plainEscape)
		case b < 0x20:
			return out
		case b < 0x80:
			return inside()
		case b >= 0xc2 && b < 0xe0:
			return within(1)
		case b >= 0xe0 && b < 0xf0:
			out = within(2)
			if b == 0xe0 {
				out.low = 0xa0
			}
			if b == 0xed {
				out.high = 0x9f
			}
			return out
		case b >= 0xf0 && b < 0xf5:
			out = within(3)
			if b == 0xf0 {
				out.low = 0x90
			}
			if b == 0xf4 {
				out.high = 0x8f
			}
			return out
		}
		return out
	case plainWithin:
		switch s.rest {
		case 1, 2, 3:
			if b < s.low || b > s.high {
				return out
			}
			if s.rest == 1 {
				return inside()
			}
			return within(s.rest - 1)
		case plainEscape:
			if b == 'u' {
				return within(plainHex0)
			}
			if _, ok := shortEscapes[rune(b)]; ok {
				return inside()
			}
		case plainHex0, plainHex1:
			if b == '0' {
				return within(s.rest + 1)
			}
		case plainHex2:
			switch b {
			case '0', '1':
				return within(plainHex3)
			case '7':
				return within(plainHex7)
			}
		case plainHex3:
			if hex {
				return inside()
			}
		case plainHex7:
			if b == 'f' || b == 'F' {
				return inside()
			}
		}
	}
	return out
}

func newPlainSlices(x *TokenIndex) *plainSlices {
	t := x.trie
	p := &plainSlices{}
	nodes := make([]plainState, len(t.nodes)-1)
	stack := make([]plainState, t.depth+1)
	stack[0].place = plainInside
	byLength := make(map[int][]int32)
	var prefixes, rests [][]byte
	numbers := map[string]int32{"": 0}
	rests = append(rests, nil)
	for i := int32(1); i < int32(len(t.nodes)-1); {
		n := t.nodes[i]
		s := stack[n.depth-1].step(n.byte)
		stack[n.depth], nodes[i] = s, s
		switch s.place {
		case plainOutside:
			i = n.skip
			continue
		case plainQuoted:
			for _, id := range t.below(i) {
				prefix, rest := x.bytes[id][:n.depth], x.bytes[id][n.depth:]
				if _, ok := numbers[string(rest)]; !ok {
					numbers[string(rest)] = int32(len(rests))
					rests = append(rests, rest)
				}
				prefixes = append(prefixes, prefix)
				p.closing.tokens = append(p.closing.tokens, id)
				p.closing.rests = append(p.closing.rests, numbers[string(rest)])
			}
			i = n.skip
			continue
		}
		if ids := t.at(i); len(ids) > 0 {
			byLength[int(s.chars)] = append(byLength[int(s.chars)], ids...)
		}
		i++
	}
	p.closing.count = len(rests)
	p.closing.prefixes = newTrie(numbersTo(len(prefixes)), prefixes)
	p.closing.behind = newTrie(numbersTo(len(rests))[1:], rests)
	for length := range byLength {
		p.most = max(p.most, length)
		if length <= maxLength {
			p.lengths = append(p.lengths, length)
		}
	}
	slices.Sort(p.lengths)
	last := make([]uint64, x.Words())
	for _, length := range p.lengths {
		last = slices.Clone(last)
		setBits(last, byLength[length])
		p.upTo = append(p.upTo, last)
	}
	p.inside = slices.Clone(last)
	for _, ids := range byLength {
		setBits(p.inside, ids)
	}
	for i, least := range longerThan {
		var ids []int32
		for length, list := range byLength {
			if length > least {
				ids = append(ids, list...)
			}
		}
		slices.Sort(ids)
		p.longer[i] = newTrie(ids, x.bytes)
	}
	p.findBelow(t, nodes)
	return p
}

// findBelow goes through the trie from its end, so that what is below a node comes before it.
func (p *plainSlices) findBelow(t *trie, nodes []plainState) {
	p.below = make([]belowNode, len(nodes))
	// at[d] is what was met at depth d since the last node above it.
	at := make([]belowNode, t.depth+2)
	for i := len(nodes) - 1; i > 0; i-- {
		n, s := t.nodes[i], nodes[i]
		here := at[n.depth+1]
		at[n.depth+1] = belowNode{}
		p.below[i] = here
		here.kinds |= byteKinds[n.byte]
		if s.place != plainInside && s.place != plainWithin {
			here.kinds |= notPlain
		}
		if len(t.at(int32(i))) > 0 {
			here.chars = max(here.chars, s.chars)
		}
		up := &at[n.depth]
		up.kinds |= here.kinds
		up.chars = max(up.chars, here.chars)
	}
}

// notPlain is in belowNode.kinds where not all of it may stand within a string as it is.
const notPlain = 1 << 63

// byteKinds has a bit for each kind of byte, of which patterns mostly allow all or none; continuation bytes have none.
var byteKinds = func() (kinds [256]uint64) {
	next := 4
	for b := range kinds {
		switch {
		case b >= '0' && b <= '9':
			kinds[b] = 1 << 0
		case b >= 'a' && b <= 'z':
			kinds[b] = 1 << 1
		case b >= 'A' && b <= 'Z':
			kinds[b] = 1 << 2
		case b == '"' || b == '\\' || b < 0x20:
			kinds[b] = notPlain
		case b < 0x80:
			kinds[b] = 1 << next
			next++
		case b == 0xe2: // punctuation, some of which patterns know
			kinds[b] = 1 << 60
		case b >= 0xf0:
			kinds[b] = 1 << 61
		case b >= 0xc0:
			kinds[b] = 1 << 3
		}
	}
	return kinds
}()

func numbersTo(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// within is the tokens with at most so many characters, at most maxLength or at least most; nil for none.
func (p *plainSlices) within(chars int) []uint64 {
	if chars >= p.most {
		return p.inside
	}
	i := sort.SearchInts(p.lengths, chars+1)
	if i == 0 {
		return nil
	}
	return p.upTo[i-1]
}
