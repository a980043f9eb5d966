package schema

import (
	"context"
	"encoding/json"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// letters is a vocabulary of single bytes and some longer pieces.
func letters(t testing.TB) *grammar.TokenIndex {
	t.Helper()
	tokens := [][]byte{nil}
	for c := range 256 {
		tokens = append(tokens, []byte{byte(c)})
	}
	for _, piece := range []string{`":`, `", "`, `"}`, `true`, `null`, ` {`, `[]`, `12`, `.0`, `ab`, "\n  ", `\n`, `\u00`, "é", "😀", `"a":`} {
		tokens = append(tokens, []byte(piece))
	}
	index, err := grammar.NewTokens(grammar.Vocabulary{Tokens: tokens, Ends: []int32{0}})
	if err != nil {
		t.Fatal(err)
	}
	walkTokens = tokens
	return index
}

var walkTokens [][]byte

// randomText follows the masks of a grammar: any token that is allowed, closing what is open once it has become long. It gives up on texts that do not end.
func randomText(t *testing.T, compiled *grammar.Compiled, r *rand.Rand, words int) (string, bool) {
	t.Helper()
	m := compiled.NewMatcher()
	mask := make([]uint64, words)
	var b strings.Builder
	for step := range 600 {
		if m.Finished() || m.MayEnd() && (step > 40 || r.IntN(4) == 0) {
			return b.String(), true
		}
		if err := m.Mask(mask); err != nil {
			return b.String(), false
		}
		var allowed []int32
		for i, word := range mask {
			for ; word != 0; word &= word - 1 {
				if id := int32(64*i + bits.TrailingZeros64(word)); id != 0 {
					allowed = append(allowed, id)
				}
			}
		}
		if len(allowed) == 0 {
			t.Fatalf("nothing is allowed behind %q", b.String())
		}
		id := allowed[r.IntN(len(allowed))]
		if step > 20 { // towards the end
			for _, want := range []string{`"`, `}`, `]`, `:`, `,`, `0`, `1`} {
				for _, other := range allowed {
					if string(walkTokens[other]) == want && r.IntN(3) > 0 {
						id = other
						break
					}
				}
			}
		}
		if err := m.Accept(id); err != nil {
			t.Fatalf("%q behind %q: %v", walkTokens[id], b.String(), err)
		}
		b.Write(walkTokens[id])
	}
	return b.String(), false
}

// TestWalks writes random texts under strict: each that is finished is valid.
func TestWalks(t *testing.T) {
	index := letters(t)
	r := rand.New(rand.NewPCG(1, 2))
	schemas := []json.RawMessage{}
	files, err := filepath.Glob("testdata/suite/*/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var groups []struct{ Schema json.RawMessage }
		if err := json.Unmarshal(text, &groups); err != nil {
			t.Fatal(err)
		}
		for _, group := range groups {
			schemas = append(schemas, group.Schema)
		}
	}
	walks := 3
	if os.Getenv("TINSMITH_TESTDATA") != "" {
		real, err := filepath.Glob(corpus(t, "maskbench") + "/*.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range real {
			lines(t, file, func(line []byte) {
				var c struct{ Schema json.RawMessage }
				if err := json.Unmarshal(line, &c); err != nil {
					t.Fatal(err)
				}
				if len(c.Schema) < 20_000 && r.IntN(3) == 0 {
					schemas = append(schemas, append(json.RawMessage(nil), c.Schema...))
				}
			})
		}
	}
	finished, open := 0, 0
	for _, schema := range schemas {
		compiled, err := Compile(context.Background(), schema, Options{Strict: true})
		if err != nil {
			continue
		}
		masks, err := grammar.Compile(context.Background(), compiled.Grammar, index, grammar.DefaultLimits())
		if err != nil {
			t.Errorf("%.300s: %v", schema, err)
			continue
		}
		for range walks {
			text, ok := randomText(t, masks, r, index.Words())
			if !ok {
				open++
				continue
			}
			finished++
			if problems := compiled.Validate([]byte(text)); len(problems) > 0 {
				t.Errorf("%.600s\n%q\n%v", schema, text, problems)
			}
		}
	}
	t.Logf("%d texts finished, %d not", finished, open)
	if finished < 100 {
		t.Error("hardly any text was finished")
	}
}
