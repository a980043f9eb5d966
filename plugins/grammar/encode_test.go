package grammar

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestEncoding demands that grammars come back from their bytes, and that equal calls give equal bytes.
func TestEncoding(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	letters := []string{"a", "b", "é", `"`}
	for n := range 500 {
		tree := randomGrammar(r, letters)
		g, err := tree.build(NewBuilder(DefaultLimits()))
		if errors.Is(err, ErrNoText) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		again, err := tree.build(NewBuilder(DefaultLimits()))
		if err != nil || !bytes.Equal(g.Encode(), again.Encode()) || g.Hash() != again.Hash() {
			t.Fatalf("grammar %d: built again it has other bytes: %v", n, err)
		}
		back, err := Decode(g.Encode(), DefaultLimits())
		if err != nil {
			t.Fatalf("grammar %d: %v", n, err)
		}
		if !bytes.Equal(back.Encode(), g.Encode()) {
			t.Fatalf("grammar %d: it comes back with other bytes", n)
		}
		one, other := mustCompile(t, g, nil), mustCompile(t, back, nil)
		for range 20 {
			text := randomText(r, letters, 8)
			want, err := one.MatchesText(text)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := other.MatchesText(text); err != nil || got != want {
				t.Fatalf("grammar %d: %q: %v, %v; before it was encoded %v", n, text, got, err, want)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	b := NewBuilder(DefaultLimits())
	good := mustGrammar(t, b, jsonGrammar(b)).Encode()
	for name, data := range map[string][]byte{
		"nothing":            nil,
		"another beginning":  append([]byte("tgr\x02"), good[4:]...),
		"cut off":            good[:len(good)-1],
		"something left":     append(bytes.Clone(good), 0),
		"no rule":            []byte(encodingMagic + "\x00\x00\x00"),
		"no text":            []byte(encodingMagic + "\x00\x00\x01\x01\x00"),
		"a loop without end": []byte(encodingMagic + "\x00\x00\x01\x02\x02\x02\x01\x01"),
		"many terms":         []byte(encodingMagic + "\xff\xff\x03"),
		"an unknown kind":    []byte(encodingMagic + "\x01\xff\x00"),
		"a rule not reached": []byte(encodingMagic + "\x00\x00\x02\x01\x01\x01\x01"),
		"a long number":      []byte(encodingMagic + strings.Repeat("\xff", 20)),
		"a term not used":    []byte(encodingMagic + "\x01\x03\x01a\x00\x01\x01\x01"),
	} {
		if g, err := Decode(data, DefaultLimits()); err == nil {
			t.Errorf("%s: decoded to %d rules", name, len(g.rules))
		}
	}
	small := DefaultLimits()
	small.Encoding = len(good) - 1
	var limit *LimitError
	if _, err := Decode(good, small); !errors.As(err, &limit) {
		t.Errorf("bytes above the limit: %v", err)
	}
}

// FuzzDecode gives hostile bytes to Decode, and hostile tokens to a matcher of what it takes.
func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 30 {
		if g, err := randomGrammar(r, []string{"a", `"`, "é"}).build(NewBuilder(DefaultLimits())); err == nil {
			f.Add(g.Encode(), []byte("a\"\xc3\xa9a"))
		}
	}
	b := NewBuilder(DefaultLimits())
	if g, err := b.Grammar(schemaLike(b)); err == nil {
		f.Add(g.Encode(), []byte(`{"name": 1}`))
	}
	x, err := NewTokens(smallVocabulary(r, []string{`"`, "a", "é", "{"}, true))
	if err != nil {
		f.Fatal(err)
	}
	limits := DefaultLimits()
	limits.Steps, limits.MatcherMemory, limits.MaskSteps, limits.LexerStates, limits.Items = 20_000, 2<<20, 100_000, 2000, 2000
	f.Fuzz(func(t *testing.T, data, tokens []byte) {
		g, err := Decode(data, limits)
		if err != nil {
			return
		}
		c, err := compile(g, x, limits)
		if err != nil {
			return
		}
		m := c.NewMatcher()
		bits := make([]uint64, x.Words())
		for _, b := range tokens[:min(len(tokens), 30)] {
			err := m.Mask(bits)
			var limit *LimitError
			if errors.As(err, &limit) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			id := int32(b)
			allowed := bits[id/64]>>(id%64)&1 != 0
			if err := m.Accept(id); (err == nil) != allowed && !errors.As(err, &limit) {
				t.Fatalf("token %d: in the mask %v, accepted: %v", id, allowed, err)
			}
		}
	})
}

// FuzzMatcher follows random tokens under grammars of random shape, and compares what is accepted with the masks.
func FuzzMatcher(f *testing.F) {
	f.Add(uint64(1), []byte("abc"))
	f.Add(uint64(2), []byte{0, 255, 1, 'a'})
	letters := []string{"a", "b", "é", "<t>"}
	f.Fuzz(func(t *testing.T, seed uint64, tokens []byte) {
		r := rand.New(rand.NewPCG(seed, 1))
		g, err := randomGrammar(r, letters).build(NewBuilder(DefaultLimits()))
		if err != nil {
			return
		}
		x, err := NewTokens(smallVocabulary(r, letters, seed%2 == 0))
		if err != nil {
			t.Fatal(err)
		}
		m := mustCompile(t, g, x).NewMatcher()
		bits := make([]uint64, x.Words())
		for _, b := range tokens[:min(len(tokens), 20)] {
			if err := m.Mask(bits); err != nil {
				t.Fatal(err)
			}
			id := int32(b) + 40
			if err := m.Accept(id); (err == nil) != (bits[id/64]>>(id%64)&1 != 0) {
				t.Fatalf("token %d: %v", id, err)
			}
		}
	})
}
