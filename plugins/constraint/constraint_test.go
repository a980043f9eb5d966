package constraint

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// words is a vocabulary for a model of 70 tokens: what is in angle brackets is special, <end> ends.
var words = []string{"a", "b", "\n", "\n\n", "<think>", "</think>", "<end>", "", "<tool>", "ab", "open", "close"}

const modelTokens = 70

func newCompiler(t *testing.T) *Compiler {
	t.Helper()
	c := NewCompiler(&plugins.ModelInfo{VocabSize: modelTokens})
	if err := c.SetVocabulary(vocabularyOf(words)); err != nil {
		t.Fatal(err)
	}
	return c
}

func vocabularyOf(words []string) plugins.Vocabulary {
	v := plugins.Vocabulary{Special: make([]bool, len(words))}
	for i, w := range words {
		v.Tokens = append(v.Tokens, []byte(w))
		v.Special[i] = strings.HasPrefix(w, "<")
		if w == "<end>" {
			v.Ends = append(v.Ends, int32(i))
		}
	}
	return v
}

func id(word string) int32 {
	i := slices.Index(words, word)
	if i < 0 {
		panic("no token " + word)
	}
	return int32(i)
}

func ids(words ...string) (out []int32) {
	for _, w := range words {
		out = append(out, id(w))
	}
	return out
}

// literals is the grammar of some texts.
func literals(t *testing.T, texts ...string) []byte {
	t.Helper()
	b := grammar.NewBuilder(grammar.DefaultLimits())
	var all []grammar.Expr
	for _, text := range texts {
		all = append(all, b.Literal(text))
	}
	g, err := b.Grammar(b.Terminal(b.Union(all...)))
	if err != nil {
		t.Fatal(err)
	}
	return g.Encode()
}

// allowed lists the words of a state's mask, and how many tokens without a word it has.
func allowed(t *testing.T, s *State) (out []string, others int, all bool) {
	t.Helper()
	bits := slices.Repeat([]uint64{0x5555}, Words(modelTokens))
	all, err := s.Mask(bits)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 64 * len(bits) {
		switch {
		case bits[i/64]>>(i%64)&1 == 0:
		case i < len(words):
			out = append(out, words[i])
		default:
			others++
		}
	}
	return out, others, all
}

