package inference

import (
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tokenizer"
	"github.com/tinsmith/tinsmith/plugins"
)

func tinyTokenizer(t testing.TB) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load("../../../configs/models/tiny-chat")
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encoded(t testing.TB, tok *tokenizer.Tokenizer, text string) []int32 {
	t.Helper()
	ids, err := tok.Encode(text, false)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// assemble pushes tokens in groups of a size and gives the pieces.
func assemble(g *Generation, tok *tokenizer.Tokenizer, ids []int32, size int) []piece {
	a := g.newAssembler(tok)
	var pieces []piece
	for from := 0; from < len(ids); from += size {
		part := ids[from:min(len(ids), from+size)]
		pieces = append(pieces, a.push(&plugins.SampledTokens{Tokens: part, Logprobs: make([]float32, len(part))}))
	}
	return append(pieces, a.finish())
}

func joined(pieces []piece) (text string, tokens []Token) {
	for _, p := range pieces {
		text += p.text
		tokens = append(tokens, p.tokens...)
	}
	return text, tokens
}

func TestAssembler(t *testing.T) {
	tok := tinyTokenizer(t)
	end, ok := tok.ID("<|im_end|>")
	if !ok {
		t.Fatal("no <|im_end|>")
	}
	think, _ := tok.ID("<think>")
	for _, c := range []struct {
		name  string
		g     Generation
		stops []string
		text  string // tokenized
		extra []int32
		want  string
		all   bool // every token is listed
	}{
		{name: "plain", text: "one two three", want: "one two three", all: true},
		{name: "stop string across tokens", text: "one two three", stops: []string{"wo th"}, want: "one t"},
		{name: "stop string included", g: Generation{includeStop: true}, text: "one two three", stops: []string{"wo th"}, want: "one two th"},
		{name: "stop at the very first token", text: "one two", stops: []string{"o"}, want: ""},
		{name: "the earliest of several stop strings", text: "one two three", stops: []string{"three", "two", "e two"}, want: "on"},
		{name: "stop string that almost comes", text: "aaaab aaaac", stops: []string{"aaaad"}, want: "aaaab aaaac", all: true},
		{name: "stop string that is one character of several bytes", text: "né né", stops: []string{"é"}, want: "n"},
		{name: "special token as stop string", text: "one<|im_end|>two", stops: []string{"<|im_end|>"}, g: Generation{skipSpecial: true}, want: "one"},
		{name: "stop string over a special token", text: "one<|im_end|>two", stops: []string{"|>tw"}, g: Generation{skipSpecial: true}, want: "one"},
		{name: "special tokens skipped", text: "one<|im_end|>two", g: Generation{skipSpecial: true}, want: "onetwo", all: true},
		{name: "special tokens shown", text: "one<|im_end|>two", want: "one<|im_end|>two", all: true},
		{name: "end token", text: "one", extra: []int32{end}, g: Generation{ends: map[int32]bool{end: true}}, want: "one"},
		{name: "end token listed", text: "one", extra: []int32{end}, g: Generation{ends: map[int32]bool{end: true}, KeepEnds: true}, want: "one", all: true},
		{name: "end token that is text, included", text: "one", extra: []int32{think}, g: Generation{ends: map[int32]bool{think: true}, includeStop: true}, want: "one<think>", all: true},
	} {
		ids := append(encoded(t, tok, c.text), c.extra...)
		c.g.Generation = runs.Generation{Stops: runs.Stops{Strings: c.stops}}
		for size := 1; size <= len(ids); size++ {
			t.Run(c.name, func(t *testing.T) {
				text, tokens := joined(assemble(&c.g, tok, ids, size))
				if text != c.want {
					t.Errorf("in groups of %d: %q, want %q", size, text, c.want)
				}
				if c.all && len(tokens) != len(ids) {
					t.Errorf("%d tokens of %d", len(tokens), len(ids))
				}
				// No listed token begins behind the text.
				for _, one := range tokens {
					if one.Offset > utf8.RuneCountInString(text) {
						t.Errorf("token %d begins at %d of %q", one.ID, one.Offset, text)
					}
				}
			})
		}
	}
}

// TestAssemblerRandom compares the assembler with the whole text cut by the definition, for random tokens, half characters and specials among them, in random groups.
func TestAssemblerRandom(t *testing.T) {
	tok := tinyTokenizer(t)
	random := rand.New(rand.NewPCG(1, 2))
	bytesOf := encoded(t, tok, "𝄞é€…")
	for round := range 400 {
		var ids []int32
		for range 1 + random.IntN(20) {
			if random.IntN(3) == 0 {
				ids = append(ids, bytesOf[random.IntN(len(bytesOf))])
			} else {
				ids = append(ids, int32(random.IntN(tok.VocabSize())))
			}
		}
		whole := tok.Decode(ids, false)
		var stops []string
		for range random.IntN(3) {
			runes := []rune(whole)
			from := random.IntN(len(runes))
			stops = append(stops, string(runes[from:from+1+random.IntN(len(runes)-from)]))
		}
		g := &Generation{includeStop: random.IntN(2) == 0}
		g.Stops.Strings = stops
		// The definition: after each token, the first stop string in the text so far cuts it.
		want, stopped := whole, false
		plain, text := tok.NewStream(false), ""
		for i := 0; i <= len(ids) && !stopped; i++ {
			if i < len(ids) {
				text += plain.Push(ids[i])
			} else {
				text += plain.Flush()
			}
			first, end := -1, 0
			for _, s := range stops {
				if at := strings.Index(text, s); at >= 0 && (first < 0 || at < first) {
					first, end = at, at
					if g.includeStop {
						end += len(s)
					}
				}
			}
			if first >= 0 {
				want, stopped = text[:end], true
			}
		}
		pieces := assemble(g, tok, ids, 1+random.IntN(4))
		got, tokens := joined(pieces)
		if got != want {
			t.Fatalf("round %d: %q with stops %q: got %q, want %q", round, whole, stops, got, want)
		}
		if !stopped && len(tokens) != len(ids) {
			t.Fatalf("round %d: %d tokens of %d", round, len(tokens), len(ids))
		}
		for i, one := range tokens {
			if one.ID != ids[i] {
				t.Fatalf("round %d: token %d is %d, want %d", round, i, one.ID, ids[i])
			}
			if before := tokens[max(0, i-1)].Offset; one.Offset < before || one.Offset > utf8.RuneCountInString(got) {
				t.Fatalf("round %d: offsets %d, %d of %q", round, before, one.Offset, got)
			}
		}
		for _, p := range pieces {
			if !utf8.ValidString(p.text) {
				t.Fatalf("round %d: half a character in %q", round, p.text)
			}
		}
	}
}

// TestAssemblerAfterPrompt: a character that began in the prompt is finished in the text.
func TestAssemblerAfterPrompt(t *testing.T) {
	tok := tinyTokenizer(t)
	ids := encoded(t, tok, "x𝄞y")
	for cut := range ids {
		g := &Generation{AfterPrompt: true}
		g.Request.Prompt = ids[:cut]
		got, _ := joined(assemble(g, tok, ids[cut:], 1))
		stream, before := tok.NewStream(false), ""
		for _, id := range ids[:cut] {
			before += stream.Push(id)
		}
		if want := strings.TrimPrefix("x𝄞y", before); got != want {
			t.Errorf("after %q: %q, want %q", before, got, want)
		}
	}
}
