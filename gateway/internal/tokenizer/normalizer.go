package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// normalizer rewrites a text before anything but added tokens is looked for.
type normalizer interface {
	// normalize also tells whether characters at the beginning were dropped, so
	// that the result no longer begins where the text began. What it makes is paid
	// for before it is made; an out that is not the text itself is the caller's to return.
	normalize(b *budget.Budget, text string) (out string, cut bool, err error)
}

// costs says what cost too much, if that is the error.
func costs(what string, err error) error {
	var exceeded *budget.Exceeded
	if errors.As(err, &exceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return err
}

// namedNormalizer says which normalizer a text has cost too much in.
type namedNormalizer struct {
	name string
	of   normalizer
}

func (n namedNormalizer) normalize(b *budget.Budget, text string) (string, bool, error) {
	out, cut, err := n.of.normalize(b, text)
	return out, cut, costs(n.name, err)
}

// newNormalizer reads a normalizer; nil for none.
func newNormalizer(field string, raw json.RawMessage) (normalizer, error) {
	kind, err := componentType(field, raw)
	if err != nil || kind == "" {
		return nil, err
	}
	n, err := newNormalizerOf(field, kind, raw)
	if err != nil || kind == "Sequence" {
		return n, err
	}
	return namedNormalizer{fmt.Sprintf("%s (%s)", field, kind), n}, nil
}

func newNormalizerOf(field, kind string, raw json.RawMessage) (normalizer, error) {
	switch kind {
	case "Sequence":
		var def struct {
			Normalizers []json.RawMessage `json:"normalizers"`
		}
		if err := fields(field, raw, &def, "normalizers"); err != nil {
			return nil, err
		}
		var out normalizerSequence
		for i, part := range def.Normalizers {
			n, err := newNormalizer(fmt.Sprintf("%s.normalizers[%d]", field, i), part)
			if err != nil {
				return nil, err
			}
			if n != nil {
				out = append(out, n)
			}
			if inner, ok := n.(normalizerSequence); ok { // stages count, however they are put together
				out = append(out[:len(out)-1], inner...)
			}
			if len(out) > maxStages {
				return nil, fmt.Errorf("%s has more than %d stages", field, maxStages)
			}
		}
		return out, nil
	case "NFC":
		return normalForm{compose: true}, nil
	case "NFD":
		return normalForm{}, nil
	case "NFKC":
		return normalForm{compatible: true, compose: true}, nil
	case "NFKD":
		return normalForm{compatible: true}, nil
	case "Lowercase":
		return normalizerFunc{lowercase, 2}, nil
	case "StripAccents":
		accents := loadUnicode().classes["accent"]
		return runeFilter(func(r rune) rune {
			if r >= utf8.RuneSelf && accents.contains(r) {
				return -1
			}
			return r
		}), nil
	case "ByteLevel":
		return normalizerFunc{func(s string) string { return string(mapBytes(make([]byte, 0, 2*len(s)), s)) }, 2}, nil
	case "Nmt":
		return runeFilter(nmt), nil
	case "Strip":
		var def struct {
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}
		if err := fields(field, raw, &def, "strip_left", "strip_right"); err != nil {
			return nil, err
		}
		return strip{def.Left, def.Right}, nil
	case "Prepend":
		var def struct {
			Prepend string `json:"prepend"`
		}
		if err := fields(field, raw, &def, "prepend"); err != nil {
			return nil, err
		}
		return prepend(def.Prepend), nil
	case "Replace":
		return newReplace(field, raw)
	}
	return nil, fmt.Errorf("%s.type is %q: supported are Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel and Nmt", field, kind)
}

type normalizerSequence []normalizer

func (s normalizerSequence) normalize(b *budget.Budget, text string) (string, bool, error) {
	anyCut := false
	held := b.Bytes()
	for _, n := range s {
		before := b.Bytes() - held
		out, cut, err := n.normalize(b, text)
		if err != nil {
			return "", false, err
		}
		b.Return(before) // the text that this stage began with
		text, anyCut = out, anyCut || cut
	}
	return text, anyCut, nil
}

// normalizerFunc is a normalizer that drops nothing and makes at most so many bytes of one.
type normalizerFunc struct {
	of    func(string) string
	grows int
}

func (f normalizerFunc) normalize(b *budget.Budget, text string) (string, bool, error) {
	if err := b.Spend(4*len(text), f.grows*len(text)); err != nil {
		return "", false, err
	}
	return f.of(text), false, nil
}

// prepend puts a text before one that is not empty.
type prepend string

func (p prepend) normalize(b *budget.Budget, text string) (string, bool, error) {
	if text == "" {
		return text, false, nil
	}
	if err := b.Take(len(p) + len(text)); err != nil {
		return "", false, err
	}
	return string(p) + text, false, nil
}

// runeFilter maps each character by itself; -1 drops it.
type runeFilter func(r rune) rune

func (f runeFilter) normalize(b *budget.Budget, text string) (string, bool, error) {
	if err := b.Spend(4*len(text), len(text)); err != nil {
		return "", false, err
	}
	first, size := utf8.DecodeRuneInString(text)
	return strings.Map(f, text), size > 0 && f(first) < 0, nil
}

// strip drops white space at the ends.
type strip struct{ left, right bool }

func (n strip) normalize(b *budget.Budget, text string) (string, bool, error) {
	if err := b.Spend(len(text), len(text)); err != nil { // the text that it is a part of stays
		return "", false, err
	}
	out := text
	if n.left {
		out = out[leadingSpace(out):]
	}
	cut := len(out) < len(text)
	if n.right {
		out = out[:len(out)-trailingSpace(out)]
	}
	return out, cut, nil
}

// replacement replaces the matches of a pattern; it is a normalizer and a stage
// of decoding alike.
type replacement struct {
	matcher matcher
	content string
}

func newReplace(field string, raw json.RawMessage) (replacement, error) {
	var def struct {
		Pattern patternDefinition `json:"pattern"`
		Content string            `json:"content"`
	}
	if err := fields(field, raw, &def, "pattern", "content"); err != nil {
		return replacement{}, err
	}
	m, err := newMatcher(field+".pattern", def.Pattern)
	return replacement{m, def.Content}, err
}

func (r replacement) normalize(b *budget.Budget, text string) (string, bool, error) {
	out, err := r.replace(b, text)
	if err != nil || r.content != "" || out == text {
		return out, false, err
	}
	spans, err := r.matcher.spans(b, text)
	defer b.Return(len(spans) * spanBytes)
	return out, len(spans) > 0 && spans[0].match && spans[0].end > 0, err
}

func (r replacement) replace(b *budget.Budget, text string) (string, error) {
	if literal, ok := r.matcher.(literalMatcher); ok && literal != "" {
		count := strings.Count(text, string(literal))
		if err := b.Spend(len(text)+4*count, len(text)); err != nil {
			return "", err
		}
		if err := b.TakeEach(count, max(0, len(r.content)-len(literal))); err != nil {
			return "", err
		}
		return strings.ReplaceAll(text, string(literal), r.content), nil
	}
	return replaceAll(b, r.matcher, text, r.content)
}

// lowercase lowers each character by itself: a final sigma is like any other.
func lowercase(s string) string {
	u := loadUnicode()
	var out strings.Builder
	out.Grow(len(s))
	for _, r := range s {
		if lower, ok := u.lower[r]; ok {
			for _, l := range lower {
				out.WriteRune(l)
			}
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// nmt drops control characters and makes the odd spaces ordinary, as
// SentencePiece's nmt rules do.
func nmt(r rune) rune {
	switch {
	case 0x1 <= r && r <= 0x8, r == 0xB, 0xE <= r && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
		return -1
	case r == 0x9, r == 0xA, r == 0xC, r == 0xD, r == 0x1680, 0x200B <= r && r <= 0x200F, r == 0x2028, r == 0x2029,
		r == 0x2581, r == 0xFEFF, r == 0xFFFD:
		return ' '
	}
	return r
}
