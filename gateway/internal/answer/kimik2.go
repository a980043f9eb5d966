package answer

import "strings"

// KimiK2 is <|tool_call_begin|>functions.N:I<|tool_call_argument_begin|>{…}<|tool_call_end|>, in a section.
const KimiK2 Format = "kimi_k2"

const (
	kimiSection    = "<|tool_calls_section_begin|>"
	kimiSectionEnd = "<|tool_calls_section_end|>"
	kimiCall       = "<|tool_call_begin|>"
	kimiArguments  = "<|tool_call_argument_begin|>"
	kimiCallEnd    = "<|tool_call_end|>"
)

// kimiK2 is the format of Kimi K2 and K2.5. What stands before the arguments is the call's id, with its name inside. The section may be missing.
var kimiK2 = definition{
	format:  KimiK2,
	signs:   func(template string) bool { return strings.Contains(template, kimiSection) },
	openers: []opener{{text: kimiSection}, {text: kimiCall}},
	open: func(i int, c *calls) machine {
		m := &headedCalls{
			calls: c, begin: kimiCall, separators: []string{kimiArguments}, end: kimiCallEnd, close: kimiSectionEnd,
			head: func(head, _ string) (name, id string) {
				name = strings.TrimPrefix(head, "functions.")
				if i := strings.LastIndexByte(name, ':'); i >= 0 {
					name = name[:i]
				}
				return name, head
			},
		}
		if i == 1 {
			m.state = inHead
		}
		return m
	},
}
