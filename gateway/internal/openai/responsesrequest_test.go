package openai

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// testdata is the folder with what may not be committed; the test is skipped without it.
func testdata(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("TINSMITH_TESTDATA")
	if dir == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	return filepath.Join(dir, "surfaces", name)
}

// eachLine reads a file of JSON lines.
func eachLine(t *testing.T, path string, into func(line []byte)) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		into(lines.Bytes())
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
}

// plainMessage is a message with its calls as text.
func plainMessage(m *jinja.Dict) map[string]string {
	out := map[string]string{}
	for i := range m.Len() {
		key, value := m.At(i)
		if text, ok := value.(jinja.Str); ok {
			out[string(key.(jinja.Str))] = string(text)
			continue
		}
		for _, call := range value.(*jinja.List).Items {
			f, _ := call.(*jinja.Dict).Get("function")
			id, _ := call.(*jinja.Dict).Get("id")
			name, _ := f.(*jinja.Dict).Get("name")
			arguments, _ := f.(*jinja.Dict).Get("arguments")
			text, isText := arguments.(jinja.Str)
			if !isText {
				var keys []string
				for i := range arguments.(*jinja.Dict).Len() {
					key, value := arguments.(*jinja.Dict).At(i)
					shown, _ := value.(jinja.Str)
					keys = append(keys, string(key.(jinja.Str))+"="+string(shown))
				}
				text = jinja.Str("{" + strings.Join(keys, ",") + "}")
			}
			out["calls"] += string(id.(jinja.Str)) + ":" + string(name.(jinja.Str)) + string(text) + " "
		}
	}
	return out
}

