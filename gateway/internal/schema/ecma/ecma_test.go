package ecma

import (
	"errors"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern string
		yes, no []string
	}{
		{`^a*$`, []string{"", "aaa"}, []string{"b", "aab"}},
		{`a+`, []string{"xaax", "a"}, []string{"", "x"}},
		{`^(?=a)b`, nil, []string{"ab", "b"}},
		{`(?<=a)b`, []string{"ab"}, []string{"b", "cb"}},
		{`(?<!a)b$`, []string{"b", "cb"}, []string{"ab"}},
		{`^(?!foo).*$`, []string{"bar", ""}, []string{"foobar"}},
		{`(a)\1`, []string{"aa"}, []string{"a", "ab"}},
		{`^(?<x>a|b)\k<x>$`, []string{"aa", "bb"}, []string{"ab"}},
		{`\bcat\b`, []string{"a cat."}, []string{"concat"}},
		{`^\p{Letter}+$`, []string{"Grüße"}, []string{"a1"}},
		{`^\ud83d\ude00$`, []string{"😀"}, []string{"😁"}},
		{`^[^]$`, []string{"\n", "😀"}, []string{""}},
		{`[]`, nil, []string{"", "a"}},
		{`^\d{2,3}?$`, []string{"12", "123"}, []string{"1", "1234"}},
		{`^(a|b|ab)*c$`, []string{"ababc", "c"}, []string{"abd"}},
		{`^dev|alpha|rc$`, []string{"devil", "xalphax", "src"}, []string{"rcs", "xdev"}},
		{`a{,3}`, []string{"a{,3}"}, []string{"aaa"}},
		{`^[\w.-]+@[\w]+$`, []string{"a.b-c@d"}, []string{"a b@c"}},
		{`^\cA$`, []string{"\x01"}, []string{"A"}},
		{`(?i)^abc$`, []string{"ABC", "aBc"}, []string{"abd"}},
		{`^(\w\d)+$`, []string{"a1b2"}, []string{"a1b"}},
		{`^.$`, []string{"x", "é"}, []string{"\n", "\u2028"}},
		{`^\s$`, []string{"\ufeff", "\u00a0", "\v"}, []string{"\u200b"}},
		{`^((a?)*)*$`, []string{"aaaa"}, []string{"b"}},
	} {
		p, err := Parse(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		for _, text := range c.yes {
			if ok, err := p.Match(text, 100_000); !ok || err != nil {
				t.Errorf("%s does not match %q: %v", c.pattern, text, err)
			}
		}
		for _, text := range c.no {
			if ok, err := p.Match(text, 100_000); ok || err != nil {
				t.Errorf("%s matches %q: %v", c.pattern, text, err)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, pattern := range []string{`((`, `)`, `[`, `a**`, `*a`, `\`, `[z-a]`, `a{3,2}`, `a{100001}`, `\p{Nonsense}`, `\2(a)`, `(?<a`, `(?z)`,
		`\u{110000}`, `^*`} {
		if _, err := Parse(pattern); err == nil {
			t.Errorf("%s was read", pattern)
		}
	}
}

func TestIrregular(t *testing.T) {
	for pattern, want := range map[string]bool{
		`^a$|b`: false, `(^a|b$)`: false, `a^b`: true, `a$b`: true, `(?=a)`: true, `(a)\1`: true, `\ba`: true, `(^a)*`: true, `(^a)?b`: false,
		`^(a|b$)`: false, `x*^a`: true, `^^a$$`: false,
	} {
		p, err := Parse(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Irregular(); (got != "") != want {
			t.Errorf("%s: irregular %q", pattern, got)
		}
	}
}

// TestRanges holds how many ranges of characters a pattern may be made of. Places with the same property count once.
func TestRanges(t *testing.T) {
	letters, err := Parse(`\p{L}`)
	if err != nil || letters.Ranges() < 100 {
		t.Fatalf("%v, %v", letters, err)
	}
	many, err := Parse(strings.Repeat(`\p{L}`, 1000))
	if err != nil || many.Ranges() != letters.Ranges() {
		t.Errorf("%d ranges, %v", many.Ranges(), err)
	}
	for _, pattern := range []string{strings.Repeat(`[\p{L}x]`, 1000), `[` + strings.Repeat(`\p{L}`, 1000) + `]`, `(?i)` + strings.Repeat(`[\p{L}]`, 100)} {
		if _, err := Parse(pattern); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%.20s…: %v", pattern, err)
		}
	}
}

func TestMatchEndsInTime(t *testing.T) {
	p, err := Parse(`^(a+)+$`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Match("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", 100_000); err == nil {
		t.Error("no error though the steps are not enough")
	}
}
