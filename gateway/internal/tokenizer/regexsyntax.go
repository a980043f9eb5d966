package tokenizer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// maxPattern bounds the bytes of a pattern.
	maxPattern = 1 << 16
	// maxRegexNesting bounds groups and character classes within each other.
	maxRegexNesting = 100
	// maxPatternWork bounds the ranges of characters that are put together to read one pattern.
	maxPatternWork = 20_000_000
)

// The syntax tree of an expression of Oniguruma's Ruby syntax, which the reference uses. Character classes, escapes such as \p{L} and \s, class
// intersections and case folding are plain sets of characters in it, by the reference's Unicode tables. Groups do not capture.
type (
	// regexNode is one of the types below.
	regexNode interface{}
	// regexChars matches one character of a set.
	regexChars struct{ set runeSet }
	// regexConcat matches its parts one after the other; without parts it matches nothing at all, everywhere.
	regexConcat []regexNode
	// regexAlternatives matches the first that leads to a match.
	regexAlternatives []regexNode
	// regexRepeat matches least to most times, most -1 for any number, as often as possible or, lazy, as rarely.
	regexRepeat struct {
		of          regexNode
		least, most int
		lazy        bool
	}
	// regexAtomic matches as its content does by itself.
	regexAtomic struct{ of regexNode }
	// regexLook matches the empty text where its content matches, or does not, ahead or behind.
	regexLook struct {
		of               regexNode
		behind, negative bool
	}
	// regexAnchor matches the empty text at some places: ^ and $ at lines' ends, A at the beginning, z at the end, Z there or before a last newline.
	regexAnchor byte
)

// parseRegex reads an expression. What cannot be kept the same as in the reference is an error.
func parseRegex(pattern string) (regexNode, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("%d bytes: allowed are %d", len(pattern), maxPattern)
	}
	p := &regexParser{in: pattern, unicode: loadUnicode()}
	n, err := p.alternation(regexFlags{}, 0)
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", p.at, err)
	}
	if p.at < len(p.in) {
		return nil, fmt.Errorf("at byte %d: ) without (", p.at)
	}
	return n, nil
}

type regexParser struct {
	in      string
	at      int
	work    int
	unicode *unicodeData
}

type regexFlags struct {
	fold   bool // i
	dotAll bool // m, as Ruby understands it
}

// spend counts the ranges of a set that is made.
func (p *regexParser) spend(ranges int) error {
	if p.work += 8 + ranges; p.work > maxPatternWork {
		return errors.New("the character classes are too large in all")
	}
	return nil
}

func (p *regexParser) peek() rune {
	if p.at >= len(p.in) {
		return -1
	}
	r, _ := utf8.DecodeRuneInString(p.in[p.at:])
	return r
}

func (p *regexParser) next() rune {
	if p.at >= len(p.in) {
		return -1
	}
	r, size := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += size
	return r
}

func (p *regexParser) accept(prefix string) bool {
	if strings.HasPrefix(p.in[p.at:], prefix) {
		p.at += len(prefix)
		return true
	}
	return false
}

// alternation reads up to an unmatched ) or the end.
func (p *regexParser) alternation(flags regexFlags, depth int) (regexNode, error) {
	if depth > maxRegexNesting {
		return nil, fmt.Errorf("groups nest deeper than %d levels", maxRegexNesting)
	}
	var done regexAlternatives
	var current regexConcat
	finish := func() regexNode {
		if done == nil {
			return current
		}
		return append(done, current)
	}
	for {
		switch p.peek() {
		case -1, ')':
			return finish(), nil
		case '|':
			p.at++
			done, current = append(done, current), nil
			continue
		}
		if p.accept("(?#") {
			end := strings.IndexByte(p.in[p.at:], ')')
			if end < 0 {
				return nil, errors.New("a comment without end")
			}
			p.at += end + 1
			continue
		}
		if changed, ok, err := p.flagGroup(flags); err != nil {
			return nil, err
		} else if ok { // the rest of this group, alternatives included, is a group of its own
			rest, err := p.alternation(changed, depth+1)
			if err != nil {
				return nil, err
			}
			current = append(current, rest)
			return finish(), nil
		}
		atom, err := p.atom(flags, depth)
		if err != nil {
			return nil, err
		}
		if atom, err = p.quantifiers(atom); err != nil {
			return nil, err
		}
		current = append(current, atom)
	}
}

