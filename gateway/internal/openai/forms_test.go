package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
)

// person is a schema as the SDKs make them of a class.
const person = `{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}}, "required": ["name", "age", "tags"], "additionalProperties": false}`

func isPerson(text string) bool {
	var p struct {
		Name *string
		Age  *int
		Tags []string
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(&p) == nil && p.Name != nil && p.Age != nil && *p.Age >= 0 && *p.Age <= 120 && len(p.Tags) <= 2 && !slices.ContainsFunc(p.Tags, func(s string) bool { return s != "a" && s != "b" })
}

func isObject(text string) bool {
	var v map[string]any
	return json.Unmarshal([]byte(text), &v) == nil && v != nil
}

// TestForms: random tokens make answers of every form that can be asked for, whole and streamed, in chats and completions.
func TestForms(t *testing.T) {
	w := newWorld(t, options{})
	schema := json.RawMessage(person)
	letter, ok := w.model.Tokenizer.ID("q")
	if !ok {
		t.Fatal("no token q")
	}
	for _, c := range []struct {
		name   string
		change fields
		valid  func(text string) bool
	}{
		{"json_object", fields{"response_format": fields{"type": "json_object"}}, isObject},
		{"json_schema", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"name": "person", "strict": true, "schema": schema}}}, isPerson},
		{"json_schema that is not strict", fields{"response_format": fields{"type": "json_schema", "json_schema": fields{"schema": schema}}}, isPerson},
		{"schema beside json_object", fields{"response_format": fields{"type": "json_object", "schema": schema}}, isPerson},
		{"structured_outputs", fields{"structured_outputs": fields{"json": schema}}, isPerson},
		{"without white space", fields{"structured_outputs": fields{"json": person, "disable_any_whitespace": true}}, func(s string) bool { return isPerson(s) && strings.HasPrefix(s, `{"name":"`) }},
		{"guided_json", fields{"guided_json": person}, isPerson},
		{"guided_choice", fields{"guided_choice": []string{"yes", "no"}}, func(s string) bool { return s == "yes" || s == "no" }},
		{"choice", fields{"structured_outputs": fields{"choice": []string{"red", "blue"}}}, func(s string) bool { return s == "red" || s == "blue" }},
		{"guided_regex", fields{"guided_regex": `\d{3}-[a-f]+x`}, regexp.MustCompile(`^\d{3}-[a-f]+x$`).MatchString},
		{"regex", fields{"regex": "(ab){2,3}"}, regexp.MustCompile(`^(ab){2,3}$`).MatchString},
		{"grammar", fields{"guided_grammar": "root ::= \"x\" digit+ \"y\"\ndigit ::= [0-9]"}, regexp.MustCompile(`^x[0-9]+y$`).MatchString},
		{"grammar with a token by its number", fields{"guided_grammar": fmt.Sprintf("root ::= [0-9] <[%d]> \"y\"", letter)}, regexp.MustCompile(`^[0-9]qy$`).MatchString},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			ended := 0
			for seed := range 4 {
				ask := asking("hello").with(fields{"max_tokens": 400, "seed": seed}).with(c.change)
				message, finish, _ := w.wholeChat(ask)
				content, _ := message["content"].(string)
				if finish == "stop" {
					ended++
					if !c.valid(content) {
						t.Errorf("seed %d: %q", seed, content)
					}
				}
				if seed > 0 { // once is enough of what takes long with the race detector
					continue
				}
				if stream := w.streamChat(ask); stream.message["content"] != content || stream.finish != finish {
					t.Errorf("streamed %q, whole %q", stream.message["content"], content)
				}
				completed := w.complete(completing("hello").with(fields{"max_tokens": 400, "seed": seed}).with(c.change)).Choices[0]
				if *completed.FinishReason == "stop" && !c.valid(completed.Text) {
					t.Errorf("seed %d completes %q", seed, completed.Text)
				}
			}
			if ended == 0 {
				t.Error("no answer came to its end")
			}
		})
	}
}

