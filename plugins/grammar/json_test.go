package grammar

import "testing"

// jsonGrammar is JSON with optional white space, written as a compiler of schemas writes it.
func jsonGrammar(b *Builder) Symbol {
	digits := b.Class(RuneRange{'0', '9'})
	number := b.Concat(b.Repeat(b.Literal("-"), 0, 1), b.Union(b.Literal("0"), b.Concat(b.Class(RuneRange{'1', '9'}), b.Repeat(digits, 0, 63))),
		b.Repeat(b.Concat(b.Literal("."), b.Repeat(digits, 1, 64)), 0, 1),
		b.Repeat(b.Concat(b.Union(b.Literal("e"), b.Literal("E")), b.Repeat(b.Union(b.Literal("+"), b.Literal("-")), 0, 1), b.Repeat(digits, 1, 64)), 0, 1))
	space := jsonSpace(b)
	str := b.Terminal(b.JSONString(b.AnyText()))
	value := b.NewRule("value")
	v := b.Ref(value)
	comma := b.Terminal(b.Concat(b.Literal(","), space))
	member := b.Seq(str, b.Terminal(b.Concat(b.Literal(":"), space)), v)
	object := b.Seq(b.Terminal(b.Concat(b.Literal("{"), space)), b.List(member, comma, 0, -1), b.Terminal(b.Concat(space, b.Literal("}"))))
	array := b.Seq(b.Terminal(b.Concat(b.Literal("["), space)), b.List(v, comma, 0, -1), b.Terminal(b.Concat(space, b.Literal("]"))))
	b.Define(value, b.Choice(object, array, str, b.Terminal(number), b.Text("true"), b.Text("false"), b.Text("null")))
	return v
}

func jsonSpace(b *Builder) Expr {
	return b.Union(b.Empty(), b.Literal(" "), b.Concat(b.Literal("\n"), b.Repeat(b.Class(RuneRange{' ', ' '}, RuneRange{'\t', '\t'}), 0, 64)))
}

func mustGrammar(t testing.TB, b *Builder, root Symbol) *Grammar {
	t.Helper()
	g, err := b.Grammar(root)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestMatchesJSON(t *testing.T) {
	b := NewBuilder(DefaultLimits())
	g := mustGrammar(t, b, jsonGrammar(b))
	for text, want := range map[string]bool{
		`{}`: true, `[]`: true, `""`: true, `0`: true, `-0.5e+10`: true, `true`: true, `null`: true, `{"a":[1,2,{"b":null}],"c":"\u001f\n\"é😀"}`: true,
		"{\n  \"a\": 1\n}": true, `[1, 2]`: true, `[[[[[]]]]]`: true,
		``: false, `[1 ,2]`: false, ` 1`: false, `1 `: false,
		`{`: false, `[1,]`: false, `01`: false, `"\u0041"`: false, `"\ud83d"`: false, "\"\n\"": false, `nul`: false, `{}x`: false, "\"\xff\"": false,
	} {
		got, err := Matches(g, text)
		if err != nil || got != want {
			t.Errorf("Matches(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
}