// flagGroup reads (?i) and its like, which hold to the end of the group.
func (p *regexParser) flagGroup(flags regexFlags) (regexFlags, bool, error) {
	rest := p.in[p.at:]
	if !strings.HasPrefix(rest, "(?") {
		return flags, false, nil
	}
	end := strings.IndexByte(rest, ')')
	if end < 0 || strings.Trim(rest[2:end], "imx-") != "" || end == 2 {
		return flags, false, nil
	}
	changed, err := parseFlags(rest[2:end], flags)
	p.at += end + 1
	return changed, true, err
}

func parseFlags(text string, flags regexFlags) (regexFlags, error) {
	on := true
	for _, c := range text {
		switch c {
		case '-':
			on = false
		case 'i':
			flags.fold = on
		case 'm':
			flags.dotAll = on
		case 'x':
			if on {
				return flags, errors.New("the extended flag x is not supported")
			}
		default:
			return flags, fmt.Errorf("unknown flag %q", c)
		}
	}
	return flags, nil
}

// atom reads one thing that a quantifier may follow.
func (p *regexParser) atom(flags regexFlags, depth int) (regexNode, error) {
	switch c := p.next(); c {
	case '(':
		return p.group(flags, depth)
	case '[':
		set, err := p.class(flags, depth)
		return regexChars{set}, err
	case '.':
		if flags.dotAll {
			return regexChars{runeSet(nil).complement()}, nil
		}
		return regexChars{runeSet{{'\n', '\n'}}.complement()}, nil
	case '^', '$':
		return regexAnchor(c), nil
	case '*', '+', '?':
		return nil, fmt.Errorf("nothing to repeat before %q", c)
	case '\\':
		return p.escape(flags)
	default:
		set, err := p.literal(c, flags)
		return regexChars{set}, err
	}
}

func (p *regexParser) group(flags regexFlags, depth int) (regexNode, error) {
	inner := flags
	wrap := func(n regexNode) regexNode { return n }
	switch {
	case p.accept("?:"):
	case p.accept("?="):
		wrap = func(n regexNode) regexNode { return regexLook{of: n} }
	case p.accept("?!"):
		wrap = func(n regexNode) regexNode { return regexLook{of: n, negative: true} }
	case p.accept("?>"):
		wrap = func(n regexNode) regexNode { return regexAtomic{n} }
	case p.accept("?<="):
		wrap = func(n regexNode) regexNode { return regexLook{of: n, behind: true} }
	case p.accept("?<!"):
		wrap = func(n regexNode) regexNode { return regexLook{of: n, behind: true, negative: true} }
	case p.accept("?<"):
		if _, name, ok := strings.Cut(p.in[p.at:], ">"); ok {
			p.at = len(p.in) - len(name)
		}
	case p.accept("?"):
		text, _, ok := strings.Cut(p.in[p.at:], ":")
		if !ok {
			return nil, errors.New("a group of unknown kind")
		}
		var err error
		if inner, err = parseFlags(text, flags); err != nil {
			return nil, err
		}
		p.at += len(text) + 1
	}
	n, err := p.alternation(inner, depth+1)
	if err != nil {
		return nil, err
	}
	if p.next() != ')' {
		return nil, errors.New("( without )")
	}
	return wrap(n), nil
}