// TestForcedCalls: random tokens make calls of the tools that must be called, with arguments of their schemas.
func TestForcedCalls(t *testing.T) {
	w := newWorld(t, options{})
	add := fields{"type": "function", "function": fields{"name": "add", "parameters": json.RawMessage(`{"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}, "b": {"enum": [1, 2]}}, "required": ["a", "b"], "additionalProperties": false}`)}}
	isSum := func(arguments string) bool {
		var v map[string]int
		return json.Unmarshal([]byte(arguments), &v) == nil && len(v) == 2 && v["a"] >= 0 && v["a"] <= 9 && (v["b"] == 1 || v["b"] == 2)
	}
	named := fields{"type": "function", "function": fields{"name": "add"}}
	for _, c := range []struct {
		name   string
		change fields
		calls  func(calls [][2]string) bool
	}{
		{"named", fields{"tool_choice": named}, func(calls [][2]string) bool { return len(calls) == 1 && calls[0][0] == "add" && isSum(calls[0][1]) }},
		{"required", fields{"tool_choice": "required", "parallel_tool_calls": false}, func(calls [][2]string) bool {
			return len(calls) == 1 && (calls[0][0] == "add" && isSum(calls[0][1]) || calls[0] == [2]string{"get_time", "{}"})
		}},
		{"several", fields{"tool_choice": "any"}, func(calls [][2]string) bool {
			for _, call := range calls {
				if call[0] == "add" && !isSum(call[1]) || call[0] != "add" && call[0] != "get_time" {
					return false
				}
			}
			return len(calls) > 0
		}},
		{"one of the allowed", fields{"tool_choice": fields{"type": "allowed_tools", "allowed_tools": fields{"mode": "required", "tools": []any{named}}}, "parallel_tool_calls": false}, func(calls [][2]string) bool {
			return len(calls) == 1 && calls[0][0] == "add" && isSum(calls[0][1])
		}},
		{"before a form", fields{"tool_choice": named, "response_format": fields{"type": "json_object"}}, func(calls [][2]string) bool { return len(calls) == 1 && isSum(calls[0][1]) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			ended := 0
			for seed := range 4 {
				// Without thoughts: a model of random tokens does not end them.
				ask := asking("hello").with(fields{"max_tokens": 300, "seed": seed, "tools": []fields{add, clock}, "reasoning_effort": "none"}).with(c.change)
				message, finish, _ := w.wholeChat(ask)
				if finish == "length" {
					continue
				}
				ended++
				if finish != "tool_calls" || message["content"] != nil || !c.calls(plainCalls(message)) {
					t.Errorf("seed %d: %s %v", seed, finish, message)
				}
				if stream := w.streamChat(ask); !slices.Equal(plainCalls(stream.message), plainCalls(message)) {
					t.Errorf("streamed %v, whole %v", stream.message, message)
				}
			}
			if ended == 0 {
				t.Error("no answer came to its end")
			}
		})
	}
	message, finish, _ := w.wholeChat(asking("hello").with(fields{"max_tokens": 300, "functions": []any{add["function"]}, "function_call": fields{"name": "add"}, "reasoning_effort": "none"}))
	if call, ok := message["function_call"].(map[string]any); finish != "function_call" || !ok || !isSum(call["arguments"].(string)) {
		t.Errorf("a function that must be called: %s %v", finish, message)
	}
}

// TestFormsAndThoughts: the form begins behind the thoughts, and thoughts that are too long are ended.
func TestFormsAndThoughts(t *testing.T) {
	w := newWorld(t, options{})
	found := false
	for seed := range 6 {
		// With a bias for the tag every answer begins with it.
		open, _ := w.model.Tokenizer.ID("<think>")
		ask := asking("hello").with(fields{"max_tokens": 300, "seed": seed, "guided_choice": []string{"yes", "no"}, "thinking_token_budget": 12, "logit_bias": map[string]any{strconv.Itoa(int(open)): 100}})
		message, finish, usage := w.wholeChat(ask)
		content, _ := message["content"].(string)
		if finish != "stop" || content != "yes" && content != "no" {
			t.Errorf("seed %d: %s %v", seed, finish, message)
		}
		thoughts := usage["completion_tokens_details"].(map[string]any)["reasoning_tokens"].(float64)
		found = found || message["reasoning_content"] != nil && thoughts > 12
		if thoughts > 12+8 {
			t.Errorf("seed %d: %v tokens of thoughts", seed, thoughts)
		}
	}
	if !found {
		t.Error("no answer thought")
	}
}

