package tokenizer

import (
	"bufio"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// unicodeText holds the character facts of the reference implementation, asked
// of it code point by code point by testdata/unicode.py. Go's own tables are of
// another Unicode version and would give other tokens for newer characters.
//
//go:embed unicode.txt
var unicodeText string

// Bits of unicodeData.kinds.
const (
	kindLetter uint8 = 1 << iota // \p{L}
	kindNumber                   // \p{N}
	kindSpace                    // \s
	kindMark                     // \p{M}
	kindUpper                    // \p{Lu}, \p{Lt} and what has no case: \p{Lm}, \p{Lo}, \p{M}
	kindLower                    // \p{Ll} and what has no case
)

// Bits of unicodeData.shape. A code point with none of them is left alone by
// every normal form and never joins what stands before it.
const (
	shapeNFD  uint8 = 1 << iota // has a canonical decomposition
	shapeNFC                    // is not itself in NFC
	shapeNFKD                   // has a compatibility decomposition
	shapeJoin                   // may compose with the character before it
	shapeMark                   // has a combining class other than 0
)

type unicodeData struct {
	classes    map[string]runeSet // by name of \p{name}, and some of our own
	posix      map[string]runeSet // by name of [[:name:]]
	kinds      *runeTable
	canonical  map[rune][]rune // full canonical decompositions, Hangul left out
	compatible map[rune][]rune // full compatibility decompositions that differ
	composed   map[[2]rune]rune
	combining  *runeTable // canonical combining class
	shape      *runeTable
	lower      map[rune][]rune
}

// loadUnicode parses the embedded facts once; the result is read-only.
var loadUnicode = sync.OnceValue(func() *unicodeData {
	u, err := parseUnicode(unicodeText)
	if err != nil {
		panic(fmt.Sprintf("tokenizer: embedded unicode.txt: %v", err))
	}
	return u
})

func parseUnicode(text string) (*unicodeData, error) {
	u := &unicodeData{
		classes:    map[string]runeSet{},
		posix:      map[string]runeSet{},
		canonical:  map[rune][]rune{},
		compatible: map[rune][]rune{},
		composed:   map[[2]rune]rune{},
		lower:      map[rune][]rune{},
	}
	var uncomposed runeSet
	combining := map[uint8]runeSet{}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		switch kind {
		case "#":
		case "class", "posix":
			name, ranges, _ := strings.Cut(rest, " ")
			set, err := parseRanges(ranges)
			if err != nil {
				return nil, err
			}
			if kind == "posix" {
				u.posix[name] = set
			} else {
				u.classes[name] = set
			}
		case "combining":
			value, ranges, _ := strings.Cut(rest, " ")
			class, err := strconv.ParseUint(value, 10, 8)
			if err != nil {
				return nil, err
			}
			if combining[uint8(class)], err = parseRanges(ranges); err != nil {
				return nil, err
			}
		case "uncomposed":
			var err error
			if uncomposed, err = parseRanges(rest); err != nil {
				return nil, err
			}
		case "canonical", "compatible", "lower":
			runes, err := parseRunes(rest)
			if err != nil {
				return nil, err
			}
			switch kind {
			case "canonical":
				u.canonical[runes[0]] = runes[1:]
			case "compatible":
				u.compatible[runes[0]] = runes[1:]
			case "lower":
				u.lower[runes[0]] = runes[1:]
			}
		default:
			return nil, fmt.Errorf("unknown line %q", lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	u.buildKinds()
	u.buildForms(uncomposed, combining)
	return u, nil
}

func (u *unicodeData) buildKinds() {
	bits := map[string]uint8{"L": kindLetter, "N": kindNumber, "space": kindSpace, "M": kindMark | kindUpper | kindLower,
		"Lu": kindUpper, "Lt": kindUpper, "Ll": kindLower, "Lm": kindUpper | kindLower, "Lo": kindUpper | kindLower}
	u.kinds = newRuneTable(func(set func(lo, hi rune, bits uint8)) {
		for name, b := range bits {
			for _, r := range u.classes[name] {
				set(r.lo, r.hi, b)
			}
		}
	})
}

// buildForms derives the pairs that compose from the decompositions: the
// reference gives full ones, so "last character" joins "all before, composed".
func (u *unicodeData) buildForms(uncomposed runeSet, combining map[uint8]runeSet) {
	u.combining = newRuneTable(func(set func(lo, hi rune, bits uint8)) {
		for class, ranges := range combining {
			for _, r := range ranges {
				set(r.lo, r.hi, class)
			}
		}
	})
	for length := 2; length <= 4; length++ { // shorter ones first: they are the prefixes of longer ones
		for r, d := range u.canonical {
			if len(d) != length || uncomposed.contains(r) {
				continue
			}
			first := d[0]
			whole := true
			for _, c := range d[1 : length-1] {
				next, ok := u.composed[[2]rune{first, c}]
				if !ok {
					whole = false
					break
				}
				first = next
			}
			if whole {
				u.composed[[2]rune{first, d[length-1]}] = r
			}
		}
	}
	u.shape = newRuneTable(func(set func(lo, hi rune, bits uint8)) {
		for r := range u.canonical {
			set(r, r, shapeNFD|shapeNFKD)
		}
		for r := range u.compatible {
			set(r, r, shapeNFKD)
		}
		for _, r := range uncomposed {
			set(r.lo, r.hi, shapeNFC)
		}
		for pair := range u.composed {
			set(pair[1], pair[1], shapeJoin)
		}
		for _, ranges := range combining {
			for _, r := range ranges {
				set(r.lo, r.hi, shapeMark)
			}
		}
		set(hangulBase, hangulBase+hangulCount-1, shapeNFD|shapeNFKD)
		set(hangulVBase, hangulVBase+hangulVCount-1, shapeJoin)
		set(hangulTBase+1, hangulTBase+hangulTCount-1, shapeJoin)
	})
}

func parseRanges(text string) (runeSet, error) {
	var out []runeRange
	for field := range strings.FieldsSeq(text) {
		lo, hi, isRange := strings.Cut(field, "-")
		if !isRange {
			hi = lo
		}
		runes, err := parseRunes(lo + " " + hi)
		if err != nil {
			return nil, err
		}
		out = append(out, runeRange{runes[0], runes[1]})
	}
	return newRuneSet(out), nil
}

func parseRunes(text string) ([]rune, error) {
	var out []rune
	for field := range strings.FieldsSeq(text) {
		v, err := strconv.ParseInt(field, 16, 32)
		if err != nil {
			return nil, err
		}
		out = append(out, rune(v))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no code point in %q", text)
	}
	return out, nil
}
