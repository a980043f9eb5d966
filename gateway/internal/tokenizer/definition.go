package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// maxNesting bounds how deep arrays and objects of a file may nest; the deepest
// tokenizers known nest ten levels.
const maxNesting = 64

// definition is the content of a tokenizer.json. Truncation and padding are
// left out on purpose: they are settings of training scripts that no reader of
// the format applies unasked.
type definition struct {
	AddedTokens   []addedToken     `json:"added_tokens"`
	Normalizer    json.RawMessage  `json:"normalizer"`
	PreTokenizer  json.RawMessage  `json:"pre_tokenizer"`
	PostProcessor json.RawMessage  `json:"post_processor"`
	Decoder       json.RawMessage  `json:"decoder"`
	Model         *modelDefinition `json:"model"`
}

// addedToken is a token that is found in the text before anything else is.
type addedToken struct {
	ID         int64  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"` // only where no word character touches it
	LStrip     bool   `json:"lstrip"`      // takes the white space before it along
	RStrip     bool   `json:"rstrip"`      // takes the white space after it along
	Normalized bool   `json:"normalized"`  // found in the normalized text, else in the text itself
	Special    bool   `json:"special"`     // left out of decoded text on request
}

type modelDefinition struct {
	Type                    string          `json:"type"`
	Dropout                 *float64        `json:"dropout"`
	UnkToken                *string         `json:"unk_token"`
	ContinuingSubwordPrefix string          `json:"continuing_subword_prefix"`
	EndOfWordSuffix         string          `json:"end_of_word_suffix"`
	FuseUnk                 bool            `json:"fuse_unk"`
	ByteFallback            bool            `json:"byte_fallback"`
	IgnoreMerges            bool            `json:"ignore_merges"`
	Vocab                   json.RawMessage `json:"vocab"`
	Merges                  mergeList       `json:"merges"`
	UnkID                   *int64          `json:"unk_id"`

	tokens map[string]int64 // BPE
	pieces []unigramPiece   // Unigram
}

type unigramPiece struct {
	token string
	score float64
}

func (p *unigramPiece) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("model.vocab: an entry has %d values: a token and its score are needed", len(pair))
	}
	if err := json.Unmarshal(pair[0], &p.token); err != nil {
		return err
	}
	var err error
	if p.score, err = parseScore(string(bytes.TrimSpace(pair[1]))); err != nil {
		return fmt.Errorf("model.vocab: %w", err)
	}
	return nil
}

// mergeList is the merges in order of rank, written as "a b" or ["a", "b"].
type mergeList [][2]string

func (m *mergeList) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		return nil
	}
	var texts []string
	if json.Unmarshal(b, &texts) == nil {
		*m = make(mergeList, 0, len(texts))
		for i, text := range texts {
			pair, ok := splitMerge(text)
			if !ok {
				return fmt.Errorf("model.merges[%d] is %q: two tokens with one space between are needed", i, text)
			}
			*m = append(*m, pair)
		}
		return nil
	}
	var pairs [][]string
	if err := json.Unmarshal(b, &pairs); err != nil {
		return fmt.Errorf("model.merges: a list of \"a b\" or of [\"a\", \"b\"] is needed: %w", err)
	}
	*m = make(mergeList, 0, len(pairs))
	for i, pair := range pairs {
		if len(pair) != 2 {
			return fmt.Errorf("model.merges[%d] has %d tokens: 2 are needed", i, len(pair))
		}
		*m = append(*m, [2]string(pair))
	}
	return nil
}

func splitMerge(text string) ([2]string, bool) {
	a, b, ok := strings.Cut(text, " ")
	return [2]string{a, b}, ok && !strings.Contains(b, " ")
}

// parseDefinition reads a tokenizer.json.
func parseDefinition(data []byte) (*definition, error) {
	def := &definition{}
	if err := parseJSON(data, def); err != nil {
		return nil, err
	}
	m := def.Model
	if m == nil {
		return nil, errors.New("model is missing")
	}
	if m.Type == "" { // files of before 2020 leave it out
		switch {
		case m.Merges != nil:
			m.Type = "BPE"
		case bytes.HasPrefix(bytes.TrimSpace(m.Vocab), []byte("[")):
			m.Type = "Unigram"
		}
	}
	switch m.Type {
	case "BPE":
		if err := json.Unmarshal(m.Vocab, &m.tokens); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
	case "Unigram":
		if err := json.Unmarshal(m.Vocab, &m.pieces); err != nil {
			return nil, fmt.Errorf("model.vocab: %w", err)
		}
	default:
		return nil, fmt.Errorf("model.type is %q: supported are BPE and Unigram", m.Type)
	}
	return def, nil
}

// parseJSON unmarshals data after refusing what encoding/json would accept or
// would only notice late: bytes that are not UTF-8 and deep nesting.
func parseJSON(data []byte, into any) error {
	if !utf8.Valid(data) {
		return errors.New("the file is not UTF-8")
	}
	depth, quoted := 0, false
	var entries [maxNesting + 1]int
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '[' || c == '{':
			if depth++; depth > maxNesting {
				return fmt.Errorf("arrays and objects nest deeper than %d levels at byte %d", maxNesting, i)
			}
			entries[max(depth, 0)] = 0
		case c == ',' && depth >= 0:
			if entries[depth]++; entries[depth] >= maxEntries {
				return fmt.Errorf("an array or object has more than %d entries at byte %d", maxEntries, i)
			}
		case c == ']' || c == '}':
			depth--
		}
	}
	return json.Unmarshal(data, into)
}

// component is what every part of a pipeline begins with.
type component struct {
	Type string `json:"type"`
}

// componentType returns the type of a part, "" for an absent part.
func componentType(field string, raw json.RawMessage) (string, error) {
	if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
		return "", nil
	}
	var c component
	if err := json.Unmarshal(raw, &c); err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	if c.Type == "" {
		return "", fmt.Errorf("%s.type is missing", field)
	}
	return c.Type, nil
}

// fields unmarshals the settings of a part and refuses a file that lacks one of
// the required ones, which the format has no default for.
func fields(field string, raw json.RawMessage, into any, required ...string) error {
	if len(required) > 0 {
		var present map[string]json.RawMessage
		if err := json.Unmarshal(raw, &present); err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		for _, name := range required {
			if _, ok := present[name]; !ok {
				return fmt.Errorf("%s.%s is missing", field, name)
			}
		}
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}