// TestRelaxedForms: what an answer is not held to is named, and checked when it has ended.
func TestRelaxedForms(t *testing.T) {
	w := newWorld(t, options{})
	schema := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=zz)", "maxLength": 3}}, "required": ["a"], "additionalProperties": false}`)
	ask := asking("hello").with(fields{"max_tokens": 300, "reasoning_effort": "none", "response_format": fields{"type": "json_schema", "json_schema": fields{"schema": schema}}})
	status, header, b := w.send(http.MethodPost, "/v1/chat/completions", ask.text())
	if status != http.StatusOK || header.Get("X-Tinsmith-Schema-Relaxed") != "#/properties/a pattern" {
		t.Fatalf("%d %q %s", status, header.Get("X-Tinsmith-Schema-Relaxed"), b)
	}
	type body struct {
		Choices []struct {
			FinishReason *string `json:"finish_reason"`
			SchemaErrors []struct {
				Path, Keyword, Message string
			} `json:"schema_errors"`
		} `json:"choices"`
	}
	var whole, last body
	w.ok(json.Unmarshal(b, &whole))
	errors := whole.Choices[0].SchemaErrors
	if *whole.Choices[0].FinishReason != "stop" || len(errors) != 1 || errors[0].Path != "/a" || errors[0].Message == "" {
		t.Errorf("%s", b)
	}
	events := w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", ask)
	w.ok(json.Unmarshal([]byte(events[len(events)-1]), &last))
	if !reflect.DeepEqual(last.Choices[0].SchemaErrors, errors) {
		t.Errorf("streamed %s", events[len(events)-1])
	}
}

// TestRelaxedOnSurfaces: the same holds of responses; and what the arguments of a tool are not held to is named too, and checked.
func TestRelaxedOnSurfaces(t *testing.T) {
	w := newWorld(t, options{})
	schema := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=zz)", "maxLength": 3}}, "required": ["a"], "additionalProperties": false}`)
	ask := fields{"model": modelName, "input": "hello", "seed": 7, "max_output_tokens": 300, "reasoning": fields{"effort": "none"}}
	relaxed := func(path string, ask fields) (string, map[string]any) {
		t.Helper()
		status, header, b := w.send(http.MethodPost, path, ask.text())
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, b)
		}
		return header.Get("X-Tinsmith-Schema-Relaxed"), parsed(t, string(b)).(map[string]any)
	}
	named, response := relaxed("/v1/responses", ask.with(fields{"text": fields{"format": fields{"type": "json_schema", "name": "x", "schema": schema}}}))
	if errors, _ := response["schema_errors"].([]any); named != "#/properties/a pattern" || response["status"] != "completed" || len(errors) != 1 || errors[0].(map[string]any)["path"] != "/a" {
		t.Errorf("%q %v", named, response)
	}
	tool := fields{"type": "function", "function": fields{"name": "f", "parameters": schema}}
	call := asking("hello").with(fields{"max_tokens": 300, "tools": []fields{clock, tool}, "tool_choice": fields{"type": "function", "function": fields{"name": "f"}}, "reasoning_effort": "none"})
	named, answer := relaxed("/v1/chat/completions", call)
	choice := answer["choices"].([]any)[0].(map[string]any)
	wrong := func(errors any) bool {
		list, _ := errors.([]any)
		if len(list) != 1 {
			return false
		}
		one := list[0].(map[string]any)
		return one["path"] == "/a" && one["tool_call"] == 0.0 && one["keyword"] == "#/properties/a/pattern"
	}
	if named != "f#/properties/a pattern" || !wrong(choice["schema_errors"]) || choice["finish_reason"] != "tool_calls" {
		t.Errorf("of a tool: %q %v", named, choice)
	}
	events := w.events("/v1/chat/completions", "CreateChatCompletionStreamResponse", call)
	last := parsed(t, events[len(events)-1]).(map[string]any)["choices"].([]any)[0].(map[string]any)
	if !reflect.DeepEqual(last["schema_errors"], choice["schema_errors"]) {
		t.Errorf("streamed: %v", last)
	}
	if named, response := relaxed("/v1/responses", ask.with(fields{"tools": []fields{flat(tool)}, "tool_choice": "required", "parallel_tool_calls": false})); named != "f#/properties/a pattern" || !wrong(response["schema_errors"]) {
		t.Errorf("of a tool of responses: %q %v", named, response)
	}
	if _, answer := relaxed("/v1/chat/completions", call.with(fields{"max_tokens": 12})); answer["choices"].([]any)[0].(map[string]any)["schema_errors"] != nil {
		t.Errorf("a call that was cut is checked: %v", answer)
	}
}

