package tokenizer

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// loadModel is a vocabulary with tokens for every role.
const loadModel = `{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4}, "merges": ["a b"]}`

const loadTemplate = `{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"<s>": {"ids": [3]}}}`

func TestLoad(t *testing.T) {
	plain := `{"model": ` + loadModel + `}`
	tests := []struct {
		name     string
		files    map[string]string
		text     string
		want     []int32 // ids of text, special tokens added
		bos, eos int32   // -1: none
		template string
	}{
		{name: "tokenizer.json alone", files: map[string]string{"tokenizer.json": plain}, text: "abb", want: []int32{2, 1}, bos: -1, eos: -1},
		{
			name:  "vocabulary and merges of GPT-2",
			files: map[string]string{"vocab.json": `{"a": 0, "b": 1, "ab": 2, "Ġ": 3}`, "merges.txt": "#version: 0.2\na b\n"},
			text:  "ab ab", want: []int32{2, 3, 2}, bos: -1, eos: -1,
		},
		{
			name: "vocabulary and merges of Qwen",
			files: map[string]string{
				"vocab.json": `{"a": 0, "b": 1, "ab": 2, "1": 3}`, "merges.txt": "a b\n",
				"tokenizer_config.json": `{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "bos_token": null, "added_tokens_decoder": {"5": {"content": "<|im_end|>", "special": true}, "4": {"content": "<think>"}}}`,
			},
			text: "ab11<think><|im_end|>", want: []int32{2, 3, 3, 4, 5}, bos: -1, eos: 5,
		},
		{
			name:  "roles as text and as token",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}}`},
			text:  "a", want: []int32{0}, bos: 3, eos: 4,
		},
		{
			name:  "a role makes a token special",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"eos_token": {"content": "</s>", "rstrip": true}}`},
			text:  "a</s> a", want: []int32{0, 4, 0}, bos: -1, eos: 4,
		},
		{
			name:  "roles from special_tokens_map.json",
			files: map[string]string{"tokenizer.json": plain, "special_tokens_map.json": `{"bos_token": {"content": "<s>"}, "eos_token": "</s>"}`, "tokenizer_config.json": `{"eos_token": "<s>"}`},
			text:  "a", want: []int32{0}, bos: 3, eos: 3,
		},
		{
			name:  "a role without a token",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"bos_token": "<none>"}`},
			text:  "a", want: []int32{0}, bos: -1, eos: -1,
		},
		{
			name:  "add_bos_token where the tokenizer has no template",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true}`},
			text:  "a", want: []int32{3, 0, 4}, bos: 3, eos: 4,
		},
		{
			name:  "the tokenizer's template wins",
			files: map[string]string{"tokenizer.json": `{"model": ` + loadModel + `, "post_processor": ` + loadTemplate + `}`, "tokenizer_config.json": `{"bos_token": "<s>", "add_bos_token": false, "tokenizer_class": "PreTrainedTokenizerFast"}`},
			text:  "a", want: []int32{3, 0}, bos: 3, eos: -1,
		},
		{
			name:  "but not for Llama classes",
			files: map[string]string{"tokenizer.json": `{"model": ` + loadModel + `, "post_processor": ` + loadTemplate + `}`, "tokenizer_config.json": `{"bos_token": "<s>", "add_bos_token": false, "tokenizer_class": "LlamaTokenizerFast"}`},
			text:  "a", want: []int32{0}, bos: 3, eos: -1,
		},
		{
			name:  "template of the configuration",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"chat_template": "config"}`},
			bos:   -1, eos: -1, template: "config",
		},
		{
			name:  "list of templates",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "list"}]}`},
			bos:   -1, eos: -1, template: "list",
		},
		{
			name:  "the file wins",
			files: map[string]string{"tokenizer.json": plain, "tokenizer_config.json": `{"chat_template": "config"}`, "chat_template.jinja": "file\n"},
			bos:   -1, eos: -1, template: "file\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range test.files {
				write(t, dir, name, content)
			}
			tok := mustLoad(t, dir)
			got, err := tok.Encode(test.text, true)
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("Encode(%q) is %v, %v, want %v", test.text, got, err, test.want)
			}
			if id, ok := tok.BOS(); ok != (test.bos >= 0) || ok && id != test.bos {
				t.Errorf("BOS is %d, %v, want %d", id, ok, test.bos)
			}
			if id, ok := tok.EOS(); ok != (test.eos >= 0) || ok && id != test.eos {
				t.Errorf("EOS is %d, %v, want %d", id, ok, test.eos)
			}
			if id, ok := tok.EOS(); ok && !tok.IsSpecial(id) {
				t.Error("EOS is not special")
			}
			if got := tok.ChatTemplate(); got != test.template {
				t.Errorf("the chat template is %q, want %q", got, test.template)
			}
		})
	}
}

