package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const smallModel = `{"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}`

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat(`[`, 1_000_000)
	tests := []struct{ name, file, want string }{
		{"empty", ``, "end of JSON"},
		{"no object", `[]`, "cannot unmarshal"},
		{"not UTF-8", "{\"model\": \"\xff\"}", "not UTF-8"},
		{"a million deep", `{"model": ` + deep, "nest deeper than 64"},
		{"a million deep in a component", `{"model": ` + smallModel + `, "normalizer": ` + strings.Repeat(`{"type": "Sequence", "normalizers": [`, 1_000_000), "nest deeper than 64"},
		{"no model", `{}`, "model is missing"},
		{"unknown model", `{"model": {"type": "WordPiece", "vocab": {}}}`, `model.type is "WordPiece"`},
		{"negative id", `{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}`, `"a" has id -1`},
		{"huge id", `{"model": {"type": "BPE", "vocab": {"a": 2000000000}, "merges": []}}`, "allowed are 0 to"},
		{"id above 64 bits", `{"model": {"type": "BPE", "vocab": {"a": 99999999999999999999}, "merges": []}}`, "model.vocab"},
		{"fractional id", `{"model": {"type": "BPE", "vocab": {"a": 0.5}, "merges": []}}`, "model.vocab"},
		{"id twice", `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}}`, `"a" and "b" both have id 0`},
		{"merge of an unknown token", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a c"]}}`, `model.merges[0] names "c"`},
		{"merge into an unknown token", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}}`, `makes "aa"`},
		{"merge of three", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a a"]}}`, "model.merges[0]"},
		{"merge of one", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}`, "model.merges[0] has 1 tokens"},
		{"unknown token missing", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"}}`, "unk_token"},
		{"dropout", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}}`, "model.dropout is 0.1"},
		{"unk_id too large", `{"model": {"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1}}`, "model.unk_id is 1"},
		{"score is a text", `{"model": {"type": "Unigram", "vocab": [["a", "b"]]}}`, "a number is needed"},
		{"score out of range", `{"model": {"type": "Unigram", "vocab": [["a", 1e400]]}}`, "out of range"},
		{"piece of three", `{"model": {"type": "Unigram", "vocab": [["a", 1, 2]]}}`, "3 values"},
		{"long unigram token", `{"model": {"type": "Unigram", "vocab": [["` + strings.Repeat("a", 5000) + `", 1]]}}`, "5000 bytes"},
		{"normalizer", `{"model": ` + smallModel + `, "normalizer": {"type": "Precompiled"}}`, `normalizer.type is "Precompiled"`},
		{"nested normalizer", `{"model": ` + smallModel + `, "normalizer": {"type": "Sequence", "normalizers": [{"type": "X"}]}}`, `normalizer.normalizers[0].type is "X"`},
		{"component without type", `{"model": ` + smallModel + `, "decoder": {}}`, "decoder.type is missing"},
		{"component is a number", `{"model": ` + smallModel + `, "decoder": 7}`, "decoder"},
		{"pre-tokenizer", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "UnicodeScripts"}}`, `pre_tokenizer.type is "UnicodeScripts"`},
		{"split behaviour", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}, "behavior": "isolated", "invert": false}}`, `behavior is "isolated"`},
		{"split without pattern", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "invert": false}}`, "pre_tokenizer.pattern is missing"},
		{"bad expression", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": false}}`, "pattern.Regex"},
		{"metaspace", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}}`, "one character"},
		{"metaspace scheme", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"}}`, `prepend_scheme is "last"`},
		{"fixed length 0", `{"model": ` + smallModel + `, "pre_tokenizer": {"type": "FixedLength", "length": 0}}`, "length is 0"},
		{"decoder", `{"model": ` + smallModel + `, "decoder": {"type": "CTC"}}`, `decoder.type is "CTC"`},
		{"strip below 0", `{"model": ` + smallModel + `, "decoder": {"type": "Strip", "content": " ", "start": -1, "stop": 0}}`, "start is -1"},
		{"post-processor", `{"model": ` + smallModel + `, "post_processor": {"type": "X"}}`, `post_processor.type is "X"`},
		{"template of an unknown token", `{"model": ` + smallModel + `, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}}}`, `names "x"`},
		{"template without text", `{"model": ` + smallModel + `, "post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}}`, "0 times"},
		{"template with a negative id", `{"model": ` + smallModel + `, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [-1]}}}}`, "id -1"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.file))
			if err == nil {
				t.Fatal("the file is accepted")
			}
			if text := err.Error(); !strings.Contains(text, test.want) || !strings.HasPrefix(text, "tokenizer.json: ") || len(text) > 1000 {
				t.Errorf("the error is %.300q, want one with %q", text, test.want)
			}
		})
	}
}

