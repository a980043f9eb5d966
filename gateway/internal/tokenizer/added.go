package tokenizer

import (
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// addedVocabulary is the tokens on top of the model's. Read-only once built.
type addedVocabulary struct {
	ids     map[string]int32
	byID    map[int32]addedToken
	special map[string]bool
	decoded map[int32]string // what decoding makes of a token: its normalized form if that is what is found
	order   []string         // contents in the order of adding, special ones first after finish
	plain   addedMatcher
	folded  addedMatcher // those found in normalized text
}

// add adds tokens by the rules of the reference: the number in the file does not
// count, a token that the model has keeps the model's id and any other gets the
// next free one. The order of the calls is the order of the files.
func (a *addedVocabulary) add(tokens []addedToken, model *vocabulary) error {
	if a.ids == nil {
		a.ids, a.byID, a.special = map[string]int32{}, map[int32]addedToken{}, map[string]bool{}
	}
	top := int32(-1)
	for _, id := range a.ids {
		top = max(top, id)
	}
	if len(a.ids)+len(tokens) > maxAdded {
		return fmt.Errorf("added_tokens: %d tokens: allowed are %d", len(a.ids)+len(tokens), maxAdded)
	}
	known := make(map[addedToken]bool, len(a.byID))
	for _, t := range a.byID {
		t.ID = 0
		known[t] = true
	}
	for _, t := range tokens {
		t.ID = 0
		if t.Content == "" || known[t] {
			continue
		}
		if len(t.Content) > maxTokenBytes {
			return fmt.Errorf("added_tokens: %.100q… is %d bytes long: allowed are %d", t.Content, len(t.Content), maxTokenBytes)
		}
		if t.Special {
			a.special[t.Content] = true
		}
		id, ok := a.ids[t.Content]
		if !ok {
			id, ok = model.id(t.Content)
		}
		if !ok {
			id = max(int32(model.count()), top+1)
		}
		if id > maxID {
			return fmt.Errorf("added_tokens: %.100q would get id %d: allowed are 0 to %d", t.Content, id, maxID)
		}
		top = max(top, id)
		if _, ok := a.ids[t.Content]; !ok {
			a.order = append(a.order, t.Content)
		}
		a.ids[t.Content] = id
		known[t] = true
		a.byID[id] = t
	}
	return nil
}

// finish builds the matchers; normalize is the tokenizer's normalizer.
func (a *addedVocabulary) finish(b *budget.Budget, normalize func(*budget.Budget, string) (string, bool, error)) error {
	a.decoded = make(map[int32]string, len(a.byID))
	for _, special := range []bool{true, false} {
		for _, content := range a.order {
			if a.special[content] != special {
				continue
			}
			id := a.ids[content]
			t := a.byID[id]
			if !t.Normalized {
				a.plain.add(content, id, t)
				a.decoded[id] = content
				continue
			}
			text, _, err := normalize(b, content)
			if err != nil {
				return fmt.Errorf("added_tokens: normalizing %.100q: %w", content, err)
			}
			if len(text) > maxTokenBytes {
				return fmt.Errorf("added_tokens: %.100q is %d bytes long after the normalizer: allowed are %d", content, len(text), maxTokenBytes)
			}
			a.folded.add(text, id, t)
			a.decoded[id] = text
		}
	}
	a.plain.finish()
	a.folded.finish()
	return nil
}

// addedMatcher finds added tokens: at each place the longest, then on behind it.
type addedMatcher struct {
	tokens []addedToken
	ids    []int32
	texts  []string
	first  [256]bool
	edges  *pairTable
	ends   []int32 // index into tokens of what ends at a node, -1
}

// add makes text stand for a token. A token that normalization leaves nothing of
// is never found (the reference cuts the text before every byte there, and fails
// on characters of more than one).
func (m *addedMatcher) add(text string, id int32, t addedToken) {
	if text == "" {
		return
	}
	m.tokens, m.ids, m.texts = append(m.tokens, t), append(m.ids, id), append(m.texts, text)
}

func (m *addedMatcher) finish() {
	bytes := 0
	for _, text := range m.texts {
		bytes += len(text)
	}
	m.edges = newPairTable(bytes)
	m.ends = []int32{-1}
	for i, text := range m.texts {
		m.first[text[0]] = true
		node := int32(0)
		for j := 0; j < len(text); j++ {
			next, ok := m.edges.get(node, int32(text[j]))
			if !ok {
				next = uint64(len(m.ends))
				m.ends = append(m.ends, -1)
				m.edges.put(node, int32(text[j]), next)
			}
			node = int32(next)
		}
		if m.ends[node] < 0 {
			m.ends[node] = int32(i)
		}
	}
}

// find returns the first match at or after from: its place and its index, or
// index -1; and how many characters of tokens were compared.
func (m *addedMatcher) find(text string, from int) (start, end, index, work int) {
	for at := from; at < len(text); at++ {
		if !m.first[text[at]] {
			continue
		}
		index, node := -1, int32(0)
		for i := at; i < len(text); i++ {
			work++
			next, ok := m.edges.get(node, int32(text[i]))
			if !ok {
				break
			}
			node = int32(next)
			if m.ends[node] >= 0 {
				end, index = i+1, int(m.ends[node])
			}
		}
		if index >= 0 {
			return at, end, index, work
		}
		if work > 4096 {
			return at + 1, at + 1, -1, work // so that it can be paid for
		}
	}
	return len(text), len(text), -1, work
}

// pieceBytes is what a piece takes.
const pieceBytes = 32

// cut appends text to out, cut at the added tokens.
func (m *addedMatcher) cut(b *budget.Budget, out []piece, text string, atStart bool) ([]piece, error) {
	if len(m.tokens) == 0 {
		return append(out, piece{text: text, id: noID, atStart: atStart}), nil
	}
	done := 0
	for from := 0; from < len(text); {
		start, end, index, work := m.find(text, from)
		if err := b.Work(4 * work); err != nil {
			return nil, costs("added_tokens", err)
		}
		from = end
		if index < 0 {
			continue
		}
		if err := b.Take(2 * pieceBytes); err != nil {
			return nil, costs("added_tokens", err)
		}
		t := &m.tokens[index]
		if t.SingleWord && (endsWithWord(text[:start]) || startsWithWord(text[end:])) {
			continue
		}
		if t.LStrip {
			start = max(start, done) // a match before may have taken the space already
			start -= trailingSpace(text[done:start])
		}
		if t.RStrip {
			end += leadingSpace(text[end:])
		}
		if done < start {
			out = append(out, piece{text: text[done:start], id: noID, atStart: atStart && done == 0})
		}
		if start < end { // else the match before has taken all of it
			out = append(out, piece{id: m.ids[index]})
		}
		done = end
	}
	if done < len(text) {
		out = append(out, piece{text: text[done:], id: noID, atStart: atStart && done == 0})
	}
	return out, nil
}

func startsWithWord(s string) bool {
	r, size := utf8.DecodeRuneInString(s)
	return size > 0 && loadUnicode().classes["rust_word"].contains(r)
}

func endsWithWord(s string) bool {
	r, size := utf8.DecodeLastRuneInString(s)
	return size > 0 && loadUnicode().classes["rust_word"].contains(r)
}

// leadingSpace and trailingSpace return how many bytes of white space s begins
// or ends with.
func leadingSpace(s string) int { return run(loadUnicode().kinds, s, 0, kindSpace, true) }

func trailingSpace(s string) int {
	kinds := loadUnicode().kinds
	end := len(s)
	for end > 0 {
		r, size := utf8.DecodeLastRuneInString(s[:end])
		if kinds.at(r)&kindSpace == 0 {
			break
		}
		end -= size
	}
	return len(s) - end
}

// noID marks a piece that is text.
const noID = math.MinInt32

// piece is a part of the input on its way through the stages: text, or an id.
type piece struct {
	text    string
	id      int32
	atStart bool // begins where the input begins
}
