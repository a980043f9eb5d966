package jinja

import (
	"slices"
	"strings"
)

func (p *parser) at() position { return position(p.current().line) }

// expression parses a full expression, inline if included.
func (p *parser) expression() expr {
	p.nest()
	defer p.unnest()
	at := p.at()
	e := p.or()
	for n := 0; p.skipName("if"); n++ {
		p.chain(n)
		test := p.or()
		var otherwise expr
		if p.skipName("else") {
			otherwise = p.expression()
		}
		e = &condExpr{at, test, e, otherwise}
		at = p.at()
	}
	return e
}

// tuple parses an expression, or several with commas, which make a tuple. withCondition allows inline if at the top; endName is a name that ends the list.
func (p *parser) tuple(withCondition bool, endName string) expr {
	one := p.or
	if withCondition {
		one = p.expression
	}
	return p.commaList(one, endName, false)
}

func (p *parser) commaList(one func() expr, endName string, parenthesised bool) expr {
	at := p.at()
	var items []expr
	isTuple := false
	for {
		if items != nil {
			p.expectOp(",")
		}
		t := p.current()
		if t.kind == tokenVariableEnd || t.kind == tokenBlockEnd || t.isOp(")") || endName != "" && t.isName(endName) {
			break
		}
		items = append(items, one())
		if !p.current().isOp(",") {
			break
		}
		isTuple = true
	}
	if !isTuple {
		if items != nil {
			return items[0]
		}
		if !parenthesised {
			p.fail("expected an expression, got %v", p.current())
		}
	}
	return &tupleExpr{at, items}
}

func (p *parser) or() expr {
	at := p.at()
	left := p.and()
	for n := 0; p.skipName("or"); n++ {
		left = &logicExpr{at, true, left, p.and()}
		at = p.at()
		p.chain(n)
	}
	return left
}

func (p *parser) and() expr {
	at := p.at()
	left := p.not()
	for n := 0; p.skipName("and"); n++ {
		left = &logicExpr{at, false, left, p.not()}
		at = p.at()
		p.chain(n)
	}
	return left
}

func (p *parser) not() expr {
	if at := p.at(); p.skipName("not") {
		p.nest()
		defer p.unnest()
		return &notExpr{at, p.not()}
	}
	return p.compare()
}

var comparisons = []string{"==", "!=", "<", "<=", ">", ">="}

func (p *parser) compare() expr {
	e := &compareExpr{position: p.at(), first: p.sum()}
	for {
		t := p.current()
		var op string
		switch {
		case t.kind == tokenOperator && slices.Contains(comparisons, t.text):
			op = t.text
			p.next()
		case p.skipName("in"):
			op = "in"
		case t.isName("not") && p.look().isName("in"):
			p.next()
			p.next()
			op = "not in"
		default:
			if e.ops == nil {
				return e.first
			}
			return e
		}
		e.ops = append(e.ops, op)
		e.rest = append(e.rest, p.sum())
	}
}

// binary parses a left-associative series of operators.
func (p *parser) binary(operand func() expr, ops ...string) expr {
	at := p.at()
	left := operand()
	for n := 0; ; n++ {
		t := p.current()
		if t.kind != tokenOperator || !slices.Contains(ops, t.text) {
			return left
		}
		p.next()
		left = &binaryExpr{at, t.text, left, operand()}
		at = p.at()
		p.chain(n)
	}
}

func (p *parser) sum() expr     { return p.binary(p.concat, "+", "-") }
func (p *parser) product() expr { return p.binary(p.power, "*", "/", "//", "%") }

// power is left-associative in jinja2, unlike in Python, and a sign binds tighter.
func (p *parser) power() expr { return p.binary(func() expr { return p.unary(true) }, "**") }

// concat binds tighter than "+".
func (p *parser) concat() expr {
	at := p.at()
	parts := []expr{p.product()}
	for p.skipOp("~") {
		parts = append(parts, p.product())
	}
	if len(parts) == 1 {
		return parts[0]
	}
	return &concatExpr{at, parts}
}

func (p *parser) unary(withFilter bool) expr {
	p.nest()
	defer p.unnest()
	at := p.at()
	var e expr
	switch {
	case p.skipOp("-"):
		e = &signExpr{at, true, p.unary(false)}
	case p.skipOp("+"):
		e = &signExpr{at, false, p.unary(false)}
	default:
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilter {
		e = p.filterOrTest(e)
	}
	return e
}

func (p *parser) primary() expr {
	p.nest()
	defer p.unnest()
	at := p.at()
	t := p.current()
	switch {
	case t.kind == tokenName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constExpr{at, Bool(true)}
		case "false", "False":
			return &constExpr{at, Bool(false)}
		case "none", "None":
			return &constExpr{at, None}
		}
		return &nameExpr{position: at, name: t.text}
	case t.kind == tokenString:
		var text strings.Builder
		for p.current().kind == tokenString {
			text.WriteString(p.next().text)
		}
		return &constExpr{at, Str(text.String())}
	case t.kind == tokenNumber:
		p.next()
		return &constExpr{at, t.value}
	case p.skipOp("("):
		e := p.commaList(p.expression, "", true)
		p.expectOp(")")
		return e
	case p.skipOp("["):
		e := &listExpr{position: at}
		for !p.current().isOp("]") {
			if e.items != nil {
				p.expectOp(",")
				if p.current().isOp("]") {
					break
				}
			}
			e.items = append(e.items, p.expression())
		}
		p.next()
		return e
	case p.skipOp("{"):
		e := &dictExpr{position: at}
		for !p.current().isOp("}") {
			if e.keys != nil {
				p.expectOp(",")
				if p.current().isOp("}") {
					break
				}
			}
			e.keys = append(e.keys, p.expression())
			p.expectOp(":")
			e.values = append(e.values, p.expression())
		}
		p.next()
		return e
	}
	p.fail("unexpected %v", t)
	return nil
}

