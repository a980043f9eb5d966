package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// Types of the items that a response is made of, in requests and in answers.
const (
	itemMessage      = "message"
	itemReasoning    = "reasoning"
	itemCall         = "function_call"
	itemOutput       = "function_call_output"
	itemCustomCall   = "custom_tool_call"
	itemCustomOutput = "custom_tool_call_output"
	itemReference    = "item_reference"
)

// Types of the parts of an item's content.
const (
	partInput     = "input_text"
	partOutput    = "output_text"
	partRefusal   = "refusal"
	partReasoning = "reasoning_text"
	partSummary   = "summary_text"
)

// hostedItems are what tools have left behind that ran at another service. The model has no words for them, so they are passed over.
var hostedItems = []string{
	"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call", "computer_call_output",
	"mcp_call", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output",
	"apply_patch_call", "apply_patch_call_output", "tool_search_call", "tool_search_output", "additional_tools", "program", "program_output",
}

// maxItems bounds the items of one conversation.
const maxItems = 1 << 16

// item is one item of a response. Which fields it has depends on its type; its JSON is that of the API, and is read back by parseItem.
type item struct {
	Type, ID, Status string

	Role    string     // of a message: user, assistant, system, developer
	Content []textPart // of messages and reasoning
	Summary []textPart // of reasoning that another server has summed up

	Encrypted string // of reasoning: its text in a form that clients keep and send back

	CallID, Name string // of calls; CallID of their outputs too
	Text         string // of a call its arguments, or the input of a custom one
	Output       []textPart
	Parts        bool // the output was a list of parts, and is told of as one
}

// textPart is one part of a content.
type textPart struct {
	Type, Text string
	Logprobs   []chatLogprob // of output_text
}

// MarshalJSON writes the part as the API has it.
func (p textPart) MarshalJSON() ([]byte, error) {
	switch p.Type {
	case partOutput:
		logprobs := p.Logprobs
		if logprobs == nil {
			logprobs = []chatLogprob{}
		}
		return json.Marshal(struct {
			Type        string        `json:"type"`
			Text        string        `json:"text"`
			Annotations []string      `json:"annotations"` // there are none
			Logprobs    []chatLogprob `json:"logprobs"`
		}{p.Type, p.Text, []string{}, logprobs})
	case partRefusal:
		return json.Marshal(struct {
			Type    string `json:"type"`
			Refusal string `json:"refusal"`
		}{p.Type, p.Text})
	}
	return json.Marshal(struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}{p.Type, p.Text})
}

// parts is a list that JSON has as one, though there is nothing in it.
func parts(list []textPart) []textPart {
	if list == nil {
		return []textPart{}
	}
	return list
}

// MarshalJSON writes the item as the API has it, with all keys of its type.
func (i item) MarshalJSON() ([]byte, error) {
	switch i.Type {
	case itemReasoning:
		return json.Marshal(struct {
			ID        string     `json:"id"`
			Type      string     `json:"type"`
			Status    string     `json:"status"`
			Summary   []textPart `json:"summary"`
			Content   []textPart `json:"content"`
			Encrypted string     `json:"encrypted_content,omitempty"`
		}{i.ID, i.Type, i.Status, parts(i.Summary), parts(i.Content), i.Encrypted})
	case itemCall:
		return json.Marshal(struct {
			ID        string `json:"id"`
			Type      string `json:"type"`
			Status    string `json:"status"`
			Arguments string `json:"arguments"`
			CallID    string `json:"call_id"`
			Name      string `json:"name"`
		}{i.ID, i.Type, i.Status, i.Text, i.CallID, i.Name})
	case itemCustomCall:
		return json.Marshal(struct {
			ID     string `json:"id"`
			Type   string `json:"type"`
			Status string `json:"status"`
			CallID string `json:"call_id"`
			Input  string `json:"input"`
			Name   string `json:"name"`
		}{i.ID, i.Type, i.Status, i.CallID, i.Text, i.Name})
	case itemOutput, itemCustomOutput:
		var output any = i.Output
		if !i.Parts {
			output = joined(i.Output)
		}
		return json.Marshal(struct {
			ID     string `json:"id"`
			Type   string `json:"type"`
			Status string `json:"status"`
			CallID string `json:"call_id"`
			Output any    `json:"output"`
		}{i.ID, i.Type, i.Status, i.CallID, output})
	}
	return json.Marshal(struct {
		ID      string     `json:"id"`
		Type    string     `json:"type"`
		Status  string     `json:"status"`
		Content []textPart `json:"content"`
		Role    string     `json:"role"`
	}{i.ID, i.Type, i.Status, parts(i.Content), i.Role})
}

