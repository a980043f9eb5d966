package jinja

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind int

const (
	tokenEOF tokenKind = iota
	tokenData
	tokenVariableBegin
	tokenVariableEnd
	tokenBlockBegin
	tokenBlockEnd
	tokenName
	tokenString
	tokenNumber
	tokenOperator
)

// token is one lexical unit. text is the name, the operator, the decoded string or the data; value is set for numbers.
type token struct {
	kind  tokenKind
	text  string
	value Value
	line  int
}

func (t token) String() string {
	switch t.kind {
	case tokenEOF:
		return "end of template"
	case tokenData:
		return "template text"
	case tokenVariableBegin:
		return "begin of print statement"
	case tokenVariableEnd:
		return "end of print statement"
	case tokenBlockBegin:
		return "begin of statement block"
	case tokenBlockEnd:
		return "end of statement block"
	case tokenString:
		return "string"
	case tokenNumber:
		return "number"
	}
	return strconv.Quote(t.text)
}

// lexer cuts a template into tokens. Whitespace control happens here, as in jinja2: "-" strips to the neighbouring text, "+" keeps it,
// trim_blocks takes the newline after a tag, lstrip_blocks the indentation before one.
type lexer struct {
	source string
	pos    int
	line   int
	// lineStarting is true where the last match ended in a newline: then the indentation before a tag may be stripped though no newline is in sight.
	lineStarting bool
	tokens       []token
}

func syntaxFault(line int, format string, args ...any) {
	panic(&fault{class: syntaxError, message: fmt.Sprintf(format, args...), line: line})
}

// tokenize returns the tokens of source, without comments and raw markers; the last one is tokenEOF.
func tokenize(source string) []token {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{source: source, line: 1, lineStarting: true}
	for l.pos < len(l.source) {
		l.root()
	}
	l.emit(token{kind: tokenEOF})
	return l.tokens
}

func (l *lexer) emit(t token) {
	t.line = l.line
	l.tokens = append(l.tokens, t)
}

// advance moves behind the next n bytes and counts their lines.
func (l *lexer) advance(n int) {
	part := l.source[l.pos : l.pos+n]
	l.line += strings.Count(part, "\n")
	l.pos += n
	l.lineStarting = strings.HasSuffix(part, "\n")
}

// root takes text up to the next tag, and that tag.
func (l *lexer) root() {
	rest := l.source[l.pos:]
	at := 0
	for {
		i := strings.IndexByte(rest[at:], '{')
		if i < 0 || at+i+1 >= len(rest) {
			l.data(rest)
			l.advance(len(rest))
			return
		}
		at += i
		if c := rest[at+1]; c == '{' || c == '%' || c == '#' {
			break
		}
		at++
	}
	kind := rest[at+1]
	open := 2
	sign := byte(0)
	if at+2 < len(rest) && (rest[at+2] == '-' || rest[at+2] == '+') {
		sign = rest[at+2]
		open = 3
	}
	text := l.strip(rest[:at], sign, kind != '{')
	l.data(text)
	if kind == '%' {
		if n := rawBegin(rest[at+open:]); n > 0 {
			l.advance(at + open + n)
			l.raw()
			return
		}
	}
	l.advance(at + open)
	switch kind {
	case '{':
		l.emit(token{kind: tokenVariableBegin})
		l.expression(true)
	case '%':
		l.emit(token{kind: tokenBlockBegin})
		l.expression(false)
	default:
		l.comment()
	}
}

// strip applies the sign of a tag, or lstrip_blocks, to the text before it.
func (l *lexer) strip(text string, sign byte, isBlock bool) string {
	switch {
	case sign == '-':
		return strings.TrimRightFunc(text, isSpace)
	case sign == 0 && isBlock:
		lineStart := strings.LastIndexByte(text, '\n') + 1
		if (lineStart > 0 || l.lineStarting) && strings.TrimLeftFunc(text[lineStart:], isSpace) == "" {
			return text[:lineStart]
		}
	}
	return text
}

func (l *lexer) data(text string) {
	if text != "" {
		l.emit(token{kind: tokenData, text: text})
	}
}

// rawBegin measures " raw %}" behind "{%"; 0 when something else stands there.
func rawBegin(s string) int {
	rest := strings.TrimLeftFunc(s, isSpace)
	if !strings.HasPrefix(rest, "raw") {
		return 0
	}
	rest = strings.TrimLeftFunc(rest[3:], isSpace)
	switch {
	case strings.HasPrefix(rest, "-%}"):
		rest = strings.TrimLeftFunc(rest[3:], isSpace)
	case strings.HasPrefix(rest, "%}"):
		rest = rest[2:]
	default:
		return 0
	}
	return len(s) - len(rest)
}

// blockEnd measures a tag's end at the start of s: "+%}", "-%}" with the whitespace behind it, or "%}" with one newline.
func blockEnd(s, end string) int {
	switch {
	case strings.HasPrefix(s, "+"+end):
		return 1 + len(end)
	case strings.HasPrefix(s, "-"+end):
		return len(s) - len(strings.TrimLeftFunc(s[1+len(end):], isSpace))
	case strings.HasPrefix(s, end+"\n"):
		return len(end) + 1
	case strings.HasPrefix(s, end):
		return len(end)
	}
	return 0
}

