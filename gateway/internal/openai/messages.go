package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// roles that a message may have. A developer's message is a system message to every template that we know, and a function's is a tool's.
var roles = map[string]string{"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool", "function": "tool"}

// parseMessages reads the messages of a chat. size is their bytes.
func parseMessages(field string, raw []json.RawMessage) (messages []*jinja.Dict, size int, err error) {
	messages = make([]*jinja.Dict, len(raw))
	for i, one := range raw {
		if messages[i], err = parseMessage(fmt.Sprintf("%s[%d]", field, i), one); err != nil {
			return nil, 0, err
		}
		size += len(one)
	}
	return messages, size, nil
}

// parseMessage checks one message and brings it into the form that templates expect: text content, tool arguments as objects.
func parseMessage(field string, raw json.RawMessage) (*jinja.Dict, error) {
	value, err := jinja.FromJSON(raw)
	if err != nil {
		return nil, inference.Invalid(field, "%v", err)
	}
	message, ok := value.(*jinja.Dict)
	if !ok {
		return nil, inference.Invalid(field, "must be an object")
	}
	role, ok := message.Get("role")
	name, isText := role.(jinja.Str)
	if !ok || !isText || roles[string(name)] == "" {
		return nil, inference.Invalid(field+".role", "%.40q is not one of system, developer, user, assistant, tool", string(name))
	}
	calls, err := assistantCalls(field, message)
	if err != nil {
		return nil, err
	}
	message = without(message, "tool_calls", "function_call") // templates ask whether there are any by asking for the key
	message.Set("role", jinja.Str(roles[string(name)]))
	content, ok := message.Get("content")
	switch {
	case ok && content != jinja.None:
		text, err := contentText(field+".content", content)
		if name == "tool" && !isParts(content) {
			text, err = compactContent(raw)
		}
		if err != nil {
			return nil, err
		}
		message.Set("content", jinja.Str(text))
	case name == "assistant" && (calls != nil || hasThoughts(message)):
		message.Set("content", jinja.Str(""))
	default:
		return nil, inference.Invalid(field+".content", "is required")
	}
	if calls != nil {
		message.Set("tool_calls", calls)
	}
	return message, nil
}

func hasThoughts(message *jinja.Dict) bool {
	for _, key := range []string{"reasoning_content", "reasoning", "thinking"} {
		if value, ok := message.Get(key); ok && value != jinja.None && value != jinja.Value(jinja.Str("")) {
			return true
		}
	}
	return false
}

// without copies a message without some keys.
func without(message *jinja.Dict, keys ...string) *jinja.Dict {
	out := &jinja.Dict{}
	for i := range message.Len() {
		key, value := message.At(i)
		name := string(key.(jinja.Str)) // it comes from JSON
		leave := false
		for _, k := range keys {
			leave = leave || k == name
		}
		if !leave {
			out.Set(name, value)
		}
	}
	return out
}

// isParts tells whether a content is text or a list of parts. The result of a tool may be any other JSON.
func isParts(content jinja.Value) bool {
	list, ok := content.(*jinja.List)
	if !ok {
		_, ok = content.(jinja.Str)
		return ok
	}
	for _, item := range list.Items {
		part, ok := item.(*jinja.Dict)
		if !ok {
			return false
		}
		if _, ok := part.Get("type"); !ok {
			return false
		}
	}
	return true
}

// compactContent is the content of a message as JSON without white space, which is how the model reads it.
func compactContent(raw json.RawMessage) (string, error) {
	var message struct {
		Content json.RawMessage `json:"content"`
	}
	if err := json.Unmarshal(raw, &message); err != nil {
		return "", err
	}
	var out bytes.Buffer
	err := json.Compact(&out, message.Content)
	return out.String(), err
}

