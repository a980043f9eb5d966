package ecma

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Parse reads a pattern. The error says at which byte it is wrong.
func Parse(source string) (*Pattern, error) {
	if len(source) > MaxBytes {
		return nil, fmt.Errorf("%w: %d bytes > %d", ErrTooLarge, len(source), MaxBytes)
	}
	p := &parser{text: source, pattern: &Pattern{source: source}, names: map[string]int{}}
	for _, prefix := range []string{"(?i)"} { // not ECMA's, but nobody means anything else by it
		if strings.HasPrefix(source, prefix) {
			p.fold = true
			p.at = len(prefix)
		}
	}
	p.countGroups()
	root, err := p.alternatives()
	if err == nil && p.at < len(p.text) {
		err = errors.New("')' without '('")
	}
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", p.at, err)
	}
	p.pattern.root, p.pattern.groups, p.pattern.ranges = root, p.total, p.ranges
	return p.pattern, nil
}

type parser struct {
	text         string
	at           int
	pattern      *Pattern
	fold         bool
	nesting      int
	groups       int // opened so far
	total        int // in the whole pattern
	names        map[string]int
	alternations int
	ranges       int               // of which classes were made
	properties   map[string][]rune // the characters of \p{…} and \P{…}, as written
}

// made pays for ranges of which a class is made.
func (p *parser) made(ranges int) error {
	if p.ranges += ranges; p.ranges > MaxRanges {
		return fmt.Errorf("%w: ranges of characters: %d > %d", ErrTooLarge, p.ranges, MaxRanges)
	}
	return nil
}

// countGroups finds the groups before they are read, because a reference may stand before its group.
func (p *parser) countGroups() {
	class := false
	for i := 0; i < len(p.text); i++ {
		switch c := p.text[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			if i+1 >= len(p.text) || p.text[i+1] != '?' {
				p.total++
			} else if i+3 < len(p.text) && p.text[i+2] == '<' && p.text[i+3] != '=' && p.text[i+3] != '!' {
				p.total++
				if end := strings.IndexByte(p.text[i:], '>'); end > 0 {
					p.names[p.text[i+3:i+end]] = p.total
				}
			}
		}
	}
}

func (p *parser) peek() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) take(prefix string) bool {
	if strings.HasPrefix(p.text[p.at:], prefix) {
		p.at += len(prefix)
		return true
	}
	return false
}

func (p *parser) rune() rune {
	r, size := utf8.DecodeRuneInString(p.text[p.at:])
	p.at += size
	return r
}

func (p *parser) unfit(what string) {
	if p.pattern.unfit == "" {
		p.pattern.unfit = what
	}
}

func (p *parser) alternatives() (*node, error) {
	if p.nesting++; p.nesting > maxNesting {
		return nil, fmt.Errorf("%w: groups nest deeper than %d", ErrTooLarge, maxNesting)
	}
	defer func() { p.nesting-- }()
	var subs []*node
	for {
		sub, err := p.sequence()
		if err != nil {
			return nil, err
		}
		subs = append(subs, sub)
		if !p.take("|") {
			break
		}
		if p.alternations++; p.alternations >= MaxAlternatives {
			return nil, fmt.Errorf("%w: more than %d alternatives", ErrTooLarge, MaxAlternatives)
		}
	}
	if len(subs) == 1 {
		return subs[0], nil
	}
	return combine(opAlternate, subs), nil
}

func combine(op operation, subs []*node) *node {
	n := &node{operation: op, subs: subs}
	for _, sub := range subs {
		n.anchors = n.anchors || sub.anchors
	}
	return n
}

func (p *parser) sequence() (*node, error) {
	var subs []*node
	for p.at < len(p.text) && p.peek() != '|' && p.peek() != ')' {
		atom, err := p.atom()
		if err != nil {
			return nil, err
		}
		if atom, err = p.quantified(atom); err != nil {
			return nil, err
		}
		subs = append(subs, atom)
	}
	switch len(subs) {
	case 0:
		return &node{operation: opEmpty}, nil
	case 1:
		return subs[0], nil
	}
	return combine(opConcat, subs), nil
}

