package inference

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// DroppedHeader names the tools of a request that were left out.
const DroppedHeader = "X-Tinsmith-Dropped-Tools"

// Tool is a function that the model may call.
type Tool struct {
	Name        string
	Description *string
	// Parameters is the JSON schema of the arguments, in the client's order of keys; nil for a function without parameters.
	Parameters json.RawMessage
	// Strict has the arguments held to the schema while they are sampled.
	Strict bool
	// Field is where the request has the schema.
	Field string
}

// ChoiceMode says whether the model must call a tool.
type ChoiceMode int

// The modes.
const (
	ChooseAuto ChoiceMode = iota
	ChooseNone
	ChooseRequired
)

// Choice is what a request says about which tools are called.
type Choice struct {
	Mode ChoiceMode
	// Names are the tools that may be called; nil for all.
	Names []string
	// Single has the answer end after one call.
	Single bool
	// Field is the request's that said it.
	Field string
}

// Arguments are those of an earlier call as templates print them: an object, or the text where it is none, for the model wrote it and is to see what it wrote. No text is no arguments.
func Arguments(text string) jinja.Value {
	if strings.TrimSpace(text) == "" {
		return &jinja.Dict{}
	}
	if parsed, err := jinja.FromJSON([]byte(text)); err == nil {
		if object, ok := parsed.(*jinja.Dict); ok {
			return object
		}
	}
	return jinja.Str(text)
}

// function is the tool as templates read it: the keys that models were trained on, in their order, and only those that were given.
func (t *Tool) function() (*jinja.Dict, error) {
	f := &jinja.Dict{}
	f.Set("name", jinja.Str(t.Name))
	if t.Description != nil {
		f.Set("description", jinja.Str(*t.Description))
	}
	if t.Parameters != nil {
		parameters, err := jinja.FromJSON(t.Parameters)
		if err != nil {
			return nil, err
		}
		f.Set("parameters", parameters)
	}
	out := &jinja.Dict{}
	out.Set("type", jinja.Str("function"))
	out.Set("function", f)
	return out, nil
}

// checkTools refuses tools that the model cannot be told of.
func checkTools(m *catalog.Model, tools []Tool) error {
	switch {
	case len(tools) == 0:
	case !m.TakesTools:
		return Unsupported("tools", "the model's chat template has no tools")
	case m.ToolFormat == answer.None || m.ToolFormat == "":
		return Unsupported("tools", "it is not known how this model writes a tool call: name one of "+strings.Join(answer.Formats(), ", ")+" as tool_format of the model in the configuration, if it is one of them")
	}
	return nil
}

// readable are the tools as the reader of answers wants them.
func readable(tools []Tool) []answer.Tool {
	out := make([]answer.Tool, len(tools))
	for i, t := range tools {
		out[i] = answer.Tool{Name: t.Name, Parameters: t.Parameters}
	}
	return out
}

// known tells whether a tool of that name was given.
func known(tools []Tool, name string) bool {
	return slices.ContainsFunc(tools, func(t Tool) bool { return t.Name == name })
}

// Check refuses a choice that the tools do not allow, and what needs the answer to be held to a form while it is sampled.
func (c *Choice) Check(tools []Tool) error {
	for _, name := range c.Names {
		if !known(tools, name) {
			return Invalid(c.Field, "%.80q is not the name of a tool of the request", name)
		}
	}
	if c.Mode == ChooseRequired && len(tools) == 0 {
		return Invalid(c.Field, "asks for a call, and there are no tools")
	}
	return nil
}