// bytes is how much text the item has.
func (i *item) bytes() int {
	n := len(i.Text) + len(i.Encrypted)
	for _, list := range [][]textPart{i.Content, i.Summary, i.Output} {
		for _, p := range list {
			n += len(p.Text)
		}
	}
	return n
}

// joined is the text of some parts, as the model reads it.
func joined(list []textPart) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.Text
	}
	return strings.Join(texts, "\n")
}

// itemFields are all fields that an item of a request may have.
type itemFields struct {
	Type      string          `json:"type"`
	ID        *string         `json:"id"`
	Role      *string         `json:"role"`
	Status    *string         `json:"status"`
	Content   json.RawMessage `json:"content"`
	Summary   json.RawMessage `json:"summary"`
	Encrypted *string         `json:"encrypted_content"`
	CallID    *string         `json:"call_id"`
	Name      *string         `json:"name"`
	Namespace *string         `json:"namespace"`
	Arguments json.RawMessage `json:"arguments"`
	Input     *string         `json:"input"`
	Output    json.RawMessage `json:"output"`
}

func textOr(s *string, other string) string {
	if s == nil || *s == "" {
		return other
	}
	return *s
}

// parseItem reads one item. ok is false for one that says nothing to the model.
func parseItem(at string, raw json.RawMessage) (out item, ok bool, err error) {
	if inference.KindOf(raw) != '{' {
		return out, false, inference.Invalid(at, "must be an object")
	}
	var f itemFields
	if err := inference.DecodePart(at, raw, &f); err != nil {
		return out, false, err
	}
	if f.Type == "" && f.Role != nil {
		f.Type = itemMessage
	}
	out = item{Type: f.Type, ID: textOr(f.ID, ""), Status: "completed", CallID: textOr(f.CallID, ""), Name: textOr(f.Name, "")}
	if f.Status != nil && slices.Contains([]string{"in_progress", "incomplete"}, *f.Status) {
		out.Status = *f.Status
	}
	switch {
	case f.Type == itemMessage:
		return out, true, out.readMessage(at, &f)
	case f.Type == itemReasoning:
		err := out.readReasoning(at, &f)
		return out, len(out.Content)+len(out.Summary) > 0, err
	case f.Type == itemCall:
		return out, true, out.readCall(at, &f)
	case f.Type == itemCustomCall:
		out.Text = textOr(f.Input, "")
		return out, true, out.needName(at)
	case f.Type == itemOutput, f.Type == itemCustomOutput:
		out.Parts = inference.KindOf(f.Output) == '['
		out.Output, err = outputParts(at+".output", f.Output)
		return out, true, err
	case f.Type == itemReference:
		if out.ID == "" {
			return out, false, inference.Invalid(at+".id", "is required")
		}
		return out, true, nil
	case slices.Contains(hostedItems, f.Type):
		return out, false, nil
	case f.Type == "":
		return out, false, inference.Invalid(at+".type", "is required where there is no role")
	}
	allowed := []string{itemMessage, itemReasoning, itemCall, itemOutput, itemCustomCall, itemCustomOutput, itemReference}
	return out, false, inference.Unsupported(at+".type", fmt.Sprintf("%.40q is not supported; allowed are %s", f.Type, strings.Join(allowed, ", ")))
}

func (i *item) readMessage(at string, f *itemFields) (err error) {
	i.Role = textOr(f.Role, "")
	kind := partInput
	switch i.Role {
	case "user", "system", "developer":
	case "assistant":
		kind = partOutput
	default:
		return inference.Invalid(at+".role", "%.40q is not one of user, assistant, system, developer", i.Role)
	}
	i.Content, err = textParts(at+".content", f.Content, kind)
	return err
}

func (i *item) readReasoning(at string, f *itemFields) (err error) {
	if inference.Given(f.Content) {
		if i.Content, err = textParts(at+".content", f.Content, partReasoning); err != nil {
			return err
		}
	}
	if f.Encrypted != nil && len(i.Content) == 0 {
		if text, ok := openReasoning(*f.Encrypted); ok {
			i.Content = []textPart{{Type: partReasoning, Text: text}}
		}
	}
	if inference.Given(f.Summary) {
		i.Summary, err = textParts(at+".summary", f.Summary, partSummary)
	}
	return err
}

