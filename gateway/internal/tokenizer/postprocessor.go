package tokenizer

import (
	"encoding/json"
	"fmt"
)

// template is what stands before and after the ids of a text when special
// tokens are asked for.
type template struct {
	before, after []int32
}

// maxTemplateIDs bounds the ids around a text; known tokenizers put two.
const maxTemplateIDs = 256

// check refuses a template that puts too much around every text.
func (t template) check(field string) (template, error) {
	if n := len(t.before) + len(t.after); n > maxTemplateIDs {
		return template{}, fmt.Errorf("%s puts %d ids around a text: allowed are %d", field, n, maxTemplateIDs)
	}
	return t, nil
}

// newTemplate reads a post-processor; only what it does to a single text counts.
func newTemplate(field string, raw json.RawMessage) (template, error) {
	kind, err := componentType(field, raw)
	if err != nil || kind == "" {
		return template{}, err
	}
	switch kind {
	case "ByteLevel": // adjusts offsets only
		return template{}, nil
	case "Sequence":
		var def struct {
			Processors []json.RawMessage `json:"processors"`
		}
		if err := fields(field, raw, &def, "processors"); err != nil {
			return template{}, err
		}
		var all template
		for i, part := range def.Processors {
			t, err := newTemplate(fmt.Sprintf("%s.processors[%d]", field, i), part)
			if err != nil {
				return template{}, err
			}
			all.before = append(t.before, all.before...)
			all.after = append(all.after, t.after...)
			if all, err = all.check(field); err != nil {
				return template{}, err
			}
		}
		return all, nil
	case "TemplateProcessing":
		return newTemplateProcessing(field, raw)
	case "BertProcessing", "RobertaProcessing":
		var def struct {
			Sep, Cls tokenWithID
		}
		if err := fields(field, raw, &def, "sep", "cls"); err != nil {
			return template{}, err
		}
		return template{before: []int32{def.Cls.id}, after: []int32{def.Sep.id}}, nil
	}
	return template{}, fmt.Errorf("%s.type is %q: supported are Sequence, TemplateProcessing, ByteLevel, BertProcessing and RobertaProcessing", field, kind)
}

func newTemplateProcessing(field string, raw json.RawMessage) (template, error) {
	var def struct {
		Single []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			} `json:"SpecialToken"`
			Sequence *struct {
				ID string `json:"id"`
			} `json:"Sequence"`
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := fields(field, raw, &def, "single", "special_tokens"); err != nil {
		return template{}, err
	}
	var t template
	texts := 0
	for i, part := range def.Single {
		switch {
		case part.Sequence != nil && part.SpecialToken == nil:
			texts++
		case part.SpecialToken != nil && part.Sequence == nil:
			special, ok := def.SpecialTokens[part.SpecialToken.ID]
			if !ok {
				return template{}, fmt.Errorf("%s.single[%d] names %q, which is not in special_tokens", field, i, part.SpecialToken.ID)
			}
			for _, id := range special.IDs {
				if id < 0 || id > maxID {
					return template{}, fmt.Errorf("%s.special_tokens: %q has id %d: allowed are 0 to %d", field, part.SpecialToken.ID, id, maxID)
				}
			}
			if texts == 0 {
				t.before = append(t.before, special.IDs...)
			} else {
				t.after = append(t.after, special.IDs...)
			}
			var err error
			if t, err = t.check(field); err != nil {
				return template{}, err
			}
		default:
			return template{}, fmt.Errorf("%s.single[%d]: one of SpecialToken and Sequence is needed", field, i)
		}
	}
	if texts != 1 {
		return template{}, fmt.Errorf("%s.single has the text %d times: once is needed", field, texts)
	}
	return t, nil
}

// tokenWithID is a token written as ["content", id].
type tokenWithID struct{ id int32 }

func (t *tokenWithID) UnmarshalJSON(b []byte) error {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return err
	}
	if len(pair) != 2 {
		return fmt.Errorf("a token and its id are needed, not %d values", len(pair))
	}
	if err := json.Unmarshal(pair[1], &t.id); err != nil {
		return err
	}
	if t.id < 0 || t.id > maxID {
		return fmt.Errorf("id %d: allowed are 0 to %d", t.id, maxID)
	}
	return nil
}
