package grammar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// schemaLike is a grammar with what schemas are made of: names that exclude each other, patterns, lengths, counters, optional members.
func schemaLike(b *Builder) Symbol {
	space := jsonSpace(b)
	value := jsonGrammar(b)
	names := []string{"name", "namespace", "id", "größe", "a/b"}
	key := func(e Expr) Symbol {
		return b.Seq(b.Terminal(b.JSONString(e)), b.Terminal(b.Concat(b.Literal(":"), space)))
	}
	var all []Expr
	for _, n := range names {
		all = append(all, b.Literal(n))
	}
	digit := b.Class(RuneRange{'0', '9'})
	contains := b.Concat(b.AnyText(), b.Literal("x1"), b.AnyText())
	values := []Symbol{
		b.Terminal(b.JSONString(b.Repeat(b.AnyChar(), 1, 20))),
		b.Terminal(b.JSONString(b.Intersect(contains, b.Repeat(b.AnyChar(), 0, 40)))),
		b.Terminal(b.Repeat(digit, 1, 5)),
		b.Terminal(b.JSONString(b.Concat(b.Repeat(b.Class(RuneRange{'a', 'z'}, RuneRange{'é', 'é'}), 1, 70), b.Literal("-"), digit))),
		b.Seq(b.Text("["), b.List(value, b.Text(","), 1, 3), b.Text("]")),
	}
	// Members in order, each of which may be left out, then any others: states are (place, whether a comma is due).
	comma := b.Terminal(b.Concat(b.Literal(","), space))
	var edges []Edge
	n := len(names)
	at := func(place, due int) int { return 2*place + due }
	for i := range names {
		for due := range 2 {
			member := b.Seq(key(all[i]), values[i])
			if due == 1 {
				member = b.Seq(comma, member)
			}
			edges = append(edges, Edge{at(i, due), at(i+1, due), b.Seq()}, Edge{at(i, due), at(i+1, 1), member})
		}
	}
	other := b.Seq(key(b.Not(b.Union(all...))), value)
	edges = append(edges, Edge{at(n, 0), at(n, 1), other}, Edge{at(n, 1), at(n, 1), b.Seq(comma, other)})
	body := b.Network(at(n, 1)+1, 0, []int{at(n, 0), at(n, 1)}, edges)
	return b.Seq(b.Terminal(b.Concat(b.Literal("{"), space)), body, b.Terminal(b.Concat(space, b.Literal("}"))))
}

