package jinja

import (
	"slices"
)

// resolver walks the tree once, gives every scope its frame and every name its ref, and looks up filters and tests.
type resolver struct {
	inLoop bool
}

// target is where an assignment goes: exactly one of its shapes.
type target struct {
	ref ref
	// attr is set for ns.attr; ref is the namespace.
	attr  string
	items []target
	tuple bool
}

// scope is a scope being resolved. soft is true inside an if: there an unknown filter or test is an error only when it is reached.
type scope struct {
	*symbols
	soft bool
}

func (sc scope) inner(f *function) scope {
	return scope{symbols: newSymbols(sc.symbols, f)}
}

func (sc scope) softened() scope { return scope{sc.symbols, true} }

func (v *resolver) template(body []stmt) (*function, *frame) {
	f := newFunction(nil)
	sc := scope{symbols: newSymbols(nil, f)}
	sc.visitBody(body)
	v.body(body, sc)
	return f, sc.frame()
}

func (v *resolver) body(body []stmt, sc scope) {
	for _, st := range body {
		v.statement(st, sc)
	}
}

func (v *resolver) statement(st stmt, sc scope) {
	switch st := st.(type) {
	case *printStmt:
		v.expr(st.value, sc)
	case *ifStmt:
		soft := sc.softened()
		for i, test := range st.tests {
			v.expr(test, soft)
			v.body(st.bodies[i], soft)
		}
		v.body(st.otherwise, soft)
	case *forStmt:
		v.loop(st, sc)
	case *setStmt:
		v.expr(st.value, sc)
		st.bound = v.target(st.target, sc)
	case *setBlockStmt:
		inner := sc.inner(sc.function)
		inner.visitBody(st.body)
		v.body(st.body, inner)
		if st.filter != nil {
			v.expr(st.filter, inner)
		}
		st.frame = inner.frame()
		st.bound = v.target(st.target, sc)
	case *macroStmt:
		v.macro(st.macro, sc)
		st.bound = target{ref: sc.ref(st.name)}
	case *callStmt:
		v.macro(st.macro, sc)
		v.expr(st.call, sc)
	case *generationStmt:
		v.macro(st.macro, sc)
	case *filterStmt:
		inner := sc.inner(sc.function)
		inner.visitBody(st.body)
		inner.visitExpr(st.filter)
		v.body(st.body, inner)
		v.expr(st.filter, inner)
		st.frame = inner.frame()
	case *withStmt:
		inner := sc.inner(sc.function)
		for _, t := range st.targets {
			inner.visitTarget(t, true)
		}
		inner.visitBody(st.body)
		for i, t := range st.targets {
			v.expr(st.values[i], sc)
			st.bound = append(st.bound, v.target(t, inner))
		}
		v.body(st.body, inner)
		st.frame = inner.frame()
	case *breakStmt:
		v.checkLoop(st.lineNo(), "break")
	case *continueStmt:
		v.checkLoop(st.lineNo(), "continue")
	}
}

func (v *resolver) checkLoop(line int, tag string) {
	if !v.inLoop {
		syntaxFault(line, "'%s' outside loop", tag)
	}
}

func (v *resolver) loop(st *forStmt, sc scope) {
	if assignsLoop(st, sc.analysis) {
		syntaxFault(st.lineNo(), "cannot assign to the special loop variable inside a for loop")
	}
	f := sc.function
	if st.recursive {
		f = newFunction(f)
		st.recursiveFunction = f
	}
	inner := sc.inner(f)
	loopPlace := inner.parameter("loop")
	inner.visitTarget(st.target, true)
	inner.visitBody(st.body)

	if st.test != nil {
		st.testFunction = newFunction(f)
		test := sc.inner(st.testFunction)
		test.visitTarget(st.target, true)
		test.visitExpr(st.test)
		v.expr(st.test, test)
		st.testTarget = v.target(st.target, test)
		st.testFrame = test.frame()
	}
	st.loopSlot = refFrom(f, loopPlace)
	st.bodyTarget = v.target(st.target, inner)
	v.expr(st.iterable, sc)

	outer := v.inLoop
	v.inLoop = true
	v.body(st.body, inner)
	v.inLoop = outer && !st.recursive
	st.bodyFrame = inner.frame()

	if st.otherwise != nil {
		other := sc.inner(f)
		other.visitBody(st.otherwise)
		v.body(st.otherwise, other)
		st.elseFrame = other.frame()
	}
	v.inLoop = outer
}

