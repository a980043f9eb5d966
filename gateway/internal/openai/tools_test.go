package openai

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// weather is a tool with everything that one can have.
var weather = fields{"type": "function", "function": fields{
	"name": "get_weather", "description": "The weather at a place.", "strict": false,
	"parameters": json.RawMessage(`{"type": "object", "properties": {"zone": {"type": "string"}, "city": {"type": "string"}}, "required": ["city"]}`),
}}

var clock = fields{"type": "function", "function": fields{"name": "get_time"}}

const (
	oneCall  = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":  \"Ulm \\u00fc\", \"n\": 1.0}}\n</tool_call>"
	twoCalls = oneCall + "\n<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>"
)

// streamed is what a client makes of a stream: everything that is text is added up, as the SDKs do.
type streamed struct {
	message      map[string]any
	finish       string
	logprobs     []chatLogprob
	usage        map[string]any
	everyMessage []map[string]any
}

// accumulate adds up a stream as openai-python does: strings are joined, list entries with an index are merged, other values are replaced.
func accumulate(into, delta map[string]any) map[string]any {
	for key, value := range delta {
		old, ok := into[key]
		switch value := value.(type) {
		case string:
			if s, isText := old.(string); ok && isText && key != "type" {
				into[key] = s + value
				continue
			}
		case map[string]any:
			if m, isMap := old.(map[string]any); isMap {
				into[key] = accumulate(m, value)
				continue
			}
		case []any:
			list, _ := old.([]any)
			for _, item := range value {
				entry, isMap := item.(map[string]any)
				if !isMap {
					list = append(list, item)
					continue
				}
				at := int(entry["index"].(float64))
				if at == len(list) {
					list = append(list, entry)
				} else {
					list[at] = accumulate(list[at].(map[string]any), entry)
				}
			}
			into[key] = list
			continue
		}
		into[key] = value
	}
	return into
}

// streamChat asks for a stream and adds up its first choice.
func (w *world) streamChat(f fields) streamed {
	w.Helper()
	out := streamed{message: map[string]any{}}
	for _, event := range w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", f.with(fields{"stream": true, "stream_options": fields{"include_usage": true}})) {
		var chunk struct {
			Choices []struct {
				Index    int            `json:"index"`
				Delta    map[string]any `json:"delta"`
				Logprobs *struct {
					Content []chatLogprob `json:"content"`
				} `json:"logprobs"`
				FinishReason *string `json:"finish_reason"`
			} `json:"choices"`
			Usage map[string]any `json:"usage"`
		}
		w.ok(json.Unmarshal([]byte(event), &chunk))
		if chunk.Usage != nil {
			out.usage = chunk.Usage
		}
		for _, c := range chunk.Choices {
			if c.Index != 0 {
				continue
			}
			if out.finish != "" {
				w.Errorf("%s follows the end", event)
			}
			var kept map[string]any
			again, err := json.Marshal(c.Delta)
			w.ok(err)
			w.ok(json.Unmarshal(again, &kept))
			out.everyMessage = append(out.everyMessage, kept)
			out.message = accumulate(out.message, c.Delta)
			if c.Logprobs != nil {
				out.logprobs = append(out.logprobs, c.Logprobs.Content...)
			}
			if c.FinishReason != nil {
				out.finish = *c.FinishReason
			}
		}
	}
	return out
}

// wholeChat asks for a whole answer and gives its first choice.
func (w *world) wholeChat(f fields) (message map[string]any, finish string, usage map[string]any) {
	w.Helper()
	var out struct {
		Choices []struct {
			Message      map[string]any `json:"message"`
			FinishReason string         `json:"finish_reason"`
		} `json:"choices"`
		Usage map[string]any `json:"usage"`
	}
	w.answer("/v1/chat/completions", "CreateChatCompletionResponse", f, &out)
	return out.Choices[0].Message, out.Choices[0].FinishReason, out.Usage
}

// plainCalls are calls without their ids, which are random.
func plainCalls(message map[string]any) (out [][2]string) {
	calls, _ := message["tool_calls"].([]any)
	for _, c := range calls {
		f := c.(map[string]any)["function"].(map[string]any)
		out = append(out, [2]string{f["name"].(string), f["arguments"].(string)})
	}
	return out
}