func TestStates(t *testing.T) {
	c := newCompiler(t)
	const unlabelled = modelTokens - 12 // tokens without a word
	free := []string{"a", "b", "\n", "\n\n", "<think>", "</think>", "<tool>", "ab", "open", "close"}
	without := func(list []string, gone ...string) []string {
		return slices.DeleteFunc(slices.Clone(list), func(w string) bool { return slices.Contains(gone, w) })
	}
	think := func(change func(*plugins.ThinkRule)) *plugins.ThinkRule {
		r := &plugins.ThinkRule{Open: ids("<think>"), Close: ids("</think>")}
		change(r)
		return r
	}
	type step struct {
		token  string // accepted before the mask; what it does to the sequence is end
		end    End
		want   []string
		others int
	}
	for name, test := range map[string]struct {
		req   plugins.SampleRequest
		steps []step
	}{
		"nothing":                      {plugins.SampleRequest{Constraint: &plugins.Constraint{}}, []step{{"", GoesOn, words, unlabelled}, {"<end>", GoesOn, words, unlabelled}}},
		"excluded":                     {plugins.SampleRequest{Constraint: &plugins.Constraint{Excluded: ids("b", "<tool>")}}, []step{{"", GoesOn, without(words, "b", "<tool>"), unlabelled}}},
		"a stop token":                 {plugins.SampleRequest{Constraint: &plugins.Constraint{Excluded: ids("b")}, StopTokens: ids("ab", "a")}, []step{{"", GoesOn, without(words, "b"), unlabelled}, {"a", Stopped, nil, 0}}},
		"stop tokens not before two":   {plugins.SampleRequest{Constraint: &plugins.Constraint{}, StopTokens: ids("a"), MinTokens: 2}, []step{{"", GoesOn, without(words, "a"), unlabelled}, {"b", GoesOn, without(words, "a"), unlabelled}, {"b", GoesOn, words, unlabelled}}},
		"a grammar":                    {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "aab")}}, []step{{"", GoesOn, []string{"a"}, 0}, {"a", GoesOn, []string{"a", "ab"}, 0}, {"ab", Complete, nil, 0}}},
		"a grammar that may end":       {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "a", "ab")}}, []step{{"a", GoesOn, []string{"b", "<end>"}, 0}, {"<end>", Stopped, nil, 0}}},
		"and stop tokens":              {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "a", "ab")}, StopTokens: ids("<tool>", "b")}, []step{{"", GoesOn, []string{"a", "ab"}, 0}, {"a", GoesOn, []string{"b", "<end>", "<tool>"}, 0}, {"<tool>", Stopped, nil, 0}}},
		"and excluded tokens":          {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "a", "ab"), Excluded: ids("<end>", "ab")}}, []step{{"", GoesOn, []string{"a"}, 0}, {"a", GoesOn, []string{"b"}, 0}}},
		"the empty text":               {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "")}}, []step{{"", Complete, nil, 0}}},
		"thinking alone":               {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: think(func(*plugins.ThinkRule) {})}}, []step{{"", GoesOn, words, unlabelled}, {"<think>", GoesOn, free, 0}, {"b", GoesOn, free, 0}, {"</think>", GoesOn, words, unlabelled}, {"</think>", GoesOn, words, unlabelled}}},
		"no thinking":                  {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: think(func(*plugins.ThinkRule) {})}}, []step{{"a", GoesOn, words, unlabelled}, {"<think>", GoesOn, words, unlabelled}}},
		"thinking without a tool":      {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: think(func(r *plugins.ThinkRule) { r.Inside, r.Without = true, ids("<tool>") })}}, []step{{"", GoesOn, without(free, "<tool>"), 0}}},
		"a budget":                     {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: think(func(r *plugins.ThinkRule) { r.Inside, r.Budget, r.Forced = true, 2, ids("\n", "</think>", "\n") })}}, []step{{"a", GoesOn, free, 0}, {"a", GoesOn, []string{"\n"}, 0}, {"\n", GoesOn, []string{"</think>"}, 0}, {"</think>", GoesOn, []string{"\n"}, 0}, {"\n", GoesOn, words, unlabelled}}},
		"a budget of nothing":          {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: think(func(r *plugins.ThinkRule) { r.Forced = ids("</think>") })}}, []step{{"", GoesOn, words, unlabelled}, {"<think>", GoesOn, []string{"</think>"}, 0}, {"</think>", GoesOn, words, unlabelled}}},
		"tags of two tokens":           {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: &plugins.ThinkRule{Open: ids("open", "a"), Close: ids("close", "a")}}}, []step{{"open", GoesOn, words, unlabelled}, {"a", GoesOn, free, 0}, {"close", GoesOn, free, 0}, {"close", GoesOn, free, 0}, {"a", GoesOn, words, unlabelled}}},
		"half a tag":                   {plugins.SampleRequest{Constraint: &plugins.Constraint{Think: &plugins.ThinkRule{Open: ids("open", "a"), Close: ids("close", "a")}}}, []step{{"open", GoesOn, words, unlabelled}, {"b", GoesOn, words, unlabelled}, {"open", GoesOn, words, unlabelled}, {"a", GoesOn, words, unlabelled}}},
		"thinking and a grammar":       {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "ab"), Think: think(func(*plugins.ThinkRule) {})}}, []step{{"", GoesOn, []string{"a", "<think>", "ab"}, 0}, {"<think>", GoesOn, free, 0}, {"</think>", GoesOn, []string{"a", "\n", "\n\n", "ab"}, 0}, {"\n\n", GoesOn, []string{"a", "ab"}, 0}, {"ab", Complete, nil, 0}}},
		"a budget, behind it no space": {plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "ab"), Think: think(func(r *plugins.ThinkRule) { r.Inside, r.Budget, r.Forced = true, 1, ids("</think>", "\n\n") })}}, []step{{"<tool>", GoesOn, []string{"</think>"}, 0}, {"</think>", GoesOn, []string{"\n\n"}, 0}, {"\n\n", GoesOn, []string{"a", "ab"}, 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			compiled, err := c.Compile(t.Context(), &test.req)
			if err != nil {
				t.Fatal(err)
			}
			s, end := compiled.Start()
			for i, st := range test.steps {
				if st.token != "" {
					if end, err = s.Accept(id(st.token)); err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
				}
				if end != st.end {
					t.Fatalf("step %d: %q gives end %d, want %d", i, st.token, end, st.end)
				}
				if end != GoesOn {
					continue
				}
				got, others, all := allowed(t, s)
				if again, _, _ := allowed(t, s); !slices.Equal(got, again) {
					t.Errorf("step %d: %q are allowed, asked again %q", i, got, again)
				}
				if whole := len(got)+others == modelTokens; !slices.Equal(got, st.want) || others != st.others || all != whole {
					t.Errorf("step %d: %q are allowed, and %d without a word, all: %v; want %q and %d", i, got, others, all, st.want, st.others)
				}
			}
		})
	}
}

