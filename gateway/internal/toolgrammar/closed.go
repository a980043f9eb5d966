package toolgrammar

import (
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema"
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// Libraries that make schemas of functions leave additionalProperties out, and count on servers that write the listed properties and no others. By the standard
// any others are allowed there, and a small model writes them until it is cut. xgrammar, by which vLLM and SGLang hold calls that must be made, leaves them out by
// default as well. So an object that lists its properties and says nothing of others has no others, in the arguments of tools that are not strict: what comes is
// valid by the standard too.

// others are the keywords beside which an object says what other properties it has, or may have some of another schema.
var others = []string{"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$recursiveRef", "dependentSchemas", "dependencies", "dependentRequired"}

// closed is a schema of arguments without properties that it does not list. One that cannot be read is left to the compiler, which says why.
func closed(parameters []byte) []byte {
	root, err := jsonvalue.Read(parameters, jsonvalue.Limits{Bytes: schema.MaxSchemaBytes, Depth: schema.MaxDepth})
	if err != nil {
		return parameters
	}
	return []byte(jsonvalue.Text(closedValue(root)))
}

// closedValue closes an object's schema and those of its properties and items.
func closedValue(v *jsonvalue.Value) *jsonvalue.Value {
	if v.Kind != jsonvalue.Object {
		return v
	}
	out := &jsonvalue.Value{Kind: jsonvalue.Object, Members: slices.Clone(v.Members)}
	for i, m := range out.Members {
		switch {
		case m.Key == "properties" && m.Value.Kind == jsonvalue.Object:
			properties := &jsonvalue.Value{Kind: jsonvalue.Object, Members: slices.Clone(m.Value.Members)}
			for j, p := range properties.Members {
				properties.Members[j].Value = closedValue(p.Value)
			}
			out.Members[i].Value = properties
		case m.Key == "items":
			out.Members[i].Value = closedValue(m.Value)
		}
	}
	lists := false
	for _, m := range v.Members {
		if slices.Contains(others, m.Key) {
			return out
		}
		lists = lists || m.Key == "properties" && m.Value.Kind == jsonvalue.Object && len(m.Value.Members) > 0
		if m.Key == "required" && !listed(v, m.Value) {
			return out
		}
	}
	if lists {
		out.Members = append(out.Members, jsonvalue.Member{Key: "additionalProperties", Value: &jsonvalue.Value{Kind: jsonvalue.Boolean}})
	}
	return out
}

// listed tells whether all names of a list are among the properties.
func listed(v, names *jsonvalue.Value) bool {
	properties := v.Get("properties")
	for _, name := range names.Items {
		if properties.Get(name.Text) == nil {
			return false
		}
	}
	return true
}
