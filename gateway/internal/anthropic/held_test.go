package anthropic

import (
	"encoding/json"
	"reflect"
	"strconv"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

// TestHeld: what an answer is held to, whatever the model would say; whole and streamed.
func TestHeld(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	point := json.RawMessage(`{"type": "object", "properties": {"city": {"enum": ["Ulm", "Bonn"]}, "n": {"type": "boolean"}}, "required": ["city", "n"], "additionalProperties": false}`)
	tool := fields{"name": "get_weather", "input_schema": point, "strict": true}
	right := func(o any) bool {
		v, ok := o.(object)
		_, certain := v["n"].(bool)
		return ok && len(v) == 2 && certain && (v["city"] == "Ulm" || v["city"] == "Bonn")
	}
	for name, c := range map[string]struct {
		change fields
		calls  bool
	}{
		"a form":                {fields{"output_config": fields{"format": fields{"type": "json_schema", "schema": point}}}, false},
		"its older name":        {fields{"output_format": fields{"type": "json_schema", "schema": point}}, false},
		"any tool, one call":    {fields{"tools": []fields{tool}, "tool_choice": fields{"type": "any", "disable_parallel_tool_use": true}}, true},
		"a tool":                {fields{"tools": []fields{tool, {"name": "get_time"}}, "tool_choice": fields{"type": "tool", "name": "get_weather"}}, true},
		"a tool, seen at once":  {fields{"tools": []fields{tool.With(fields{"eager_input_streaming": true})}, "tool_choice": fields{"type": "tool", "name": "get_weather"}}, true},
		"a tool without strict": {fields{"tools": []fields{tool.With(fields{"strict": false})}, "tool_choice": fields{"type": "tool", "name": "get_weather"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{w.On(t), w.header}
			f := asking("weather?").With(fields{"max_tokens": 400, "seed": 3, "thinking": fields{"type": "disabled"}}).With(c.change)
			whole, events := w.whole(f), w.events(f)
			if err := ordered(events); err != nil {
				t.Error(err)
			}
			streamed := accumulate(t, events)
			if !reflect.DeepEqual(blocks(streamed), blocks(whole)) || streamed["stop_reason"] != whole["stop_reason"] {
				t.Errorf("streamed %q %v, whole %q %v", blocks(streamed), streamed["stop_reason"], blocks(whole), whole["stop_reason"])
			}
			content := whole["content"].([]any)
			last := content[len(content)-1].(object)
			if c.calls {
				if whole["stop_reason"] != "tool_use" || len(content) != 1 || last["name"] != "get_weather" || !right(last["input"]) {
					t.Errorf("%v %v", whole["stop_reason"], content)
				}
				return
			}
			if said, _ := last["text"].(string); whole["stop_reason"] != "end_turn" || !right(any(parsed(t, []byte(said)))) {
				t.Errorf("%v %v", whole["stop_reason"], content)
			}
		})
	}
}

// TestBudget: thoughts end with their budget.
func TestBudget(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	open, err := w.Model.Tokenizer.Encode("<think>", false)
	w.OK(err)
	const budget = 5
	thought := func(change fields) float64 { // by a model that likes to
		answer := w.whole(asking("hi").With(fields{"max_tokens": 40, "seed": 1, "logit_bias": fields{strconv.Itoa(int(open[0])): 100}}).With(change))
		details, _ := answer["usage"].(object)["output_tokens_details"].(object)
		n, _ := details["thinking_tokens"].(float64)
		return n
	}
	if n := thought(nil); n <= 2*budget {
		t.Errorf("%v tokens of thoughts without a budget", n)
	}
	if n := thought(fields{"thinking": fields{"type": "enabled", "budget_tokens": budget}}); n < budget || n > 2*budget { // the tags beside them
		t.Errorf("%v tokens of thoughts, the budget is %d", n, budget)
	}
}

// TestStrictTools: what a call cannot be held to is refused where all of it must be, and named.
func TestStrictTools(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	odd := json.RawMessage(`{"type": "object", "properties": {"city": {"type": "string", "pattern": "^(?=zz)", "maxLength": 3}}, "required": ["city"], "additionalProperties": false}`)
	f := asking("weather?").With(fields{"seed": 3, "tools": []fields{{"name": "get_weather", "input_schema": odd}}, "tool_choice": fields{"type": "any"}, "thinking": fields{"type": "disabled"}})
	f["max_tokens"] = 300
	wrong := func(errors any) bool { // what a call was not held to else, is checked
		list, _ := errors.([]any)
		return len(list) == 1 && list[0].(object)["path"] == "/city" && list[0].(object)["tool_call"] == 0.0
	}
	f["tool_choice"] = fields{"type": "any", "disable_parallel_tool_use": true}
	if whole := w.whole(f); !wrong(whole["schema_errors"]) {
		t.Errorf("%v", whole)
	}
	events := w.events(f)
	if end := events[len(events)-2]; end.name != "message_delta" || !wrong(end.data["schema_errors"]) {
		t.Errorf("%v", end)
	}
	w.refused("/v1/messages", f.With(fields{"tools": []fields{{"name": "get_weather", "input_schema": odd, "strict": true}}}).Text(), 400, "invalid_request_error", "tools[0]", "pattern")
}
