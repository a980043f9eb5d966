package ecma

import (
	"testing"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// FuzzParse says that no pattern breaks the parser, and that a pattern and its expression agree about every text.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{`^a*$`, `(a|b)+?c{2,3}`, `[^a-z\d]|\u{1f600}`, `^(?:x|^y)$`, `\p{L}+\s`, `(?<n>a)\k<n>`, `(?i)ab`, `a{,2}`, `[\w-]`,
		`$^`, `(^a|b$)`} {
		f.Add(pattern, "abc")
		f.Add(pattern, "aab😀")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if len(text) > 64 || !utf8.ValidString(text) {
			return
		}
		p, err := Parse(pattern)
		if err != nil {
			return
		}
		matched, err := p.Match(text, 20_000)
		if err != nil {
			return
		}
		limits := grammar.DefaultLimits()
		limits.Steps = 20_000
		b := grammar.NewBuilder(limits)
		e, err := p.Expression(b)
		if err != nil {
			if p.Irregular() == "" {
				t.Fatalf("%q: %v, and yet regular", pattern, err)
			}
			return
		}
		got, err := b.Contains(e, text)
		if err == nil && got != matched {
			t.Fatalf("%q on %q: matcher %v, expression %v", pattern, text, matched, got)
		}
	})
}