// TestToolCalls: what the model writes comes back as thoughts, content and calls, the same whole and streamed.
func TestToolCalls(t *testing.T) {
	w := newWorld(t, options{})
	base := asking("weather?").with(fields{"tools": []fields{weather, clock}, "max_tokens": 200})
	weatherCall := [2]string{"get_weather", `{"city":  "Ulm \u00fc", "n": 1.0}`}
	for _, c := range []struct {
		name      string
		text      string
		change    fields
		content   any
		reasoning any
		calls     [][2]string
		finish    string
		thoughts  bool // some tokens are counted as thoughts
	}{
		{"one call", oneCall, nil, nil, nil, [][2]string{weatherCall}, "tool_calls", false},
		{"two calls", twoCalls, nil, nil, nil, [][2]string{weatherCall, {"get_time", "{}"}}, "tool_calls", false},
		{"content and a call", "Let me see.\n" + oneCall + "\n", nil, "Let me see.", nil, [][2]string{weatherCall}, "tool_calls", false},
		{"thoughts, content and a call", "<think>\nhm hm\n</think>\n\nYes.\n" + oneCall, nil, "Yes.", "hm hm", [][2]string{weatherCall}, "tool_calls", true},
		{"a call in thoughts", "<think>\nhm\n" + oneCall, nil, nil, "hm", [][2]string{weatherCall}, "tool_calls", true},
		{"one call is enough", twoCalls, fields{"parallel_tool_calls": false}, nil, nil, [][2]string{weatherCall}, "tool_calls", false},
		{"no tools", oneCall, fields{"tools": nil}, oneCall, nil, nil, "stop", false},
		{"an empty list of tools", oneCall, fields{"tools": []fields{}, "tool_choice": "auto"}, oneCall, nil, nil, "stop", false},
		{"no calls wanted", oneCall, fields{"tool_choice": "none"}, oneCall, nil, nil, "stop", false},
		{"calls are not read", oneCall, fields{"parse_tool_calls": false}, oneCall, nil, nil, "stop", false},
		{"nothing", "", nil, "", nil, nil, "stop", false},
		{"only thoughts", "<think>hm", nil, nil, "hm", nil, "stop", true},
		{"thoughts that are not given out", "<think>hm</think>a", fields{"include_reasoning": false}, "a", nil, nil, "stop", true},
		{"thoughts in the content", "<think>hm</think>a", fields{"separate_reasoning": false}, "<think>hm</think>a", nil, nil, "stop", false},
		{"a text that looks like a call", "<tool_call>\n[1, 2]\n</tool_call>", nil, "<tool_call>\n[1, 2]\n</tool_call>", nil, nil, "stop", false},
		{"a stop string behind a call", oneCall + "\nSTOP and more", fields{"stop": "STOP"}, nil, nil, [][2]string{weatherCall}, "tool_calls", false},
		{"a stop string in a call", oneCall, fields{"stop": "Ulm"}, nil, nil, [][2]string{{"get_weather", `{"city":  "`}}, "stop", false},
		{"cut in a call", oneCall, fields{"max_tokens": 20}, nil, nil, nil, "length", false},
		{"an unknown function", `<tool_call>{"name": "x.y", "arguments": {"a": [1]}}</tool_call>`, nil, nil, nil, [][2]string{{"x.y", `{"a": [1]}`}}, "tool_calls", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.says(c.text)
			ask := base.with(c.change)
			message, finish, usage := w.wholeChat(ask)
			stream := w.streamChat(ask.with(fields{"logprobs": true}))
			if finish != c.finish || stream.finish != c.finish {
				t.Errorf("finish %q, streamed %q, want %q", finish, stream.finish, c.finish)
			}
			if c.name != "cut in a call" {
				if !reflect.DeepEqual(message["content"], c.content) || !reflect.DeepEqual(message["reasoning_content"], c.reasoning) || !reflect.DeepEqual(message["reasoning"], c.reasoning) {
					t.Errorf("message %v", message)
				}
				if got := plainCalls(message); !slices.Equal(got, c.calls) {
					t.Errorf("calls %q, want %q", got, c.calls)
				}
			}
			if got := plainCalls(stream.message); !slices.Equal(got, plainCalls(message)) {
				t.Errorf("streamed calls %q, whole %q", got, plainCalls(message))
			}
			content, _ := message["content"].(string)
			if stream.message["content"] != content || stream.message["role"] != "assistant" || !reflect.DeepEqual(stream.message["reasoning_content"], message["reasoning_content"]) {
				t.Errorf("streamed %v, whole %v", stream.message, message)
			}
			for _, u := range []map[string]any{usage, stream.usage} {
				if thoughts := u["completion_tokens_details"].(map[string]any)["reasoning_tokens"].(float64); (thoughts > 0) != c.thoughts || thoughts > u["completion_tokens"].(float64) {
					t.Errorf("%v tokens of thoughts: %v", thoughts, u)
				}
			}
			text := ""
			for _, l := range stream.logprobs {
				text += l.Token
			}
			if c.change["stop"] == nil && c.name != "cut in a call" && !strings.HasPrefix(c.text, strings.ReplaceAll(text, "\uFFFD", "")) {
				t.Errorf("log-probabilities of %q, text %q", text, c.text)
			}
		})
	}
}

