package anthropic

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

var weather = fields{"name": "get_weather", "description": "The weather at a place.", "input_schema": json.RawMessage(`{"type": "object", "properties": {"zone": {"type": "string"}, "city": {"type": "string"}}, "required": ["city"]}`)}

const (
	oneCall  = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":  \"Ulm \\u00fc\", \"n\": 1.0}}\n</tool_call>"
	badCall  = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": Ulm}}\n</tool_call>"
	thoughts = "<think>\nHm, \"weather\".\n</think>\n\n"
)

// answers are what a model says, and what it comes to.
var answers = []struct {
	name, says string
	change     fields
	blocks     []string
	stop       string
	sequence   any
}{
	{"text", "Hello you.", nil, []string{"text: Hello you."}, "end_turn", nil},
	{"nothing", "", nil, []string{"text: "}, "end_turn", nil},
	{"thoughts", thoughts + "Sunny.", nil, []string{"thinking: Hm, \"weather\".", "text: Sunny."}, "end_turn", nil},
	{"thoughts only", "<think>\nHm", nil, []string{"thinking: Hm"}, "end_turn", nil},
	{"omitted thoughts", thoughts + "Sunny.", fields{"thinking": fields{"type": "adaptive", "display": "omitted"}}, []string{"thinking: ", "text: Sunny."}, "end_turn", nil},
	{"call", oneCall, nil, []string{`call: get_weather{"city":"Ulm ü","n":1}`}, "tool_use", nil},
	{"all", thoughts + "Let me see.\n" + oneCall + "\n" + oneCall, nil, []string{"thinking: Hm, \"weather\".", "text: Let me see.", `call: get_weather{"city":"Ulm ü","n":1}`, `call: get_weather{"city":"Ulm ü","n":1}`}, "tool_use", nil},
	{"text behind a call", oneCall + "\nDone.", nil, []string{`call: get_weather{"city":"Ulm ü","n":1}`, "text: Done."}, "tool_use", nil},
	{"no arguments", "<tool_call>\n{\"name\": \"get_weather\"}\n</tool_call>", nil, []string{"call: get_weather{}"}, "tool_use", nil},
	{"arguments that are no JSON", badCall, nil, []string{`call: get_weather{"_raw_arguments":"{\"city\": Ulm}"}`}, "tool_use", nil},
	{"one call at most", oneCall + "\n" + oneCall, fields{"tool_choice": fields{"type": "auto", "disable_parallel_tool_use": true}}, []string{`call: get_weather{"city":"Ulm ü","n":1}`}, "tool_use", nil},
	{"no calls wanted", "a" + oneCall, fields{"tool_choice": fields{"type": "none"}}, []string{"text: a" + oneCall}, "end_turn", nil},
	{"stop sequence", "one two three", fields{"stop_sequences": []string{"zzz", " three"}}, []string{"text: one two"}, "stop_sequence", " three"},
	{"stop sequence in a call", oneCall, fields{"stop_sequences": []string{"Ulm"}}, []string{`call: get_weather{"_raw_arguments":"{\"city\":  \""}`}, "stop_sequence", "Ulm"},
	{"cut", strings.Repeat("word ", 100), fields{"max_tokens": 1}, nil, "max_tokens", nil},
}

