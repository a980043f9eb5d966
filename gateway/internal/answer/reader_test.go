package answer

import (
	"testing"
)

// whole reads a text in one piece.
func whole(o Options, text string) Answer {
	r := NewReader(o)
	events := append([]Event(nil), r.Push(text, false)...)
	return Collect(append(events, r.Finish(false)...))
}

func TestFirst(t *testing.T) {
	a := whole(Options{Format: Hermes, ReadCalls: true, Tags: knownTags[0]}, "<think>\nhm\n</think>\n\nI say.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"</tool_call>é\"}}\n</tool_call>\n")
	if a.Reasoning == nil || *a.Reasoning != "hm" || a.Content == nil || *a.Content != "I say." || len(a.Calls) != 1 || a.Calls[0].Arguments != `{"a": "</tool_call>é"}` || !a.Calls[0].Ended {
		t.Errorf("%+v", a)
	}
}
