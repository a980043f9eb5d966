package anthropic

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

func text(s string) object { return object{"type": "text", "text": s} }

func says(role string, content ...any) object {
	if s, ok := content[0].(string); ok {
		return object{"role": role, "content": s}
	}
	return object{"role": role, "content": content}
}

// TestConversations: what means the same makes the same prompt.
func TestConversations(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	use := func(id string) object {
		return object{"type": "tool_use", "id": id, "name": "get_weather", "input": object{"city": "Ulm"}}
	}
	result := func(id string, content any) object {
		return object{"type": "tool_result", "tool_use_id": id, "content": content}
	}
	const called = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>"
	turn := func(role, text string) string { return "<|im_start|>" + role + "\n" + text + "<|im_end|>\n" }
	const next = "<|im_start|>assistant\n"
	for _, c := range []struct {
		name   string
		system any
		says   []object
		want   string
	}{
		{"a string", nil, []object{says("user", "hi")}, turn("user", "hi") + next},
		{"blocks", nil, []object{says("user", text("a"), text(""), object{"type": "text", "text": "b", "cache_control": object{"type": "ephemeral"}})}, turn("user", "a\nb") + next},
		{"a system text", "be brief", []object{says("user", "hi")}, turn("system", "be brief") + turn("user", "hi") + next},
		{"system blocks", []object{text("x-anthropic-billing-header: cc_version=1; cch=00000;"), text("be"), object{"type": "text", "text": "brief", "cache_control": object{"type": "ephemeral"}}}, []object{says("user", "hi")}, turn("system", "be\nbrief") + turn("user", "hi") + next},
		{"no system blocks", []object{}, []object{says("user", "hi")}, turn("user", "hi") + next},
		{"nothing said", nil, []object{says("user", object{"type": "text", "text": ""})}, turn("user", "") + next},
		{"a prefill", nil, []object{says("user", "hi"), says("assistant", "The answer ")}, turn("user", "hi") + "<|im_start|>assistant\n<think>\n\n</think>\n\nThe answer "},
		{"an empty prefill", nil, []object{says("user", "hi"), says("assistant", "")}, turn("user", "hi") + next},
		{"a prefill of nothing that is read", nil, []object{says("user", "hi"), says("assistant", object{"type": "redacted_thinking", "data": "x"})}, turn("user", "hi") + next},
		{"the assistant's text in pieces", nil, []object{says("user", "hi"), says("assistant", text("a "), text("b")), says("user", "so")}, turn("user", "hi") + turn("assistant", "a b") + turn("user", "so") + next},
		{"what servers have done", nil, []object{
			says("user", "hi"), says("assistant", text("a"), object{"type": "server_tool_use", "id": "s", "name": "web_search", "input": 5}, object{"type": "web_search_tool_result", "content": 5}, object{"type": "mcp_tool_use"}), says("user", "so"),
		}, turn("user", "hi") + turn("assistant", "a") + turn("user", "so") + next},
		{"results before the text", nil, []object{says("user", "hi"), says("assistant", use("a"), use("b")), says("user", text("and?"), result("b", "rain"), result("a", []object{text("sun"), text("shine")}))}, turn("user", "hi") + turn("assistant", called+"\n"+called) + "<|im_start|>user\n<tool_response>\nsun\nshine\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>\n" + turn("user", "and?") + next},
		{"an error", nil, []object{says("user", "hi"), says("assistant", use("a")), says("user", object{"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": "no such place"})}, turn("user", "hi") + turn("assistant", called) + turn("user", "<tool_response>\nError: no such place\n</tool_response>") + next},
		{"a result of nothing", nil, []object{says("user", "hi"), says("assistant", use("a")), says("user", object{"type": "tool_result", "tool_use_id": "a"})}, turn("user", "hi") + turn("assistant", called) + turn("user", "<tool_response>\n\n</tool_response>") + next},
		{"a result that names a tool", nil, []object{says("user", "hi"), says("assistant", use("a")), says("user", result("a", []object{{"type": "tool_reference", "tool_name": "get_weather"}}))}, turn("user", "hi") + turn("assistant", called) + turn("user", "<tool_response>\nget_weather\n</tool_response>") + next},
		{"arguments that were no JSON", nil, []object{says("user", "hi"), says("assistant", object{"type": "tool_use", "id": "a", "name": "f", "input": object{"_raw_arguments": `{"city": Ulm}`}}), says("user", result("a", "x"))}, turn("user", "hi") + turn("assistant", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": Ulm}}\n</tool_call>") + turn("user", "<tool_response>\nx\n</tool_response>") + next},
		{"the system in the middle", nil, []object{says("user", "hi"), says("assistant", use("a")), says("user", result("a", "x")), says("system", "<total_tokens>5</total_tokens>")}, turn("user", "hi") + turn("assistant", called) + turn("user", "<tool_response>\nx\n</tool_response>") + turn("system", "<total_tokens>5</total_tokens>") + next},
		{"the system in the middle of a turn", nil, []object{says("user", text("a"), object{"type": "mid_conv_system", "content": []object{text("b")}}, text("c"))}, turn("user", "a") + turn("system", "b") + turn("user", "c") + next},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{w.On(t), w.header}
			f := fields{"model": inferencetest.ModelName, "max_tokens": 5, "messages": c.says}
			if c.system != nil {
				f["system"] = c.system
			}
			if got := w.prompt(f); got != c.want {
				t.Errorf("prompt\n%q, want\n%q", got, c.want)
			}
		})
	}
}

