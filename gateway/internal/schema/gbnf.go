package schema

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/ecma"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// maxGrammarNesting is how deep groups of a GBNF grammar nest.
const maxGrammarNesting = 250

// GBNF is the texts of a grammar in the notation of llama.cpp: rules `name ::= …`, of which root is where a text begins, literals, classes, groups,
// alternatives, repetitions, comments, and special tokens as <name> and !<name> or by their ids as <[10]> and !<[10]>. Rules may be recursive in any way.
// tokens are those of GBNFTokens.
func GBNF(b *grammar.Builder, text string, tokens map[int32]GBNFToken) (grammar.Symbol, error) {
	p, err := parseGBNF(text)
	if err != nil {
		return 0, err
	}
	if err := p.resolve(tokens); err != nil {
		return 0, &Error{Keyword: "grammar", Reason: err.Error()}
	}
	w := &gbnfWriter{b: b, rules: p.rules}
	for _, name := range p.order {
		w.classify(p.rules[name])
	}
	root := p.rules["root"]
	if root == nil {
		return 0, &Error{Keyword: "grammar", Reason: "there is no rule named root"}
	}
	symbol := w.rule(root)
	for len(w.queue) > 0 {
		rule := w.queue[0]
		w.queue = w.queue[1:]
		b.Define(rule.rule, w.symbol(rule.body))
	}
	return symbol, grammarError(b.Err(), "")
}

// GBNFToken is what a model's token is.
type GBNFToken struct {
	Text    string
	Special bool // it never stands for its text
}

// GBNFTokens are the ids of the tokens that a grammar names by them, each once.
func GBNFTokens(text string) ([]int32, error) {
	p, err := parseGBNF(text)
	if err != nil {
		return nil, err
	}
	var ids []int32
	for _, t := range p.numbered {
		if !slices.Contains(ids, t.id) {
			ids = append(ids, t.id)
		}
	}
	return ids, nil
}

func parseGBNF(text string) (*gbnfParser, error) {
	if len(text) > MaxGrammarBytes {
		return nil, tooLarge("", "grammar", "bytes", len(text), MaxGrammarBytes)
	}
	p := &gbnfParser{text: text, rules: map[string]*gbnfRule{}}
	if err := p.parse(); err != nil {
		line := 1 + strings.Count(text[:min(p.at, len(text))], "\n")
		return nil, &Error{Keyword: "grammar", Reason: fmt.Sprintf("line %d: %v", line, err)}
	}
	return p, nil
}

// gbnfNumbered is a token that is named by its id.
type gbnfNumbered struct {
	id   int32
	node *gbnfNode
}

// resolve says what tokens that are named by their ids are. An ordinary one is its text, however that is cut into tokens; anything but an ordinary one is no
// text that a grammar has.
func (p *gbnfParser) resolve(tokens map[int32]GBNFToken) error {
	for _, t := range p.numbered {
		token, ok := tokens[t.id]
		switch {
		case !ok:
			return fmt.Errorf("<[%d]>: there is no token of this number that stands for a text of its own", t.id)
		case token.Special:
			t.node.text = token.Text
		case t.node.kind == gbnfOther:
			return fmt.Errorf("!<[%d]>: %q is no special token; allowed behind ! are only those", t.id, shorten(token.Text))
		default:
			t.node.kind, t.node.text = gbnfText, token.Text
		}
	}
	return nil
}

type gbnfKind uint8

const (
	gbnfText gbnfKind = iota // text
	gbnfClass
	gbnfReference // text is the name
	gbnfSequence
	gbnfAlternatives
	gbnfRepeat
	gbnfToken // text is that of the special token
	gbnfOther // one character that is not part of that token
)

type gbnfNode struct {
	kind      gbnfKind
	text      string
	ranges    []grammar.RuneRange
	negated   bool
	subs      []*gbnfNode
	low, high int
}

type gbnfRule struct {
	name  string
	body  *gbnfNode
	state uint8 // of classify: 1 under way, 2 regular, 3 not
	made  bool
	rule  grammar.Rule
	expr  grammar.Expr
}

const (
	gbnfUnderWay = 1 + iota
	gbnfRegular
	gbnfRecursive
)

type gbnfParser struct {
	text    string
	at      int
	rules   map[string]*gbnfRule
	order   []string
	nesting int
	uses    []string
	usedAt  []int

	numbered []gbnfNumbered
}

