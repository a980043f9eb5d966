package catalog

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

const tinyChat = "../../../configs/models/tiny-chat"

func TestLoad(t *testing.T) {
	cfg := config.DefaultModel()
	cfg.Name = "tiny"
	m, err := Load(cfg, tinyChat)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := m.Tokenizer.ID("<|im_end|>")
	if m.Template == nil || !slices.Contains(m.EndTokens, end) || m.Created.IsZero() || *m.Sampling.Temperature != 1 {
		t.Errorf("template %v, ends %v, made %v, defaults %+v", m.Template != nil, m.EndTokens, m.Created, m.Sampling)
	}
	if served := m.Served(); served.NewStopMatcher == nil || !slices.Equal(served.EndTokens, m.EndTokens) {
		t.Errorf("served %+v", served)
	}
	if text, raw := m.TokenText(1 << 30); text != "" || raw == nil {
		t.Errorf("an id without a token is %q, %v", text, raw)
	}
}

const (
	pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
	page    = "<!doctype html><html></html>"
)

// TestPlaceholders: a file of a directory that is complete otherwise, and holds what stands in for its content, has the model refused, with what to do.
func TestPlaceholders(t *testing.T) {
	for _, c := range []struct {
		file, content string
		want          string
	}{
		{"config.json", pointer, "config.json: holds a Git LFS pointer"},
		{"tokenizer.json", page, "tokenizer.json: holds a web page"},
		{"tokenizer_config.json", pointer, "tokenizer_config.json: holds a Git LFS pointer"},
		{"special_tokens_map.json", page, "special_tokens_map.json: holds a web page"},
		{"generation_config.json", page, "generation_config.json: holds a web page"},
		{"generation_config.json", `{"error":"Not found"}`, "generation_config.json: holds the error message of a server"},
		{"tokenizer_config.json", `{"error":"Not found"}`, "tokenizer_config.json: holds the error message of a server"},
		{"chat_template.jinja", "\n    \n", "chat_template.jinja: the file is empty"},
		{"chat_template.jinja", pointer, "chat_template.jinja: holds a Git LFS pointer"},
		{"chat_template.jinja", page, "chat_template.jinja: holds a web page"},
		{"chat_template.jinja", "Entry not found", `"Entry not found" is no template`},
		{"additional_chat_templates/tool_use.jinja", page, "tool_use.jinja: holds a web page"},
	} {
		t.Run(c.file+"/"+c.content[:5], func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(tinyChat)); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, c.file)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(c.content), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := Load(config.Model{Name: "a model"}, dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	t.Run("vocabulary without tokenizer.json", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(tinyChat)); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "tokenizer.json")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "merges.txt"), []byte(pointer), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(config.Model{Name: "a model"}, dir); err == nil || !strings.Contains(err.Error(), "merges.txt: holds a Git LFS pointer") {
			t.Error(err)
		}
	})
	for _, c := range []struct{ name, settings, added, want string }{
		{"all named", "", "", ""},
		{"end token without an id", `{"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}`, "", `the special token "<|im_end|>" has no id`},
		{"another special token without an id", `{"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": ["<|x|>"]}`, "", `the special token "<|x|>" has no id`},
		{"added token of an older version", `{"tokenizer_class": "Qwen2Tokenizer"}`, `{"<|x|>": 4096}`, `the special token "<|x|>" has no id`},
		{"none", `{"tokenizer_class": "Qwen2Tokenizer"}`, "", ""},
	} {
		t.Run("without tokenizer.json: "+c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(tinyChat)); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"tokenizer.json", "special_tokens_map.json"} {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			for name, content := range map[string]string{"tokenizer_config.json": c.settings, "added_tokens.json": c.added} {
				if content != "" {
					if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			_, err := Load(config.Model{Name: "a model"}, dir)
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	t.Run("link to nothing", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Symlink("gone", filepath.Join(dir, "tokenizer.json")); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(config.Model{Name: "a model"}, dir); err == nil {
			t.Error("it is served without a tokenizer")
		}
	})
}

// TestDirectories: directories without a tokenizer are served by token ids; broken files are refused by name.
func TestDirectories(t *testing.T) {
	for _, c := range []struct {
		name, file, content string
		refused             []string
	}{
		{name: "nothing"},
		{name: "one end token", file: "config.json", content: `{"eos_token_id": 7}`},
		{name: "one end token of the text model", file: "config.json", content: `{"text_config": {"eos_token_id": 7, "vocab_size": 9}, "vision_config": {}}`},
		{name: "one end token beside the text model", file: "config.json", content: `{"eos_token_id": 7, "text_config": {"vocab_size": 9}}`},
		{name: "the text model's end token before the other", file: "config.json", content: `{"eos_token_id": 5, "text_config": {"eos_token_id": 7, "vocab_size": 9}}`},
		{name: "end token beside the text model and beyond it", file: "config.json", content: `{"eos_token_id": 9, "text_config": {"vocab_size": 9}}`, refused: []string{"config.json: eos_token_id: 9 is not allowed: 0 to 8"}},
		{name: "end token beyond the text model", file: "config.json", content: `{"text_config": {"eos_token_id": 7, "vocab_size": 7}}`, refused: []string{"config.json: eos_token_id: 7 is not allowed: 0 to 6"}},
		{name: "defaults", file: "generation_config.json", content: `{"eos_token_id": [7], "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}`},
		{name: "no JSON", file: "generation_config.json", content: `{`, refused: []string{"generation_config.json"}},
		{name: "end token of text", file: "config.json", content: `{"eos_token_id": "a"}`, refused: []string{"config.json"}},
		{name: "negative end token", file: "config.json", content: `{"eos_token_id": -1}`, refused: []string{"config.json: eos_token_id: -1 is not allowed: 0 to"}},
		{name: "negative padding", file: "config.json", content: `{"pad_token_id": -1, "vocab_size": 10}`, refused: []string{"config.json: pad_token_id: -1 is not allowed: 0 to 9"}},
		{name: "beginning beyond the vocabulary", file: "config.json", content: `{"bos_token_id": 10, "vocab_size": 10}`, refused: []string{"config.json: bos_token_id: 10 is not allowed: 0 to 9"}},
		{name: "end token beyond 32 bits", file: "config.json", content: `{"eos_token_id": 4294967296}`, refused: []string{"config.json"}},
		{name: "negative end token among the defaults", file: "generation_config.json", content: `{"eos_token_id": [3, -2]}`, refused: []string{"generation_config.json: eos_token_id: -2"}},
		{name: "temperature", file: "generation_config.json", content: `{"temperature": -1}`, refused: []string{"generation_config.json", "temperature", "-1"}},
		{name: "top_p", file: "generation_config.json", content: `{"top_p": 0}`, refused: []string{"top_p"}},
		{name: "min_p", file: "generation_config.json", content: `{"min_p": 2}`, refused: []string{"min_p"}},
		{name: "top_k", file: "generation_config.json", content: `{"top_k": -2}`, refused: []string{"top_k", "-2", "-1, which is off"}},
		{name: "large top_k", file: "generation_config.json", content: `{"top_k": 4294967296}`, refused: []string{"top_k", "4294967296", "2147483647"}},
		{name: "repetition_penalty", file: "generation_config.json", content: `{"repetition_penalty": 0}`, refused: []string{"repetition_penalty"}},
		{name: "tokenizer", file: "tokenizer.json", content: `{`, refused: []string{"a model"}},
		{name: "configuration is a pointer", file: "config.json", content: pointer, refused: []string{"config.json: holds a Git LFS pointer"}},
		{name: "configuration is a page", file: "config.json", content: page, refused: []string{"config.json: holds a web page"}},
		{name: "generation is a page", file: "generation_config.json", content: page, refused: []string{"generation_config.json: holds a web page"}},
		{name: "tokenizer is a pointer", file: "tokenizer.json", content: pointer, refused: []string{"tokenizer.json: holds a Git LFS pointer in place of its 12 bytes", "git lfs pull"}},
		{name: "tokenizer is a page", file: "tokenizer.json", content: page, refused: []string{"tokenizer.json: holds a web page"}},
		{name: "vocabulary is a page", file: "vocab.json", content: page, refused: []string{"vocab.json: holds a web page"}},
		{name: "sentencepiece", file: "tokenizer.model", content: "\n", refused: []string{"there is tokenizer.model but no tokenizer.json", "save_pretrained"}},
		{name: "third version of sentencepiece", file: "tokenizer.model.v3", content: "\n", refused: []string{"there is tokenizer.model.v3 but no tokenizer.json"}},
		{name: "sentencepiece of T5", file: "spiece.model", content: "\n", refused: []string{"there is spiece.model but no tokenizer.json"}},
		{name: "tiktoken", file: "qwen.tiktoken", content: "\n", refused: []string{"there is qwen.tiktoken but no tokenizer.json"}},
		{name: "Mistral's", file: "tekken.json", content: "{}", refused: []string{"there is tekken.json but no tokenizer.json"}},
		{name: "WordPiece", file: "vocab.txt", content: "a", refused: []string{"there is vocab.txt but no tokenizer.json"}},
		{name: "settings without a tokenizer", file: "tokenizer_config.json", content: "{}", refused: []string{"there is tokenizer_config.json, but neither tokenizer.json nor vocab.json"}},
		{name: "merges without a vocabulary", file: "merges.txt", content: "a b", refused: []string{"there is merges.txt, but neither"}},
		{name: "large", file: "config.json", content: strings.Repeat(" ", maxConfigBytes+1), refused: []string{"config.json", "bytes"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if c.file != "" {
				if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			m, err := Load(config.Model{Name: "a model"}, dir)
			if c.refused == nil {
				if err != nil {
					t.Fatal(err)
				}
				if c.file != "" && !slices.Equal(m.EndTokens, []int32{7}) || m.Served().NewStopMatcher != nil {
					t.Errorf("ends %v", m.EndTokens)
				}
				return
			}
			if err == nil {
				t.Fatal("it is taken")
			}
			for _, word := range c.refused {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
		})
	}
}

func TestStopMatcher(t *testing.T) {
	m, err := Load(config.Model{Name: "tiny"}, tinyChat)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		text  string
		stops []string
		want  bool
	}{
		{"one two three", []string{"wo th"}, true},
		{"one two three", []string{"none", "three"}, true},
		{"one<|im_end|>two", []string{"<|im_end|>"}, true},
		{"né €", []string{"é €"}, true},
		{"one two three", []string{"two one"}, false},
	} {
		ids, err := m.Tokenizer.Encode(c.text, false)
		if err != nil {
			t.Fatal(err)
		}
		matcher, got := m.Served().NewStopMatcher(c.stops), false
		for i, id := range ids {
			if got = matcher.Push(id); got {
				if before := m.Tokenizer.Decode(ids[:i], false); slices.ContainsFunc(c.stops, func(s string) bool { return strings.Contains(before, s) }) {
					t.Errorf("%q: found one token late", c.text)
				}
				break
			}
		}
		if got != c.want {
			t.Errorf("%q with %q: %v", c.text, c.stops, got)
		}
	}
}

// What a backend is told of tokens: their bytes, which of them are no text, and which end an answer; no more of them than the backend's model has.
func TestVocabulary(t *testing.T) {
	cfg := config.DefaultModel()
	cfg.Name = "tiny"
	m, err := Load(cfg, tinyChat)
	if err != nil {
		t.Fatal(err)
	}
	v := m.Vocabulary(5000)
	if len(v.Tokens) != m.Tokenizer.VocabSize() || len(v.Special) != len(v.Tokens) || !slices.Equal(v.Ends, m.EndTokens) || len(v.Ends) == 0 {
		t.Fatalf("%d tokens, %d of special ones, ends %v; the tokenizer has %d, ends %v", len(v.Tokens), len(v.Special), v.Ends, m.Tokenizer.VocabSize(), m.EndTokens)
	}
	for _, tag := range []string{"<tool_call>", "</think>", "<|im_end|>"} {
		if id, _ := m.Tokenizer.ID(tag); string(v.Tokens[id]) != tag || !v.Special[id] {
			t.Errorf("token %d is %q, special %v; want %q, which is", id, v.Tokens[id], v.Special[id], tag)
		}
	}
	for _, text := range []string{" the", "{", "\n"} {
		ids, err := m.Tokenizer.Encode(text, false)
		if err != nil || len(ids) != 1 || string(v.Tokens[ids[0]]) != text || v.Special[ids[0]] {
			t.Errorf("the token of %q: %v, %v", text, ids, err)
		}
	}
	if few := m.Vocabulary(100); len(few.Tokens) != 100 || len(few.Special) != 100 || few.Ends != nil {
		t.Errorf("of 100 tokens: %d, %d, ends %v", len(few.Tokens), len(few.Special), few.Ends)
	}
}