// quantifiers reads the quantifiers behind an atom. They may follow each other.
func (p *regexParser) quantifiers(atom regexNode) (regexNode, error) {
	for n := 0; ; n++ {
		r := regexRepeat{of: atom, most: -1}
		interval, fixed := false, false
		switch p.peek() {
		case '*':
			p.at++
		case '+':
			p.at++
			r.least = 1
		case '?':
			p.at++
			r.most = 1
		case '{':
			ok, ranged, err := p.interval(&r)
			if err != nil {
				return nil, err
			}
			if !ok {
				return atom, nil
			}
			interval, fixed = true, !ranged
		default:
			return atom, nil
		}
		if n == maxRegexNesting {
			return nil, fmt.Errorf("more than %d quantifiers in a row", maxRegexNesting)
		}
		switch {
		case !fixed && p.accept("?"):
			r.lazy = true
			atom = r
		case !interval && p.accept("+"): // possessive; after an interval + is one more quantifier
			atom = regexAtomic{r}
		default:
			atom = r
		}
	}
}

// interval reads {n}, {n,}, {n,m} or {,m}; ok is false where { is a literal, ranged for all but the first.
func (p *regexParser) interval(r *regexRepeat) (ok, ranged bool, err error) {
	body, _, closed := strings.Cut(p.in[p.at+1:], "}")
	if !closed || body == "" || body == "," || len(body) > 100 || strings.Trim(body, "0123456789,") != "" || strings.Count(body, ",") > 1 {
		return false, false, nil
	}
	lo, hi, ranged := strings.Cut(body, ",")
	for _, bound := range []string{lo, hi} {
		if n, err := strconv.Atoi(bound); bound != "" && (err != nil || n > 1000) {
			return false, false, fmt.Errorf("a repeat count of %s: allowed are 0 to 1000", bound)
		}
	}
	p.at += len(body) + 2
	r.least, _ = strconv.Atoi(lo) // checked, or empty for 0
	switch {
	case !ranged:
		r.most = r.least
	case hi != "":
		r.most, _ = strconv.Atoi(hi)
		if r.most < r.least {
			return false, false, fmt.Errorf("a repeat of at least %d and at most %d times", r.least, r.most)
		}
	}
	return true, ranged, nil
}

// escape reads what follows a backslash outside a class.
func (p *regexParser) escape(flags regexFlags) (regexNode, error) {
	switch p.peek() {
	case 'A', 'z', 'Z':
		return regexAnchor(p.next()), nil
	case 'b', 'B':
		boundary := p.next() == 'b'
		word := regexChars{p.unicode.classes["word"]}
		look := func(behind, isWord bool) regexNode { return regexLook{of: word, behind: behind, negative: !isWord} }
		return regexAlternatives{
			regexConcat{look(true, true), look(false, !boundary)},
			regexConcat{look(true, false), look(false, boundary)},
		}, nil
	}
	set, err := p.escapedSet(flags)
	return regexChars{set}, err
}

// nullable tells whether a node may match the empty text, and which characters may begin what it matches otherwise.
func (p *regexProgram) begins(n regexNode) (first runeSet, nullable bool) {
	switch n := n.(type) {
	case regexChars:
		return n.set, false
	case regexConcat:
		var sets []runeRange
		for _, part := range n {
			set, empty := p.begins(part)
			sets = append(sets, set...)
			if !empty {
				return newRuneSet(sets), false
			}
		}
		return newRuneSet(sets), true
	case regexAlternatives:
		var sets []runeRange
		for _, part := range n {
			set, empty := p.begins(part)
			sets = append(sets, set...)
			nullable = nullable || empty
		}
		return newRuneSet(sets), nullable
	case regexRepeat:
		first, nullable = p.begins(n.of)
		return first, nullable || n.least == 0
	case regexAtomic:
		return p.begins(n.of)
	}
	return nil, true
}

// reversed gives the parts of a concatenation from the last to the first.
func reversed(n regexConcat) regexConcat {
	out := slices.Clone(n)
	slices.Reverse(out)
	return out
}
