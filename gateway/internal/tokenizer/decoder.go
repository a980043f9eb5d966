package tokenizer

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// decoderStage turns the strings of tokens, as they come, into text.
//
// A stage keeps what it cannot decide yet: the start of a character, a run of
// byte tokens. It is used by one goroutine; newStage makes one per text.
type decoderStage interface {
	// push takes the next string and hands what is now certain to next.
	push(s string, next func(string))
	// flush hands on what is left when no string follows.
	flush(next func(string))
}

// decoder describes one stage of decoding. Read-only.
type decoder interface {
	newStage() decoderStage
	// tokenBytes is what the stage makes of a token in the middle of a text.
	tokenBytes(b []byte) []byte
	// fuses tells that the stage makes one string of all, which it hands on in
	// parts: the stages behind it must not depend on where one part ends.
	fuses() bool
	// streams tells that the stage may stand behind one that fuses.
	streams() bool
}

// maxDecoded bounds the bytes that one token may become, and maxHeld those that a stage may hold back.
const (
	maxDecoded = 16 << 10
	maxHeld    = 16 << 20
)

// growing is a decoder that can make a text longer.
type growing interface {
	// grows tells how many times longer, at most.
	grows() int
	name() string
}

// checkDecoded refuses decoders that can make much of a token, and notes how much they can. Decoding may not fail later.
func (t *Tokenizer) checkDecoded() error {
	longest := 1
	for _, token := range t.vocab.tokens {
		longest = max(longest, len(token))
	}
	for _, text := range t.added.decoded {
		longest = max(longest, len(text))
	}
	t.growth = len(string(utf8.RuneError)) // of a byte that is no character
	for _, d := range t.decoders {
		g, ok := d.(growing)
		if !ok {
			continue
		}
		if grows := g.grows(); grows > maxDecoded/longest/t.growth && grows > 1 {
			return fmt.Errorf("%s: a token may become %d times as long here, and has up to %d bytes: allowed are %d in all", g.name(), grows, longest*t.growth, maxDecoded)
		} else if grows > 1 {
			t.growth *= grows
		}
	}
	return nil
}

// newDecoders reads a decoder as a list of stages, none if absent.
func newDecoders(field string, raw json.RawMessage) ([]decoder, error) {
	kind, err := componentType(field, raw)
	if err != nil || kind == "" {
		return nil, err
	}
	switch kind {
	case "Sequence":
		var def struct {
			Decoders []json.RawMessage `json:"decoders"`
		}
		if err := fields(field, raw, &def, "decoders"); err != nil {
			return nil, err
		}
		var out []decoder
		for i, part := range def.Decoders {
			stages, err := newDecoders(fmt.Sprintf("%s.decoders[%d]", field, i), part)
			if err != nil {
				return nil, err
			}
			if out = append(out, stages...); len(out) > maxStages {
				return nil, fmt.Errorf("%s has more than %d stages", field, maxStages)
			}
		}
		return out, nil
	case "ByteLevel":
		return []decoder{byteLevelDecoder{}}, nil
	case "ByteFallback":
		return []decoder{byteFallbackDecoder{}}, nil
	case "Fuse":
		return []decoder{fuseDecoder{}}, nil
	case "Replace":
		r, err := newReplace(field, raw)
		return []decoder{replaceDecoder{r, fmt.Sprintf("%s (Replace)", field)}}, err
	case "Strip":
		var def struct {
			Content string `json:"content"`
			Start   int    `json:"start"`
			Stop    int    `json:"stop"`
		}
		if err := fields(field, raw, &def, "content", "start", "stop"); err != nil {
			return nil, err
		}
		if _, err := singleRune(field+".content", def.Content); err != nil {
			return nil, err
		}
		if def.Start < 0 || def.Stop < 0 {
			return nil, fmt.Errorf("%s: start is %d and stop %d: both must be at least 0", field, def.Start, def.Stop)
		}
		return []decoder{stripDecoder{def.Content, def.Start, def.Stop}}, nil
	case "Metaspace":
		m, err := newMetaspace(field, raw)
		if err != nil {
			return nil, err
		}
		return []decoder{metaspaceDecoder{m.replacement, m.scheme != "never"}}, nil
	case "BPEDecoder":
		var def struct {
			Suffix string `json:"suffix"`
		}
		err := fields(field, raw, &def, "suffix")
		return []decoder{suffixDecoder{def.Suffix, fmt.Sprintf("%s (BPEDecoder)", field)}}, err
	}
	return nil, fmt.Errorf("%s.type is %q: supported are Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and BPEDecoder", field, kind)
}

// byteLevelDecoder undoes the byte-level alphabet. A token with a character
// outside the alphabet, an added one, stands for its own bytes.
type byteLevelDecoder struct{}

func (byteLevelDecoder) newStage() decoderStage { return &byteLevelStage{} }
func (byteLevelDecoder) fuses() bool            { return true }
func (byteLevelDecoder) streams() bool          { return false }
func (byteLevelDecoder) tokenBytes(b []byte) []byte {
	if out, ok := unmapBytes(nil, string(b)); ok {
		return out
	}
	return b
}

