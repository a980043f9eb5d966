package grammar

import (
	"slices"
	"unicode/utf8"
)

// partition divides the code points into classes whose members no term of a table tells apart. A class is a number from 0 on.
type partition struct {
	starts  []rune  // of intervals, ascending, the first 0
	classes []int32 // of each interval, noClass for surrogates
	ascii   [utf8.RuneSelf]int32
	first   []rune // one member of each class
	json    *jsonClasses
	work    int // ranges and intervals that were looked at to make it
}

const noClass = -1

// jsonClasses is what each class means within a JSON string.
type jsonClasses struct {
	quote, backslash int32
	control          []bool // has to be escaped, and is neither of the two
	escapes          []rune // the character that the letter behind a backslash stands for, -1 if there is none, 'u' for \u
	digits           []int8 // the value of a hexadecimal digit, -1 for others

	special   classSet // cannot stand for themselves
	escapable classSet // can be written behind a backslash
}

// shortEscapes are the letters behind a backslash and what they stand for.
var shortEscapes = map[rune]rune{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

const hexDigits = "0123456789abcdefABCDEF"

func newPartition(t *terms) (*partition, error) {
	var sets []runes
	seen := make(map[rune]bool)
	single := func(r rune) {
		if !seen[r] {
			seen[r] = true
			sets = append(sets, runes{{r, r}})
		}
	}
	literal := func(text []byte) {
		for len(text) > 0 {
			r, size := utf8.DecodeRune(text)
			single(r)
			text = text[size:]
		}
	}
	json := false
	for _, n := range t.nodes {
		switch n.kind {
		case kindClass:
			sets = append(sets, t.sets[n.a])
		case kindLiteral:
			literal(t.texts[n.a : n.a+n.b])
		case kindWords:
			for _, w := range t.words[n.a][n.b:n.c] {
				literal(t.text(w))
			}
		case kindString, kindBody, kindEscape, kindHex:
			json = true
		}
	}
	if json {
		sets = append(sets, runes{{0, 0x1f}})
		for from, to := range shortEscapes {
			single(from)
			single(to)
		}
		for _, r := range hexDigits + "u\x7f" {
			single(r)
		}
	}
	p := &partition{}
	if err := p.refine(sets); err != nil {
		return nil, err
	}
	if json {
		p.json = p.newJSONClasses()
	}
	return p, nil
}

// maxPartitionWork bounds how many intervals all sets together may span.
const maxPartitionWork = 20_000_000

// refine makes the classes: code points are in one class if they are in the same sets.
func (p *partition) refine(sets []runes) error {
	bounds := []rune{0, firstSurrogate, lastSurrogate + 1}
	for _, s := range sets {
		for _, r := range s {
			bounds = append(bounds, r.Lo, r.Hi+1)
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	if bounds[len(bounds)-1] > maxRune {
		bounds = bounds[:len(bounds)-1]
	}
	p.starts = bounds
	p.classes = make([]int32, len(bounds))
	// Each set divides the classes of which it has some intervals; to is the number of the part inside, if by says that it is this set's.
	to, by := []int32{0}, []int32{-1}
	work := len(bounds)
	defer func() { p.work = work }()
	for k, s := range sets {
		for _, r := range s {
			for i := p.interval(r.Lo); i < len(p.starts) && p.starts[i] <= r.Hi; i++ {
				old := p.classes[i]
				if by[old] != int32(k) {
					by[old], to[old] = int32(k), int32(len(to))
					to, by = append(to, 0), append(by, -1)
				}
				p.classes[i] = to[old]
				work++
			}
		}
		if work > maxPartitionWork {
			return &LimitError{"ranges of classes", work, maxPartitionWork}
		}
	}
	// Numbers in the order of the first member, without holes.
	number := make([]int32, len(to))
	for i, c := range p.classes {
		if p.starts[i] == firstSurrogate {
			p.classes[i] = noClass
			continue
		}
		if number[c] == 0 {
			p.first = append(p.first, p.starts[i])
			number[c] = int32(len(p.first))
		}
		p.classes[i] = number[c] - 1
	}
	for r := range p.ascii {
		p.ascii[r] = p.classes[p.interval(rune(r))]
	}
	return nil
}

// interval is the index of the interval that r is in.
func (p *partition) interval(r rune) int {
	i, found := slices.BinarySearch(p.starts, r)
	if !found {
		i--
	}
	return i
}

// classOf is the class of a code point.
func (p *partition) classOf(r rune) int32 {
	if r < utf8.RuneSelf {
		return p.ascii[r]
	}
	return p.classes[p.interval(r)]
}

func (p *partition) count() int32 { return int32(len(p.first)) }

func (p *partition) newJSONClasses() *jsonClasses {
	width := (p.count() + 63) / 64
	j := &jsonClasses{quote: p.classOf('"'), backslash: p.classOf('\\'), special: make(classSet, width), escapable: make(classSet, width)}
	for r := range rune(0x20) {
		j.special.add(p.classOf(r))
		j.escapable.add(p.classOf(r))
	}
	j.special.add(j.quote)
	j.special.add(j.backslash)
	j.escapable.add(p.classOf(0x7f))
	for _, r := range shortEscapes {
		j.escapable.add(p.classOf(r))
	}
	for _, r := range p.first {
		j.control = append(j.control, r < 0x20)
		stands, ok := shortEscapes[r]
		switch {
		case r == 'u':
			stands = 'u'
		case !ok:
			stands = -1
		}
		j.escapes = append(j.escapes, stands)
		value := int8(-1)
		switch {
		case '0' <= r && r <= '9':
			value = int8(r - '0')
		case 'a' <= r && r <= 'f':
			value = int8(r - 'a' + 10)
		case 'A' <= r && r <= 'F':
			value = int8(r - 'A' + 10)
		}
		j.digits = append(j.digits, value)
	}
	return j
}
