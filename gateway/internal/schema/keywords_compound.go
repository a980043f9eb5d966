package schema

import (
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

func (p *keywordParser) arrays() {
	n := p.node
	draft := p.document.draft
	items := p.value("items")
	switch {
	case items != nil && items.Kind == jsonvalue.Array: // drafts before 2020-12, and what is written as if
		n.prefix = p.schemasOf("items")
		n.items, n.itemsKeyword = p.schemaOf("additionalItems"), "additionalItems"
	case items != nil:
		n.items, n.itemsKeyword = p.schemaOf("items"), "items"
	}
	if draft == Draft2020 && p.value("prefixItems") != nil {
		n.prefix = p.schemasOf("prefixItems")
	}
	n.minItems, n.maxItems = p.count("minItems"), p.most("maxItems")
	n.unique = p.flag("uniqueItems")
	n.contains = p.schemaOf("contains")
	if draft != Draft7 {
		if n.contains != nil {
			n.minContains, n.maxContains = p.count("minContains"), p.most("maxContains")
		}
		n.unevaluatedItems = p.schemaOf("unevaluatedItems")
	}
	if n.contains != nil && n.minContains < 0 {
		n.minContains = 1
	}
	if n.unevaluatedItems != nil {
		p.document.tracked = true
	}
}

func (p *keywordParser) names(v *jsonvalue.Value, keyword string) []string {
	if v.Kind != jsonvalue.Array {
		p.fail(keyword, "want a list of names, got "+show(v))
		return nil
	}
	seen := make(map[string]bool, len(v.Items))
	var names []string
	for _, item := range v.Items {
		if item.Kind != jsonvalue.String {
			p.fail(keyword, "want a list of names, got "+show(item)+" in it")
			return nil
		}
		if !seen[item.Text] {
			seen[item.Text] = true
			names = append(names, item.Text)
		}
	}
	if len(names) > MaxProperties {
		p.failed(keyword, tooLarge(p.node.pointer, keyword, "names", len(names), MaxProperties))
	}
	return names
}

func (p *keywordParser) members(keyword string) []jsonvalue.Member {
	v := p.value(keyword)
	if v == nil {
		return nil
	}
	if v.Kind != jsonvalue.Object {
		p.fail(keyword, "want an object, got "+show(v))
		return nil
	}
	return v.Members
}

func (p *keywordParser) objects() {
	n := p.node
	members := p.members("properties")
	if len(members) > MaxProperties {
		p.failed("properties", tooLarge(n.pointer, "properties", "names", len(members), MaxProperties))
		return
	}
	for _, m := range members {
		p.document.counts.patternBytes += len(m.Key)
		n.properties = append(n.properties, named{m.Key, p.schema(m.Value, "properties", "properties/"+escapePointer(m.Key))})
	}
	for _, m := range p.members("patternProperties") {
		if pattern := p.compiled("patternProperties", m.Key); pattern != nil {
			n.patterns = append(n.patterns, patterned{pattern, p.schema(m.Value, "patternProperties", "patternProperties/"+escapePointer(m.Key))})
		}
	}
	n.additional = p.schemaOf("additionalProperties")
	n.propertyNames = p.schemaOf("propertyNames")
	if v := p.value("required"); v != nil {
		n.required = p.names(v, "required")
	}
	n.minProperties, n.maxProperties = p.count("minProperties"), p.most("maxProperties")
	p.dependencies()
	if p.document.draft != Draft7 {
		n.unevaluatedProperties = p.schemaOf("unevaluatedProperties")
	}
	if n.unevaluatedProperties != nil {
		p.document.tracked = true
	}
}

func (p *keywordParser) dependencies() {
	n := p.node
	add := func(keyword string, lists, schemas bool) {
		for _, m := range p.members(keyword) {
			switch {
			case m.Value.Kind == jsonvalue.Array && lists:
				n.dependencies = append(n.dependencies, dependency{key: m.Key, required: p.names(m.Value, keyword), keyword: keyword})
			case m.Value.Kind == jsonvalue.String && keyword == "dependencies": // draft 3's short form, which is still written
				n.dependencies = append(n.dependencies, dependency{key: m.Key, required: []string{m.Value.Text}, keyword: keyword})
			case isSchema(m.Value) && schemas:
				n.dependencies = append(n.dependencies, dependency{key: m.Key, schema: p.schema(m.Value, keyword, keyword+"/"+escapePointer(m.Key)), keyword: keyword})
			default:
				p.fail(keyword, "got "+show(m.Value)+" for a key")
			}
		}
	}
	add("dependencies", true, true)
	if p.document.draft != Draft7 {
		add("dependentRequired", true, false)
		add("dependentSchemas", false, true)
	}
}

func (p *keywordParser) applicators() {
	n := p.node
	n.allOf, n.anyOf, n.oneOf = p.schemasOf("allOf"), p.schemasOf("anyOf"), p.schemasOf("oneOf")
	for _, keyword := range []string{"allOf", "anyOf", "oneOf"} {
		if p.value(keyword) != nil && !n.applies(keyword) {
			p.fail(keyword, "want a list of at least one schema")
		}
	}
	n.not = p.schemaOf("not")
	if p.document.early {
		return // if came with draft 7, and texts for earlier drafts that have it are checked without
	}
	if n.when = p.schemaOf("if"); n.when != nil {
		n.whenTrue, n.whenNot = p.schemaOf("then"), p.schemaOf("else")
	}
}
