package grammar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unicode/utf8"
)

// manyMembers is an object of n members that may each be left out, and any others.
func manyMembers(b *Builder, n int) Symbol {
	var names []Expr
	for i := range n {
		names = append(names, b.Literal(fmt.Sprintf("property%05d", i)))
	}
	value := b.Terminal(b.Repeat(b.Class(RuneRange{'0', '9'}), 1, 3))
	at := func(place, due int) int { return 2*place + due }
	var edges []Edge
	key := func(e Expr) Symbol { return b.Terminal(b.Concat(b.JSONString(e), b.Literal(":"))) }
	for i, name := range names {
		member := b.Seq(key(name), value)
		edges = append(edges, Edge{at(i, 0), at(i+1, 0), b.Seq()}, Edge{at(i, 1), at(i+1, 1), b.Seq()},
			Edge{at(i, 0), at(i+1, 1), member}, Edge{at(i, 1), at(i+1, 1), b.Seq(b.Text(","), member)})
	}
	other := b.Seq(key(b.Not(b.Union(names...))), value)
	edges = append(edges, Edge{at(n, 0), at(n, 1), other}, Edge{at(n, 1), at(n, 1), b.Seq(b.Text(","), other)})
	return b.Seq(b.Text("{"), b.Network(at(n, 1)+1, 0, []int{at(n, 0), at(n, 1)}, edges), b.Text("}"))
}

// TestManyMembers follows an object of 10,000 members within the limits.
func TestManyMembers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	x, err := NewTokens(smallVocabulary(r, []string{`"`, "property", "0", ":", ","}, false))
	if err != nil {
		t.Fatal(err)
	}
	b := NewBuilder(DefaultLimits())
	start := time.Now()
	g := mustGrammar(t, b, manyMembers(b, 10_000))
	t.Log("grammar", time.Since(start), len(g.Encode()))
	c := mustCompile(t, g, x)
	t.Log("compiled", time.Since(start))
	m := c.NewMatcher()
	bits := make([]uint64, x.Words())
	var slowest time.Duration
	for _, ch := range []byte(`{"property00003":12,"property05000":1,"property09998":7,"property09999":7,"propertyX":5,"anything":6}`) {
		s := time.Now()
		if err := m.Mask(bits); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(s))
		id := int32(ch) + 2
		if bits[id/64]>>(id%64)&1 == 0 {
			t.Fatalf("%q is not allowed", ch)
		}
		if err := m.Accept(id); err != nil {
			t.Fatal(err)
		}
	}
	if !m.Finished() {
		t.Error("not finished")
	}
	t.Log("all", time.Since(start), "slowest", slowest, "size", c.Size())
	for _, text := range []string{`{"property00003":12,"property00003":1}`, `{"property00004":1,"property00003":1}`, `{"x":1,"property00003":1}`} {
		if ok, err := Matches(g, text); ok || err != nil {
			t.Errorf("%s: %v, %v", text, ok, err)
		}
	}
}

// TestRandomWalks draws JSON texts through masks, and reads them with another reader.
func TestRandomWalks(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	v := smallVocabulary(r, []string{`"`, "{", "}", "[", "]", ",", ":", "1", "e", "true", `\`, "u00", " ", "é"}, false)
	x, err := NewTokens(v)
	if err != nil {
		t.Fatal(err)
	}
	for name, build := range map[string]func(*Builder) Symbol{"JSON": jsonGrammar, "like a schema": schemaLike} {
		b := NewBuilder(DefaultLimits())
		c := mustCompile(t, mustGrammar(t, b, build(b)), x)
		bits := make([]uint64, x.Words())
		for n := range 300 {
			m := c.NewMatcher()
			var text []byte
			for range r.IntN(60) {
				if err := m.Mask(bits); err != nil {
					t.Fatal(err)
				}
				var list []int32
				for id := range v.Tokens {
					if bits[id/64]>>(id%64)&1 != 0 && x.role[id] == roleText {
						list = append(list, int32(id))
					}
				}
				if len(list) == 0 {
					break
				}
				id := list[r.IntN(len(list))]
				if err := m.Accept(id); err != nil {
					t.Fatal(err)
				}
				text = append(text, v.Tokens[id]...)
			}
			rest, ok := shortest(t, m)
			if !ok || rest == tooFar {
				t.Fatalf("%s: text %d: nothing ends %q", name, n, text)
			}
			text = append(text, rest...)
			if !json.Valid(text) || !utf8.Valid(text) {
				t.Fatalf("%s: text %d: %q is no JSON", name, n, text)
			}
		}
	}
}
