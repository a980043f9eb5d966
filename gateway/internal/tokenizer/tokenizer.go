// Package tokenizer turns text into the token ids of a model and back, from the
// files a Hugging Face model directory carries. It gives the ids and the text
// that Hugging Face's tokenizers library, version 0.23.2, gives: byte-level BPE,
// SentencePiece-style BPE with byte fallback, and Unigram, with their
// normalizers, pre-tokenizers, added tokens, post-processors and decoders.
//
// The package knows text and ids. It must not know models' weights, chat
// messages (it hands out the chat template as text), HTTP or configuration.
//
// Model directories are taken for hostile: sizes, nesting and ids are bounded,
// what encoding costs is counted, regular expressions included, and ends at the
// limits of package budget, and what is not supported is an error that names the
// field and what is allowed. A Tokenizer is read-only after loading
// and safe for concurrent use; a Stream belongs to one goroutine.
package tokenizer

import (
	"context"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// Tokenizer is a loaded tokenizer. It is safe for concurrent use.
type Tokenizer struct {
	vocab         *vocabulary
	added         addedVocabulary
	normalizer    normalizer // nil: none
	preTokenizers []preTokenizer
	model         model
	template      template
	mark          *metaspace // if set, its mark is applied before scan
	scan          scanner    // if set, does the work of preTokenizers
	decoders      []decoder  // nil: tokens are joined by spaces
	size          int
	growth        int // how many times longer decoding makes a token, at most

	bos, eos, pad specialID
	chatTemplates map[string]string
}

// specialID is the id of a token with a role; valid is false where there is none.
type specialID struct {
	id    int32
	valid bool
}

// Parse builds a tokenizer from the bytes of a tokenizer.json. Roles of tokens
// and chat templates stand in other files: see Load.
func Parse(data []byte) (*Tokenizer, error) {
	def, err := parseDefinition(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	t, err := newTokenizer(def, nil)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// newTokenizer builds a tokenizer; later are added tokens of other files.
func newTokenizer(def *definition, later []addedToken) (*Tokenizer, error) {
	t := &Tokenizer{}
	var err error
	if def.Model.Type == "Unigram" {
		if t.vocab, err = newOrderedVocabulary(def.Model.pieces); err != nil {
			return nil, err
		}
		t.model, err = newUnigram(def.Model, t.vocab)
	} else {
		if t.vocab, err = newVocabulary("model.vocab", def.Model.tokens); err != nil {
			return nil, err
		}
		t.model, err = newBPE(def.Model, t.vocab)
	}
	if err != nil {
		return nil, err
	}
	if t.normalizer, err = newNormalizer("normalizer", def.Normalizer); err != nil {
		return nil, err
	}
	if t.preTokenizers, err = newPreTokenizers("pre_tokenizer", def.PreTokenizer); err != nil {
		return nil, err
	}
	if t.template, err = newTemplate("post_processor", def.PostProcessor); err != nil {
		return nil, err
	}
	if t.decoders, err = newDecoders("decoder", def.Decoder); err != nil {
		return nil, err
	}
	for _, tokens := range [][]addedToken{def.AddedTokens, later} {
		if err = t.added.add(tokens, t.vocab); err != nil {
			return nil, err
		}
	}
	b := budget.New(context.Background(), budget.Limits{})
	defer b.End()
	if err = t.added.finish(b, t.normalize); err != nil {
		return nil, err
	}
	if err = t.checkDecoded(); err != nil {
		return nil, err
	}
	t.size = len(t.vocab.tokens)
	for id := range t.added.byID {
		t.size = max(t.size, int(id)+1)
	}
	t.shortcut()
	return t, nil
}

// shortcut finds the pipelines that need no list of pieces: where one scanner
// does all the cutting, words go from it straight to the model. Byte-level BPE
// takes them as they are in the text.
func (t *Tokenizer) shortcut() {
	n := len(t.preTokenizers)
	if n == 0 {
		return
	}
	if m, ok := t.preTokenizers[0].(*metaspace); ok && n == 1 && m.split {
		t.mark, t.scan = m, m.word
		return
	}
	last, isByteLevel := t.preTokenizers[n-1].(*byteLevel)
	m, isBPE := t.model.(*bpe)
	if !isByteLevel || !isBPE || !m.useRawBytes() {
		return
	}
	last.raw = true
	switch {
	case last.addPrefixSpace:
	case n == 1:
		t.scan = last.scan
	case n == 2 && last.scan == nil:
		if s, ok := unnamed(t.preTokenizers[0]).(splitter); ok && s.behavior == isolated {
			t.scan, _ = s.matcher.(scanner)
		}
	}
}

// unnamed is a stage without its name.
func unnamed(stage preTokenizer) preTokenizer {
	if n, ok := stage.(namedPreTokenizer); ok {
		return n.of
	}
	return stage
}

func (t *Tokenizer) normalize(b *budget.Budget, text string) (out string, cut bool, err error) {
	if t.normalizer == nil {
		return text, false, nil
	}
	return t.normalizer.normalize(b, text)
}

// Encode returns the ids of text. Added tokens, special ones included, are
// recognised in it. With addSpecial the tokens of the model's own template, such
// as a beginning of text, are put around. Bytes that are not UTF-8 count as
// U+FFFD each.
//
// It fails where the rules of the tokenizer take more work or memory on the text
// than package budget allows, with an error that names the rule and wraps a
// *[budget.Exceeded], and for a Unigram model without an unknown token on
// characters it does not have.
func (t *Tokenizer) Encode(text string, addSpecial bool) ([]int32, error) {
	b := budget.New(context.Background(), budget.Limits{})
	defer b.End()
	return t.EncodeWithin(b, text, addSpecial)
}

// EncodeWithin is Encode with a budget of the caller's, which further texts may
// share. Its context ends the work, and so may [budget.ErrBusy].
func (t *Tokenizer) EncodeWithin(b *budget.Budget, text string, addSpecial bool) ([]int32, error) {
	ids, err := t.encode(b, text, addSpecial)
	if err != nil {
		return nil, fmt.Errorf("encoding %d bytes: %w", len(text), err)
	}
	return ids, nil
}

func (t *Tokenizer) encode(b *budget.Budget, text string, addSpecial bool) ([]int32, error) {
	b.On(len(text))
	if err := costs("added_tokens", b.Work(len(text)+16)); err != nil {
		return nil, err
	}
	ids := make([]int32, 0, min(len(text)/4+8, 1<<16))
	if addSpecial {
		ids = append(ids, t.template.before...)
	}
	pieces, err := t.added.plain.cut(b, nil, validText(text), true)
	if err != nil {
		return nil, err
	}
	for _, p := range pieces {
		held, before := b.Bytes(), len(ids)
		if p.id != noID {
			ids = append(ids, p.id)
		} else if ids, err = t.appendText(b, ids, p); err != nil {
			return nil, err
		}
		b.Return(b.Bytes() - held)
		if err := costs("the ids", b.Take(idBytes*(len(ids)-before))); err != nil {
			return nil, err
		}
	}
	if addSpecial {
		ids = append(ids, t.template.after...)
	}
	return ids, nil
}

// idBytes is what an id takes in the result.
const idBytes = 4

// appendText appends the ids of a piece between the added tokens that are found in the text itself.
func (t *Tokenizer) appendText(b *budget.Budget, ids []int32, p piece) ([]int32, error) {
	normalized, cut, err := t.normalize(b, p.text)
	if err != nil {
		return nil, err
	}
	pieces, err := t.added.folded.cut(b, nil, normalized, p.atStart && !cut)
	if err != nil {
		return nil, err
	}
	for _, q := range pieces {
		if ids, err = t.appendPiece(b, ids, q); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// appendPiece appends the ids of a piece between added tokens.
func (t *Tokenizer) appendPiece(b *budget.Budget, ids []int32, p piece) ([]int32, error) {
	if p.id != noID {
		return append(ids, p.id), b.Take(idBytes)
	}
	var err error
	if t.scan != nil {
		if p.text == "" {
			return ids, nil
		}
		if t.mark != nil {
			if p.text, err = t.mark.mark(b, p); err != nil {
				return nil, err
			}
		}
		for i := 0; i < len(p.text); {
			end := t.scan(p.text, i)
			if err := b.Work(end - i); err != nil {
				return nil, costs("pre_tokenizer", err)
			}
			if ids, err = t.model.appendIDs(b, ids, p.text[i:end]); err != nil {
				return nil, err
			}
			i = end
		}
		return ids, nil
	}
	pieces := []piece{p}
	for _, stage := range t.preTokenizers {
		if pieces, err = cutAll(b, stage, pieces); err != nil {
			return nil, err
		}
	}
	for _, p := range pieces {
		if p.text == "" {
			continue
		}
		if ids, err = t.model.appendIDs(b, ids, p.text); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// Decode returns the text of ids. Ids without a token give nothing; with
// skipSpecial special tokens neither. Bytes that are no character become U+FFFD.
func (t *Tokenizer) Decode(ids []int32, skipSpecial bool) string {
	s := t.NewStream(skipSpecial)
	for _, id := range ids {
		s.push(id)
	}
	return s.Flush()
}

// DecodeWithin is Decode for any number of ids: it fails as [Tokenizer.EncodeWithin] does.
func (t *Tokenizer) DecodeWithin(b *budget.Budget, ids []int32, skipSpecial bool) (string, error) {
	s := t.NewStream(skipSpecial)
	for _, id := range ids {
		token, _ := t.decodable(id)
		if err := b.Work(16 + 4*len(token)*(1+len(t.decoders))); err != nil {
			return "", costs("decoder", err)
		}
		if err := b.Take(1 + len(token)*t.growth); err != nil {
			return "", costs("decoder", err)
		}
		s.push(id)
	}
	return s.Flush(), nil
}

// TokenString returns the token with the id as the vocabulary writes it, in a
// byte-level tokenizer with Ġ for a space.
func (t *Tokenizer) TokenString(id int32) (string, bool) {
	if added, ok := t.added.byID[id]; ok {
		return added.Content, true
	}
	return t.vocab.token(id)
}

// decodable returns the string that decoding starts from for the id. It differs
// from TokenString for added tokens that are found in normalized text only.
func (t *Tokenizer) decodable(id int32) (string, bool) {
	if text, ok := t.added.decoded[id]; ok {
		return text, true
	}
	return t.vocab.token(id)
}

// TokenBytes returns the bytes that the token adds to a text when it stands in
// its middle: a part of a character is just those bytes. It is nil for an id
// without a token. The caller owns the result.
func (t *Tokenizer) TokenBytes(id int32) []byte {
	token, ok := t.decodable(id)
	if !ok {
		return nil
	}
	b := []byte(token)
	for _, d := range t.decoders {
		b = d.tokenBytes(b)
		if d.fuses() {
			break // what follows treats the whole text
		}
	}
	return b
}

// ID returns the id of a token written as the vocabulary writes it.
func (t *Tokenizer) ID(token string) (int32, bool) {
	if id, ok := t.added.ids[token]; ok {
		return id, true
	}
	return t.vocab.id(token)
}

// VocabSize returns the largest id plus 1. A model's embedding may have more rows.
func (t *Tokenizer) VocabSize() int { return t.size }

// IsSpecial tells whether the id is a special token, one that Decode may skip.
func (t *Tokenizer) IsSpecial(id int32) bool {
	if added, ok := t.added.byID[id]; ok {
		return t.added.special[added.Content]
	}
	token, ok := t.vocab.token(id)
	return ok && t.added.special[token]
}

// IsAdded tells whether the id is a token on top of the model's: one that is
// found in a text as it is, before anything else is done, such as <tool_call>.
func (t *Tokenizer) IsAdded(id int32) bool {
	_, ok := t.added.byID[id]
	return ok
}

// BOS returns the id of the beginning-of-text token, if tokenizer_config.json
// names one; likewise EOS and PAD.
func (t *Tokenizer) BOS() (id int32, ok bool) { return t.bos.id, t.bos.valid }

// EOS returns the id of the end-of-text token, if one is named.
func (t *Tokenizer) EOS() (id int32, ok bool) { return t.eos.id, t.eos.valid }

// PAD returns the id of the padding token, if one is named.
func (t *Tokenizer) PAD() (id int32, ok bool) { return t.pad.id, t.pad.valid }

// ChatTemplate returns the text of the model's chat template, "" if it has none.
func (t *Tokenizer) ChatTemplate() string { return t.chatTemplates["default"] }

// NamedChatTemplate returns the template of a name such as "tool_use" or "rag",
// for models that have several; "default" is the one of ChatTemplate.
func (t *Tokenizer) NamedChatTemplate(name string) (text string, ok bool) {
	text, ok = t.chatTemplates[name]
	return text, ok
}
