package schema

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/ecma"
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// schemas is a set of schemas that one value is under at once: of some it must be valid, of others not. Equal sets have equal numbers.
type schemas int32

const (
	anything     schemas = iota // no schema
	nothingAtAll                // no value satisfies it
)

// literal is one schema of such a set.
type literal struct {
	schema  *node
	negated bool
}

// compiler makes a document's schemas into a grammar. It computes with sets of values: a schema is a shape, applicators are unions, intersections and
// complements of shapes, and only what stands inside of arrays and objects is left as sets of schemas, each of which becomes a rule of its own. So
// recursion costs nothing, and two schemas on one value are as good as one.
type compiler struct {
	ctx      context.Context
	b        *grammar.Builder
	document *document
	space    space

	sets          [][]literal
	setIndex      map[string]schemas
	shapes        map[schemas]shape
	nodes         map[*node]shape
	opposites     map[*node]oppositeShape
	progress      map[*node]bool
	patterns      map[string]grammar.Expr
	leaves        map[string]*node // the first of each that says the same
	made          map[string]*node // schemas that stand for parts of listed values, by their text
	empty         map[grammar.Expr]bool
	undecided     map[grammar.Expr]bool // whether it is empty took too many steps
	at            string                // the pointer of the schema whose shape is being made
	holds         map[holding]bool
	lost          map[schemas]bool // hopeless
	possibilities map[*node]kinds
	listings      map[*node]listing
	noString      *node // everything but strings
	checker       *validator
	asked         int // steps of questions
	nameSteps     int // of patterns on the names of properties

	loose        bool // something was left out beside the losses of shapes; only where coarse
	coarse       bool // what may be left to the finished value is, because otherwise it was too much
	steps, limit int
	alternatives int
	over         *Error            // the bound that was met
	err          error             // what is wrong with the schema
	cause        Relaxed           // the keyword because of which something is turned into its opposite
	causes       map[*node]Relaxed // of schemas that stand inside of what was turned

	remainderStates, tried int  // states of remainderWriters
	beyondDigits           bool // a bound is met by no number that texts have digits for

	rules   map[schemas]grammar.Rule
	queue   []schemas
	states  int
	relaxed []Relaxed
	symbols symbolCache
}

type holding struct {
	keys grammar.Expr
	name string
}

type oppositeShape struct {
	shape  shape
	failed kinds
}

func newCompiler(ctx context.Context, b *grammar.Builder, d *document, s space) *compiler {
	return &compiler{
		ctx: ctx, b: b, document: d, space: s,
		sets: [][]literal{nil, nil}, setIndex: map[string]schemas{}, shapes: map[schemas]shape{}, nodes: map[*node]shape{}, opposites: map[*node]oppositeShape{},
		progress: map[*node]bool{}, patterns: map[string]grammar.Expr{}, made: map[string]*node{}, causes: map[*node]Relaxed{}, leaves: map[string]*node{},
		empty: map[grammar.Expr]bool{}, undecided: map[grammar.Expr]bool{}, at: "#", holds: map[holding]bool{},
		lost: map[schemas]bool{}, possibilities: map[*node]kinds{}, listings: map[*node]listing{}, checker: newValidator(d, maxCheckSteps),
		limit: maxMergeSteps, alternatives: maxAlternatives, rules: map[schemas]grammar.Rule{},
	}
}

// stopped tells that what is computed now is worth nothing: something is wrong, or a bound was met.
func (c *compiler) stopped() bool { return c.err != nil || c.over != nil || c.b.Err() != nil }

func (c *compiler) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

func (c *compiler) exceed(what string, count, limit int) {
	if c.over == nil {
		c.over = tooLarge("", "", what, count, limit)
		c.over.involved = true
	}
}

// step pays for putting two alternatives together. It is false once nothing more is to be done.
func (c *compiler) step() bool {
	if !c.stopped() {
		c.spend(1)
	}
	return !c.stopped()
}

func (c *compiler) spend(steps int) {
	before := c.steps
	if c.steps += steps; c.steps > c.limit {
		c.exceed("merge steps", c.steps, c.limit)
	}
	if c.steps>>8 != before>>8 {
		c.wanted()
	}
}

