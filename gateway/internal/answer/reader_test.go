package answer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// weather is a tool with a parameter of each kind.
var weather = []Tool{{"get_weather", json.RawMessage(`{
	"type": "object",
	"properties": {
		"city": {"type": "string"},
		"days": {"type": "integer"},
		"scale": {"type": ["number", "null"]},
		"exact": {"type": "boolean"},
		"note": {"type": ["string", "null"]},
		"count": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
		"place": {"$ref": "#/$defs/place"},
		"places": {"type": "array", "items": {"$ref": "#/$defs/place"}},
		"loop": {"$ref": "#/$defs/loop"},
		"unit": {"enum": ["1", "2"]},
		"level": {"enum": [1, 2, null]},
		"mode": {"const": 5},
		"both": {"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]},
		"ratio": {"type": "float"},
		"maybe": {"type": "string", "nullable": true},
		"free": {}
	},
	"$defs": {
		"place": {"type": "object"},
		"loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"$ref": "#/$defs/loop"}]}
	}
}`)}}

// shown writes an answer as the tables do: reasoning, content and calls, those that are absent left out.
func shown(a Answer) string {
	var parts []string
	if a.Reasoning != nil {
		parts = append(parts, "reasoning "+*a.Reasoning)
	}
	if a.Content != nil {
		parts = append(parts, "content "+*a.Content)
	}
	for _, c := range a.Calls {
		cut := ""
		if !c.Ended {
			cut = " …"
		}
		parts = append(parts, fmt.Sprintf("%s(%s)%s", c.Name, c.Arguments, cut))
	}
	return strings.Join(parts, " | ")
}

