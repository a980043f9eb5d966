package openai

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// withBegin copies the model with a tokenizer that puts a token before every text.
func withBegin(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(modelDir)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "tokenizer.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var definition map[string]json.RawMessage
	if err := json.Unmarshal(raw, &definition); err != nil {
		t.Fatal(err)
	}
	definition["post_processor"] = json.RawMessage(`{"type": "Sequence", "processors": [{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
		{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
		"pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
		"special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [4087], "tokens": ["<|endoftext|>"]}}}]}`)
	if raw, err = json.Marshal(definition); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What add_special_tokens says holds for the text of a prompt as it does for /tokenize: whoever has rendered a template has the token already.
func TestAddSpecialTokens(t *testing.T) {
	w := newWorld(t, options{dir: withBegin(t)})
	for name, c := range map[string]struct {
		prompt any
		given  any
		want   int // tokens before those of "Hello"
	}{
		"left out":              {"Hello", nil, 1},
		"true":                  {"Hello", true, 1},
		"false":                 {"Hello", false, 0},
		"rendered before":       {"<|endoftext|>Hello", false, 1},
		"rendered before, true": {"<|endoftext|>Hello", true, 2},
		"a list":                {[]string{"Hello", "Hello"}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			f := completing(c.prompt).with(fields{"echo": true, "logprobs": true, "max_tokens": 0, "skip_special_tokens": false})
			if c.given != nil {
				f["add_special_tokens"] = c.given
			}
			want := slices.Repeat([]string{"<|endoftext|>"}, c.want)
			for _, choice := range w.complete(f).Choices {
				tokens := choice.Logprobs.Tokens
				if got := tokens[:min(len(tokens), c.want)]; !slices.Equal(got, want) || tokens[c.want] == "<|endoftext|>" {
					t.Errorf("tokens %q, want %d special ones first", tokens, c.want)
				}
			}
		})
	}
}

// logprobs true is what clients of the other endpoint send.
func TestLogprobsTrue(t *testing.T) {
	w := newWorld(t, options{})
	choice := func(logprobs any) completionChoice {
		return w.complete(completing("hello").with(fields{"logprobs": logprobs, "max_tokens": 3, "temperature": 0})).Choices[0]
	}
	one, with := choice(1), choice(true)
	a, _ := json.Marshal(one)
	b, _ := json.Marshal(with)
	if string(a) != string(b) || with.Logprobs == nil || len(with.Logprobs.TopLogprobs[0]) == 0 {
		t.Errorf("true gives %s, 1 gives %s", b, a)
	}
	for _, none := range []any{false, nil} {
		if got := choice(none); got.Logprobs != nil {
			t.Errorf("%v gives %+v", none, got.Logprobs)
		}
	}
}
