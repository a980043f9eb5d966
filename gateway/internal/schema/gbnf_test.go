package schema

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// testTokens are those that the tests' model has.
var testTokens = map[int32]GBNFToken{10: {"<think>", true}, 11: {"</think>", true}, 12: {"<tool_call>", true}, 7: {"ab", false}}

func gbnf(text string) (*grammar.Grammar, error) {
	b := grammar.NewBuilder(grammar.DefaultLimits())
	root, err := GBNF(b, text, testTokens)
	if err != nil {
		return nil, err
	}
	return b.Grammar(root)
}

func TestGBNF(t *testing.T) {
	for _, c := range []struct {
		name, text string
		yes, no    []string
	}{
		{"left recursion", "root ::= root \"+\" [0-9] | [0-9]", []string{"1", "1+2+3"}, []string{"", "+1", "1+"}},
		{"brackets", "root ::= \"(\" root* \")\"", []string{"()", "(()())"}, []string{"(", "())"}},
		{"empty loop", "root ::= (\"a\"*)* root | \"b\"", []string{"b", "aab"}, []string{"a"}},
		{"comments and lines", "# a grammar\nroot ::= (\"a\" # one\n  | \"b\"\n)\n  | c\nc ::= \"c\" # last", []string{"a", "b", "c"}, []string{"ab"}},
		{"escapes", `root ::= "\x41\n\"\\" [\]\-a-c\u00e9]`, []string{"A\n\"\\]", "A\n\"\\é", "A\n\"\\b"}, []string{"A\n\"\\d"}},
		{"negated", `root ::= [^a-c\n]{2}`, []string{"xy", "éd"}, []string{"ax", "x\n", "x"}},
		{"counts", `root ::= "a"{2,3} "b"{,1} "c"{2,} .?`, []string{"aacc", "aaabccc", "aacc\n"}, []string{"acc", "aaaacc", "aac"}},
		{"tokens", `root ::= <think> (!</think>)* </think> "x"`, []string{"<think>hm\n</think>x", "<think></think>x"}, []string{"hm</think>x"}},
		{"tokens by number", `root ::= <[10]> (!<[11]>)* <[11]> <[7]>{2} "<[10]>"`, []string{"<think>hm\n</think>abab<[10]>", "<think></think>abab<[10]>"},
			[]string{"<[10]>hm<[11]>abab<[10]>", "<think>hm</think>ab<[10]>"}},
		{"arithmetic", "root ::= (expr \"=\" ws term \"\\n\")+\nexpr ::= term ([-+*/] term)*\nterm ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
			[]string{"a+b=c\n", "(1+x)*2 = y\n1=1\n"}, []string{"a+=b\n", "a=b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := gbnf(c.text)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range c.yes {
				if !matches(t, g, text) {
					t.Errorf("refuses %q", text)
				}
			}
			for _, text := range c.no {
				if matches(t, g, text) {
					t.Errorf("takes %q", text)
				}
			}
		})
	}
}