// TestAnswers: whole and streamed, which must come to the same.
func TestAnswers(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	for _, c := range answers {
		t.Run(c.name, func(t *testing.T) {
			w := &world{w.On(t), w.header}
			w.Says(c.says)
			f := asking("weather?").With(fields{"tools": []fields{weather}}).With(c.change)
			whole := w.whole(f)
			events := w.events(f)
			if err := ordered(events); err != nil {
				t.Error(err)
			}
			streamed := accumulate(t, events)
			if got := blocks(whole); c.blocks != nil && !slices.Equal(got, c.blocks) {
				t.Errorf("blocks %q, want %q", got, c.blocks)
			}
			if whole["stop_reason"] != c.stop || whole["stop_sequence"] != c.sequence {
				t.Errorf("stop %v %v, want %v %v", whole["stop_reason"], whole["stop_sequence"], c.stop, c.sequence)
			}
			if whole["type"] != "message" || whole["role"] != "assistant" || whole["model"] != inferencetest.ModelName || !strings.HasPrefix(whole["id"].(string), "msg_") {
				t.Errorf("message %v", whole)
			}
			for _, b := range whole["content"].([]any) {
				if id, called := b.(object)["id"].(string); called && (!strings.HasPrefix(id, "toolu_") || len(id) != 30) {
					t.Errorf("id %q of a call", id)
				}
			}
			used, streamedUsed := whole["usage"].(object), streamed["usage"].(object)
			if sum(used) != sum(streamedUsed) { // the second prompt may be remembered
				t.Errorf("usage %v, streamed %v", used, streamedUsed)
			}
			delete(whole, "usage")
			delete(streamed, "usage")
			if a, b := withoutIDs(whole), withoutIDs(streamed); !reflect.DeepEqual(a, b) {
				t.Errorf("whole %v, streamed %v", a, b)
			}
		})
	}
}

func sum(usage object) (total float64) {
	for _, key := range []string{"input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"} {
		total += usage[key].(float64)
	}
	return total
}

// ordered tells what is wrong with the order of a stream's events. It holds for recorded streams as for ours.
func ordered(events []sent) error {
	open, next, kind, signed := false, 0., "", false
	stage := "message_start"
	for i, e := range events {
		switch e.name {
		case "ping":
			if stage == "message_start" {
				return fmt.Errorf("a ping before the message")
			}
		case "message_start":
			if stage != "message_start" {
				return fmt.Errorf("event %d: a message begins twice", i)
			}
			stage = "blocks"
			if m := e.data["message"].(object); len(m["content"].([]any)) != 0 || m["stop_reason"] != nil {
				return fmt.Errorf("the message begins with %v", m)
			}
		case "content_block_start":
			if stage != "blocks" || open || e.data["index"] != next {
				return fmt.Errorf("event %d: block %v begins, want %v", i, e.data["index"], next)
			}
			open, kind, signed = true, e.data["content_block"].(object)["type"].(string), false
		case "content_block_delta":
			d := e.data["delta"].(object)["type"].(string)
			want := map[string][]string{"text": {"text_delta", "citations_delta"}, "thinking": {"thinking_delta", "signature_delta"}, "tool_use": {"input_json_delta"}, "server_tool_use": {"input_json_delta"}, "compaction": {"compaction_delta"}}[kind]
			if stage != "blocks" || !open || e.data["index"] != next || !slices.Contains(want, d) || signed {
				return fmt.Errorf("event %d: %s of block %v, which is %s", i, d, e.data["index"], kind)
			}
			signed = d == "signature_delta"
		case "content_block_stop":
			if stage != "blocks" || !open || e.data["index"] != next || signed != (kind == "thinking") {
				return fmt.Errorf("event %d: block %v ends, want %v", i, e.data["index"], next)
			}
			open = false
			next++
		case "message_delta":
			if stage != "blocks" || open || e.data["delta"].(object)["stop_reason"] == nil {
				return fmt.Errorf("event %d: the message ends with %v", i, e.data)
			}
			stage = "message_stop"
		case "message_stop":
			if stage != "message_stop" {
				return fmt.Errorf("event %d: the message stops", i)
			}
			stage = "over"
		default:
			return fmt.Errorf("event %d: %q is not known", i, e.name)
		}
	}
	if stage != "over" {
		return fmt.Errorf("the stream ends before its %s", stage)
	}
	return nil
}

