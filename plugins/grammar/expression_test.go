package grammar

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

var stringLetters = []string{"a", "b", "c", `"`, `\`, "n", "u", "0", "1", "\n", "é", "/"}

// TestExpressions compares expressions with their definitions on random texts, asked of the Builder and of a grammar.
func TestExpressions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 3000 {
		e := randomExpr(r, 1+r.IntN(4), stringLetters)
		b := NewBuilder(DefaultLimits())
		x := e.build(b)
		none, err := b.IsNothing(x)
		if err != nil {
			t.Fatal(err)
		}
		g, err := b.Grammar(b.Terminal(x))
		if none != (err != nil) {
			t.Fatalf("expression %d: IsNothing %v, Grammar: %v", n, none, err)
		}
		var compiled *Compiled
		if err == nil {
			compiled = mustCompile(t, g, nil)
		}
		for range 30 {
			text := randomText(r, stringLetters, 8)
			if r.IntN(3) == 0 {
				text = `"` + text + `"`
			}
			want := e.matches(text)
			if got, err := b.Contains(x, text); err != nil || got != want {
				t.Fatalf("expression %d: Contains(%q) = %v, %v; want %v", n, text, got, err, want)
			}
			if want && none {
				t.Fatalf("expression %d is nothing and has %q", n, text)
			}
			if compiled == nil {
				continue
			}
			if got, err := compiled.MatchesText(text); err != nil || got != want {
				t.Fatalf("expression %d: MatchesText(%q) = %v, %v; want %v", n, text, got, err, want)
			}
		}
		if !none {
			// What is not nothing has a text, which can be shown.
			text, ok := shortest(t, compiled.NewMatcher())
			if !ok || utf8.RuneCountInString(text) < 64 && !e.matches(text) {
				t.Fatalf("expression %d: its shortest text is said to be %q, %v", n, text, ok)
			}
		}
	}
}

func randomText(r *rand.Rand, letters []string, n int) string {
	var text strings.Builder
	for range r.IntN(n + 1) {
		text.WriteString(letters[r.IntN(len(letters))])
	}
	return text.String()
}

// pattern is a regular expression in Go's syntax and as an Expr, and operators above that Go has not.
type pattern struct {
	op   string
	list []*pattern
	re   *regexp.Regexp
	x    Expr
}

func randomRegexp(r *rand.Rand, b *Builder, depth int) (string, Expr) {
	if depth == 0 {
		switch r.IntN(4) {
		case 0:
			return `[^b]`, b.Class(RuneRange{0, 'a'}, RuneRange{'c', maxRune})
		case 1:
			return `[a-cé]`, b.Class(RuneRange{'a', 'c'}, RuneRange{'é', 'é'})
		case 2:
			return `(?s:.)`, b.AnyChar()
		}
		c := string("abcé"[r.IntN(3)])
		return c, b.Literal(c)
	}
	s, x := randomRegexp(r, b, depth-1)
	s2, y := randomRegexp(r, b, depth-1)
	switch r.IntN(4) {
	case 0:
		return s + s2, b.Concat(x, y)
	case 1:
		return fmt.Sprintf("(?:%s|%s)", s, s2), b.Union(x, y)
	case 2:
		low := r.IntN(3)
		high := low + r.IntN(3)
		return fmt.Sprintf("(?:%s){%d,%d}", s, low, high), b.Repeat(x, low, high)
	}
	return fmt.Sprintf("(?:%s)*", s), b.Repeat(x, 0, -1)
}

func randomPattern(r *rand.Rand, b *Builder, depth int) *pattern {
	if depth == 0 {
		s, x := randomRegexp(r, b, 1+r.IntN(3))
		return &pattern{re: regexp.MustCompile("^(?:" + s + ")$"), x: x}
	}
	p, q := randomPattern(r, b, depth-1), randomPattern(r, b, depth-1)
	switch r.IntN(3) {
	case 0:
		return &pattern{op: "and", list: []*pattern{p, q}, x: b.Intersect(p.x, q.x)}
	case 1:
		return &pattern{op: "or", list: []*pattern{p, q}, x: b.Union(p.x, q.x)}
	}
	return &pattern{op: "not", list: []*pattern{p}, x: b.Not(p.x)}
}

func (p *pattern) matches(text string) bool {
	switch p.op {
	case "and":
		return p.list[0].matches(text) && p.list[1].matches(text)
	case "or":
		return p.list[0].matches(text) || p.list[1].matches(text)
	case "not":
		return !p.list[0].matches(text)
	}
	return p.re.MatchString(text)
}

// TestExpressionsAgainstRegexp compares with Go's regular expressions.
func TestExpressionsAgainstRegexp(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for n := range 1000 {
		b := NewBuilder(DefaultLimits())
		p := randomPattern(r, b, r.IntN(4))
		for range 50 {
			text := randomText(r, []string{"a", "b", "c", "é", "\n"}, 10)
			if got, err := b.Contains(p.x, text); err != nil || got != p.matches(text) {
				t.Fatalf("pattern %d: Contains(%q) = %v, %v", n, text, got, err)
			}
		}
	}
}
