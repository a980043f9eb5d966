package answer

import "strings"

// Llama3JSON is {"name": N, "parameters": {…}} as the whole answer, or behind <|python_tag|>.
const Llama3JSON Format = "llama3_json"

const pythonTag = "<|python_tag|>"

// llama3JSON is the format of Llama 3.1, 3.2 and 3.3. Without the tag a call counts only at the answer's beginning: a model that quotes JSON must not act.
// Several are joined by semicolons or newlines. Built-in calls in Python's form stay content.
var llama3JSON = definition{
	format: Llama3JSON,
	signs: func(template string) bool {
		return strings.Contains(template, "ipython") && (strings.Contains(template, `"parameters": `) || strings.Contains(template, `\"parameters\": `))
	},
	openers: []opener{{text: pythonTag}, {text: "{", place: atStart, bare: true}},
	open: func(i int, c *calls) machine {
		j := &jsonCalls{calls: c, separators: ";,", lists: i == 0, opening: pythonTag}
		if i == 1 { // the opening text is the first object's brace
			j.begin()
		}
		return j
	},
}
