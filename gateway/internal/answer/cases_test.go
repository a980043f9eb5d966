package answer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// testCase is a line of the tool-call corpus: its README says what the fields mean.
type testCase struct {
	ID       string
	Source   string
	Family   string
	Input    string
	Expected *expectation
	Tools    []struct {
		Name       string
		Parameters json.RawMessage
		Function   struct {
			Name       string
			Parameters json.RawMessage
		}
	}
	Template  string
	Form      string
	Think     *bool
	Thinking  *bool    `json:"enable_thinking"`
	Tags      []string // of families that have no others
	Continued string   `json:"continue_final_message"`
	Messages  json.RawMessage
	Partial   bool
	OpenEnd   bool   `json:"open_end"`
	Assertive bool   `json:"partial_assertions"`
	Contains  string `json:"content_contains"`
	Choice    any    `json:"tool_choice"`
	Crash     bool   `json:"must_not_crash"`
	Raw       string `json:"reasoning_format"`
	Prefix    string
}

type expectation struct {
	Content   *string
	Reasoning *string
	Contains  []string `json:"content_contains"`
	Count     *int
	ToolCalls []struct {
		Name        *string
		ID          string
		Arguments   json.RawMessage
		ArgumentsAt []json.RawMessage `json:"arguments_at"`
		Whole       json.RawMessage   `json:"arguments_json"`
	} `json:"tool_calls"`
}

// families says how the cases of a family are read: by which format, with which reasoning tags, and whether the prompt opens them when the model shall think.
var families = map[string]struct {
	format Format
	tags   Tags
	opens  bool
}{
	"hermes":             {Hermes, Tags{}, false},
	"qwen2_5_hermes":     {Hermes, Tags{}, false},
	"qwen3_hermes":       {Hermes, knownTags[0], true},
	"qwq_reasoning":      {Hermes, knownTags[0], true},
	"thinking_tags":      {None, knownTags[0], false},
	"qwen3_coder":        {Qwen3XML, Tags{}, false},
	"qwen3_5":            {Qwen3XML, knownTags[0], true},
	"nemotron3_nano":     {Qwen3XML, knownTags[0], true},
	"llama3_json":        {Llama3JSON, Tags{}, false},
	"kimi_k2":            {KimiK2, knownTags[0], false},
	"deepseek_v3":        {DeepSeekV31, knownTags[0], true},
	"deepseek_v3_1":      {DeepSeekV31, knownTags[0], true},
	"deepseek_r1":        {DeepSeekV31, knownTags[0], true},
	"mistral":            {Mistral, knownTags[1], false},
	"mistral_ministral3": {Mistral, knownTags[1], false},
	"nemotron_nano_v2":   {NemotronList, knownTags[0], true},
	"glm_4_6":            {GLM, knownTags[0], false},
	"glm_4_7":            {GLM, knownTags[0], true},
	"deepseek_v3_2":      {DSML, knownTags[0], true},
	"deepseek_v4":        {DSML, knownTags[0], true},
	"harmony":            {Harmony, harmonyTags, false},

	"other:Reka-Edge":                           {Hermes, knownTags[0], true},
	"other:Spark2.5":                            {GLM, knownTags[0], true},
	"other:StepFun3.5-Flash":                    {Qwen3XML, knownTags[0], true},
	"other:ibm-granite-granite-3.3-2B-Instruct": {None, knownTags[0], false},
	"other:ibm-granite-granite-4.0":             {Hermes, Tags{}, false},
	"other:ibm-granite-granite-4.1":             {Hermes, Tags{}, false},
	"other:inclusionai-ling-3.0-flash":          {GLM, knownTags[0], true},
}

// state says where an answer begins: servers that were asked to think put the opening tag in the prompt.
func (c testCase) state(tags Tags) State {
	if tags.Open == "" {
		return Over
	}
	switch thinks := c.Thinking; {
	case c.Family == "thinking_tags":
		return MayOpen
	case c.Continued == "content":
		return Underway
	case c.Continued == "reasoning":
		return Inside
	case !families[c.Family].opens:
		return MayOpen
	case c.Source == "llama.cpp":
		if thinks != nil && !*thinks {
			return Over
		}
		return Opened
	case c.Source == "ollama" && (c.Think == nil && c.Family == "glm_4_7" || c.Think != nil && *c.Think):
		return Opened
	case c.Source == "ollama":
		return Over
	}
	return MayOpen
}

// options says how a case is read.
func (c testCase) options() Options {
	f := families[c.Family]
	tags := f.tags
	if len(c.Tags) == 2 {
		tags = Tags{c.Tags[0], c.Tags[1]}
	}
	o := Options{Format: f.format, Tags: tags, State: c.state(tags), NewID: func() string { return "id" }}
	for _, t := range c.Tools {
		name, parameters := t.Function.Name, t.Function.Parameters
		if name == "" {
			name, parameters = t.Name, t.Parameters
		}
		o.Tools = append(o.Tools, Tool{name, parameters})
	}
	o.ReadCalls = c.Choice != "none" && (c.Source != "llama.cpp" || len(c.Tools) > 0)
	if c.Continued == "content" {
		o.State = Underway
	}
	if c.Raw == "none" {
		if o.State == Opened && c.Thinking != nil {
			o.Lead = tags.Open + "\n"
		}
		o.Tags = Tags{}
	}
	return o
}