// raw takes everything up to the endraw tag as text.
func (l *lexer) raw() {
	rest := l.source[l.pos:]
	for at := 0; ; at += 2 {
		i := strings.Index(rest[at:], "{%")
		if i < 0 {
			syntaxFault(l.line, "missing end of raw directive")
		}
		at += i
		tail := rest[at+2:]
		sign := byte(0)
		if tail != "" && (tail[0] == '-' || tail[0] == '+') {
			sign = tail[0]
			tail = tail[1:]
		}
		tail = strings.TrimLeftFunc(tail, isSpace)
		if !strings.HasPrefix(tail, "endraw") {
			continue
		}
		tail = strings.TrimLeftFunc(tail[len("endraw"):], isSpace)
		n := blockEnd(tail, "%}")
		if n == 0 {
			continue
		}
		l.data(l.strip(rest[:at], sign, true))
		l.advance(len(rest) - len(tail) + n)
		return
	}
}

func (l *lexer) comment() {
	rest := l.source[l.pos:]
	end := strings.Index(rest, "#}")
	if end < 0 {
		syntaxFault(l.line, "missing end of comment tag")
	}
	if end > 0 && (rest[end-1] == '-' || rest[end-1] == '+') {
		end--
	}
	l.advance(end + blockEnd(rest[end:], "#}"))
}

var operators = []string{"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"}

var closing = map[string]byte{"{": '}', "(": ')', "[": ']'}

// expression takes the tokens of a tag up to its end. Inside brackets "}}" and "%}" are not an end.
func (l *lexer) expression(variable bool) {
	var open []byte
	for l.pos < len(l.source) {
		rest := l.source[l.pos:]
		if len(open) == 0 {
			if variable {
				n := 0
				if strings.HasPrefix(rest, "}}") {
					n = 2
				} else if strings.HasPrefix(rest, "-}}") {
					n = blockEnd(rest, "}}")
				}
				if n > 0 {
					l.emit(token{kind: tokenVariableEnd})
					l.advance(n)
					return
				}
			} else if n := blockEnd(rest, "%}"); n > 0 {
				l.emit(token{kind: tokenBlockEnd})
				l.advance(n)
				return
			}
		}
		c, size := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(c):
			l.advance(size)
		case c >= '0' && c <= '9':
			l.number(rest)
		case isNameRune(c):
			n := len(rest) - len(strings.TrimLeftFunc(rest, isNameRune))
			if !isIdentifier(rest[:n]) {
				syntaxFault(l.line, "invalid character in identifier %q", rest[:n])
			}
			l.emit(token{kind: tokenName, text: rest[:n]})
			l.advance(n)
		case c == '\'' || c == '"':
			l.quoted(rest)
		default:
			l.operator(rest, &open)
		}
	}
}

func (l *lexer) operator(rest string, open *[]byte) {
	for _, op := range operators {
		if !strings.HasPrefix(rest, op) {
			continue
		}
		if end, ok := closing[op]; ok {
			*open = append(*open, end)
			if len(*open) > maxNesting {
				syntaxFault(l.line, "brackets nest deeper than %d", maxNesting)
			}
		} else if op == "}" || op == ")" || op == "]" {
			if len(*open) == 0 {
				syntaxFault(l.line, "unexpected '%s'", op)
			}
			want := (*open)[len(*open)-1]
			if op[0] != want {
				syntaxFault(l.line, "unexpected '%s', expected '%c'", op, want)
			}
			*open = (*open)[:len(*open)-1]
		}
		l.emit(token{kind: tokenOperator, text: op})
		l.advance(len(op))
		return
	}
	c, _ := utf8.DecodeRuneInString(rest)
	syntaxFault(l.line, "unexpected character %q", c)
}

// digits measures a run of digits with single underscores between them.
func digits(s string, isDigit func(byte) bool) int {
	n := 0
	for n < len(s) {
		switch {
		case isDigit(s[n]):
			n++
		case s[n] == '_' && n > 0 && n+1 < len(s) && isDigit(s[n+1]):
			n += 2
		default:
			return n
		}
	}
	return n
}

func decimal(c byte) bool { return c >= '0' && c <= '9' }

// floatLength measures a float literal; 0 when the digits are no float.
func floatLength(s string) int {
	n := digits(s, decimal)
	isFloat := false
	if n < len(s) && s[n] == '.' {
		if k := digits(s[n+1:], decimal); k > 0 {
			n += 1 + k
			isFloat = true
		}
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		k := n + 1
		if k < len(s) && (s[k] == '+' || s[k] == '-') {
			k++
		}
		if d := digits(s[k:], decimal); d > 0 {
			return k + d
		}
	}
	if !isFloat {
		return 0
	}
	return n
}

