package jinja

// activation holds the variables of one call of a function; nil is a variable without a value.
type activation struct {
	vars   []Value
	parent *activation
}

func (r *run) newActivation(f *function, parent *activation) *activation {
	r.alloc(objectBytes + valueBytes*len(f.slots))
	return &activation{vars: make([]Value, len(f.slots)), parent: parent}
}

func (a *activation) at(f ref) *Value {
	for range f.hops {
		a = a.parent
	}
	return &a.vars[f.slot]
}

// enterFrame carries out the loads of a scope.
func (r *run) enterFrame(a *activation, f *frame) {
	r.work(len(f.loads))
	for _, l := range f.loads {
		switch l.kind {
		case loadUndefined:
			a.vars[l.slot] = nil
		case loadResolve:
			a.vars[l.slot] = r.resolve(l.name)
		case loadAlias:
			a.vars[l.slot] = *a.at(l.from)
		}
	}
}

// leaveFrame clears a scope's variables, so that functions that captured them find them undefined, as in jinja2.
func leaveFrame(a *activation, f *frame) {
	for _, l := range f.loads {
		a.vars[l.slot] = nil
	}
}

// resolve looks a name up among the variables given to Render and the globals; nil where it is in neither.
func (r *run) resolve(name string) Value {
	if v, ok := r.vars.Get(name); ok {
		return v
	}
	if v, ok := r.globals.Get(name); ok {
		return v
	}
	return nil
}

// flow is how a body ended.
type flow int

const (
	flowNext flow = iota
	flowBreak
	flowContinue
)

func (r *run) exec(body []stmt, a *activation) flow {
	r.descend()
	defer r.ascend()
	for _, st := range body {
		r.step()
		if f := r.execOne(st, a); f != flowNext {
			return f
		}
	}
	return flowNext
}

func (r *run) execOne(st stmt, a *activation) flow {
	r.at = st
	switch st := st.(type) {
	case *textStmt:
		r.write(st.text)
	case *printStmt:
		v := r.eval(st.value, a)
		r.at = st
		r.write(r.toStr(v))
	case *ifStmt:
		for i, test := range st.tests {
			if truth(r.eval(test, a)) {
				return r.exec(st.bodies[i], a)
			}
		}
		return r.exec(st.otherwise, a)
	case *forStmt:
		return r.execFor(st, a)
	case *setStmt:
		r.checkNamespaces(st.bound, a)
		r.assign(st.bound, a, r.eval(st.value, a))
	case *setBlockStmt:
		return r.execCaptured(st.body, st.frame, a, func(text Value) {
			if st.filter != nil {
				text = r.applyFilters(st.filter, text, a)
			}
			r.assign(st.bound, a, text)
		})
	case *filterStmt:
		return r.execCaptured(st.body, st.frame, a, func(text Value) {
			r.writeText(r.applyFilters(st.filter, text, a))
		})
	case *macroStmt:
		r.alloc(objectBytes)
		r.assign(st.bound, a, &macro{name: st.name, body: st.macro, closure: a})
	case *callStmt:
		caller := &macro{body: st.macro, closure: a}
		r.writeText(r.evalCall(st.call, a, caller))
	case *generationStmt:
		r.writeText((&macro{body: st.macro, closure: a}).call(r, callArgs{}))
	case *withStmt:
		r.enterFrame(a, st.frame)
		for i, value := range st.values {
			r.assign(st.bound[i], a, r.eval(value, a))
		}
		f := r.exec(st.body, a)
		leaveFrame(a, st.frame)
		return f
	case *breakStmt:
		return flowBreak
	case *continueStmt:
		return flowContinue
	}
	return flowNext
}

// writeText writes the result of a filter block or call block, which must be text.
func (r *run) writeText(v Value) {
	s, ok := text(v)
	if !ok {
		throw(typeError, "expected str instance, %s found", v.TypeName())
	}
	r.write(s)
}

// execCaptured runs body into a buffer and hands the text on; a break or continue inside leaves without doing so.
func (r *run) execCaptured(body []stmt, f *frame, a *activation, use func(Value)) flow {
	r.enterFrame(a, f)
	var end flow
	text := r.capture(func() { end = r.exec(body, a) })
	if end != flowNext {
		return end
	}
	use(Str(text))
	leaveFrame(a, f)
	return flowNext
}

