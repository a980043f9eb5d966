package tokenizer

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// plainMatcher matches a syntax tree as it is defined, by calls that go on with the rest: a second implementation, to compare with.
type plainMatcher struct {
	text  []rune
	steps int
}

type tooLong struct{}

// match calls rest with every place where n may end, in the order of preference, until rest holds.
func (m *plainMatcher) match(n regexNode, at int, backward bool, rest func(int) bool) bool {
	if m.steps++; m.steps > 100_000 {
		panic(tooLong{})
	}
	switch n := n.(type) {
	case regexChars:
		if backward {
			return at > 0 && n.set.contains(m.text[at-1]) && rest(at-1)
		}
		return at < len(m.text) && n.set.contains(m.text[at]) && rest(at+1)
	case regexConcat:
		if len(n) == 0 {
			return rest(at)
		}
		first, others := n[0], n[1:]
		if backward {
			first, others = n[len(n)-1], n[:len(n)-1]
		}
		return m.match(first, at, backward, func(next int) bool { return m.match(others, next, backward, rest) })
	case regexAlternatives:
		return slices.ContainsFunc(n, func(part regexNode) bool { return m.match(part, at, backward, rest) })
	case regexRepeat:
		return m.repeat(n, 0, at, backward, rest)
	case regexAtomic:
		end := -1
		return m.match(n.of, at, backward, func(next int) bool { end = next; return true }) && rest(end)
	case regexLook:
		return m.match(n.of, at, n.behind, func(int) bool { return true }) != n.negative && rest(at)
	case regexAnchor:
		newline := func(i int) bool { return m.text[i] == '\n' }
		end := len(m.text)
		holds := map[regexAnchor]bool{
			'^': at == 0 || newline(at-1), '$': at == end || newline(at), 'A': at == 0, 'z': at == end, 'Z': at == end || at == end-1 && newline(at),
		}
		return holds[n] && rest(at)
	}
	panic("unknown node")
}

func (m *plainMatcher) repeat(n regexRepeat, done, at int, backward bool, rest func(int) bool) bool {
	more := func() bool {
		return done != n.most && m.match(n.of, at, backward, func(next int) bool {
			if next == at && done >= n.least && n.most < 0 {
				return rest(next) // a turn that has matched nothing is the last
			}
			return m.repeat(n, done+1, next, backward, rest)
		})
	}
	switch {
	case done < n.least:
		return more()
	case n.lazy:
		return rest(at) || more()
	}
	return more() || rest(at)
}

// matches are all matches, in characters.
func (m *plainMatcher) matches(n regexNode) (out [][2]int) {
	for at := 0; at <= len(m.text); {
		start, end := at, -1
		for ; start <= len(m.text) && !m.match(n, start, false, func(next int) bool { end = next; return true }); start++ {
		}
		if end < 0 {
			break
		}
		out = append(out, [2]int{start, end})
		at = max(end, start+1)
		if end > start {
			at = end
		}
	}
	return out
}

// ourMatches are the same by our own engine.
func ourMatches(b *budget.Budget, p *regexProgram, text string) ([][2]int, error) {
	var out [][2]int
	s := p.search(b, text)
	for at := 0; at <= len(text); {
		start, end, err := s.find(at)
		if err != nil || start < 0 {
			return out, err
		}
		out = append(out, [2]int{len([]rune(text[:start])), len([]rune(text[:end]))})
		at = end
		if start == end {
			at = start + max(1, len(string([]rune(text[start:] + "x")[:1])))
		}
	}
	return out, s.close()
}

// compareMatches compares the matches of one pattern over texts with those of a plainMatcher; it reports whether they could be compared.
func compareMatches(t *testing.T, pattern string, texts []string) (compared bool) {
	t.Helper()
	n, err := parseRegex(pattern)
	if err != nil {
		return false
	}
	program, err := compileRegex(pattern)
	if err != nil {
		return false
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case tooLong:
			compared = false
		default:
			panic(p)
		}
	}()
	for _, text := range texts {
		got, err := ourMatches(unlimited(t), program, text)
		if err != nil {
			return false
		}
		plain := plainMatcher{text: []rune(text)}
		if want := plain.matches(n); !slices.Equal(got, want) {
			t.Errorf("%q in %q: got %v, want %v", pattern, text, got, want)
		}
	}
	return true
}