func (p *gbnfParser) parse() error {
	for p.space(true); p.at < len(p.text); p.space(true) {
		name := p.name()
		if name == "" {
			return fmt.Errorf("want a rule %q, got %q; only GBNF is read, no Lark and no other notation", "name ::= …", p.rest())
		}
		p.space(true)
		if !strings.HasPrefix(p.text[p.at:], "::=") {
			return fmt.Errorf("want %q behind %q; only GBNF is read, no Lark and no other notation", "::=", name)
		}
		p.at += len("::=")
		p.space(true)
		if p.rules[name] != nil {
			return fmt.Errorf("the rule %q is there twice", name)
		}
		body, err := p.alternatives(false)
		if err != nil {
			return err
		}
		if p.at < len(p.text) && p.text[p.at] != '\n' && p.text[p.at] != '\r' {
			return fmt.Errorf("want the end of the line, got %q", p.rest())
		}
		p.rules[name] = &gbnfRule{name: name, body: body}
		p.order = append(p.order, name)
	}
	for i, name := range p.uses {
		if p.rules[name] == nil {
			p.at = p.usedAt[i]
			return fmt.Errorf("there is no rule named %q", name)
		}
	}
	return nil
}

func (p *gbnfParser) rest() string {
	rest, _, _ := strings.Cut(p.text[p.at:], "\n")
	return shorten(rest)
}

// space skips spaces and comments, and line ends where lines may.
func (p *gbnfParser) space(lines bool) {
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == ' ' || c == '\t':
			p.at++
		case c == '#':
			for p.at < len(p.text) && p.text[p.at] != '\n' && p.text[p.at] != '\r' {
				p.at++
			}
		case lines && (c == '\n' || c == '\r'):
			p.at++
		default:
			return
		}
	}
}

func wordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_'
}

func (p *gbnfParser) name() string {
	start := p.at
	for p.at < len(p.text) && wordByte(p.text[p.at]) {
		p.at++
	}
	return p.text[start:p.at]
}

func (p *gbnfParser) alternatives(nested bool) (*gbnfNode, error) {
	if p.nesting++; p.nesting > maxGrammarNesting {
		return nil, fmt.Errorf("groups nest deeper than %d", maxGrammarNesting)
	}
	defer func() { p.nesting-- }()
	var list []*gbnfNode
	for {
		sequence, err := p.sequence(nested)
		if err != nil {
			return nil, err
		}
		list = append(list, sequence)
		before := p.at
		p.space(true)
		if p.at >= len(p.text) || p.text[p.at] != '|' {
			if !nested {
				p.at = before
			}
			break
		}
		p.at++
		p.space(true)
	}
	if !nested || len(list) > 1 {
		if err := unrepeated(list); err != nil {
			return nil, err
		}
	}
	if len(list) == 1 {
		return list[0], nil
	}
	return &gbnfNode{kind: gbnfAlternatives, subs: list}, nil
}

// unrepeated refuses "any token but this one": how many characters a token has is not the grammar's, but any number of tokens is any text.
func unrepeated(list []*gbnfNode) error {
	for _, item := range list {
		if item.kind == gbnfOther {
			return fmt.Errorf("!%s: one token is not served; write it with * or + behind", item.text)
		}
	}
	return nil
}

func (p *gbnfParser) sequence(nested bool) (*gbnfNode, error) {
	var list []*gbnfNode
	for p.space(nested); p.at < len(p.text); p.space(nested) {
		item, err := p.item()
		if err != nil {
			return nil, err
		}
		if item == nil {
			break
		}
		if item, err = p.repeated(item); err != nil {
			return nil, err
		}
		list = append(list, item)
	}
	if len(list) == 1 {
		return list[0], nil
	}
	if err := unrepeated(list); err != nil {
		return nil, err
	}
	return &gbnfNode{kind: gbnfSequence, subs: list}, nil
}

// item is nil where there is none.
func (p *gbnfParser) item() (*gbnfNode, error) {
	switch c := p.text[p.at]; {
	case c == '"':
		p.at++
		return p.literal()
	case c == '[':
		p.at++
		return p.class()
	case c == '.':
		p.at++
		return &gbnfNode{kind: gbnfClass, negated: true}, nil
	case c == '(':
		p.at++
		group, err := p.alternatives(true)
		if err != nil {
			return nil, err
		}
		if p.at >= len(p.text) || p.text[p.at] != ')' {
			return nil, fmt.Errorf("want ')', got %q", p.rest())
		}
		p.at++
		return group, nil
	case c == '<' || c == '!':
		return p.token()
	case wordByte(c):
		start := p.at
		name := p.name()
		p.uses, p.usedAt = append(p.uses, name), append(p.usedAt, start)
		return &gbnfNode{kind: gbnfReference, text: name}, nil
	case c == '*' || c == '+' || c == '?' || c == '{':
		return nil, fmt.Errorf("nothing to repeat before %q", p.rest())
	}
	return nil, nil
}

func (p *gbnfParser) token() (*gbnfNode, error) {
	kind := gbnfToken
	if p.text[p.at] == '!' {
		kind = gbnfOther
		p.at++
	}
	end := strings.IndexByte(p.text[p.at:], '>')
	if p.at >= len(p.text) || p.text[p.at] != '<' || end < 2 || strings.ContainsAny(p.text[p.at:p.at+end], "\r\n") {
		return nil, fmt.Errorf("want a special token like <think>, got %q", p.rest())
	}
	n := &gbnfNode{kind: kind, text: p.text[p.at : p.at+end+1]}
	if number, ok := strings.CutPrefix(n.text, "<["); ok {
		number, closed := strings.CutSuffix(number, "]>")
		id, err := strconv.ParseUint(number, 10, 31)
		if !closed || err != nil {
			return nil, fmt.Errorf("%s: want the number of a token, like <[10]>", shorten(n.text))
		}
		p.numbered = append(p.numbered, gbnfNumbered{int32(id), n})
	}
	p.at += end + 1
	return n, nil
}

