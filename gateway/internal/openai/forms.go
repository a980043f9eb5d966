package openai

import (
	"encoding/json"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// formFields are the names under which clients of several servers ask for an answer of a form.
type formFields struct {
	ResponseFormat    json.RawMessage `json:"response_format"`
	StructuredOutputs json.RawMessage `json:"structured_outputs"` // vLLM
	GuidedJSON        json.RawMessage `json:"guided_json"`        // vLLM, to 0.11
	GuidedRegex       json.RawMessage `json:"guided_regex"`
	GuidedChoice      json.RawMessage `json:"guided_choice"`
	GuidedGrammar     json.RawMessage `json:"guided_grammar"`
	GuidedWhitespace  *string         `json:"guided_whitespace_pattern"`
	Regex             json.RawMessage `json:"regex"` // SGLang
	EBNF              json.RawMessage `json:"ebnf"`
	JSONSchema        json.RawMessage `json:"json_schema"` // llama.cpp
	Grammar           json.RawMessage `json:"grammar"`
}

// form is the one that a request asks for.
func (f *formFields) form() (out inference.AnswerForm, err error) {
	for _, one := range []struct {
		field string
		raw   json.RawMessage
		read  func(field string, raw json.RawMessage) (inference.AnswerForm, error)
	}{
		{"response_format", f.ResponseFormat, responseFormat},
		{"structured_outputs", f.StructuredOutputs, structuredOutputs},
		{"guided_json", f.GuidedJSON, schemaForm},
		{"guided_regex", f.GuidedRegex, regexForm},
		{"guided_choice", f.GuidedChoice, choiceForm},
		{"guided_grammar", f.GuidedGrammar, grammarForm},
		{"regex", f.Regex, regexForm},
		{"ebnf", f.EBNF, grammarForm},
		{"json_schema", f.JSONSchema, schemaForm},
		{"grammar", f.Grammar, grammarForm},
	} {
		if !inference.Given(one.raw) {
			continue
		}
		form, err := one.read(one.field, one.raw)
		if err != nil {
			return out, err
		}
		if form.Field == "" {
			continue
		}
		if out.Field != "" {
			return out, inference.Invalid(one.field, "cannot be given together with %s: an answer has one form", out.Field)
		}
		out = form
	}
	if f.GuidedWhitespace != nil && out.Field != "" {
		out.Whitespace = *f.GuidedWhitespace
	}
	return out, nil
}

// schemaForm is a form by a JSON schema, which may come as an object, true or false, or as a string that holds one.
func schemaForm(field string, raw json.RawMessage) (inference.AnswerForm, error) {
	if inference.KindOf(raw) == '"' {
		text, err := inference.StringOf(raw)
		if err != nil || !json.Valid([]byte(text)) {
			return inference.AnswerForm{}, inference.Invalid(field, "is a string that holds no JSON schema")
		}
		raw = json.RawMessage(text)
	}
	switch inference.KindOf(raw) {
	case '{', 't', 'f':
		return inference.AnswerForm{Field: field, Schema: raw}, nil
	}
	return inference.AnswerForm{}, inference.Invalid(field, "must be a JSON schema: an object")
}

func textForm(field string, raw json.RawMessage) (string, error) {
	text, err := inference.StringOf(raw)
	if err != nil {
		return "", inference.Invalid(field, "%v", err)
	}
	if text == "" {
		return "", inference.Invalid(field, "must not be empty")
	}
	return text, nil
}

func regexForm(field string, raw json.RawMessage) (inference.AnswerForm, error) {
	text, err := textForm(field, raw)
	return inference.AnswerForm{Field: field, Regex: text}, err
}

func grammarForm(field string, raw json.RawMessage) (inference.AnswerForm, error) {
	if inference.KindOf(raw) == '"' && isEmptyText(raw) { // llama.cpp's clients send it for none
		return inference.AnswerForm{}, nil
	}
	text, err := textForm(field, raw)
	return inference.AnswerForm{Field: field, GBNF: text}, err
}

func isEmptyText(raw json.RawMessage) bool {
	text, err := inference.StringOf(raw)
	return err == nil && text == ""
}

const maxFormChoices = 4096

func choiceForm(field string, raw json.RawMessage) (inference.AnswerForm, error) {
	if inference.KindOf(raw) != '[' {
		return inference.AnswerForm{}, inference.Invalid(field, "must be a list of 1 to %d strings", maxFormChoices)
	}
	list, err := inference.Elements(raw, maxFormChoices)
	if err != nil {
		return inference.AnswerForm{}, inference.Invalid(field, "%v", err)
	}
	if len(list) == 0 {
		return inference.AnswerForm{}, inference.Invalid(field, "must hold at least one string")
	}
	out := inference.AnswerForm{Field: field, Choices: make([]string, len(list))}
	for i, one := range list {
		if out.Choices[i], err = inference.StringOf(one); err != nil {
			return inference.AnswerForm{}, inference.Invalid(fmt.Sprintf("%s[%d]", field, i), "%v", err)
		}
	}
	return out, nil
}

// responseFormat reads OpenAI's response_format, and the schema that other servers' clients put beside the type json_object.
func responseFormat(field string, raw json.RawMessage) (out inference.AnswerForm, err error) {
	var r struct {
		Type       string          `json:"type"`
		JSONSchema json.RawMessage `json:"json_schema"`
		Schema     json.RawMessage `json:"schema"`
	}
	if inference.KindOf(raw) != '{' {
		return out, inference.Invalid(field, "must be an object with a type")
	}
	if err := inference.DecodePart(field, raw, &r); err != nil {
		return out, err
	}
	switch r.Type {
	case "text":
		return out, nil
	case "json_object":
		if inference.Given(r.Schema) {
			return schemaForm(field+".schema", r.Schema)
		}
		return inference.AnswerForm{Field: field, Object: true}, nil
	case "json_schema":
		return namedSchema(field+".json_schema", r.JSONSchema)
	}
	return out, inference.Unsupported(field+".type", fmt.Sprintf("%.40q is not supported; allowed are text, json_object and json_schema", r.Type))
}

// namedSchema reads the json_schema of a response_format.
func namedSchema(field string, raw json.RawMessage) (out inference.AnswerForm, err error) {
	var s struct {
		Schema json.RawMessage `json:"schema"`
		Strict *bool           `json:"strict"`
		Type   json.RawMessage `json:"type"`
		Inner  json.RawMessage `json:"json_schema"`
	}
	const form = `{"type": "json_schema", "json_schema": {"name": "…", "schema": {…}, "strict": true}} is the form`
	if inference.KindOf(raw) != '{' {
		return out, inference.Invalid(field, "is required: %s", form)
	}
	if err := inference.DecodePart(field, raw, &s); err != nil {
		return out, err
	}
	strict := s.Strict != nil && *s.Strict
	if !inference.Given(s.Schema) {
		if inference.Given(s.Type) || inference.Given(s.Inner) {
			return out, inference.Invalid(field+".schema", "is missing: the schema stands one level deeper; %s", form)
		}
		if strict {
			return out, inference.Invalid(field+".schema", "is required")
		}
		s.Schema = json.RawMessage("{}")
	}
	if out, err = schemaForm(field+".schema", s.Schema); err != nil {
		return out, err
	}
	out.Strict = strict
	return out, nil
}

// structuredOutputs reads vLLM's structured_outputs.
func structuredOutputs(field string, raw json.RawMessage) (out inference.AnswerForm, err error) {
	var s struct {
		JSON          json.RawMessage `json:"json"`
		Regex         json.RawMessage `json:"regex"`
		Choice        json.RawMessage `json:"choice"`
		Grammar       json.RawMessage `json:"grammar"`
		JSONObject    bool            `json:"json_object"`
		StructuralTag json.RawMessage `json:"structural_tag"`
		Whitespace    *string         `json:"whitespace_pattern"`
		NoWhitespace  bool            `json:"disable_any_whitespace"`
		NoMore        bool            `json:"disable_additional_properties"`
	}
	if inference.KindOf(raw) != '{' {
		return out, inference.Invalid(field, "must be an object")
	}
	if err := inference.DecodePart(field, raw, &s); err != nil {
		return out, err
	}
	if inference.Given(s.StructuralTag) {
		return out, inference.Unsupported(field+".structural_tag", "is not supported; json, regex, choice, grammar and json_object are")
	}
	if s.NoMore {
		return out, inference.Unsupported(field+".disable_additional_properties", `is not supported; say "additionalProperties": false in the schema`)
	}
	given := 0
	for _, one := range []struct {
		name string
		raw  json.RawMessage
		read func(field string, raw json.RawMessage) (inference.AnswerForm, error)
	}{{"json", s.JSON, schemaForm}, {"regex", s.Regex, regexForm}, {"choice", s.Choice, choiceForm}, {"grammar", s.Grammar, grammarForm}} {
		if !inference.Given(one.raw) {
			continue
		}
		given++
		if out, err = one.read(field+"."+one.name, one.raw); err != nil {
			return out, err
		}
	}
	if s.JSONObject {
		given++
		out = inference.AnswerForm{Field: field + ".json_object", Object: true}
	}
	if given != 1 {
		return out, inference.Invalid(field, "must have exactly one of json, regex, choice, grammar and json_object; it has %d", given)
	}
	out.NoWhitespace = s.NoWhitespace
	if s.Whitespace != nil {
		out.Whitespace = *s.Whitespace
	}
	return out, nil
}
