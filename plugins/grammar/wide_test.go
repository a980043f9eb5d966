package grammar

import (
	"fmt"
	"strings"
	"testing"
)

// TestMasksOfLongTokens compares masks with what is accepted, where counts are near the lengths of tokens: the longest of them end a string, or text, within.
func TestMasksOfLongTokens(t *testing.T) {
	v := Vocabulary{Ends: []int32{0}, Tokens: [][]byte{[]byte("</s>")}}
	add := func(text string) { v.Tokens = append(v.Tokens, []byte(text)) }
	for _, c := range "ab \"\n{}:,é\\é" {
		add(string(c))
	}
	for _, n := range []int{2, 3, 15} {
		add(strings.Repeat("a", n))
		add(strings.Repeat("é", n))
	}
	for _, n := range []int{15, 16, 17, 18, 20, 39, 40, 41, 42, 60} {
		for _, end := range []string{`"`, `",`, "\n", "\nb", `\n"`, `\u000a"`} {
			add(strings.Repeat("a", n) + end)
			add(strings.Repeat("é", n) + end)
		}
	}
	x, err := NewTokens(v)
	if err != nil {
		t.Fatal(err)
	}
	class := func(b *Builder) Expr {
		return b.Class(RuneRange{' ', '!'}, RuneRange{'#', '['}, RuneRange{']', '~'}, RuneRange{'é', 'é'})
	}
	for _, counts := range [][2]int{{0, 15}, {0, 16}, {0, 17}, {0, 18}, {17, -1}, {18, -1}, {19, 60}, {30, 50}, {0, 40}, {0, 41}, {41, 41}, {42, -1}, {59, 61}} {
		for name, build := range map[string]func(b *Builder) Symbol{
			"string": func(b *Builder) Symbol {
				return b.Seq(b.Terminal(b.JSONString(b.Repeat(class(b), counts[0], counts[1]))), b.Terminal(b.Literal(",")))
			},
			"text": func(b *Builder) Symbol {
				return b.Seq(b.Terminal(b.Concat(b.Literal(`"`), b.Repeat(class(b), counts[0], counts[1]))), b.Terminal(b.Literal("\nb")))
			},
		} {
			t.Run(fmt.Sprint(name, counts), func(t *testing.T) {
				b := NewBuilder(DefaultLimits())
				g, err := b.Grammar(build(b))
				if err != nil {
					t.Fatal(err)
				}
				c := mustCompile(t, g, x)
				for _, before := range []string{`"`, `"a`, `"aaaaaaaaaaaaaaaa`} {
					m := c.NewMatcher()
					bits := make([]uint64, x.Words())
					err := m.run(func(e *engine) error {
						m.at = e.begin()
						for _, c := range []byte(before) {
							m.at = e.step(m.at, e.lexer.utf8.column[c])
						}
						return nil
					})
					if err != nil {
						t.Fatal(err)
					}
					if err := m.Mask(bits); err != nil {
						t.Fatal(err)
					}
					for id := range v.Tokens {
						copied := *m
						accepted := copied.Accept(int32(id)) == nil
						if masked := bits[id/64]>>(id%64)&1 != 0; masked != accepted {
							t.Errorf("behind %q the mask says %t of %q, and Accept %t", before, masked, v.Tokens[id], accepted)
						}
					}
				}
			})
		}
	}
}
