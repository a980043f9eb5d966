package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// normalizer rewrites a text before anything but added tokens is looked for.
type normalizer interface {
	// normalize also tells whether characters at the beginning were dropped, so
	// that the result no longer begins where the text began.
	normalize(text string) (out string, cut bool, err error)
}

// newNormalizer reads a normalizer; nil for none.
func newNormalizer(field string, raw json.RawMessage) (normalizer, error) {
	kind, err := componentType(field, raw)
	if err != nil || kind == "" {
		return nil, err
	}
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
		return normalizerFunc(lowercase), nil
	case "StripAccents":
		accents := loadUnicode().classes["accent"]
		return runeFilter(func(r rune) rune {
			if r >= utf8.RuneSelf && accents.contains(r) {
				return -1
			}
			return r
		}), nil
	case "ByteLevel":
		return normalizerFunc(func(s string) string { return string(mapBytes(nil, s)) }), nil
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
		return normalizerFunc(func(s string) string {
			if s == "" {
				return s
			}
			return def.Prepend + s
		}), nil
	case "Replace":
		return newReplace(field, raw)
	}
	return nil, fmt.Errorf("%s.type is %q: supported are Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Prepend, Replace, ByteLevel and Nmt", field, kind)
}

type normalizerSequence []normalizer

func (s normalizerSequence) normalize(text string) (string, bool, error) {
	anyCut := false
	for _, n := range s {
		out, cut, err := n.normalize(text)
		if err != nil {
			return "", false, err
		}
		text, anyCut = out, anyCut || cut
	}
	return text, anyCut, nil
}

// normalizerFunc is a normalizer that drops nothing.
type normalizerFunc func(string) string

func (f normalizerFunc) normalize(text string) (string, bool, error) { return f(text), false, nil }

// runeFilter maps each character by itself; -1 drops it.
type runeFilter func(r rune) rune

func (f runeFilter) normalize(text string) (string, bool, error) {
	first, size := utf8.DecodeRuneInString(text)
	return strings.Map(f, text), size > 0 && f(first) < 0, nil
}

// strip drops white space at the ends.
type strip struct{ left, right bool }

func (n strip) normalize(text string) (string, bool, error) {
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

func (r replacement) normalize(text string) (string, bool, error) {
	out, err := r.replace(text)
	if err != nil || r.content != "" || out == text {
		return out, false, err
	}
	spans, err := r.matcher.spans(text)
	return out, len(spans) > 0 && spans[0].match && spans[0].end > 0, err
}

func (r replacement) replace(text string) (string, error) {
	if literal, ok := r.matcher.(literalMatcher); ok && literal != "" {
		return strings.ReplaceAll(text, string(literal), r.content), nil
	}
	return replaceAll(r.matcher, text, r.content)
}

// lowercase lowers each character by itself: a final sigma is like any other.
func lowercase(s string) string {
	u := loadUnicode()
	var out strings.Builder
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