type byteLevelStage struct{ held []byte }

func (d *byteLevelStage) push(s string, next func(string)) {
	var ok bool
	if d.held, ok = unmapBytes(d.held, s); !ok {
		d.held = append(d.held, s...)
	}
	ready := len(d.held) - openTail(d.held)
	if ready > 0 {
		next(string(appendLossy(nil, d.held[:ready])))
		d.held = append(d.held[:0], d.held[ready:]...)
	}
}

func (d *byteLevelStage) flush(next func(string)) {
	if len(d.held) > 0 {
		next(string(appendLossy(nil, d.held)))
		d.held = nil
	}
}

// openTail returns how many bytes at the end of b begin a character that more
// bytes could complete.
func openTail(b []byte) int {
	for n := 1; n <= 3 && n <= len(b); n++ {
		tail := b[len(b)-n:]
		if utf8.RuneStart(tail[0]) {
			if tail[0] >= utf8.RuneSelf {
				if size, open := truncatedRune(tail); open && size == n {
					return n
				}
			}
			return 0
		}
	}
	return 0
}

// byteFallbackDecoder makes text of runs of <0x..> tokens. A run that is not
// UTF-8 as a whole becomes one U+FFFD per byte, so a run is held to its end.
type byteFallbackDecoder struct{}

func (byteFallbackDecoder) newStage() decoderStage { return &byteFallbackStage{} }
func (byteFallbackDecoder) fuses() bool            { return false }
func (byteFallbackDecoder) streams() bool          { return false }
func (byteFallbackDecoder) tokenBytes(b []byte) []byte {
	if c, ok := byteToken(string(b)); ok {
		return []byte{c}
	}
	return b
}

// byteToken reads <0x..>; like the reference it takes a plus sign for a digit.
func byteToken(s string) (byte, bool) {
	if len(s) != 6 || !strings.HasPrefix(s, "<0x") || s[5] != '>' {
		return 0, false
	}
	digits := s[3:5]
	if digits[0] == '+' {
		digits = digits[1:]
	}
	v, err := strconv.ParseUint(digits, 16, 8)
	return byte(v), err == nil && digits[0] != '_'
}

type byteFallbackStage struct{ run []byte }

func (d *byteFallbackStage) push(s string, next func(string)) {
	if c, ok := byteToken(s); ok {
		d.run = append(d.run, c)
		return
	}
	d.flush(next)
	next(s)
}

func (d *byteFallbackStage) flush(next func(string)) {
	if len(d.run) == 0 {
		return
	}
	if utf8.Valid(d.run) {
		next(string(d.run))
	} else {
		for range d.run {
			next(string(utf8.RuneError))
		}
	}
	d.run = d.run[:0]
}

// fuseDecoder makes one string of all tokens.
type fuseDecoder struct{}

func (fuseDecoder) newStage() decoderStage     { return passStage{} }
func (fuseDecoder) fuses() bool                { return true }
func (fuseDecoder) streams() bool              { return true }
func (fuseDecoder) tokenBytes(b []byte) []byte { return b }

type passStage struct{}

func (passStage) push(s string, next func(string)) { next(s) }
func (passStage) flush(func(string))               {}

// replaceDecoder replaces within each token.
type replaceDecoder struct {
	replacement
	field string
}

func (d replaceDecoder) name() string { return d.field }
func (d replaceDecoder) grows() int {
	if literal, ok := d.matcher.(literalMatcher); ok {
		if literal == "" {
			return 1
		}
		return (len(d.content) + len(literal) - 1) / len(literal)
	}
	return 1 + 2*len(d.content) // an expression may match between any two characters
}

func (d replaceDecoder) newStage() decoderStage { return perToken(d.apply) }
func (d replaceDecoder) fuses() bool            { return false }
func (d replaceDecoder) streams() bool {
	literal, ok := d.matcher.(literalMatcher)
	return ok && utf8.RuneCountInString(string(literal)) == 1
}
func (d replaceDecoder) tokenBytes(b []byte) []byte { return []byte(d.apply(string(b))) }

// apply leaves a text as it is where its pattern takes more work than is in
// proportion: text is decoded for display and must not fail.
func (d replaceDecoder) apply(s string) string {
	if literal, ok := d.matcher.(literalMatcher); ok && literal != "" {
		return strings.ReplaceAll(s, string(literal), d.content)
	}
	b := budget.New(context.Background(), budget.Limits{Steps: 1<<16 + 64*len(s)})
	defer b.End()
	out, err := d.replace(b, s)
	if err != nil {
		return s
	}
	return out
}

type perToken func(string) string

func (f perToken) push(s string, next func(string)) { next(f(s)) }
func (f perToken) flush(func(string))               {}

// stripDecoder cuts up to so many of one character from both ends of each token.
type stripDecoder struct {
	content     string
	start, stop int
}

func (d stripDecoder) newStage() decoderStage     { return perToken(d.apply) }
func (d stripDecoder) fuses() bool                { return false }
func (d stripDecoder) streams() bool              { return true }
func (d stripDecoder) tokenBytes(b []byte) []byte { return []byte(d.apply(string(b))) }

