package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestLimitsOfGrammars meets each limit of what a Builder makes, one above it, and demands the sentence.
func TestLimitsOfGrammars(t *testing.T) {
	for name, test := range map[string]struct {
		set   func(*Limits)
		build func(*Builder) Symbol
		want  string
	}{
		"rules": {func(l *Limits) { l.Rules = 3 }, func(b *Builder) Symbol {
			for range 4 {
				b.NewRule("r")
			}
			return b.Text("a")
		}, "grammar too large: rules: 4 > 3"},
		"rules made of symbols": {func(l *Limits) { l.Rules = 3 }, func(b *Builder) Symbol {
			s := b.Text("a")
			for range 5 {
				s = b.Seq(b.Choice(s, b.Text("b")), s)
			}
			return s
		}, "grammar too large: rules: 4 > 3"},
		"states": {func(l *Limits) { l.States = 10 },
			func(b *Builder) Symbol { return b.Network(11, 0, nil, nil) },
			"grammar too large: states: 11 > 10"},
		"states of symbols": {func(l *Limits) { l.States = 10 }, func(b *Builder) Symbol {
			s := b.Seq()
			for range 10 {
				s = b.Seq(s, b.Text("a"))
			}
			return s
		}, "grammar too large: states: 13 > 10"},
		"expressions": {func(l *Limits) { l.Expressions = 20 }, func(b *Builder) Symbol {
			x := b.Empty()
			for i := range 30 {
				x = b.Union(x, b.Class(RuneRange{rune(i), rune(i)}))
			}
			return b.Terminal(x)
		}, "grammar too large: expressions: 21 > 20"},
		"text": {func(l *Limits) { l.Text = 10 },
			func(b *Builder) Symbol { return b.Text("abcdefghijk") },
			"grammar too large: bytes of literals and classes: 11 > 10"},
		"classes": {func(l *Limits) { l.Text = 10 },
			func(b *Builder) Symbol { return b.Terminal(b.Class(RuneRange{1, 2}, RuneRange{4, 5})) },
			"grammar too large: bytes of literals and classes: 16 > 10"},
		"count": {func(l *Limits) { l.Count = 10 },
			func(b *Builder) Symbol { return b.Terminal(b.Repeat(b.AnyChar(), 0, 11)) },
			"grammar too large: repetitions: 11 > 10"},
		"list count": {func(l *Limits) { l.Count = 10 },
			func(b *Builder) Symbol { return b.List(b.Text("a"), b.Seq(), 11, -1) },
			"grammar too large: repetitions: 11 > 10"},
		"encoding": {func(l *Limits) { l.Encoding = 10 },
			func(b *Builder) Symbol { return b.Text("a long text") },
			"grammar too large: bytes: 26 > 10"},
		"depth": {func(*Limits) {}, func(b *Builder) Symbol {
			x := b.AnyChar()
			for range maxTermDepth {
				x = b.Concat(b.Union(x, b.Literal("b")), b.Literal("a"))
			}
			return b.Terminal(x)
		}, "grammar too large: expressions inside each other: "},
		"steps": {func(l *Limits) { l.Steps = 50 }, func(b *Builder) Symbol {
			abc := b.Class(RuneRange{'a', 'c'})
			return b.Terminal(b.Intersect(b.Repeat(abc, 1000, -1), b.Repeat(b.Concat(abc, b.Literal("b")), 0, -1)))
		}, "grammar too large: steps to find whether expressions are empty: 51 > 50"},
	} {
		limits := DefaultLimits()
		test.set(&limits)
		b := NewBuilder(limits)
		_, err := b.Grammar(test.build(b))
		var limit *LimitError
		if !errors.As(err, &limit) || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

// TestLimitsOfMatchers meets each limit of what follows a text.
func TestLimitsOfMatchers(t *testing.T) {
	x, _ := wordTokens(t, "<end>", "a", "b", "ab", "ba", "aab", "abba", "aaaa")
	letters := func(b *Builder) Expr { return b.Class(RuneRange{'a', 'b'}) }
	// As many states as there are sets of places of the last n letters.
	sets := func(n int) func(*Builder) Symbol {
		return func(b *Builder) Symbol {
			return b.Terminal(b.Concat(b.Repeat(letters(b), 0, -1), b.Literal("a"), b.Repeat(letters(b), n, n)))
		}
	}
	many := func(b *Builder) Symbol {
		var list []Symbol
		for i := range 30 {
			list = append(list, b.Text(fmt.Sprintf("a%d", i)))
		}
		return b.Choice(list...)
	}
	for name, test := range map[string]struct {
		set   func(*Limits)
		build func(*Builder) Symbol
		want  string
	}{
		"states of the lexer": {func(l *Limits) { l.LexerStates = 4 }, sets(12), "grammar too large: states of the lexer: 5 > 4"},
		"memory":              {func(l *Limits) { l.MatcherMemory = 5000 }, sets(12), "grammar too large: bytes of tables: "},
		"steps of the lexer":  {func(l *Limits) { l.Steps = 10 }, sets(12), "grammar too large: steps of the lexer: 1"},
		"terminals":           {func(l *Limits) { l.LexemesAlive = 29 }, many, "grammar too large: terminals under way at once: 30 > 29"},
		"items": {func(l *Limits) { l.Items = 20 }, func(b *Builder) Symbol {
			var edges []Edge
			for i := range 30 {
				edges = append(edges, Edge{i, i + 1, b.Optional(b.Text("a"))})
			}
			return b.Network(31, 0, []int{30}, edges)
		}, "grammar too large: items of the parser at one place: 21 > 20"},
		"steps of a mask": {func(l *Limits) { l.MaskSteps = 3 },
			func(b *Builder) Symbol { return b.Terminal(b.Repeat(letters(b), 0, -1)) },
			"grammar too large: steps of a mask: 4 > 3"},
	} {
		limits := DefaultLimits()
		test.set(&limits)
		b := NewBuilder(DefaultLimits())
		c, err := Compile(context.Background(), mustGrammar(t, b, test.build(b)), x, limits)
		if err != nil {
			t.Fatal(err)
		}
		bits := make([]uint64, x.Words())
		// Another sequence is not told of it, whatever it needs; the first one stays without an answer.
		for range 2 {
			m := c.NewMatcher()
			err = m.Mask(bits)
			r := rand.New(rand.NewPCG(1, 2))
			for n := 0; err == nil && n < 3000; n++ {
				if err = m.Accept(1 + r.Int32N(2)); err == nil {
					err = m.Mask(bits)
				}
			}
			var limit *LimitError
			if !errors.As(err, &limit) || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("%s: %v, want %s", name, err, test.want)
			}
			if again := m.Mask(bits); !errors.Is(again, err) {
				t.Errorf("%s: later %v, at first %v", name, again, err)
			}
		}
	}
}

func TestTooManyClasses(t *testing.T) {
	b := NewBuilder(DefaultLimits())
	var list []Expr
	for r := rune(0x1000); r < 0x1000+6000; r++ {
		list = append(list, b.Concat(b.Class(RuneRange{0, r - 1}, RuneRange{r + 1, maxRune}), b.Literal("x")))
	}
	g := mustGrammar(t, b, b.Terminal(b.Union(list...)))
	var limit *LimitError
	if _, err := Compile(context.Background(), g, nil, DefaultLimits()); !errors.As(err, &limit) {
		t.Errorf("compiled: %v", err)
	}
	if _, err := b.IsNothing(b.Not(b.Union(list...))); !errors.As(err, &limit) {
		t.Errorf("whether it is nothing: %v", err)
	}
}

// TestLongTexts follows a text that makes new rows all the time: what is no longer needed does not count, so that no length is too long.
func TestLongTexts(t *testing.T) {
	words := []string{"<end>", "a", ",", "[", "]"}
	x, ids := wordTokens(t, words...)
	b := NewBuilder(DefaultLimits())
	rule := b.NewRule("value")
	b.Define(rule, b.Choice(b.Text("a"), b.Seq(b.Text("["), b.List(b.Ref(rule), b.Text(","), 2, 1_000_000), b.Text("]"))))
	limits := DefaultLimits()
	limits.MatcherMemory = 64 << 10
	c, err := Compile(context.Background(), mustGrammar(t, b, b.Ref(rule)), x, limits)
	if err != nil {
		t.Fatal(err)
	}
	m := c.NewMatcher()
	bits := make([]uint64, x.Words())
	accept := func(word string) {
		t.Helper()
		if err := m.Mask(bits); err != nil {
			t.Fatal(err)
		}
		if err := m.Accept(ids(word)[0]); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		accept("[")
	}
	engines := 1
	last := m.e
	for range 5000 {
		accept("a")
		accept(",")
		if m.e != last {
			last, engines = m.e, engines+1
		}
	}
	if engines < 5 {
		t.Errorf("tables were full %d times, which tests nothing", engines-1)
	}
	accept("a")
	accept("]")
	if err := m.Accept(ids("]")[0]); err == nil {
		t.Error("a list of one item ends, though it needs two")
	}
	for range 2 {
		accept(",")
		accept("a")
		accept("]")
	}
	if !m.Finished() {
		t.Error("the text is not finished")
	}
}

// leaving is a context that is done once it was looked at so often.
type leaving struct {
	context.Context
	looks int
}

func (c *leaving) Err() error {
	if c.looks--; c.looks < 0 {
		return context.Canceled
	}
	return nil
}

// TestWithin asks long questions for somebody who leaves: the Builder stops, and says why.
func TestWithin(t *testing.T) {
	long := func(b *Builder) Expr {
		digit := b.Class(RuneRange{'0', '9'})
		ends := func(d string, n int) Expr {
			return b.Concat(b.Repeat(digit, 0, -1), b.Literal(d), b.Repeat(digit, n, n))
		}
		return b.Intersect(ends("1", 20), ends("2", 20))
	}
	for name, ask := range map[string]func(*Builder, Expr) error{
		"IsNothing": func(b *Builder, x Expr) error { _, err := b.IsNothing(x); return err },
		"Ask":       func(b *Builder, x Expr) error { b.Ask(x, 1<<30); return b.Err() },
		"Grammar":   func(b *Builder, x Expr) error { _, err := b.Grammar(b.Terminal(x)); return err },
	} {
		ctx := &leaving{context.Background(), 10}
		b := NewBuilder(DefaultLimits())
		b.Within(ctx)
		if err := ask(b, long(b)); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
		if ctx.looks < -10 {
			t.Errorf("%s: looked %d times more", name, -ctx.looks)
		}
	}
}