// text is what the model wrote.
func (c testCase) text() string {
	if c.Form == "inside_tool_call" {
		return "<tool_call>" + c.Input + "</tool_call>"
	}
	for _, stop := range []string{"<|role_end|>", "<｜end▁of▁sentence｜>"} {
		c.Input = strings.TrimSuffix(c.Input, stop) // such a token ends an answer and is none of it
	}
	return c.Input
}

// started is what the turn that is continued holds already.
func (c testCase) started() (content, reasoning string) {
	if c.Continued == "" {
		return "", ""
	}
	var messages [][]struct{ Content, Reasoning string }
	if json.Unmarshal(c.Messages, &messages) != nil || len(messages) == 0 {
		return "", ""
	}
	last := messages[0][len(messages[0])-1]
	return last.Content, last.Reasoning
}

// wrong says how an answer differs from what is expected, or "".
func (c testCase) wrong(a Answer) string {
	want := c.Expected
	content, reasoning := c.started()
	if a.Content != nil {
		content += *a.Content
	}
	if a.Reasoning != nil {
		reasoning += *a.Reasoning
	}
	if want.Content != nil {
		got, wanted := strings.TrimSpace(content), strings.TrimSpace(*want.Content)
		if c.contentIsCut() && wanted != "" && len(got) > len(wanted) {
			got = got[:len(wanted)]
		}
		if got != wanted {
			return fmt.Sprintf("content %q, want %q", content, *want.Content)
		}
	}
	for _, s := range append(want.Contains, c.Contains) {
		if !strings.Contains(content, s) {
			return fmt.Sprintf("content %q lacks %q", content, s)
		}
	}
	if want.Reasoning != nil && c.Raw != "none" && c.hasReasoning() && strings.TrimSpace(reasoning) != strings.TrimSpace(*want.Reasoning) {
		return fmt.Sprintf("reasoning %q, want %q", reasoning, *want.Reasoning)
	}
	if c.Crash {
		return ""
	}
	if want.Count != nil && len(a.Calls) != *want.Count || !c.Assertive && len(a.Calls) != len(want.ToolCalls) || len(a.Calls) < len(want.ToolCalls) {
		return fmt.Sprintf("calls %+v, want %d", a.Calls, len(want.ToolCalls))
	}
	for i, w := range want.ToolCalls {
		if w.Name != nil && a.Calls[i].Name != *w.Name {
			return fmt.Sprintf("call %d is of %q, want %q", i, a.Calls[i].Name, *w.Name)
		}
		if w.ID != "" && a.Calls[i].ID != w.ID && a.Calls[i].ID != "id" {
			return fmt.Sprintf("call %d has the id %q, want %q", i, a.Calls[i].ID, w.ID)
		}
		for _, arguments := range []json.RawMessage{w.Arguments, w.Whole} {
			if arguments != nil && !sameArguments(a.Calls[i].Arguments, arguments) {
				return fmt.Sprintf("call %d has arguments %s, want %s", i, a.Calls[i].Arguments, arguments)
			}
		}
		for _, at := range w.ArgumentsAt {
			if s := argumentDiffers(a.Calls[i].Arguments, at); s != "" {
				return fmt.Sprintf("call %d: %s", i, s)
			}
		}
	}
	return ""
}

// contentIsCut says that a source drops text beside calls, which stays here.
func (c testCase) contentIsCut() bool { return c.Source == "smg" && len(c.Expected.ToolCalls) > 0 }

// hasReasoning says that the reasoning is the answer's: a content that is continued has its reasoning behind it.
func (c testCase) hasReasoning() bool { return c.Continued != "content" }

// sameArguments compares as JSON if both are, else as text. A string is the text of the arguments.
func sameArguments(got string, want json.RawMessage) bool {
	var text string
	if json.Unmarshal(want, &text) == nil {
		if !json.Valid([]byte(text)) || !json.Valid([]byte(got)) {
			return got == text
		}
		want = json.RawMessage(text)
	}
	return reflect.DeepEqual(value(got), value(string(want)))
}

// value decodes JSON; numbers of one value are equal.
func value(text string) any {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err.Error()
	}
	return v
}

// argumentDiffers compares one value at a path.
func argumentDiffers(arguments string, at json.RawMessage) string {
	var pair []json.RawMessage
	var path []any
	if json.Unmarshal(at, &pair) != nil || len(pair) != 2 || json.Unmarshal(pair[0], &path) != nil {
		return "the case is malformed"
	}
	v := value(arguments)
	for _, step := range path {
		switch s := step.(type) {
		case string:
			o, _ := v.(map[string]any)
			v = o[s]
		case float64:
			l, _ := v.([]any)
			if int(s) >= len(l) {
				return "no such element"
			}
			v = l[int(s)]
		}
	}
	if !reflect.DeepEqual(v, value(string(pair[1]))) {
		return fmt.Sprintf("at %v is %v, want %s", path, v, pair[1])
	}
	return ""
}

