package schema

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

func gbnf(text string) (*grammar.Grammar, error) {
	b := grammar.NewBuilder(grammar.DefaultLimits())
	root, err := GBNF(b, text)
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

func TestGBNFRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                     "no rule named root",
		"root ::= a":                           `no rule named "a"`,
		"root ::= \"a":                         "does not end",
		"root ::= [a":                          "does not end",
		"root ::= (\"a\"":                      "want ')'",
		"root ::= *":                           "nothing to repeat",
		"root ::= \"a\"\nroot ::= \"b\"":       "there twice",
		"start: \"a\"":                         "only GBNF is read",
		"%llguidance {}\nstart: /a/":           "only GBNF is read",
		"root ::= <[10]>":                      "tokens by number",
		"root ::= \"a\"{3,2}":                  "count",
		"root ::= \"a\"{100001}":               "count",
		"root ::= !<a>":                        "* or +",
		"root ::= \"\\q\"":                     "unknown escape",
		"root ::= [z-a]":                       "before it begins",
		"root ::= \"\xff\"":                    "UTF-8",
		"root ::= " + strings.Repeat("(", 300): "nest deeper",
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
					if !strings.Contains(err.Error(), "tokens by number") {
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
