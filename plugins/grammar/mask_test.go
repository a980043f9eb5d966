package grammar

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var (
	grammars = flag.Int("grammars", 100, "how many random grammars are compared with the reference")
	seed     = flag.Uint64("seed", 6, "where random grammars begin")
)

func mustCompile(t testing.TB, g *Grammar, x *TokenIndex) *Compiled {
	t.Helper()
	c, err := Compile(context.Background(), g, x, DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// tooFar is what shortest gives where it stops looking.
const tooFar = "too far"

// shortest finds the bytes that lead from where a matcher is to the end of a text most quickly; a special token stands in it as tagRune.
func shortest(t testing.TB, m *Matcher) (text string, ok bool) {
	t.Helper()
	err := m.run(func(e *engine) error {
		text, ok = e.shortest(m.at)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text, ok
}

func (e *engine) shortest(from configID) (string, bool) {
	type visit struct {
		at   configID
		from int
		text string
	}
	queue := []visit{{at: from}}
	seen := map[configID]bool{from: true}
	for i := 0; i < len(queue); i++ {
		if i > 5000 {
			return tooFar, true
		}
		v := queue[i]
		if e.ends(v.at) {
			text := ""
			for ; i > 0; i = queue[i].from {
				text = queue[i].text + text
			}
			return text, true
		}
		put := func(next configID, text string) {
			if next != deadConfig && !seen[next] {
				seen[next] = true
				queue = append(queue, visit{next, i, text})
			}
		}
		for column, b := range e.lexer.utf8.bytes {
			put(e.step(v.at, uint8(column)), string([]byte{b}))
		}
		if r := e.configs[v.at].row; r != noRow && e.parser.rows[r].tags {
			for _, id := range e.parser.tags {
				if id >= 0 {
					put(e.tag(v.at, id), string(tagRune))
				}
			}
		}
	}
	return "", false
}

// smallVocabulary has all bytes, some longer tokens, special ones and two ends; that of <t> is left out if tag is false.
func smallVocabulary(r *rand.Rand, letters []string, tag bool) Vocabulary {
	var v Vocabulary
	add := func(text string, special bool) {
		v.Tokens = append(v.Tokens, []byte(text))
		v.Special = append(v.Special, special)
	}
	add("<end>", true)
	add("", false)
	for b := range 256 {
		add(string([]byte{byte(b)}), false)
	}
	for len(v.Tokens) < 296 {
		text := randomText(r, letters, 4)
		if r.IntN(4) == 0 && len(text) > 2 {
			text = text[1:] // perhaps within a character
		}
		add(text, false)
	}
	if tag {
		add("<t>", true)
	}
	add("<u>", true)
	add("<stop>", false)
	v.Ends = []int32{0, int32(len(v.Tokens) - 1)}
	return v
}

// TestMasksAgainstReference compares masks with the definition: a token is allowed if and only if some text of the language goes on with it.
// That none is missing is seen from all texts up to a length; that none is too many, from a text that goes on with it and is in the language.
func TestMasksAgainstReference(t *testing.T) {
	alphabets := [][]string{{"a", "b", "é", "<t>"}, {"a", `"`, `\`, "n"}}
	r := rand.New(rand.NewPCG(5, *seed))
	empty, checked := 0, 0
	for n := range *grammars {
		letters := alphabets[n%len(alphabets)]
		tree := randomGrammar(r, letters)
		b := NewBuilder(DefaultLimits())
		g, err := tree.build(b)
		withTag := n%4 != 0
		var members []string
		texts := letters
		if n%2 == 0 {
			texts = []string{"a", "b", "é", string(tagRune)}
		}
		for _, text := range allTexts(texts, 5) {
			if tree.matches(text) {
				members = append(members, text)
			}
		}
		if errors.Is(err, ErrNoText) {
			if empty++; len(members) > 0 {
				t.Fatalf("grammar %d is said to have no text and has %q", n, members[0])
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		vocabulary := smallVocabulary(r, letters, withTag)
		x, err := NewTokens(vocabulary)
		if err != nil {
			t.Fatal(err)
		}
		checkMasks(t, r, fmt.Sprintf("grammar %d", n), tree, g, vocabulary, x, members, withTag)
		checked++
	}
	if checked < *grammars/2 {
		t.Errorf("only %d grammars of %d have texts", checked, *grammars)
	}
}

func checkMasks(t *testing.T, r *rand.Rand, name string, tree grammarTree, g *Grammar, v Vocabulary, x *TokenIndex, members []string, withTag bool) {
	t.Helper()
	// A special token is one byte that is in no text, so that texts with it are cut like others; where the vocabulary has none, the tag is its text.
	spell := func(text string) string {
		if withTag {
			return strings.ReplaceAll(text, string(tagRune), "\xf8")
		}
		return strings.ReplaceAll(text, string(tagRune), "<t>")
	}
	prefixes := map[string]bool{}
	whole := map[string]bool{}
	for _, text := range members {
		text = spell(text)
		whole[text] = true
		for i := range len(text) + 1 {
			prefixes[text[:i]] = true
		}
	}
	c := mustCompile(t, g, x)
	known := map[string]bool{}
	for range 3 {
		m := c.NewMatcher()
		text := ""
		bits := make([]uint64, x.Words())
		for range 6 {
			if err := m.Mask(bits); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if whole[text] && !m.MayEnd() {
				t.Fatalf("%s: the text may not end behind %q", name, text)
			}
			var allowed []int32
			for id, b := range v.Tokens {
				set := bits[id/64]>>(id%64)&1 != 0
				if slices.Contains(v.Ends, int32(id)) {
					if set != m.MayEnd() {
						t.Fatalf("%s: behind %q: end token %v, MayEnd %v", name, text, set, m.MayEnd())
					}
					continue
				}
				token := string(b)
				if v.Special[id] {
					if token != "<t>" && set {
						t.Fatalf("%s: behind %q: %q is allowed", name, text, token)
					}
					token = "\xf8"
				}
				if token == "\xf8" && !v.Special[id] {
					continue // looks like a special token here
				}
				if len(b) == 0 && set {
					t.Fatalf("%s: behind %q: a token without text is allowed", name, text)
				}
				if prefixes[text+token] && len(b) > 0 && !set && !(v.Special[id] && string(b) != "<t>") {
					t.Fatalf("%s: behind %q: %q is not allowed", name, text, token)
				}
				if set {
					checkWitness(t, name, tree, m, int32(id), text+token, withTag, known)
					allowed = append(allowed, int32(id))
				} else if err := acceptCopy(m, int32(id)); !errors.Is(err, ErrNotAllowed) {
					t.Fatalf("%s: behind %q: %q is not in the mask and accepted: %v", name, text, token, err)
				}
			}
			if len(allowed) == 0 {
				if !m.Finished() {
					t.Fatalf("%s: behind %q: nothing is allowed and it is not finished", name, text)
				}
				break
			}
			if m.Finished() {
				t.Fatalf("%s: behind %q: it is finished and goes on", name, text)
			}
			id := allowed[r.IntN(len(allowed))]
			if err := m.Accept(id); err != nil {
				t.Fatalf("%s: behind %q: %v", name, text, err)
			}
			if v.Special[id] {
				text += "\xf8"
			} else {
				text += string(v.Tokens[id])
			}
		}
	}
}

func acceptCopy(m *Matcher, id int32) error {
	other := *m
	return other.Accept(id)
}

// checkWitness shows that a text of the language begins with prefix, behind which a token leads.
func checkWitness(t *testing.T, name string, tree grammarTree, m *Matcher, id int32, prefix string, withTag bool, known map[string]bool) {
	t.Helper()
	other := *m
	if err := other.Accept(id); err != nil {
		t.Fatalf("%s: %q is in the mask: %v", name, prefix, err)
	}
	rest, ok := shortest(t, &other)
	if !ok {
		t.Fatalf("%s: nothing ends behind %q", name, prefix)
	}
	if rest == tooFar {
		return
	}
	text := strings.ReplaceAll(prefix+rest, "\xf8", string(tagRune))
	if known[text] || utf8.RuneCountInString(text) > 60 {
		return
	}
	known[text] = true
	if !withTag {
		// The tag's text and the same letters of other terminals look alike: the reference has to find a reading.
		if !anyReading(tree, text) {
			t.Fatalf("%s: behind %q: %q is not in the language", name, prefix, text)
		}
		return
	}
	if !tree.matches(text) {
		t.Fatalf("%s: behind %q: %q is not in the language", name, prefix, text)
	}
}

// anyReading tries each way of reading <t> as the tag or as its letters.
func anyReading(tree grammarTree, text string) bool {
	before, after, found := strings.Cut(text, "<t>")
	if !found {
		return tree.matches(text)
	}
	var try func(done, rest string) bool
	try = func(done, rest string) bool {
		before, after, found := strings.Cut(rest, "<t>")
		if !found {
			return tree.matches(done + rest)
		}
		return try(done+before+string(tagRune), after) || try(done+before+"<t>", after)
	}
	return try("", before+"<t>"+after)
}