// TestGBNFTokens holds tokens of a vocabulary to a grammar that names them by number: only the special token itself stands for it, not its text.
func TestGBNFTokens(t *testing.T) {
	const text = "root ::= <[10]> (!<[11]>)* <[11]> <[12]> <[10]>"
	ids, err := GBNFTokens(text)
	if err != nil || !slices.Equal(ids, []int32{10, 11, 12}) {
		t.Fatalf("%v, %v", ids, err)
	}
	g, err := gbnf(text)
	if err != nil {
		t.Fatal(err)
	}
	v := grammar.Vocabulary{Tokens: make([][]byte, 300), Special: make([]bool, 300), Ends: []int32{299}}
	for id, token := range testTokens {
		v.Tokens[id], v.Special[id] = []byte(token.Text), token.Special
	}
	for i := range 256 {
		if v.Tokens[13+i%256] == nil {
			v.Tokens[13+i] = []byte{byte(i)}
		}
	}
	index, err := grammar.NewTokens(v)
	if err != nil {
		t.Fatal(err)
	}
	masks, err := grammar.Compile(context.Background(), g, index, grammar.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	m := masks.NewMatcher()
	bits := make([]uint64, index.Words())
	for i, step := range []struct {
		token   int32
		allowed []int32
		not     []int32
	}{
		{10, []int32{10}, []int32{7, 11, 12, 13 + '<', 13 + 'a', 299}},
		{7, []int32{7, 11, 13 + 'a', 13 + '<'}, []int32{10, 12, 299}},
		{11, []int32{7, 11}, []int32{10, 12, 299}},
		{12, []int32{12}, []int32{7, 10, 11, 13 + '<', 299}},
		{10, []int32{10}, []int32{7, 11, 299}},
	} {
		if err := m.Mask(bits); err != nil {
			t.Fatal(err)
		}
		for _, id := range step.allowed {
			if bits[id/64]>>(id%64)&1 == 0 {
				t.Errorf("step %d: %d is not allowed", i, id)
			}
		}
		for _, id := range step.not {
			if bits[id/64]>>(id%64)&1 != 0 {
				t.Errorf("step %d: %d is allowed", i, id)
			}
		}
		if err := m.Accept(step.token); err != nil {
			t.Fatal(err)
		}
	}
	if !m.MayEnd() {
		t.Error("the text is whole and may not end")
	}
}

func TestGBNFRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                         "no rule named root",
		"root ::= a":                               `no rule named "a"`,
		"root ::= \"a":                             "does not end",
		"root ::= [a":                              "does not end",
		"root ::= (\"a\"":                          "want ')'",
		"root ::= *":                               "nothing to repeat",
		"root ::= \"a\"\nroot ::= \"b\"":           "there twice",
		"start: \"a\"":                             "only GBNF is read",
		"%llguidance {}\nstart: /a/":               "only GBNF is read",
		"root ::= <[999]>":                         "there is no token of this number",
		"root ::= (!<[999]>)*":                     "there is no token of this number",
		"root ::= (!<[7]>)*":                       "is no special token",
		"root ::= <[10>":                           "want the number of a token",
		"root ::= <[-1]>":                          "want the number of a token",
		"root ::= <[99999999999]>":                 "want the number of a token",
		"root ::= !<[10]>":                         "* or +",
		"root ::= \"a\"{3,2}":                      "count",
		"root ::= \"a\"{100001}":                   "count",
		"root ::= !<a>":                            "* or +",
		"root ::= \"\\q\"":                         "unknown escape",
		"root ::= [z-a]":                           "before it begins",
		"root ::= \"\xff\"":                        "UTF-8",
		"root ::= " + strings.Repeat("(", 300):     "nest deeper",
		"root ::= \"" + strings.Repeat("a", 70000): "grammar too large",
	} {
		_, err := gbnf(text)
		if want == "grammar too large" {
			want = "bytes: 7"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", text, err, want)
		}
	}
	if _, err := gbnf("root ::= \"a\" root"); err == nil || !strings.Contains(err.Error(), "no text") {
		t.Errorf("a grammar without finite text: %v", err)
	}
}

func TestGBNFCorpus(t *testing.T) {
	path := corpus(t, "grammar-cases")
	for _, kind := range []string{"gbnf", "json_schema"} {
		lines(t, path+"/llamacpp-"+kind+".jsonl", func(line []byte) {
			var c struct {
				ID, Name, Text   string
				Accepts, Rejects []string
				Schema           json.RawMessage
			}
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			var g *grammar.Grammar
			if kind == "gbnf" {
				var err error
				if g, err = gbnf(c.Text); err != nil {
					if !strings.Contains(err.Error(), "no token of this number") {
						t.Errorf("%s: %v", c.ID, err)
					}
					return
				}
			} else {
				compiled, err := Compile(context.Background(), []byte(c.Text), Options{})
				if err != nil {
					t.Errorf("%s %s: %v", c.ID, c.Name, err)
					return
				}
				g = compiled.Grammar
				if len(compiled.Relaxed) > 0 {
					c.Rejects = nil
				}
				// llama.cpp takes a schema without type to be of the type that its keywords are about, and objects to be closed; the standard does not.
				c.Rejects = slices.DeleteFunc(c.Rejects, func(text string) bool { return len(compiled.Validate([]byte(text))) == 0 })
			}
			if strings.Contains(c.Text, "<[") {
				return // the texts of the case leave its tokens out
			}
			for _, text := range c.Accepts {
				if !matches(t, g, text) {
					t.Errorf("%s %s: refuses %q", c.ID, c.Name, text)
				}
			}
			for _, text := range c.Rejects {
				if matches(t, g, text) {
					t.Errorf("%s %s: takes %q", c.ID, c.Name, text)
				}
			}
		})
	}
}
