package openai

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// said is the text of a response.
func said(response map[string]any) (text string) {
	for _, i := range response["output"].([]any) {
		if i.(map[string]any)["type"] == "message" {
			text += i.(map[string]any)["content"].([]any)[0].(map[string]any)["text"].(string)
		}
	}
	return text
}

// TestResponseForms: an answer is held to the form that text.format asks for, or a field of another server's.
func TestResponseForms(t *testing.T) {
	w := newWorld(t, options{})
	quiet := responding("hello").with(fields{"max_output_tokens": 400, "reasoning": fields{"effort": "none"}})
	isObject := func(text string) bool {
		var v map[string]any
		return json.Unmarshal([]byte(text), &v) == nil
	}
	person := fields{"type": "object", "properties": fields{"ok": fields{"type": "boolean"}}, "required": []string{"ok"}, "additionalProperties": false}
	for _, c := range []struct {
		name string
		ask  fields
		ok   func(text string) bool
	}{
		{"strict schema", fields{"text": fields{"format": fields{"type": "json_schema", "name": "n", "schema": person, "strict": true}}}, func(s string) bool { return isObject(s) && strings.Contains(s, `"ok"`) }},
		{"choice", fields{"guided_choice": []string{"red", "blue"}}, func(s string) bool { return s == "red" || s == "blue" }},
		{"structured outputs", fields{"structured_outputs": fields{"regex": "a{3,5}"}}, func(s string) bool { return strings.Trim(s, "a") == "" && len(s) >= 3 && len(s) <= 5 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			whole := w.respond(quiet.with(c.ask))
			if text := said(whole); whole["status"] != "completed" || !c.ok(text) {
				t.Errorf("%s: %q", whole["status"], text)
			}
			if _, last := w.followed(quiet.with(c.ask)); said(last) != said(whole) {
				t.Errorf("streamed %q, whole %q", said(last), said(whole))
			}
		})
	}
	w.refused(http.MethodPost, responsesPath, quiet.with(fields{"guided_choice": []string{"a"}, "text": fields{"format": fields{"type": "json_object"}}}).text(), 400, "guided_choice", "", "text.format")
	events, last := w.followed(quiet.with(fields{"tools": []any{flat(weather)}, "tool_choice": "required", "parallel_tool_calls": false, "temperature": 0}))
	if got := types(events); !slices.Equal(got, told(last["status"].(string), callEvents)) {
		t.Errorf("a call that is required: %v", got)
	}
}

// TestRelaxedResponses: what an answer is not held to is named, and checked when it has ended.
func TestRelaxedResponses(t *testing.T) {
	w := newWorld(t, options{})
	schema := json.RawMessage(`{"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?=zz)", "maxLength": 3}}, "required": ["a"], "additionalProperties": false}`)
	ask := responding("hello").with(fields{"max_output_tokens": 300, "reasoning": fields{"effort": "none"}, "text": fields{"format": fields{"type": "json_schema", "name": "n", "schema": schema}}})
	status, header, b := w.send(http.MethodPost, responsesPath, ask.text())
	if status != http.StatusOK || header.Get(inference.RelaxedHeader) != "#/properties/a pattern" {
		t.Fatalf("%d %q %s", status, header.Get(inference.RelaxedHeader), b)
	}
	whole := parsed(t, string(b)).(map[string]any)
	errors, _ := whole["schema_errors"].([]any)
	if whole["status"] != "completed" || len(errors) != 1 || errors[0].(map[string]any)["path"] != "/a" {
		t.Errorf("%s", b)
	}
	if _, last := w.followed(ask); !reflect.DeepEqual(last["schema_errors"], whole["schema_errors"]) {
		t.Errorf("streamed %v", last["schema_errors"])
	}
}
