package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// TestHostileEncoding: rules that ask for more than they may end at a limit, and the refusal names the rule.
func TestHostileEncoding(t *testing.T) {
	const byteLevel = `{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}`
	many := func(n int, part string) string { return strings.TrimSuffix(strings.Repeat(part+",", n), ",") }
	sequence := func(kind string, n int, part string) string {
		return fmt.Sprintf(`{"type": "Sequence", %q: [%s]}`, kind, many(n, part))
	}
	replace := func(pattern, content string) string {
		return fmt.Sprintf(`{"type": "Replace", "pattern": %s, "content": %q}`, pattern, content)
	}
	split := func(pattern, behavior string) string {
		return fmt.Sprintf(`{"type": "Split", "pattern": {"Regex": %q}, "behavior": %q, "invert": false}`, pattern, behavior)
	}
	long := strings.Repeat("ab ", 100)
	cases := []struct{ name, part, value, text, want string }{
		{"doubling", "normalizer", sequence("normalizers", 100, replace(`{"String": "a"}`, "aa")), long, "normalizer.normalizers["},
		{"doubling by an expression", "normalizer", sequence("normalizers", 100, replace(`{"Regex": "[ab]"}`, "abab")), long, "normalizer.normalizers["},
		{"growth between all characters", "normalizer", sequence("normalizers", 100, replace(`{"Regex": ""}`, "ab")), long, "normalizer.normalizers["},
		{"long content", "normalizer", replace(`{"String": "a"}`, strings.Repeat("x", 1<<20)), long, "normalizer (Replace)"},
		{"two long contents", "normalizer", sequence("normalizers", 2, replace(`{"String": "a"}`, strings.Repeat("a", 10000))), long, "normalizer.normalizers[1] (Replace)"},
		{"prepending", "normalizer", sequence("normalizers", 100, `{"type": "Prepend", "prepend": "`+strings.Repeat("p", 1<<20)+`"}`), "a", "(Prepend)"},
		{"bytes of bytes", "normalizer", sequence("normalizers", 100, `{"type": "ByteLevel"}`), long, "(ByteLevel)"},
		{"decomposition", "normalizer", sequence("normalizers", 2, `{"type": "NFKD"}`), strings.Repeat("\ufdfa", 1<<20), "(NFKD)"},
		{"decomposition and composition", "normalizer", `{"type": "NFKC"}`, strings.Repeat("\ufdfa", 1<<20), "normalizer (NFKC)"},
		{"marks in the wrong order", "normalizer", `{"type": "NFD"}`, "a" + strings.Repeat("\u0301\u0327", 2<<20), "normalizer (NFD)"},
		{"an expression that backtracks", "normalizer", replace(`{"Regex": "(?:a|a|aa)+$c"}`, ""), strings.Repeat("a", 4000), "normalizer (Replace)"},
		{"many stages over a long text", "normalizer", sequence("normalizers", 100, `{"type": "Lowercase"}`), strings.Repeat("ab", 1<<20), "(Lowercase)"},
		{"words that backtrack", "pre_tokenizer", split(`(?:a+)+b`, "Isolated"), strings.Repeat("a", 100), "pre_tokenizer (Split)"},
		{"a look ahead from everywhere", "pre_tokenizer", split(`(?=.*b)a`, "Isolated"), strings.Repeat("a", 1<<20), "pre_tokenizer (Split)"},
		{"a look behind from everywhere", "pre_tokenizer", split(`(?<=b.*)a`, "MergedWithNext"), strings.Repeat("a", 1<<20), "pre_tokenizer (Split)"},
		{"what is come back to", "pre_tokenizer", split(`(?:a|b)*`, "Removed"), strings.Repeat("ab", 4<<20), "pre_tokenizer (Split)"},
		{"cuts everywhere", "pre_tokenizer", split(`(?=a)|`, "Isolated"), strings.Repeat("a", 8<<20), "pre_tokenizer (Split)"},
		{"single digits", "pre_tokenizer", `{"type": "Digits", "individual_digits": true}`, strings.Repeat("1", 8<<20), "pre_tokenizer (Digits)"},
		{"punctuation", "pre_tokenizer", `{"type": "Punctuation"}`, strings.Repeat("!", 8<<20), "pre_tokenizer (Punctuation)"},
		{"lengths of one", "pre_tokenizer", `{"type": "FixedLength", "length": 1}`, strings.Repeat("a", 8<<20), "pre_tokenizer (FixedLength)"},
		{"delimiters", "pre_tokenizer", `{"type": "CharDelimiterSplit", "delimiter": "a"}`, strings.Repeat("ba", 8<<20), "pre_tokenizer (CharDelimiterSplit)"},
		{"many stages", "pre_tokenizer", sequence("pretokenizers", 100, split(`a`, "Isolated")), strings.Repeat("ab", 1<<20), "pre_tokenizer.pretokenizers["},
		{"bytes of bytes again", "pre_tokenizer", sequence("pretokenizers", 60, byteLevel), strings.Repeat("é", 1<<10), "(ByteLevel)"},
		{"prefixes", "pre_tokenizer", `{"type": "Metaspace", "replacement": "▁", "split": false}`, strings.Repeat(" ", 32<<20), "(Metaspace)"},
		{"one long word", "pre_tokenizer", byteLevel, strings.Repeat("ab", 8<<20), "model (BPE)"},
		{"added tokens everywhere", "added_tokens", `[{"content": "a", "special": true}]`, strings.Repeat("ab", 8<<20), "added_tokens"},
		{"an added token nearly everywhere", "added_tokens", `[{"content": "` + strings.Repeat("a", 4000) + `b", "special": true}]`, strings.Repeat("a", 1<<20), "added_tokens"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			tok, err := Parse([]byte(`{"model": ` + smallModel + `, "` + c.part + `": ` + c.value + `}`))
			if err != nil {
				t.Fatal(err)
			}
			b := budget.New(t.Context(), budget.Limits{})
			defer b.End()
			_, err = tok.EncodeWithin(b, c.text, false)
			var exceeded *budget.Exceeded
			if !errors.As(err, &exceeded) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 300 {
				t.Errorf("got %v after %d steps and %d bytes, want a limit of %s", err, b.Steps(), b.Bytes(), c.want)
			}
		})
	}
	t.Run("unigram", func(t *testing.T) {
		tok, err := Parse([]byte(`{"model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["a", -1], ["` + strings.Repeat("a", 4000) + `", -2]]}}`))
		if err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string]string{"steps": strings.Repeat("a", 1<<20), "bytes": strings.Repeat("b", 8<<20)} {
			_, err := tok.Encode(text, false)
			var exceeded *budget.Exceeded
			if !errors.As(err, &exceeded) || exceeded.What != what || !strings.Contains(err.Error(), "model (Unigram)") {
				t.Errorf("got %v, want too many %s", err, what)
			}
		}
	})
}

