package answer

import "strings"

// NemotronList is <TOOLCALL>[{"name": N, "arguments": {…}}…]</TOOLCALL>.
const NemotronList Format = "nemotron_list"

// nemotronList is the format of Nemotron Nano v2.
var nemotronList = definition{
	format:  NemotronList,
	signs:   func(template string) bool { return strings.Contains(template, "<TOOLCALL>") },
	openers: []opener{{text: "<TOOLCALL>"}},
	open: func(_ int, c *calls) machine {
		return &jsonCalls{calls: c, opening: "<TOOLCALL>", closing: "</TOOLCALL>", lists: true}
	},
}
