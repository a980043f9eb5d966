package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// schemas are those of OpenAI's own OpenAPI document, reduced by testdata/reduce_openapi.py.
type schemas struct {
	Components struct {
		Schemas map[string]map[string]any `json:"schemas"`
	} `json:"components"`
}

func loadSchemas(t testing.TB) *schemas {
	t.Helper()
	b, err := os.ReadFile("testdata/openapi_answers.json")
	if err != nil {
		t.Fatal(err)
	}
	s := &schemas{}
	if err := json.Unmarshal(b, s); err != nil {
		t.Fatal(err)
	}
	return s
}

// check demands that a JSON value is what the named schema allows.
func (s *schemas) check(t testing.TB, name string, value any) {
	t.Helper()
	schema := s.Components.Schemas[name]
	if schema == nil {
		t.Fatalf("no schema %s", name)
	}
	if err := s.validate(schema, value, name); err != nil {
		text, _ := json.Marshal(value)
		t.Errorf("%v\nin %.2000s", err, text)
	}
}

// validate knows the keywords that the reduced document uses; any other one fails, so that none is passed over.
func (s *schemas) validate(schema map[string]any, value any, at string) error {
	for keyword, rule := range schema {
		var err error
		switch keyword {
		case "$ref":
			err = s.validate(s.Components.Schemas[strings.TrimPrefix(rule.(string), "#/components/schemas/")], value, at)
		case "type":
			err = checkType(rule, value, at)
		case "enum":
			if !slices.Contains(rule.([]any), value) {
				err = fmt.Errorf("%s: %v is not one of %v", at, value, rule)
			}
		case "allOf":
			for _, one := range rule.([]any) {
				if err == nil {
					err = s.validate(one.(map[string]any), value, at)
				}
			}
		case "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "pattern":
			err = checkBound(keyword, rule, value, at)
		case "anyOf", "oneOf":
			err = s.validateChoice(keyword, rule.([]any), value, at)
		case "required":
			if object, ok := value.(map[string]any); ok {
				for _, name := range rule.([]any) {
					if _, ok := object[name.(string)]; !ok {
						err = fmt.Errorf("%s: %s is missing", at, name)
					}
				}
			}
		case "properties", "additionalProperties":
			if object, ok := value.(map[string]any); ok {
				err = s.validateMembers(schema, keyword, object, at)
			}
		case "items":
			if list, ok := value.([]any); ok {
				for i, item := range list {
					if err == nil {
						err = s.validate(rule.(map[string]any), item, fmt.Sprintf("%s[%d]", at, i))
					}
				}
			}
		case "format": // unixtime and uri: annotations
		default:
			err = fmt.Errorf("%s: the validator does not know the keyword %s", at, keyword)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *schemas) validateChoice(keyword string, choices []any, value any, at string) error {
	var why []string
	for _, one := range choices {
		if s.isOther(one.(map[string]any), value) {
			why = append(why, "another type")
			continue
		}
		if err := s.validate(one.(map[string]any), value, at); err != nil {
			why = append(why, err.Error())
		}
	}
	fit := len(choices) - len(why)
	if fit == 0 || keyword == "oneOf" && fit != 1 {
		return fmt.Errorf("%s: %d of %s fit: %s", at, fit, keyword, strings.Join(why, "; "))
	}
	return nil
}

// isOther tells whether a value is of another type than a schema wants, by the member that says so: most of the many choices that there are need not be looked at.
func (s *schemas) isOther(schema map[string]any, value any) bool {
	if name, ok := schema["$ref"].(string); ok {
		schema = s.Components.Schemas[strings.TrimPrefix(name, "#/components/schemas/")]
	}
	object, _ := value.(map[string]any)
	declared, _ := schema["properties"].(map[string]any)
	kind, _ := declared["type"].(map[string]any)
	allowed, _ := kind["enum"].([]any)
	return object["type"] != nil && allowed != nil && !slices.Contains(allowed, object["type"])
}

func (s *schemas) validateMembers(schema map[string]any, keyword string, object map[string]any, at string) error {
	declared, _ := schema["properties"].(map[string]any)
	for name, member := range object {
		rule, ok := declared[name]
		if keyword == "additionalProperties" {
			if ok {
				continue
			}
			if allowed, isBool := schema[keyword].(bool); isBool {
				if !allowed {
					return fmt.Errorf("%s.%s is not allowed", at, name)
				}
				continue
			}
			rule = schema[keyword]
		} else if !ok {
			continue
		}
		if err := s.validate(rule.(map[string]any), member, at+"."+name); err != nil {
			return err
		}
	}
	return nil
}

func checkBound(keyword string, rule, value any, at string) error {
	size, is := 0.0, ""
	switch v := value.(type) {
	case float64:
		size, is = v, "imum"
	case string:
		if pattern, ok := rule.(string); ok {
			if !regexp.MustCompile(pattern).MatchString(v) {
				return fmt.Errorf("%s: %q does not match %s", at, v, pattern)
			}
			return nil
		}
		size, is = float64(utf8.RuneCountInString(v)), "Length"
	case []any:
		size, is = float64(len(v)), "Items"
	}
	bound, ok := rule.(float64)
	if ok && (keyword == "min"+is && size < bound || keyword == "max"+is && size > bound) {
		return fmt.Errorf("%s: %v is beyond the %s of %v", at, value, keyword, bound)
	}
	return nil
}

func checkType(rule, value any, at string) error {
	allowed, ok := rule.([]any)
	if !ok {
		allowed = []any{rule}
	}
	var got []string
	switch v := value.(type) {
	case nil:
		got = []string{"null"}
	case bool:
		got = []string{"boolean"}
	case string:
		got = []string{"string"}
	case []any:
		got = []string{"array"}
	case map[string]any:
		got = []string{"object"}
	case float64:
		got = []string{"number"}
		if v == math.Trunc(v) {
			got = append(got, "integer")
		}
	}
	for _, g := range got {
		if slices.Contains(allowed, any(g)) {
			return nil
		}
	}
	return fmt.Errorf("%s: %v is not of type %v", at, value, rule)
}

func TestSchemasRefuse(t *testing.T) {
	s := loadSchemas(t)
	const name = "CreateChatCompletionResponse"
	const good = `{"id":"a","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop","logprobs":null,"message":{"role":"assistant","content":"x","refusal":null}}]}`
	s.check(t, name, parsed(t, good))
	for _, change := range [][2]string{{`"id":"a",`, ``}, {`"created":1`, `"created":1.5`}, {`"stop"`, `"eos"`}, {`"logprobs":null`, `"logprobs":3`}, {`"assistant"`, `"user"`}} {
		if s.validate(s.Components.Schemas[name], parsed(t, strings.Replace(good, change[0], change[1], 1)), name) == nil {
			t.Errorf("%s instead of %s is let through", change[1], change[0])
		}
	}
}

func parsed(t testing.TB, text string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %.300s", err, text)
	}
	return v
}
