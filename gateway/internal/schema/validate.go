package schema

import (
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/ecma"
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// Problem is one way in which a finished value does not satisfy its schema.
type Problem struct {
	Path    string // JSON pointer of the part of the value, "" for the whole
	Keyword string // JSON pointer of the keyword in the schema
	Message string
}

// validator checks values against the schemas of a document. It takes a bounded number of steps: a schema may refer to itself in ways that take for ever.
// One is for one goroutine.
type validator struct {
	document *document
	steps    int
	depth    int
	known    map[check]bool // results of checks whose problems nobody wants
	problems *[]Problem     // nil: nobody wants them
}

// maxCheckDepth bounds the stack of a check.
const maxCheckDepth = 100_000

type check struct {
	schema *node
	value  *jsonvalue.Value
}

func newValidator(d *document, steps int) *validator {
	return &validator{document: d, steps: steps, known: map[check]bool{}}
}

// satisfies tells whether a value satisfies a schema; ok is false where the steps did not suffice to find out.
func (v *validator) satisfies(n *node, value *jsonvalue.Value) (yes, ok bool) {
	yes = v.quiet(n, value)
	return yes, v.steps > 0
}

// explain gives what is wrong with a value, at most as many as are told.
func (v *validator) explain(n *node, value *jsonvalue.Value) []Problem {
	problems := []Problem{}
	v.problems = &problems
	v.check(n, value, "")
	v.problems = nil
	if v.steps <= 0 && len(problems) < maxProblems {
		problems = append(problems, Problem{Keyword: n.pointer, Message: "checking the value takes too many steps; it was not checked in full"})
	}
	return problems
}

// seen is which members and items of one value some schema has looked at.
type seen struct {
	all     bool
	names   map[string]bool
	first   int // so many items from the start
	indexes map[int]bool
}

func (s *seen) add(other *seen) {
	if other == nil {
		return
	}
	s.all = s.all || other.all
	s.first = max(s.first, other.first)
	for name := range other.names {
		s.name(name)
	}
	for i := range other.indexes {
		s.index(i)
	}
}

func (s *seen) name(name string) {
	if s.names == nil {
		s.names = map[string]bool{}
	}
	s.names[name] = true
}

func (s *seen) index(i int) {
	if s.indexes == nil {
		s.indexes = map[int]bool{}
	}
	s.indexes[i] = true
}

// quiet checks without wanting problems. What is known already is not checked again, which keeps references that double at each level from taking for ever.
func (v *validator) quiet(n *node, value *jsonvalue.Value) bool {
	key := check{n, value}
	if yes, ok := v.known[key]; ok {
		return yes
	}
	problems := v.problems
	v.problems = nil
	yes, _ := v.check(n, value, "")
	v.problems = problems
	v.known[key] = yes
	return yes
}

// quietSeen is quiet with what the schema has looked at, where somebody asks for that.
func (v *validator) quietSeen(n *node, value *jsonvalue.Value) (bool, *seen) {
	if !v.document.tracked {
		return v.quiet(n, value), nil
	}
	problems := v.problems
	v.problems = nil
	yes, s := v.check(n, value, "")
	v.problems = problems
	return yes, s
}

func (v *validator) problem(n *node, path, keyword, message string) {
	if v.problems != nil && len(*v.problems) < maxProblems {
		*v.problems = append(*v.problems, Problem{Path: path, Keyword: n.pointer + "/" + keyword, Message: message})
	}
}

// checking is one schema on one value.
type checking struct {
	*validator
	n    *node
	path string
	ok   bool
	seen seen
}

func (c *checking) fail(keyword, format string, arguments ...any) {
	c.ok = false
	if c.problems != nil {
		c.problem(c.n, c.path, keyword, fmt.Sprintf(format, arguments...))
	}
}

// shown is a value for a message, where messages are wanted.
func (c *checking) shown(value *jsonvalue.Value) string {
	if c.problems == nil {
		return ""
	}
	return show(value)
}

// check goes through the keywords of a schema. It stops early where problems are not wanted.
func (v *validator) check(n *node, value *jsonvalue.Value, path string) (bool, *seen) {
	if v.depth > maxCheckDepth {
		v.steps = 0
	}
	v.depth++
	defer func() { v.depth-- }()
	if v.steps--; v.steps <= 0 {
		return true, nil // explain and satisfies tell that this is no answer
	}
	if n.nullable && value.Kind == jsonvalue.Null {
		return true, nil
	}
	c := &checking{validator: v, n: n, path: path, ok: true}
	if n.boolean && n.types == 0 {
		c.ok = false
		if v.problems != nil && len(*v.problems) < maxProblems {
			*v.problems = append(*v.problems, Problem{Path: path, Keyword: n.pointer, Message: "nothing is allowed here"})
		}
		return false, nil
	}
	for _, part := range []func(*jsonvalue.Value){c.general, c.scalar, c.inPlace, c.array, c.object} {
		if part(value); !c.ok && v.problems == nil {
			return false, nil
		}
	}
	if !c.ok {
		return false, nil
	}
	return true, &c.seen
}

func (c *checking) general(value *jsonvalue.Value) {
	n := c.n
	if !n.types.has(value.Kind) {
		c.fail("type", "is of type %s", value.Kind)
	} else if n.integer && value.Kind == jsonvalue.Number && !jsonvalue.ParseDecimal(value.Text).Integer() {
		c.fail("type", "%s is no integer", shorten(value.Text))
	}
	if n.listed {
		if n.lists(value) {
			return
		}
		keyword := "enum"
		if n.value.Get("const") != nil {
			keyword = "const"
		}
		c.fail(keyword, "%s is not allowed", c.shown(value))
	}
}

// lists tells whether a value is one of the listed.
func (n *node) lists(value *jsonvalue.Value) bool {
	if n.texts == nil {
		return slices.ContainsFunc(n.values, func(allowed *jsonvalue.Value) bool { return jsonvalue.Equal(allowed, value) })
	}
	return n.texts[jsonvalue.Canonical(value)]
}

func (c *checking) scalar(value *jsonvalue.Value) {
	n := c.n
	switch value.Kind {
	case jsonvalue.Number:
		d := jsonvalue.ParseDecimal(value.Text)
		if m := n.minimum; m != nil && (d.Compare(*m) < 0 || n.exclusiveMinimum && d.Compare(*m) == 0) {
			c.fail("minimum", "%s is below %s", shorten(value.Text), shorten(m.String()))
		}
		if m := n.maximum; m != nil && (d.Compare(*m) > 0 || n.exclusiveMaximum && d.Compare(*m) == 0) {
			c.fail("maximum", "%s is above %s", shorten(value.Text), shorten(m.String()))
		}
		if m := n.multipleOf; m != nil && !d.MultipleOf(*m) {
			c.fail("multipleOf", "%s is no multiple of %s", shorten(value.Text), shorten(m.String()))
		}
	case jsonvalue.String:
		if n.minLength >= 0 || n.maxLength >= 0 {
			length := utf8.RuneCountInString(value.Text)
			if n.minLength >= 0 && length < n.minLength {
				c.fail("minLength", "has %d characters, fewer than %d", length, n.minLength)
			}
			if n.maxLength >= 0 && length > n.maxLength {
				c.fail("maxLength", "has %d characters, more than %d", length, n.maxLength)
			}
		}
		if n.pattern != nil {
			matches, err := c.match(n.pattern, value.Text)
			switch {
			case err != nil:
				c.fail("pattern", "%s", err.Error())
			case !matches:
				c.fail("pattern", "does not match %s", shorten(n.pattern.Source()))
			}
		}
		if n.format != "" && !c.format(value.Text) {
			c.fail("format", "is no %s", n.format)
		}
	case jsonvalue.Null, jsonvalue.Boolean, jsonvalue.Array, jsonvalue.Object:
	}
}

// matchStepsPerStep is how many steps of a pattern take about as long as one of a check.
const matchStepsPerStep = 8

// match tells whether a pattern matches a text, and pays for it.
func (v *validator) match(p *ecma.Pattern, text string) (bool, error) {
	matches, taken, err := p.MatchCounted(text, min(v.steps*matchStepsPerStep, maxPatternSteps))
	v.steps -= (len(text)+taken)/matchStepsPerStep + 1
	return matches, err
}

func (c *checking) format(text string) bool {
	pattern := formatPattern(c.n.format)
	switch {
	case c.n.format == "regex":
		return validRegex(text)
	case c.n.format == "idn-hostname":
		return plausibleHostname(text)
	case pattern == nil:
		return true
	}
	if f := formats[c.n.format]; f.maxLength >= 0 && utf8.RuneCountInString(text) > f.maxLength {
		return false
	}
	matches, err := c.match(pattern, text)
	return matches && err == nil
}

// follow checks another schema on the same value, and takes over what it has looked at.
func (c *checking) follow(n *node, value *jsonvalue.Value) {
	if n == nil {
		return
	}
	var ok bool
	var s *seen
	if c.problems != nil || c.document.tracked {
		ok, s = c.check(n, value, c.path)
	} else {
		ok = c.quiet(n, value)
	}
	c.ok = c.ok && ok
	c.seen.add(s)
}

func (c *checking) inPlace(value *jsonvalue.Value) {
	n := c.n
	for _, list := range [][]*node{n.references, n.allOf} {
		for _, sub := range list {
			if c.follow(sub, value); !c.ok && c.problems == nil {
				return
			}
		}
	}
	if n.anyOf != nil {
		found := false
		for _, sub := range n.anyOf {
			ok, s := c.quietSeen(sub, value)
			if ok {
				found = true
				c.seen.add(s)
				if !c.document.tracked {
					break
				}
			}
		}
		if !found {
			c.fail("anyOf", "satisfies none of the %d schemas", len(n.anyOf))
		}
	}
	if n.oneOf != nil {
		found := 0
		for _, sub := range n.oneOf {
			if ok, s := c.quietSeen(sub, value); ok {
				found++
				c.seen.add(s)
			}
		}
		if found != 1 {
			c.fail("oneOf", "satisfies %d of the %d schemas, not exactly one", found, len(n.oneOf))
		}
	}
	if n.not != nil && c.quiet(n.not, value) {
		c.fail("not", "satisfies what it must not")
	}
	if n.when != nil {
		if ok, s := c.quietSeen(n.when, value); ok {
			c.seen.add(s)
			c.follow(n.whenTrue, value)
		} else {
			c.follow(n.whenNot, value)
		}
	}
}

func (c *checking) inside(n *node, value *jsonvalue.Value, step string) {
	if n == nil {
		return
	}
	if c.problems == nil {
		c.ok = c.quiet(n, value) && c.ok
		return
	}
	ok, _ := c.check(n, value, c.path+"/"+step)
	c.ok = c.ok && ok
}

func (c *checking) array(value *jsonvalue.Value) {
	if value.Kind != jsonvalue.Array {
		return
	}
	n := c.n
	if n.minItems >= 0 && len(value.Items) < n.minItems {
		c.fail("minItems", "has %d items, fewer than %d", len(value.Items), n.minItems)
	}
	if n.maxItems >= 0 && len(value.Items) > n.maxItems {
		c.fail("maxItems", "has %d items, more than %d", len(value.Items), n.maxItems)
	}
	if n.unique {
		c.distinct(value)
	}
	for i, item := range value.Items {
		if i < len(n.prefix) {
			c.inside(n.prefix[i], item, strconv.Itoa(i))
		} else {
			c.inside(n.items, item, strconv.Itoa(i))
		}
		if !c.ok && c.problems == nil {
			return
		}
	}
	c.seen.first = max(c.seen.first, len(n.prefix))
	c.seen.all = c.seen.all || n.items != nil
	if n.contains != nil {
		found := 0
		for i, item := range value.Items {
			if c.quiet(n.contains, item) {
				found++
				if c.document.draft == Draft2020 {
					c.seen.index(i)
				}
			}
		}
		if found < n.minContains {
			c.fail("contains", "has %d items of those, fewer than %d", found, n.minContains)
		}
		if n.maxContains >= 0 && found > n.maxContains {
			c.fail("maxContains", "has %d items of those, more than %d", found, n.maxContains)
		}
	}
	if n.unevaluatedItems != nil && !c.seen.all {
		for i, item := range value.Items {
			if i >= c.seen.first && !c.seen.indexes[i] {
				c.inside(n.unevaluatedItems, item, strconv.Itoa(i))
			}
		}
		c.seen.all = true
	}
}

func (c *checking) distinct(value *jsonvalue.Value) {
	texts := make(map[string]bool, len(value.Items))
	for _, item := range value.Items {
		text := jsonvalue.Canonical(item)
		c.steps -= len(text)/16 + 1
		if texts[text] {
			c.fail("uniqueItems", "%s stands twice", c.shown(item))
			return
		}
		texts[text] = true
	}
}

func (c *checking) object(value *jsonvalue.Value) {
	if value.Kind != jsonvalue.Object {
		return
	}
	n := c.n
	if n.minProperties >= 0 && len(value.Members) < n.minProperties {
		c.fail("minProperties", "has %d members, fewer than %d", len(value.Members), n.minProperties)
	}
	if n.maxProperties >= 0 && len(value.Members) > n.maxProperties {
		c.fail("maxProperties", "has %d members, more than %d", len(value.Members), n.maxProperties)
	}
	for _, name := range n.required {
		if value.Get(name) == nil {
			c.fail("required", "%q is missing", shorten(name))
		}
	}
	for _, dep := range n.dependencies {
		if value.Get(dep.key) == nil {
			continue
		}
		for _, name := range dep.required {
			if value.Get(name) == nil {
				c.fail(dep.keyword, "%q is missing, which must be beside %q", shorten(name), shorten(dep.key))
			}
		}
		c.follow(dep.schema, value)
	}
	if !c.ok && c.problems == nil {
		return
	}
	c.members(value)
}

func (c *checking) members(value *jsonvalue.Value) {
	n := c.n
	properties := make(map[string]*node, len(n.properties))
	for _, p := range n.properties {
		properties[p.name] = p.schema
	}
	for _, member := range value.Members {
		step := escapePointer(member.Key)
		if n.propertyNames != nil && !c.quiet(n.propertyNames, &jsonvalue.Value{Kind: jsonvalue.String, Text: member.Key}) {
			c.fail("propertyNames", "the key %q is not allowed", shorten(member.Key))
		}
		known := false
		if sub := properties[member.Key]; sub != nil {
			known = true
			c.inside(sub, member.Value, step)
		}
		for _, p := range n.patterns {
			matches, err := c.match(p.pattern, member.Key)
			if err != nil {
				c.fail("patternProperties", "%s", err.Error())
			} else if matches {
				known = true
				c.inside(p.schema, member.Value, step)
			}
		}
		if known {
			c.seen.name(member.Key)
		} else if n.additional != nil {
			if c.problems != nil && n.additional.boolean && n.additional.types == 0 {
				c.fail("additionalProperties", "the key %q is not allowed", shorten(member.Key))
			} else {
				c.inside(n.additional, member.Value, step)
			}
		}
		if !c.ok && c.problems == nil {
			return
		}
	}
	c.seen.all = c.seen.all || n.additional != nil
	if n.unevaluatedProperties == nil || c.seen.all {
		return
	}
	for _, member := range value.Members {
		if !c.seen.names[member.Key] {
			c.inside(n.unevaluatedProperties, member.Value, escapePointer(member.Key))
		}
	}
	c.seen.all = true
}