func (p *parser) quantified(atom *node) (*node, error) {
	low, high := 0, 0
	switch {
	case p.take("*"):
		low, high = 0, -1
	case p.take("+"):
		low, high = 1, -1
	case p.take("?"):
		low, high = 0, 1
	case p.peek() == '{':
		var ok bool
		var err error
		if low, high, ok, err = p.counts(); err != nil {
			return nil, err
		} else if !ok {
			return atom, nil
		}
	default:
		return atom, nil
	}
	switch atom.operation {
	case opStart, opEnd, opBoundary:
		return nil, errors.New("nothing to repeat")
	}
	n := combine(opRepeat, []*node{atom})
	n.min, n.max = low, high
	n.lazy = p.take("?")
	return n, nil
}

// counts reads {m}, {m,} or {m,n}. ok is false where the brace is no quantifier: then it stands for itself.
func (p *parser) counts() (low, high int, ok bool, err error) {
	end := strings.IndexByte(p.text[p.at:], '}')
	if end < 0 {
		return 0, 0, false, nil
	}
	first, second, comma := strings.Cut(p.text[p.at+1:p.at+end], ",")
	if !allDigits(first) || first == "" || !allDigits(second) {
		return 0, 0, false, nil
	}
	if low, err = count(first); err != nil {
		return 0, 0, false, err
	}
	switch {
	case !comma:
		high = low
	case second == "":
		high = -1
	default:
		if high, err = count(second); err != nil {
			return 0, 0, false, err
		}
		if high < low {
			return 0, 0, false, fmt.Errorf("{%s,%s}: the second count is below the first", first, second)
		}
	}
	p.at += end + 1
	return low, high, true, nil
}

func allDigits(text string) bool {
	return strings.Trim(text, "0123456789") == ""
}

func count(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n > MaxCount {
		return 0, fmt.Errorf("%w: count %s > %d", ErrTooLarge, text, MaxCount)
	}
	return n, nil
}

func (p *parser) atom() (*node, error) {
	switch c := p.peek(); c {
	case '^':
		p.at++
		return &node{operation: opStart, anchors: true}, nil
	case '$':
		p.at++
		return &node{operation: opEnd, anchors: true}, nil
	case '.':
		p.at++
		return &node{operation: opClass, ranges: complement([]rune{'\n', '\n', '\r', '\r', 0x2028, 0x2029})}, nil
	case '(':
		p.at++
		return p.group()
	case '[':
		p.at++
		ranges, err := p.class()
		return &node{operation: opClass, ranges: ranges}, err
	case '\\':
		p.at++
		return p.escape()
	case '*', '+', '?':
		return nil, errors.New("nothing to repeat")
	}
	return p.character(p.rune()), nil
}

func (p *parser) character(r rune) *node {
	ranges := []rune{r, r}
	if p.fold {
		ranges = folded(ranges)
	}
	return &node{operation: opClass, ranges: ranges}
}

func (p *parser) group() (*node, error) {
	look := func(behind, negated bool) (*node, error) {
		p.unfit("look-around")
		sub, err := p.closed()
		if err != nil {
			return nil, err
		}
		return &node{operation: opLook, subs: []*node{sub}, behind: behind, negated: negated}, nil
	}
	switch {
	case p.take("?:"):
		return p.closed()
	case p.take("?="):
		return look(false, false)
	case p.take("?!"):
		return look(false, true)
	case p.take("?<="):
		return look(true, false)
	case p.take("?<!"):
		return look(true, true)
	case p.take("?i:"):
		before := p.fold
		p.fold = true
		sub, err := p.closed()
		p.fold = before
		return sub, err
	case p.take("?<"), p.take("?P<"):
		end := strings.IndexByte(p.text[p.at:], '>')
		if end <= 0 {
			return nil, errors.New("want a group's name and '>'")
		}
		p.at += end + 1
	case p.peek() == '?':
		return nil, errors.New("unknown kind of group")
	}
	p.groups++
	number := p.groups
	sub, err := p.closed()
	if err != nil {
		return nil, err
	}
	n := combine(opGroup, []*node{sub})
	n.number = number
	return n, nil
}