// TestRegexMatches compares random expressions over random texts with their definition.
func TestRegexMatches(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 5))
	pick := func(list []string) string { return list[rng.IntN(len(list))] }
	atoms := []string{"a", "b", "é", ".", `\s`, `\S`, `[ab]`, `[^a]`, `\p{L}`, `[^\r\n\p{L}\p{N}]`, `\d`, "^", "$", `\b`, `\B`, `\A`, `\z`, `\Z`, "語", " "}
	quantifiers := []string{"", "", "", "*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{0,3}?", "{2,}", "{,2}"}
	var expression func(depth int) string
	expression = func(depth int) string {
		var b strings.Builder
		for range 1 + rng.IntN(3) {
			switch k := rng.IntN(10); {
			case k < 7 || depth == 0:
				a := pick(atoms)
				b.WriteString(a)
				if !strings.Contains(`^$\b\B\A\z\Z`, a) {
					b.WriteString(pick(quantifiers))
				}
			case k == 7:
				b.WriteString(pick([]string{"(?=", "(?!", "(?<=", "(?<!", "(?>"}) + expression(depth-1) + ")")
			default:
				b.WriteString("(?:" + expression(depth-1) + "|" + expression(depth-1) + ")" + pick(quantifiers))
			}
		}
		return b.String()
	}
	letters := []string{"a", "a", "b", "é", "語", " ", "\n", "1", "\u0301"}
	compared := 0
	for range 6000 {
		pattern := expression(2)
		var texts []string
		for range 4 {
			text := ""
			for range rng.IntN(9) {
				text += pick(letters)
			}
			texts = append(texts, text)
		}
		if compareMatches(t, pattern, texts) {
			compared++
		}
		if t.Failed() {
			break
		}
	}
	if compared < 5000 {
		t.Errorf("%d expressions compared", compared)
	}
}

// FuzzRegex compares any expression over any text with its definition.
func FuzzRegex(f *testing.F) {
	for _, pattern := range []string{patternGPT2, patternLlama3, `(?:a|b|ab)*?c`, `(?<=a+?|b)(?!c)\b`, `(?>a*)(?i:É|[[:alpha:]&&\p{Lu}]){2,3}+`} {
		f.Add(pattern, "aab cÉé'll 12 \n")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(pattern) > 200 || len(text) > 100 {
			return
		}
		compareMatches(t, pattern, []string{validText(text)})
	})
}

// TestRegexWork: expressions that try without end, or hold without end what they come back to, end at a limit.
func TestRegexWork(t *testing.T) {
	cases := map[string]struct{ pattern, text, what string }{
		"nested repeats":          {`(?:a+)+b`, strings.Repeat("a", 100), "steps"},
		"overlapping choices":     {`(?:a|a|aa)+$b`, strings.Repeat("a", 4000), "steps"},
		"repeats in a row":        {`a*a*a*a*a*a*b`, strings.Repeat("a", 2000), "steps"},
		"from every place":        {`a*b`, strings.Repeat("a", 1<<20), "steps"},
		"looking behind":          {`(?<=b.*)c`, strings.Repeat("c", 1<<20), "steps"},
		"looking ahead":           {`(?=.*b)c`, strings.Repeat("c", 1<<20), "steps"},
		"atomic groups":           {`(?>(?:a|b)*)c`, strings.Repeat("ab", 1<<20), ""},
		"much to come back to":    {`(?:a|b)*`, strings.Repeat("ab", 4<<20), "bytes"},
		"turns of a loop":         {`(?:(?:a|b)(?:c|d)?)*e`, strings.Repeat("acbd", 1<<20), ""},
		"lazy":                    {`(?:a.*?)*?b`, strings.Repeat("a", 10000), "steps"},
		"many matches of nothing": {`(?=a)|`, strings.Repeat("a", 8<<20), "bytes"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m, err := newRegexMatcher("pattern", c.pattern)
			if err != nil {
				t.Fatal(err)
			}
			b := unlimited(t)
			_, err = m.spans(b, c.text)
			var exceeded *budget.Exceeded
			if !errors.As(err, &exceeded) || c.what != "" && exceeded.What != c.what {
				t.Errorf("got %v after %d steps, want %s exceeded", err, b.Steps(), c.what)
			}
		})
	}
}

// TestRegexProperties: properties that have the name of a bracketed class, but not all of its characters, or more.
func TestRegexProperties(t *testing.T) {
	for _, c := range []struct{ pattern, has, lacks string }{
		{`\p{Punct}`, "!-_“。", "$+<=>^`|~☺👍a"},
		{`\p{^punct}`, "$+<=>^`|~☺👍a", "!-_“。"},
		{`[[:punct:]]`, "!-_“。$+<=>^`|~☺👍", "a"},
		{`\p{Word}`, "a_9é²³¹¼½¾", "!⅓"},
		{`\P{Word}`, "!⅓", "a_9é²³¹¼½¾"},
		{`[[:word:]]`, "a_9é", "!⅓²³¹¼½¾"},
		{`\w`, "a_9é²³¹¼½¾", "!⅓"},
	} {
		n, err := parseRegex(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		set := n.(regexConcat)[0].(regexChars).set
		for _, r := range c.has {
			if !set.contains(r) {
				t.Errorf("%s lacks %q", c.pattern, r)
			}
		}
		for _, r := range c.lacks {
			if set.contains(r) {
				t.Errorf("%s has %q", c.pattern, r)
			}
		}
	}
}