func (v *resolver) macro(m *macroBody, sc scope) {
	outer := v.inLoop
	v.inLoop = false
	defer func() { v.inLoop = outer }()
	m.function = newFunction(sc.function)
	inner := sc.inner(m.function)
	for _, name := range m.params {
		inner.parameter(name)
	}
	inner.visitExprs(m.defaults)
	inner.visitBody(m.body)
	for _, name := range m.params {
		m.slots = append(m.slots, inner.ref(name))
	}
	free := freeNames(m.body, sc.analysis, "caller", "kwargs", "varargs")
	special := func(name string) ref { return refFrom(m.function, inner.parameter(name)) }
	if free["caller"] {
		m.wantsCaller = true
		if i := slices.Index(m.params, "caller"); i >= 0 {
			if i < len(m.params)-len(m.defaults) {
				syntaxFault(1, `the special parameter "caller" of a macro must have a default`)
			}
		} else {
			m.callerSlot = special("caller")
		}
	}
	if free["kwargs"] && !slices.Contains(m.params, "kwargs") {
		m.wantsKeywords = true
		m.keywordsSlot = special("kwargs")
	}
	if free["varargs"] && !slices.Contains(m.params, "varargs") {
		m.wantsPositional = true
		m.positionalSlot = special("varargs")
	}
	for _, e := range m.defaults {
		v.expr(e, inner)
	}
	v.body(m.body, inner)
	m.frame = inner.frame()
}

func (v *resolver) target(e expr, sc scope) target {
	switch e := e.(type) {
	case *nameExpr:
		return target{ref: sc.ref(e.name)}
	case *attrTarget:
		return target{ref: sc.ref(e.name), attr: e.attr}
	}
	t := target{tuple: true}
	for _, item := range e.(*tupleExpr).items {
		t.items = append(t.items, v.target(item, sc))
	}
	return t
}

func (v *resolver) expr(e expr, sc scope) {
	switch e := e.(type) {
	case nil:
		return
	case *nameExpr:
		e.ref = sc.ref(e.name)
		return
	case *condExpr:
		sc = sc.softened()
	case *filterExpr:
		e.filter = filters[e.name]
		if e.filter == nil && !sc.soft {
			syntaxFault(e.lineNo(), "no filter named %q", e.name)
		}
	case *testExpr:
		e.test = tests[e.name]
		if e.test == nil && !sc.soft {
			syntaxFault(e.lineNo(), "no test named %q", e.name)
		}
	}
	for _, child := range children(e) {
		v.expr(child, sc)
	}
}

// walker visits a whole body, scopes included, in the order in which it is written.
type walker struct {
	// read and assigned are called for each name; either may be nil.
	read, assigned func(name string)
	analysis       *analysis
}

func (w walker) expr(e expr) {
	w.analysis.spend(1)
	switch e := e.(type) {
	case nil:
	case *nameExpr:
		w.read(e.name)
	default:
		for _, child := range children(e) {
			w.expr(child)
		}
	}
}

func (w walker) target(e expr) {
	switch e := e.(type) {
	case *nameExpr:
		w.assigned(e.name)
	case *tupleExpr:
		for _, item := range e.items {
			w.target(item)
		}
	}
}

func (w walker) macro(m *macroBody) {
	for _, name := range m.params {
		w.assigned(name)
	}
	for _, e := range m.defaults {
		w.expr(e)
	}
	w.body(m.body)
}

func (w walker) body(body []stmt) {
	for _, st := range body {
		w.analysis.spend(1)
		switch st := st.(type) {
		case *printStmt:
			w.expr(st.value)
		case *ifStmt:
			for i, test := range st.tests {
				w.expr(test)
				w.body(st.bodies[i])
			}
			w.body(st.otherwise)
		case *forStmt:
			w.target(st.target)
			w.expr(st.iterable)
			w.body(st.body)
			w.body(st.otherwise)
			w.expr(st.test)
		case *setStmt:
			w.target(st.target)
			w.expr(st.value)
		case *setBlockStmt:
			w.target(st.target)
			if st.filter != nil {
				w.expr(st.filter)
			}
			w.body(st.body)
		case *macroStmt:
			w.macro(st.macro)
		case *callStmt:
			w.expr(st.call)
			w.macro(st.macro)
		case *generationStmt:
			w.macro(st.macro)
		case *filterStmt:
			w.body(st.body)
			w.expr(st.filter)
		case *withStmt:
			for _, t := range st.targets {
				w.target(t)
			}
			for _, e := range st.values {
				w.expr(e)
			}
			w.body(st.body)
		}
	}
}

// freeNames tells which of names body reads before it assigns them, in the order of the text.
func freeNames(body []stmt, a *analysis, names ...string) map[string]bool {
	free, hidden := map[string]bool{}, map[string]bool{}
	walker{
		read: func(name string) {
			if slices.Contains(names, name) && !hidden[name] {
				free[name] = true
			}
		},
		assigned: func(name string) { hidden[name] = true },
		analysis: a,
	}.body(body)
	return free
}

func assignsLoop(st *forStmt, a *analysis) bool {
	found := false
	walker{read: func(string) {}, assigned: func(name string) { found = found || name == "loop" }, analysis: a}.body([]stmt{st})
	return found
}