// TestToolsInThePrompt: the model is told of tools as it was trained; tools of Anthropic's servers are left out and named.
func TestToolsInThePrompt(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	search := fields{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
	tools := fields{"tools": []fields{weather.With(fields{"type": "custom", "cache_control": fields{"type": "ephemeral"}, "defer_loading": false, "input_examples": []int{}}), search, {"type": "tool_search_tool_bm25", "name": "x"}, {"type": "web_search_20260209", "name": "web_search"}, {"name": "get_time"}}}
	got := w.prompt(asking("weather?").With(tools))
	for _, want := range []string{
		`{"type": "function", "function": {"name": "get_weather", "description": "The weather at a place.", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}, "city": {"type": "string"}}, "required": ["city"]}}}`,
		`{"type": "function", "function": {"name": "get_time"}}`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if strings.Contains(got, "web_search") {
		t.Errorf("a tool that nobody has is in %q", got)
	}
	for _, path := range []string{"/v1/messages", "/v1/messages/count_tokens", "/anthropic/v1/messages", "/anthropic/api/v1/messages/count_tokens"} {
		status, header, b := w.Send("POST", path, asking("weather?").With(tools).Text(), nil)
		if status != 200 || header.Get("X-Tinsmith-Dropped-Tools") != "web_search, tool_search" {
			t.Errorf("%s: %d %q %s", path, status, header.Get("X-Tinsmith-Dropped-Tools"), b)
		}
	}
}

// TestThinkingInThePrompt: thoughts are switched as the template can.
func TestThinkingInThePrompt(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	const off = "<think>\n\n</think>\n\n"
	for name, c := range map[string]struct {
		change fields
		off    bool
	}{
		"not said":            {fields{}, false},
		"adaptive":            {fields{"thinking": fields{"type": "adaptive"}, "output_config": fields{"effort": "low"}}, false},
		"disabled":            {fields{"thinking": fields{"type": "disabled"}}, true},
		"disabled, an effort": {fields{"thinking": fields{"type": "disabled"}, "output_config": fields{"effort": "max"}}, true},
		"an effort of none":   {fields{"output_config": fields{"effort": "none"}}, true},
		"of the template":     {fields{"chat_template_kwargs": fields{"enable_thinking": false}}, true},
	} {
		if got := w.prompt(asking("hi").With(c.change)); strings.HasSuffix(got, off) != c.off {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestParsed: what the model is held to is read here, and served below.
func TestParsed(t *testing.T) {
	read := func(f fields) (r messagesRequest, out asked) {
		t.Helper()
		if err := json.Unmarshal([]byte(f.Text()), &r); err != nil {
			t.Fatal(err)
		}
		var err, errTools, errChoice, errThinking error
		out.Request = &inference.Request{}
		out.Form, err = r.form()
		out.tools, errTools = r.toolSet(false)
		if errTools == nil {
			out.Choice, errChoice = r.choice(out.tools)
		}
		out.Thinking, out.omitted, errThinking = r.thinking()
		for _, err := range []error{err, errTools, errChoice, errThinking} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return r, out
	}
	const schema = `{"type":"object","properties":{"b":{},"a":{}}}`
	format := fields{"type": "json_schema", "schema": json.RawMessage(schema)}
	for field, f := range map[string]fields{"output_config.format": {"output_config": fields{"format": format}}, "output_format": {"output_format": format}} {
		if _, a := read(f); !reflect.DeepEqual(a.Form, inference.AnswerForm{Field: field, Schema: []byte(schema), Strict: true}) {
			t.Errorf("%s: %+v", field, a.Form)
		}
	}
	tools := fields{"tools": []fields{weather.With(fields{"strict": true}), {"name": "b"}}}
	if _, a := read(tools); !a.tools.Tools[0].Strict || a.tools.Tools[1].Strict || a.Choice.Mode != inference.ChooseAuto || a.Choice.Single {
		t.Errorf("%+v", a)
	}
	for name, c := range map[string]struct {
		choice fields
		want   inference.Choice
	}{
		"auto":   {fields{"type": "auto"}, inference.Choice{Field: "tool_choice"}},
		"single": {fields{"type": "auto", "disable_parallel_tool_use": true}, inference.Choice{Field: "tool_choice", Single: true}},
		"any":    {fields{"type": "any"}, inference.Choice{Field: "tool_choice", Mode: inference.ChooseRequired}},
		"one":    {fields{"type": "any", "disable_parallel_tool_use": true}, inference.Choice{Field: "tool_choice", Mode: inference.ChooseRequired, Single: true}},
		"tool":   {fields{"type": "tool", "name": "b"}, inference.Choice{Field: "tool_choice", Mode: inference.ChooseRequired, Names: []string{"b"}, Single: true}},
		"none":   {fields{"type": "none"}, inference.Choice{Field: "tool_choice", Mode: inference.ChooseNone}},
	} {
		if _, a := read(tools.With(fields{"tool_choice": c.choice})); !reflect.DeepEqual(a.Choice, c.want) {
			t.Errorf("%s: %+v, want %+v", name, a.Choice, c.want)
		}
	}
	_, a := read(fields{"thinking": fields{"type": "enabled", "budget_tokens": 1024}})
	if a.Thinking.Budget == nil || *a.Thinking.Budget != 1024 || a.Thinking.BudgetField != "thinking.budget_tokens" || !*a.Thinking.Enabled || !a.Thinking.Lenient {
		t.Errorf("%+v", a.Thinking)
	}
}

// TestRecordedRequests: bodies that other servers' tests send are read. Which of them lack something is known.
func TestRecordedRequests(t *testing.T) {
	data := os.Getenv("TINSMITH_TESTDATA")
	if data == "" {
		t.Skip("TINSMITH_TESTDATA is not set: the recorded requests are not here")
	}
	var bodies []object
	file := func(name string) (lines []string) {
		b, err := os.ReadFile(filepath.Join(data, "surfaces", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	for _, line := range file("requests/ollama.jsonl") {
		var r struct {
			Kind string
			Body object
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if r.Kind == "messages" {
			bodies = append(bodies, r.Body)
		}
	}
	for _, line := range file("streams/tool-runner-exchanges.jsonl") {
		var r struct {
			Content []struct {
				Request struct{ Body object }
				Body    object
			}
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		for _, one := range r.Content {
			for _, body := range []object{one.Body, one.Request.Body} {
				if body != nil {
					bodies = append(bodies, body)
				}
			}
		}
	}
	w := newWorld(t, inferencetest.Options{})
	served, held := 0, 0
	for _, body := range bodies {
		_, hasModel := body["model"]
		_, hasLimit := body["max_tokens"]
		if hasModel {
			body["model"] = inferencetest.ModelName
		}
		b, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		wrong := !hasModel || !hasLimit || strings.Contains(string(b), `[{"name":"test","type":"tool_use"}]`)
		w.Says("fine")
		if body["output_config"] != nil { // the answer is what the form allows
			w.Says()
		}
		status, header, answer := w.Send("POST", "/v1/messages", string(b), w.header)
		switch {
		case wrong && status == 400:
			continue
		case wrong || status != 200:
			t.Errorf("%d %s for %.1500s", status, answer, b)
			continue
		}
		served++
		if body["output_config"] == nil || header.Get("Content-Type") != "application/json" {
			continue
		}
		for range 8 { // random tokens come to the end of a form now and then
			if whole := parsed(t, answer); whole["stop_reason"] == "end_turn" {
				content := whole["content"].([]any)
				said, _ := content[len(content)-1].(object)["text"].(string)
				if !json.Valid([]byte(said)) {
					t.Errorf("%q is not in the form of %s", said, b)
				}
				held++
				break
			}
			_, _, answer = w.Send("POST", "/v1/messages", string(b), w.header)
		}
	}
	if served < 20 || held == 0 {
		t.Errorf("%d of %d requests were served, %d held to a form", served, len(bodies), held)
	}
}

// TestRefusals: what is wrong is named, in this API's form.
func TestRefusals(t *testing.T) {
	w := newWorld(t, inferencetest.Options{Backend: `"max_context_length": 100,`})
	message := func(content ...any) fields { return fields{"messages": []any{says("user", content...)}} }
	for _, c := range []struct {
		name   string
		change fields
		words  []string
	}{
		{"no model", fields{"model": nil}, []string{"model"}},
		{"no limit", fields{"max_tokens": nil}, []string{"max_tokens: is required"}},
		{"a limit of 0", fields{"max_tokens": 0}, []string{"max_tokens: 0"}},
		{"no messages", fields{"messages": []int{}}, []string{"messages"}},
		{"messages of another type", fields{"messages": "hi"}, []string{"messages: a JSON string"}},
		{"a message of another type", fields{"messages": []string{"hi"}}, []string{"messages[0]: must be an object"}},
		{"no role", fields{"messages": []object{{"content": "hi"}}}, []string{"messages[0].role", "user, assistant, system"}},
		{"no content", fields{"messages": []object{{"role": "user"}}}, []string{"messages[0].content: is required"}},
		{"a block of another type", message(5), []string{"messages[0].content[0]: must be an object"}},
		{"a text of another type", message(object{"type": "text", "text": 5}), []string{"messages[0].content[0].text: a JSON number"}},
		{"no text", message(object{"type": "text"}), []string{"messages[0].content[0].text: is required"}},
		{"an image", message(object{"type": "image", "source": 5}), []string{`messages[0].content[0].type: "image"`, "text"}},
		{"an image as a result", message(object{"type": "tool_result", "tool_use_id": "a", "content": []object{{"type": "image"}}}), []string{`messages[0].content[0].content[0].type: "image"`}},
		{"a call of the user", message(object{"type": "tool_use", "id": "a", "name": "b"}), []string{"tool_use", "text and tool_result"}},
		{"a call without an id", fields{"messages": []any{says("assistant", object{"type": "tool_use", "name": "b"})}}, []string{"messages[0].content[0].id"}},
		{"a call without a name", fields{"messages": []any{says("assistant", object{"type": "tool_use", "id": "b"})}}, []string{"messages[0].content[0].name"}},
		{"a call with a list", fields{"messages": []any{says("assistant", object{"type": "tool_use", "id": "b", "name": "a", "input": []int{}})}}, []string{"messages[0].content[0].input: must be an object"}},
		{"a call without a result", fields{"messages": []any{says("assistant", object{"type": "tool_use", "id": "b", "name": "a"})}}, []string{"tool_result"}},
		{"nobody says anything", fields{"messages": []any{says("assistant", "")}}, []string{"messages"}},
		{"a system image", fields{"system": []object{{"type": "image"}}}, []string{"system[0].type"}},
		{"a system number", fields{"system": 5}, []string{"system: must be a string or a list"}},
		{"a tool of Claude's", fields{"tools": []fields{{"type": "bash_20250124", "name": "bash"}}}, []string{"tools[0].type", "bash_20250124", "input_schema"}},
		{"a tool of an unknown type", fields{"tools": []fields{{"type": "mcp_toolset"}}}, []string{"tools[0].type", "custom"}},
		{"a tool without a name", fields{"tools": []fields{{"input_schema": fields{}}}}, []string{"tools[0].name"}},
		{"a tool twice", fields{"tools": []fields{weather, weather}}, []string{"tools[1].name", "get_weather"}},
		{"a schema that is none", fields{"tools": []fields{weather.With(fields{"input_schema": []int{}})}}, []string{"tools[0].input_schema"}},
		{"a choice that is none", fields{"tool_choice": "auto"}, []string{"tool_choice", "object"}},
		{"an unknown choice", fields{"tool_choice": fields{"type": "required"}}, []string{"tool_choice.type", "auto, any, tool, none"}},
		{"a tool that is not there", fields{"tools": []fields{weather}, "tool_choice": fields{"type": "tool", "name": "x"}}, []string{"tool_choice", `"x"`}},
		{"a tool that was dropped", fields{"tools": []fields{{"type": "web_search_20250305", "name": "web_search"}}, "tool_choice": fields{"type": "tool", "name": "web_search"}}, []string{"tool_choice.name", "web_search"}},
		{"any of no tools", fields{"tool_choice": fields{"type": "any"}}, []string{"tool_choice", "no tools"}},
		{"unknown thinking", fields{"thinking": fields{"type": "much"}}, []string{"thinking.type", "adaptive"}},
		{"a budget of 0", fields{"thinking": fields{"type": "enabled", "budget_tokens": 0}}, []string{"thinking.budget_tokens"}},
		{"an unknown display", fields{"thinking": fields{"type": "enabled", "display": "x"}}, []string{"thinking.display", "omitted"}},
		{"an unknown effort", fields{"output_config": fields{"effort": "x"}}, []string{"output_config.effort", "xhigh"}},
		{"an unknown form", fields{"output_config": fields{"format": fields{"type": "xml"}}}, []string{"output_config.format.type", "json_schema"}},
		{"a form without a schema", fields{"output_format": fields{"type": "json_schema"}}, []string{"output_format.schema"}},
		{"two forms", fields{"output_format": fields{"type": "json_schema"}, "output_config": fields{"format": fields{"type": "json_schema"}}}, []string{"output_format", "output_config.format"}},
		{"servers of tools", fields{"mcp_servers": []fields{{"url": "x"}}}, []string{"mcp_servers"}},
		{"too warm", fields{"temperature": 2.1}, []string{"temperature", "2"}},
		{"stop sequences that are none", fields{"stop_sequences": "x"}, []string{"stop_sequences", "list"}},
		{"an empty stop sequence", fields{"stop_sequences": []string{""}}, []string{"stop_sequences"}},
		{"too many stop sequences", fields{"stop_sequences": slices.Repeat([]string{"x"}, 65)}, []string{"stop_sequences", "64"}},
		{"both kinds of stops", fields{"stop_sequences": []string{"x"}, "stop": "y"}, []string{"stop", "stop_sequences"}},
		{"two answers", fields{"n": 2}, []string{"n: "}},
		{"a long prompt", message(strings.Repeat("word ", 200)), []string{"prompt is too long: ", "tokens > 99 maximum"}},
		{"a very long prompt", message(strings.Repeat("word ", 300_000)), []string{"prompt is too long: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &world{w.On(t), w.header}
			for _, stream := range []bool{false, true} {
				w.refused("/v1/messages", asking("hi").With(c.change).With(fields{"stream": stream}).Text(), 400, "invalid_request_error", c.words...)
			}
			if _, limit := c.change["max_tokens"]; limit || c.name == "a long prompt" { // which is counted
				return
			}
			counted := asking("hi").With(c.change)
			delete(counted, "max_tokens")
			w.refused("/v1/messages/count_tokens", counted.Text(), 400, "invalid_request_error", c.words...)
		})
	}
	w.refused("/v1/messages", "{", 400, "invalid_request_error", "JSON")
	w.refused("/v1/messages", asking("hi").With(fields{"model": "claude-3-5-haiku-latest"}).Text(), 404, "not_found_error", "claude-3-5-haiku-latest")
	w.refused("/v1/messages/count_tokens", fields{"model": "x", "messages": []any{says("user", "hi")}}.Text(), 404, "not_found_error", "x")
	w.refused("/v1/messages/batches", "{}", 404, "not_found_error", "/v1/messages")
	w.refused("/v1/messages", `{"model": "`+strings.Repeat("x", 17<<20)+`"}`, 413, "request_too_large", "bytes")
	// A limit beyond the context is what fits: these clients cannot know better.
	w.Says("fine")
	if answer := w.whole(asking("hi").With(fields{"max_tokens": 32000})); fmt.Sprint(blocks(answer)) != "[text: fine]" {
		t.Errorf("answer %v", answer)
	}
}
