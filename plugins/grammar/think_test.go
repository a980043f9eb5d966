package grammar

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// wordTokens is a vocabulary of words; those in angle brackets are special, <end> ends.
func wordTokens(t testing.TB, words ...string) (*TokenIndex, func(...string) []int32) {
	t.Helper()
	v := Vocabulary{}
	ids := map[string]int32{}
	for i, w := range words {
		ids[w] = int32(i)
		v.Tokens = append(v.Tokens, []byte(w))
		v.Special = append(v.Special, strings.HasPrefix(w, "<"))
		if w == "<end>" {
			v.Ends = append(v.Ends, int32(i))
		}
	}
	x, err := NewTokens(v)
	if err != nil {
		t.Fatal(err)
	}
	return x, func(words ...string) []int32 {
		var out []int32
		for _, w := range words {
			id, ok := ids[w]
			if !ok {
				t.Fatalf("no token %q", w)
			}
			out = append(out, id)
		}
		return out
	}
}

// allowed lists the words of a mask.
func allowed(t testing.TB, mask func([]uint64) error, x *TokenIndex, words []string) []string {
	t.Helper()
	bits := make([]uint64, x.Words())
	if err := mask(bits); err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, w := range words {
		if bits[i/64]>>(i%64)&1 != 0 {
			out = append(out, w)
		}
	}
	return out
}

func TestThinker(t *testing.T) {
	words := []string{"<end>", "<think>", "</think>", "<tool>", "a", "b", "\n", "\n\n", "\n\na", "c", "open", "close"}
	x, ids := wordTokens(t, words...)
	b := NewBuilder(DefaultLimits())
	c := mustCompile(t, mustGrammar(t, b, b.Terminal(b.Union(b.Literal("ab"), b.Literal("b")))), x)
	free := []string{"<think>", "</think>", "<tool>", "a", "b", "\n", "\n\n", "\n\na", "c", "open", "close"}
	without := slices.DeleteFunc(slices.Clone(free), func(w string) bool { return w == "<tool>" })
	open, shut := ids("<think>"), ids("</think>")
	type step struct {
		token string // accepted before the mask
		want  []string
	}
	for name, test := range map[string]struct {
		rule  ThinkRule
		steps []step
	}{
		"no reasoning": {ThinkRule{}, []step{
			{"", []string{"a", "b"}},
			{"a", []string{"b"}},
			{"b", []string{"<end>"}},
		}},
		"it may begin": {ThinkRule{Open: open, Close: shut, Budget: -1}, []step{
			{"", []string{"<think>", "a", "b"}},
			{"<think>", free},
			{"c", free},
			{"</think>", []string{"a", "b", "\n", "\n\n", "\n\na"}},
			{"\n", []string{"a", "b", "\n"}},
			{"\n", []string{"a", "b"}},
			{"a", []string{"b"}},
			{"b", []string{"<end>"}},
		}},
		"it does not begin": {ThinkRule{Open: open, Close: shut, Budget: -1}, []step{
			{"", []string{"<think>", "a", "b"}},
			{"a", []string{"b"}},
			{"b", []string{"<end>"}},
		}},
		"inside": {ThinkRule{Close: shut, Budget: -1, Inside: true}, []step{
			{"", free},
			{"</think>", []string{"a", "b", "\n", "\n\n", "\n\na"}},
			{"\n\na", []string{"b"}},
		}},
		"without a tool": {ThinkRule{Close: shut, Budget: -1, Inside: true, Without: ids("<tool>")}, []step{
			{"", without}, {"a", without}}},
		"a budget": {ThinkRule{Close: shut, Forced: ids("\n", "</think>", "\n\n"), Budget: 2, Inside: true}, []step{
			{"", free},
			{"c", free},
			{"c", []string{"\n"}},
			{"\n", []string{"</think>"}},
			{"</think>", []string{"\n\n"}},
			{"\n\n", []string{"a", "b"}},
			{"b", []string{"<end>"}},
		}},
		"a budget that is not used up": {ThinkRule{Close: shut, Forced: ids("\n", "</think>", "\n\n"), Budget: 2, Inside: true}, []step{
			{"", free},
			{"c", free},
			{"</think>", []string{"a", "b", "\n", "\n\n", "\n\na"}},
		}},
		"no budget": {ThinkRule{Open: open, Close: shut, Forced: shut, Budget: 0}, []step{
			{"", []string{"<think>", "a", "b"}},
			{"<think>", []string{"</think>"}},
			{"</think>", []string{"a", "b", "\n", "\n\n", "\n\na"}},
		}},
		"tags of two tokens": {ThinkRule{Open: ids("open", "c"), Close: ids("close", "c"), Budget: -1}, []step{
			{"", []string{"a", "b", "open"}},
			{"open", []string{"c"}},
			{"c", free},
			{"close", free},
			{"close", free},
			{"c", []string{"a", "b", "\n", "\n\n", "\n\na"}},
		}},
		"a beginning of the tag that is text": {ThinkRule{Open: ids("a", "c"), Close: shut, Budget: -1}, []step{
			{"", []string{"a", "b"}},
			{"a", []string{"b", "c"}},
			{"b", []string{"<end>"}},
		}},
	} {
		m, err := c.NewThinker(test.rule)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i, s := range test.steps {
			if s.token != "" {
				if err := m.Accept(ids(s.token)[0]); err != nil {
					t.Fatalf("%s: step %d: %v", name, i, err)
				}
			}
			got := allowed(t, m.Mask, x, words)
			if !slices.Equal(got, s.want) {
				t.Errorf("%s: step %d: %q are allowed, want %q", name, i, got, s.want)
			}
			for k, w := range words {
				if !slices.Contains(got, w) && w != "<end>" {
					if err := m.Accept(int32(k)); !errors.Is(err, ErrNotAllowed) {
						t.Errorf("%s: step %d: Accept(%q) = %v", name, i, w, err)
					}
				}
			}
			if end := slices.Contains(s.want, "<end>"); m.MayEnd() != end || m.Finished() != end {
				t.Errorf("%s: step %d: MayEnd %v, Finished %v", name, i, m.MayEnd(), m.Finished())
			}
		}
	}
	for name, test := range map[string]struct {
		rule ThinkRule
		want string
	}{
		"a token that is none": {ThinkRule{Open: []int32{99}, Close: shut}, "think rule: open: token 99: allowed is 0 to 11"},
		"no close":             {ThinkRule{Inside: true}, "think rule: close is empty: allowed is at least one token"},
		"forced without close": {ThinkRule{Inside: true, Close: shut, Forced: ids("a")},
			"think rule: forced: 1 tokens without the close tag: allowed is what ends reasoning"},
		"forced with a wrong text": {ThinkRule{Inside: true, Close: shut, Forced: ids("</think>", "c")},
			"think rule: forced: token 9: the grammar does not allow it here"},
	} {
		if _, err := c.NewThinker(test.rule); err == nil || err.Error() != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}