// TestInvolvedForms: what would take too many steps to enforce is left to the check, in a form and in the arguments of a tool, and refused under strict.
func TestInvolvedForms(t *testing.T) {
	w := newWorld(t, options{})
	schema := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "allOf": [{"pattern": "^\\d*1\\d{20}$"}, {"pattern": "^\\d*2\\d{20}$"}]}}, "required": ["a"], "additionalProperties": false}`)
	form := func(strict bool) fields {
		return asking("hello").with(fields{"max_tokens": 5, "response_format": fields{"type": "json_schema", "json_schema": fields{"strict": strict, "schema": schema}}})
	}
	tool := fields{"type": "function", "function": fields{"name": "f", "parameters": schema}}
	for name, ask := range map[string]fields{"form": form(false), "tool": asking("hello").with(fields{"max_tokens": 5, "tools": []fields{tool}, "tool_choice": "required"})} {
		status, header, b := w.send(http.MethodPost, "/v1/chat/completions", ask.text())
		if relaxed := header.Get("X-Tinsmith-Schema-Relaxed"); status != http.StatusOK || !strings.Contains(relaxed, "pattern") {
			t.Errorf("%s: %d %q %s", name, status, relaxed, b)
		}
	}
	w.refused(http.MethodPost, "/v1/chat/completions", form(true).text(), http.StatusBadRequest, "response_format.json_schema.schema", "")
}

// TestRelaxedBehindThoughts: of an answer whose thoughts stand in its content what stands behind them is checked.
func TestRelaxedBehindThoughts(t *testing.T) {
	w := newWorld(t, options{})
	schema := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=b)"}}}`)
	ask := asking("hello").with(fields{"max_tokens": 300, "separate_reasoning": false, "response_format": fields{"type": "json_schema", "json_schema": fields{"schema": schema}}})
	for value, wrong := range map[string]int{`{"a": "bb"}`: 0, `{"a": "cc"}`: 1} {
		text := "<think>Hm.</think>\n\n" + value
		w.says(text)
		_, _, b := w.send(http.MethodPost, "/v1/chat/completions", ask.text())
		choice := parsed(t, string(b)).(map[string]any)["choices"].([]any)[0].(map[string]any)
		errors, _ := choice["schema_errors"].([]any)
		if content := choice["message"].(map[string]any)["content"]; content != text || choice["finish_reason"] != "stop" || len(errors) != wrong {
			t.Errorf("%q, %v: %d errors, want %d", content, choice["finish_reason"], len(errors), wrong)
		}
	}
}

// TestCheckedAnswersAreCounted: metrics tell how many answers were checked when they had ended, and how many of them are not what was asked for.
func TestCheckedAnswersAreCounted(t *testing.T) {
	before := otel.GetMeterProvider()
	t.Cleanup(func() { otel.SetMeterProvider(before) })
	reader := metric.NewManualReader()
	otel.SetMeterProvider(metric.NewMeterProvider(metric.WithReader(reader)))
	w := newWorld(t, options{})
	counted := func(checked, invalid int64) {
		t.Helper()
		var all metricdata.ResourceMetrics
		w.ok(reader.Collect(t.Context(), &all))
		got := map[string]int64{}
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
					for _, point := range sum.DataPoints {
						model, _ := point.Attributes.Value("model")
						got[m.Name+" "+model.AsString()] += point.Value
					}
				}
			}
		}
		for name, want := range map[string]int64{"tinsmith.answers.checked": checked, "tinsmith.answers.invalid": invalid} {
			if n := got[name+" "+modelName]; n != want {
				t.Errorf("%s: %d, want %d", name, n, want)
			}
		}
	}
	form := fields{"guided_json": json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=b)"}}}`)}
	chat := asking("hello").with(form).with(fields{"max_tokens": 300, "reasoning_effort": "none"})
	text := fields{"model": modelName, "prompt": "hello", "max_tokens": 300}.with(form)
	say := func(path, answer string, ask fields) {
		t.Helper()
		w.says(answer)
		if status, _, b := w.send(http.MethodPost, path, ask.text()); status != http.StatusOK {
			t.Fatalf("%d %s", status, b)
		}
	}
	say("/v1/chat/completions", `{"a": "bb"}`, chat)
	counted(1, 0)
	say("/v1/chat/completions", `{"a": "cc"}`, chat)
	say("/v1/chat/completions", `{"a": "cc"}`, chat.with(fields{"stream": true}))
	counted(3, 2)
	say("/v1/completions", `{"a": "cc"}`, text)
	counted(4, 3)
	say("/v1/completions", `{"a": "cc"}`, text.with(fields{"max_tokens": 1})) // was cut
	say("/v1/completions", `free`, fields{"model": modelName, "prompt": "hello", "max_tokens": 300})
	counted(4, 3)
}

// TestNamedFields: errors name fields as clients write them.
func TestNamedFields(t *testing.T) {
	w := newWorld(t, options{})
	w.refused(http.MethodPost, "/v1/chat/completions", asking("x").with(fields{"guided_whitespace_pattern": 5}).text(), http.StatusBadRequest, "guided_whitespace_pattern", "")
	w.refused(http.MethodPost, "/v1/chat/completions", asking("x").with(fields{"tools": []fields{clock}, "tool_choice": fields{"type": "allowed_tools", "tools": []any{}}}).text(), http.StatusBadRequest, "tool_choice.allowed_tools.tools", "")
	w.refused(http.MethodPost, "/v1/responses", fields{"model": modelName, "input": "x", "tools": []fields{{"type": "custom", "name": 5}}}.text(), http.StatusBadRequest, "tools[0].name", "")
}

