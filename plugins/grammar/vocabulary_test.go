package grammar

import (
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// qwen reads Qwen3's vocabulary of 151,936 tokens from TINSMITH_TESTDATA; what is not there is skipped.
var qwen = sync.OnceValues(func() (*TokenIndex, [][]byte) {
	dir := os.Getenv("TINSMITH_TESTDATA")
	if dir == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(filepath.Join(dir, "tokenizers", "qwen3", "vocab.json"))
	if err != nil {
		return nil, nil
	}
	var vocab map[string]int32
	if err := json.Unmarshal(raw, &vocab); err != nil {
		panic(err)
	}
	tokens := make([][]byte, 151_936)
	alphabet := byteAlphabet()
	for text, id := range vocab {
		for _, r := range text {
			tokens[id] = append(tokens[id], alphabet[r])
		}
	}
	special := make([]bool, len(tokens))
	for i, text := range []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"} {
		tokens[151_643+i], special[151_643+i] = []byte(text), true
	}
	for i, text := range []string{"<tool_call>", "</tool_call>"} {
		tokens[151_657+i], special[151_657+i] = []byte(text), true
	}
	x, err := NewTokens(Vocabulary{Tokens: tokens, Special: special, Ends: []int32{151_645, 151_643}})
	if err != nil {
		panic(err)
	}
	return x, tokens
})

// byteAlphabet maps the characters of byte-level vocabularies to bytes.
func byteAlphabet() map[rune]byte {
	out := make(map[rune]byte)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			out[rune(b)] = byte(b)
			continue
		}
		out[next] = byte(b)
		next++
	}
	return out
}

func qwenTokens(t testing.TB) (*TokenIndex, [][]byte) {
	t.Helper()
	x, tokens := qwen()
	if x == nil {
		t.Skip("TINSMITH_TESTDATA is not set, or has no tokenizers/qwen3/vocab.json")
	}
	return x, tokens
}

// longestFirst spells a text in tokens, each the longest that fits.
func longestFirst(tokens map[string]int32, longest int, text string) []int32 {
	var out []int32
	for len(text) > 0 {
		for n := min(longest, len(text)); ; n-- {
			if id, ok := tokens[text[:n]]; ok {
				out = append(out, id)
				text = text[n:]
				break
			}
		}
	}
	return out
}
