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
func (p *regexTranslator) escapedSet(flags regexFlags) (runeSet, error) {
	named := func(name string, negate bool) (runeSet, error) {
		set, ok := p.unicode.classes[name]
		if !ok {
			set, ok = p.unicode.posix[strings.ToLower(name)]
		}
		if !ok {
			return nil, fmt.Errorf("the character property %q is not supported", name)
		}
		if negate {
			set = set.complement()
		}
		return set, nil
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
		return named(canonicalProperty(bare), (c == 'P') != caret)
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
	return p.literal(c, flags), nil
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

func (p *regexTranslator) hex(flags regexFlags, least, most int, braced bool) (runeSet, error) {
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
	return p.literal(rune(v), flags), nil
}

// literal is the set of characters that c stands for.
func (p *regexTranslator) literal(c rune, flags regexFlags) runeSet {
	set := runeSet{{c, c}}
	if flags.fold {
		set = foldSet(set)
	}
	return set
}

// foldSet adds to a set what differs only in case from its members.
func foldSet(set runeSet) runeSet {
	var extra []runeRange
	for _, r := range set {
		if r.hi-r.lo > 0x3000 {
			continue // a negated class or a script without case: closed under folding already
		}
		for c := r.lo; c <= r.hi; c++ {
			for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
				extra = append(extra, runeRange{f, f})
			}
		}
	}
	return set.union(extra)
}

// class reads a bracketed class behind its [.
func (p *regexTranslator) class(flags regexFlags, depth int) (runeSet, error) {
	if depth > maxRegexNesting {
		return nil, fmt.Errorf("classes nest deeper than %d levels", maxRegexNesting)
	}
	negated := p.accept("^")
	var current runeSet
	var parts []runeSet // operands of &&
	for first := true; ; first = false {
		switch c := p.peek(); {
		case c == -1:
			return nil, errors.New("[ without ]")
		case c == ']' && !first:
			p.at++
			for _, other := range parts {
				current = current.intersect(other)
			}
			if flags.fold {
				current = foldSet(current)
			}
			if negated {
				current = current.complement()
			}
			return current, nil
		case p.accept("[:"):
			name, _, ok := strings.Cut(p.in[p.at:], ":]")
			if !ok {
				return nil, errors.New("[: without :]")
			}
			p.at += len(name) + 2
			bare, caret := strings.CutPrefix(name, "^")
			set, ok := p.unicode.posix[bare]
			if !ok {
				return nil, fmt.Errorf("the class [:%s:] is not supported", name)
			}
			if caret {
				set = set.complement()
			}
			current = current.union(set)
		case p.accept("["):
			set, err := p.class(flags, depth+1)
			if err != nil {
				return nil, err
			}
			current = current.union(set)
		case p.accept("&&"):
			parts = append(parts, current)
			current = nil
		default:
			set, err := p.member()
			if err != nil {
				return nil, err
			}
			current = current.union(set)
		}
	}
}

// member reads a character, an escape or a range of a class.
func (p *regexTranslator) member() (runeSet, error) {
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

func (p *regexTranslator) endpoint() (runeSet, error) {
	c := p.next()
	if c != '\\' {
		return runeSet{{c, c}}, nil
	}
	if p.accept("b") {
		return runeSet{{'\b', '\b'}}, nil
	}
	return p.escapedSet(regexFlags{})
}

func (p *regexTranslator) writeSet(set runeSet) { p.out = append(p.out, p.setText(set)...) }

// setText writes a set in the syntax of regexp2.
func (p *regexTranslator) setText(set runeSet) string {
	if len(set) == 0 {
		return "(?!)"
	}
	var b strings.Builder
	char := func(r rune) {
		if strings.ContainsRune(`\[]^-.$|?*+(){}# `, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	if len(set) == 1 && set[0].lo == set[0].hi {
		char(set[0].lo)
		return b.String()
	}
	b.WriteByte('[')
	if other := set.complement(); len(other) < len(set) && len(other) > 0 {
		b.WriteByte('^')
		set = other
	}
	for _, r := range set {
		char(r.lo)
		if r.hi > r.lo {
			b.WriteByte('-')
			char(r.hi)
		}
	}
	b.WriteByte(']')
	return b.String()
}
