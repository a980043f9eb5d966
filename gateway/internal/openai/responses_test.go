package openai

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// responding asks for a response to a text.
func responding(input any) fields {
	return fields{"model": modelName, "input": input, "max_output_tokens": 200, "seed": 7}
}

// flat is a tool in the form of this surface.
func flat(tool fields) fields {
	return fields{"type": "function"}.with(tool["function"].(fields))
}

const responsesPath = "/v1/responses"

// keeping has responses stored.
func keeping(c *runs.Config) { c.ResponsesKept = day }

// respond asks for a whole response and validates it.
func (w *world) respond(f fields) map[string]any {
	w.Helper()
	var out map[string]any
	w.answer(responsesPath, "Response", f, &out)
	return out
}

// followed reads a stream of a response: every event is validated, and put together as openai-python does it, which must give what the last event says.
func (w *world) followed(f fields) (events []map[string]any, last map[string]any) {
	w.Helper()
	status, header, b := w.send(http.MethodPost, responsesPath, f.with(fields{"stream": true}).text())
	if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/event-stream") {
		w.Fatalf("%d %s %s", status, header.Get("Content-Type"), b)
	}
	var output []map[string]any
	for n, text := range strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n") {
		name, data, ok := strings.Cut(text, "\ndata: ")
		event, _ := parsed(w, data).(map[string]any)
		if !ok || name != "event: "+event["type"].(string) || event["sequence_number"] != float64(n) {
			w.Fatalf("event %d: %q", n, text)
		}
		w.check(w, "ResponseStreamEvent", event)
		events = append(events, event)
		output = accumulateResponse(w, output, event)
		if response, ok := event["response"].(map[string]any); ok {
			last = response
		}
	}
	if !reflect.DeepEqual(anyList(output), last["output"]) {
		w.Errorf("the events give\n%v\nand the last one\n%v", output, last["output"])
	}
	return events, last
}

func anyList(list []map[string]any) []any {
	out := make([]any, len(list))
	for i, one := range list {
		out[i] = one
	}
	return out
}

// accumulateResponse puts an event to what came before: what is added must be what is done in the end.
func accumulateResponse(t testing.TB, output []map[string]any, e map[string]any) []map[string]any {
	t.Helper()
	item := func() map[string]any {
		i := output[int(e["output_index"].(float64))]
		if id, ok := e["item_id"]; ok && id != i["id"] {
			t.Fatalf("%v is about %v", e, i["id"])
		}
		return i
	}
	part := func() map[string]any {
		return item()["content"].([]any)[int(e["content_index"].(float64))].(map[string]any)
	}
	same := func(got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, but what came is %v", e["type"], got, want)
		}
	}
	switch e["type"] {
	case "response.output_item.added":
		if int(e["output_index"].(float64)) != len(output) {
			t.Errorf("%v comes after %d items", e, len(output))
		}
		return append(output, e["item"].(map[string]any))
	case "response.content_part.added":
		item()["content"] = append(item()["content"].([]any), e["part"])
	case "response.output_text.delta", "response.reasoning_text.delta":
		part()["text"] = part()["text"].(string) + e["delta"].(string)
		if logprobs, ok := e["logprobs"].([]any); ok {
			part()["logprobs"] = append(part()["logprobs"].([]any), logprobs...)
		}
	case "response.output_text.done", "response.reasoning_text.done":
		same(e["text"], part()["text"])
	case "response.content_part.done":
		same(e["part"], part())
	case "response.function_call_arguments.delta":
		item()["arguments"] = item()["arguments"].(string) + e["delta"].(string)
	case "response.function_call_arguments.done":
		if item()["arguments"] == "" {
			item()["arguments"] = "{}"
		}
		same(e["arguments"], item()["arguments"])
		same(e["name"], item()["name"])
	case "response.custom_tool_call_input.delta":
		item()["input"] = item()["input"].(string) + e["delta"].(string)
	case "response.custom_tool_call_input.done":
		same(e["input"], item()["input"])
	case "response.failed": // what has come of an item that is not done
		if last := output[len(output)-1]; last["status"] == statusInProgress {
			last["status"] = statusIncomplete
		}
	case "response.output_item.done":
		done := e["item"].(map[string]any)
		item()["status"] = done["status"]
		if sealed, ok := done["encrypted_content"]; ok {
			item()["encrypted_content"] = sealed
		}
		same(done, item())
	}
	return output
}

// types are those of some events, of equal ones that follow each other the first.
func types(events []map[string]any) (out []string) {
	for _, e := range events {
		if kind := strings.TrimPrefix(e["type"].(string), "response."); len(out) == 0 || out[len(out)-1] != kind {
			out = append(out, kind)
		}
	}
	return out
}

// plainOutput are items without what is random.
func plainOutput(response map[string]any) (out []map[string]any) {
	for _, one := range response["output"].([]any) {
		item := map[string]any{}
		for key, value := range one.(map[string]any) {
			if key != "id" && key != "call_id" {
				item[key] = value
			}
		}
		out = append(out, item)
	}
	return out
}

