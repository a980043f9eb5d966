package inference

import (
	"encoding/json"
	"strings"
)

// Bounds of tools: all of them are read by the model at every turn.
const (
	// MaxTools is how many a request may have.
	MaxTools = 512

	maxToolsBytes = 1 << 20
	// MaxParametersBytes bounds one schema of arguments.
	MaxParametersBytes  = 256 << 10
	maxDescriptionBytes = 64 << 10
	maxToolName         = 256
)

// Function is a tool as a request defines it.
type Function struct {
	Name        string          `json:"name"`
	Description *string         `json:"description"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      *bool           `json:"strict"`
}

// Tool checks one. at names where it stands, as in tools[0].function, and parameters is what its parameters are called there.
func (f *Function) Tool(at, parameters string) (Tool, error) {
	if f.Name == "" || len(f.Name) > maxToolName || strings.ContainsFunc(f.Name, func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"'<>`, c) }) {
		return Tool{}, Invalid(at+".name", "%.40q is not allowed: 1 to %d printable ASCII characters without spaces, quotes, < and >", f.Name, maxToolName)
	}
	out := Tool{Name: f.Name, Description: f.Description, Strict: f.Strict != nil && *f.Strict, Field: at + "." + parameters}
	if f.Description != nil && len(*f.Description) > maxDescriptionBytes {
		return Tool{}, Invalid(at+".description", "%d bytes are more than %d", len(*f.Description), maxDescriptionBytes)
	}
	if Given(f.Parameters) {
		if KindOf(f.Parameters) != '{' {
			return Tool{}, Invalid(at+"."+parameters, "must be an object: a JSON schema")
		}
		if len(f.Parameters) > MaxParametersBytes {
			return Tool{}, Invalid(at+"."+parameters, "%d bytes are more than %d", len(f.Parameters), MaxParametersBytes)
		}
		out.Parameters = f.Parameters
	}
	return out, nil
}

// ToolList collects the tools of a request and refuses names that occur twice. The zero value is an empty one.
type ToolList struct {
	Tools []Tool
	Size  int // bytes of JSON
	names map[string]bool
}

// Add takes a tool. at names where it stands.
func (l *ToolList) Add(at string, t Tool) error {
	if l.names[t.Name] {
		return Invalid(at+".name", "%q is the name of an earlier one", t.Name)
	}
	if l.names == nil {
		l.names = map[string]bool{}
	}
	l.names[t.Name] = true
	l.Tools = append(l.Tools, t)
	return nil
}

// CountTools refuses too many or too large ones before they are looked at.
func CountTools(field string, raw []json.RawMessage) (size int, err error) {
	if len(raw) > MaxTools {
		return 0, Invalid(field, "%d are more than %d", len(raw), MaxTools)
	}
	for _, one := range raw {
		size += len(one)
	}
	if size > maxToolsBytes {
		return 0, Invalid(field, "%d bytes are more than %d", size, maxToolsBytes)
	}
	return size, nil
}
