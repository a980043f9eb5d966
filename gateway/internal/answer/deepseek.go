package answer

import "strings"

// DeepSeekV31 is <｜tool▁call▁begin｜>N<｜tool▁sep｜>{…}<｜tool▁call▁end｜>, or as before it function<｜tool▁sep｜>N and fenced arguments, in a section.
const DeepSeekV31 Format = "deepseek_v3_1"

const (
	deepSeekSection    = "<｜tool▁calls▁begin｜>"
	deepSeekSectionEnd = "<｜tool▁calls▁end｜>"
	deepSeekCall       = "<｜tool▁call▁begin｜>"
	deepSeekSeparator  = "<｜tool▁sep｜>"
	deepSeekCallEnd    = "<｜tool▁call▁end｜>"
)

// deepSeekV31 is the format of DeepSeek R1, V3 and V3.1.
var deepSeekV31 = definition{
	format:  DeepSeekV31,
	signs:   func(template string) bool { return strings.Contains(template, deepSeekSection) },
	openers: []opener{{text: deepSeekSection}, {text: deepSeekCall}},
	noise:   []string{"<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"},
	open: func(i int, c *calls) machine {
		m := &headedCalls{
			calls: c, begin: deepSeekCall, separators: []string{deepSeekSeparator}, end: deepSeekCallEnd, close: deepSeekSectionEnd, fence: true,
			head: func(head, line string) (name, id string) {
				if line != "" {
					return line, ""
				}
				return head, ""
			},
		}
		if i == 1 {
			m.state = inHead
		}
		return m
	},
}
