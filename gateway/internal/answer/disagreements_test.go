package answer

// disagreements are cases whose source expects something else than the reader gives, with the reason. The key is a case's id up to the last slash, without
// the commit.
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

	"llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512/2660":                   "as Reka-Edge/5385",
	"llama.cpp/mistralai-Ministral-3-14B-Reasoning-2512/2648":                   "a fence around JSON is content: the reader knows nothing of response formats",
	"ollama/ministral_test.go:450:parsers.TestMinistralParser_Errors.func1/295": "a call of an unknown tool is forwarded: agents want to answer it",

	"llama.cpp/openai-gpt-oss-120b/6547": "without tools a message to a tool is content: nothing is lost",
	"llama.cpp/openai-gpt-oss-120b/6556": "as 6547",

	"smg/tool_parser_deepseek.rs:test_deepseek_malformed_json_handling":          "malformed arguments arrive as they were written",
	"ollama/deepseek3_test.go:707:parsers.TestDeepSeekParser_EdgeCases.func1/77": "as malformed_json_handling",
	"ollama/deepseek3_test.go:394:parsers.TestDeepSeekParser_Streaming.func1/59": "white space before a call is dropped",
	"ollama/deepseek3_test.go:707:parsers.TestDeepSeekParser_EdgeCases.func1/73": "text between calls is content",
	"ollama/deepseek3_test.go:707:parsers.TestDeepSeekParser_EdgeCases.func1/78": "what turns out to be no call is content",
	"ollama/deepseek3_test.go:707:parsers.TestDeepSeekParser_EdgeCases.func1/80": "what only began like the closing tag is given out at the end",

	"ollama/glm46_test.go:554:parsers.TestGLM46ParserRejectsIncompleteToolCallOnDone.func1/205": "ollama fails the request; here an opening tag alone is content",
	"ollama/glm46_test.go:554:parsers.TestGLM46ParserRejectsIncompleteToolCallOnDone.func1/206": "as 205",
	"ollama/glm46_test.go:554:parsers.TestGLM46ParserRejectsIncompleteToolCallOnDone.func1/207": "ollama fails the request; a call that only lacks its end stands",
	"ollama/glm46_test.go:554:parsers.TestGLM46ParserRejectsIncompleteToolCallOnDone.func1/209": "as 207",
	"smg/tool_parser_glm4_moe.rs:test_glm4_type_conversion":                                     "without a schema a value that is no object or list is a string, as in qwen3_xml",
	"smg/tool_parser_glm4_moe.rs:test_python_literals":                                          "as glm4_type_conversion",
	"smg/tool_parser_glm47_moe.rs:test_glm47_type_conversion":                                   "as glm4_type_conversion",
	"smg/tool_parser_glm47_moe.rs:test_python_literals":                                         "as glm4_type_conversion",
}