// wanted stops everything once nobody waits for it any more.
func (c *compiler) wanted() {
	if err := c.ctx.Err(); err != nil {
		c.fail(err)
	}
}

// Bounds of what may be tried where something coarser would do as well.
const (
	attemptSteps        = 1_500
	attemptAlternatives = 40
)

// attempt computes a shape within smaller bounds. ok is false where they do not suffice; then nothing else is wrong.
func (c *compiler) attempt(compute func() (shape, bool)) (s shape, ok bool) {
	if c.coarse || c.stopped() {
		return s, false
	}
	limit, alternatives := c.limit, c.alternatives
	c.limit, c.alternatives = min(limit, c.steps+attemptSteps), min(alternatives, attemptAlternatives)
	s, ok = compute()
	c.limit, c.alternatives = limit, alternatives
	if c.over != nil && c.steps <= limit {
		c.over, ok = nil, false
	}
	return s, ok && !c.stopped()
}

// single is the set of one schema.
func (c *compiler) single(n *node) schemas {
	if n == nil {
		return anything
	}
	for range MaxNodes { // what only refers to something is that
		if len(n.references) != 1 || !n.bare() {
			break
		}
		n = n.references[0]
	}
	if n.boolean || len(n.references) == 0 && n.bare() {
		if n.types == 0 {
			return nothingAtAll
		}
		return anything
	}
	if key, ok := n.leafKey(); ok {
		if same := c.leaves[key]; same != nil {
			n = same
		} else {
			c.leaves[key] = n
		}
	}
	return c.set([]literal{{schema: n}})
}

// leafKey is the same for schemas that say the same and use no other schema; ok is false for those that do, and for lists.
func (n *node) leafKey() (key string, ok bool) {
	if n.listed || len(n.properties)+len(n.patterns)+len(n.dependencies) > 0 {
		return "", false
	}
	for _, child := range n.children() {
		if child != nil {
			return "", false
		}
	}
	var b strings.Builder
	fmt.Fprint(&b, n.types, n.integer, n.nullable, n.exclusiveMinimum, n.exclusiveMaximum, n.minLength, n.maxLength, n.minItems, n.maxItems, n.unique,
		n.minProperties, n.maxProperties)
	for _, d := range []*jsonvalue.Decimal{n.minimum, n.maximum, n.multipleOf} {
		if d != nil {
			fmt.Fprint(&b, " ", *d)
		} else {
			b.WriteString(" -")
		}
	}
	if n.pattern != nil {
		fmt.Fprintf(&b, " %q", n.pattern.Source())
	}
	fmt.Fprintf(&b, " %q %q", n.format, n.required)
	return b.String(), true
}

// bare tells whether a schema says nothing but what its references say.
func (n *node) bare() bool {
	return n.types == allKinds && !n.integer && !n.nullable && !n.listed && n.minimum == nil && n.maximum == nil && n.multipleOf == nil &&
		n.minLength <= 0 && n.maxLength < 0 && n.pattern == nil && n.format == "" &&
		len(n.prefix) == 0 && n.items == nil && n.minItems <= 0 && n.maxItems < 0 && !n.unique && n.contains == nil && n.unevaluatedItems == nil &&
		len(n.properties)+len(n.patterns)+len(n.required)+len(n.dependencies) == 0 && n.additional == nil && n.propertyNames == nil &&
		n.minProperties <= 0 && n.maxProperties < 0 && n.unevaluatedProperties == nil &&
		n.allOf == nil && n.anyOf == nil && n.oneOf == nil && n.not == nil && n.when == nil
}

// set is the number of a set of schemas, in order of their ids.
func (c *compiler) set(list []literal) schemas {
	key := make([]byte, 0, 5*len(list))
	for _, l := range list {
		key = binary.AppendVarint(key, int64(l.schema.id))
		if l.negated {
			key = append(key, '-')
		} else {
			key = append(key, '+')
		}
	}
	if s, ok := c.setIndex[string(key)]; ok {
		return s
	}
	if len(c.sets) >= maxShapes {
		c.exceed("combinations of schemas", len(c.sets)+1, maxShapes)
		return anything
	}
	s := schemas(len(c.sets))
	c.sets = append(c.sets, list)
	c.setIndex[string(key)] = s
	return s
}

