package tokenizer

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// unlimited is a budget for tests that do not look at it.
func unlimited(t testing.TB) *budget.Budget {
	b := budget.New(context.Background(), budget.Limits{})
	t.Cleanup(b.End)
	return b
}

// TestScannersEqualExpressions compares each hand-written scanner with the
// regular expression that it stands in for.
func TestScannersEqualExpressions(t *testing.T) {
	var texts []string
	for _, c := range goldenCases(t, filepath.Join("testdata", "goldens", "qwen.cases.json.gz"))[:1200] {
		texts = append(texts, c.Text)
	}
	parts := []string{" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "a", "É", "A", "ǅ", "ʰ", "Я", "я", "/", "bC", "ß", "語", "1", "٣", "½", "!", "_", "'", "'s", "'S", "'ſ", "'LL", "'re", "'K", "\u0301", "क्षि", "👩‍💻", "\x00", "\u1c89", "\U00010d40", "\uFFFD", "\u200d"}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 3000 {
		text := ""
		for range rng.IntN(10) {
			text += parts[rng.IntN(len(parts))]
		}
		texts = append(texts, text)
	}
	for name, pattern := range map[string]string{"gpt2": patternGPT2, "qwen2": patternQwen2, "llama3": patternLlama3, "qwen3.5": patternQwen35, "o200k": patternO200K} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			expression, err := newRegexMatcher("pattern", pattern)
			if err != nil {
				t.Fatal(err)
			}
			scan := scannerFor(pattern)
			for _, text := range texts {
				want, err := expression.spans(unlimited(t), text)
				if err != nil {
					t.Fatal(err)
				}
				if got, _ := scan.spans(unlimited(t), text); !slices.Equal(got, want) {
					t.Fatalf("%q\nscanner    %v\nexpression %v", text, got, want)
				}
			}
		})
	}
}

func TestRegexRefuses(t *testing.T) {
	tests := map[string]string{
		"open group":         "(a",
		"close without open": "a)",
		"open class":         "[a",
		"nothing to repeat":  "*a",
		"back reference":     `(a)\1`,
		"unknown property":   `\p{Klingon}`,
		"unclosed property":  `\p{L`,
		"huge repeat":        `a{100000}`,
		"line break escape":  `\R`,
		"extended":           `(?x)a b`,
		"trailing escape":    `a\`,
		"backward range":     `[z-a]`,
		"posix class":        `[[:klingon:]]`,
		"repeats of repeats": `(?:(?:ab){1000}){1000}`,
		"backward repeat":    `a{3,2}`,
		"quantifiers":        "a" + strings.Repeat("{1,2}", 1000),
		"groups":             strings.Repeat("(", 1000),
		"classes":            strings.Repeat("[", 1000),
		"too many classes":   strings.Repeat(`[\p{L}&&\p{Lu}]`, 4000),
		"folded classes":     "(?i)" + strings.Repeat(`[\x{0}-\x{2fff}]`, 3000),
		"length":             strings.Repeat("a", maxPattern+1),
	}
	for name, pattern := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := compileRegex(pattern); err == nil {
				t.Errorf("%q is accepted", pattern)
			}
		})
	}
}
