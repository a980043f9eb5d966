package tokenizer

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzLoad looks for files that make loading, or what follows it, panic.
func FuzzLoad(f *testing.F) {
	add := func(pipeline string) { f.Add([]byte(`{"model": `+smallModel+pipeline+`}`), "ab a\u0301 <x>b") }
	add(``)
	add(`, "added_tokens": [{"id": 3, "content": "<x>", "special": true, "lstrip": true, "rstrip": true, "single_word": true}]`)
	add(`, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "Strip", "strip_left": true, "strip_right": true}]}`)
	add(`, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|[^\\p{L}&&a-z]"}, "behavior": "MergedWithNext", "invert": true}, {"type": "ByteLevel", "add_prefix_space": true}]}`)
	add(`, "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 1}]}`)
	add(`, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"a": {"ids": [0]}}}`)
	f.Add([]byte(`{"model": {"type": "Unigram", "vocab": [["<unk>", 0], ["a", -1.5], ["ab", -2e-3]], "unk_id": 0, "byte_fallback": true}, "pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}`), "ab_c")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		if len(data) > 1<<16 || len(text) > 200 {
			return
		}
		tok, err := Parse(data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
				t.Errorf("an error without its place: %v", err)
			}
			return
		}
		ids, err := tok.Encode(text, true)
		if err != nil {
			return
		}
		for _, id := range ids {
			if id < 0 || id > maxID {
				t.Errorf("Encode(%q) gives id %d", text, id)
			}
		}
		stream := tok.NewStream(true)
		var streamed strings.Builder
		for _, id := range ids {
			streamed.WriteString(stream.Push(id))
		}
		streamed.WriteString(stream.Flush())
		if decoded := tok.Decode(ids, true); decoded != streamed.String() || !utf8.ValidString(decoded) {
			t.Errorf("Decode gives %q, a stream %q", decoded, streamed.String())
		}
	})
}

// FuzzRoundTrip looks for texts that encoding loses something of.
func FuzzRoundTrip(f *testing.F) {
	for _, text := range []string{"", "Hello, world!", " a  b\r\n\tc ", "don't DON'T 'ſ", "語 12345 ½", "👩‍💻e\u0301", "<|im_start|>user<think>", "a\x00b\xffc", "▁ \u00a0"} {
		f.Add(text)
	}
	bytes, pieces := goldenTokenizer(f, "llama3"), goldenTokenizer(f, "spm")
	f.Fuzz(func(t *testing.T, text string) {
		want := validText(text)
		ids, err := bytes.Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Decode(ids, false); got != want {
			t.Errorf("llama3: %q becomes %q", want, got)
		}
		for _, special := range []string{"<s>", "</s>", "<unk>"} {
			if strings.Contains(text, special) {
				return // text after a special token gets a space before it
			}
		}
		if ids, err = pieces.Encode(text, false); err != nil {
			t.Fatal(err)
		}
		if got, want := pieces.Decode(ids, false), strings.ReplaceAll(want, "▁", " "); got != want && !strings.Contains(text, "<0x") {
			t.Errorf("spm: %q becomes %q", want, got)
		}
	})
}