func (r *run) execFor(st *forStmt, a *activation) flow {
	if !st.recursive {
		return r.loop(st, a, r.eval(st.iterable, a), 0, nil)
	}
	items := r.eval(st.iterable, a)
	var recurse func(items Value, depth0 int) Value
	recurse = func(items Value, depth0 int) Value {
		r.enter()
		defer r.leave()
		inner := r.newActivation(st.recursiveFunction, a)
		return Str(r.capture(func() { r.loop(st, inner, items, depth0, recurse) }))
	}
	r.writeText(recurse(items, 0))
	return flowNext
}

func (r *run) loop(st *forStmt, a *activation, items Value, depth0 int, recurse func(Value, int) Value) flow {
	next := r.iterate(items)
	if st.test != nil {
		next = r.filtered(st, a, next)
		items = &generator{name: "generator", next: next}
	}
	r.alloc(4 * objectBytes)
	l := &loopContext{r: r, iterable: items, next: next, index: -1, known: -1, depth0: depth0, recurse: recurse}
	// As in jinja2, else also runs where every turn was left by break or continue.
	completed := false
	for item, ok := l.advance(); ok; item, ok = l.advance() {
		r.at = st
		r.step()
		*a.at(st.loopSlot) = l
		r.assign(st.bodyTarget, a, item)
		r.enterFrame(a, st.bodyFrame)
		switch r.exec(st.body, a) {
		case flowNext:
			completed = true
			continue
		case flowContinue:
			continue
		}
		break
	}
	leaveFrame(a, st.bodyFrame)
	if st.otherwise != nil && !completed {
		r.enterFrame(a, st.elseFrame)
		f := r.exec(st.otherwise, a)
		leaveFrame(a, st.elseFrame)
		return f
	}
	return flowNext
}

// filtered is the items of a loop for which its test holds. They are tested when the loop asks for them, with variables of their own.
func (r *run) filtered(st *forStmt, a *activation, next func() (Value, bool)) func() (Value, bool) {
	var inner *activation
	return func() (Value, bool) {
		if inner == nil {
			inner = r.newActivation(st.testFunction, a)
			r.enterFrame(inner, st.testFrame)
		}
		for item, ok := next(); ok; item, ok = next() {
			r.assign(st.testTarget, inner, item)
			if truth(r.eval(st.test, inner)) {
				return item, true
			}
		}
		return nil, false
	}
}

// checkNamespaces refuses ns.attr targets on anything but namespaces, before the value is evaluated.
func (r *run) checkNamespaces(t target, a *activation) {
	for _, item := range t.items {
		r.checkNamespaces(item, a)
	}
	if t.attr == "" {
		return
	}
	if _, ok := (*a.at(t.ref)).(*namespace); !ok {
		throw(runtimeError, "cannot assign attribute on non-namespace object")
	}
}

func (r *run) assign(t target, a *activation, v Value) {
	switch {
	case t.tuple:
		r.unpack(t.items, a, v)
	case t.attr != "":
		ns, ok := (*a.at(t.ref)).(*namespace)
		if !ok {
			throw(runtimeError, "cannot assign attribute on non-namespace object")
		}
		r.alloc(entryBytes)
		ns.set(t.attr, v)
	default:
		*a.at(t.ref) = v
	}
}

func (r *run) unpack(targets []target, a *activation, v Value) {
	next, ok := r.iterator(v)
	if !ok {
		throw(typeError, "cannot unpack non-iterable %s object", v.TypeName())
	}
	var values []Value
	for item, ok := next(); ok; item, ok = next() {
		if len(values) == len(targets) {
			throw(valueError, "too many values to unpack (expected %d)", len(targets))
		}
		r.alloc(valueBytes)
		values = append(values, item)
	}
	if len(values) < len(targets) {
		throw(valueError, "not enough values to unpack (expected %d, got %d)", len(targets), len(values))
	}
	for i, t := range targets {
		r.assign(t, a, values[i])
	}
}