// and is both sets together.
func (c *compiler) and(s, t schemas) schemas {
	switch {
	case s == t || t == anything:
		return s
	case s == anything:
		return t
	}
	return c.all([]schemas{s, t})
}

// all is sets together.
func (c *compiler) all(sets []schemas) schemas {
	var list []literal
	for _, s := range sets {
		if s == nothingAtAll {
			return nothingAtAll
		}
		list = append(list, c.sets[s]...)
	}
	if len(list) == 0 {
		return anything
	}
	slices.SortFunc(list, func(a, b literal) int { return a.schema.id - b.schema.id })
	out := list[:0]
	for _, l := range list {
		if n := len(out); n > 0 && out[n-1].schema == l.schema {
			if out[n-1].negated != l.negated {
				return nothingAtAll
			}
			continue
		}
		out = append(out, l)
	}
	return c.set(out)
}

// violations are the ways not to satisfy a set, as a union.
func (c *compiler) violations(s schemas) []schemas {
	switch s {
	case anything:
		return nil
	case nothingAtAll:
		return []schemas{anything}
	}
	var out []schemas
	for _, l := range c.sets[s] {
		if _, known := c.causes[l.schema]; !known {
			c.causes[l.schema] = c.cause
		}
		out = append(out, c.set([]literal{{l.schema, !l.negated}}))
	}
	return out
}

// any is a schema of our own for the values that satisfy at least one.
func (c *compiler) any(list []schemas) schemas {
	n := &node{id: c.nextID(), pointer: "#", value: &jsonvalue.Value{Kind: jsonvalue.Object}, types: allKinds}
	unset(n)
	for _, s := range list {
		switch {
		case s == anything:
			return anything
		case s == nothingAtAll:
		case len(c.sets[s]) == 1 && !c.sets[s][0].negated:
			n.anyOf = append(n.anyOf, c.sets[s][0].schema)
		default:
			m := &node{id: c.nextID(), pointer: "#", value: n.value, types: allKinds}
			unset(m)
			for _, l := range c.sets[s] {
				if l.negated {
					not := &node{id: c.nextID(), pointer: "#", value: n.value, types: allKinds, not: l.schema}
					unset(not)
					m.allOf = append(m.allOf, not)
				} else {
					m.allOf = append(m.allOf, l.schema)
				}
			}
			n.anyOf = append(n.anyOf, m)
		}
	}
	if len(n.anyOf) == 0 {
		return nothingAtAll
	}
	return c.set([]literal{{schema: n}})
}

func unset(n *node) {
	n.minLength, n.maxLength, n.minItems, n.maxItems, n.minContains, n.maxContains, n.minProperties, n.maxProperties = -1, -1, -1, -1, -1, -1, -1, -1
}

// nextID numbers the schemas that are made here, behind those of the document.
func (c *compiler) nextID() int {
	c.document.made++
	if c.document.made > maxMade {
		c.exceed("parts of listed values", c.document.made, maxMade)
	}
	return MaxNodes + c.document.made
}

// listedSchema is the schema of one value.
func (c *compiler) listedSchema(v *jsonvalue.Value) *node {
	text := jsonvalue.Canonical(v)
	if n := c.made[text]; n != nil {
		return n
	}
	n := &node{id: c.nextID(), pointer: "#", value: &jsonvalue.Value{Kind: jsonvalue.Object}, types: allKinds, listed: true, values: []*jsonvalue.Value{v}}
	unset(n)
	c.made[text] = n
	return n
}

// questionSteps is how many steps a question about expressions may take, and allQuestionSteps all of them together. So many more are kept for what the
// grammar is to have: there it must be known.
const (
	questionSteps    = 4_000
	allQuestionSteps = 35_000
	decisionSteps    = 60_000
)

// nothing tells whether an expression is known to have no text. Where finding out takes too many steps, it is not, and that is noted.
func (c *compiler) nothing(e grammar.Expr) bool {
	if e == c.b.Nothing() || e == c.b.AnyText() {
		return e == c.b.Nothing()
	}
	if is, ok := c.empty[e]; ok {
		return is
	}
	c.wanted()
	return c.ask(e, min(questionSteps, allQuestionSteps-c.asked))
}