// read reads a text in the given pieces.
func read(o Options, cut bool, pieces ...string) []Event {
	r := NewReader(o)
	var events []Event
	for _, p := range pieces {
		events = append(events, r.Push(p, false)...)
	}
	return append(events, r.Finish(cut)...)
}

// joined puts events of one kind and index that follow each other together, so that streams that were cut otherwise are equal.
func joined(events []Event) []Event {
	var out []Event
	for _, e := range events {
		if n := len(out); n > 0 && e.Text != "" && out[n-1].Text != "" && out[n-1].Kind == e.Kind && out[n-1].Index == e.Index {
			out[n-1].Text += e.Text
			continue
		}
		out = append(out, e)
	}
	return out
}

// malformed says what is wrong with a stream: texts are not empty and end at whole characters, calls follow one another, and arguments are of the last one.
func malformed(events []Event) string {
	calls, open := 0, false
	for i, e := range events {
		text := e.Kind == Reasoning || e.Kind == Content || e.Kind == CallArguments
		switch {
		case text == (e.Text == ""), !utf8.ValidString(e.Text):
			return fmt.Sprintf("event %d has the text %q", i, e.Text)
		case e.Kind == CallBegin && (open || e.Index != calls || e.ID == "" || e.Name == ""):
			return fmt.Sprintf("event %d begins %+v, open %t", i, e, open)
		case (e.Kind == CallArguments || e.Kind == CallEnd) && (!open || e.Index != calls-1):
			return fmt.Sprintf("event %d is of no open call: %+v", i, e)
		case (e.Kind == Reasoning || e.Kind == Content) && open:
			return fmt.Sprintf("event %d is text inside a call: %+v", i, e)
		}
		switch e.Kind {
		case CallBegin:
			calls, open = calls+1, true
		case CallEnd:
			open = false
		}
	}
	return ""
}

// checkCuts reads a text cut at every byte, byte by byte and at random, and compares with the whole.
func checkCuts(t *testing.T, o Options, text string) Answer {
	t.Helper()
	want := read(o, false, text)
	for i := range len(text) {
		if got := read(o, false, text[:i], text[i:]); !reflect.DeepEqual(joined(got), joined(want)) {
			t.Fatalf("cut at byte %d:\n%+v\nwhole:\n%+v", i, joined(got), joined(want))
		} else if wrong := malformed(got); wrong != "" {
			t.Fatalf("cut at byte %d: %s", i, wrong)
		}
	}
	if got := read(o, false, strings.Split(text, "")...); !reflect.DeepEqual(joined(got), joined(want)) {
		t.Errorf("by characters:\n%+v\nwhole:\n%+v", got, joined(want))
	}
	random := rand.New(rand.NewPCG(1, uint64(len(text))))
	for range 20 {
		var pieces []string
		for rest := text; rest != ""; {
			n := 1 + random.IntN(min(len(rest), 12))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		if got := read(o, false, pieces...); !reflect.DeepEqual(joined(got), joined(want)) {
			t.Errorf("as %q:\n%+v\nwhole:\n%+v", pieces, got, joined(want))
		}
	}
	return Collect(want)
}

// caseFiles are the committed cases and, where TINSMITH_TESTDATA says where they lie, all.
func caseFiles(t *testing.T) []string {
	files, err := filepath.Glob("testdata/cases/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	folder := os.Getenv("TINSMITH_TESTDATA")
	if folder == "" {
		t.Run("the whole corpus", func(t *testing.T) { t.Skip("TINSMITH_TESTDATA is not set: only the cases of testdata are read") })
		return files
	}
	more, err := filepath.Glob(filepath.Join(folder, "surfaces/tool-calls/*.jsonl"))
	if err != nil || len(more) == 0 {
		t.Fatalf("no cases in %s: %v", folder, err)
	}
	return append(files, more...)
}

// commitAndNumber are what an id has beside the name of the test: disagreements are listed by the name alone where a file has several cases of one test.
var commitAndNumber = regexp.MustCompile(`@[0-9a-f]{40}|/\d+$`)

func TestCases(t *testing.T) {
	skipped := map[string]int{}
	read := 0
	for _, file := range caseFiles(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(content) {
			var c testCase
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if _, ok := families[c.Family]; !ok || c.Expected == nil {
				skipped[c.Family]++
				continue
			}
			read++
			t.Run(c.Family+"/"+c.ID, func(t *testing.T) {
				a := checkCuts(t, c.options(), c.text())
				reason, known := disagreements[c.ID]
				if !known {
					reason, known = disagreements[commitAndNumber.ReplaceAllString(c.ID, "")]
				}
				wrong := c.wrong(a)
				switch {
				case known && wrong == "":
					t.Errorf("the case agrees, but is listed: %s", reason)
				case !known && wrong != "":
					t.Errorf("%s\ntext %q", wrong, c.text())
				}
			})
		}
	}
	var names []string
	for family, n := range skipped {
		names = append(names, fmt.Sprintf("%s %d", family, n))
	}
	slices.Sort(names)
	t.Logf("%d cases read; of families that are not implemented: %s", read, strings.Join(names, ", "))
}
