package answer

// disagreements are cases whose source expects something else than the reader gives, with the reason. The key is a case's id up to the last slash, without the commit.
var disagreements = map[string]string{
	"vllm/test_hermes_tool_parser.py:invalid_json":      "arguments that are whole are a call, though the outer brace is missing at the end: it has been given out in a stream",
	"vllm/test_llama3_json_tool_parser.py:invalid_json": "a call whose name is certain and whose arguments have begun stays one, however its arguments go on",

	"vllm/test_llama3_json_tool_parser.py:simple":                   "JSON in the middle of prose is no call without the tag: a model that quotes JSON must not act",
	"vllm/test_llama3_json_tool_parser.py:multiple_json_surrounded": "as simple",
	"vllm/test_llama3_json_tool_parser.py:missing_parameters":       "an object with a name and without arguments is a call with {}, as in the other formats",

	"smg/tool_parser_qwen_xml.rs:test_qwen_xml_nested_json_in_parameters": "without a schema a value that is no object or list is a string, as in vLLM and ollama: true stays text",
	"smg/tool_parser_qwen_xml.rs:test_qwen_xml_string_parameters":         "as nested_json_in_parameters: 42 stays text",
	"smg/tool_parser_qwen_xml.rs:test_qwen_xml_python_literals":           "as nested_json_in_parameters: True stays text",
	"smg/tool_parser_qwen_xml.rs:test_qwen_xml_incomplete_tool_call":      "a call whose name is certain stays one, though the text ends in it",
	"smg/tool_parser_qwen_xml.rs:test_qwen_xml_empty_parameter_value":     "white space in a value is the value: only one newline at each end is cut",

	"llama.cpp/Reka-Edge/5385": "a call in reasoning ends it: models forget the closing tag, and a stream cannot wait for it",

	"ollama/nemotron3nano_test.go:104:parsers.TestNemotron3NanoParser.func1/300": "the recording lists the first piece's answer twice",
	"ollama/nemotron3nano_test.go:104:parsers.TestNemotron3NanoParser.func1/301": "as 300",
}