// ask takes about so many steps at most to find out.
func (c *compiler) ask(e grammar.Expr, most int) bool {
	most = max(most, 0)
	is, steps := c.b.Ask(e, most)
	c.asked += steps
	c.empty[e] = is
	c.undecided[e] = steps > most
	return is
}

// decided makes sure that it is known whether an expression, which the grammar is to have, has a text: with all steps that are left, if need be.
func (c *compiler) decided(e grammar.Expr) {
	if c.stopped() || c.nothing(e) || !c.undecided[e] {
		return
	}
	if c.ask(e, allQuestionSteps+decisionSteps-c.asked); c.undecided[e] {
		c.exceed("steps to find whether expressions are empty", allQuestionSteps+decisionSteps+1, allQuestionSteps+decisionSteps)
	}
}

// tooInvolved is said of patterns that are not held to where others are.
const tooInvolved = "whether a text matches it and what else is asked for takes too many steps to find out"

// bothStrings is both. Where nobody knows whether there are such strings and that may be left to the finished value, it is.
func (c *compiler) bothStrings(a, b grammar.Expr) grammar.Expr {
	e := c.both(a, b)
	if c.coarse && c.undecided[e] {
		c.loose = true
		c.relax(Relaxed{c.at, "pattern", tooInvolved})
		return a
	}
	return e
}

// contains tells whether a name is in an expression.
func (c *compiler) contains(keys grammar.Expr, name string) bool {
	h := holding{keys, name}
	if is, ok := c.holds[h]; ok {
		return is
	}
	is, err := c.b.Contains(keys, name)
	if err != nil {
		c.fail(err)
	}
	c.holds[h] = is
	return is
}

// expression is the strings that a pattern matches; ok is false where no regular language is that.
func (c *compiler) expression(p *ecma.Pattern) (e grammar.Expr, why error) {
	if e, ok := c.patterns[p.Source()]; ok {
		return e, nil
	}
	e, why = p.Expression(c.b)
	if why == nil {
		c.patterns[p.Source()] = e
	}
	return e, why
}

// shape is the values that satisfy a set of schemas. Only what stands in the value's own place is looked into.
func (c *compiler) shape(s schemas) shape {
	if known, ok := c.shapes[s]; ok {
		return known
	}
	if s == nothingAtAll {
		return shape{strings: c.b.Nothing()}
	}
	out := c.everything(allKinds)
	for _, l := range c.sets[s] {
		if !l.negated {
			out = c.intersect(out, c.nodeShape(l.schema))
		}
	}
	for _, l := range c.sets[s] {
		if l.negated {
			out = c.without(out, l.schema, c.causes[l.schema])
		}
	}
	if !c.stopped() {
		c.shapes[s] = out
	}
	return out
}

// without is the values of a shape that do not satisfy a schema. Where that is too much, they are left in and that is said.
func (c *compiler) without(s shape, n *node, cause Relaxed) shape {
	before := c.cause
	c.cause = cause
	defer func() { c.cause = before }()
	var failed kinds
	out, ok := c.attempt(func() (shape, bool) {
		opposite := c.oppositeNode(n)
		failed = opposite.failed
		return c.intersect(s, opposite.shape), true
	})
	if !ok {
		if c.stopped() {
			return s
		}
		out, failed = s, c.kinds(&s)
	}
	return c.lose(out, cause, failed)
}

// lose notes that a shape has too many values of some kinds.
func (c *compiler) lose(s shape, what Relaxed, of kinds) shape {
	if of == 0 {
		return s
	}
	s.losses = append(slices.Clip(s.losses), loss{what, of})
	return c.settle(s)
}

func (c *compiler) oppositeNode(n *node) oppositeShape {
	if known, ok := c.opposites[n]; ok {
		return known
	}
	var out oppositeShape
	out.shape, out.failed = c.opposite(c.nodeShape(n))
	if !c.stopped() {
		c.opposites[n] = out
	}
	return out
}
