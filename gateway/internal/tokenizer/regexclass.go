package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Sets of characters in expressions: escapes, properties, bracketed classes, and case folding.

// escapedSet reads an escape that stands for characters, behind its backslash.
func (p *regexParser) escapedSet(flags regexFlags) (runeSet, error) {
	named := func(name string, negate bool) (runeSet, error) {
		set, ok := p.unicode.classes[name]
		if !ok {
			set, ok = p.unicode.posix[strings.ToLower(name)]
		}
		if !ok {
			return nil, fmt.Errorf("the character property %.40q is not supported", name)
		}
		if negate {
			set = set.complement()
		}
		return set, p.spend(len(set))
	}
	c := p.next()
	switch c {
	case -1:
		return nil, errors.New("a backslash at the end")
	case 's', 'S':
		return named("space", c == 'S')
	case 'd', 'D':
		return named("digit", c == 'D')
	case 'w', 'W':
		return named("word", c == 'W')
	case 'h', 'H':
		set := newRuneSet([]runeRange{{'0', '9'}, {'a', 'f'}, {'A', 'F'}})
		if c == 'H' {
			set = set.complement()
		}
		return set, nil
	case 'p', 'P':
		if !p.accept("{") {
			return nil, errors.New(`\p needs a property in braces`)
		}
		name, _, ok := strings.Cut(p.in[p.at:], "}")
		if !ok {
			return nil, errors.New(`\p{ without }`)
		}
		p.at += len(name) + 1
		bare, caret := strings.CutPrefix(name, "^")
		negate := (c == 'P') != caret
		switch property := canonicalProperty(bare); property {
		case "Punct": // [[:punct:]] has symbols besides
			return named("P", negate)
		case "Word": // [[:word:]] lacks some numbers
			return named("word", negate)
		default:
			return named(property, negate)
		}
	case 'x':
		if p.accept("{") {
			return p.hex(flags, 1, 8, true)
		}
		return p.hex(flags, 1, 2, false)
	case 'u':
		return p.hex(flags, 4, 4, false)
	case 't':
		c = '\t'
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 'f':
		c = '\f'
	case 'v':
		c = '\v'
	case 'a':
		c = '\a'
	case 'e':
		c = 0x1B
	case '0':
		c = 0
	default:
		if c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) {
			return nil, fmt.Errorf(`\%c is not supported`, c)
		}
	}
	return p.literal(c, flags)
}

// canonicalProperty turns the spellings of a property into the one of the table.
func canonicalProperty(name string) string {
	long := map[string]string{
		"letter": "L", "uppercaseletter": "Lu", "lowercaseletter": "Ll", "titlecaseletter": "Lt", "modifierletter": "Lm", "otherletter": "Lo",
		"mark": "M", "nonspacingmark": "Mn", "spacingmark": "Mc", "enclosingmark": "Me", "number": "N", "decimalnumber": "Nd", "letternumber": "Nl",
		"othernumber": "No", "punctuation": "P", "symbol": "S", "separator": "Z", "other": "C",
	}
	plain := strings.NewReplacer(" ", "", "_", "", "-", "").Replace(strings.ToLower(name))
	if short, ok := long[plain]; ok {
		return short
	}
	if plain == "" {
		return name
	}
	return strings.ToUpper(plain[:1]) + plain[1:]
}

func (p *regexParser) hex(flags regexFlags, least, most int, braced bool) (runeSet, error) {
	end := p.at
	for end < len(p.in) && end-p.at < most && strings.IndexByte("0123456789abcdefABCDEF", p.in[end]) >= 0 {
		end++
	}
	v, err := strconv.ParseUint(p.in[p.at:end], 16, 32)
	if err != nil || end-p.at < least || v > unicode.MaxRune || !braced && most == 2 && v >= utf8.RuneSelf {
		return nil, fmt.Errorf("%q is no character", p.in[p.at:end])
	}
	p.at = end
	if braced && !p.accept("}") {
		return nil, errors.New(`\x{ without }`)
	}
	return p.literal(rune(v), flags)
}

