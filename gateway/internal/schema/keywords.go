package schema

import (
	"errors"
	"strconv"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/ecma"
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// kinds is a set of kinds of values, a bit each.
type kinds uint8

const allKinds kinds = 1<<jsonvalue.Kinds - 1

func only(k jsonvalue.Kind) kinds { return 1 << k }

func (s kinds) has(k jsonvalue.Kind) bool { return s&only(k) != 0 }

// named is a schema under a name.
type named struct {
	name   string
	schema *node
}

// patterned is a schema for the keys that a pattern matches.
type patterned struct {
	pattern *ecma.Pattern
	schema  *node
}

// dependency is what the presence of a key demands.
type dependency struct {
	key      string
	required []string
	schema   *node
	keyword  string
}

// node is one schema of a document, with its keywords once parse has read them. Counts that are not given are -1.
type node struct {
	id       int
	value    *jsonvalue.Value
	pointer  string
	resource *resource

	boolean  bool // the schema is true or false
	types    kinds
	integer  bool // of the numbers, only whole ones
	nullable bool
	listed   bool // there is an enum or a const
	values   []*jsonvalue.Value
	texts    map[string]bool // of values, where there are many

	minimum, maximum                   *jsonvalue.Decimal
	exclusiveMinimum, exclusiveMaximum bool
	multipleOf                         *jsonvalue.Decimal

	minLength, maxLength int
	pattern              *ecma.Pattern
	format               string

	prefix                   []*node
	items                    *node // of the items behind prefix
	itemsKeyword             string
	minItems, maxItems       int
	unique                   bool
	contains                 *node
	minContains, maxContains int
	unevaluatedItems         *node

	properties            []named
	patterns              []patterned
	additional            *node
	propertyNames         *node
	required              []string
	minProperties         int
	maxProperties         int
	dependencies          []dependency
	unevaluatedProperties *node

	references                   []*node // $ref and $recursiveRef
	allOf, anyOf, oneOf          []*node
	not, when, whenTrue, whenNot *node
}

// children are the schemas that a schema uses.
func (n *node) children() []*node {
	all := []*node{n.items, n.contains, n.unevaluatedItems, n.additional, n.propertyNames, n.unevaluatedProperties, n.not, n.when, n.whenTrue, n.whenNot}
	for _, list := range [][]*node{n.prefix, n.references, n.allOf, n.anyOf, n.oneOf} {
		all = append(all, list...)
	}
	for _, p := range n.properties {
		all = append(all, p.schema)
	}
	for _, p := range n.patterns {
		all = append(all, p.schema)
	}
	for _, dep := range n.dependencies {
		all = append(all, dep.schema)
	}
	return all
}

// parse reads the keywords of a node by the meaning that its draft gives them.
func (d *document) parse(n *node) error {
	n.types = allKinds
	n.minLength, n.maxLength, n.minItems, n.maxItems, n.minContains, n.maxContains, n.minProperties, n.maxProperties = -1, -1, -1, -1, -1, -1, -1, -1
	if n.value.Kind == jsonvalue.Boolean {
		n.boolean = true
		if !n.value.Boolean {
			n.types = 0
		}
		return nil
	}
	p := &keywordParser{document: d, node: n}
	if d.draft == Draft7 && n.value.Get("$ref") != nil {
		p.reference("$ref") // beside it nothing counts
		return p.fault()
	}
	for _, keyword := range []string{"$dynamicRef", "$dynamicAnchor", "$vocabulary"} {
		if d.draft != Draft7 && n.value.Get(keyword) != nil {
			return &Error{Pointer: n.pointer, Keyword: keyword, Reason: "not served; allowed: $ref, $anchor, $id, $defs, $recursiveRef \"#\""}
		}
	}
	if a := n.value.Get("$recursiveAnchor"); a != nil && d.draft == Draft2019 && (a.Kind != jsonvalue.Boolean || a.Boolean) {
		return &Error{Pointer: n.pointer, Keyword: "$recursiveAnchor", Reason: "not served but as false"}
	}
	p.reference("$ref")
	if d.draft == Draft2019 {
		if r := n.value.Get("$recursiveRef"); r != nil && (r.Kind != jsonvalue.String || r.Text != "#") {
			return &Error{Pointer: n.pointer, Keyword: "$recursiveRef", Reason: "not served but as \"#\""}
		}
		p.reference("$recursiveRef")
	}
	p.general()
	p.numbers()
	p.strings()
	p.arrays()
	p.objects()
	p.applicators()
	return p.fault()
}

// keywordParser reads the keywords of one node, and keeps what is wrong first.
type keywordParser struct {
	document *document
	node     *node
	wrong    *Error
}

// fault is the first thing that was wrong, nil if there was none.
func (p *keywordParser) fault() error {
	if p.wrong == nil {
		return nil
	}
	return p.wrong
}

func (p *keywordParser) fail(keyword, reason string) {
	if p.wrong == nil {
		p.wrong = &Error{Pointer: p.node.pointer, Keyword: keyword, Reason: reason}
	}
}

func (p *keywordParser) failed(keyword string, err error) {
	if err == nil || p.wrong != nil {
		return
	}
	if !errors.As(err, &p.wrong) {
		p.fail(keyword, err.Error())
	}
}

func (p *keywordParser) reference(keyword string) {
	v := p.node.value.Get(keyword)
	if v == nil {
		return
	}
	if v.Kind != jsonvalue.String {
		p.fail(keyword, "want a string, got "+show(v))
		return
	}
	target, err := p.document.follow(p.node, keyword, v.Text)
	p.failed(keyword, err)
	if target != nil {
		p.node.references = append(p.node.references, target)
	}
}

// value is that of a keyword. null is as good as none: some generators write it for what they do not say.
func (p *keywordParser) value(keyword string) *jsonvalue.Value {
	if v := p.node.value.Get(keyword); v != nil && v.Kind != jsonvalue.Null {
		return v
	}
	return nil
}

// schema is the node of a keyword's value.
func (p *keywordParser) schema(v *jsonvalue.Value, keyword, at string) *node {
	if !isSchema(v) {
		p.fail(keyword, "want a schema, got "+show(v))
		return nil
	}
	n, err := p.document.index(v, p.node.pointer+"/"+at, p.node.resource)
	p.failed(keyword, err)
	return n
}

func (p *keywordParser) schemaOf(keyword string) *node {
	v := p.value(keyword)
	if v == nil {
		return nil
	}
	return p.schema(v, keyword, keyword)
}

func (p *keywordParser) schemasOf(keyword string) []*node {
	v := p.value(keyword)
	if v == nil {
		return nil
	}
	if v.Kind != jsonvalue.Array {
		p.fail(keyword, "want a list of schemas, got "+show(v))
		return nil
	}
	list := make([]*node, 0, len(v.Items))
	for i, item := range v.Items {
		list = append(list, p.schema(item, keyword, keyword+"/"+strconv.Itoa(i)))
	}
	return list
}

func (p *keywordParser) count(keyword string) int {
	v := p.value(keyword)
	if v == nil {
		return -1
	}
	if v.Kind == jsonvalue.Number {
		if d := jsonvalue.ParseDecimal(v.Text); !d.Negative && d.Integer() {
			if whole, _, ok := d.Parts(); ok {
				if n, err := strconv.Atoi(whole); err == nil {
					return min(n, maxCount)
				}
			}
			return maxCount
		}
	}
	p.fail(keyword, "want a whole number from 0 on, got "+show(v))
	return -1
}

// most is a count that is an upper bound: one that no value reaches is none.
func (p *keywordParser) most(keyword string) int {
	if n := p.count(keyword); n < maxCount {
		return n
	}
	return -1
}

func (p *keywordParser) flag(keyword string) bool {
	v := p.value(keyword)
	if v == nil {
		return false
	}
	if v.Kind != jsonvalue.Boolean {
		p.fail(keyword, "want true or false, got "+show(v))
		return false
	}
	return v.Boolean
}

func (p *keywordParser) general() {
	n := p.node
	if v := p.value("type"); v != nil {
		p.types(v)
	}
	if v := p.value("nullable"); v != nil && v.Kind == jsonvalue.Boolean {
		n.nullable = v.Boolean
	}
	if v := p.value("enum"); v != nil {
		if v.Kind != jsonvalue.Array {
			p.fail("enum", "want a list of values, got "+show(v))
			return
		}
		n.listed = true
		seen := make(map[string]bool, len(v.Items))
		for _, item := range v.Items {
			text := jsonvalue.Canonical(item)
			p.document.counts.enumBytes += len(text)
			if !seen[text] {
				seen[text] = true
				n.values = append(n.values, item)
			}
		}
		if len(n.values) >= manyValues {
			n.texts = seen
		}
		p.document.counts.enumValues += len(v.Items)
		if c := p.document.counts; c.enumValues > MaxEnumValues {
			p.failed("enum", tooLarge(n.pointer, "enum", "values of all enums", c.enumValues, MaxEnumValues))
		} else if c.enumBytes > MaxEnumBytes {
			p.failed("enum", tooLarge(n.pointer, "enum", "bytes of all enums", c.enumBytes, MaxEnumBytes))
		}
	}
	if v := n.value.Get("const"); v != nil {
		if !n.listed {
			n.listed, n.values = true, []*jsonvalue.Value{v}
			return
		}
		var both []*jsonvalue.Value
		for _, other := range n.values {
			if jsonvalue.Equal(other, v) {
				both = append(both, other)
			}
		}
		n.values, n.texts = both, nil
	}
}

// manyValues is from how many values on a list is looked up by text.
const manyValues = 16

func (p *keywordParser) types(v *jsonvalue.Value) {
	list := []*jsonvalue.Value{v}
	if v.Kind == jsonvalue.Array {
		list = v.Items
	}
	n := p.node
	n.types = 0
	whole, all := false, false
	for _, item := range list {
		found := false
		if item.Kind == jsonvalue.String {
			for k := range jsonvalue.Kind(jsonvalue.Kinds) {
				if k.String() == item.Text {
					n.types |= only(k)
					found = true
					all = all || k == jsonvalue.Number
				}
			}
			if item.Text == "integer" {
				n.types |= only(jsonvalue.Number)
				found, whole = true, true
			}
		}
		if !found {
			p.fail("type", show(item)+" is no type; allowed: null, boolean, integer, number, string, array, object")
		}
	}
	n.integer = whole && !all
}

func (p *keywordParser) decimal(keyword string) *jsonvalue.Decimal {
	v := p.value(keyword)
	if v == nil {
		return nil
	}
	if v.Kind != jsonvalue.Number {
		p.fail(keyword, "want a number, got "+show(v))
		return nil
	}
	d := jsonvalue.ParseDecimal(v.Text)
	return &d
}

func (p *keywordParser) numbers() {
	n := p.node
	n.minimum, n.exclusiveMinimum = p.bound("minimum", "exclusiveMinimum", 1)
	n.maximum, n.exclusiveMaximum = p.bound("maximum", "exclusiveMaximum", -1)
	if n.multipleOf = p.decimal("multipleOf"); n.multipleOf != nil && n.multipleOf.Sign() <= 0 {
		p.fail("multipleOf", "want a number above 0")
	}
}

// bound is the tighter of two bounds; the exclusive one of draft 4 is a boolean about the other.
func (p *keywordParser) bound(inclusive, exclusive string, direction int) (*jsonvalue.Decimal, bool) {
	with := p.decimal(inclusive)
	v := p.value(exclusive)
	if v == nil {
		return with, false
	}
	if v.Kind == jsonvalue.Boolean {
		return with, with != nil && v.Boolean
	}
	without := p.decimal(exclusive)
	if without == nil || with != nil && with.Compare(*without)*direction > 0 {
		return with, false
	}
	return without, true
}

func (p *keywordParser) compiled(keyword, source string) *ecma.Pattern {
	if p.document.counts.patternBytes += len(source); p.document.counts.patternBytes > MaxPatternBytes {
		p.failed(keyword, tooLarge(p.node.pointer, keyword, "bytes of all patterns and names", p.document.counts.patternBytes, MaxPatternBytes))
		return nil
	}
	pattern, err := ecma.Parse(source)
	if err != nil {
		p.fail(keyword, "not a regular expression of ECMA-262: "+err.Error())
		return nil
	}
	if p.document.counts.classRanges += pattern.Ranges(); p.document.counts.classRanges > MaxClassRanges {
		p.failed(keyword, tooLarge(p.node.pointer, keyword, "ranges of characters in all patterns", p.document.counts.classRanges, MaxClassRanges))
		return nil
	}
	return pattern
}

func (p *keywordParser) strings() {
	n := p.node
	n.minLength, n.maxLength = p.count("minLength"), p.most("maxLength")
	if v := p.value("pattern"); v != nil {
		if v.Kind != jsonvalue.String {
			p.fail("pattern", "want a string, got "+show(v))
			return
		}
		n.pattern = p.compiled("pattern", v.Text)
	}
	if v := p.value("format"); v != nil && v.Kind == jsonvalue.String {
		n.format = v.Text
	}
}
