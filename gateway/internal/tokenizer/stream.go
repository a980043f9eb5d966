package tokenizer

import "strings"

// Stream decodes ids one at a time. What Push and Flush return, joined, is what
// Decode returns for all the ids together. A stream is for one goroutine.
type Stream struct {
	tokenizer   *Tokenizer
	skipSpecial bool
	chain       decoderChain
	begun       bool
	out         strings.Builder
	write       func(string)
}

// NewStream returns a stream at the start of a text. With skipSpecial, special
// tokens give no text. As in the reference, a special token counts as one here
// only if normalization leaves its content as it is or is not applied to it.
func (t *Tokenizer) NewStream(skipSpecial bool) *Stream {
	s := &Stream{tokenizer: t, skipSpecial: skipSpecial, chain: newDecoderChain(t.decoders)}
	s.write = func(text string) { s.out.WriteString(text) }
	return s
}

// Push takes the next id and returns the text that is now certain: always whole
// characters, often nothing. Ids without a token give nothing. Text is held back
// only while later ids could change it: the bytes of an unfinished character,
// and, in SentencePiece tokenizers, a run of single-byte tokens, which counts as
// text only if all of it is UTF-8.
func (s *Stream) Push(id int32) string {
	s.push(id)
	return s.take()
}

func (s *Stream) push(id int32) {
	token, ok := s.tokenizer.decodable(id)
	if !ok || s.skipSpecial && s.tokenizer.added.special[token] {
		return
	}
	if s.tokenizer.decoders == nil && s.begun {
		s.out.WriteByte(' ') // without a decoder tokens are words
	}
	s.begun = true
	s.chain.push(token, s.write)
}

// Flush returns what was held back, with U+FFFD for bytes that are no character,
// and sets the stream back to the start of a text.
func (s *Stream) Flush() string {
	s.chain.flush(s.write)
	s.chain, s.begun = newDecoderChain(s.tokenizer.decoders), false
	return s.take()
}

func (s *Stream) take() string {
	text := s.out.String()
	s.out.Reset()
	return text
}
