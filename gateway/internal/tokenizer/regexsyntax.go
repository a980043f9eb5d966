package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRegexNesting bounds groups and character classes within each other.
const maxRegexNesting = 100

// translateRegex rewrites an expression of Oniguruma's Ruby syntax, which the
// reference uses, for regexp2. Character classes, escapes such as \p{L} and \s,
// class intersections and case folding are worked out here to plain lists of
// characters, so that the engine's own tables play no part. Groups do not
// capture. What cannot be kept the same is an error.
func translateRegex(pattern string) (string, error) {
	p := &regexTranslator{in: pattern, unicode: loadUnicode()}
	if err := p.alternation(regexFlags{}, 0); err != nil {
		return "", fmt.Errorf("at byte %d: %w", p.at, err)
	}
	if p.at < len(p.in) {
		return "", fmt.Errorf("at byte %d: ) without (", p.at)
	}
	return string(p.out), nil
}

type regexTranslator struct {
	in      string
	at      int
	out     []byte
	unicode *unicodeData
}

type regexFlags struct {
	fold   bool // i
	dotAll bool // m, as Ruby understands it
}

func (p *regexTranslator) peek() rune {
	if p.at >= len(p.in) {
		return -1
	}
	r, _ := utf8.DecodeRuneInString(p.in[p.at:])
	return r
}

func (p *regexTranslator) next() rune {
	if p.at >= len(p.in) {
		return -1
	}
	r, size := utf8.DecodeRuneInString(p.in[p.at:])
	p.at += size
	return r
}

func (p *regexTranslator) accept(prefix string) bool {
	if strings.HasPrefix(p.in[p.at:], prefix) {
		p.at += len(prefix)
		return true
	}
	return false
}

// alternation reads up to an unmatched ) or the end.
func (p *regexTranslator) alternation(flags regexFlags, depth int) error {
	if depth > maxRegexNesting {
		return fmt.Errorf("groups nest deeper than %d levels", maxRegexNesting)
	}
	for {
		switch p.peek() {
		case -1, ')':
			return nil
		case '|':
			p.at++
			p.out = append(p.out, '|')
			continue
		}
		if p.accept("(?#") {
			end := strings.IndexByte(p.in[p.at:], ')')
			if end < 0 {
				return errors.New("a comment without end")
			}
			p.at += end + 1
			continue
		}
		if changed, ok, err := p.flagGroup(flags); err != nil {
			return err
		} else if ok { // the rest of this group, alternatives included, is a group of its own
			p.out = append(p.out, "(?:"...)
			if err := p.alternation(changed, depth+1); err != nil {
				return err
			}
			p.out = append(p.out, ')')
			return nil
		}
		start := len(p.out)
		if err := p.atom(flags, depth); err != nil {
			return err
		}
		if err := p.quantifiers(start); err != nil {
			return err
		}
	}
}

// flagGroup reads (?i) and its like, which hold to the end of the group.
func (p *regexTranslator) flagGroup(flags regexFlags) (regexFlags, bool, error) {
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
func (p *regexTranslator) atom(flags regexFlags, depth int) error {
	switch c := p.next(); c {
	case '(':
		return p.group(flags, depth)
	case '[':
		set, err := p.class(flags, depth)
		if err != nil {
			return err
		}
		p.writeSet(set)
	case '.':
		if flags.dotAll {
			p.writeSet(runeSet(nil).complement())
		} else {
			p.writeSet(runeSet{{'\n', '\n'}}.complement())
		}
	case '^':
		p.out = append(p.out, "(?m:^)"...)
	case '$':
		p.out = append(p.out, "(?m:$)"...)
	case '*', '+', '?':
		return fmt.Errorf("nothing to repeat before %q", c)
	case '\\':
		return p.escape(flags)
	default:
		p.writeSet(p.literal(c, flags))
	}
	return nil
}

func (p *regexTranslator) group(flags regexFlags, depth int) error {
	inner := flags
	opened := false
	for _, open := range []string{"?:", "?=", "?!", "?>", "?<=", "?<!"} {
		if p.accept(open) {
			p.out = append(p.out, ("(" + open)...)
			opened = true
			break
		}
	}
	if !opened {
		switch {
		case p.accept("?<"):
			if _, name, ok := strings.Cut(p.in[p.at:], ">"); ok {
				p.at = len(p.in) - len(name)
			}
		case p.accept("?"):
			text, _, ok := strings.Cut(p.in[p.at:], ":")
			if !ok {
				return errors.New("a group of unknown kind")
			}
			var err error
			if inner, err = parseFlags(text, flags); err != nil {
				return err
			}
			p.at += len(text) + 1
		}
		p.out = append(p.out, "(?:"...)
	}
	if err := p.alternation(inner, depth+1); err != nil {
		return err
	}
	if p.next() != ')' {
		return errors.New("( without )")
	}
	p.out = append(p.out, ')')
	return nil
}

// quantifiers reads the quantifiers of the atom written from start on.
func (p *regexTranslator) quantifiers(start int) error {
	for {
		mark, interval := "", false
		switch c := p.peek(); c {
		case '*', '+', '?':
			p.at++
			mark = string(c)
		case '{':
			text, ok, err := p.interval()
			if err != nil {
				return err
			}
			if !ok {
				return nil
			}
			mark, interval = text, true
		default:
			return nil
		}
		atom := string(p.out[start:])
		p.out = p.out[:start]
		fixed := interval && !strings.Contains(mark, ",")
		switch {
		case !fixed && p.accept("?"):
			p.out = append(p.out, ("(?:" + atom + mark + "?)")...)
		case !interval && p.accept("+"): // possessive; after an interval + is one more quantifier
			p.out = append(p.out, ("(?>" + atom + mark + ")")...)
		case strings.ContainsAny(string(p.peek()), "*+?{"):
			p.out = append(p.out, ("(?:" + atom + mark + ")")...)
		default:
			p.out = append(p.out, (atom + mark)...)
			return nil
		}
	}
}

// interval reads {n}, {n,}, {n,m} or {,m}; ok is false where { is a literal.
func (p *regexTranslator) interval() (text string, ok bool, err error) {
	body, _, closed := strings.Cut(p.in[p.at+1:], "}")
	if !closed || body == "" || body == "," || strings.Trim(body, "0123456789,") != "" || strings.Count(body, ",") > 1 {
		return "", false, nil
	}
	lo, hi, ranged := strings.Cut(body, ",")
	for _, bound := range []string{lo, hi} {
		if n, err := strconv.Atoi(bound); bound != "" && (err != nil || n > 1000) {
			return "", false, fmt.Errorf("a repeat count of %s: allowed are 0 to 1000", bound)
		}
	}
	p.at += len(body) + 2
	if lo == "" {
		lo = "0"
	}
	if ranged {
		return "{" + lo + "," + hi + "}", true, nil
	}
	return "{" + lo + "}", true, nil
}

// escape reads what follows a backslash outside a class.
func (p *regexTranslator) escape(flags regexFlags) error {
	switch p.peek() {
	case 'A', 'z', 'Z':
		p.out = append(p.out, (`\` + string(p.next()))...)
		return nil
	case 'b', 'B':
		word := p.setText(p.unicode.classes["word"])
		if p.next() == 'b' {
			p.out = append(p.out, ("(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))")...)
		} else {
			p.out = append(p.out, ("(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))")...)
		}
		return nil
	}
	set, err := p.escapedSet(flags)
	if err != nil {
		return err
	}
	p.writeSet(set)
	return nil
}

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
