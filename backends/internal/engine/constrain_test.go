package engine

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// printable is the characters that the first tokens of testVocabulary are.
const printable = ' '

// testVocabulary gives tokens a meaning: the printable characters, the last one an end token, all others made of letters.
func testVocabulary(size int) plugins.Vocabulary {
	v := plugins.Vocabulary{Special: make([]bool, size), Ends: []int32{int32(size - 1)}}
	for i := range size {
		if c := printable + i; c < 0x7f && i < size-1 {
			v.Tokens = append(v.Tokens, []byte{byte(c)})
		} else {
			v.Tokens = append(v.Tokens, fmt.Appendf(nil, "%c%c", 'a'+i%26, 'a'+i/26%26))
		}
	}
	v.Special[size-1] = true
	return v
}

// tokenOf is the token of a printable character.
func tokenOf(c byte) int32 { return int32(c) - printable }

func setVocabulary(t testing.TB, e *Engine) {
	t.Helper()
	if err := e.SetVocabulary(t.Context(), testVocabulary(e.loaded.vocabulary)); err != nil {
		t.Fatal(err)
	}
}

// pairs is the grammar of a list of numbers and strings: what is wide in places, as a string is, and narrow in others.
func pairs(t testing.TB) []byte {
	t.Helper()
	b := grammar.NewBuilder(grammar.DefaultLimits())
	word := b.Terminal(b.JSONString(b.Repeat(b.Class(grammar.RuneRange{Lo: ' ', Hi: '~'}), 0, 6)))
	number := b.Terminal(b.Repeat(b.Class(grammar.RuneRange{Lo: '0', Hi: '9'}), 1, 2))
	g, err := b.Grammar(b.Seq(b.Text("["), b.List(b.Choice(word, number), b.Text(","), 0, -1), b.Text("]")))
	if err != nil {
		t.Fatal(err)
	}
	return g.Encode()
}

var pairsBegin = regexp.MustCompile(`^(\[(("([^"\\]|\\.)*"|[0-9]{1,2}),)*("([^"\\]|\\.?)*"?|[0-9]{0,2})\]?)?$`)

// textOf is what tokens of testVocabulary stand for.
func textOf(v *plugins.Vocabulary, tokens []int32) (out string) {
	for _, t := range tokens {
		if !slices.Contains(v.Ends, t) {
			out += string(v.Tokens[t])
		}
	}
	return out
}

// constrainedCases are requests that have a constraint, one way or another.
func constrainedCases(t testing.TB) []struct {
	name string
	set  func(*plugins.SampleRequest)
} {
	g := pairs(t)
	return []struct {
		name string
		set  func(*plugins.SampleRequest)
	}{
		{"a grammar", func(q *plugins.SampleRequest) { q.Constraint = &plugins.Constraint{Grammar: g} }},
		{"a grammar, greedy", func(q *plugins.SampleRequest) {
			q.Temperature, q.Constraint, q.TopKSampledLogprobs = 0, &plugins.Constraint{Grammar: g}, 3
		}},
		{"a grammar, with filters", func(q *plugins.SampleRequest) {
			q.Temperature, q.TopK, q.TopP, q.MinP, q.Constraint = 1.7, 9, 0.9, 0.02, &plugins.Constraint{Grammar: g, Excluded: []int32{tokenOf('7')}}
		}},
		{"a grammar, penalties and top-p", func(q *plugins.SampleRequest) {
			q.TopP, q.FrequencyPenalty, q.RepetitionPenalty, q.Constraint, q.TopKSampledLogprobs = 0.6, 0.5, 1.2, &plugins.Constraint{Grammar: g}, 2
		}},
		{"tokens that are excluded", func(q *plugins.SampleRequest) {
			q.StopTokens, q.MinTokens, q.Constraint = []int32{4}, 3, &plugins.Constraint{Excluded: []int32{1, 2, 3, 70}}
		}},
		{"nothing that is excluded", func(q *plugins.SampleRequest) { q.Constraint = &plugins.Constraint{} }},
		{"thinking and a grammar", func(q *plugins.SampleRequest) {
			q.Constraint = &plugins.Constraint{Grammar: g, Think: &plugins.ThinkRule{Close: []int32{tokenOf('!')}, Forced: []int32{tokenOf('?'), tokenOf('!')}, Budget: 2, Inside: true}}
		}},
	}
}