// postfix parses attributes, subscripts and calls behind e.
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		at := p.at()
		switch {
		case p.skipOp("."):
			t := p.next()
			switch {
			case t.kind == tokenName:
				e = &attrExpr{at, e, t.text}
			case t.kind == tokenNumber && !isFloat(t.value):
				e = &itemExpr{at, e, &constExpr{at, t.value}}
			default:
				syntaxFault(t.line, "expected a name or number, got %v", t)
			}
		case p.skipOp("["):
			e = &itemExpr{at, e, p.subscript()}
		case p.current().isOp("("):
			e = p.call(e)
		default:
			return e
		}
		p.chain(n)
	}
}

// chain bounds a series of operators or postfixes, whose tree is as deep as the series is long.
func (p *parser) chain(n int) {
	if n > maxChain {
		p.fail("more than %d operators in a series", maxChain)
	}
}

func isFloat(v Value) bool {
	_, ok := v.(Float)
	return ok
}

func (p *parser) subscript() expr {
	at := p.at()
	var items []expr
	for !p.current().isOp("]") {
		if items != nil {
			p.expectOp(",")
		}
		items = append(items, p.subscriptItem())
	}
	p.next()
	if len(items) == 1 {
		return items[0]
	}
	return &tupleExpr{at, items}
}

func (p *parser) subscriptItem() expr {
	s := &sliceExpr{position: p.at()}
	if !p.current().isOp(":") {
		s.start = p.expression()
		if !p.current().isOp(":") {
			return s.start
		}
	}
	p.next()
	part := func() expr {
		if t := p.current(); t.isOp(":") || t.isOp("]") || t.isOp(",") {
			return nil
		}
		return p.expression()
	}
	s.stop = part()
	if p.skipOp(":") {
		s.step = part()
	}
	return s
}

func (p *parser) call(function expr) expr {
	at := p.at()
	return &callExpr{position: at, function: function, arguments: p.arguments()}
}

func (p *parser) arguments() arguments {
	line := p.expectOp("(").line
	var a arguments
	ensure := func(ok bool) {
		if !ok {
			syntaxFault(line, "invalid order of call arguments")
		}
	}
	for first := true; !p.current().isOp(")"); first = false {
		if !first {
			p.expectOp(",")
			if p.current().isOp(")") {
				break
			}
		}
		t := p.current()
		switch {
		case p.skipOp("*"):
			ensure(a.starArgs == nil && a.starKeys == nil)
			a.starArgs = p.expression()
		case p.skipOp("**"):
			ensure(a.starKeys == nil)
			a.starKeys = p.expression()
		case t.kind == tokenName && p.look().isOp("="):
			ensure(a.starKeys == nil)
			p.next()
			p.next()
			if slices.Contains(a.names, t.text) {
				syntaxFault(line, "keyword argument repeated: %s", t.text)
			}
			if len(a.names) == maxNames {
				syntaxFault(line, "more than %d keyword arguments", maxNames)
			}
			a.names = append(a.names, t.text)
			a.values = append(a.values, p.expression())
		default:
			ensure(a.starArgs == nil && a.starKeys == nil && a.names == nil)
			a.args = append(a.args, p.expression())
		}
	}
	p.next()
	return a
}

// filterOrTest parses "|filter", "is test" and calls behind e.
func (p *parser) filterOrTest(e expr) expr {
	for n := 0; ; n++ {
		switch t := p.current(); {
		case t.isOp("|"):
			e = p.filters(e, false)
		case t.isName("is"):
			e = p.isTest(e)
		case t.isOp("("):
			e = p.call(e)
		default:
			return e
		}
		p.chain(n)
	}
}

func (p *parser) dottedName() string {
	name := p.expect(tokenName).text
	for n := 0; p.skipOp("."); n++ {
		p.chain(n)
		name += "." + p.expect(tokenName).text
	}
	return name
}

// filters parses a series of filters on e; bare means that the first has no "|" before it, as in a filter block.
func (p *parser) filters(e expr, bare bool) expr {
	for n := 0; bare || p.skipOp("|"); n++ {
		bare = false
		f := &filterExpr{position: p.at(), operand: e, name: p.dottedName()}
		if p.current().isOp("(") {
			f.arguments = p.arguments()
		}
		e = f
		p.chain(n)
	}
	return e
}

func (p *parser) isTest(e expr) expr {
	at := position(p.next().line)
	negated := p.skipName("not")
	t := &testExpr{position: at, operand: e, name: p.dottedName()}
	switch c := p.current(); {
	case c.isOp("("):
		t.arguments = p.arguments()
	case c.kind == tokenString, c.kind == tokenNumber, c.isOp("["), c.isOp("{"),
		c.kind == tokenName && c.text != "else" && c.text != "or" && c.text != "and":
		if c.isName("is") {
			p.fail("tests cannot be chained with is")
		}
		t.args = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{at, t}
	}
	return t
}