// TestTurns: items become the messages that templates read.
func TestTurns(t *testing.T) {
	sealedText := sealReasoning("hm")
	for _, c := range []struct {
		name, input string
		want        []map[string]string
	}{
		{"a text", `"hi"`, []map[string]string{{"role": "user", "content": "hi"}}},
		{"nothing", `null`, nil},
		{"a message without a type", `[{"role":"developer","content":"be"},{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"text","text":"b"}]}]`, []map[string]string{{"role": "system", "content": "be"}, {"role": "user", "content": "a\nb"}}},
		{
			"a turn of everything", `[{"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},{"type":"message","role":"assistant","content":[{"type":"output_text","text":"look"}]},
			{"type":"function_call","call_id":"c1","name":"f","arguments":"{\"a\":\"b\"}"},{"type":"function_call","call_id":"c2","name":"g","arguments":""},
			{"type":"function_call_output","call_id":"c1","output":"one"},{"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"two"},{"type":"output_text","text":"three"}]}]`,
			[]map[string]string{
				{"role": "assistant", "content": "look", "reasoning_content": "hm", "calls": "c1:f{a=b} c2:g{} "}, {"role": "tool", "tool_call_id": "c1", "content": "one"}, {"role": "tool", "tool_call_id": "c2", "content": "two\nthree"},
			},
		},
		{"arguments that are none", `[{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\": "}]`, []map[string]string{{"role": "assistant", "content": "", "calls": `c:f{"a":  `}}},
		{"arguments as an object", `[{"type":"function_call","call_id":"c","name":"f","arguments":{"a": "b"}}]`, []map[string]string{{"role": "assistant", "content": "", "calls": "c:f{a=b} "}}},
		{"a call in a namespace", `[{"type":"function_call","call_id":"c","name":"f","namespace":"n","arguments":"{}"}]`, []map[string]string{{"role": "assistant", "content": "", "calls": "c:n.f{} "}}},
		{
			"a custom call", `[{"type":"custom_tool_call","call_id":"c","name":"f","input":"a\nb"},{"type":"custom_tool_call_output","call_id":"c","output":{"b": [1,  2]}}]`,
			[]map[string]string{{"role": "assistant", "content": "", "calls": "c:f{input=a\nb} "}, {"role": "tool", "tool_call_id": "c", "content": `{"b":[1,2]}`}},
		},
		{
			"reasoning in other forms", `[{"type":"reasoning","summary":[],"encrypted_content":"` + sealedText + `"},{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"sum"}]},
			{"role":"user","content":"b"},{"type":"reasoning","summary":[],"encrypted_content":"gAAAAA"},{"role":"assistant","content":"c"}]`,
			[]map[string]string{{"role": "assistant", "content": "", "reasoning_content": "hm"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "", "reasoning_content": "sum"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}},
		},
		{
			"two messages of the assistant", `[{"role":"assistant","content":"a"},{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"assistant","content":""}]`,
			[]map[string]string{{"role": "assistant", "content": "a\n\nno"}},
		},
		{
			"one text around a call", `[{"role":"assistant","id":"msg_ABCDEFGHIJKLMNOPQRSTUVWXYZ00","content":"a "},{"type":"function_call","id":"fc_ABCDEFGHIJKLMNOPQRSTUVWXYZ01","call_id":"c","name":"f","arguments":"{}"},
			{"role":"assistant","id":"msg_ABCDEFGHIJKLMNOPQRSTUVWXYZ02","content":"b"}]`,
			[]map[string]string{{"role": "assistant", "content": "a b", "calls": "c:f{} "}},
		},
		{"items of tools that ran elsewhere", `[{"type":"web_search_call","id":"ws","status":"completed"},{"type":"mcp_list_tools","id":"m"},{"role":"user","content":"a"}]`, []map[string]string{{"role": "user", "content": "a"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			items, err := parseInput(json.RawMessage(c.input), nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []map[string]string
			for _, m := range turns(items) {
				got = append(got, plainMessage(m))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%v\nwant\n%v", got, c.want)
			}
			// What is stored is read back as what it was.
			text, err := json.Marshal(items)
			if err != nil {
				t.Fatal(err)
			}
			var list []json.RawMessage
			if err := json.Unmarshal(text, &list); err != nil {
				t.Fatal(err)
			}
			again, err := parseItems(list)
			if err != nil {
				t.Fatal(err)
			}
			got = nil
			for _, m := range turns(again) {
				got = append(got, plainMessage(m))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("stored: %v\nwant\n%v", got, c.want)
			}
		})
	}
}

// TestResponseTools: tools of all kinds become functions, and the answer tells of them.
func TestResponseTools(t *testing.T) {
	r := &responsesRequest{}
	for _, text := range []string{
		`{"type":"function","name":"a","parameters":{"type":"object","z":1,"b":2},"strict":true}`, `{"type":"function","function":{"name":"b","description":"B"}}`,
		`{"type":"namespace","name":"muse","description":"d","tools":[{"type":"function","name":"bash"},{"type":"function","name":"muse.read","strict":true,"parameters":{"type":"object"}},{"type":"custom","name":"c"}]}`,
		`{"type":"custom","name":"sql","description":"S","format":{"type":"grammar","syntax":"regex","definition":"SELECT .+"}}`, `{"type":"custom","name":"patch","format":{"type":"grammar","syntax":"lark","definition":"start: x"}}`,
		`{"type":"web_search_preview_2025_03_11"}`, `{"type":"local_shell"}`, `{"type":"computer_use_preview"}`, `{"type":"mcp","server_label":"x"}`,
	} {
		r.Tools = append(r.Tools, json.RawMessage(text))
	}
	l, err := r.responseTools()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tool := range l.Tools {
		strict := ""
		if tool.Strict {
			strict = " strict"
		}
		got = append(got, tool.Name+strict+" "+string(tool.Parameters))
	}
	text := `{"additionalProperties":false,"properties":{"input":{"type":"string"}},"required":["input"],"type":"object"}`
	want := []string{
		`a strict {"type":"object","z":1,"b":2}`, "b ", "muse.bash ", `muse.read strict {"type":"object"}`, "muse.c " + text,
		`sql {"additionalProperties":false,"properties":{"input":{"pattern":"^(?:SELECT .+)$","type":"string"}},"required":["input"],"type":"object"}`, "patch " + text,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant\n%q", got, want)
	}
	if want := []string{"web_search_preview_2025_03_11", "local_shell", "computer_use_preview", "mcp"}; !slices.Equal(l.dropped, want) {
		t.Errorf("dropped %q", l.dropped)
	}
	if !reflect.DeepEqual(l.custom, map[string]bool{"muse.c": true, "sql": true, "patch": true}) {
		t.Errorf("custom are %v", l.custom)
	}
	told, err := json.Marshal(l.told[:2])
	if want := `[{"type":"function","description":null,"name":"a","parameters":{"type":"object","z":1,"b":2},"strict":true},{"type":"function","description":"B","name":"b","parameters":null,"strict":false}]`; err != nil || string(told) != want {
		t.Errorf("told of as %s, %v", told, err)
	}
	if len(l.told) != 5 {
		t.Errorf("%d are told of", len(l.told))
	}
	schemas := loadSchemas(t)
	all, err := json.Marshal(slices.Concat(l.told[:2], l.told[3:])) // names with a dot, which clients send, are none in the document
	if err != nil {
		t.Fatal(err)
	}
	schemas.check(t, "ToolsArray", parsed(t, string(all)))
	for text, want := range map[string]struct {
		inference.Choice
		told string
	}{
		`null`: {told: `"auto"`}, `"auto"`: {told: `"auto"`}, `"none"`: {inference.Choice{Mode: inference.ChooseNone}, `"none"`},
		`"required"`: {inference.Choice{Mode: inference.ChooseRequired}, `"required"`}, `"any"`: {inference.Choice{Mode: inference.ChooseRequired}, `"required"`},
		`{"type":"function","name":"a"}`:              {inference.Choice{Mode: inference.ChooseRequired, Names: []string{"a"}, Single: true}, `{"type":"function","name":"a"}`},
		`{"type":"function","function":{"name":"a"}}`: {inference.Choice{Mode: inference.ChooseRequired, Names: []string{"a"}, Single: true}, `{"type":"function","name":"a"}`},
		`{"type":"custom","name":"sql"}`:              {inference.Choice{Mode: inference.ChooseRequired, Names: []string{"sql"}, Single: true}, `{"type":"custom","name":"sql"}`},
		`{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"a"},{"type":"custom","name":"sql"}]}`: {
			inference.Choice{Mode: inference.ChooseRequired, Names: []string{"a", "sql"}}, `{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"a"},{"type":"custom","name":"sql"}]}`,
		},
	} {
		r.ToolChoice = json.RawMessage(text)
		choice, told, err := r.choice(l)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		want.Field = "tool_choice"
		shown, err := json.Marshal(told)
		if err != nil || !reflect.DeepEqual(choice, want.Choice) || string(shown) != want.told {
			t.Errorf("%s: %+v, told of as %s, %v", text, choice, shown, err)
		}
		schemas.check(t, "ToolChoiceParam", parsed(t, string(shown)))
	}
}

// TestAnswerForm: text.format says what the answer is held to.
func TestAnswerForm(t *testing.T) {
	for text, want := range map[string]struct {
		form inference.AnswerForm
		told string
		bad  string
	}{
		`{}`: {told: `{"type":"text"}`}, `{"format":null}`: {told: `{"type":"text"}`}, `{"format":{"type":"text"}}`: {told: `{"type":"text"}`},
		`{"format":{"type":"json_object"}}`: {form: inference.AnswerForm{Field: "text.format", Object: true}, told: `{"type":"json_object"}`},
		`{"format":{"type":"json_schema","name":"n","description":"d","schema":{"z":1,"a":2},"strict":true}}`: {
			form: inference.AnswerForm{Field: "text.format", Schema: []byte(`{"z":1,"a":2}`), Strict: true}, told: `{"type":"json_schema","description":"d","name":"n","schema":{"z":1,"a":2},"strict":true}`,
		},
		`{"format":{"type":"json_schema"}}`:                                        {form: inference.AnswerForm{Field: "text.format", Schema: []byte(`{}`)}, told: `{"type":"json_schema","name":"response","schema":{},"strict":false}`},
		`{"format":{"type":"json_schema","strict":true}}`:                          {bad: "text.format.schema"},
		`{"format":{"type":"json_schema","json_schema":{"name":"n","schema":{}}}}`: {bad: "text.format.json_schema"},
		`{"format":{"type":"json_schema","schema":[]}}`:                            {bad: "text.format.schema"},
		`{"format":{"type":"grammar"}}`:                                            {bad: "text.format.type"},
		`{"format":"json"}`:                                                        {bad: "text.format"},
		`{"format":{"type":5}}`:                                                    {bad: "text.format.type"},
	} {
		r := &responsesRequest{}
		if err := json.Unmarshal([]byte(`{"text":`+text+`}`), r); err != nil {
			t.Fatal(err)
		}
		form, told, err := r.form()
		if want.bad != "" {
			if e := inference.AsError(err); e == nil || e.Param != want.bad {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		shown, merr := json.Marshal(told)
		if err != nil || merr != nil || !reflect.DeepEqual(form, want.form) || string(shown) != want.told {
			t.Errorf("%s: %+v, told of as %s, %v", text, form, shown, err)
		}
		loadSchemas(t).check(t, "TextResponseFormatConfiguration", parsed(t, string(shown)))
	}
}

func TestRefusedResponses(t *testing.T) {
	w := newWorld(t, options{backend: `"max_context_length": 100,`, change: keeping})
	items := func(list ...any) fields { return fields{"input": list} }
	for _, c := range []struct {
		name   string
		change fields
		param  string
		code   string
		words  []string
	}{
		{"no input", fields{"input": nil}, "input", "", nil},
		{"empty input", items(), "input", "", []string{"instructions"}},
		{"input of a wrong type", fields{"input": 5}, "input", "", []string{"list of items"}},
		{"item that is no object", items("hi"), "input[0]", "", nil},
		{"item without a type", items(fields{"id": "x"}), "input[0].type", "", nil},
		{"unknown item", items(fields{"type": "dance"}), "input[0].type", "unsupported_parameter", []string{"dance", "function_call"}},
		{"compacted conversation", items(fields{"type": "compaction", "encrypted_content": "x"}), "input[0].type", "unsupported_parameter", nil},
		{"role", items(fields{"role": "robot", "content": "x"}), "input[0].role", "", []string{"assistant"}},
		{"message without content", items(fields{"role": "user"}), "input[0].content", "", nil},
		{"image", items(fields{"role": "user", "content": []any{fields{"type": "input_image", "image_url": "x"}}}), "input[0].content[0].type", "unsupported_parameter", []string{"text"}},
		{"file", items(fields{"role": "user", "content": []any{fields{"type": "input_file"}}}), "input[0].content[0].type", "unsupported_parameter", nil},
		{"part without text", items(fields{"role": "user", "content": []any{fields{"type": "input_text"}}}), "input[0].content[0].text", "", nil},
		{"call without a name", items(fields{"type": "function_call", "arguments": "{}"}), "input[0].name", "", nil},
		{"arguments of a wrong type", items(fields{"type": "function_call", "name": "f", "arguments": 5}), "input[0].arguments", "", nil},
		{"output of nothing", items(fields{"type": "function_call_output", "call_id": "x"}), "input[0].output", "", nil},
		{"reference to nothing", items(fields{"type": "item_reference"}), "input[0].id", "", nil},
		{"max_output_tokens", fields{"max_output_tokens": 0}, "max_output_tokens", "", nil},
		{"context", fields{"max_output_tokens": 4096}, "max_output_tokens", "context_length_exceeded", nil},
		{"instructions of a wrong type", fields{"instructions": []any{}}, "instructions", "", []string{"a string"}},
		{"truncation", fields{"truncation": "some"}, "truncation", "", []string{"auto"}},
		{"too long all the same", fields{"truncation": "auto", "input": strings.Repeat("hello ", 200)}, "max_output_tokens", "context_length_exceeded", nil},
		{"background", fields{"background": true}, "background", "unsupported_parameter", nil},
		{"conversation", fields{"conversation": "conv_1"}, "conversation", "unsupported_parameter", []string{"previous_response_id"}},
		{"stored prompt", fields{"prompt": fields{"id": "x"}}, "prompt", "unsupported_parameter", nil},
		{"context management", fields{"context_management": []any{fields{"type": "compaction"}}}, "context_management", "unsupported_parameter", nil},
		{"moderation", fields{"moderation": fields{"model": "x"}}, "moderation", "unsupported_parameter", nil},
		{"messages", fields{"messages": []any{fields{"role": "user", "content": "x"}}}, "messages", "unsupported_parameter", []string{"input"}},
		{"response_format", fields{"response_format": fields{"type": "json_object"}}, "response_format", "unsupported_parameter", []string{"text.format"}},
		{"max_tokens", fields{"max_tokens": 5}, "max_tokens", "unsupported_parameter", []string{"max_output_tokens"}},
		{"several answers", fields{"n": 2}, "n", "unsupported_parameter", nil},
		{"top_logprobs", fields{"top_logprobs": 21}, "top_logprobs", "", nil},
		{"metadata", fields{"metadata": fields{"a": strings.Repeat("x", 513)}}, "metadata", "", []string{"512"}},
		{"metadata of a wrong type", fields{"metadata": fields{"a": 1}}, "metadata", "", nil},
		{"unknown tool", fields{"tools": []any{fields{"type": "dance"}}}, "tools[0].type", "unsupported_parameter", []string{"namespace"}},
		{"namespace without a name", fields{"tools": []any{fields{"type": "namespace", "tools": []any{}}}}, "tools[0].name", "", nil},
		{"tool of a namespace", fields{"tools": []any{fields{"type": "namespace", "name": "n", "tools": []any{fields{"type": "mcp"}}}}}, "tools[0].tools[0].type", "unsupported_parameter", nil},
		{"two tools of a name", fields{"tools": []any{flat(clock), flat(clock)}}, "tools[1].name", "", nil},
		{"a hosted tool that is forced", fields{"tools": []any{fields{"type": "web_search"}}, "tool_choice": fields{"type": "web_search_preview"}}, "tool_choice", "unsupported_parameter", []string{"web_search_preview"}},
		{"unknown choice", fields{"tool_choice": "sometimes"}, "tool_choice", "", nil},
		{"effort", fields{"reasoning": fields{"effort": "a lot"}}, "reasoning.effort", "", []string{"medium"}},
		{"summary", fields{"reasoning": fields{"summary": "long"}}, "reasoning.summary", "", []string{"concise"}},
		{"verbosity", fields{"text": fields{"verbosity": "loud"}}, "text.verbosity", "", []string{"medium"}},
		{"raw thoughts", fields{"separate_reasoning": false}, "separate_reasoning", "unsupported_parameter", nil},
		{"unknown model", fields{"model": "x"}, "model", "model_not_found", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			status := 400
			if c.code == "model_not_found" {
				status = 404
			}
			body := fields{"model": modelName, "input": "hi", "max_output_tokens": 10}.with(c.change).text()
			w.refused(http.MethodPost, responsesPath, body, status, c.param, c.code, c.words...)
			w.refused(http.MethodPost, "/oai/api/v1/responses", body, status, c.param, c.code, c.words...)
		})
	}
}

// TestHarmlessFields: what clients send by default is taken, and told of where the answer has it.
func TestHarmlessFields(t *testing.T) {
	w := newWorld(t, options{})
	w.says("Fine.")
	status, header, b := w.send(http.MethodPost, responsesPath, responding([]any{}).with(fields{
		"instructions": "Be good.", "stream": false, "store": false, "include": []string{"reasoning.encrypted_content", "file_search_call.results"}, "service_tier": "auto", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
		"safety_identifier": "s", "client_metadata": fields{"x": "y"}, "text": fields{"verbosity": "low"}, "max_tool_calls": 3, "stream_options": fields{"include_obfuscation": false}, "truncation": "auto", "user": "u", "metadata": fields{"a": "b"},
		"parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{fields{"type": "web_search"}, fields{"type": "local_shell"}}, "temperature": 0.5, "top_p": 0.9, "reasoning": fields{"summary": "auto"}, "background": false, "conversation": nil,
		"max_output_tokens": 1, "previous_response_id": nil,
	}).text())
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, b)
	}
	if got := header.Get("x-tinsmith-dropped-tools"); got != "web_search, local_shell" {
		t.Errorf("dropped %q", got)
	}
	got := parsed(t, string(b)).(map[string]any)
	w.check(w, "Response", got)
	for key, want := range map[string]any{
		"instructions": "Be good.", "store": false, "service_tier": "default", "prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3.0, "truncation": "auto", "user": "u", "metadata": map[string]any{"a": "b"},
		"parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "temperature": 0.5, "top_p": 0.9, "reasoning": map[string]any{"effort": nil, "summary": "auto"}, "background": false, "max_output_tokens": 1.0,
		"previous_response_id": nil, "text": map[string]any{"format": map[string]any{"type": "text"}, "verbosity": "low"}, "status": "incomplete", "incomplete_details": map[string]any{"reason": "max_output_tokens"}, "completed_at": nil,
		"error": nil, "top_logprobs": 0.0, "object": "response", "model": modelName,
	} {
		if !reflect.DeepEqual(got[key], want) {
			t.Errorf("%s is %v, want %v", key, got[key], want)
		}
	}
}

// TestCodex: what Codex sends, compressed, turn after turn with the whole history, is read; tools of a namespace are called by their flat names.
func TestCodex(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	w.says("<think>\nHm.\n</think>\n\n<tool_call>\n{\"name\": \"muse.bash\", \"arguments\": {\"command\": \"ls\"}}\n</tool_call>")
	input := []any{
		fields{"type": "message", "role": "developer", "content": []any{fields{"type": "input_text", "text": "<permissions>"}}},
		fields{"type": "message", "role": "user", "content": []any{fields{"type": "input_text", "text": "list"}}},
	}
	for turn := range 3 {
		body := fields{
			"model": modelName, "instructions": "You are Codex.", "input": input, "tools": []any{
				fields{"type": "namespace", "name": "muse", "description": "d", "tools": []any{fields{"type": "function", "name": "bash", "parameters": fields{"type": "object"}}}}, fields{"type": "custom", "name": "apply_patch", "format": fields{"type": "grammar", "syntax": "lark", "definition": "start: x"}},
				fields{"type": "web_search"},
			}, "tool_choice": "auto", "parallel_tool_calls": false, "reasoning": nil, "store": false, "stream": true, "include": []string{"reasoning.encrypted_content"}, "prompt_cache_key": "k", "client_metadata": fields{"a": "b"},
		}
		packed, err := zstd.NewWriter(nil)
		w.ok(err)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+responsesPath, bytes.NewReader(packed.EncodeAll([]byte(body.text()), nil)))
		w.ok(err)
		w.ok(packed.Close())
		req.Header.Set("Content-Encoding", "zstd")
		res, err := w.client.Do(req)
		w.ok(err)
		b, err := io.ReadAll(res.Body)
		w.ok(err)
		w.ok(res.Body.Close())
		if res.StatusCode != http.StatusOK {
			t.Fatalf("turn %d: %d %s", turn, res.StatusCode, b)
		}
		// It keeps what output_item.done says.
		for _, event := range strings.Split(string(b), "\n\n") {
			data, ok := strings.CutPrefix(event, "event: response.output_item.done\ndata: ")
			if !ok {
				continue
			}
			done := parsed(t, data).(map[string]any)["item"].(map[string]any)
			switch done["type"] {
			case "reasoning":
				if done["encrypted_content"] != sealReasoning("Hm.") {
					t.Errorf("%v", done)
				}
				input = append(input, fields{"type": "reasoning", "summary": []any{}, "encrypted_content": done["encrypted_content"]})
			case "function_call":
				if done["name"] != "muse.bash" || done["arguments"] != `{"command": "ls"}` {
					t.Errorf("%v", done)
				}
				input = append(input, done, fields{"type": "function_call_output", "call_id": done["call_id"], "output": "a.txt"})
			}
		}
		if len(input) != 2+3*(turn+1) {
			t.Fatalf("turn %d: %v", turn, input)
		}
	}
}

