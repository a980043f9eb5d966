package schema

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// Draft is a version of JSON Schema.
type Draft int

// The drafts that are read. 4 and 6 are read as 7, with their booleans of exclusiveMinimum and their id.
const (
	Draft7    Draft = 7
	Draft2019 Draft = 2019
	Draft2020 Draft = 2020
)

// document is a schema's text with what its parts are called. Nothing outside of it is ever fetched.
type document struct {
	root      *node
	draft     Draft
	old       bool // draft 4: its id has no dollar
	early     bool // draft 4 or 6
	nodes     map[*jsonvalue.Value]*node
	order     []*node // by id
	resources map[string]*resource
	counts    counts
	made      int  // schemas that the compiler made
	tracked   bool // there are unevaluatedItems or unevaluatedProperties
}

// counts is what has been read so far of what is bounded in the whole document.
type counts struct{ enumValues, enumBytes, patternBytes, classRanges int }

// resource is a part of the document with a URI of its own.
type resource struct {
	uri     string
	root    *node
	anchors map[string]*node
}

// documentBase is the URI of a document that has none.
const documentBase = "schema:///document"

// readDocument reads the text, finds the names in it, and reads every schema that the root reaches.
func readDocument(text []byte, draft Draft) (*document, error) {
	value, err := jsonvalue.Read(text, jsonvalue.Limits{Bytes: MaxSchemaBytes + MaxEnumBytes, Depth: MaxDepth})
	if err != nil {
		return nil, &Error{Reason: "the schema: " + err.Error()}
	}
	if size := len(text) - enumBytes(value); size > MaxSchemaBytes {
		return nil, tooLarge("", "", "bytes beside the values of enums", size, MaxSchemaBytes)
	}
	return newDocument(value, draft)
}

// enumBytes is how many bytes of a schema's text at least are lists of strings under enum, which have a bound of their own.
func enumBytes(value *jsonvalue.Value) int {
	size := 0
	for _, item := range value.Items {
		size += enumBytes(item)
	}
	for _, m := range value.Members {
		if m.Key != "enum" || m.Value.Kind != jsonvalue.Array {
			size += enumBytes(m.Value)
			continue
		}
		for _, item := range m.Value.Items {
			size += len(item.Text) + 3 // its quotes and a comma
			if item.Kind != jsonvalue.String {
				size -= 2
			}
		}
	}
	return size
}

func newDocument(value *jsonvalue.Value, draft Draft) (*document, error) {
	if value.Kind != jsonvalue.Object && value.Kind != jsonvalue.Boolean {
		return nil, &Error{Pointer: "#", Reason: "a schema is an object or a boolean, not " + show(value)}
	}
	d := &document{draft: draft, nodes: map[*jsonvalue.Value]*node{}, resources: map[string]*resource{}}
	if d.draft == 0 {
		d.draft = Draft2020
	}
	if named := value.Get("$schema"); named != nil && named.Kind != jsonvalue.Null && (named.Kind != jsonvalue.String || named.Text != "") {
		if err := d.setDraft(named); err != nil {
			return nil, err
		}
	}
	first := &resource{uri: documentBase, anchors: map[string]*node{}}
	d.resources[documentBase] = first
	root, err := d.index(value, "#", first)
	if err != nil {
		return nil, err
	}
	first.root, d.root = root, root
	return d, d.reach()
}

func (d *document) setDraft(named *jsonvalue.Value) error {
	if named.Kind != jsonvalue.String {
		return &Error{Pointer: "#", Keyword: "$schema", Reason: "want a string, got " + show(named)}
	}
	name := strings.TrimSuffix(strings.TrimSuffix(named.Text, "#"), "/")
	name = strings.TrimPrefix(strings.TrimPrefix(name, "https://"), "http://")
	switch name {
	case "json-schema.org/draft/2020-12/schema":
		d.draft = Draft2020
	case "json-schema.org/draft/2019-09/schema":
		d.draft = Draft2019
	case "json-schema.org/draft-07/schema":
		d.draft = Draft7
	case "json-schema.org/draft-06/schema":
		d.draft, d.early = Draft7, true
	case "json-schema.org/draft-04/schema", "json-schema.org/draft-04/hyper-schema":
		d.draft, d.old, d.early = Draft7, true, true
	case "json-schema.org/schema", // the newest, whichever that is
		"spec.openapis.org/oas/3.1/dialect/base", "spec.openapis.org/oas/3.1/schema-base":
		d.draft = Draft2020
	default:
		if strings.Contains(name, "json-schema.org/draft") {
			return &Error{Pointer: "#", Keyword: "$schema", Reason: named.Text + " is not read; allowed: draft-04, draft-06, draft-07, 2019-09, 2020-12"}
		}
		return &Error{Pointer: "#", Keyword: "$schema", Reason: "unknown dialect " + show(named) + "; allowed: draft-04, draft-06, draft-07, 2019-09, 2020-12"}
	}
	return nil
}

