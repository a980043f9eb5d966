package engine

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// builtInVocabulary reads the tokens of the built-in model, whose tokenizer writes bytes as characters of its own.
func builtInVocabulary(t testing.TB) plugins.Vocabulary {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(tinyChat, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Model struct {
			Vocab map[string]int32 `json:"vocab"`
		} `json:"model"`
		Added []struct {
			ID      int32  `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	alphabet, next := map[rune]byte{}, rune(256)
	for b := range 256 {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b != 0xad:
			alphabet[rune(b)] = byte(b)
		default:
			alphabet[next] = byte(b)
			next++
		}
	}
	n := len(file.Model.Vocab) + len(file.Added)
	v := plugins.Vocabulary{Tokens: make([][]byte, n), Special: make([]bool, n)}
	for token, id := range file.Model.Vocab {
		for _, c := range token {
			v.Tokens[id] = append(v.Tokens[id], alphabet[c])
		}
	}
	for _, a := range file.Added {
		v.Tokens[a.ID], v.Special[a.ID] = []byte(a.Content), true
		if a.Content == "<|im_end|>" {
			v.Ends = append(v.Ends, a.ID)
		}
	}
	return v
}

// records is the grammar of what a schema with an array of objects asks for, with white space as models write it.
func records(t testing.TB) []byte {
	t.Helper()
	b := grammar.NewBuilder(grammar.DefaultLimits())
	space := b.Terminal(b.Repeat(b.Literal(" "), 0, 1))
	text := b.Terminal(b.JSONString(b.AnyText()))
	digit := b.Class(grammar.RuneRange{Lo: '0', Hi: '9'})
	number := b.Terminal(b.Concat(b.Repeat(b.Literal("-"), 0, 1), b.Union(b.Literal("0"), b.Concat(b.Class(grammar.RuneRange{Lo: '1', Hi: '9'}), b.Repeat(digit, 0, 15)))))
	kind := b.Terminal(b.Union(b.Literal(`"plant"`), b.Literal(`"animal"`), b.Literal(`"stone"`)))
	member := func(key string, value grammar.Symbol) grammar.Symbol {
		return b.Seq(b.Text(`"`+key+`":`), space, value)
	}
	comma := b.Seq(b.Text(","), space)
	record := b.Seq(b.Text("{"), member("id", number), comma, member("kind", kind), comma, member("text", text), b.Text("}"))
	g, err := b.Grammar(b.Seq(b.Text("["), b.List(record, comma, 1, -1), b.Text("]")))
	if err != nil {
		t.Fatal(err)
	}
	return g.Encode()
}

// BenchmarkGrammars decodes 64 streams of the built-in model with and without a grammar in turns, and tells how many times as long a token takes with it, by the clock and by the
// processor's.
func BenchmarkGrammars(b *testing.B) {
	const streams, tokens = 64, 128
	for _, c := range []struct {
		name string
		set  func(*plugins.SampleRequest)
	}{
		{"plain", func(*plugins.SampleRequest) {}},
		{"greedy", func(q *plugins.SampleRequest) { q.Temperature = 0 }},
		{"top-p 0.9", func(q *plugins.SampleRequest) { q.TopP, q.Temperature = 0.9, 0.7 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			e, _ := onTimed(b, tinyChat, `{"threads": 2}`)
			create(b, e, "a", 1, 32)
			if err := e.SetVocabulary(b.Context(), builtInVocabulary(b)); err != nil {
				b.Fatal(err)
			}
			prompt := randomTokens(rand.New(rand.NewPCG(1, 1)), 32)
			encoded := records(b)
			round := func(constraint *plugins.Constraint) (wall, processor time.Duration, n int) {
				counts := make([]int, streams)
				var calls []func()
				for i := range streams {
					q := ask(fmt.Sprint("q", i), "a", prompt, 1, tokens)
					q.Seed, q.Constraint = uint64(i), constraint
					c.set(&q)
					calls = append(calls, func() {
						out, err := collect(b.Context(), e, q)
						if err != nil {
							b.Error(err)
						}
						counts[i] = len(out.sequences[0].Tokens)
					})
				}
				begin := now()
				together(calls...)
				end := now()
				for _, c := range counts {
					n += c
				}
				return end.wall.Sub(begin.wall), end.processor - begin.processor, n
			}
			with := &plugins.Constraint{Grammar: encoded}
			round(nil)
			round(with)
			var wall, processor [2]time.Duration
			var n [2]int
			for b.Loop() {
				for i, constraint := range []*plugins.Constraint{nil, with} {
					w, p, k := round(constraint)
					wall[i] += w
					processor[i] += p
					n[i] += k
				}
			}
			each := func(d [2]time.Duration, i int) float64 { return d[i].Seconds() / float64(n[i]) }
			b.ReportMetric(1/each(wall, 0), "tokens/s-free")
			b.ReportMetric(1/each(wall, 1), "tokens/s-constrained")
			b.ReportMetric(each(wall, 1)/each(wall, 0), "×-time")
			b.ReportMetric(each(processor, 1)/each(processor, 0), "×-processor")
			b.ReportMetric(float64(n[1])/float64(n[0]), "×-tokens")
		})
	}
}