// TestRecordedRequests: bodies that clients of another server send are read, but for images.
func TestRecordedRequests(t *testing.T) {
	path := testdata(t, "requests/ollama.jsonl")
	w := newWorld(t, options{change: keeping})
	read := 0
	eachLine(t, path, func(line []byte) {
		var one struct {
			ID, Kind string
			Body     fields
		}
		w.ok(json.Unmarshal(line, &one))
		switch one.Kind {
		case "responses":
		case "responses_item":
			one.Body = fields{"input": []any{one.Body}}
		default:
			return
		}
		read++
		text := one.Body.with(fields{"model": modelName, "max_output_tokens": 30}).text()
		status, _, b := w.send(http.MethodPost, responsesPath, text)
		waits := strings.Contains(text, `"strict":true`) && strings.Contains(string(b), "unsupported_parameter") // until answers can be held to a form
		image := strings.Contains(text, "input_image") && strings.Contains(string(b), "only text parts")
		if status != http.StatusOK && !waits && !image {
			t.Errorf("%s: %d %s for %s", one.ID, status, b, text)
		}
	})
	if read == 0 {
		t.Error("there are none")
	}
}

// TestDroppedNames: what is left out is named once, in a header that clients can read.
func TestDroppedNames(t *testing.T) {
	l := &responseTools{}
	for i := range 100 {
		l.drop(fmt.Sprintf("mcp_20%02d", i/2))
	}
	l.drop("late")
	if len(l.dropped) != maxDropped || l.dropped[1] != "mcp_2001" {
		t.Errorf("%d names: %q", len(l.dropped), l.dropped)
	}
	l = &responseTools{}
	if l.drop("mcp_use\r\nX: y, " + strings.Repeat("a", 1000)); len(l.dropped[0]) != maxDroppedName || strings.ContainsAny(l.dropped[0], " ,\r\n") {
		t.Errorf("%q", l.dropped)
	}
}