// TestHostileDecoding: what decoding could make of tokens is bounded when the file is loaded, and of a request's ids when they are decoded.
func TestHostileDecoding(t *testing.T) {
	tok, err := Parse([]byte(`{"model": {"type": "BPE", "vocab": {"` + strings.Repeat("a", maxTokenBytes) + `": 0}, "merges": []}, "decoder": {"type": "ByteLevel"}}`))
	if err != nil {
		t.Fatal(err)
	}
	decode := func(ids []int32) (string, error) {
		b := budget.New(t.Context(), budget.Limits{})
		defer b.End()
		return tok.DecodeWithin(b, ids, false)
	}
	_, err = decode(make([]int32, 1<<20))
	var exceeded *budget.Exceeded
	if !errors.As(err, &exceeded) || !strings.Contains(err.Error(), "decoder") {
		t.Errorf("got %v", err)
	}
	if text, err := decode(make([]int32, 100)); err != nil || len(text) != 100*maxTokenBytes {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	slow, err := Parse([]byte(`{"model": {"type": "BPE", "vocab": {"` + strings.Repeat("a", 2000) + `": 0}, "merges": []}, "decoder": {"type": "Replace", "pattern": {"Regex": "(?:a|a|aa)+$b"}, "content": ""}}`))
	if err != nil {
		t.Fatal(err)
	}
	if text := slow.Decode([]int32{0}, false); text != strings.Repeat("a", 2000) {
		t.Errorf("a token whose pattern takes too long gives %.20q", text)
	}
}

// TestHostileFiles: what would cost too much in every request, or when it is loaded, is refused when it is loaded, by name.
func TestHostileFiles(t *testing.T) {
	many := func(n int, part string) string { return strings.TrimSuffix(strings.Repeat(part+",", n), ",") }
	with := func(part, value string) string { return `{"model": ` + smallModel + `, "` + part + `": ` + value + `}` }
	double := `{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}`
	template := func(n int) string {
		return `{"type": "TemplateProcessing", "single": [` + many(n, `{"SpecialToken": {"id": "x"}}`) + `, {"Sequence": {"id": "A"}}], "special_tokens": {"x": {"ids": [` + many(100, "1") + `]}}}`
	}
	tests := []struct{ name, file, want string }{
		{"decoders that double", with("decoder", `{"type": "Sequence", "decoders": [`+many(40, double)+`]}`), "decoder.decoders[11] (Replace): a token may become 2 times as long"},
		{"a decoder with a long content", with("decoder", `{"type": "Replace", "pattern": {"String": "a"}, "content": "`+strings.Repeat("x", 100000)+`"}`), "decoder (Replace): a token may become 100000 times"},
		{"a decoder that puts something everywhere", with("decoder", `{"type": "Replace", "pattern": {"Regex": ""}, "content": "`+strings.Repeat("x", 10000)+`"}`), "decoder (Replace)"},
		{"decoders of empty suffixes", with("decoder", `{"type": "Sequence", "decoders": [`+many(40, `{"type": "BPEDecoder", "suffix": ""}`)+`]}`), "(BPEDecoder)"},
		{"too many decoders", with("decoder", `{"type": "Sequence", "decoders": [`+many(200, `{"type": "Fuse"}`)+`]}`), "decoder has more than 128 stages"},
		{"too many normalizers", with("normalizer", `{"type": "Sequence", "normalizers": [`+many(200, `{"type": "NFC"}`)+`]}`), "normalizer has more than 128 stages"},
		{"normalizers of normalizers", with("normalizer", `{"type": "Sequence", "normalizers": [`+many(20, `{"type": "Sequence", "normalizers": [`+many(20, `{"type": "NFC"}`)+`]}`)+`]}`), "normalizer has more than 128 stages"},
		{"too many pre-tokenizers", with("pre_tokenizer", `{"type": "Sequence", "pretokenizers": [`+many(200, `{"type": "WhitespaceSplit"}`)+`]}`), "pre_tokenizer has more than 128 stages"},
		{"many ids around every text", with("post_processor", template(1000)), "post_processor puts 300 ids around a text"},
		{"templates in a row", with("post_processor", `{"type": "Sequence", "processors": [`+many(1000, template(1))+`]}`), "post_processor puts 300 ids around a text"},
		{"a long token", `{"model": {"type": "BPE", "vocab": {"` + strings.Repeat("a", maxTokenBytes+1) + `": 0}, "merges": []}}`, "is 4097 bytes long"},
		{"a long added token", with("added_tokens", `[{"content": "`+strings.Repeat("a", maxTokenBytes+1)+`"}]`), "added_tokens: "},
		{"an added token that grows", `{"model": ` + smallModel + `, "normalizer": {"type": "Prepend", "prepend": "` + strings.Repeat("p", maxTokenBytes) + `"}, "added_tokens": [{"content": "a", "normalized": true}]}`, "4097 bytes long after the normalizer"},
		{"an added token that grows without end", `{"model": ` + smallModel + `, "normalizer": {"type": "Sequence", "normalizers": [` + many(100, double) + `]}, "added_tokens": [{"content": "a", "normalized": true}]}`, "normalizer.normalizers["},
		{"added tokens by the hundred thousand", with("added_tokens", `[`+many(maxAdded+1, `{"content":"x"}`)+`]`), "added_tokens: 262145 tokens"},
		{"a vocabulary of millions", `{"model": {"type": "Unigram", "vocab": [` + many(maxEntries+1, `0`) + `]}}`, "more than 2097152 entries"},
		{"merges by the million", `{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [` + many(maxEntries+1, `"a"`) + `]}}`, "more than 2097152 entries"},
		{"an expression of repeats", with("pre_tokenizer", `{"type": "Split", "pattern": {"Regex": "(?:(?:ab){1000}){1000}"}, "behavior": "Isolated", "invert": false}`), "pre_tokenizer.pattern.Regex"},
		{"a charsmap", with("normalizer", `{"type": "Precompiled", "precompiled_charsmap": "`+strings.Repeat("A", 1<<20)+`"}`), `normalizer.type is "Precompiled"`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse([]byte(test.file))
			if err == nil || !strings.Contains(err.Error(), test.want) || len(err.Error()) > 1000 {
				t.Errorf("the error is %.300v, want one with %q", err, test.want)
			}
		})
	}
}

// TestLongTextNeedsNoPlace: while others do all the long work that there may be at a time, a text of a hundred thousand tokens is encoded at once.
func TestLongTextNeedsNoPlace(t *testing.T) {
	for {
		b := budget.New(t.Context(), budget.Limits{})
		t.Cleanup(b.End)
		if err := b.Work(budget.Most.Steps / 2); errors.Is(err, budget.ErrBusy) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	text := english()[:400_000]
	for _, name := range []string{"qwen", "llama3", "spm", "unigram"} {
		b := budget.New(t.Context(), budget.Limits{})
		if _, err := goldenTokenizer(t, name).EncodeWithin(b, text, true); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b.End()
	}
}
