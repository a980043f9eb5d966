package answer

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestLongTexts reads long texts of what makes readers quadratic, in small pieces. It would not end in an hour if one step went through all that is held.
func TestLongTexts(t *testing.T) {
	const size = 1 << 19
	for _, c := range []struct {
		format      Format
		start, unit string
	}{
		{Hermes, "", "<"}, {Hermes, "", " "}, {Hermes, "<think>", "\n"}, {Hermes, "<think>", "</thin"}, {Hermes, "<think>", "<tool_call>"}, {Hermes, "", "<tool_call>"},
		{Hermes, "", `<tool_call>{"name":`}, {Hermes, "", `<tool_call>{"name":"f",`}, {Hermes, "", `<tool_call>{"a":"`}, {Hermes, "<tool_call>", "{"}, {Hermes, "<tool_call>", "["},
		{Hermes, `<tool_call>{"x":`, "["}, {Hermes, "<tool_call>[", `{"a":1},`}, {Hermes, `<tool_call>{"name":"f","arguments":`, "{"}, {Hermes, `<tool_call>{"name":"f","arguments":{"a":`, "<"},
		{Hermes, `<tool_call>{"name":"f","arguments":"`, "a"}, {Hermes, `<tool_call>{"arguments":`, "{"}, {Hermes, "", `<tool_call>{"name":"f","arguments":{`}, {Hermes, "", "<tool_call>[{"},
		{Hermes, `<tool_call>{"name":"f","arguments":{}`, " "},
		{Qwen3XML, "", "\n<function="}, {Qwen3XML, "", "\n<function=get_weather>"}, {Qwen3XML, "", "<tool_call><function=f>"}, {Qwen3XML, "<tool_call><function=f>", "<parameter=a>\n\n"},
		{Qwen3XML, "<tool_call><function=f><parameter=a>", "\n<"}, {Qwen3XML, "<tool_call><function=get_weather><parameter=place>", "{"}, {Qwen3XML, "<tool_call><function=get_weather><parameter=note>", " "},
		{Qwen3XML, "<tool_call><function=", "f"}, {Qwen3XML, "", "<tool_call><function=get_weather></function></tool_call>"},
		{Harmony, "", "<|channel|>"}, {Harmony, "<|channel|>", "a"}, {Harmony, "<|channel|>commentary to=f<|message|>", "<|"}, {Harmony, "", "<|channel|>commentary to=f<|message|>{}<|call|>"},
		{KimiK2, "", "<|tool_call_begin|>"}, {KimiK2, "<|tool_call_begin|>", "a"}, {KimiK2, "<|tool_call_begin|>f<|tool_call_argument_begin|>{", "<|"}, {KimiK2, "<|tool_call_begin|>f<|tool_call_argument_begin|>", " "},
		{DeepSeekV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "a"}, {DeepSeekV31, "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "`"}, {DSML, "<｜DSML｜tool_calls>", "<｜DSML｜"}, {DSML, "<｜DSML｜tool_calls>", "<｜DSML｜invoke name=\"f\">"},
		{GLM, "", "<tool_call>f"}, {GLM, "<tool_call>f", "<arg_key>"}, {GLM, "<tool_call>f", "<arg_value>a"}, {GLM, "<tool_call>", " "}, {Mistral, "", "[TOOL_CALLS]"}, {Mistral, "", "[TOOL_CALLS]f[ARGS]{}"},
		{Mistral, "[TOOL_CALLS]", "["}, {NemotronList, "<TOOLCALL>", "[{"},
		{Llama3JSON, "", "{"}, {Llama3JSON, "", `{"name":"f","parameters":{}};`}, {Llama3JSON, "", "<|python_tag|>"}, {Llama3JSON, `{"name":"f","parameters":{}}`, ";{"}, {Llama3JSON, `{"name":"f","parameters":{}};`, " "},
	} {
		text := c.start + strings.Repeat(c.unit, size/len(c.unit))
		r := NewReader(Options{Format: c.format, ReadCalls: true, Tools: weather, Tags: knownTags[0], NewID: func() string { return "id" }})
		for i := 0; i < len(text); i += 5 {
			r.Push(text[i:min(i+5, len(text))], false)
		}
		r.Finish(false)
	}
}

// FuzzReader asks that nothing panics, that a text gives the same however it is cut, and that nothing is lost that is no call.
func FuzzReader(f *testing.F) {
	for _, text := range []string{
		"<think>\nhm\n</think>\n\na\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}}\n</tool_call>\n",
		"<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
		`<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g"}`, `[TOOL_CALLS]f[CALL_ID]1[ARGS]{}[TOOL_CALLS][{"name": "f"}]`,
		`<|channel|>analysis<|message|>hm<|end|><|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{"a": 1}<|call|>`,
		"<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", "<TOOLCALL>[{\"name\": \"f\"}]</TOOLCALL>",
		"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
		"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
		"<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" string=\"true\">x</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
	} {
		for i := range Formats() {
			f.Add(text, uint8(i), uint8(7*i), uint64(i))
		}
	}
	f.Fuzz(func(t *testing.T, text string, format, choices uint8, cuts uint64) {
		o := Options{
			Format: Format(Formats()[int(format)%len(Formats())]), ReadCalls: choices&1 == 0, Tools: weather, State: State(choices >> 1 % 5), MaxCalls: int(choices >> 4 & 1),
			NewID: func() string { return "id" },
		}
		if choices&32 == 0 {
			o.Tags = knownTags[int(choices>>6)%len(knownTags)]
		}
		want := read(o, choices&128 != 0, text)
		var pieces []string
		for i, rest := 0, text; rest != ""; i++ {
			n := min(len(rest), 1+int(cuts>>(i*4%61)&7))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := read(o, choices&128 != 0, pieces...); fmt.Sprint(joined(got)) != fmt.Sprint(joined(want)) {
			t.Fatalf("as %q:\n%v\nwhole:\n%v", pieces, joined(got), joined(want))
		}
		if wrong := malformed(want); wrong != "" && utf8.ValidString(text) {
			t.Fatal(wrong)
		}
		a := Collect(want)
		if d := definitionOf(o.Format); len(a.Calls) == 0 && o.Tags.Open == "" && (d == nil || d.noise == nil) && shown(a) != shown(Answer{Content: given(text)}) {
			t.Fatalf("%q gives %s", text, shown(a))
		}
	})
}

// given is a text, or nothing.
func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
