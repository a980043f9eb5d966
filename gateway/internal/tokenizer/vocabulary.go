package tokenizer

import "fmt"

const (
	// maxID bounds ids: a sparse vocabulary costs memory up to its largest id.
	maxID = 1<<24 - 1
	// maxGap is how many more ids than tokens a vocabulary may span.
	maxGap = 1 << 20
	// maxEntries bounds lists and objects of a file, such as a vocabulary or its
	// merges; the largest known have about a million.
	maxEntries = 1 << 21
	// maxAdded bounds the tokens on top of the model's; some have 30,000.
	maxAdded = 1 << 18
	// maxTokenBytes bounds a token: each position of a text tries every token that
	// starts there, and any answer may consist of the longest. Known ones have 512.
	maxTokenBytes = 4096
)

// vocabulary is the model's map between tokens and ids, read-only once built.
type vocabulary struct {
	ids    map[string]int32
	tokens []string // by id
	used   []bool   // by id

	entries int
}

// newVocabulary builds the map from a JSON vocabulary. field names it in errors.
func newVocabulary(field string, tokens map[string]int64) (*vocabulary, error) {
	v := &vocabulary{ids: make(map[string]int32, len(tokens)), entries: len(tokens)}
	limit := int64(min(len(tokens)+maxGap, maxID))
	top := int64(-1)
	for token, id := range tokens {
		if id < 0 || id > limit {
			return nil, fmt.Errorf("%s: %.100q has id %d: allowed are 0 to %d", field, token, id, limit)
		}
		if len(token) > maxTokenBytes {
			return nil, fmt.Errorf("%s: %.100q… is %d bytes long: a token may have %d", field, token, len(token), maxTokenBytes)
		}
		top = max(top, id)
	}
	v.tokens = make([]string, top+1)
	v.used = make([]bool, top+1)
	for token, id := range tokens {
		if v.used[id] {
			a, b := token, v.tokens[id]
			if b < a {
				a, b = b, a
			}
			return nil, fmt.Errorf("%s: %.100q and %.100q both have id %d", field, a, b, id)
		}
		v.tokens[id], v.used[id] = token, true
		v.ids[token] = int32(id)
	}
	return v, nil
}

// newOrderedVocabulary builds the map from tokens whose ids are their places.
// Of equal tokens the last is the one a text gets.
func newOrderedVocabulary(pieces []unigramPiece) (*vocabulary, error) {
	if len(pieces) > maxID {
		return nil, fmt.Errorf("model.vocab has %d tokens: allowed are %d", len(pieces), maxID)
	}
	v := &vocabulary{ids: make(map[string]int32, len(pieces)), entries: len(pieces)}
	for i, p := range pieces {
		if len(p.token) > maxTokenBytes {
			return nil, fmt.Errorf("model.vocab[%d] is %d bytes long: a token may have %d", i, len(p.token), maxTokenBytes)
		}
		v.tokens = append(v.tokens, p.token)
		v.used = append(v.used, true)
		v.ids[p.token] = int32(i)
	}
	return v, nil
}

func (v *vocabulary) id(token string) (int32, bool) {
	id, ok := v.ids[token]
	return id, ok
}

func (v *vocabulary) idOr(token string, missing int32) int32 {
	if id, ok := v.ids[token]; ok {
		return id
	}
	return missing
}

func (v *vocabulary) token(id int32) (string, bool) {
	if id < 0 || int(id) >= len(v.tokens) || !v.used[id] {
		return "", false
	}
	return v.tokens[id], true
}

// count is the number of entries; added tokens are numbered from here.
func (v *vocabulary) count() int { return v.entries }

func (v *vocabulary) each(f func(id int32, token string)) {
	for id, token := range v.tokens {
		if v.used[id] {
			f(int32(id), token)
		}
	}
}