// readCall reads a call. Its arguments are text that the model wrote; an object, which some clients send, is the same.
func (i *item) readCall(at string, f *itemFields) error {
	i.Name = inNamespace(textOr(f.Namespace, ""), i.Name)
	switch inference.KindOf(f.Arguments) {
	case '"':
		text, err := inference.StringOf(f.Arguments)
		if err != nil {
			return inference.Invalid(at+".arguments", "%v", err)
		}
		i.Text = text
	case '{':
		var text bytes.Buffer
		if err := json.Compact(&text, f.Arguments); err != nil {
			return err
		}
		i.Text = text.String()
	case 0, 'n':
	default:
		return inference.Invalid(at+".arguments", "must be a string of JSON, or an object")
	}
	return i.needName(at)
}

func (i *item) needName(at string) error {
	if i.Name == "" {
		return inference.Invalid(at+".name", "is required")
	}
	return nil
}

// textParts reads a content: a string, or a list of parts. kind is what the parts are told of as.
func textParts(at string, raw json.RawMessage, kind string) ([]textPart, error) {
	switch inference.KindOf(raw) {
	case '"':
		text, err := inference.StringOf(raw)
		if err != nil {
			return nil, inference.Invalid(at, "%v", err)
		}
		if text == "" {
			return nil, nil
		}
		return []textPart{{Type: kind, Text: text}}, nil
	case '[':
	case 0, 'n':
		return nil, inference.Invalid(at, "is required")
	default:
		return nil, inference.Invalid(at, "must be a string or a list of text parts")
	}
	list, err := inference.Elements(raw, maxItems)
	if err != nil {
		return nil, inference.Invalid(at, "%v", err)
	}
	out := make([]textPart, 0, len(list))
	for i, one := range list {
		p, err := readPart(fmt.Sprintf("%s[%d]", at, i), one, kind)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func readPart(at string, raw json.RawMessage, kind string) (textPart, error) {
	if inference.KindOf(raw) == '"' {
		text, err := inference.StringOf(raw)
		return textPart{Type: kind, Text: text}, err
	}
	if inference.KindOf(raw) != '{' {
		return textPart{}, inference.Invalid(at, "must be an object with a type")
	}
	var f struct {
		Type    string  `json:"type"`
		Text    *string `json:"text"`
		Refusal *string `json:"refusal"`
	}
	if err := inference.DecodePart(at, raw, &f); err != nil {
		return textPart{}, err
	}
	text, field := f.Text, "text"
	switch f.Type {
	case partInput, partOutput, partReasoning, partSummary, "text":
	case partRefusal:
		text, field = f.Refusal, "refusal"
		if kind == partOutput {
			kind = partRefusal
		}
	default:
		return textPart{}, inference.Unsupported(at+".type", fmt.Sprintf("%.40q: only text parts are supported: the served models read text", f.Type))
	}
	if text == nil {
		return textPart{}, inference.Invalid(at+"."+field, "must be a string")
	}
	return textPart{Type: kind, Text: *text}, nil
}

// outputParts reads what a tool has given: text, parts of text, or any other JSON, which the model reads without white space.
func outputParts(at string, raw json.RawMessage) ([]textPart, error) {
	switch inference.KindOf(raw) {
	case '"', '[':
		return textParts(at, raw, partInput)
	case 0, 'n':
		return nil, inference.Invalid(at, "is required")
	}
	var text bytes.Buffer
	if err := json.Compact(&text, raw); err != nil {
		return nil, err
	}
	return []textPart{{Type: partInput, Text: text.String()}}, nil
}

// sealed is what encrypted_content begins with. Nothing is encrypted: it is a form in which clients that keep nothing else of reasoning send it back.
const sealed = "tin1."

func sealReasoning(text string) string {
	return sealed + base64.RawURLEncoding.EncodeToString([]byte(text))
}

// openReasoning undoes sealReasoning. What another server has encrypted cannot be read.
func openReasoning(text string) (string, bool) {
	encoded, ok := strings.CutPrefix(text, sealed)
	if !ok {
		return "", false
	}
	b, err := base64.RawURLEncoding.DecodeString(encoded)
	return string(b), err == nil && len(b) > 0
}