func (l *lexer) number(rest string) {
	afterDot := l.pos > 0 && l.source[l.pos-1] == '.'
	if n := floatLength(rest); n > 0 && !afterDot {
		f, err := strconv.ParseFloat(strings.ReplaceAll(rest[:n], "_", ""), 64)
		if err != nil {
			syntaxFault(l.line, "number %s is too large", rest[:n])
		}
		l.emit(token{kind: tokenNumber, value: Float(f), text: rest[:n]})
		l.advance(n)
		return
	}
	n := 0
	if len(rest) > 2 && rest[0] == '0' {
		base := map[byte]func(byte) bool{
			'b': func(c byte) bool { return c == '0' || c == '1' },
			'o': func(c byte) bool { return c >= '0' && c <= '7' },
			'x': func(c byte) bool { return decimal(c) || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F' },
		}[rest[1]|0x20]
		if base != nil {
			// A prefix may be followed by an underscore: 0x_ff.
			skip := 2
			if rest[2] == '_' {
				skip = 3
			}
			if k := digits(rest[skip:], base); k > 0 {
				n = skip + k
			}
		}
	}
	if n == 0 {
		if rest[0] == '0' {
			n = digits(rest, func(c byte) bool { return c == '0' })
		} else {
			n = digits(rest, decimal)
		}
	}
	literal := strings.ReplaceAll(rest[:n], "_", "")
	if len(literal) > 4300 {
		syntaxFault(l.line, "number of %d digits", len(literal))
	}
	base := 10
	if len(literal) > 1 && (literal[1]|0x20) >= 'a' {
		base = 0
	}
	i, ok := new(big.Int).SetString(literal, base)
	if !ok {
		syntaxFault(l.line, "invalid number %s", literal)
	}
	l.emit(token{kind: tokenNumber, value: normalInt(i), text: literal})
	l.advance(n)
}

func (l *lexer) quoted(rest string) {
	n := 1
	for n < len(rest) && rest[n] != rest[0] {
		if rest[n] == '\\' {
			n++
		}
		n++
	}
	if n >= len(rest) {
		syntaxFault(l.line, "unexpected character %q: the string has no end", rest[0])
	}
	text, err := unescape(rest[1:n])
	if err != nil {
		syntaxFault(l.line, "%v", err)
	}
	l.emit(token{kind: tokenString, text: text})
	l.advance(n + 1)
}

var simpleEscapes = map[byte]string{
	'\n': "", '\\': "\\", '\'': "'", '"': "\"", 'a': "\a", 'b': "\b", 'f': "\f", 'n': "\n", 'r': "\r", 't': "\t", 'v': "\v",
}

// unescape decodes Python's string escapes. An unknown escape stays as it is written.
func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			i++
			continue
		}
		if i+1 == len(s) {
			return "", fmt.Errorf(`\ at end of string`)
		}
		c := s[i+1]
		if text, ok := simpleEscapes[c]; ok {
			b.WriteString(text)
			i += 2
			continue
		}
		width := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		switch {
		case c >= '0' && c <= '7':
			n := 1
			for n < 3 && i+1+n < len(s) && s[i+1+n] >= '0' && s[i+1+n] <= '7' {
				n++
			}
			code, err := strconv.ParseUint(s[i+1:i+1+n], 8, 32)
			if err != nil {
				return "", fmt.Errorf("invalid octal escape: %w", err)
			}
			b.WriteRune(rune(code))
			i += 1 + n
		case width > 0:
			if i+2+width > len(s) {
				return "", fmt.Errorf(`truncated \%c escape`, c)
			}
			code, err := strconv.ParseUint(s[i+2:i+2+width], 16, 32)
			if err != nil || code > unicode.MaxRune {
				return "", fmt.Errorf(`invalid \%c escape %s`, c, s[i+2:i+2+width])
			}
			if code >= 0xd800 && code < 0xe000 {
				return "", fmt.Errorf(`\%c escape %s is half a surrogate pair, not a character`, c, s[i+2:i+2+width])
			}
			b.WriteRune(rune(code))
			i += 2 + width
		case c == 'N':
			return "", fmt.Errorf(`escapes by character name (\N) are not supported`)
		default:
			b.WriteByte('\\')
			i++
		}
	}
	return b.String(), nil
}

// isSpace is Python's str.isspace for one character, which is also what \s matches.
func isSpace(c rune) bool {
	return unicode.IsSpace(c) || c >= 0x1c && c <= 0x1f
}

func isNameRune(c rune) bool {
	return c == '_' || c < utf8.RuneSelf && (c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z') ||
		c >= utf8.RuneSelf && c != utf8.RuneError && (unicode.In(c, unicode.L, unicode.M, unicode.N, unicode.Pc) || c == '·')
}

// isIdentifier is Python's str.isidentifier.
func isIdentifier(s string) bool {
	for i, c := range s {
		start := c == '_' || unicode.In(c, unicode.L, unicode.Nl, unicode.Other_ID_Start)
		if !start && (i == 0 || !unicode.In(c, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc, unicode.Other_ID_Continue)) {
			return false
		}
	}
	return s != ""
}
