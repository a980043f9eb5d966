package tokenizer

import (
	"cmp"
	"math"

	"encoding/json"
	"google.golang.org/protobuf/encoding/protowire"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// testdata returns a path in the folder of real models' files, which licences
// keep out of the repository.
func testdata(t testing.TB, elements ...string) string {
	t.Helper()
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set: real models' tokenizers are not in the repository")
	}
	return filepath.Join(append([]string{root}, elements...)...)
}

func mustRead(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func mustLoad(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// checkGGML compares with the .inp and .out pairs that llama.cpp tests with.
func checkGGML(t *testing.T, tok *Tokenizer, name string) {
	t.Helper()
	path := testdata(t, "tokenizers", "ggml-vocab", "ggml-vocab-"+name+".gguf")
	texts := strings.Split(string(mustRead(t, path+".inp")), "\n__ggml_vocab_test__\n")
	lines := strings.Split(string(mustRead(t, path+".out")), "\n")
	if len(texts) < 40 || len(lines) < len(texts) {
		t.Fatalf("%d texts and %d lines of ids", len(texts), len(lines))
	}
	for i, text := range texts {
		var want []int32
		for _, field := range strings.Fields(lines[i]) {
			id, err := strconv.ParseInt(field, 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, int32(id))
		}
		got, err := tok.Encode(text, false)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q\n got %v\nwant %v", text, got, want)
		}
		if back := tok.Decode(got, false); back != text {
			t.Errorf("decoding gives %q, not %q", back, text)
		}
	}
}

func TestQwen3(t *testing.T) {
	tok := mustLoad(t, testdata(t, "tokenizers", "qwen3"))
	checkGGML(t, tok, "qwen2")
	var reference struct {
		Cases []struct {
			Name     string  `json:"name"`
			Text     string  `json:"text"`
			TokenIDs []int32 `json:"token_ids"`
			Decoded  string  `json:"decoded"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(mustRead(t, testdata(t, "tokenizers", "qwen3", "tokenizer-reference-v1.json")), &reference); err != nil {
		t.Fatal(err)
	}
	if len(reference.Cases) == 0 {
		t.Fatal("the reference has no cases")
	}
	for _, c := range reference.Cases {
		got, err := tok.Encode(c.Text, false)
		if err != nil || !slices.Equal(got, c.TokenIDs) {
			t.Errorf("%s: got %v, %v, want %v", c.Name, got, err, c.TokenIDs)
		}
		if text := tok.Decode(got, false); text != c.Decoded {
			t.Errorf("%s: decoding gives %q, want %q", c.Name, text, c.Decoded)
		}
	}
	if id, ok := tok.EOS(); !ok || id != 151643 {
		t.Errorf("EOS is %d, %v, want 151643", id, ok)
	}
	if id, ok := tok.PAD(); !ok || id != 151643 {
		t.Errorf("PAD is %d, %v, want 151643", id, ok)
	}
	if id, ok := tok.BOS(); ok {
		t.Errorf("BOS is %d, want none", id)
	}
	if !strings.Contains(tok.ChatTemplate(), "<|im_start|>") {
		t.Error("the chat template is missing")
	}
	if got, want := tok.VocabSize(), 151669; got != want {
		t.Errorf("VocabSize is %d, want %d", got, want)
	}
}

func TestGPT2(t *testing.T) {
	checkGGML(t, mustLoad(t, testdata(t, "tokenizers", "gpt2")), "gpt-2")
}

// TestLlama3 puts the tokenizer.json together that Meta's vocabulary would have:
// the original is too large for the test data.
func TestLlama3(t *testing.T) {
	var vocab map[string]int
	if err := json.Unmarshal(mustRead(t, testdata(t, "tokenizers", "llama3", "llama3.2-encoder.json")), &vocab); err != nil {
		t.Fatal(err)
	}
	merges, err := parseMerges(mustRead(t, testdata(t, "tokenizers", "llama3", "llama3.2-vocab.bpe")))
	if err != nil {
		t.Fatal(err)
	}
	for token, id := range vocab {
		if id >= 128000 {
			delete(vocab, token)
		}
	}
	file, err := json.Marshal(map[string]any{
		"model": map[string]any{"type": "BPE", "ignore_merges": true, "vocab": vocab, "merges": merges},
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": []any{
			map[string]any{"type": "Split", "pattern": map[string]any{"Regex": patternLlama3}, "behavior": "Isolated", "invert": false},
			map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
		}},
		"decoder": map[string]any{"type": "ByteLevel"},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", string(file))
	write(t, dir, "tokenizer_config.json", string(mustRead(t, testdata(t, "tokenizers", "llama3", "tokenizer_config.llama3-8b.json"))))
	tok := mustLoad(t, dir)
	checkGGML(t, tok, "llama-bpe")
	for text, want := range map[string][]int32{
		"hello world":                 {15339, 1917},
		"hello <|end_of_text|>":       {15339, 220, 128001},
		"000000":                      {931, 931},
		"<|begin_of_text|><|eot_id|>": {128000, 128009},
	} {
		if got, err := tok.Encode(text, false); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	if id, ok := tok.BOS(); !ok || id != 128000 {
		t.Errorf("BOS is %d, %v, want 128000", id, ok)
	}
}

func TestTinyStories(t *testing.T) {
	tok := mustLoad(t, testdata(t, "models", "tinystories-656k"))
	text := "Once upon a time"
	want := []int32{1, 80, 147, 201, 282, 57}
	got, err := tok.Encode(text, true)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v, want %v", got, err, want)
	}
	if back := tok.Decode(got[1:], true); back != text {
		t.Errorf("decoding gives %q, want %q", back, text)
	}
}

func write(t testing.TB, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestLlama2 converts Meta's SentencePiece model as transformers does: each way
// to make a piece of two others is a merge, ranked by the score of the piece.
func TestLlama2(t *testing.T) {
	vocab := map[string]int{}
	type piece struct {
		text  string
		score float32
	}
	var pieces []piece
	for rest := mustRead(t, testdata(t, "tokenizers", "llama2", "tokenizer.model")); len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		rest = rest[n:]
		if number != 1 || kind != protowire.BytesType {
			rest = rest[protowire.ConsumeFieldValue(number, kind, rest):]
			continue
		}
		message, n := protowire.ConsumeBytes(rest)
		rest = rest[n:]
		var p piece
		for len(message) > 0 {
			number, kind, n := protowire.ConsumeTag(message)
			message = message[n:]
			switch number {
			case 1:
				b, _ := protowire.ConsumeBytes(message)
				p.text = string(b)
			case 2:
				bits, _ := protowire.ConsumeFixed32(message)
				p.score = math.Float32frombits(bits)
			}
			message = message[protowire.ConsumeFieldValue(number, kind, message):]
		}
		vocab[p.text] = len(pieces)
		pieces = append(pieces, p)
	}
	byScore := slices.Clone(pieces)
	slices.SortStableFunc(byScore, func(a, b piece) int { return cmp.Compare(b.score, a.score) })
	var merges [][2]string
	for _, p := range byScore {
		for i := range p.text {
			_, left := vocab[p.text[:i]]
			_, right := vocab[p.text[i:]]
			if left && right {
				merges = append(merges, [2]string{p.text[:i], p.text[i:]})
			}
		}
	}
	type object = map[string]any
	file, err := json.Marshal(object{
		"added_tokens": []addedToken{{Content: "<unk>", Special: true}, {Content: "<s>", Special: true}, {Content: "</s>", Special: true}},
		"normalizer": object{"type": "Sequence", "normalizers": []any{
			object{"type": "Prepend", "prepend": "▁"},
			object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"},
		}},
		"model": object{"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": merges},
		"decoder": object{"type": "Sequence", "decoders": []any{
			object{"type": "Replace", "pattern": object{"String": "▁"}, "content": " "},
			object{"type": "ByteFallback"}, object{"type": "Fuse"},
			object{"type": "Strip", "content": " ", "start": 1, "stop": 0},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, dir, "tokenizer.json", string(file))
	write(t, dir, "tokenizer_config.json", `{"tokenizer_class": "LlamaTokenizer", "add_bos_token": true, "bos_token": "<s>", "eos_token": "</s>"}`)
	tok := mustLoad(t, dir)
	checkGGML(t, tok, "llama-spm")
	for text, want := range map[string][]int32{
		"":                                 {1},
		"I believe the meaning of life is": {1, 306, 4658, 278, 6593, 310, 2834, 338},
		"Simply put, the theory of relativity states that ": {1, 3439, 17632, 1925, 29892, 278, 6368, 310, 14215, 537, 5922, 393, 29871},
	} {
		if got, err := tok.Encode(text, true); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}
