package tokenizer

import (
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestStreamEqualsDecode(t *testing.T) {
	for _, name := range []string{"qwen", "llama3", "spm", "unigram"} {
		t.Run(name, func(t *testing.T) {
			tok := goldenTokenizer(t, name)
			rng := rand.New(rand.NewPCG(1, 2))
			for range 2000 {
				ids := make([]int32, rng.IntN(12))
				for i := range ids {
					switch rng.IntN(3) {
					case 0: // bytes and short tokens: broken characters
						ids[i] = rng.Int32N(300)
					case 1:
						ids[i] = rng.Int32N(int32(tok.VocabSize()) + 5)
					default:
						ids[i] = rng.Int32() - 1<<30
					}
				}
				skip := rng.IntN(2) == 0
				stream := tok.NewStream(skip)
				var got strings.Builder
				for round := range 2 { // a flushed stream starts anew
					got.Reset()
					for _, id := range ids {
						part := stream.Push(id)
						if !utf8.ValidString(part) {
							t.Fatalf("Push of %v, round %d, gives half a character: %q", ids, round, part)
						}
						got.WriteString(part)
					}
					got.WriteString(stream.Flush())
					if want := tok.Decode(ids, skip); got.String() != want {
						t.Fatalf("%v, round %d: the stream gives %q, Decode %q", ids, round, got.String(), want)
					}
				}
			}
		})
	}
}

// TestStreamIsPrompt checks what a stream holds back: an unfinished character,
// nothing else.
func TestStreamIsPrompt(t *testing.T) {
	tok := goldenTokenizer(t, "qwen")
	ids, err := tok.Encode("Hi 👩‍💻!", false)
	if err != nil {
		t.Fatal(err)
	}
	stream := tok.NewStream(false)
	var so []byte
	for _, id := range ids {
		so = append(so, tok.TokenBytes(id)...)
		whole := len(so) - openTail(so)
		if got, want := stream.Push(id), string(so[:whole]); got != want {
			t.Errorf("Push(%d) gives %q, want %q", id, got, want)
		}
		so = so[whole:]
	}
	if rest := stream.Flush(); rest != "" || len(so) != 0 {
		t.Errorf("Flush gives %q", rest)
	}
}

func TestStreamHoldsByteRuns(t *testing.T) {
	tok := goldenTokenizer(t, "spm")
	id := func(token string) int32 {
		n, ok := tok.ID(token)
		if !ok {
			t.Fatalf("no token %q", token)
		}
		return n
	}
	tests := []struct {
		name   string
		tokens []string
		pushes []string
		rest   string
	}{
		{"one character", []string{"<0xE8>", "<0xAA>", "<0x9E>", "a"}, []string{"", "", "", "語a"}, ""},
		{"a broken byte breaks the run", []string{"<0xC3>", "<0xA9>", "<0xFF>", "a"}, []string{"", "", "", "\uFFFD\uFFFD\uFFFDa"}, ""},
		{"unfinished at the end", []string{"a", "<0xC3>"}, []string{"a", ""}, "\uFFFD"},
		{"the first space goes", []string{"▁", "▁", "a"}, []string{"", " ", "a"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			stream := tok.NewStream(false)
			for i, token := range test.tokens {
				if got := stream.Push(id(token)); got != test.pushes[i] {
					t.Errorf("Push(%q) gives %q, want %q", token, got, test.pushes[i])
				}
			}
			if got := stream.Flush(); got != test.rest {
				t.Errorf("Flush gives %q, want %q", got, test.rest)
			}
		})
	}
}

// TestTokenBytes checks that the bytes of tokens add up to the text.
func TestTokenBytes(t *testing.T) {
	for _, name := range []string{"qwen", "llama3"} {
		tok := goldenTokenizer(t, name)
		for _, c := range goldenCases(t, filepath.Join("testdata", "goldens", name+".cases.json.gz"))[:500] {
			var b []byte
			for _, id := range c.IDs {
				b = append(b, tok.TokenBytes(id)...)
			}
			if string(b) != c.Decoded {
				t.Fatalf("%s: the bytes of %v are %q, want %q", name, c.IDs, b, c.Decoded)
			}
		}
	}
	tok := goldenTokenizer(t, "spm")
	for token, want := range map[string]string{"▁the": " the", "<0xC3>": "\xC3", "<s>": "<s>"} {
		id, ok := tok.ID(token)
		if got := tok.TokenBytes(id); !ok || string(got) != want {
			t.Errorf("TokenBytes of %q is %q, want %q", token, got, want)
		}
	}
	for _, id := range []int32{-1, -1 << 31, 1<<31 - 1, int32(tok.VocabSize())} {
		if got := tok.TokenBytes(id); got != nil {
			t.Errorf("TokenBytes(%d) is %q, want nil", id, got)
		}
	}
}