func TestLoadRefuses(t *testing.T) {
	good := `{"model": ` + smallModel + `}`
	tests := []struct {
		name  string
		files map[string]string
		want  string
	}{
		{"nothing", nil, "neither tokenizer.json nor vocab.json"},
		{"vocabulary alone", map[string]string{"vocab.json": `{"a": 0}`}, "merges.txt"},
		{"vocabulary is a list", map[string]string{"vocab.json": `[]`, "merges.txt": ""}, "vocab.json"},
		{"merges line", map[string]string{"vocab.json": `{"a": 0}`, "merges.txt": "#version: 0.2\na\n"}, "line 2"},
		{"merges of unknown tokens", map[string]string{"vocab.json": `{"a": 0}`, "merges.txt": "a b\n"}, `names "b"`},
		{"bare vocabulary of another class", map[string]string{"vocab.json": `{"a": 0}`, "merges.txt": "", "tokenizer_config.json": `{"tokenizer_class": "XTokenizer"}`}, `"XTokenizer"`},
		{"configuration nests", map[string]string{"tokenizer.json": good, "tokenizer_config.json": strings.Repeat("[", 100000)}, "tokenizer_config.json: arrays"},
		{"added token without number", map[string]string{"tokenizer.json": good, "tokenizer_config.json": `{"added_tokens_decoder": {"x": {"content": "y"}}}`}, `"x" is no id`},
		{"role is a number", map[string]string{"tokenizer.json": good, "tokenizer_config.json": `{"bos_token": 5}`}, "tokenizer_config.json"},
		{"bos without token", map[string]string{"tokenizer.json": good, "tokenizer_config.json": `{"add_bos_token": true}`}, "add_bos_token"},
		{"template is a number", map[string]string{"tokenizer.json": good, "tokenizer_config.json": `{"chat_template": 5}`}, "chat_template"},
		{"template is not UTF-8", map[string]string{"tokenizer.json": good, "chat_template.jinja": "\xff"}, "chat_template.jinja"},
		{"template is too large", map[string]string{"tokenizer.json": good, "chat_template.jinja": strings.Repeat("x", maxTemplateFile+1)}, "bytes allowed"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range test.files {
				write(t, dir, name, content)
			}
			if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want one with %q", err, test.want)
			}
		})
	}
	t.Run("a directory in place of the file", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "tokenizer.json"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestExpressionRunsOutOfTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes the time that one match may take")
	}
	tok, err := Parse([]byte(`{"model": ` + smallModel + `, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?:a|a|aa)+$b"}, "behavior": "Isolated", "invert": false}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tok.Encode(strings.Repeat("a", 4000), false); err == nil {
		t.Error("an expression that backtracks without end gives tokens")
	}
}

// TestLongWords would not end if the time grew with the square of a word.
func TestLongWords(t *testing.T) {
	const size = 1 << 20
	texts := map[string]string{
		"one letter":      strings.Repeat("a", size),
		"letters":         strings.Repeat("abcdefghijklmnopqrstuvwxyz", size/26),
		"spaces":          strings.Repeat(" ", size),
		"lines":           strings.Repeat("\n ", size/2),
		"unknown":         strings.Repeat("語", size/3),
		"combining marks": "a" + strings.Repeat("\u0301\u0327", size/4),
		"not UTF-8":       strings.Repeat("\xff", size/8),
		"quotes":          strings.Repeat("'", size),
	}
	for _, name := range []string{"qwen", "spm", "unigram"} {
		tok := goldenTokenizer(t, name)
		for kind, text := range texts {
			t.Run(name+"/"+kind, func(t *testing.T) {
				ids, err := tok.Encode(text, false)
				if err != nil {
					t.Fatal(err)
				}
				if len(ids) == 0 {
					t.Fatal("no ids")
				}
				back := tok.Decode(ids, false)
				if name != "unigram" && kind != "combining marks" && back != validText(text) {
					t.Error("decoding does not give the text back")
				}
			})
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	for _, name := range []string{"qwen", "unigram"} {
		tok := goldenTokenizer(t, name)
		cases := goldenCases(t, filepath.Join("testdata", "goldens", name+".cases.json.gz"))[:300]
		var wait sync.WaitGroup
		for worker := range 4 {
			wait.Go(func() {
				for i := range cases {
					c := cases[(i*7+worker*31)%len(cases)]
					if !checkCase(t, tok, c) {
						return
					}
				}
			})
		}
		wait.Wait()
	}
}

func ExampleTokenizer_NewStream() {
	tok, err := Parse([]byte(`{"model": {"type": "BPE", "vocab": {"h": 0, "i": 1, "Ã": 2, "©": 3}, "merges": []},
		"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}}`))
	if err != nil {
		panic(err)
	}
	stream := tok.NewStream(true)
	for _, id := range []int32{0, 1, 2, 3} {
		fmt.Printf("%q ", stream.Push(id))
	}
	fmt.Printf("%q\n", stream.Flush())
	// Output: "h" "i" "" "é" ""
}