func (p *gbnfParser) repeated(item *gbnfNode) (*gbnfNode, error) {
	for p.at < len(p.text) {
		low, high := 0, -1
		switch p.text[p.at] {
		case '*':
		case '+':
			low = 1
		case '?':
			high = 1
		case '{':
			end := strings.IndexByte(p.text[p.at:], '}')
			if end < 0 {
				return nil, fmt.Errorf("want '}', got %q", p.rest())
			}
			first, second, comma := strings.Cut(p.text[p.at+1:p.at+end], ",")
			var err error
			if low, err = gbnfCount(first, 0); err != nil && comma && strings.TrimSpace(first) == "" {
				low, err = 0, nil
			}
			if err != nil {
				return nil, err
			}
			switch {
			case !comma:
				high = low
			case strings.TrimSpace(second) != "":
				if high, err = gbnfCount(second, low); err != nil {
					return nil, err
				}
			}
			p.at += end
		default:
			return item, nil
		}
		p.at++
		if item.kind == gbnfOther {
			if high >= 0 {
				return nil, fmt.Errorf("!%s cannot be counted; allowed behind it: * and +", item.text)
			}
			item = &gbnfNode{kind: gbnfClass, negated: true}
		}
		item = &gbnfNode{kind: gbnfRepeat, subs: []*gbnfNode{item}, low: low, high: high}
	}
	return item, nil
}

func gbnfCount(text string, least int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < least || n > ecma.MaxCount {
		return 0, fmt.Errorf("the count %q: want %d to %d", shorten(text), least, ecma.MaxCount)
	}
	return n, nil
}

func (p *gbnfParser) literal() (*gbnfNode, error) {
	var b strings.Builder
	for p.at < len(p.text) {
		if p.text[p.at] == '"' {
			p.at++
			return &gbnfNode{kind: gbnfText, text: b.String()}, nil
		}
		r, err := p.character()
		if err != nil {
			return nil, err
		}
		b.WriteRune(r)
	}
	return nil, fmt.Errorf("a literal does not end")
}

func (p *gbnfParser) class() (*gbnfNode, error) {
	n := &gbnfNode{kind: gbnfClass}
	if p.at < len(p.text) && p.text[p.at] == '^' {
		n.negated = true
		p.at++
	}
	for p.at < len(p.text) {
		if p.text[p.at] == ']' {
			p.at++
			return n, nil
		}
		low, err := p.character()
		if err != nil {
			return nil, err
		}
		high := low
		if p.at+1 < len(p.text) && p.text[p.at] == '-' && p.text[p.at+1] != ']' {
			p.at++
			if high, err = p.character(); err != nil {
				return nil, err
			}
			if high < low {
				return nil, fmt.Errorf("the range %c-%c ends before it begins", low, high)
			}
		}
		n.ranges = append(n.ranges, grammar.RuneRange{Lo: low, Hi: high})
	}
	return nil, fmt.Errorf("a class does not end")
}

// character reads one character of a literal or class.
func (p *gbnfParser) character() (rune, error) {
	if p.text[p.at] != '\\' {
		r, size := utf8.DecodeRuneInString(p.text[p.at:])
		p.at += size
		if r == utf8.RuneError && size == 1 {
			return 0, fmt.Errorf("the grammar is no UTF-8")
		}
		return r, nil
	}
	if p.at+1 >= len(p.text) {
		return 0, fmt.Errorf(`\ at the end`)
	}
	c := p.text[p.at+1]
	p.at += 2
	switch c {
	case 'n':
		return '\n', nil
	case 't':
		return '\t', nil
	case 'r':
		return '\r', nil
	case 'x':
		return p.hex(2)
	case 'u':
		return p.hex(4)
	case 'U':
		return p.hex(8)
	case '\\', '"', '[', ']', '\'', '-', '^', '/', '.':
		return rune(c), nil
	}
	return 0, fmt.Errorf(`unknown escape \%c; allowed: \n \t \r \xHH \uHHHH \UHHHHHHHH \\ \" \[ \]`, c)
}

func (p *gbnfParser) hex(digits int) (rune, error) {
	if p.at+digits > len(p.text) {
		return 0, fmt.Errorf("want %d hexadecimal digits", digits)
	}
	n, err := strconv.ParseUint(p.text[p.at:p.at+digits], 16, 32)
	if err != nil || n > utf8.MaxRune || !utf8.ValidRune(rune(n)) {
		return 0, fmt.Errorf("want %d hexadecimal digits of a code point", digits)
	}
	p.at += digits
	return rune(n), nil
}
