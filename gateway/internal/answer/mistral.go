package answer

import "strings"

// Mistral is [TOOL_CALLS]N[ARGS]{…}, or as before it [TOOL_CALLS][{"name": N, "arguments": {…}}…].
const Mistral Format = "mistral"

// mistral is the format of Mistral, Ministral and Devstral; Mistral Small 3.2 writes [CALL_ID] and an id before the arguments.
var mistral = definition{
	format:  Mistral,
	signs:   func(template string) bool { return strings.Contains(template, "[TOOL_CALLS]") },
	openers: []opener{{text: "[TOOL_CALLS]"}},
	newID:   func() string { return randomText(9) }, // the templates demand nine
	open:    func(_ int, c *calls) machine { return &mistralCalls{calls: c} },
}

// mistralCalls looks at the first byte and goes on as one of the two forms.
type mistralCalls struct {
	calls *calls
	form  machine
}

func (m *mistralCalls) feed(b byte) (progress, int) {
	if m.form != nil {
		return m.form.feed(b)
	}
	if isSpace(b) {
		return hold, 0
	}
	if b == '[' || b == '{' {
		m.form = &jsonCalls{calls: m.calls, lists: true, ids: true}
	} else {
		m.form = &headedCalls{
			calls: m.calls, state: inHead, separators: []string{"[ARGS]"},
			head: func(head, _ string) (name, id string) {
				name, id, _ = strings.Cut(head, "[CALL_ID]")
				return name, id
			},
		}
	}
	return m.form.feed(b)
}

func (m *mistralCalls) finish(cut bool) (text bool) { return m.form == nil || m.form.finish(cut) }
