package inference

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/chat"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// strictTemplate refuses what templates in use refuse, and prints the rest.
const strictTemplate = `{%- for m in messages -%}
{%- if m.role == 'system' and not loop.first -%}{{ raise_exception('System message must be at the beginning') }}{%- endif -%}
{%- if m.tool_calls and m.tool_calls | length > 1 -%}{{ raise_exception('only single tool-calls at once') }}{%- endif -%}
[{{ m.role }}:{{ m.content }}{% if m.reasoning_content %}?{{ m.reasoning_content }}{% endif %}{% for c in m.tool_calls %}!{{ c.function.name }}{% endfor %}{% if m.name %}={{ m.name }}{% endif %}]
{%- endfor -%}`

// conversation reads messages in a short form: JSON objects.
func conversation(t *testing.T, text string) []*jinja.Dict {
	t.Helper()
	var raw []json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		t.Fatal(err)
	}
	out := make([]*jinja.Dict, len(raw))
	for i, one := range raw {
		value, err := jinja.FromJSON(one)
		if err != nil {
			t.Fatal(err)
		}
		out[i] = value.(*jinja.Dict)
	}
	return out
}

const (
	systemA  = `{"role": "system", "content": "A"}`
	systemB  = `{"role": "system", "content": "B"}`
	userU    = `{"role": "user", "content": "U"}`
	sayS     = `{"role": "assistant", "content": "S"}`
	callsTwo = `{"role": "assistant", "content": "S", "reasoning_content": "R", "tool_calls": [{"id": "1", "function": {"name": "f"}}, {"id": "2", "function": {"name": "g"}}]}`
	result1  = `{"role": "tool", "tool_call_id": "1", "content": "r1"}`
	result2  = `{"role": "tool", "tool_call_id": "2", "content": "r2"}`
	unnamed  = `{"role": "tool", "content": "r"}`
)

// TestAdaptations: what a template refuses is told in another way that means the same, each part at its place.
func TestAdaptations(t *testing.T) {
	strict, err := chat.NewTemplate(strictTemplate, nil)
	if err != nil {
		t.Fatal(err)
	}
	reminder := reminderBegin + "B" + reminderEnd
	for _, c := range []struct{ name, messages, want string }{
		{"as it is", systemA + "," + userU, "[system:A][user:U]"},
		{"two system messages at the beginning", systemA + "," + systemB + "," + userU, "[system:A\n\nB][user:U]"},
		{"between user and assistant", userU + "," + systemB + "," + sayS + "," + userU, "[user:U\n\n" + reminder + "][assistant:S][user:U]"},
		{"before the user", userU + "," + sayS + "," + systemB + "," + userU, "[user:U][assistant:S][user:" + reminder + "\n\nU]"},
		{"by itself", userU + "," + sayS + "," + systemB, "[user:U][assistant:S][user:" + reminder + "]"},
		{"all of them", systemA + "," + systemB + "," + userU + "," + systemB + "," + userU, "[system:A\n\nB][user:U\n\n" + reminder + "][user:U]"},
		{"two calls", userU + "," + callsTwo + "," + result2 + "," + result1 + "," + userU, "[user:U][assistant:S?R!f][tool:r1=f][assistant:!g][tool:r2=g][user:U]"},
		{"two calls with results that name none", userU + "," + callsTwo + "," + unnamed + "," + unnamed, "[user:U][assistant:S?R!f][tool:r][assistant:!g][tool:r]"},
		{"a missing result", userU + "," + callsTwo + "," + result2, "[user:U][assistant:S?R!f][assistant:!g][tool:r2=g]"},
		{"calls and systems", systemA + "," + systemB + "," + callsTwo + "," + result1 + "," + result2 + "," + systemB, "[system:A\n\nB][assistant:S?R!f][tool:r1=f][assistant:!g][tool:r2=g][user:" + reminder + "]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := budget.New(t.Context(), budget.Limits{})
			defer b.End()
			got, err := renderAdapted(t.Context(), b, strict, chat.Conversation{Messages: orderResults(conversation(t, "["+c.messages+"]")), Now: time.Now()})
			if err != nil || got != c.want {
				t.Errorf("%q, %v\nwant %q", got, err, c.want)
			}
		})
	}
}

// TestRefusedInEveryForm: the error is the template's word about the conversation as it was sent.
func TestRefusedInEveryForm(t *testing.T) {
	template, err := chat.NewTemplate(`{{ raise_exception('no: ' ~ messages | length) }}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := budget.New(t.Context(), budget.Limits{})
	defer b.End()
	_, err = renderAdapted(t.Context(), b, template, chat.Conversation{Messages: conversation(t, "["+systemA+","+systemB+","+userU+"]"), Now: time.Now()})
	var raised *jinja.RaisedError
	if !errors.As(err, &raised) || raised.Message != "no: 3" {
		t.Errorf("error %v", err)
	}
}

// TestOrderedResults: results follow the order of their calls, where each names one.
func TestOrderedResults(t *testing.T) {
	names := func(messages []*jinja.Dict) (out string) {
		for _, m := range messages {
			if roleOf(m) == "tool" {
				out += textOf(m, "content") + textOf(m, "name") + " "
			}
		}
		return out
	}
	for _, c := range []struct{ name, messages, want string }{
		{"in order", callsTwo + "," + result1 + "," + result2, "r1f r2g "},
		{"turned", callsTwo + "," + result2 + "," + result1, "r1f r2g "},
		{"one names none", callsTwo + "," + result2 + "," + unnamed, "r2g r "},
		{"of another turn", callsTwo + "," + userU + "," + result2 + "," + result1, "r2 r1 "},
	} {
		given := conversation(t, "["+c.messages+"]")
		before := names(given)
		if got := names(orderResults(given)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if names(given) != before {
			t.Errorf("%s: what was given has changed", c.name)
		}
	}
}