func (p *parser) closed() (*node, error) {
	sub, err := p.alternatives()
	if err != nil {
		return nil, err
	}
	if !p.take(")") {
		return nil, errors.New("'(' without ')'")
	}
	return sub, nil
}

// escape reads what follows a backslash outside of a class.
func (p *parser) escape() (*node, error) {
	c := p.peek()
	switch {
	case p.at >= len(p.text):
		return nil, errors.New(`\ at the end of the pattern`)
	case c == 'b' || c == 'B':
		p.at++
		p.unfit("a word boundary")
		return &node{operation: opBoundary, negated: c == 'B'}, nil
	case c >= '1' && c <= '9':
		start := p.at
		for p.peek() >= '0' && p.peek() <= '9' {
			p.at++
		}
		number, err := strconv.Atoi(p.text[start:p.at])
		if err != nil || number > p.total {
			return nil, fmt.Errorf(`\%s: there is no such group`, p.text[start:p.at])
		}
		p.unfit("a backreference")
		return &node{operation: opBackreference, number: number}, nil
	case c == 'k' && strings.HasPrefix(p.text[p.at:], "k<"):
		end := strings.IndexByte(p.text[p.at:], '>')
		if end < 0 {
			return nil, errors.New(`\k<: want '>'`)
		}
		number, ok := p.names[p.text[p.at+2:p.at+end]]
		if !ok {
			return nil, errors.New(`\k: there is no such group`)
		}
		p.at += end + 1
		p.unfit("a backreference")
		return &node{operation: opBackreference, number: number}, nil
	}
	if ranges, ok, err := p.classEscape(); ok || err != nil {
		return &node{operation: opClass, ranges: ranges}, err
	}
	r, err := p.characterEscape()
	if err != nil {
		return nil, err
	}
	return p.character(r), nil
}

var (
	digitRanges = []rune{'0', '9'}
	wordRanges  = []rune{'0', '9', 'A', 'Z', '_', '_', 'a', 'z'}
	spaceRanges = []rune{'\t', '\r', ' ', ' ', 0xa0, 0xa0, 0x1680, 0x1680, 0x2000, 0x200a, 0x2028, 0x2029, 0x202f, 0x202f, 0x205f, 0x205f, 0x3000,
		0x3000, 0xfeff, 0xfeff}
)

// classEscape reads \d and its kin behind the backslash; ok is false where there is none.
func (p *parser) classEscape() (ranges []rune, ok bool, err error) {
	switch c := p.peek(); c {
	case 'd':
		ranges = digitRanges
	case 'D':
		ranges = complement(digitRanges)
	case 'w':
		ranges = wordRanges
	case 'W':
		ranges = complement(wordRanges)
	case 's':
		ranges = spaceRanges
	case 'S':
		ranges = complement(spaceRanges)
	case 'p', 'P':
		if !strings.HasPrefix(p.text[p.at+1:], "{") {
			return nil, false, nil
		}
		end := strings.IndexByte(p.text[p.at:], '}')
		if end < 0 {
			return nil, false, errors.New(`\p{: want '}'`)
		}
		if ranges, err = p.property(p.text[p.at : p.at+end]); err != nil {
			return nil, false, err
		}
		p.at += end
	default:
		return nil, false, nil
	}
	p.at++
	return ranges, true, nil
}

// property is the characters of \p{name}, written as p{name or P{name. All places in a pattern share them.
func (p *parser) property(written string) ([]rune, error) {
	if ranges, ok := p.properties[written]; ok {
		return ranges, nil
	}
	ranges, err := property(written[2:])
	if err != nil {
		return nil, err
	}
	if written[0] == 'P' {
		ranges = complement(ranges)
	}
	if p.properties == nil {
		p.properties = map[string][]rune{}
	}
	p.properties[written] = ranges
	return ranges, p.made(len(ranges) / 2)
}

