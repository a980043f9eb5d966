package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// normalizer rewrites a text before anything but added tokens is looked for.
type normalizer interface {
	normalize(text string) (string, error)
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
		return normalizerFunc(stripAccents), nil
	case "ByteLevel":
		return normalizerFunc(func(s string) string { return string(mapBytes(nil, s)) }), nil
	case "Nmt":
		return normalizerFunc(nmt), nil
	case "Strip":
		var def struct {
			Left  bool `json:"strip_left"`
			Right bool `json:"strip_right"`
		}
		if err := fields(field, raw, &def, "strip_left", "strip_right"); err != nil {
			return nil, err
		}
		return normalizerFunc(func(s string) string {
			if def.Left {
				s = s[leadingSpace(s):]
			}
			if def.Right {
				s = s[:len(s)-trailingSpace(s)]
			}
			return s
		}), nil
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

func (s normalizerSequence) normalize(text string) (string, error) {
	for _, n := range s {
		var err error
		if text, err = n.normalize(text); err != nil {
			return "", err
		}
	}
	return text, nil
}

type normalizerFunc func(string) string

func (f normalizerFunc) normalize(text string) (string, error) { return f(text), nil }

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

func (r replacement) normalize(text string) (string, error) {
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

func stripAccents(s string) string {
	accents := loadUnicode().classes["accent"]
	return strings.Map(func(r rune) rune {
		if r >= utf8.RuneSelf && accents.contains(r) {
			return -1
		}
		return r
	}, s)
}

// nmt drops control characters and makes the odd spaces ordinary, as
// SentencePiece's nmt rules do.
func nmt(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case 0x1 <= r && r <= 0x8, r == 0xB, 0xE <= r && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
			return -1
		case r == 0x9, r == 0xA, r == 0xC, r == 0xD, r == 0x1680, 0x200B <= r && r <= 0x200F, r == 0x2028, r == 0x2029,
			r == 0x2581, r == 0xFEFF, r == 0xFFFD:
			return ' '
		}
		return r
	}, s)
}
