package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// customInput is the one parameter of the function that a custom tool is to the model.
const customInput = "input"

// hostedTools are tools that run at OpenAI, or whose arguments only OpenAI's models know. Clients send them by default, whether the model could use them or not, so they are left out, and told of
// in a header.
var hostedTools = []string{
	"web_search", "file_search", "code_interpreter", "image_generation", "mcp", "computer", "local_shell", "shell", "tool_search", "apply_patch", "programmatic_tool_calling",
}

// isHosted tells whether a tool is one of hostedTools, whatever version its name ends with.
func isHosted(kind string) bool {
	return slices.ContainsFunc(hostedTools, func(name string) bool {
		return kind == name || strings.HasPrefix(kind, name+"_preview") || strings.HasPrefix(kind, name+"_use") || strings.HasPrefix(kind, name+"_20")
	})
}

// responseTools are the tools of a request.
type responseTools struct {
	inference.ToolList
	custom  map[string]bool // names of those whose input is text
	told    []any           // as the answer tells of them
	dropped []string
}

// inNamespace is the name of a tool of a namespace, which may be none.
func inNamespace(namespace, name string) string {
	if namespace == "" || name == "" || strings.HasPrefix(name, namespace+".") {
		return name
	}
	return namespace + "." + name
}

// toldTool is a function as an answer tells of it.
type toldTool struct {
	Type        string          `json:"type"`
	Description *string         `json:"description"`
	Name        string          `json:"name"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"`
}

// responseTools reads the tools.
func (r *responsesRequest) responseTools() (*responseTools, error) {
	out := &responseTools{custom: map[string]bool{}, told: []any{}}
	var err error
	if out.Size, err = inference.CountTools("tools", r.Tools); err != nil {
		return nil, err
	}
	for i, raw := range r.Tools {
		told, err := out.read(fmt.Sprintf("tools[%d]", i), raw)
		if err != nil {
			return nil, err
		}
		if told != nil {
			out.told = append(out.told, told)
		}
	}
	if len(out.Tools) > inference.MaxTools {
		return nil, inference.Invalid("tools", "%d are more than %d", len(out.Tools), inference.MaxTools)
	}
	return out, nil
}

// read takes one entry of tools, and gives what the answer tells of it: nil for one that is dropped.
func (l *responseTools) read(at string, raw json.RawMessage) (told any, err error) {
	if inference.KindOf(raw) != '{' {
		return nil, inference.Invalid(at, "must be an object")
	}
	var f struct {
		Type  string            `json:"type"`
		Name  string            `json:"name"`
		Tools []json.RawMessage `json:"tools"`
	}
	if err := inference.DecodePart(at, raw, &f); err != nil {
		return nil, err
	}
	switch {
	case f.Type == "function" || f.Type == "":
		return l.function(at, raw, "")
	case f.Type == "custom":
		return raw, l.customTool(at, raw, "")
	case f.Type == "namespace":
		if f.Name == "" {
			return nil, inference.Invalid(at+".name", "is required")
		}
		for i, one := range f.Tools {
			if err := l.inside(fmt.Sprintf("%s.tools[%d]", at, i), one, f.Name); err != nil {
				return nil, err
			}
		}
		return raw, nil
	case isHosted(f.Type):
		l.drop(f.Type)
		return nil, nil
	}
	return nil, inference.Unsupported(at+".type", fmt.Sprintf("%.40q is not supported; allowed are function, custom and namespace", f.Type))
}

// The header names so many kinds of tools, and of each so many bytes.
const (
	maxDropped     = 32
	maxDroppedName = 64
)

// drop leaves a tool out.
func (l *responseTools) drop(kind string) {
	name := strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' || c == ',' {
			return '?'
		}
		return c
	}, kind[:min(len(kind), maxDroppedName)])
	if len(l.dropped) < maxDropped && !slices.Contains(l.dropped, name) {
		l.dropped = append(l.dropped, name)
	}
}

// inside takes a tool of a namespace.
func (l *responseTools) inside(at string, raw json.RawMessage, namespace string) error {
	var f struct {
		Type string `json:"type"`
	}
	if inference.KindOf(raw) != '{' {
		return inference.Invalid(at, "must be an object")
	}
	if err := inference.DecodePart(at, raw, &f); err != nil {
		return err
	}
	switch f.Type {
	case "function", "":
		_, err := l.function(at, raw, namespace)
		return err
	case "custom":
		return l.customTool(at, raw, namespace)
	}
	return inference.Unsupported(at+".type", fmt.Sprintf("%.40q is not supported in a namespace; allowed are function and custom", f.Type))
}

func (l *responseTools) function(at string, raw json.RawMessage, namespace string) (any, error) {
	f, where, err := readFunction(at, raw, false)
	if err != nil {
		return nil, err
	}
	f.Name = inNamespace(namespace, f.Name)
	t, err := f.Tool(where, "parameters")
	if err != nil {
		return nil, err
	}
	return toldTool{"function", t.Description, t.Name, t.Parameters, t.Strict}, l.Add(where, t)
}

