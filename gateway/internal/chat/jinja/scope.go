package jinja

import (
	"maps"
	"slices"
)

// Scoping. jinja2 compiles a template to Python functions and decides there, by looking at whole bodies before it emits them, which Python variable
// each name is. What follows from it is visible to templates (a name that a body sets anywhere is the body's own from its first line on; a loop
// starts each turn with the outer value; a macro sees later changes of what it captured), so the same analysis is made here, with the same three
// notions: a function (a body that Python would give its own local variables), a frame (a scope inside a function), and per frame the loads that are
// carried out when it is entered.

// function is the root, a macro, the body of a call block, the filter of a loop, or a recursive loop. Its variables live in slots of one activation.
type function struct {
	parent *function
	depth  int
	slots  map[slotName]int
}

// slotName: scopes of the same level in one function share the variable of a name, as they would share the Python identifier.
type slotName struct {
	level int
	name  string
}

func newFunction(parent *function) *function {
	f := &function{parent: parent, slots: map[slotName]int{}}
	if parent != nil {
		f.depth = parent.depth + 1
	}
	return f
}

// ref is a variable seen from a function: hops activations up, then slot.
type ref struct{ hops, slot int }

type loadKind int

const (
	// loadNothing is for parameters: whoever enters the frame has set them.
	loadNothing loadKind = iota
	// loadUndefined clears the variable.
	loadUndefined
	// loadResolve takes the value from what the caller of Render gave, or from the globals.
	loadResolve
	// loadAlias copies the variable of an outer frame.
	loadAlias
)

// load is one instruction of entering a frame.
type load struct {
	kind loadKind
	slot int
	name string
	from ref
}

// frame is what the interpreter needs of a scope.
type frame struct {
	loads []load
}

// place is a variable of a function.
type place struct {
	function *function
	slot     int
}

// symbols is the analysis of one scope.
type symbols struct {
	parent   *symbols
	function *function
	level    int
	refs     map[string]place
	loads    map[place]pendingLoad
	stores   map[string]bool
	analysis *analysis
}

// analysis counts the work of analysing one template.
type analysis struct{ work int }

func (a *analysis) spend(n int) {
	if a.work += n; a.work > maxAnalysis {
		panic(&fault{class: limitError, message: "the template has too many names, conditions and loops within each other"})
	}
}

type pendingLoad struct {
	kind loadKind
	name string
	from place
}

func newSymbols(parent *symbols, f *function) *symbols {
	s := &symbols{parent: parent, function: f, refs: map[string]place{}, loads: map[place]pendingLoad{}, stores: map[string]bool{}, analysis: &analysis{}}
	if parent != nil {
		s.analysis = parent.analysis
		s.level = parent.level + 1
	}
	return s
}

// branch copies s for one branch of an if.
func (s *symbols) branch() *symbols {
	s.analysis.spend(8 + len(s.refs) + len(s.loads) + len(s.stores))
	c := *s
	c.refs, c.loads, c.stores = maps.Clone(s.refs), maps.Clone(s.loads), maps.Clone(s.stores)
	return &c
}

func (s *symbols) define(name string, l pendingLoad) place {
	key := slotName{s.level, name}
	slot, ok := s.function.slots[key]
	if !ok {
		slot = len(s.function.slots)
		s.function.slots[key] = slot
	}
	p := place{s.function, slot}
	s.refs[name] = p
	s.loads[p] = l
	return p
}

func (s *symbols) find(name string) (place, bool) {
	for ; s != nil; s = s.parent {
		s.analysis.spend(1)
		if p, ok := s.refs[name]; ok {
			return p, true
		}
	}
	return place{}, false
}

func (s *symbols) load(name string) {
	if _, ok := s.find(name); !ok {
		s.define(name, pendingLoad{kind: loadResolve, name: name})
	}
}

func (s *symbols) store(name string) {
	s.stores[name] = true
	if _, ok := s.refs[name]; ok {
		return
	}
	if outer, ok := s.parent.find(name); ok {
		s.define(name, pendingLoad{kind: loadAlias, from: outer})
		return
	}
	s.define(name, pendingLoad{kind: loadUndefined})
}

func (s *symbols) parameter(name string) place {
	s.stores[name] = true
	return s.define(name, pendingLoad{kind: loadNothing})
}

