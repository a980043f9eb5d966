package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
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