// schemaKeywords hold a schema, schemaLists a list of schemas, schemaMaps an object of schemas.
var (
	schemaKeywords = map[string]bool{
		"additionalItems": true, "additionalProperties": true, "contains": true, "contentSchema": true, "else": true, "if": true, "items": true, "not": true,
		"propertyNames": true, "then": true, "unevaluatedItems": true, "unevaluatedProperties": true,
	}
	schemaLists = map[string]bool{"allOf": true, "anyOf": true, "items": true, "oneOf": true, "prefixItems": true}
	schemaMaps  = map[string]bool{"$defs": true, "definitions": true, "dependencies": true, "dependentSchemas": true, "patternProperties": true,
		"properties": true}
)

func isSchema(v *jsonvalue.Value) bool {
	return v.Kind == jsonvalue.Object || v.Kind == jsonvalue.Boolean
}

// index makes the node of a value and of the schemas in it. It goes down at most as deep as the text nests.
func (d *document) index(value *jsonvalue.Value, pointer string, in *resource) (*node, error) {
	if n := d.nodes[value]; n != nil {
		return n, nil
	}
	if len(d.order) >= MaxNodes {
		return nil, tooLarge("", "", "schemas", len(d.order)+1, MaxNodes)
	}
	n := &node{id: len(d.order), value: value, pointer: pointer, resource: in}
	d.nodes[value] = n
	d.order = append(d.order, n)
	if value.Kind != jsonvalue.Object {
		return n, nil
	}
	if err := d.name(n); err != nil {
		return nil, err
	}
	for _, member := range value.Members {
		at := pointer + "/" + escapePointer(member.Key)
		inside := member.Value
		switch {
		case schemaKeywords[member.Key] && isSchema(inside):
			if _, err := d.index(inside, at, n.resource); err != nil {
				return nil, err
			}
		case schemaLists[member.Key] && inside.Kind == jsonvalue.Array:
			for i, item := range inside.Items {
				if isSchema(item) {
					if _, err := d.index(item, at+"/"+strconv.Itoa(i), n.resource); err != nil {
						return nil, err
					}
				}
			}
		case schemaMaps[member.Key] && inside.Kind == jsonvalue.Object:
			for _, named := range inside.Members {
				if isSchema(named.Value) {
					if _, err := d.index(named.Value, at+"/"+escapePointer(named.Key), n.resource); err != nil {
						return nil, err
					}
				}
			}
		}
	}
	return n, nil
}

// name registers what a node calls itself.
func (d *document) name(n *node) error {
	keyword := "$id"
	if d.old {
		keyword = "id"
	}
	if d.draft == Draft7 && n.value.Get("$ref") != nil && n.pointer != "#" {
		return nil // beside $ref nothing counts
	}
	if id := n.value.Get(keyword); id != nil && id.Kind == jsonvalue.String {
		before, fragment, _ := strings.Cut(id.Text, "#")
		if before != "" {
			uri, err := resolve(n.resource.uri, before)
			if err != nil {
				return &Error{Pointer: n.pointer, Keyword: keyword, Reason: "not a URI reference: " + show(id)}
			}
			if d.resources[uri] == nil {
				n.resource = &resource{uri: uri, root: n, anchors: map[string]*node{}}
				d.resources[uri] = n.resource
			}
		}
		if fragment != "" && d.draft == Draft7 {
			n.resource.anchor(fragment, n)
		}
	}
	if d.draft != Draft7 {
		if anchor := n.value.Get("$anchor"); anchor != nil && anchor.Kind == jsonvalue.String {
			n.resource.anchor(anchor.Text, n)
		}
	}
	return nil
}

