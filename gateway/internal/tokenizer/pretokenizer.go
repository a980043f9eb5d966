package tokenizer

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// preTokenizer cuts text into the words the model sees. What one stage leaves
// the next one cuts further; pieces that are ids pass through.
type preTokenizer interface {
	// cut adds the pieces of p, which is text and not empty, to out.
	cut(b *budget.Budget, out []piece, p piece) ([]piece, error)
}

// maxStages bounds the stages of a pipeline; the longest ones known have about twenty.
const maxStages = 128

// newPreTokenizers reads a pre-tokenizer as a list of stages, none if absent.
func newPreTokenizers(field string, raw json.RawMessage) ([]preTokenizer, error) {
	kind, err := componentType(field, raw)
	if err != nil || kind == "" {
		return nil, err
	}
	if kind == "Sequence" {
		var def struct {
			PreTokenizers []json.RawMessage `json:"pretokenizers"`
		}
		if err := fields(field, raw, &def, "pretokenizers"); err != nil {
			return nil, err
		}
		var out []preTokenizer
		for i, part := range def.PreTokenizers {
			stages, err := newPreTokenizers(fmt.Sprintf("%s.pretokenizers[%d]", field, i), part)
			if err != nil {
				return nil, err
			}
			if out = append(out, stages...); len(out) > maxStages {
				return nil, fmt.Errorf("%s has more than %d stages", field, maxStages)
			}
		}
		return out, nil
	}
	stage, err := newPreTokenizer(field, kind, raw)
	if err != nil {
		return nil, err
	}
	switch stage.(type) {
	case *byteLevel, *metaspace: // which cannot fail but for want of memory, and are looked for by what they are
		return []preTokenizer{stage}, nil
	}
	return []preTokenizer{namedPreTokenizer{fmt.Sprintf("%s (%s)", field, kind), stage}}, nil
}

func newPreTokenizer(field, kind string, raw json.RawMessage) (preTokenizer, error) {
	class := func(name string) runeMatcher { return loadUnicode().classes[name].contains }
	switch kind {
	case "ByteLevel":
		return newByteLevel(field, raw)
	case "Metaspace":
		return newMetaspace(field, raw)
	case "Split":
		var def struct {
			Pattern  patternDefinition `json:"pattern"`
			Behavior behavior          `json:"behavior"`
			Invert   bool              `json:"invert"`
		}
		if err := fields(field, raw, &def, "pattern", "behavior", "invert"); err != nil {
			return nil, err
		}
		if err := checkBehavior(field, def.Behavior); err != nil {
			return nil, err
		}
		m, err := newMatcher(field+".pattern", def.Pattern)
		if err != nil {
			return nil, err
		}
		if def.Invert {
			m = inverted{m}
		}
		return splitter{m, def.Behavior}, nil
	case "Digits":
		var def struct {
			Individual bool `json:"individual_digits"`
		}
		if err := fields(field, raw, &def, "individual_digits"); err != nil {
			return nil, err
		}
		if def.Individual {
			return splitter{class("rust_numeric"), isolated}, nil
		}
		return splitter{class("rust_numeric"), contiguous}, nil
	case "Punctuation":
		def := struct {
			Behavior behavior `json:"behavior"`
		}{isolated}
		if err := fields(field, raw, &def); err != nil {
			return nil, err
		}
		return splitter{class("rust_punctuation"), def.Behavior}, checkBehavior(field, def.Behavior)
	case "WhitespaceSplit":
		return splitter{class("rust_white"), removed}, nil
	case "Whitespace":
		return splitter{inverted{wordMatcher{}}, removed}, nil
	case "BertPreTokenizer":
		return stages{splitter{class("rust_white"), removed}, splitter{class("rust_punctuation"), isolated}}, nil
	case "CharDelimiterSplit":
		var def struct {
			Delimiter string `json:"delimiter"`
		}
		if err := fields(field, raw, &def, "delimiter"); err != nil {
			return nil, err
		}
		if _, err := singleRune(field+".delimiter", def.Delimiter); err != nil {
			return nil, err
		}
		return splitter{literalMatcher(def.Delimiter), removed}, nil
	case "FixedLength":
		def := struct {
			Length int `json:"length"`
		}{5}
		if err := fields(field, raw, &def); err != nil {
			return nil, err
		}
		if def.Length < 1 {
			return nil, fmt.Errorf("%s.length is %d: at least 1 is needed", field, def.Length)
		}
		return splitter{fixedLength(def.Length), isolated}, nil
	}
	return nil, fmt.Errorf("%s.type is %q: supported are Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit and FixedLength", field, kind)
}