// contentText joins a list of text parts; parts that are no text are refused.
func contentText(field string, content jinja.Value) (string, error) {
	switch c := content.(type) {
	case jinja.Str:
		return string(c), nil
	case *jinja.List:
		texts := make([]string, 0, len(c.Items))
		for i, item := range c.Items {
			text, err := partText(fmt.Sprintf("%s[%d]", field, i), item)
			if err != nil {
				return "", err
			}
			texts = append(texts, text)
		}
		return strings.Join(texts, "\n"), nil
	}
	return "", inference.Invalid(field, "must be a string or a list of text parts")
}

// partText is the text of one part of a content.
func partText(field string, item jinja.Value) (string, error) {
	if text, ok := item.(jinja.Str); ok {
		return string(text), nil
	}
	part, ok := item.(*jinja.Dict)
	if !ok {
		return "", inference.Invalid(field, "must be an object with a type")
	}
	kind, _ := part.Get("type")
	key := "text"
	switch kind {
	case jinja.Value(jinja.Str("text")):
	case jinja.Value(jinja.Str("refusal")):
		key = "refusal"
	default:
		return "", inference.Invalid(field+".type", "only text parts are supported: the served models read text")
	}
	text, _ := part.Get(key)
	s, ok := text.(jinja.Str)
	if !ok {
		return "", inference.Invalid(field+"."+key, "must be a string")
	}
	return string(s), nil
}

// assistantCalls reads the tool calls of an earlier turn in either of their forms; nil if there are none.
func assistantCalls(field string, message *jinja.Dict) (jinja.Value, error) {
	if calls, ok := message.Get("tool_calls"); ok && calls != jinja.None {
		list, ok := calls.(*jinja.List)
		if !ok {
			return nil, inference.Invalid(field+".tool_calls", "must be a list")
		}
		if len(list.Items) > 0 {
			return toolCalls(field+".tool_calls", list)
		}
	}
	call, ok := message.Get("function_call")
	if !ok || call == jinja.None {
		return nil, nil
	}
	function, err := calledFunction(field+".function_call", call)
	if err != nil {
		return nil, err
	}
	one := &jinja.Dict{}
	one.Set("type", jinja.Str("function"))
	one.Set("function", function)
	return &jinja.List{Items: []jinja.Value{one}}, nil
}

// toolCalls parses the arguments of earlier tool calls, which clients send as JSON in a string and templates print as objects.
func toolCalls(field string, list *jinja.List) (jinja.Value, error) {
	out := &jinja.List{Items: make([]jinja.Value, len(list.Items))}
	for i, item := range list.Items {
		at := fmt.Sprintf("%s[%d]", field, i)
		one, ok := item.(*jinja.Dict)
		if !ok {
			return nil, inference.Invalid(at, "must be an object")
		}
		function, _ := one.Get("function")
		if function == nil {
			return nil, inference.Invalid(at+".function", "is required")
		}
		f, err := calledFunction(at+".function", function)
		if err != nil {
			return nil, err
		}
		one = without(one, "index") // of an event of a stream that was collected
		one.Set("function", f)
		out.Items[i] = one
	}
	return out, nil
}

// calledFunction checks the name and arguments of a call. Arguments that are no JSON object stay as they are: the model wrote them, and is to see what it wrote.
func calledFunction(field string, value jinja.Value) (*jinja.Dict, error) {
	f, ok := value.(*jinja.Dict)
	if !ok {
		return nil, inference.Invalid(field, "must be an object")
	}
	name, _ := f.Get("name")
	if s, ok := name.(jinja.Str); !ok || s == "" {
		return nil, inference.Invalid(field+".name", "is required")
	}
	f = f.Clone()
	arguments, _ := f.Get("arguments")
	switch a := arguments.(type) {
	case *jinja.Dict:
	case jinja.Str:
		f.Set("arguments", inference.Arguments(string(a)))
	case nil:
		f.Set("arguments", &jinja.Dict{})
	default:
		if arguments == jinja.None {
			f.Set("arguments", &jinja.Dict{})
			break
		}
		return nil, inference.Invalid(field+".arguments", "must be a string of JSON, or an object")
	}
	return f, nil
}