// customTool makes a function with one parameter of a tool whose input is text. Of its grammar a regular expression is kept, as the parameter's pattern; other grammars are not enforced.
func (l *responseTools) customTool(at string, raw json.RawMessage, namespace string) error {
	var f struct {
		inference.Function
		Format *struct {
			Type       string `json:"type"`
			Syntax     string `json:"syntax"`
			Definition string `json:"definition"`
		} `json:"format"`
	}
	if err := inference.DecodePart(at, raw, &f); err != nil {
		return err
	}
	input := map[string]string{"type": "string"}
	if f.Format != nil && f.Format.Type == "grammar" && f.Format.Syntax == "regex" {
		input["pattern"] = "^(?:" + f.Format.Definition + ")$"
	}
	var err error
	if f.Parameters, err = json.Marshal(map[string]any{"type": "object", "properties": map[string]any{customInput: input}, "required": []string{customInput}, "additionalProperties": false}); err != nil {
		return err
	}
	f.Strict, f.Name = nil, inNamespace(namespace, f.Name)
	t, err := f.Tool(at, "parameters")
	if err != nil {
		return err
	}
	l.custom[t.Name] = true
	return l.Add(at, t)
}

// toldChoice names a tool in an answer's tool_choice.
type toldChoice struct {
	Type string `json:"type"`
	Name string `json:"name"`
}

// choice reads tool_choice, and gives it as the answer tells of it.
func (r *responsesRequest) choice(tools *responseTools) (out inference.Choice, told any, err error) {
	out = inference.Choice{Field: "tool_choice", Single: r.ParallelToolCalls != nil && !*r.ParallelToolCalls}
	raw := r.ToolChoice
	if !inference.Given(raw) {
		return out, "auto", nil
	}
	if inference.KindOf(raw) == '{' {
		var c namedTool
		if err := inference.DecodePart(out.Field, raw, &c); err != nil {
			return out, nil, err
		}
		switch {
		case isHosted(c.Type):
			return out, nil, inference.Unsupported(out.Field, fmt.Sprintf("%.40q is a tool that runs elsewhere, and is not served", c.Type))
		case c.Type == "custom":
			if raw, err = json.Marshal(toldChoice{"function", c.name()}); err != nil {
				return out, nil, err
			}
		}
	}
	if err := readChoice(raw, &out); err != nil {
		return out, nil, err
	}
	return out, tools.toldChoice(&out), nil
}

// toldChoice is a choice as the answer tells of it.
func (l *responseTools) toldChoice(c *inference.Choice) any {
	named := make([]toldChoice, len(c.Names))
	for i, name := range c.Names {
		named[i] = toldChoice{"function", name}
		if l.custom[name] {
			named[i].Type = "custom"
		}
	}
	mode := map[inference.ChoiceMode]string{inference.ChooseAuto: "auto", inference.ChooseNone: "none", inference.ChooseRequired: "required"}[c.Mode]
	switch {
	case len(named) == 0:
		return mode
	case len(named) == 1 && c.Single && c.Mode == inference.ChooseRequired:
		return named[0]
	}
	return struct {
		Type  string       `json:"type"`
		Mode  string       `json:"mode"`
		Tools []toldChoice `json:"tools"`
	}{"allowed_tools", mode, named}
}

// toldFormat is text.format as the answer tells of it.
type toldFormat struct {
	Type        string          `json:"type"`
	Description *string         `json:"description,omitempty"`
	Name        string          `json:"name,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"`
	Strict      *bool           `json:"strict,omitempty"`
	Nested      json.RawMessage `json:"json_schema,omitempty"` // as chat completions have it; refused
}

// form is the one that the answer is held to: by text.format, or by a field of another server's.
func (r *responsesRequest) form() (out inference.AnswerForm, told toldFormat, err error) {
	if out, told, err = r.textFormat(); err != nil {
		return out, told, err
	}
	other, err := r.formFields.form()
	switch {
	case err != nil || other.Field == "":
		return out, told, err
	case out.Field != "":
		return out, told, inference.Invalid(other.Field, "cannot be given together with %s: an answer has one form", out.Field)
	}
	return other, told, nil
}

// textFormat reads text.format.
func (r *responsesRequest) textFormat() (out inference.AnswerForm, told toldFormat, err error) {
	const field = "text.format"
	told = toldFormat{Type: "text"}
	if r.Text == nil || !inference.Given(r.Text.Format) {
		return out, told, nil
	}
	raw := r.Text.Format
	if inference.KindOf(raw) != '{' {
		return out, told, inference.Invalid(field, "must be an object with a type")
	}
	var f toldFormat
	if err := inference.DecodePart(field, raw, &f); err != nil {
		return out, told, err
	}
	switch f.Type {
	case "text":
	case "json_object":
		return inference.AnswerForm{Field: field, Object: true}, toldFormat{Type: f.Type}, nil
	case "json_schema":
		strict := f.Strict != nil && *f.Strict
		switch {
		case inference.Given(f.Nested):
			return out, told, inference.Invalid(field+".json_schema", `name, schema and strict stand beside type here: {"type": "json_schema", "name": "…", "schema": {…}, "strict": true}`)
		case !inference.Given(f.Schema) && strict:
			return out, told, inference.Invalid(field+".schema", "is required with strict")
		case !inference.Given(f.Schema):
			f.Schema = json.RawMessage("{}")
		case inference.KindOf(f.Schema) != '{':
			return out, told, inference.Invalid(field+".schema", "must be an object: a JSON schema")
		case len(f.Schema) > inference.MaxParametersBytes:
			return out, told, inference.Invalid(field+".schema", "%d bytes are more than %d", len(f.Schema), inference.MaxParametersBytes)
		}
		f.Strict = &strict
		if f.Name == "" {
			f.Name = "response"
		}
		return inference.AnswerForm{Field: field, Schema: f.Schema, Strict: strict}, f, nil
	default:
		return out, told, inference.Invalid(field+".type", "%.40q is not one of text, json_object, json_schema", f.Type)
	}
	return out, told, nil
}