// namedPreTokenizer says which stage a text has cost too much in.
type namedPreTokenizer struct {
	name string
	of   preTokenizer
}

func (n namedPreTokenizer) cut(b *budget.Budget, out []piece, p piece) ([]piece, error) {
	out, err := n.of.cut(b, out, p)
	return out, costs(n.name, err)
}

// splitter cuts by a pattern.
type splitter struct {
	matcher  matcher
	behavior behavior
}

func (s splitter) cut(b *budget.Budget, out []piece, p piece) ([]piece, error) {
	spans, err := s.matcher.spans(b, p.text)
	if err != nil {
		return nil, err
	}
	defer b.Return(len(spans) * spanBytes)
	for _, c := range s.behavior.apply(spans) {
		if c.start < c.end {
			if err := b.Take(pieceBytes); err != nil {
				return nil, err
			}
			out = append(out, piece{text: p.text[c.start:c.end], id: noID, atStart: p.atStart && c.start == 0})
		}
	}
	return out, nil
}

// stages are pre-tokenizers one after the other.
type stages []preTokenizer

func (s stages) cut(b *budget.Budget, out []piece, p piece) ([]piece, error) {
	pieces := []piece{p}
	for _, stage := range s {
		var err error
		if pieces, err = cutAll(b, stage, pieces); err != nil {
			return nil, err
		}
	}
	return append(out, pieces...), nil
}