// TestCallDeltas: a call's id, name and type come once, in its first delta, which has arguments that are a string; the arguments come in pieces.
func TestCallDeltas(t *testing.T) {
	w := newWorld(t, options{})
	w.says(twoCalls)
	stream := w.streamChat(asking("weather?").with(fields{"tools": []fields{weather, clock}, "max_tokens": 200}))
	last, pieces := -1, 0
	ids := map[string]bool{}
	for _, delta := range stream.everyMessage {
		calls, _ := delta["tool_calls"].([]any)
		for _, one := range calls {
			call := one.(map[string]any)
			function := call["function"].(map[string]any)
			if _, ok := function["arguments"].(string); !ok {
				t.Errorf("arguments of %v are no string", call)
			}
			if int(call["index"].(float64)) == last {
				if call["id"] != nil || call["type"] != nil || function["name"] != nil {
					t.Errorf("%v says again who it is", call)
				}
				pieces++
				continue
			}
			last++
			if int(call["index"].(float64)) != last || call["type"] != "function" || function["name"] == "" || function["arguments"] != "" {
				t.Errorf("call %d begins with %v", last, call)
			}
			ids[call["id"].(string)] = true
		}
	}
	if last != 1 || len(ids) != 2 || pieces < 3 {
		t.Errorf("%d calls with %d ids in %d pieces", last+1, len(ids), pieces)
	}
}

// TestSeveralChoicesWithCalls: every choice has a reader of its own.
func TestSeveralChoicesWithCalls(t *testing.T) {
	w := newWorld(t, options{})
	w.says(oneCall, "no", "<think>a</think>"+twoCalls)
	a := w.chat(asking("weather?").with(fields{"tools": []fields{weather}, "n": 3, "max_tokens": 200}))
	if len(a.Choices[0].Message.ToolCalls) != 1 || a.Choices[1].Message.Content != "no" || len(a.Choices[2].Message.ToolCalls) != 2 || a.Choices[2].Message.Reasoning != "a" {
		t.Errorf("choices %+v", a.Choices)
	}
	if a.Choices[0].Message.ToolCalls[0].ID == a.Choices[2].Message.ToolCalls[0].ID || !strings.HasPrefix(a.Choices[0].Message.ToolCalls[0].ID, "call_") {
		t.Error("ids of calls")
	}
}

// TestFunctions: the older form of tools.
func TestFunctions(t *testing.T) {
	w := newWorld(t, options{})
	w.says("Well.\n" + twoCalls)
	ask := asking("weather?").with(fields{"functions": []any{weather["function"]}, "function_call": "auto", "max_tokens": 200})
	message, finish, _ := w.wholeChat(ask)
	stream := w.streamChat(ask)
	want := map[string]any{"name": "get_weather", "arguments": `{"city":  "Ulm \u00fc", "n": 1.0}`}
	if finish != "function_call" || stream.finish != finish || !reflect.DeepEqual(message["function_call"], want) || !reflect.DeepEqual(stream.message["function_call"], want) || message["tool_calls"] != nil {
		t.Errorf("%q %v, streamed %q %v", finish, message, stream.finish, stream.message)
	}
}

// prompt is the text that the model gets.
func (w *world) prompt(f fields) string {
	w.Helper()
	status, _, b := w.send(http.MethodPost, "/tokenize", f.text())
	if status != http.StatusOK {
		w.Fatalf("%d %s", status, b)
	}
	var out struct {
		Tokens []int32 `json:"tokens"`
	}
	w.ok(json.Unmarshal(b, &out))
	return w.model.Tokenizer.Decode(out.Tokens, false)
}