var textEvents = []string{"output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"}

var reasoningEvents = []string{"output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"}

var callEvents = []string{"output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"}

var customEvents = []string{"output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"}

func told(status string, items ...[]string) []string {
	return slices.Concat([]string{"created", "in_progress"}, slices.Concat(items...), []string{status})
}

// TestResponses: what the model writes comes back as items in the order in which it was written, the same whole and streamed, with all events in order.
func TestResponses(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	text := func(kind, text string) []any {
		if kind == "reasoning_text" {
			return []any{map[string]any{"type": kind, "text": text}}
		}
		return []any{map[string]any{"type": kind, "text": text, "annotations": []any{}, "logprobs": []any{}}}
	}
	message := func(said string) map[string]any {
		return map[string]any{"type": "message", "role": "assistant", "status": "completed", "content": text("output_text", said)}
	}
	reasoning := func(thought string) map[string]any {
		return map[string]any{"type": "reasoning", "status": "completed", "summary": []any{}, "content": text("reasoning_text", thought)}
	}
	call := func(name, arguments string) map[string]any {
		return map[string]any{"type": "function_call", "status": "completed", "name": name, "arguments": arguments}
	}
	tools := fields{"tools": []any{flat(weather), flat(clock), fields{"type": "custom", "name": "sql", "format": fields{"type": "grammar", "syntax": "regex", "definition": "SELECT .+"}}}}
	for _, c := range []struct {
		name, says string
		change     fields
		output     []map[string]any
		events     []string
	}{
		{"text", "Hello, world.", nil, []map[string]any{message("Hello, world.")}, told("completed", textEvents)},
		{"nothing", "", nil, nil, told("completed")},
		{"thoughts", "<think>\nHm.\n</think>\n\nYes.", nil, []map[string]any{reasoning("Hm."), message("Yes.")}, told("completed", reasoningEvents, textEvents)},
		{"thoughts alone", "<think>\nHm", nil, []map[string]any{reasoning("Hm")}, told("completed", reasoningEvents)},
		{"hidden thoughts", "<think>\nHm.\n</think>\n\nYes.", fields{"include_reasoning": false}, []map[string]any{message("Yes.")}, told("completed", textEvents)},
		{"a call", oneCall, tools, []map[string]any{call("get_weather", `{"city":  "Ulm \u00fc", "n": 1.0}`)}, told("completed", callEvents)},
		{
			"everything", "<think>\nHm.\n</think>\n\nLet me see.\n" + twoCalls, tools,
			[]map[string]any{reasoning("Hm."), message("Let me see."), call("get_weather", `{"city":  "Ulm \u00fc", "n": 1.0}`), call("get_time", "{}")},
			told("completed", reasoningEvents, textEvents, callEvents, callEvents),
		},
		{"one call of two", twoCalls, tools.with(fields{"parallel_tool_calls": false}), []map[string]any{call("get_weather", `{"city":  "Ulm \u00fc", "n": 1.0}`)}, told("completed", callEvents)},
		{"text behind a call", oneCall + "\nDone.", tools, []map[string]any{call("get_weather", `{"city":  "Ulm \u00fc", "n": 1.0}`), message("Done.")}, told("completed", callEvents, textEvents)},
		{
			"a custom tool", `<tool_call>` + "\n" + `{"name": "sql", "arguments": {"input": "SELECT \"a\"\nFROM b"}}` + "\n</tool_call>", tools,
			[]map[string]any{{"type": "custom_tool_call", "status": "completed", "name": "sql", "input": "SELECT \"a\"\nFROM b"}}, told("completed", customEvents),
		},
		{
			"a custom tool called otherwise", `<tool_call>` + "\n" + `{"name": "sql", "arguments": {"query": 1}}` + "\n</tool_call>", tools,
			[]map[string]any{{"type": "custom_tool_call", "status": "completed", "name": "sql", "input": `{"query": 1}`}}, told("completed", customEvents),
		},
		{"calls that are not read", oneCall, tools.with(fields{"tool_choice": "none"}), []map[string]any{message(oneCall)}, told("completed", textEvents)},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := *w
			w.TB = t
			w.says(c.says)
			whole := w.respond(responding("hi").with(c.change))
			if got := plainOutput(whole); !reflect.DeepEqual(got, c.output) {
				t.Errorf("whole\n%v\nwant\n%v", got, c.output)
			}
			events, last := w.followed(responding("hi").with(c.change))
			if got := plainOutput(last); !reflect.DeepEqual(got, c.output) {
				t.Errorf("streamed\n%v\nwant\n%v", got, c.output)
			}
			if got := types(events); !slices.Equal(got, c.events) {
				t.Errorf("events\n%v\nwant\n%v", got, c.events)
			}
			for _, key := range []string{"status", "usage", "tools", "tool_choice", "text", "metadata", "store", "model"} {
				if key != "usage" && !reflect.DeepEqual(whole[key], last[key]) {
					t.Errorf("%s is %v whole and %v streamed", key, whole[key], last[key])
				}
			}
		})
	}
}