// cutAll runs one stage over all pieces.
func cutAll(b *budget.Budget, stage preTokenizer, pieces []piece) ([]piece, error) {
	out := make([]piece, 0, len(pieces))
	for _, p := range pieces {
		var err error
		switch {
		case p.id != noID:
			if err = b.Take(pieceBytes); err == nil {
				out = append(out, p)
			}
		case p.text != "":
			if err = b.Work(16); err == nil {
				out, err = stage.cut(b, out, p)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	b.Return(len(pieces) * pieceBytes)
	return out, nil
}

// wordMatcher matches `\w+|[^\w\s]+`.
type wordMatcher struct{}

func (wordMatcher) spans(b *budget.Budget, text string) ([]span, error) {
	if err := b.Work(8 * len(text)); err != nil {
		return nil, err
	}
	u := loadUnicode()
	word := u.classes["rust_word"]
	kind := func(r rune) int {
		switch {
		case word.contains(r):
			return 1
		case u.kinds.at(r)&kindSpace != 0:
			return 0
		}
		return 2
	}
	out := spanList{budget: b}
	last := -1
	for i, r := range text {
		end := i + utf8.RuneLen(r)
		k := kind(r)
		if k == last {
			out.spans[len(out.spans)-1].end = int32(end)
			continue
		}
		if out.add(i, end, k != 0); out.err != nil {
			break
		}
		last = k
	}
	return out.spans, out.err
}

// fixedLength matches stretches of so many characters, the last one shorter.
type fixedLength int

func (n fixedLength) spans(b *budget.Budget, text string) ([]span, error) {
	out := spanList{budget: b, err: b.Work(2 * len(text))}
	count := 0
	for i, r := range text {
		if count%int(n) == 0 {
			out.add(i, i, true)
		}
		if out.err != nil {
			break
		}
		out.spans[len(out.spans)-1].end = int32(i + utf8.RuneLen(r))
		count++
	}
	return out.spans, out.err
}

// byteLevel is the pre-tokenizer of GPT-2: it may put a space before a piece,
// may cut it by the GPT-2 pattern, and writes it in the byte-level alphabet.
type byteLevel struct {
	addPrefixSpace bool
	scan           scanner // nil: no cutting
	raw            bool    // leave the translation to the model
}

func newByteLevel(field string, raw json.RawMessage) (*byteLevel, error) {
	def := struct {
		AddPrefixSpace bool `json:"add_prefix_space"`
		UseRegex       bool `json:"use_regex"`
	}{UseRegex: true}
	if err := fields(field, raw, &def, "add_prefix_space"); err != nil {
		return nil, err
	}
	b := &byteLevel{addPrefixSpace: def.AddPrefixSpace}
	if def.UseRegex {
		b.scan = scannerFor(patternGPT2)
	}
	return b, nil
}

func (s *byteLevel) cut(b *budget.Budget, out []piece, p piece) ([]piece, error) {
	text := p.text
	if s.addPrefixSpace && text[0] != ' ' {
		if err := b.Take(len(text) + 1); err != nil {
			return nil, costs("pre_tokenizer (ByteLevel)", err)
		}
		text = " " + text
	}
	write := func(word string, atStart bool) error {
		cost := pieceBytes
		if !s.raw {
			cost += 2 * len(word)
		}
		if err := b.Take(cost); err != nil {
			return costs("pre_tokenizer (ByteLevel)", err)
		}
		if !s.raw {
			word = string(mapBytes(make([]byte, 0, 2*len(word)), word))
		}
		out = append(out, piece{text: word, id: noID, atStart: atStart})
		return costs("pre_tokenizer (ByteLevel)", b.Work(2*len(word)+8))
	}
	if s.scan == nil {
		return out, write(text, p.atStart)
	}
	for i := 0; i < len(text); {
		end := s.scan(text, i)
		if err := write(text[i:end], p.atStart && i == 0); err != nil {
			return nil, err
		}
		i = end
	}
	return out, nil
}

// metaspace is the pre-tokenizer of SentencePiece: spaces become a visible
// character, which begins each word.
type metaspace struct {
	replacement string
	scheme      string // of always, first, never
	split       bool
}

func newMetaspace(field string, raw json.RawMessage) (*metaspace, error) {
	def := struct {
		Replacement    string `json:"replacement"`
		AddPrefixSpace *bool  `json:"add_prefix_space"`
		PrependScheme  string `json:"prepend_scheme"`
		Split          *bool  `json:"split"`
	}{PrependScheme: "always"}
	if err := fields(field, raw, &def, "replacement"); err != nil {
		return nil, err
	}
	if _, err := singleRune(field+".replacement", def.Replacement); err != nil {
		return nil, err
	}
	switch def.PrependScheme {
	case "always", "first", "never":
	default:
		return nil, fmt.Errorf("%s.prepend_scheme is %q: supported are always, first and never", field, def.PrependScheme)
	}
	if def.AddPrefixSpace != nil && !*def.AddPrefixSpace && def.PrependScheme != "never" {
		return nil, fmt.Errorf("%s.add_prefix_space is false: prepend_scheme, %q, must then be never", field, def.PrependScheme)
	}
	return &metaspace{def.Replacement, def.PrependScheme, def.Split == nil || *def.Split}, nil
}

func (m *metaspace) cut(b *budget.Budget, out []piece, p piece) ([]piece, error) {
	var err error
	if p.text, err = m.mark(b, p); err != nil {
		return nil, err
	}
	if !m.split {
		return append(out, p), b.Take(pieceBytes)
	}
	for i := 0; i < len(p.text); {
		if err := b.Take(pieceBytes); err != nil {
			return nil, costs("pre_tokenizer (Metaspace)", err)
		}
		end := m.word(p.text, i)
		out = append(out, piece{text: p.text[i:end], id: noID, atStart: p.atStart && i == 0})
		i = end
	}
	return out, nil
}

// mark returns the text of p with its spaces made visible.
func (m *metaspace) mark(b *budget.Budget, p piece) (string, error) {
	size := len(p.text) + (strings.Count(p.text, " ")+1)*(len(m.replacement)-1)
	if err := b.Take(2 * size); err != nil {
		return "", costs("pre_tokenizer (Metaspace)", err)
	}
	text := strings.ReplaceAll(p.text, " ", m.replacement)
	if (m.scheme == "always" || m.scheme == "first" && p.atStart) && !strings.HasPrefix(text, m.replacement) {
		text = m.replacement + text
	}
	return text, b.Work(len(text))
}

// word is a scanner: a word ends where the next visible space stands.
func (m *metaspace) word(text string, i int) int {
	_, size := utf8.DecodeRuneInString(text[i:])
	if n := strings.Index(text[i+size:], m.replacement); n >= 0 {
		return i + size + n
	}
	return len(text)
}
