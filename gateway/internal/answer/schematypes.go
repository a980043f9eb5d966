package answer

import (
	"encoding/json"
	"strconv"
	"strings"
)

// types is a set of JSON types.
type types uint8

const (
	stringType types = 1 << iota
	integerType
	numberType
	booleanType
	nullType
	objectType
	arrayType

	// unknownType is all of them: the schema says nothing.
	unknownType types = 1<<iota - 1
	// anyJSON is no set: a value that says itself that it is JSON.
	anyJSON types = 1 << 7
)

// typeNames are JSON Schema's, and those of programming languages that tools are often described with.
var typeNames = map[string]types{
	"string": stringType, "integer": integerType, "number": numberType | integerType, "boolean": booleanType, "null": nullType, "object": objectType, "array": arrayType,
	"str": stringType, "text": stringType, "int": integerType, "int32": integerType, "int64": integerType, "long": integerType, "float": numberType | integerType,
	"double": numberType | integerType, "decimal": numberType | integerType, "bool": booleanType, "none": nullType, "dict": objectType, "map": objectType, "list": arrayType, "tuple": arrayType,
}

// maxSchemaSteps bounds how many schemas are looked at for one parameter: references may go in circles.
const maxSchemaSteps = 1000

// toolSchema answers what types the parameters of a tool may have. nil knows nothing.
type toolSchema struct {
	root  any
	steps int
}

// schemaOf finds the schema of a tool.
func schemaOf(tools []Tool, name string) *toolSchema {
	for _, t := range tools {
		if t.Name != name || len(t.Parameters) == 0 {
			continue
		}
		var root any
		decoder := json.NewDecoder(strings.NewReader(string(t.Parameters)))
		decoder.UseNumber()
		if decoder.Decode(&root) != nil {
			return nil
		}
		return &toolSchema{root: root}
	}
	return nil
}

// parameter gives the types that a parameter may have.
func (s *toolSchema) parameter(name string) types {
	if s == nil {
		return unknownType
	}
	s.steps = 0
	found := s.property(s.root, name)
	if found == 0 {
		return unknownType
	}
	return found
}

// property gives the types of a property of an object's schema.
func (s *toolSchema) property(schema any, name string) types {
	o := s.object(schema)
	if o == nil {
		return unknownType
	}
	found := unknownType
	if properties, ok := o["properties"].(map[string]any); ok {
		if p, ok := properties[name]; ok {
			found = s.of(p)
		}
	}
	if found == unknownType {
		if _, ok := o["additionalProperties"].(map[string]any); ok && !hasKey(o["properties"], name) {
			found = s.of(o["additionalProperties"])
		}
	}
	if ref, ok := o["$ref"].(string); ok {
		found &= s.property(s.resolve(ref), name)
	}
	for _, sub := range list(o["allOf"]) {
		found &= s.property(sub, name)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		subs := list(o[key])
		var any types
		for _, sub := range subs {
			any |= s.property(sub, name)
		}
		if len(subs) > 0 {
			found &= any
		}
	}
	return found
}

// of gives the types that a schema allows.
func (s *toolSchema) of(schema any) types {
	o := s.object(schema)
	if o == nil {
		return unknownType
	}
	found := unknownType
	switch t := o["type"].(type) {
	case string:
		found = namedType(t)
	case []any:
		found = 0
		for _, name := range t {
			if name, ok := name.(string); ok {
				found |= namedType(name)
			}
		}
	}
	if o["nullable"] == true {
		found |= nullType // OpenAPI's
	}
	if values, ok := o["enum"].([]any); ok && len(values) > 0 {
		var any types
		for _, v := range values {
			any |= typeOf(v)
		}
		found &= any
	}
	if v, ok := o["const"]; ok {
		found &= typeOf(v)
	}
	if ref, ok := o["$ref"].(string); ok {
		found &= s.of(s.resolve(ref))
	}
	for _, sub := range list(o["allOf"]) {
		found &= s.of(sub)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		subs := list(o[key])
		var any types
		for _, sub := range subs {
			any |= s.of(sub)
		}
		if len(subs) > 0 {
			found &= any
		}
	}
	return found
}

// object gives a schema that is an object, as long as there are steps left.
func (s *toolSchema) object(schema any) map[string]any {
	s.steps++
	if s.steps > maxSchemaSteps {
		return nil
	}
	o, _ := schema.(map[string]any)
	return o
}

// resolve follows a local reference.
func (s *toolSchema) resolve(ref string) any {
	if ref == "#" {
		return s.root
	}
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	at := s.root
	for _, step := range strings.Split(path, "/") {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case map[string]any:
			at = v[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(v) {
				return nil
			}
			at = v[i]
		default:
			return nil
		}
	}
	return at
}

// namedType gives the types of a name; one that is none says nothing.
func namedType(name string) types {
	if t, ok := typeNames[name]; ok {
		return t
	}
	return unknownType
}

// typeOf gives the type of a JSON value.
func typeOf(v any) types {
	switch v := v.(type) {
	case string:
		return stringType
	case bool:
		return booleanType
	case nil:
		return nullType
	case json.Number:
		if isIntegral(v.String()) {
			return integerType
		}
		return numberType
	case []any:
		return arrayType
	}
	return objectType
}

// list gives a list's elements.
func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func hasKey(v any, key string) bool {
	o, ok := v.(map[string]any)
	if !ok {
		return false
	}
	_, ok = o[key]
	return ok
}
