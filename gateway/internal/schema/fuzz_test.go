package schema

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// FuzzCompile says that under strict every text of a grammar is valid, and that no schema breaks the compiler or the check.
func FuzzCompile(f *testing.F) {
	files, err := filepath.Glob("testdata/suite/*/*.json")
	if err != nil || len(files) == 0 {
		f.Fatal("no suite", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var groups []struct {
			Schema json.RawMessage
			Tests  []instance
		}
		if err := json.Unmarshal(text, &groups); err != nil {
			f.Fatal(err)
		}
		for _, group := range groups {
			for _, test := range group.Tests {
				f.Add([]byte(group.Schema), []byte(test.Data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, schema, instance []byte) {
		strict, err := Compile(context.Background(), schema, Options{Strict: true})
		if err == nil && len(strict.Relaxed) > 0 {
			t.Fatalf("strict, and yet relaxed: %v", strict.Relaxed)
		}
		loose, looseErr := Compile(context.Background(), schema, Options{})
		if err == nil && looseErr != nil {
			t.Fatalf("taken with strict, refused without: %v", looseErr)
		}
		if looseErr != nil {
			return
		}
		problems := loose.Validate(instance)
		if err != nil {
			return
		}
		ok, err := grammar.Matches(strict.Grammar, string(instance))
		if err != nil {
			return // a bound of the grammar's
		}
		if ok && len(problems) > 0 {
			t.Fatalf("the grammar takes what is not valid: %v", problems)
		}
	})
}

// FuzzGBNF says that no grammar breaks the parser, and that those that are taken can be encoded.
func FuzzGBNF(f *testing.F) {
	for _, text := range []string{
		"root ::= \"a\"", "root ::= [a-z]+ | (\"x\" root)*", "root ::= a\na ::= b | \"c\"{2,3}\nb ::= root", "root ::= <think> (!</think>)* .",
		"root ::= <[10]> (!<[11]>)* <[11]> <[7]>{2}",
		"# c\nroot ::=\n \"\\x41\\u00e9\" [^\\n]?",
	} {
		f.Add(text, "a")
	}
	f.Fuzz(func(t *testing.T, text, instance string) {
		g, err := gbnf(text)
		if err != nil {
			return
		}
		if _, err := grammar.Decode(g.Encode(), grammar.DefaultLimits()); err != nil {
			t.Fatal(err)
		}
		_, _ = grammar.Matches(g, instance)
	})
}