func (r *resource) anchor(name string, n *node) {
	if r.anchors[name] == nil {
		r.anchors[name] = n
	}
}

func resolve(base, reference string) (string, error) {
	to, err := url.Parse(reference)
	if err != nil {
		return "", err
	}
	if to.IsAbs() {
		return to.String(), nil
	}
	from, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	return from.ResolveReference(to).String(), nil
}

// follow finds what a reference of a node means.
func (d *document) follow(n *node, keyword, reference string) (*node, error) {
	wrong := func(reason string) error {
		return &Error{Pointer: n.pointer, Keyword: keyword, Reason: strconv.Quote(shorten(reference)) + " " + reason}
	}
	before, fragment, _ := strings.Cut(reference, "#")
	in := n.resource
	if before != "" {
		uri, err := resolve(n.resource.uri, before)
		if err != nil {
			return nil, wrong("is not a URI reference")
		}
		if in = d.resources[uri]; in == nil {
			return nil, wrong("is not in the schema, and nothing is fetched; put it under $defs")
		}
	}
	fragment, err := url.PathUnescape(fragment)
	if err != nil {
		return nil, wrong("has a fragment that cannot be read")
	}
	if fragment == "" {
		return in.root, nil
	}
	if !strings.HasPrefix(fragment, "/") {
		if found := in.anchors[fragment]; found != nil {
			return found, nil
		}
		return nil, wrong("names an anchor that is not in the schema")
	}
	found, err := d.at(in.root, fragment)
	if err != nil {
		return nil, err
	}
	if found == nil && before == "" && in.root != d.root { // many schemas give every part an id and mean the whole text all the same
		if found, err = d.at(d.root, fragment); err != nil {
			return nil, err
		}
	}
	if found == nil {
		return nil, wrong("points at no schema of the schema")
	}
	return found, nil
}

// at is the node at a JSON pointer behind a node, or nil where there is no schema.
func (d *document) at(from *node, pointer string) (*node, error) {
	value := from.value
	in := from.resource
	for step := range strings.SplitSeq(pointer[1:], "/") {
		step = strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		switch value.Kind {
		case jsonvalue.Object:
			value = value.Get(step)
		case jsonvalue.Array:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(value.Items) {
				return nil, nil
			}
			value = value.Items[i]
		default:
			return nil, nil
		}
		if value == nil {
			return nil, nil
		}
		if n := d.nodes[value]; n != nil {
			in = n.resource
		}
	}
	if !isSchema(value) {
		return nil, nil
	}
	return d.index(value, from.pointer+pointer, in)
}

// reach reads the keywords of every schema that counts.
func (d *document) reach() error {
	seen := map[*node]bool{d.root: true}
	queue := []*node{d.root}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		if err := d.parse(n); err != nil {
			return err
		}
		for _, next := range n.children() {
			if next != nil && !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return nil
}

func shorten(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}

// noLoop refuses schemas that come back to themselves on the same value: they say nothing.
func (d *document) noLoop() error {
	state := make(map[*node]uint8, len(d.order))
	type visit struct {
		n    *node
		next []*node
	}
	for _, start := range d.order {
		if state[start] != 0 || start.types == 0 && !start.boolean && len(start.references) == 0 {
			continue
		}
		stack := []visit{{start, start.inPlace()}}
		state[start] = 1
		for len(stack) > 0 {
			top := &stack[len(stack)-1]
			if len(top.next) == 0 {
				state[top.n] = 2
				stack = stack[:len(stack)-1]
				continue
			}
			n := top.next[0]
			top.next = top.next[1:]
			switch state[n] {
			case 0:
				state[n] = 1
				stack = append(stack, visit{n, n.inPlace()})
			case 1:
				return &Error{Pointer: n.pointer, Reason: "the schema refers to itself on the same value, so it says nothing"}
			}
		}
	}
	return nil
}

// inPlace are the schemas that a schema puts on its own value.
func (n *node) inPlace() []*node {
	var all []*node
	for _, list := range [][]*node{n.references, n.allOf, n.anyOf, n.oneOf, {n.not, n.when, n.whenTrue, n.whenNot}} {
		for _, sub := range list {
			if sub != nil {
				all = append(all, sub)
			}
		}
	}
	for _, dep := range n.dependencies {
		if dep.schema != nil {
			all = append(all, dep.schema)
		}
	}
	return all
}