func TestReader(t *testing.T) {
	think := knownTags[0]
	tables := []struct {
		name    string
		options Options
		cases   []struct{ name, text, want string }
	}{
		{"reasoning", Options{Tags: think}, []struct{ name, text, want string }{
			{"none", "Hello", "content Hello"},
			{"a pair", "<think>\nhm\n</think>\n\nHello", "reasoning hm | content Hello"},
			{"white space before the opening tag", " \n<think>hm</think>Hello", "reasoning hm | content Hello"},
			{"only one newline is cut behind the opening tag", "<think>\n\n  hm</think>Hello", "reasoning \n  hm | content Hello"},
			{"inner white space stays", "<think>\na\n\n b\n</think>\nc\n\n d\n", "reasoning a\n\n b | content c\n\n d\n"},
			{"empty", "<think>\n\n</think>\n\nHello", "content Hello"},
			{"nothing behind it", "<think>hm</think>\n", "reasoning hm"},
			{"not closed", "<think>hm\n", "reasoning hm\n"},
			{"a second pair is content", "<think>a</think>b<think>c</think>", "reasoning a | content b<think>c</think>"},
			{"an opening tag inside", "<think>a<think>b</think>c", "reasoning a<think>b | content c"},
			{"a closing tag without reasoning is content", "</think>Hello", "content </think>Hello"},
			{"an opening tag later is content", "Hello <think>hm</think>", "content Hello <think>hm</think>"},
			{"what only begins like a tag", "<think>a</thin>b</think><thin", "reasoning a</thin>b | content <thin"},
			{"characters of several bytes", "<think>é</think>漢字🦀", "reasoning é | content 漢字🦀"},
			{"white space only", " \n", "content  \n"},
		}},
		{"reasoning that the prompt opened", Options{Tags: think, State: Opened}, []struct{ name, text, want string }{
			{"closed", "hm\n</think>\n\nHello", "reasoning hm | content Hello"},
			{"newline first", "\nhm</think>Hello", "reasoning hm | content Hello"},
			{"closed at once", "</think>Hello", "content Hello"},
			{"white space and closed", "\n\n</think>Hello", "content Hello"},
			{"opened again", "<think>\nhm</think>Hello", "reasoning hm | content Hello"},
			{"opened again behind white space", "\n<think>\nhm</think>Hello", "reasoning hm | content Hello"},
			{"opened again later", "a<think>b</think>c", "reasoning a<think>b | content c"},
			{"not closed", "hm", "reasoning hm"},
			{"a second closing tag", "hm</think>a</think>b", "reasoning hm | content a</think>b"},
		}},
		{"reasoning that is continued", Options{Tags: think, State: Inside}, []struct{ name, text, want string }{
			{"newline first stays", "\nhm</think>Hello", "reasoning \nhm | content Hello"},
		}},
		{"reasoning that is over", Options{Tags: think, State: Over}, []struct{ name, text, want string }{
			{"tags are content", "<think>hm</think>Hello", "content <think>hm</think>Hello"},
			{"a closing tag is content", "</think>Hello", "content </think>Hello"},
		}},
		{"raw", Options{Format: Hermes, State: Opened, Lead: "<think>\n"}, []struct{ name, text, want string }{
			{"everything is content", "hm</think>\n<tool_call>{\"name\": \"f\"}</tool_call>", "content <think>\nhm</think>\n<tool_call>{\"name\": \"f\"}</tool_call>"},
		}},
		{"hermes", Options{Format: Hermes, ReadCalls: true, Tags: think}, []struct{ name, text, want string }{
			{"one call", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", `f({"a": 1})`},
			{"without white space", `<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>`, `f({"a":1})`},
			{"white space everywhere", "<tool_call> \n\t{ \"name\" : \"f\" , \"arguments\" : { \"a\" : 1 } } \n </tool_call>", `f({ "a" : 1 })`},
			{"over several lines", "<tool_call>\n{\n  \"name\": \"f\",\n  \"arguments\": {\n    \"a\": 1\n  }\n}\n</tool_call>\n", "f({\n    \"a\": 1\n  })"},
			{"two calls", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", `f({}) | g({})`},
			{"text around", "a \n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n b", "content a\n b | f({})"},
			{"text behind", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n b\n", "content b | f({})"},
			{"reasoning, text, call", "<think>\nhm\n</think>\n\nI look.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", `reasoning hm | content I look. | f({})`},
			{"a call in reasoning ends it", "<think>\nhm\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", `reasoning hm | f({})`},
			{"which may be closed behind the call", "<think>\nhm\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n</think>\n\na</think>", `reasoning hm | content a</think> | f({})`},
			{"a tag in reasoning without a call", "<think>I use <tool_call> now</think>a", `reasoning I use <tool_call> now | content a`},
			{"a tag at the end of reasoning", "<think>I use <tool_call>\n</think>a", `reasoning I use <tool_call> | content a`},
			{"parameters instead of arguments", `<tool_call>{"name":"f","parameters":{"a":1}}</tool_call>`, `f({"a":1})`},
			{"arguments first", `<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call>`, `f({"a":1})`},
			{"other keys", `<tool_call>{"id":"x","type":"function","x":[1,{"y":"}"}],"name":"f","arguments":{"a":1},"z":{"q":2}}</tool_call>`, `f({"a":1})`},
			{"no arguments", `<tool_call>{"name":"f"}</tool_call>`, `f({})`},
			{"arguments null", `<tool_call>{"name":"f","arguments":null}</tool_call>`, `f({})`},
			{"arguments empty", `<tool_call>{"name":"f","arguments":""}</tool_call>`, `f({})`},
			{"arguments that are none", "<tool_call>{\"name\":\"f\",\"arguments\": ]\"a\"}}\n</tool_call>", "content ]\"a\"}}\n</tool_call> | f({})"},
			{"arguments left out", `<tool_call>{"name":"f","arguments":}</tool_call>`, `f({})`},
			{"arguments a string with an object", `<tool_call>{"name":"f","arguments":"{\"a\": \"\\u00e9\"}"}</tool_call>`, `f({"a": "\u00e9"})`},
			{"arguments another string", `<tool_call>{"name":"f","arguments":"a \"b\""}</tool_call>`, `f("a \"b\"")`},
			{"arguments a list", `<tool_call>{"name":"f","arguments":[1,2]}</tool_call>`, `f([1,2])`},
			{"arguments a number", `<tool_call>{"name":"f","arguments":12345678901234567890}</tool_call>`, `f(12345678901234567890)`},
			{"tags in strings", `<tool_call>{"name":"f","arguments":{"a":"</tool_call> <tool_call>"}}</tool_call>`, `f({"a":"</tool_call> <tool_call>"})`},
			{"braces and quotes in strings", `<tool_call>{"name":"f","arguments":{"a":"}]\"{","b":"\\"}}</tool_call>`, `f({"a":"}]\"{","b":"\\"})`},
			{"a newline in a string", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"x\ny\"}}</tool_call>", "f({\"a\":\"x\ny\"})"},
			{"numbers as written", `<tool_call>{"name":"f","arguments":{"a":1.0,"b":12345678901234567890,"c":1e5}}</tool_call>`, `f({"a":1.0,"b":12345678901234567890,"c":1e5})`},
			{"an escaped name", `<tool_call>{"name":"caf\u00e9","arguments":{}}</tool_call>`, `café({})`},
			{"a name with dots", `<tool_call>{"name":"a.b-c/d","arguments":{}}</tool_call>`, `a.b-c/d({})`},
			{"one brace too many", `<tool_call>{"name":"f","arguments":{}}}</tool_call>a`, `content a | f({})`},
			{"the outer brace is missing", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}\n</tool_call>a", `content a | f({"a":1})`},
			{"both braces are missing", "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1\n</tool_call>a", "content a | f({\"a\":1\n)"},
			{"the closing tag is missing", "<tool_call>{\"name\":\"f\",\"arguments\":{}}\na", `content a | f({})`},
			{"the closing tag is missing before a call", "<tool_call>{\"name\":\"f\",\"arguments\":{}}\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", `f({}) | g({})`},
			{"brace and tag are missing before a call", "<tool_call>{\"name\":\"f\",\"arguments\":{\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", "f({\n) | g({})"},
			{"the text ends behind the value", `<tool_call>{"name":"f","arguments":{}`, `f({})`},
			{"the text ends in the value", `<tool_call>{"name":"f","arguments":{"a":"x`, `f({"a":"x) …`},
			{"the text ends in the closing tag", `<tool_call>{"name":"f","arguments":{}}</tool_`, `f({})`},
			{"the text ends before the arguments", `<tool_call>{"name":"f","arguments":`, `content <tool_call>{"name":"f","arguments":`},
			{"the text ends behind the opening tag", "a\n<tool_call>\n", "content a\n<tool_call>\n"},
			{"the text ends in the second call", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\"", `content <tool_call>{"name" | f({})`},
			{"a list", `<tool_call>[{"name":"f","arguments":{"a":1}},{"name":"g","arguments":{}}]</tool_call>`, `f({"a":1}) | g({})`},
			{"a list with other elements", `<tool_call>[1,"x",[{}],{"q":1},{"name":5},{"name":"f","arguments":{}},null,{"a":2}]</tool_call>a`, `content a | f({})`},
			{"a list without calls", `<tool_call>["x", {}]</tool_call>`, `content <tool_call>["x", {}]</tool_call>`},
			{"an empty list", `<tool_call>[]</tool_call>`, `content <tool_call>[]</tool_call>`},
			{"no call object", "<tool_call>\n{}\n</tool_call>", "content <tool_call>\n{}\n</tool_call>"},
			{"a string", `<tool_call>"x"</tool_call>`, `content <tool_call>"x"</tool_call>`},
			{"a name that is none", `<tool_call>{"name":{"a":1},"arguments":{}}</tool_call>`, `content <tool_call>{"name":{"a":1},"arguments":{}}</tool_call>`},
			{"an empty name", `<tool_call>{"name":"","arguments":{}}</tool_call>`, `content <tool_call>{"name":"","arguments":{}}</tool_call>`},
			{"function is not name", `<tool_call>{"function":"f","arguments":{}}</tool_call>`, `content <tool_call>{"function":"f","arguments":{}}</tool_call>`},
			{"malformed before the name", `<tool_call>{name: "f"}</tool_call>`, `content <tool_call>{name: "f"}</tool_call>`},
			{"a call behind a broken one", "<tool_call>\n{\"nam\n</tool_call>\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", "content <tool_call>\n{\"nam\n</tool_call> | f({})"},
			{"the opening tag twice", "<tool_call>\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>", "content <tool_call> | f({})"},
			{"two objects between the tags", "<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n{\"name\":\"g\",\"arguments\":{}}\n</tool_call>", "f({}) | g({})"},
			{"without tags", `{"name":"f","arguments":{}}`, `content {"name":"f","arguments":{}}`},
			{"a closing tag alone", `a</tool_call>`, `content a</tool_call>`},
			{"white space at the end behind a call", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n\n", `f({})`},
			{"an unfinished tag at the end", "a <tool_ca", `content a <tool_ca`},
			{"many angles", "a <<<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", `content a << | f({})`},
		}},
		{"hermes without reading", Options{Format: Hermes, Tags: think}, []struct{ name, text, want string }{
			{"a call is content", "<think>hm</think>a\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", "reasoning hm | content a\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"},
			{"a call in reasoning is reasoning", "<think>hm<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call></think>a", "reasoning hm<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call> | content a"},
		}},
		{"hermes, one call", Options{Format: Hermes, ReadCalls: true, MaxCalls: 1}, []struct{ name, text, want string }{
			{"what follows is dropped", "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>", "f({})"},
			{"a list", `<tool_call>[{"name":"f","arguments":{}},{"name":"g","arguments":{}}]</tool_call>a`, "f({})"},
			{"the closing tag is missing", "<tool_call>{\"name\":\"f\",\"arguments\":{}}\na", "f({})"},
		}},
		{"qwen3_xml", Options{Format: Qwen3XML, ReadCalls: true, Tools: weather, Tags: think}, []struct{ name, text, want string }{
			{"one call", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", `get_weather({"city": "Rome", "days": 3})`},
			{"without white space", "<tool_call><function=get_weather><parameter=city>Rome</parameter><parameter=days>3</parameter></function></tool_call>", `get_weather({"city": "Rome", "days": 3})`},
			{"no parameters", "<tool_call>\n<function=get_weather>\n</function>\n</tool_call>", `get_weather({})`},
			{"two calls", "<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n</tool_call>\n", `f({}) | g({})`},
			{"two functions between the tags", "<tool_call>\n<function=f>\n</function>\n<function=g>\n</function>\n</tool_call>a", `content a | f({}) | g({})`},
			{"text around", "a\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n\nb", "content a\n\nb | f({})"},
			{"lines of a value", "<tool_call><function=f><parameter=code>\n\n  a\n\nb\n\n</parameter></function></tool_call>", `f({"code": "\n  a\n\nb\n"})`},
			{"escapes", "<tool_call><function=get_weather><parameter=city>\"\\\t\r\x01é🦀</parameter></function></tool_call>", `get_weather({"city": "\"\\\t\r\u0001é🦀"})`},
			{"tags in a value", "<tool_call><function=get_weather><parameter=city>\na <parameter=x> </function> </tool_call> <tool_call>\n</parameter></function></tool_call>", `get_weather({"city": "a <parameter=x> </function> </tool_call> <tool_call>"})`},
			{"the end of a parameter is missing", "<tool_call><function=get_weather>\n<parameter=city>\nRome\n<parameter=days>\n3\n</function>\n</tool_call>", `get_weather({"city": "Rome", "days": 3})`},
			{"the ends of a parameter and a function are missing", "<tool_call><function=get_weather>\n<parameter=city>\nRome\n</tool_call>a", `content a | get_weather({"city": "Rome"})`},
			{"the end of a function is missing", "<tool_call><function=f>\n<parameter=a>\nx\n</parameter>\n</tool_call>a", `content a | f({"a": "x"})`},
			{"the closing tag is missing", "<tool_call><function=f>\n<parameter=a>\nx\n</parameter>\n</function>\na", `content a | f({"a": "x"})`},
			{"everything is missing before a call", "<tool_call><function=f>\n<tool_call><function=g></function></tool_call>", `f({}) | g({})`},
			{"everything is missing at the end", "<tool_call><function=f>\n<parameter=a>\nx\n", `f({"a": "x"})`},
			{"a parameter twice", "<tool_call><function=get_weather><parameter=city>a</parameter><parameter=days>1</parameter><parameter=city>b</parameter></function></tool_call>", `get_weather({"city": "a", "days": 1})`},
			{"the opening tag is missing", "a\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>b", `content ab | get_weather({"city": "Rome"})`},
			{"the opening tag is missing, no tool", "a\n<function=f>\n</function>", "content a\n<function=f>\n</function>"},
			{"the opening tag is missing, in a line", "a <function=get_weather>\n</function>", "content a <function=get_weather>\n</function>"},
			{"the opening tag is missing, in reasoning", "<think>a\n<function=get_weather>\n</function></think>", "reasoning a\n<function=get_weather>\n</function>"},
			{"the opening tag is missing twice", "<function=get_weather>\n</function>\n<function=get_weather>\n</function>", "get_weather({}) | get_weather({})"},
			{"a call in reasoning", "<think>a\n<tool_call>\n<function=f>\n</function>\n</tool_call>", "reasoning a | f({})"},
			{"a name with white space", "<tool_call>\n<function=a b>\n</function>\n</tool_call>", "content <tool_call>\n<function=a b>\n</function>\n</tool_call>"},
			{"a name that does not end", "<tool_call>\n<function=f\n<parameter=a>1</parameter>\n</function>\n</tool_call>", "content <tool_call>\n<function=f\n<parameter=a>1</parameter>\n</function>\n</tool_call>"},
			{"no name", "<tool_call>\n<function=>\n</function>\n</tool_call>", "content <tool_call>\n<function=>\n</function>\n</tool_call>"},
			{"a name with dots", "<tool_call>\n<function=a.b-c>\n</function>\n</tool_call>", "a.b-c({})"},
			{"another tag that begins like it", "a <tool_calling> b <tool_call>\n<fun> c", "content a <tool_calling> b <tool_call>\n<fun> c"},
			{"text between parameters", "<tool_call><function=f>x<parameter=a>1</parameter></parameter>y</function></tool_call>", `f({"a": "1"})`},
			{"text between parameters that looks like JSON", "<tool_call><function=f>\n{\"a\": 1}\n</function></tool_call>", `f({})`},
			{"a name of a parameter with spaces", "<tool_call><function=f><parameter=a b>1</parameter></function></tool_call>", `f({"a b": "1"})`},
			{"null", "<tool_call><function=get_weather><parameter=scale>null</parameter><parameter=note>None</parameter><parameter=city>null</parameter><parameter=free>null</parameter></function></tool_call>",
				`get_weather({"scale": null, "note": null, "city": "null", "free": "null"})`},
			{"numbers", "<tool_call><function=get_weather><parameter=days>12345678901234567890</parameter><parameter=scale>\n1.0\n</parameter></function></tool_call>", `get_weather({"days": 12345678901234567890, "scale": 1.0})`},
			{"no number", "<tool_call><function=get_weather><parameter=days>three</parameter><parameter=scale>1.</parameter></function></tool_call>", `get_weather({"days": "three", "scale": "1."})`},
			{"a fraction is no integer", "<tool_call><function=get_weather><parameter=days>1.5</parameter></function></tool_call>", `get_weather({"days": "1.5"})`},
			{"booleans", "<tool_call><function=get_weather><parameter=exact>True</parameter></function></tool_call><tool_call><function=get_weather><parameter=exact>false</parameter></function></tool_call>", `get_weather({"exact": true}) | get_weather({"exact": false})`},
			{"several types", "<tool_call><function=get_weather><parameter=count>5</parameter><parameter=note>nullable</parameter></function></tool_call>", `get_weather({"count": 5, "note": "nullable"})`},
			{"objects and lists", "<tool_call><function=get_weather><parameter=place>\n{\"a\":  1}\n</parameter><parameter=places>[{}, 2]</parameter></function></tool_call>", `get_weather({"place": {"a":  1}, "places": [{}, 2]})`},
			{"no object", "<tool_call><function=get_weather><parameter=place>{a}</parameter><parameter=places>{}</parameter></function></tool_call>", `get_weather({"place": "{a}", "places": "{}"})`},
			{"enumerations", "<tool_call><function=get_weather><parameter=unit>1</parameter><parameter=level>2</parameter><parameter=mode>5</parameter><parameter=both>7</parameter></function></tool_call>", `get_weather({"unit": "1", "level": 2, "mode": 5, "both": 7})`},
			{"types that are not JSON Schema's", "<tool_call><function=get_weather><parameter=ratio>1.5</parameter><parameter=maybe>null</parameter></function></tool_call>", `get_weather({"ratio": 1.5, "maybe": null})`},
			{"what nothing is known of", "<tool_call><function=get_weather><parameter=free>5</parameter><parameter=loop>true</parameter><parameter=x>{\"a\": 1}</parameter><parameter=y>[1</parameter></function></tool_call>", `get_weather({"free": "5", "loop": "true", "x": {"a": 1}, "y": "[1"})`},
		}},
		{"qwen3_xml without tools", Options{Format: Qwen3XML, ReadCalls: true}, []struct{ name, text, want string }{
			{"everything is a string", "<tool_call>\n<function=f>\n<parameter=a>1</parameter>\n</function>\n</tool_call>", `f({"a": "1"})`},
		}},
		{"llama3_json", Options{Format: Llama3JSON, ReadCalls: true}, []struct{ name, text, want string }{
			{"one call", `{"name": "f", "parameters": {"a": 1}}`, `f({"a": 1})`},
			{"behind white space", "\n {\"name\": \"f\", \"parameters\": {}}\n", `f({})`},
			{"behind the tag", `<|python_tag|>{"name": "f", "parameters": {}}`, `f({})`},
			{"text before the tag", "a <|python_tag|>{\"name\": \"f\", \"parameters\": {}}", `content a | f({})`},
			{"arguments", `{"name": "f", "arguments": {}}`, `f({})`},
			{"a type first", `{"type": "function", "name": "f", "parameters": {}}`, `f({})`},
			{"semicolons", `{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}};{"name": "h", "parameters": {}}`, `f({}) | g({}) | h({})`},
			{"newlines", "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}}", `f({}) | g({})`},
			{"tags", `<|python_tag|>{"name": "f", "parameters": {}}<|python_tag|>{"name": "g", "parameters": {}}`, `f({}) | g({})`},
			{"text behind", `{"name": "f", "parameters": {}} I used {f}.`, `content I used {f}. | f({})`},
			{"text behind a semicolon", `{"name": "f", "parameters": {}}; done`, `content ; done | f({})`},
			{"no call behind", `{"name": "f", "parameters": {}}; {"a": 1}`, `content ; {"a": 1} | f({})`},
			{"no call", `{"a": {"name": "f"}}`, `content {"a": {"name": "f"}}`},
			{"a name that is none", `{"name": 1, "parameters": {}} a`, `content {"name": 1, "parameters": {}} a`},
			{"only a name", `{"name": "f"}`, `f({})`},
			{"in prose", `a {"name": "f", "parameters": {}}`, `content a {"name": "f", "parameters": {}}`},
			{"a list", `[{"name": "f", "parameters": {}}]`, `content [{"name": "f", "parameters": {}}]`},
			{"a built-in call", `<|python_tag|>brave_search.call(query="x")`, `content <|python_tag|>brave_search.call(query="x")`},
			{"one brace too many", `{"name": "f", "parameters": {}}}`, `f({})`},
			{"one brace too few", `{"name": "f", "parameters": {}`, `f({})`},
			{"no JSON", `{name: f}`, `content {name: f}`},
			{"cut", `{"name": "f", "parameters": {"a`, `f({"a) …`},
			{"cut before the arguments", `{"name": "f", "para`, `content {"name": "f", "para`},
			{"a tag in a string", `{"name": "f", "parameters": {"a": "<|python_tag|>{}"}}`, `f({"a": "<|python_tag|>{}"})`},
		}},
		{"llama3_json, tagged only", Options{Format: Llama3JSON, ReadCalls: true, TaggedOnly: true}, []struct{ name, text, want string }{
			{"without the tag", `{"name": "f", "parameters": {}}`, `content {"name": "f", "parameters": {}}`},
			{"with the tag", `<|python_tag|>{"name": "f", "parameters": {}}`, `f({})`},
		}},
		{"qwen3_xml, tagged only", Options{Format: Qwen3XML, ReadCalls: true, TaggedOnly: true, Tools: weather}, []struct{ name, text, want string }{
			{"without the tag", "<function=get_weather>\n</function>", "content <function=get_weather>\n</function>"},
		}},
		{"llama3_json, continued", Options{Format: Llama3JSON, ReadCalls: true, State: Underway}, []struct{ name, text, want string }{
			{"no beginning", `{"name": "f", "parameters": {}}`, `content {"name": "f", "parameters": {}}`},
		}},
		{"llama3_json, one call", Options{Format: Llama3JSON, ReadCalls: true, MaxCalls: 1}, []struct{ name, text, want string }{
			{"what follows is dropped", `{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}`, `f({})`},
		}},
		{"harmony", Options{Format: Harmony, ReadCalls: true, Tags: harmonyTags}, []struct{ name, text, want string }{
			{"content", "<|channel|>final<|message|>Hello<|return|>", "content Hello"},
			{"reasoning and content", "<|channel|>analysis<|message|>hm\n<|end|><|start|>assistant<|channel|>final<|message|>Hello", "reasoning hm\n | content Hello"},
			{"a call", `<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|call|>"}<|call|>`, `reasoning hm | f({"a": "<|call|>"})`},
			{"the recipient first", ` to=functions.f<|channel|>commentary<|message|>{}`, `f({})`},
			{"calls one after the other", `<|channel|>commentary to=functions.f<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.g<|message|>{}<|call|>`, `f({}) | g({})`},
			{"the end of a call is missing", `<|channel|>commentary to=functions.f<|message|>{"a": 1<|start|>assistant<|channel|>final<|message|>Hello`, `content Hello | f({"a": 1)`},
			{"no arguments", `<|channel|>commentary to=functions.f<|message|><|call|>`, `f({})`},
			{"arguments that are no JSON", `<|channel|>commentary to=python <|constrain|>code<|message|>print("a")<|call|>`, `python(print("a"))`},
			{"no message", "Hello", "content Hello"},
			{"an unfinished header", "<|channel|>final", "content <|channel|>final"},
		}},
		{"harmony without tools", Options{Format: Harmony, Tags: harmonyTags}, []struct{ name, text, want string }{
			{"channels are read", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello", "reasoning hm | content Hello"},
		}},
		{"harmony, raw", Options{Format: Harmony}, []struct{ name, text, want string }{
			{"everything is content", "<|channel|>analysis<|message|>hm<|end|>", "content <|channel|>analysis<|message|>hm<|end|>"},
		}},
		{"kimi_k2", Options{Format: KimiK2, ReadCalls: true}, []struct{ name, text, want string }{
			{"calls", `a <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": "<|tool_call_end|>"}<|tool_call_end|> <|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>`, `content a | f({"a": "<|tool_call_end|>"}) | g({})`},
			{"ends are missing", `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 1<|tool_call_begin|>functions.g:1<|tool_call_argument_begin|>{}`, `f({"a": 1) | g({})`},
			{"no arguments", `<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|><|tool_call_end|>`, `f({})`},
			{"no name", `<|tool_call_begin|>:0<|tool_call_argument_begin|>{}`, `content <|tool_call_begin|>:0<|tool_call_argument_begin|>{}`},
			{"an empty section", "a<|tool_calls_section_begin|><|tool_calls_section_end|>", "content a<|tool_calls_section_begin|><|tool_calls_section_end|>"},
		}},
		{"deepseek_v3_1", Options{Format: DeepSeekV31, ReadCalls: true}, []struct{ name, text, want string }{
			{"both forms", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{\"b\": \"```\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>a", "content a | f({\"a\": 1}) | g({\"b\": \"```\"})"},
			{"no separator", "<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>", "content <｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>"},
		}},
		{"dsml", Options{Format: DSML, ReadCalls: true, Tools: weather}, []struct{ name, text, want string }{
			{"types", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"days\" string=\"true\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"city\" string=\"false\">[1, null]</｜DSML｜parameter>\n<｜DSML｜parameter name=\"scale\">null</｜DSML｜parameter></｜DSML｜invoke>\n</｜DSML｜tool_calls>", `get_weather({"days": "3", "city": [1, null], "scale": null})`},
			{"no JSON", "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"false\">x\ny</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>", `f({"a": "x\ny"})`},
			{"ends are missing", "<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜invoke><｜DSML｜invoke name=\"g\">", `f({"a": "x"}) | g({})`},
			{"no call", "<｜DSML｜tool_calls> a", "content <｜DSML｜tool_calls> a"},
		}},
		{"glm", Options{Format: GLM, ReadCalls: true, Tools: weather}, []struct{ name, text, want string }{
			{"with newlines", "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>a", `content a | get_weather({"days": 3})`},
			{"without", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>\nRome\n</arg_value></tool_call>", `get_weather({"city": "\nRome\n"})`},
			{"no arguments", "<tool_call>f</tool_call><tool_call>g\n</tool_call>", `f({}) | g({})`},
			{"JSON behind the name", "<tool_call>f\n{\"a\": 1}\n</tool_call>a", `content a | f({"a": 1})`},
			{"an object", "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", `f({})`},
			{"a name with spaces", "<tool_call>is a tag\n", "content <tool_call>is a tag\n"},
			{"ends are missing", "<tool_call>f<arg_key>a</arg_key><arg_value>x<arg_key>b</arg_key><arg_value>y", `f({"a": "x", "b": "y"})`},
		}},
		{"mistral", Options{Format: Mistral, ReadCalls: true}, []struct{ name, text, want string }{
			{"both forms", `a [TOOL_CALLS]f[ARGS]{"a": "[TOOL_CALLS]"}[TOOL_CALLS]g[CALL_ID]000000001[ARGS]{}[TOOL_CALLS] [{"name": "h", "arguments": {}, "id": "000000002"}]`, `content a | f({"a": "[TOOL_CALLS]"}) | g({}) | h({})`},
			{"no arguments", `[TOOL_CALLS]f`, `content [TOOL_CALLS]f`},
			{"text", `[TOOL_CALLS] are a thing`, `content [TOOL_CALLS] are a thing`},
		}},
		{"nemotron_list", Options{Format: NemotronList, ReadCalls: true}, []struct{ name, text, want string }{
			{"calls", `<TOOLCALL>[{"name": "f", "arguments": {"a": "</TOOLCALL>"}}, {"name": "g", "arguments": {}}]</TOOLCALL>a`, `content a | f({"a": "</TOOLCALL>"}) | g({})`},
		}},
	}
	for _, table := range tables {
		table.options.NewID = func() string { return "id" }
		for _, c := range table.cases {
			t.Run(table.name+"/"+c.name, func(t *testing.T) {
				if got := shown(checkCuts(t, table.options, c.text)); got != c.want {
					t.Errorf("%q:\n got %s\nwant %s", c.text, got, c.want)
				}
			})
		}
	}
}

// TestCutByALimit shows calls in which the text was cut: what was written stays, unfinished, so that nobody takes it for the whole.
func TestCutByALimit(t *testing.T) {
	for _, c := range []struct {
		format     Format
		text, want string
	}{
		{Hermes, `<tool_call>{"name":"f","arguments":{"a":"x`, `f({"a":"x) …`},
		{Hermes, `<tool_call>{"name":"f","arguments":{"a":1}`, `f({"a":1})`},
		{Hermes, `<tool_call>{"name":"f","argu`, `content <tool_call>{"name":"f","argu`},
		{Qwen3XML, "<tool_call><function=get_weather><parameter=city>\nRo", `get_weather({"city": "Ro) …`},
		{Qwen3XML, "<tool_call><function=get_weather><parameter=city>\nRome\n</parame", `get_weather({"city": "Rome) …`},
		{Qwen3XML, "<tool_call><function=get_weather><parameter=city>\nRome\n</parameter>\n", `get_weather({"city": "Rome") …`},
		{Qwen3XML, "<tool_call><function=get_weather><parameter=city>\nRome\n</parameter>\n<parameter=days>\n1", `get_weather({"city": "Rome") …`},
		{Qwen3XML, "<tool_call><function=get_weather>\n", `get_weather() …`},
		{Qwen3XML, "<tool_call><function=get_weather>\n</function>\n</tool_", `get_weather({})`},
		{Llama3JSON, `{"name":"f","parameters":{"a":[1,`, `f({"a":[1,) …`},
	} {
		o := Options{Format: c.format, ReadCalls: true, Tools: weather}
		for i := range c.text {
			if got := shown(Collect(read(o, true, c.text[:i], c.text[i:]))); got != c.want {
				t.Errorf("%s, %q cut at %d:\n got %s\nwant %s", c.format, c.text, i, got, c.want)
			}
		}
	}
}

// TestDone shows when a reader that wants one call has it.
func TestDone(t *testing.T) {
	for _, c := range []struct {
		format       Format
		text, behind string
	}{
		{Hermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "\n"},
		{Qwen3XML, "<tool_call>\n<function=f>\n</function>\n</tool_call>", "\n"},
		{Llama3JSON, `{"name": "f", "parameters": {}}`, ";"},
	} {
		r := NewReader(Options{Format: c.format, ReadCalls: true, MaxCalls: 1})
		r.Push(c.text[:len(c.text)-1], false)
		if r.Done() || r.Calls() != 1 {
			t.Errorf("%s: done %t with %d calls before the last byte", c.format, r.Done(), r.Calls())
		}
		r.Push(c.text[len(c.text)-1:], false)
		if !r.Done() || r.Open() {
			t.Errorf("%s: done %t, open %t behind the call", c.format, r.Done(), r.Open())
		}
		if events := append(r.Push(c.behind, false), r.Finish(false)...); len(events) != 0 {
			t.Errorf("%s: %v behind the call", c.format, events)
		}
	}
}

// TestRepeated counts parameters that were given again.
func TestRepeated(t *testing.T) {
	r := NewReader(Options{Format: Qwen3XML, ReadCalls: true})
	r.Push("<tool_call><function=f><parameter=a>1</parameter><parameter=b>2</parameter><parameter=a>3</parameter><parameter=a>4</parameter></function></tool_call>", false)
	if r.Repeated() != 2 {
		t.Errorf("%d", r.Repeated())
	}
}

// TestSpecialTokens shows that the text of special tokens makes tags, and is left out of texts where it makes none.
func TestSpecialTokens(t *testing.T) {
	type piece struct {
		text    string
		special bool
	}
	for _, c := range []struct {
		name   string
		skip   bool
		pieces []piece
		want   string
	}{
		{"a tag", true, []piece{{"<think>", true}, {"hm", false}, {"</think>", true}, {"a", false}, {"<tool_call>", true}, {`{"name":"f","arguments":{"a":"`, false}, {"<|x|>", true}, {`"}}`, false}, {"</tool_call>", true}},
			`reasoning hm | content a | f({"a":"<|x|>"})`},
		{"left out", true, []piece{{"<think>", true}, {"h", false}, {"<|x|>", true}, {"m</think>a ", false}, {"<|x|>", true}, {" b", false}}, `reasoning hm | content a  b`},
		{"kept", false, []piece{{"a ", false}, {"<|x|>", true}, {" b", false}}, `content a <|x|> b`},
		{"no call", true, []piece{{"a ", false}, {"<tool_call>", true}, {" b", false}}, `content a  b`},
		{"no call, kept", false, []piece{{"a ", false}, {"<tool_call>", true}, {" b", false}}, `content a <tool_call> b`},
		{"text that looks like one", true, []piece{{"a <|x|> b", false}}, `content a <|x|> b`},
	} {
		r := NewReader(Options{Format: Hermes, ReadCalls: true, Tags: knownTags[0], SkipSpecial: c.skip})
		var events []Event
		for _, p := range c.pieces {
			events = append(events, r.Push(p.text, p.special)...)
		}
		if got := shown(Collect(append(events, r.Finish(false)...))); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestReasoningPieces counts the pieces of reasoning.
func TestReasoningPieces(t *testing.T) {
	for _, c := range []struct {
		name   string
		state  State
		pieces []string
		want   int
	}{
		{"no reasoning", MayOpen, []string{"a", "b"}, 0},
		{"a pair", MayOpen, []string{"<think>", "\n", "hm", "\n", "</think>", "\n", "a"}, 5},
		{"an empty pair", MayOpen, []string{"<think>", "\n\n", "</think>", "\n\n", "a"}, 3},
		{"tags in several pieces", MayOpen, []string{"<", "think>", "hm", "</", "", "think>", "a"}, 6},
		{"opened by the prompt", Opened, []string{"hm", "</think>", "a"}, 2},
		{"closed at once", Opened, []string{"</think>", "a"}, 1},
		{"not closed", Inside, []string{"a", "b", "c"}, 3},
		{"ended by a call", Opened, []string{"hm", "\n", "<tool_call>", "\n", `{"name": "`, `f", "arguments": {}}`, "</tool_call>", "a"}, 2},
		{"over", Over, []string{"a"}, 0},
	} {
		r := NewReader(Options{Format: Hermes, ReadCalls: true, Tags: knownTags[0], State: c.state})
		for _, p := range c.pieces {
			r.Push(p, false)
		}
		r.Finish(false)
		if got := r.ReasoningPieces(); got != c.want {
			t.Errorf("%s: %d of %q, want %d", c.name, got, c.pieces, c.want)
		}
	}
}

// TestAtOnce shows that what is certain is given out with the piece that makes it so.
func TestAtOnce(t *testing.T) {
	r := NewReader(Options{Format: Hermes, ReadCalls: true, NewID: func() string { return "id" }})
	for _, step := range []struct {
		push string
		want []Event
	}{
		{"Hello", []Event{{Kind: Content, Text: "Hello"}}},
		{" \n", nil},
		{"you <", []Event{{Kind: Content, Text: " \nyou"}}},
		{"3", []Event{{Kind: Content, Text: " <3"}}},
		{"\xe6\xbc", nil},
		{"\xa2.\n<tool_call>\n{\"name\": \"f\", ", []Event{{Kind: Content, Text: "漢."}}},
		{"\"arguments\": ", nil},
		{"{", []Event{{Kind: CallBegin, ID: "id", Name: "f"}, {Kind: CallArguments, Text: "{"}}},
		{"\"a\": \"é\xc3", []Event{{Kind: CallArguments, Text: `"a": "é`}}},
		{"\xa9\"}", []Event{{Kind: CallArguments, Text: "é\"}"}, {Kind: CallEnd}}},
		{"}\n</tool_call>\n", nil},
		{"a", []Event{{Kind: Content, Text: "\na"}}},
	} {
		if got := r.Push(step.push, false); fmt.Sprint(got) != fmt.Sprint(step.want) {
			t.Errorf("%q gives %v, want %v", step.push, got, step.want)
		}
	}
}

// TestHeldCalls: where the answer is held to a form, a call in the reasoning before it is a thought.
func TestHeldCalls(t *testing.T) {
	const text = "so <tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call> no</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"
	for _, held := range []bool{false, true} {
		r := NewReader(Options{Format: Hermes, ReadCalls: true, Tags: Tags{Open: "<think>", Close: "</think>"}, State: Opened, HeldCalls: held})
		got := Collect(append(r.Push(text, false), r.Finish(false)...))
		want := map[bool]string{false: "other", true: "f"}[held]
		if len(got.Calls) == 0 || got.Calls[0].Name != want || held && len(got.Calls) != 1 {
			t.Errorf("held %v: %+v", held, got)
		}
	}
}