// recorded are the streams of Anthropic's API that were recorded, by their names.
func recorded(t *testing.T) map[string][]sent {
	t.Helper()
	data := os.Getenv("TINSMITH_TESTDATA")
	if data == "" {
		t.Skip("TINSMITH_TESTDATA is not set: the recorded streams are not here")
	}
	b, err := os.ReadFile(filepath.Join(data, "surfaces", "streams", "anthropic.messages.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][]sent{}
	for _, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		var recording struct {
			ID     string
			Events []struct{ Data object }
		}
		if err := json.Unmarshal([]byte(line), &recording); err != nil {
			t.Fatal(err)
		}
		for _, e := range recording.Events {
			out[recording.ID] = append(out[recording.ID], sent{e.Data["type"].(string), e.Data})
		}
	}
	return out
}

// odd are recordings of several messages, of broken servers, and one that ends within a block.
var odd = []string{"message-start", "tool-search", "incomplete_partial_json"}

// TestRecordedStreams: the rules that our streams keep to are those of the recorded ones, and every object has the keys that recorded ones have.
func TestRecordedStreams(t *testing.T) {
	always, ever := map[string]map[string]bool{}, map[string]map[string]bool{} // keys of objects of a kind
	for name, events := range recorded(t) {
		if slices.ContainsFunc(odd, func(part string) bool { return strings.Contains(name, part) }) {
			continue
		}
		if err := ordered(events); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for kind, list := range kinds(events) {
			for _, o := range list {
				if always[kind] == nil {
					always[kind], ever[kind] = map[string]bool{}, map[string]bool{}
					for key := range o {
						always[kind][key] = true
					}
				}
				for key := range o {
					ever[kind][key] = true
				}
				for key := range always[kind] {
					if _, there := o[key]; !there {
						delete(always[kind], key)
					}
				}
			}
		}
	}
	w := newWorld(t, inferencetest.Options{})
	w.Says(thoughts + "Let me see.\n" + oneCall)
	for kind, list := range kinds(w.events(asking("weather?").With(fields{"tools": []fields{weather}}))) {
		if ever[kind] == nil {
			t.Errorf("no recording has a %s", kind)
		}
		for _, o := range list {
			for key := range o {
				if !ever[kind][key] {
					t.Errorf("%s: no recording has %q", kind, key)
				}
			}
			for key := range always[kind] {
				if _, there := o[key]; !there {
					t.Errorf("%s: %q is not there", kind, key)
				}
			}
		}
	}
}

// kinds are the objects of a stream.
func kinds(events []sent) map[string][]object {
	out := map[string][]object{}
	for _, e := range events {
		out[e.name] = append(out[e.name], e.data)
		if m, ok := e.data["message"].(object); ok {
			out["message"] = append(out["message"], m)
			out["usage at the start"] = append(out["usage at the start"], m["usage"].(object))
		}
		if u, ok := e.data["usage"].(object); ok {
			out["usage at the end"] = append(out["usage at the end"], u)
		}
		for _, key := range []string{"content_block", "delta"} {
			if part, ok := e.data[key].(object); ok {
				kind := fmt.Sprint(e.name, " ", part["type"])
				out[kind] = append(out[kind], part)
			}
		}
	}
	return out
}

// TestEagerInput: what a tool's input comes in.
func TestEagerInput(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	pieces := func(f fields) (out []string) {
		for _, e := range w.events(asking("weather?").With(f)) {
			if d, ok := e.data["delta"].(object); ok && d["type"] == "input_json_delta" {
				out = append(out, d["partial_json"].(string))
			}
		}
		return out
	}
	eager, lazy := weather.With(fields{"eager_input_streaming": true}), weather.With(fields{"eager_input_streaming": false})
	const whole = `{"city":  "Ulm \u00fc", "n": 1.0}`
	w.Says(oneCall)
	if got := pieces(fields{"tools": []fields{weather}}); !slices.Equal(got, []string{whole}) {
		t.Errorf("pieces %q", got)
	}
	if got := pieces(fields{"tools": []fields{eager}}); len(got) < 4 || strings.Join(got, "") != whole {
		t.Errorf("eager pieces %q", got)
	}
	w.header.Set("Anthropic-Beta", "claude-code-20250219,fine-grained-tool-streaming-2025-05-14")
	if got := pieces(fields{"tools": []fields{weather}}); len(got) < 4 || strings.Join(got, "") != whole {
		t.Errorf("pieces with the beta %q", got)
	}
	if got := pieces(fields{"tools": []fields{lazy}}); len(got) != 1 {
		t.Errorf("pieces with the beta, and without the tool's consent: %q", got)
	}
	w.Says(badCall)
	if got := pieces(fields{"tools": []fields{eager}}); strings.Join(got, "") != `{"city": Ulm}` {
		t.Errorf("eager pieces that are no JSON: %q", got)
	}
}

// TestSignatures: thoughts that were omitted are told again by their signature, and any other signature is taken.
func TestSignatures(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	ask := func(display string) object {
		w.Says(thoughts + "Sunny.")
		answer := w.whole(asking("weather?").With(fields{"thinking": fields{"type": "adaptive", "display": display}}))
		return answer["content"].([]any)[0].(object)
	}
	omitted, shown := ask("omitted"), ask("summarized")
	if omitted["thinking"] != "" || omitted["signature"] != "tin1."+base64.RawURLEncoding.EncodeToString([]byte(`Hm, "weather".`)) {
		t.Errorf("omitted %v", omitted)
	}
	if sum := strings.TrimPrefix(shown["signature"].(string), "tin1."); len(sum) != 43 {
		t.Errorf("shown %v", shown)
	}
	history := func(thought object) string { // thoughts before a tool's result stay in the prompt
		return w.prompt(asking("weather?").With(fields{"tools": []fields{weather}, "messages": []any{
			object{"role": "user", "content": "weather?"},
			object{"role": "assistant", "content": []any{thought, object{"type": "tool_use", "id": "a", "name": "get_weather", "input": object{}}}},
			object{"role": "user", "content": []any{object{"type": "tool_result", "tool_use_id": "a", "content": "sunny"}}},
		}}))
	}
	want := history(shown)
	if !strings.Contains(want, `Hm, "weather".`) {
		t.Fatalf("the prompt has no thoughts: %q", want)
	}
	for name, thought := range map[string]object{
		"omitted": omitted, "another signature": {"type": "thinking", "thinking": `Hm, "weather".`, "signature": "EqQB"}, "no signature": {"type": "thinking", "thinking": `Hm, "weather".`},
	} {
		if got := history(thought); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := history(object{"type": "thinking", "thinking": "", "signature": "EqQB"}); strings.Contains(got, "Hm") {
		t.Errorf("nothing is made of a foreign signature: %q", got)
	}
}

// TestCuts: what an answer comes to does not depend on how its text was cut.
func TestCuts(t *testing.T) {
	for _, text := range []string{thoughts + "Let me see.\n" + oneCall + "\n" + badCall + "\nDone ü.", oneCall, "ü", "<think>a</think>b"} {
		for _, omitted := range []bool{false, true} {
			read := func(cuts ...int) []contentBlock {
				r := answer.NewReader(answer.Options{Format: answer.Hermes, ReadCalls: true, Tags: answer.Tags{Open: "<think>", Close: "</think>"}, NewID: func() string { return "toolu_x" }})
				e, whole := &encoder{omitted: omitted}, &collector{}
				push := func(events []answer.Event) {
					for _, one := range events {
						whole.add(e.push(one))
					}
				}
				from := 0
				for _, at := range append(cuts, len(text)) {
					push(r.Push(text[from:at], false))
					from = at
				}
				push(r.Finish(false))
				whole.add(e.finish())
				return whole.content()
			}
			want := read()
			for at := range len(text) {
				if got := read(at); !reflect.DeepEqual(got, want) {
					t.Fatalf("cut at %d: %+v, want %+v", at, got, want)
				}
			}
			every := make([]int, len(text))
			for i := range every {
				every[i] = i
			}
			if got := read(every...); !reflect.DeepEqual(got, want) {
				t.Errorf("cut everywhere: %+v, want %+v", got, want)
			}
		}
	}
}