// literal is the set of characters that c stands for.
func (p *regexParser) literal(c rune, flags regexFlags) (runeSet, error) {
	set := runeSet{{c, c}}
	if flags.fold {
		return p.foldSet(set)
	}
	return set, p.spend(1)
}

// foldSet adds to a set what differs only in case from its members.
func (p *regexParser) foldSet(set runeSet) (runeSet, error) {
	var extra []runeRange
	for _, r := range set {
		if r.hi-r.lo > 0x3000 {
			continue // a negated class or a script without case: closed under folding already
		}
		if err := p.spend(int(r.hi - r.lo)); err != nil {
			return nil, err
		}
		for c := r.lo; c <= r.hi; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				extra = append(extra, runeRange{f, f})
			}
		}
	}
	if len(extra) == 0 {
		return set, nil
	}
	return set.union(extra), p.spend(len(set) + len(extra))
}

// class reads a bracketed class behind its [.
func (p *regexParser) class(flags regexFlags, depth int) (runeSet, error) {
	if depth > maxRegexNesting {
		return nil, fmt.Errorf("classes nest deeper than %d levels", maxRegexNesting)
	}
	negated := p.accept("^")
	var current []runeRange // in any order
	var parts []runeSet     // operands of &&
	add := func(set runeSet, err error) error {
		if err != nil {
			return err
		}
		current = append(current, set...)
		return p.spend(len(set))
	}
	for first := true; ; first = false {
		var err error
		switch c := p.peek(); {
		case c == -1:
			return nil, errors.New("[ without ]")
		case c == ']' && !first:
			p.at++
			set := newRuneSet(current)
			for _, other := range parts {
				set = set.intersect(other)
				if err := p.spend(4 * (len(set) + len(other))); err != nil {
					return nil, err
				}
			}
			if flags.fold {
				if set, err = p.foldSet(set); err != nil {
					return nil, err
				}
			}
			if negated {
				set = set.complement()
			}
			return set, p.spend(len(set))
		case p.accept("[:"):
			name, _, ok := strings.Cut(p.in[p.at:], ":]")
			if !ok {
				return nil, errors.New("[: without :]")
			}
			p.at += len(name) + 2
			bare, caret := strings.CutPrefix(name, "^")
			set, ok := p.unicode.posix[bare]
			if !ok {
				return nil, fmt.Errorf("the class [:%.40s:] is not supported", name)
			}
			if caret {
				set = set.complement()
			}
			err = add(set, nil)
		case p.accept("["):
			err = add(p.class(flags, depth+1))
		case p.accept("&&"):
			parts = append(parts, newRuneSet(current))
			current = nil
		default:
			err = add(p.member())
		}
		if err != nil {
			return nil, err
		}
	}
}

// member reads a character, an escape or a range of a class.
func (p *regexParser) member() (runeSet, error) {
	lo, err := p.endpoint()
	if err != nil {
		return nil, err
	}
	rest := p.in[p.at:]
	if len(lo) != 1 || lo[0].lo != lo[0].hi || len(rest) < 2 || rest[0] != '-' || rest[1] == ']' {
		return lo, nil
	}
	p.at++
	if p.peek() == '[' {
		return lo.union(runeSet{{'-', '-'}}), nil
	}
	hi, err := p.endpoint()
	if err != nil {
		return nil, err
	}
	if len(hi) != 1 || hi[0].lo != hi[0].hi {
		return lo.union(hi).union(runeSet{{'-', '-'}}), nil
	}
	if hi[0].lo < lo[0].lo {
		return nil, fmt.Errorf("the range %c-%c is empty", lo[0].lo, hi[0].lo)
	}
	return runeSet{{lo[0].lo, hi[0].lo}}, nil
}

func (p *regexParser) endpoint() (runeSet, error) {
	c := p.next()
	if c != '\\' {
		return runeSet{{c, c}}, nil
	}
	if p.accept("b") {
		return runeSet{{'\b', '\b'}}, nil
	}
	return p.escapedSet(regexFlags{})
}
