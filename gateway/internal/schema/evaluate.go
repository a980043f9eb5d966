package schema

import (
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// nodeShape is the values that satisfy one schema.
func (c *compiler) nodeShape(n *node) shape {
	if known, ok := c.nodes[n]; ok {
		return known
	}
	if c.progress[n] {
		c.fail(&Error{Pointer: n.pointer, Reason: "the schema refers to itself on the same value, so it says nothing"})
	}
	if c.stopped() {
		return shape{strings: c.b.Nothing()}
	}
	c.progress[n] = true
	before := c.at
	c.at = n.pointer
	defer func() { c.at = before }()
	s := c.everything(allKinds)
	for _, part := range n.textOrder() {
		switch part {
		case "properties":
			s = c.intersect(s, c.ownShape(n))
		case "$ref":
			for _, sub := range n.references {
				s = c.intersect(s, c.nodeShape(sub))
			}
		case "allOf":
			for _, sub := range n.allOf {
				s = c.intersect(s, c.nodeShape(sub))
			}
		case "anyOf":
			s = c.anyOf(s, n)
		case "oneOf":
			s = c.oneOf(s, n)
		}
	}
	if n.not != nil {
		s = c.without(s, n.not, Relaxed{n.pointer, "not", "what is not allowed is too involved"})
	}
	if n.when != nil && (n.whenTrue != nil || n.whenNot != nil || c.document.tracked) { // alone it only looks at things
		s = c.conditional(s, n)
	}
	for _, dep := range n.dependencies {
		if dep.schema != nil {
			s = c.dependent(s, n, dep)
		}
	}
	if n.unevaluatedItems != nil {
		s = c.unevaluatedItems(s, n)
	}
	if n.unevaluatedProperties != nil {
		s = c.unevaluatedProperties(s, n)
	}
	if n.nullable {
		s.null = true
	}
	delete(c.progress, n)
	if !c.stopped() {
		c.nodes[n] = s
	}
	return s
}

// textOrder is the keywords that may name properties, in the order in which the schema has them: what is named first is written first.
func (n *node) textOrder() []string {
	own := false
	var order []string
	for _, m := range n.value.Members {
		switch m.Key {
		case "properties":
			own = true
			order = append(order, m.Key)
		case "$ref", "$recursiveRef":
			if len(n.references) > 0 && !slices.Contains(order, "$ref") {
				order = append(order, "$ref")
			}
		case "allOf", "anyOf", "oneOf":
			if n.applies(m.Key) {
				order = append(order, m.Key)
			}
		}
	}
	if len(order) == 0 && (len(n.allOf) > 0 || len(n.anyOf) > 0) { // made here
		order = []string{"allOf"}
		if len(n.anyOf) > 0 {
			order = append(order, "anyOf")
		}
	}
	if !own {
		order = append([]string{"properties"}, order...)
	}
	return order
}

// applies tells whether a keyword of the text counts: beside $ref it may not, and null is as good as none.
func (n *node) applies(keyword string) bool {
	switch keyword {
	case "allOf":
		return len(n.allOf) > 0
	case "anyOf":
		return len(n.anyOf) > 0
	default:
		return len(n.oneOf) > 0
	}
}

// ownShape is what a schema's own keywords say, without those that apply other schemas to the same value.
func (c *compiler) ownShape(n *node) shape {
	s := c.everything(n.types)
	if n.boolean {
		return s
	}
	s.all = s.all && n.bare()
	if n.types.has(jsonvalue.Number) {
		s = c.ownNumbers(s, n)
	}
	if n.types.has(jsonvalue.String) {
		s = c.ownStrings(s, n)
	}
	if n.types.has(jsonvalue.Array) {
		if set, ok := c.ownArray(n); ok {
			s.arrays = []arraySet{set}
		} else {
			s.arrays = nil
		}
	}
	if n.types.has(jsonvalue.Object) {
		s = c.ownObject(s, n)
	}
	if n.listed {
		s = c.intersect(s, c.listedShape(n.values))
	}
	return s
}

func (c *compiler) ownNumbers(s shape, n *node) shape {
	set := numberSet{minimum: n.minimum, maximum: n.maximum, exclusiveMinimum: n.exclusiveMinimum, exclusiveMaximum: n.exclusiveMaximum}
	if n.integer {
		set.multiple = one
	}
	set.origin = Relaxed{n.pointer, "type", "beside the other keywords it takes too many states"}
	if n.multipleOf != nil {
		set.origin = Relaxed{n.pointer, "multipleOf", fmt.Sprintf("the divisor has more than %d remainders", maxRemainder)}
		divisor, ok := n.multipleOf.Rat(maxExactDigits)
		switch {
		case !ok || len(n.multipleOf.Digits) > maxExactDigits/4 || scaleOf(divisor) > maxExactDigits/4:
			c.fail(&Error{Pointer: n.pointer, Keyword: "multipleOf", Reason: fmt.Sprintf("%s has more than %d digits", shorten(n.multipleOf.String()),
				maxExactDigits/4)})
			return s
		case set.multiple == nil:
			set.multiple = divisor
		default:
			set.multiple = leastCommonMultiple(set.multiple, divisor)
		}
	}
	s.numbers = nil
	if set, ok := set.tidy(); ok {
		s.numbers = []numberSet{set}
	}
	return s
}

func (c *compiler) ownStrings(s shape, n *node) shape {
	if n.minLength > 0 || n.maxLength >= 0 {
		s.strings = c.b.Repeat(c.b.AnyChar(), max(n.minLength, 0), n.maxLength)
	}
	add := func(keyword string, e grammar.Expr, why error) {
		if why != nil {
			s = c.lose(s, Relaxed{n.pointer, keyword, why.Error() + " is not enforced"}, only(jsonvalue.String))
			return
		}
		s.strings = c.bothStrings(s.strings, e)
	}
	if n.pattern != nil {
		e, why := c.expression(n.pattern)
		add("pattern", e, why)
	}
	switch f, known := formats[n.format]; {
	case known:
		e, why := c.expression(formatPattern(n.format))
		if f.maxLength >= 0 {
			e = c.b.Intersect(e, c.b.Repeat(c.b.AnyChar(), 0, f.maxLength))
		}
		add("format", e, why)
	case n.format == "regex" || n.format == "idn-hostname":
		s = c.lose(s, Relaxed{n.pointer, "format", "no regular language is " + n.format}, only(jsonvalue.String))
	}
	return s
}

func (c *compiler) ownArray(n *node) (arraySet, bool) {
	set := anyArray()
	set.minimum, set.maximum = max(n.minItems, 0), n.maxItems
	for _, item := range n.prefix {
		set.prefix = append(set.prefix, c.single(item))
	}
	set.seenFirst = len(n.prefix)
	if n.items != nil {
		set.rest = c.single(n.items)
		set.seenAll = true
	}
	if n.unique {
		set.unique, set.origin = true, Relaxed{n.pointer, "uniqueItems", "it is enforced only where the items have few values: up to 12, or more where maxItems leaves few ways to choose"}
	}
	if n.contains != nil {
		item := c.single(n.contains)
		keyword := "contains"
		if n.maxContains >= 0 {
			keyword = "maxContains"
		}
		if n.minContains > 0 || n.maxContains >= 0 {
			set.counts = []count{{schema: item, minimum: n.minContains, maximum: n.maxContains, origin: Relaxed{n.pointer, keyword,
				"beside the other keywords it takes too many states"}}}
		}
		if c.document.draft == Draft2020 {
			set.seenContains = []schemas{item}
		}
		if n.maxContains >= 0 && n.minContains > n.maxContains {
			return set, false
		}
	}
	return c.tidyArray(set)
}

func (c *compiler) ownObject(s shape, n *node) shape {
	set := objectSet{minimum: max(n.minProperties, 0), maximum: n.maxProperties}
	keyword := "minProperties"
	if n.minProperties < 0 {
		keyword = "maxProperties"
	}
	set.origin = Relaxed{n.pointer, keyword, "beside the other keywords it takes too many states"}
	set.classes, s = c.keyClasses(s, n, &set)
	values, ok := c.propertyValues(n)
	if !ok {
		s = c.lose(s, Relaxed{n.pointer, "patternProperties", "which of the names its patterns match takes too many steps to find out"}, only(jsonvalue.Object))
		set.seenUnknown = true
	}
	for i, p := range n.properties {
		set.properties = append(set.properties, property{name: p.name, value: values[i], source: n.id + 1})
		set.seenNames = append(set.seenNames, p.name)
	}
	at := make(map[string]int, len(set.properties))
	for i, p := range set.properties {
		at[p.name] = i
	}
	add := func(name string, required bool) {
		i, ok := at[name]
		if !ok {
			i = len(set.properties)
			at[name] = i
			set.properties = append(set.properties, property{name: name, value: c.otherKey(&set, name)})
		}
		set.properties[i].required = set.properties[i].required || required
	}
	for _, name := range n.required {
		add(name, true)
	}
	for _, dep := range n.dependencies {
		if len(dep.required) == 0 {
			continue
		}
		add(dep.key, false)
		for _, name := range dep.required {
			add(name, false)
		}
		set.dependencies = append(set.dependencies, keyDependency{dep.key, dep.required, Relaxed{n.pointer, dep.keyword, "it involves too many keys"}})
	}
	if n.propertyNames != nil {
		s = c.nameKeys(s, n, &set)
	}
	s.objects = nil
	if c.possible(&set) {
		s.objects = []objectSet{set}
	}
	return s
}

// propertyValues is the schemas of each listed property: its own, and those of the patterns that match its name. Where finding out takes too many steps ok
// is false, and they are each property's own.
func (c *compiler) propertyValues(n *node) (values []schemas, ok bool) {
	values = make([]schemas, len(n.properties))
	for i, p := range n.properties {
		values[i] = c.single(p.schema)
	}
	if len(n.patterns) == 0 {
		return values, true
	}
	own := slices.Clone(values)
	together := map[string]schemas{} // those of the patterns, by which match
	which := make([]byte, len(n.patterns))
	for i, p := range n.properties {
		for k, pattern := range n.patterns {
			yes, taken, err := pattern.pattern.MatchCounted(p.name, min(maxPatternSteps, maxNameSteps-c.nameSteps))
			if c.nameSteps += taken + len(p.name); c.nameSteps >= maxNameSteps {
				return own, false
			}
			if err != nil {
				e, why := c.expression(pattern.pattern)
				yes = why == nil && c.contains(e, p.name)
			}
			which[k] = 0
			if yes {
				which[k] = 1
			}
		}
		if c.wanted(); c.stopped() {
			return own, true
		}
		both, known := together[string(which)]
		if !known {
			var list []schemas
			for k, yes := range which {
				if yes != 0 {
					list = append(list, c.single(n.patterns[k].schema))
				}
			}
			both = c.all(list)
			together[string(which)] = both
			c.spend(1 + len(list)/8)
		}
		values[i] = c.and(values[i], both)
	}
	return values, true
}

// keyClasses cuts the keys that are no property's name into those that the same patterns match.
func (c *compiler) keyClasses(s shape, n *node, set *objectSet) ([]keyClass, shape) {
	rest := c.single(n.additional)
	set.seenAll = n.additional != nil
	if len(n.patterns) == 0 {
		if rest == nothingAtAll {
			return nil, s
		}
		return []keyClass{{c.b.AnyText(), rest}}, s
	}
	type part struct {
		keys    grammar.Expr
		value   schemas
		matched bool
	}
	parts := []part{{keys: c.b.AnyText(), value: anything}}
	for _, p := range n.patterns {
		keys, why := c.expression(p.pattern)
		if why != nil {
			s = c.lose(s, Relaxed{n.pointer, "patternProperties", why.Error() + " is not enforced"}, only(jsonvalue.Object))
			set.seenAll, set.seenUnknown = true, true
			return []keyClass{{c.b.AnyText(), anything}}, s
		}
		set.seenKeys = append(set.seenKeys, keys)
		value := c.single(p.schema)
		others := c.b.Not(keys)
		var next []part
		for _, q := range parts {
			in, out := c.both(q.keys, keys), c.both(q.keys, others)
			if in != c.b.Nothing() {
				next = append(next, part{in, c.and(q.value, value), true})
			}
			if out != c.b.Nothing() && !c.nothing(out) {
				next = append(next, part{out, q.value, q.matched})
			}
			if c.coarse && (c.undecided[in] || c.undecided[out]) {
				s = c.lose(s, Relaxed{n.pointer, "patternProperties", "whether its patterns overlap takes too many steps to find out"}, only(jsonvalue.Object))
				set.seenUnknown = true
				return []keyClass{{c.b.AnyText(), anything}}, s
			}
		}
		if parts = next; len(parts) > maxOverlaps {
			s = c.lose(s, Relaxed{n.pointer, "patternProperties", fmt.Sprintf("the patterns overlap in more than %d ways", maxOverlaps)}, only(jsonvalue.Object))
			set.seenUnknown = true
			return []keyClass{{c.b.AnyText(), anything}}, s
		}
	}
	var classes []keyClass
	for _, p := range parts {
		if !p.matched {
			p.value = rest
		}
		if p.value != nothingAtAll {
			classes = append(classes, keyClass{p.keys, p.value})
		}
	}
	return classes, s
}

// nameKeys lets only those keys in that propertyNames allows.
func (c *compiler) nameKeys(s shape, n *node, set *objectSet) shape {
	names, ok := c.attempt(func() (shape, bool) { return c.nodeShape(n.propertyNames), true })
	if !ok || names.lost().has(jsonvalue.String) {
		if !c.stopped() {
			s = c.lose(s, Relaxed{n.pointer, "propertyNames", "the names' schema is too involved"}, only(jsonvalue.Object))
		}
		return s
	}
	for i, p := range set.properties {
		if !c.contains(names.strings, p.name) {
			set.properties[i].value = nothingAtAll
		}
	}
	var classes []keyClass
	for _, class := range set.classes {
		if keys := c.both(class.keys, names.strings); keys != c.b.Nothing() {
			classes = append(classes, keyClass{keys, class.value})
		}
	}
	set.classes = classes
	return s
}

// listedShape is the values of a list.
func (c *compiler) listedShape(values []*jsonvalue.Value) shape {
	s := shape{strings: c.b.Nothing()}
	var texts []grammar.Expr
	numbers := numberSet{listed: true}
	for _, v := range values {
		switch v.Kind {
		case jsonvalue.Null:
			s.null = true
		case jsonvalue.Boolean:
			if v.Boolean {
				s.booleans |= 2
			} else {
				s.booleans |= 1
			}
		case jsonvalue.Number:
			numbers.values = append(numbers.values, jsonvalue.ParseDecimal(v.Text))
		case jsonvalue.String:
			texts = append(texts, c.b.Literal(v.Text))
		case jsonvalue.Array:
			set := arraySet{rest: nothingAtAll, minimum: len(v.Items), maximum: len(v.Items)}
			for _, item := range v.Items {
				set.prefix = append(set.prefix, c.single(c.listedSchema(item)))
			}
			s.arrays = append(s.arrays, set)
		case jsonvalue.Object:
			set := objectSet{maximum: -1}
			source := c.nextID()
			for _, m := range v.Members {
				set.properties = append(set.properties, property{m.Key, c.single(c.listedSchema(m.Value)), true, source})
			}
			s.objects = append(s.objects, set)
		}
	}
	if len(numbers.values) > 0 {
		s.numbers = []numberSet{numbers}
	}
	s.strings = c.b.Union(texts...)
	return s
}