func compileSchemaLike(t testing.TB, x *TokenIndex, limits Limits) *Compiled {
	b := NewBuilder(DefaultLimits())
	g := mustGrammar(t, b, schemaLike(b))
	c, err := Compile(context.Background(), g, x, limits)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMaskIsWhatIsAccepted compares masks of a real vocabulary with what is accepted, token by token. The slices of plain strings and the walks are all in
// it.
func TestMaskIsWhatIsAccepted(t *testing.T) {
	x, tokens := qwenTokens(t)
	c := compileSchemaLike(t, x, DefaultLimits())
	text := `{"name": "Joe \"é\"\u000b", "namespace":"abx1 and more text", "id": 123,` +
		` "größe": "abcdé-1", "a/b":[1.5e3,{"k":[]}], "nam": null, "other names": "日本\n"}`
	m := c.NewMatcher()
	bits := make([]uint64, x.Words())
	ids := make(map[string]int32)
	for i, b := range tokens[:151_643] {
		ids[string(b)] = int32(i)
	}
	for step, id := range longestFirst(ids, 128, text) {
		if err := m.Mask(bits); err != nil {
			t.Fatal(err)
		}
		checkAccepted(t, fmt.Sprint("step ", step), m, bits, tokens)
		if err := m.Accept(id); err != nil {
			t.Fatalf("%q: %v", tokens[id], err)
		}
	}
	if !m.Finished() {
		t.Error("the text is not finished")
	}
}

// checkAccepted compares a mask with what is accepted.
func checkAccepted(t *testing.T, name string, m *Matcher, bits []uint64, tokens [][]byte) {
	t.Helper()
	x := m.c.tokens
	wrong := 0
	err := m.run(func(e *engine) error {
		for i := range tokens {
			want := m.step(e, m.at, int32(i)) != deadConfig || x.role[i] == roleEnd && e.ends(m.at)
			if got := bits[i/64]>>(i%64)&1 != 0; got != want {
				if wrong++; wrong < 10 {
					t.Errorf("%s: token %q: mask %v, accepted %v", name, tokens[i], got, want)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWideMasks does the same for patterns that allow much within strings.
func TestWideMasks(t *testing.T) {
	x, tokens := qwenTokens(t)
	b := NewBuilder(DefaultLimits())
	set := func(ranges ...RuneRange) Expr { return b.Class(ranges...) }
	word := set(RuneRange{'a', 'z'}, RuneRange{'A', 'Z'}, RuneRange{'0', '9'}, RuneRange{'_', '_'}, RuneRange{'-', '-'})
	line := b.Intersect(b.AnyChar(), b.Not(set(RuneRange{'\n', '\n'}, RuneRange{'\r', '\r'}, RuneRange{0x2028, 0x2029})))
	upper := b.Concat(set(RuneRange{'A', 'Z'}), b.AnyText())
	for name, e := range map[string]Expr{
		"words":                b.Repeat(word, 1, -1),
		"few words":            b.Repeat(word, 0, 12),
		"many words":           b.Repeat(word, 30, 50),
		"lines":                b.Repeat(line, 1, -1),
		"lines but two":        b.Difference(b.Repeat(line, 1, -1), b.Union(b.Literal("name"), b.Literal("na\\ive"))),
		"not upper":            b.Not(b.Union(upper, b.Literal("name"))),
		"a length and a word":  b.Intersect(b.Repeat(b.AnyChar(), 3, 20), b.Concat(b.Repeat(word, 0, -1), b.Literal("."), b.Repeat(word, 0, -1))),
		"holds something":      b.Intersect(b.Repeat(b.AnyChar(), 0, 30), b.Concat(b.AnyText(), b.Literal("x1"), b.AnyText())),
		"words with an ending": b.Concat(b.Repeat(b.Union(word, b.Literal("é")), 0, -1), b.Literal("\"\\"), b.Repeat(b.AnyChar(), 0, 3)),
	} {
		s := b.Seq(b.Terminal(b.Concat(b.JSONString(e), b.Literal(":"))), b.Text("1"))
		c := mustCompile(t, mustGrammar(t, b, s), x)
		bits := make([]uint64, x.Words())
		for _, text := range []string{`"`, `"na`} {
			m := c.NewMatcher()
			for i := range len(text) {
				id := slices.IndexFunc(tokens, func(b []byte) bool { return string(b) == text[i:i+1] })
				if err := m.Accept(int32(id)); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if err := m.Mask(bits); err != nil {
				t.Fatal(err)
			}
			checkAccepted(t, fmt.Sprintf("%s behind %s", name, text), m, bits, tokens)
		}
	}
}

// TestWideText does the same for text outside of strings: free text before a tag, before other text, and up to what ends it.
func TestWideText(t *testing.T) {
	x, tokens := qwenTokens(t)
	b := NewBuilder(DefaultLimits())
	until := func(end string) Expr {
		return b.Concat(b.Not(b.Concat(b.AnyText(), b.Literal(end), b.AnyText())), b.Literal(end))
	}
	free := b.Terminal(b.AnyText())
	for name, s := range map[string]Symbol{
		"free text":                b.Seq(free, b.Optional(b.Text("x"))),
		"free text, then a tag":    b.Seq(free, b.Tag("<tool_call>"), b.Text("x")),
		"free text, then a list":   b.Seq(free, b.List(b.Text("ab"), b.Text(","), 2, 3)),
		"up to the end of a value": b.Seq(b.Terminal(until("\n</parameter>")), b.Text("\n</function>")),
		"a word or a line":         b.Choice(b.Terminal(b.Repeat(b.Class(RuneRange{'a', 'z'}), 1, 20)), b.Terminal(until("\n"))),
	} {
		c := mustCompile(t, mustGrammar(t, b, s), x)
		bits := make([]uint64, x.Words())
		m := c.NewMatcher()
		for i, text := range []string{"", "a", "b", "\n"} {
			if text != "" {
				id := slices.IndexFunc(tokens, func(b []byte) bool { return string(b) == text })
				if err := m.Accept(int32(id)); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			if err := m.Mask(bits); err != nil {
				t.Fatal(err)
			}
			checkAccepted(t, fmt.Sprintf("%s, step %d", name, i), m, bits, tokens)
		}
	}
}

// walk draws tokens and gives them with the mask of each step, folded.
func walk(t testing.TB, c *Compiled, r *rand.Rand, steps int) (out []string) {
	t.Helper()
	m := c.NewMatcher()
	bits := make([]uint64, c.tokens.Words())
	for range steps {
		if err := m.Mask(bits); err != nil {
			var limit *LimitError
			if !errors.As(err, &limit) {
				t.Error(err)
			}
			return append(out, err.Error())
		}
		h := newHash()
		var list []int32
		for i := range c.tokens.size {
			if bits[i/64]>>(i%64)&1 != 0 {
				h.add(uint64(i))
				list = append(list, int32(i))
			}
		}
		if len(list) == 0 {
			return out
		}
		id := list[r.IntN(len(list))]
		out = append(out, fmt.Sprint(id, h, m.MayEnd(), m.Finished()))
		if err := m.Accept(id); err != nil {
			t.Error(err)
			return out
		}
	}
	return out
}

// TestCrowd demands of many sequences at once what each does alone, also where the tables are so small that they are full again and again.
func TestCrowd(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	x, err := NewTokens(smallVocabulary(r, []string{`"`, "a", ":", "{", "}", ",", "name", "é", "[", "]", "1"}, true))
	if err != nil {
		t.Fatal(err)
	}
	tight := DefaultLimits()
	tight.MatcherMemory = 40 << 10
	few := DefaultLimits()
	few.LexerStates = 60
	fewer := DefaultLimits()
	fewer.LexerStates = 16
	for name, limits := range map[string]Limits{"default": DefaultLimits(), "little memory": tight, "few states": few, "fewer states": fewer} {
		const sequences = 24
		crowd := compileSchemaLike(t, x, limits)
		first := crowd.shared
		got := make([][]string, sequences)
		var wg sync.WaitGroup
		for i := range sequences {
			wg.Go(func() { got[i] = walk(t, crowd, rand.New(rand.NewPCG(9, uint64(i))), 80) })
		}
		wg.Wait()
		limited := 0
		for i := range sequences {
			want := walk(t, compileSchemaLike(t, x, limits), rand.New(rand.NewPCG(9, uint64(i))), 80)
			if !slices.Equal(got[i], want) {
				t.Errorf("%s: sequence %d differs in a crowd", name, i)
			}
			if len(want) > 0 && want[len(want)-1][0] == 'g' {
				limited++
			}
		}
		if full := crowd.shared != first; full != (name != "default") {
			t.Errorf("%s: tables were full: %v", name, full)
		}
		if name == "fewer states" && (limited == 0 || limited == sequences) {
			t.Errorf("%s: %d of %d sequences meet a limit; the test is to see both", name, limited, sequences)
		}
	}
}

func TestAfterTheEnd(t *testing.T) {
	words := []string{"<end>", "a", "b"}
	x, ids := wordTokens(t, words...)
	b := NewBuilder(DefaultLimits())
	c := mustCompile(t, mustGrammar(t, b, b.List(b.Text("a"), b.Seq(), 1, -1)), x)
	m := c.NewMatcher()
	if err := m.Accept(0); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("an end before the text: %v", err)
	}
	if err := m.Accept(ids("a")[0]); err != nil {
		t.Fatal(err)
	}
	if !m.MayEnd() || m.Finished() {
		t.Errorf("behind a: MayEnd %v, Finished %v", m.MayEnd(), m.Finished())
	}
	if err := m.Accept(0); err != nil {
		t.Fatal(err)
	}
	if got := allowed(t, m.Mask, x, words); !slices.Equal(got, []string{"<end>"}) || !m.Finished() {
		t.Errorf("behind the end: %q, Finished %v", got, m.Finished())
	}
	for _, id := range []int32{-1, 1, 3} {
		if err := m.Accept(id); err == nil {
			t.Errorf("token %d is accepted behind the end", id)
		}
	}
	if err := m.Mask(nil); err == nil {
		t.Error("a mask without words is taken")
	}
}

func TestCache(t *testing.T) {
	x, _ := wordTokens(t, "<end>", "a")
	b := NewBuilder(DefaultLimits())
	c := NewCache(x, DefaultLimits(), 10*mustCompile(t, mustGrammar(t, b, b.List(b.Text("a"), b.Seq(), 2, 2)), x).Size())
	var first *Grammar
	for n := range 50 {
		b := NewBuilder(DefaultLimits())
		g := mustGrammar(t, b, b.List(b.Text("a"), b.Seq(), n+2, n+2))
		if n == 0 {
			first = g
		}
		one, err := c.Compile(context.Background(), g)
		if err != nil {
			t.Fatal(err)
		}
		other, err := c.Decode(context.Background(), g.Encode())
		if err != nil || one != other {
			t.Fatalf("the same grammar is compiled twice: %v", err)
		}
	}
	if n := c.Len(); n < 2 || n >= 50 {
		t.Errorf("%d grammars are kept", n)
	}
	if c.find(first.Hash()) != nil {
		t.Error("what was used first is still there")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Compile(ctx, first); !errors.Is(err, context.Canceled) {
		t.Errorf("compiled for a request that is gone: %v", err)
	}
	if _, err := c.Decode(context.Background(), []byte("tgr")); err == nil {
		t.Error("bytes that are no grammar are compiled")
	}
}

// TestSizeOfSmallGrammars compares what is counted of small grammars, of which a cache has most, with the memory that they take.
func TestSizeOfSmallGrammars(t *testing.T) {
	x, _ := wordTokens(t, "<end>", "a", "{", "\"", "}", ":", "\n")
	cache := NewCache(x, DefaultLimits(), CacheBytes)
	bits := make([]uint64, x.Words())
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	const count = 500
	size := 0
	for i := range count {
		b := NewBuilder(DefaultLimits())
		g := mustGrammar(t, b, b.Seq(b.Text(fmt.Sprintf(`{"k%d":`, i)), b.Terminal(b.JSONString(b.AnyText())), b.Text("}")))
		c, err := cache.Compile(context.Background(), g)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.NewMatcher().Mask(bits); err != nil {
			t.Fatal(err)
		}
		alone := c.Size()
		if _, err := c.afterGap(); err != nil {
			t.Fatal(err)
		}
		if c.Size() <= alone {
			t.Fatalf("with the grammar for behind thinking it holds %d bytes, without %d", c.Size(), alone)
		}
		size += c.Size()
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if held := int(after.HeapAlloc - before.HeapAlloc); size < held/2 {
		t.Errorf("%d grammars take %d bytes, counted are %d", count, held, size)
	}
	runtime.KeepAlive(cache)
}