// characterEscape reads an escape that stands for one character, behind the backslash.
func (p *parser) characterEscape() (rune, error) {
	if p.at >= len(p.text) {
		return 0, errors.New(`\ at the end of the pattern`)
	}
	switch r := p.rune(); r {
	case 't':
		return '\t', nil
	case 'n':
		return '\n', nil
	case 'v':
		return '\v', nil
	case 'f':
		return '\f', nil
	case 'r':
		return '\r', nil
	case '0':
		if digit := p.peek(); digit >= '0' && digit <= '9' {
			return 0, fmt.Errorf(`\0%c: octal escapes are no part of it with the flag u; want \xHH or \uHHHH`, digit)
		}
		return 0, nil
	case 'a': // Python's and Perl's; ECMA would mean the letter, which nobody escapes
		return '\a', nil
	case 'c':
		if c := p.peek(); c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			p.at++
			return rune(c & 31), nil
		}
		return 0, errors.New(`\c: want a letter`)
	case 'x':
		return p.hex(2)
	case 'u':
		return p.unicodeEscape()
	default:
		return r, nil
	}
}

func (p *parser) hex(digits int) (rune, error) {
	if p.at+digits > len(p.text) {
		return 0, errors.New("want hexadecimal digits")
	}
	n, err := strconv.ParseUint(p.text[p.at:p.at+digits], 16, 32)
	if err != nil {
		return 0, errors.New("want hexadecimal digits")
	}
	p.at += digits
	return rune(n), nil
}

func (p *parser) unicodeEscape() (rune, error) {
	if p.take("{") {
		end := strings.IndexByte(p.text[p.at:], '}')
		if end < 1 || end > 6 {
			return 0, errors.New(`\u{: want up to six hexadecimal digits and '}'`)
		}
		r, err := p.hex(end)
		if err != nil || r > unicode.MaxRune {
			return 0, errors.New(`\u{: want a code point`)
		}
		p.at++
		return r, nil
	}
	r, err := p.hex(4)
	if err != nil {
		return 0, err
	}
	if r >= 0xd800 && r < 0xdc00 && strings.HasPrefix(p.text[p.at:], `\u`) {
		before := p.at
		p.at += 2
		low, err := p.hex(4)
		if err == nil && low >= 0xdc00 && low < 0xe000 {
			return (r-0xd800)<<10 + (low - 0xdc00) + 0x10000, nil
		}
		p.at = before
	}
	return r, nil
}

// class reads a class behind its bracket. One that is not closed is an error; [] has no character and [^] has all.
func (p *parser) class() ([]rune, error) {
	negated := p.take("^")
	var ranges []rune
	for !p.take("]") {
		if p.at >= len(p.text) {
			return nil, errors.New("'[' without ']'")
		}
		first, set, err := p.classAtom()
		if err != nil {
			return nil, err
		}
		if set == nil && p.peek() == '-' && p.at+1 < len(p.text) && p.text[p.at+1] != ']' {
			p.at++
			last, other, err := p.classAtom()
			switch {
			case err != nil:
				return nil, err
			case other != nil: // [a-\d]: the hyphen stands for itself
				set = append([]rune{first, first, '-', '-'}, other...)
			case last < first:
				return nil, errors.New("the end of a range is below its start")
			default:
				set = []rune{first, last}
			}
		} else if set == nil {
			set = []rune{first, first}
		}
		if err := p.made(len(set) / 2); err != nil {
			return nil, err
		}
		ranges = append(ranges, set...)
	}
	ranges = normal(ranges)
	if p.fold {
		if err := p.made(foldedCharacters(ranges)); err != nil {
			return nil, err
		}
		ranges = folded(ranges)
	}
	if negated {
		ranges = complement(ranges)
	}
	return ranges, nil
}

func (p *parser) classAtom() (rune, []rune, error) {
	if !p.take(`\`) {
		return p.rune(), nil, nil
	}
	if p.take("b") {
		return '\b', nil, nil
	}
	if ranges, ok, err := p.classEscape(); ok || err != nil {
		return 0, ranges, err
	}
	r, err := p.characterEscape()
	return r, nil, err
}
