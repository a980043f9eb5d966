package schema

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// qwenVocabulary is that of Qwen3, which is not in the repository.
func qwenVocabulary(t testing.TB) (*grammar.TokenIndex, [][]byte) {
	t.Helper()
	corpus(t, "maskbench")
	raw, err := os.ReadFile(filepath.Join(os.Getenv("TINSMITH_TESTDATA"), "tokenizers", "qwen3", "vocab.json"))
	if err != nil {
		t.Skip("there is no tokenizers/qwen3/vocab.json")
	}
	var vocabulary map[string]int32
	if err := json.Unmarshal(raw, &vocabulary); err != nil {
		t.Fatal(err)
	}
	alphabet := map[rune]byte{}
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			alphabet[rune(b)] = byte(b)
		} else {
			alphabet[next] = byte(b)
			next++
		}
	}
	tokens := make([][]byte, 151_936)
	for text, id := range vocabulary {
		for _, r := range text {
			tokens[id] = append(tokens[id], alphabet[r])
		}
	}
	index, err := grammar.NewTokens(grammar.Vocabulary{Tokens: tokens, Ends: []int32{151_645}})
	if err != nil {
		t.Fatal(err)
	}
	return index, tokens
}

// TestFirstMask logs how long it takes from the text of a real schema to the first mask, and the masks along its valid instances.
func TestFirstMask(t *testing.T) {
	index, tokens := qwenVocabulary(t)
	ids := make(map[string]int32, len(tokens))
	longest := 0
	for id, text := range tokens {
		ids[string(text)] = int32(id)
		longest = max(longest, len(text))
	}
	var first, masks []time.Duration
	files, err := filepath.Glob(corpus(t, "maskbench") + "/*.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	mask := make([]uint64, index.Words())
	for _, file := range files {
		lines(t, file, func(line []byte) {
			var c struct {
				ID     string
				Schema json.RawMessage
				Tests  []instance
			}
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			if only := os.Getenv("ONLY"); only != "" && !strings.Contains(c.ID, only) {
				return
			}
			start := time.Now()
			compiled, err := Compile(context.Background(), c.Schema, Options{})
			if err != nil {
				return
			}
			engine, err := grammar.Compile(context.Background(), compiled.Grammar, index, grammar.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			m := engine.NewMatcher()
			if err := m.Mask(mask); err != nil {
				t.Errorf("%s: %v", c.ID, err)
			}
			took := time.Since(start)
			first = append(first, took)
			if took > 100*time.Millisecond {
				t.Logf("%s: first mask after %v", c.ID, took)
			}
			for _, test := range c.Tests {
				if !test.Valid {
					continue
				}
				m := engine.NewMatcher()
				text := writings(t, compiled.document, test.Data)[0]
				for len(text) > 0 {
					start := time.Now()
					if err := m.Mask(mask); err != nil {
						t.Errorf("%s: %v", c.ID, err)
						break
					}
					took := time.Since(start)
					masks = append(masks, took)
					if took > 20*time.Millisecond {
						t.Logf("%s: a mask after %v at %.40q", c.ID, took, text)
					}
					n := min(longest, len(text))
					for ; ; n-- {
						if id, ok := ids[text[:n]]; ok {
							if mask[id/64]>>(id%64)&1 == 0 {
								t.Errorf("%s: %q is not allowed before %.60q", c.ID, text[:n], text[n:])
								n = 0
							} else if err := m.Accept(id); err != nil {
								t.Errorf("%s: %v", c.ID, err)
								n = 0
							}
							break
						}
					}
					if n == 0 {
						break
					}
					text = text[n:]
				}
			}
		})
	}
	for name, times := range map[string][]time.Duration{"first mask": first, "masks": masks} {
		if len(times) == 0 {
			continue
		}
		slices.Sort(times)
		var sum time.Duration
		for _, d := range times {
			sum += d
		}
		t.Logf("%s: %d, mean %v, p50 %v, p95 %v, p99 %v, max %v", name, len(times), sum/time.Duration(len(times)), times[len(times)/2],
			times[len(times)*95/100], times[len(times)*99/100], times[len(times)-1])
	}
}