// TestToolsInThePrompt: the model is told of tools as it was trained, in the client's order of keys, whatever tool_choice says.
func TestToolsInThePrompt(t *testing.T) {
	w := newWorld(t, options{})
	ask := fields{"model": modelName, "messages": []fields{{"role": "user", "content": "weather?"}}, "tools": []fields{weather, clock}}
	text := w.prompt(ask)
	for _, want := range []string{
		`{"type": "function", "function": {"name": "get_weather", "description": "The weather at a place.", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "city": {"type": "string"}}, "required": ["city"]}}}`,
		`{"type": "function", "function": {"name": "get_time"}}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
	}
	if flat := w.prompt(ask.with(fields{"tools": []fields{{"type": "function", "name": "get_time"}}})); !strings.Contains(flat, `{"type": "function", "function": {"name": "get_time"}}`) {
		t.Errorf("a tool in the other form: %q", flat)
	}
	with := w.chat(asking("weather?").with(fields{"tools": []fields{weather, clock}})).Usage.PromptTokens
	if without := w.chat(asking("weather?").with(fields{"tools": []fields{weather, clock}, "tool_choice": "none"})).Usage.PromptTokens; without != with {
		t.Errorf("with tool_choice none the prompt has %d tokens, else %d", without, with)
	}
}

// TestToolHistory: an agent's conversation as clients send it.
func TestToolHistory(t *testing.T) {
	w := newWorld(t, options{})
	call := func(id, name string, arguments any) fields {
		return fields{"id": id, "type": "function", "index": 0, "function": fields{"name": name, "arguments": arguments}}
	}
	user, result := fields{"role": "user", "content": "q"}, fields{"role": "tool", "tool_call_id": "a", "content": "sunny"}
	turn := func(calls ...fields) fields { return fields{"role": "assistant", "content": nil, "tool_calls": calls} }
	prompt := func(messages ...fields) string {
		return w.prompt(fields{"model": modelName, "messages": messages, "tools": []fields{clock}})
	}
	want := prompt(user, turn(call("a", "f", `{"x": 1}`)), result)
	if !strings.Contains(want, `{"name": "f", "arguments": {"x": 1}}`) || !strings.Contains(want, "sunny") {
		t.Fatalf("prompt %q", want)
	}
	for name, messages := range map[string][]fields{
		"arguments as an object":  {user, turn(call("a", "f", fields{"x": 1})), result},
		"empty content":           {user, turn(call("a", "f", `{"x": 1}`)).with(fields{"content": ""}), result},
		"result in parts":         {user, turn(call("a", "f", `{"x": 1}`)), {"role": "tool", "tool_call_id": "a", "content": []fields{{"type": "text", "text": "sunny"}}}},
		"result of a function":    {user, {"role": "assistant", "content": nil, "function_call": fields{"name": "f", "arguments": `{"x": 1}`}}, {"role": "function", "name": "f", "content": "sunny"}},
		"an id that is not known": {user, turn(call("a", "f", `{"x": 1}`)), result.with(fields{"tool_call_id": "z"})},
	} {
		if got := prompt(messages...); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	two := turn(call("a", "f", "{}"), call("b", "g", ""))
	second := fields{"role": "tool", "tool_call_id": "b", "content": "late"}
	if got := prompt(user, two, second, result); got != prompt(user, two, result, second) {
		t.Errorf("results in another order: %q", got)
	}
	if got := prompt(user, turn(call("a", "f", `{"x": `)), result); !strings.Contains(got, `{"x": `) {
		t.Errorf("arguments that are no JSON: %q", got)
	}
	if got := prompt(user, turn(call("a", "f", "{}")), result.with(fields{"content": fields{"a": []int{1, 2}}})); !strings.Contains(got, `{"a":[1,2]}`) {
		t.Errorf("a result that is JSON: %q", got)
	}
	plain := prompt(user, fields{"role": "assistant", "content": "x"}, user)
	if got := prompt(user, fields{"role": "assistant", "content": "x", "tool_calls": []int{}}, user); got != plain {
		t.Errorf("an empty list of calls: %q", got)
	}
	if got := prompt(user, fields{"role": "assistant", "content": nil, "reasoning_content": "hm"}, user); !strings.Contains(got, "assistant") {
		t.Errorf("a turn of thoughts only: %q", got)
	}
}