// What cannot be gone on with fails by name, in the middle of a sequence too.
func TestStatesFail(t *testing.T) {
	c := newCompiler(t)
	start := func(c *Compiler, constraint *plugins.Constraint) *State {
		t.Helper()
		compiled, err := c.Compile(t.Context(), &plugins.SampleRequest{Constraint: constraint})
		if err != nil {
			t.Fatal(err)
		}
		s, _ := compiled.Start()
		return s
	}
	wantInvalid := func(what string, err error, field string) {
		t.Helper()
		var e *plugins.Error
		if !errors.As(err, &e) || e.Kind != plugins.KindInvalid || e.Field != field {
			t.Errorf("%s: %v, want an invalid %s", what, err, field)
		}
	}
	bits := make([]uint64, Words(modelTokens))
	s := start(c, &plugins.Constraint{Grammar: literals(t, "aab"), Excluded: ids("b", "ab")})
	for range 2 {
		if _, err := s.Mask(bits); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Accept(id("a")); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Mask(bits)
	wantInvalid("no token left", err, "constraint")
	s = start(c, &plugins.Constraint{Grammar: literals(t, "a")})
	_, err = s.Accept(id("b"))
	wantInvalid("a token that is not allowed", err, "constraint")
	limits := grammar.DefaultLimits()
	limits.MaskSteps = 1
	tokens, err := grammar.NewTokens(grammar.Vocabulary{Tokens: c.vocabulary.from.Tokens, Special: c.vocabulary.from.Special})
	if err != nil {
		t.Fatal(err)
	}
	narrow := newCompiler(t)
	narrow.vocabulary.grammars = grammar.NewCache(tokens, limits, grammar.CacheBytes)
	b := grammar.NewBuilder(grammar.DefaultLimits())
	letters, err := b.Grammar(b.Terminal(b.Repeat(b.Class(grammar.RuneRange{Lo: 'a', Hi: 'b'}), 0, -1)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = start(narrow, &plugins.Constraint{Grammar: letters.Encode()}).Mask(bits)
	wantInvalid("a mask that takes too many steps", err, "constraint")
	for what, constraint := range map[string]*plugins.Constraint{
		"constraint.grammar": {Grammar: []byte("nothing that was encoded")},
		"constraint.think":   {Grammar: literals(t, "ab"), Think: &plugins.ThinkRule{Close: ids("</think>"), Forced: ids("</think>", "b"), Inside: true}},
	} {
		_, err := c.Compile(t.Context(), &plugins.SampleRequest{Constraint: constraint})
		wantInvalid(what, err, what)
	}
	_, err = NewCompiler(&plugins.ModelInfo{VocabSize: modelTokens}).Compile(t.Context(), &plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "a")}})
	wantInvalid("no vocabulary", err, "constraint")
}

// A request that waits for others to be compiled can be given up.
func TestCompilingIsCancelled(t *testing.T) {
	c := newCompiler(t)
	known := &plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "b")}}
	if _, err := c.Compile(t.Context(), known); err != nil {
		t.Fatal(err)
	}
	for range cap(c.turns) {
		c.turns <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.Compile(ctx, &plugins.SampleRequest{Constraint: &plugins.Constraint{Grammar: literals(t, "a")}})
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, plugins.ErrCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that it was cancelled", err)
	}
	// What was compiled before, or needs no grammar, waits for nobody.
	for _, req := range []*plugins.SampleRequest{known, {Constraint: &plugins.Constraint{Excluded: []int32{1}}}} {
		if _, err := c.Compile(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
}