// TestRawForcedCalls: a call that must be there is there, also where calls stay in the content.
func TestRawForcedCalls(t *testing.T) {
	w := newWorld(t, options{})
	message, _, _ := w.wholeChat(asking("hello").with(fields{"max_tokens": 100, "tools": []fields{clock}, "tool_choice": "required", "parallel_tool_calls": false, "parse_tool_calls": false, "reasoning_effort": "none"}))
	if content, _ := message["content"].(string); !strings.HasPrefix(content, "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}") {
		t.Errorf("%v", message)
	}
}

// TestLargeExtras: documents and variables of the template are bounded as messages are.
func TestLargeExtras(t *testing.T) {
	w := newWorld(t, options{})
	large := strings.Repeat("x", 1<<20)
	w.refused(http.MethodPost, "/v1/chat/completions", asking("x").with(fields{"documents": []fields{{"text": large}}}).text(), http.StatusBadRequest, "documents", "context_length_exceeded")
	w.refused(http.MethodPost, "/v1/responses", fields{"model": modelName, "input": "x", "chat_template_kwargs": fields{"enable_thinking": large}}.text(), http.StatusBadRequest, "chat_template_kwargs", "context_length_exceeded")
}

// TestToolsWithoutTemplate: the error is about the tools, whatever tool_choice says.
func TestToolsWithoutTemplate(t *testing.T) {
	w := newWorld(t, options{})
	ask := asking("x").with(fields{"tools": []fields{{"type": "function", "function": fields{"name": "f", "strict": true}}}})
	w.model.ToolFormat = answer.Mistral // whose calls have no grammar here
	w.refused(http.MethodPost, "/v1/chat/completions", ask.text(), http.StatusBadRequest, "tools", "unsupported_parameter", "strict")
	w.refused(http.MethodPost, "/v1/chat/completions", ask.with(fields{"tool_choice": "required"}).text(), http.StatusBadRequest, "tool_choice", "unsupported_parameter", "mistral")
	w.model.TakesTools = false
	for _, choice := range []string{"auto", "required"} {
		w.refused(http.MethodPost, "/v1/chat/completions", ask.with(fields{"tool_choice": choice}).text(), http.StatusBadRequest, "tools", "unsupported_parameter", "no tools")
	}
}

// TestForcedCallsAndThoughts: no call begins in the thoughts before one that must come.
func TestForcedCallsAndThoughts(t *testing.T) {
	w := newWorld(t, options{})
	bias := map[string]any{}
	for _, tag := range []string{"<think>", "<tool_call>"} {
		id, _ := w.model.Tokenizer.ID(tag)
		bias[strconv.Itoa(int(id))] = 100
	}
	found := false
	for seed := range 6 {
		message, finish, _ := w.wholeChat(asking("hello").with(fields{"max_tokens": 200, "seed": seed, "tools": []fields{clock}, "tool_choice": "required", "parallel_tool_calls": false, "thinking_token_budget": 12, "logit_bias": bias}))
		thoughts, _ := message["reasoning_content"].(string)
		found = found || thoughts != ""
		if calls := plainCalls(message); finish != "tool_calls" || len(calls) != 1 || calls[0] != [2]string{"get_time", "{}"} || strings.Contains(thoughts, "<tool_call>") {
			t.Errorf("seed %d: %s %v", seed, finish, message)
		}
	}
	if !found {
		t.Error("no answer thought")
	}
}

// TestNoCallInThoughts: where calls are held to a form, none begins in thoughts, where it would be held to nothing.
func TestNoCallInThoughts(t *testing.T) {
	w := newWorld(t, options{})
	open, _ := w.model.Tokenizer.ID("<think>")
	call, _ := w.model.Tokenizer.ID("<tool_call>")
	ask := asking("hello").with(fields{
		"max_tokens": 200, "tools": []fields{weather}, "tool_choice": "required", "parallel_tool_calls": false, "thinking_token_budget": 10,
		"logit_bias": map[string]any{strconv.Itoa(int(open)): 100, strconv.Itoa(int(call)): 50},
	})
	message, _, usage := w.wholeChat(ask)
	if thoughts := usage["completion_tokens_details"].(map[string]any)["reasoning_tokens"].(float64); thoughts < 10 {
		t.Errorf("%v tokens of thoughts: %v", thoughts, message)
	}
}