func (d stripDecoder) apply(s string) string {
	for n := 0; n < d.start && strings.HasPrefix(s, d.content); n++ {
		s = s[len(d.content):]
	}
	for n := 0; n < d.stop && strings.HasSuffix(s, d.content); n++ {
		s = s[:len(s)-len(d.content)]
	}
	return s
}

// fusedStripStage is stripDecoder on one string that arrives in parts.
type fusedStripStage struct {
	of    stripDecoder
	begun bool
	cut   int
	held  string // up to stop characters at the end so far
}

func (d *fusedStripStage) push(s string, next func(string)) {
	for !d.begun && s != "" {
		if d.cut == d.of.start || !strings.HasPrefix(s, d.of.content) {
			d.begun = true
			break
		}
		s = s[len(d.of.content):]
		d.cut++
	}
	s = d.held + s
	keep := len(s)
	for n := 0; n < d.of.stop && strings.HasSuffix(s[:keep], d.of.content); n++ {
		keep -= len(d.of.content)
	}
	d.held = s[keep:]
	if keep > 0 {
		next(s[:keep])
	}
}

func (d *fusedStripStage) flush(func(string)) { d.held = "" }

// metaspaceDecoder turns the visible space back, and drops it in the first
// token where encoding put one there.
type metaspaceDecoder struct {
	replacement string
	dropFirst   bool
}

func (d metaspaceDecoder) newStage() decoderStage { return &metaspaceStage{of: d} }
func (d metaspaceDecoder) fuses() bool            { return false }
func (d metaspaceDecoder) streams() bool          { return false }
func (d metaspaceDecoder) tokenBytes(b []byte) []byte {
	return []byte(strings.ReplaceAll(string(b), d.replacement, " "))
}

type metaspaceStage struct {
	of    metaspaceDecoder
	begun bool
}

func (d *metaspaceStage) push(s string, next func(string)) {
	by := " "
	if !d.begun && d.of.dropFirst {
		by = ""
	}
	d.begun = true
	next(strings.ReplaceAll(s, d.of.replacement, by))
}

func (d *metaspaceStage) flush(func(string)) {}

// suffixDecoder makes a space of the mark that ends a word, none at the end.
type suffixDecoder struct{ suffix, field string }

func (d suffixDecoder) name() string { return d.field }
func (d suffixDecoder) grows() int {
	if d.suffix == "" { // which is found between all characters
		return 3
	}
	return 1
}

func (d suffixDecoder) newStage() decoderStage { return &suffixStage{of: d} }
func (d suffixDecoder) fuses() bool            { return false }
func (d suffixDecoder) streams() bool          { return false }
func (d suffixDecoder) tokenBytes(b []byte) []byte {
	return []byte(strings.ReplaceAll(string(b), d.suffix, " "))
}

type suffixStage struct {
	of   suffixDecoder
	held *string
}

func (d *suffixStage) push(s string, next func(string)) {
	if d.held != nil {
		next(strings.ReplaceAll(*d.held, d.of.suffix, " "))
	}
	d.held = &s
}

func (d *suffixStage) flush(next func(string)) {
	if d.held != nil {
		next(strings.ReplaceAll(*d.held, d.of.suffix, ""))
		d.held = nil
	}
}

// wholeStage runs stages that cannot work on parts of a string: it collects the
// string, and runs them when it is complete.
type wholeStage struct {
	rest []decoder
	all  strings.Builder
}

func (d *wholeStage) push(s string, next func(string)) {
	d.all.WriteString(s)
	if d.all.Len() > maxHeld {
		d.flush(next)
	}
}

func (d *wholeStage) flush(next func(string)) {
	chain := newDecoderChain(d.rest)
	chain.push(d.all.String(), next)
	chain.flush(next)
	d.all.Reset()
}

// decoderChain is stages one behind the other.
type decoderChain []decoderStage

// newDecoderChain makes the stages for one text. Behind a stage that fuses, all
// that comes is one string: Strip works on it part by part, what cannot is given
// the whole at the end.
func newDecoderChain(decoders []decoder) decoderChain {
	var chain decoderChain
	for i, d := range decoders {
		chain = append(chain, d.newStage())
		if !d.fuses() {
			continue
		}
		rest := decoders[i+1:]
		for _, r := range rest {
			if !r.streams() {
				return append(chain, &wholeStage{rest: rest})
			}
		}
		for _, r := range rest {
			if strip, ok := r.(stripDecoder); ok {
				chain = append(chain, &fusedStripStage{of: strip})
			} else {
				chain = append(chain, r.newStage())
			}
		}
		break
	}
	return chain
}

func (c decoderChain) push(s string, out func(string)) {
	if len(c) == 0 {
		out(s)
		return
	}
	c[0].push(s, func(t string) { c[1:].push(t, out) })
}

func (c decoderChain) flush(out func(string)) {
	if len(c) == 0 {
		return
	}
	c[0].flush(func(t string) { c[1:].push(t, out) })
	c[1:].flush(out)
}
