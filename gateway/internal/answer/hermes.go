package answer

import "strings"

// hermes is <tool_call>, a JSON object with name and arguments, </tool_call>: Qwen2.5, Qwen3, QwQ, Hermes 2 and 3, MiMo, Granite 4.
var hermes = definition{
	format: Hermes,
	signs: func(template string) bool {
		return strings.Contains(template, "<tool_call>") && !strings.Contains(template, "<tool_calls>") &&
			(strings.Contains(template, `"arguments"`) || strings.Contains(template, `\"arguments\"`))
	},
	openers: []opener{{text: "<tool_call>"}},
	open: func(_ int, c *calls) machine {
		return &jsonCalls{calls: c, opening: "<tool_call>", closing: "</tool_call>", lists: true}
	},
}