func TestNamedChatTemplates(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", `{"model": `+loadModel+`}`)
	write(t, dir, "chat_template.jinja", "plain")
	if err := os.Mkdir(filepath.Join(dir, templateFolder), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, filepath.Join(templateFolder, "tool_use.jinja"), "tools")
	tok := mustLoad(t, dir)
	if got, ok := tok.NamedChatTemplate("tool_use"); !ok || got != "tools" {
		t.Errorf("tool_use is %q, %v", got, ok)
	}
	if _, ok := tok.NamedChatTemplate("rag"); ok {
		t.Error("a template that is not there is found")
	}
	if got := tok.ChatTemplate(); got != "plain" {
		t.Errorf("the default is %q", got)
	}
}

func TestTokens(t *testing.T) {
	tok, err := Parse([]byte(`{"model": ` + loadModel + `, "added_tokens": [{"content": "</s>", "special": true}, {"content": "<x>", "special": false}]}`))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		token   string
		id      int32
		special bool
	}{{"a", 0, false}, {"ab", 2, false}, {"<s>", 3, false}, {"</s>", 4, true}, {"<x>", 5, false}}
	for _, test := range tests {
		if id, ok := tok.ID(test.token); !ok || id != test.id {
			t.Errorf("ID(%q) is %d, %v, want %d", test.token, id, ok, test.id)
		}
		if token, ok := tok.TokenString(test.id); !ok || token != test.token {
			t.Errorf("TokenString(%d) is %q, %v, want %q", test.id, token, ok, test.token)
		}
		if got := tok.IsSpecial(test.id); got != test.special {
			t.Errorf("IsSpecial(%d) is %v", test.id, got)
		}
	}
	if got := tok.VocabSize(); got != 6 {
		t.Errorf("VocabSize is %d, want 6", got)
	}
	if _, ok := tok.ID("nothing"); ok {
		t.Error("a token that is not there has an id")
	}
	for _, id := range []int32{-1, 6, 1<<31 - 1, -1 << 31} {
		if token, ok := tok.TokenString(id); ok || tok.IsSpecial(id) {
			t.Errorf("id %d is %q", id, token)
		}
	}
}

// TestFirstWord checks which word the prepend scheme "first" means: the one that
// begins the text, if nothing before it was dropped. The reference gives these.
func TestFirstWord(t *testing.T) {
	first := `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}`
	tests := []struct{ name, normalizer, text, want string }{
		{"nothing dropped", `null`, "a b", "▁a▁b"},
		{"space dropped", `{"type": "Strip", "strip_left": true, "strip_right": true}`, "  a b", "a▁b"},
		{"space dropped at the end", `{"type": "Strip", "strip_left": true, "strip_right": true}`, "a b ", "▁a▁b"},
		{"letter dropped", `{"type": "Replace", "pattern": {"String": "x"}, "content": ""}`, "xa b", "a▁b"},
		{"letter replaced", `{"type": "Replace", "pattern": {"String": "x"}, "content": "b"}`, "xa b", "▁ba▁b"},
		{"later letter dropped", `{"type": "Replace", "pattern": {"String": "x"}, "content": ""}`, "axb", "▁ab"},
		{"accent dropped", `{"type": "StripAccents"}`, "\u0301a", "a"},
		{"put before", `{"type": "Prepend", "prepend": "b"}`, "a", "▁ba"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tok, err := Parse([]byte(`{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "▁": 2, "x": 3}, "merges": []}, "normalizer": ` + test.normalizer + `, "pre_tokenizer": ` + first + `}`))
			if err != nil {
				t.Fatal(err)
			}
			ids, err := tok.Encode(test.text, false)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, id := range ids {
				token, _ := tok.TokenString(id)
				got += token
			}
			if got != test.want {
				t.Errorf("%q gives %q, want %q", test.text, got, test.want)
			}
		})
	}
}