// While masks are computed the sequence is where it was: one that gives up its place and its pages, and is computed again, goes on under its constraint with the same bits.
func TestConstraintsSurviveParking(t *testing.T) {
	random := rand.New(rand.NewPCG(8, 8))
	prompt := randomTokens(random, 9)
	ample := place(t, placement{plugin: "single", section: `{"threads": 2}`})
	scarce := place(t, placement{plugin: "single", section: `{"threads": 2, "kv_cache_tokens": 192, "max_context_length": 192, "max_batch": 6}`})
	setVocabulary(t, ample)
	setVocabulary(t, scarce)
	v := testVocabulary(ample.loaded.vocabulary)
	cases := constrainedCases(t)
	requests := make([]plugins.SampleRequest, len(cases))
	for i, c := range cases {
		requests[i] = ask(c.name, "", prompt, 2, 80)
		requests[i].Version, requests[i].Seed = 0, uint64(i)
		requests[i].Share.Key = fmt.Sprint("key ", i%3)
		c.set(&requests[i])
	}
	got := make([]sampled, len(cases))
	var calls []func()
	for i, q := range requests {
		calls = append(calls, func() {
			var err error
			if got[i], err = collect(t.Context(), scarce, q); err != nil {
				t.Errorf("%s: %v", q.ID, err)
			}
		})
	}
	together(calls...)
	if n := scarce.counters.prefillTokens.Load(); n <= int64(len(cases)*(len(prompt)+1)) { // the second sequence of a request copies the first one's page
		t.Errorf("%d tokens of prompts were computed: no sequence has been computed again", n)
	}
	for i, q := range requests {
		want, err := collect(t.Context(), ample, q)
		if err != nil {
			t.Fatalf("%s: %v", q.ID, err)
		}
		for j := range want.sequences {
			g, w := got[i].sequences[j], want.sequences[j]
			if !slices.Equal(g.Tokens, w.Tokens) || got[i].reasons[j] != want.reasons[j] {
				t.Errorf("%s: %v, with more memory %v", q.ID, g.Tokens, w.Tokens)
			}
			equalBits(t, q.ID, g.Logprobs, w.Logprobs)
			equalBits(t, q.ID+", of what was left", g.ConstraintLogprobs, w.ConstraintLogprobs)
			if len(w.ConstraintLogprobs) != len(w.Tokens) {
				t.Errorf("%s: %d log-probabilities of what was left of %d tokens", q.ID, len(w.ConstraintLogprobs), len(w.Tokens))
			}
			if q.Constraint.Grammar != nil && q.Constraint.Think == nil && !pairsBegin.MatchString(textOf(&v, w.Tokens)) {
				t.Errorf("%s: %q is no beginning of a list", q.ID, textOf(&v, w.Tokens))
			}
		}
	}
}

// A grammar that meets a limit in the middle of an answer ends its own request, with the reason, and no other: the same requests beside it have the bits that they have without it.
func TestGrammarTooLargeInTheMiddle(t *testing.T) {
	e := place(t, placement{plugin: "single", section: `{"threads": 2}`})
	setVocabulary(t, e)
	limits := grammar.DefaultLimits()
	b := grammar.NewBuilder(limits)
	one := b.Optional(b.Text("a"))
	edges := make([]grammar.Edge, limits.Items+1) // where they begin, the parser may be at each of their ends
	for i := range edges {
		edges[i] = grammar.Edge{From: i, To: i + 1, Symbol: one}
	}
	g, err := b.Grammar(b.Seq(b.Text("abcd"), b.Network(len(edges)+1, 0, []int{len(edges)}, edges)))
	if err != nil {
		t.Fatal(err)
	}
	prompt := randomTokens(rand.New(rand.NewPCG(3, 3)), 7)
	broken := ask("broken", "", prompt, 2, 40)
	broken.Version, broken.Constraint = 0, &plugins.Constraint{Grammar: g.Encode()}
	cases := constrainedCases(t)
	requests := make([]plugins.SampleRequest, len(cases))
	alone, beside := make([]sampled, len(cases)), make([]sampled, len(cases))
	for i, c := range cases {
		requests[i] = ask(c.name, "", prompt, 1, 40)
		requests[i].Version, requests[i].Seed = 0, uint64(i)
		c.set(&requests[i])
		if alone[i], err = collect(t.Context(), e, requests[i]); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
	}
	var failure error

	calls := []func(){func() { _, failure = collect(t.Context(), e, broken) }}
	for i, q := range requests {
		calls = append(calls, func() {
			var err error
			if beside[i], err = collect(t.Context(), e, q); err != nil {
				t.Errorf("%s: %v", q.ID, err)
			}
		})
	}
	together(calls...)
	if failure == nil || !strings.Contains(failure.Error(), "grammar too large: items of the parser at one place") {
		t.Errorf("the request with too large a grammar: %v, want the limit that it met", failure)
	}
	for i, q := range requests {
		g, w := beside[i].sequences[0], alone[i].sequences[0]
		if !slices.Equal(g.Tokens, w.Tokens) {
			t.Errorf("%s: %v, alone %v", q.ID, g.Tokens, w.Tokens)
		}
		equalBits(t, q.ID, g.Logprobs, w.Logprobs)
		equalBits(t, q.ID+", of what was left", g.ConstraintLogprobs, w.ConstraintLogprobs)
	}
	if again, err := collect(t.Context(), e, requests[0]); err != nil || !slices.Equal(again.sequences[0].Tokens, alone[0].sequences[0].Tokens) {
		t.Errorf("after it: %v, %v", again.sequences, err)
	}
}
