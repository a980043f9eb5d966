package jinja

import (
	"slices"
	"strings"
)

// parser builds the syntax tree by recursive descent; the grammar and its quirks are jinja2's.
type parser struct {
	tokens []token
	pos    int
	depth  int
	// open are the tags that are being parsed, for messages.
	open []string
}

func (p *parser) current() *token { return &p.tokens[p.pos] }

// look is the token behind the current one.
func (p *parser) look() *token { return &p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (p *parser) next() *token {
	t := p.current()
	if t.kind != tokenEOF {
		p.pos++
	}
	return t
}

func (p *parser) fail(format string, args ...any) { syntaxFault(p.current().line, format, args...) }

func (t *token) isOp(op string) bool     { return t.kind == tokenOperator && t.text == op }
func (t *token) isName(name string) bool { return t.kind == tokenName && t.text == name }

func (p *parser) skipOp(op string) bool {
	if p.current().isOp(op) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipName(name string) bool {
	if p.current().isName(name) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) expectOp(op string) *token {
	if !p.current().isOp(op) {
		p.fail("expected %q, got %v", op, p.current())
	}
	return p.next()
}

func (p *parser) expectName(name string) {
	if !p.skipName(name) {
		p.fail("expected %q, got %v", name, p.current())
	}
}

func (p *parser) expect(kind tokenKind) *token {
	if p.current().kind != kind {
		want := token{kind: kind}.String()
		if kind == tokenName {
			want = "a name"
		}
		p.fail("expected %s, got %v", want, p.current())
	}
	return p.next()
}

// nest bounds recursion; the caller must unnest.
func (p *parser) nest() {
	p.depth++
	if p.depth > maxNesting {
		p.fail("nested deeper than %d", maxNesting)
	}
}

func (p *parser) unnest() { p.depth-- }

// statements parses until a tag whose name is one of end, and leaves that name as the current token. Without end it parses to the end of the template.
func (p *parser) statements(end ...string) []stmt {
	p.nest()
	defer p.unnest()
	var body []stmt
	for {
		t := p.current()
		switch t.kind {
		case tokenData:
			p.next()
			body = append(body, &textStmt{position(t.line), t.text})
		case tokenVariableBegin:
			p.next()
			value := p.tuple(true, "")
			p.expect(tokenVariableEnd)
			body = append(body, &printStmt{position(t.line), value})
		case tokenBlockBegin:
			p.next()
			if t := p.current(); t.kind == tokenName && slices.Contains(end, t.text) {
				return body
			}
			body = append(body, p.statement(end))
			p.expect(tokenBlockEnd)
		default:
			if end != nil {
				p.fail("unexpected end of template inside %q: expected %s", p.open[len(p.open)-1], strings.Join(end, " or "))
			}
			return body
		}
	}
}

// block parses the end of an opening tag and its body up to one of the end tags, whose name it consumes and returns.
func (p *parser) block(end ...string) ([]stmt, string) {
	p.skipOp(":")
	p.expect(tokenBlockEnd)
	body := p.statements(end...)
	return body, p.next().text
}

func (p *parser) statement(end []string) stmt {
	tag := p.current()
	if tag.kind != tokenName {
		p.fail("tag name expected, got %v", tag)
	}
	p.open = append(p.open, tag.text)
	defer func() { p.open = p.open[:len(p.open)-1] }()
	at := position(tag.line)
	p.next()
	switch tag.text {
	case "for":
		return p.forTag(at)
	case "if":
		return p.ifTag(at)
	case "set":
		return p.setTag(at)
	case "print":
		return p.printTag(at)
	case "macro":
		name := p.expect(tokenName).text
		p.checkTarget(name)
		macro := &macroBody{}
		p.signature(macro)
		macro.body, _ = p.block("endmacro")
		return &macroStmt{position: at, name: name, macro: macro}
	case "call":
		macro := &macroBody{}
		if p.current().isOp("(") {
			p.signature(macro)
		}
		call, ok := p.expression().(*callExpr)
		if !ok {
			syntaxFault(tag.line, "expected a call")
		}
		macro.body, _ = p.block("endcall")
		return &callStmt{position: at, call: call, macro: macro}
	case "filter":
		filter := p.filters(nil, true)
		body, _ := p.block("endfilter")
		return &filterStmt{position: at, filter: filter.(*filterExpr), body: body}
	case "with":
		return p.withTag(at)
	case "generation":
		macro := &macroBody{}
		macro.body, _ = p.block("endgeneration")
		return &generationStmt{position: at, macro: macro}
	case "break":
		return &breakStmt{at}
	case "continue":
		return &continueStmt{at}
	case "extends", "include", "import", "from", "block", "autoescape":
		syntaxFault(tag.line, "tag %q is not supported: a chat template is one file of plain text", tag.text)
	}
	if len(end) > 0 {
		syntaxFault(tag.line, "unknown tag %q; expected %s or a statement", tag.text, strings.Join(end, ", "))
	}
	syntaxFault(tag.line, "unknown tag %q", tag.text)
	return nil
}

func (p *parser) forTag(at position) stmt {
	s := &forStmt{position: at, target: p.target(false, "in")}
	p.expectName("in")
	s.iterable = p.tuple(false, "recursive")
	if p.skipName("if") {
		s.test = p.expression()
	}
	s.recursive = p.skipName("recursive")
	var end string
	if s.body, end = p.block("endfor", "else"); end == "else" {
		s.otherwise, _ = p.block("endfor")
	}
	return s
}

func (p *parser) ifTag(at position) stmt {
	s := &ifStmt{position: at}
	for {
		s.tests = append(s.tests, p.tuple(false, ""))
		body, end := p.block("elif", "else", "endif")
		s.bodies = append(s.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			s.otherwise, _ = p.block("endif")
		}
		return s
	}
}

func (p *parser) setTag(at position) stmt {
	target := p.target(true, "")
	if p.skipOp("=") {
		return &setStmt{position: at, target: target, value: p.tuple(true, "")}
	}
	s := &setBlockStmt{position: at, target: target}
	if p.current().isOp("|") {
		s.filter = p.filters(nil, false).(*filterExpr)
	}
	s.body, _ = p.block("endset")
	return s
}

// printTag is {% print a, b %}.
func (p *parser) printTag(at position) stmt {
	var parts []expr
	for p.current().kind != tokenBlockEnd {
		if parts != nil {
			p.expectOp(",")
		}
		parts = append(parts, p.expression())
	}
	return &printStmt{at, &concatExpr{at, parts}}
}

func (p *parser) withTag(at position) stmt {
	s := &withStmt{position: at}
	for p.current().kind != tokenBlockEnd {
		if s.targets != nil {
			p.expectOp(",")
		}
		s.targets = append(s.targets, p.target(false, ""))
		p.expectOp("=")
		s.values = append(s.values, p.expression())
	}
	s.body, _ = p.block("endwith")
	return s
}

// signature parses the parameters of a macro or call block.
func (p *parser) signature(m *macroBody) {
	p.expectOp("(")
	for !p.current().isOp(")") {
		if m.params != nil {
			p.expectOp(",")
		}
		name := p.expect(tokenName).text
		p.checkTarget(name)
		if slices.Contains(m.params, name) {
			p.fail("duplicate parameter %q", name)
		}
		if len(m.params) == maxNames {
			p.fail("more than %d parameters", maxNames)
		}
		if p.skipOp("=") {
			m.defaults = append(m.defaults, p.expression())
		} else if m.defaults != nil {
			p.fail("parameter %q without a default follows one with a default", name)
		}
		m.params = append(m.params, name)
	}
	p.next()
}

func (p *parser) checkTarget(name string) {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		p.fail("cannot assign to %q", name)
	}
}

// target parses what stands left of "=" in set and with, or of "in" in for: a name, names in parentheses, names with commas, or ns.attr in set.
func (p *parser) target(withNamespace bool, endName string) expr {
	line := p.current().line
	one := func() expr {
		if t := p.current(); withNamespace && t.kind == tokenName && p.look().isOp(".") {
			p.next()
			p.next()
			return &attrTarget{position: position(t.line), name: t.text, attr: p.expect(tokenName).text}
		}
		return p.primary()
	}
	target := p.commaList(one, endName, false)
	p.checkAssignable(target, line)
	return target
}

func (p *parser) checkAssignable(e expr, line int) {
	switch e := e.(type) {
	case *nameExpr, *attrTarget:
	case *tupleExpr:
		for _, item := range e.items {
			p.checkAssignable(item, line)
		}
	default:
		syntaxFault(line, "cannot assign to this expression")
	}
}