// merge takes up the branches of an if. A name that only some of them set keeps its outer value in the others.
func (s *symbols) merge(branches ...*symbols) {
	set := map[string]bool{}
	for _, b := range branches {
		s.analysis.spend(len(b.refs) + len(b.loads) + len(b.stores))
		for name := range b.stores {
			if !s.stores[name] {
				set[name] = true
			}
		}
	}
	for _, b := range branches {
		maps.Copy(s.refs, b.refs)
		maps.Copy(s.loads, b.loads)
		maps.Copy(s.stores, b.stores)
	}
	for name := range set {
		p := s.refs[name]
		if outer, ok := s.parent.find(name); ok {
			s.loads[p] = pendingLoad{kind: loadAlias, from: outer}
		} else {
			s.loads[p] = pendingLoad{kind: loadResolve, name: name}
		}
	}
}

// frame turns the finished analysis into instructions.
func (s *symbols) frame() *frame {
	f := &frame{}
	s.analysis.spend(len(s.loads))
	for p, l := range s.loads {
		if l.kind == loadNothing {
			continue
		}
		out := load{kind: l.kind, slot: p.slot, name: l.name}
		if l.kind == loadAlias {
			out.from = refFrom(s.function, l.from)
		}
		f.loads = append(f.loads, out)
	}
	slices.SortFunc(f.loads, func(a, b load) int { return a.slot - b.slot })
	return f
}

func refFrom(f *function, p place) ref { return ref{f.depth - p.function.depth, p.slot} }

// ref is where name lives, seen from s.
func (s *symbols) ref(name string) ref {
	p, ok := s.find(name)
	if !ok {
		// Only the filter of a set block is not analysed by jinja2; reading a new name there is read as in any other place.
		p = s.define(name, pendingLoad{kind: loadResolve, name: name})
	}
	return refFrom(s.function, p)
}

// The visits below collect loads and stores of a body without entering the bodies that have scopes of their own.

func (s *symbols) visitExpr(e expr) {
	if e == nil {
		return
	}
	if name, ok := e.(*nameExpr); ok {
		s.load(name.name)
		return
	}
	for _, child := range children(e) {
		s.visitExpr(child)
	}
}

func (s *symbols) visitExprs(list []expr) {
	for _, e := range list {
		s.visitExpr(e)
	}
}

// visitTarget stores the names of an assignment's target, or declares them as parameters.
func (s *symbols) visitTarget(e expr, asParameter bool) {
	switch e := e.(type) {
	case *nameExpr:
		if asParameter {
			s.parameter(e.name)
		} else {
			s.store(e.name)
		}
	case *attrTarget:
		s.load(e.name)
	case *tupleExpr:
		for _, item := range e.items {
			s.visitTarget(item, asParameter)
		}
	}
}

func (s *symbols) visitBody(body []stmt) {
	for _, st := range body {
		s.visitStmt(st)
	}
}

func (s *symbols) visitStmt(st stmt) {
	switch st := st.(type) {
	case *printStmt:
		s.visitExpr(st.value)
	case *ifStmt:
		s.visitIf(st)
	case *forStmt:
		s.visitExpr(st.iterable)
	case *setStmt:
		s.visitExpr(st.value)
		s.visitTarget(st.target, false)
	case *setBlockStmt:
		s.visitTarget(st.target, false)
	case *macroStmt:
		s.store(st.name)
	case *callStmt:
		s.visitExpr(st.call)
	case *filterStmt:
		s.visitExpr(st.filter)
	case *withStmt:
		s.visitExprs(st.values)
	}
}

// visitIf treats each elif as jinja2 does: an if of its own, and all of them together one branch.
func (s *symbols) visitIf(st *ifStmt) {
	s.visitExpr(st.tests[0])
	then, elifs, otherwise := s.branch(), s.branch(), s.branch()
	then.visitBody(st.bodies[0])
	for i := range st.tests[1:] {
		elifs.visitIf(&ifStmt{tests: st.tests[i+1 : i+2], bodies: st.bodies[i+1 : i+2]})
	}
	otherwise.visitBody(st.otherwise)
	s.merge(then, elifs, otherwise)
}
