package inference

import (
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/schema"
)

// AnswerForm is the form that an answer is held to while it is sampled.
type AnswerForm struct {
	// Field is the request's that asks for it, "" for free text.
	Field string
	// One of these is set.
	Object  bool     // any JSON object
	Schema  []byte   // a JSON schema, in the client's order of keys
	Regex   string   // a regular expression, from start to end
	Choices []string // one of some texts
	GBNF    string   // a grammar as llama.cpp writes them
	// Strict has everything in a schema enforced while sampling, or the request refused.
	Strict bool
	// NoWhitespace forbids white space between JSON's parts; Whitespace is a pattern for it.
	NoWhitespace bool
	Whitespace   string
}

// SchemaError is something in a finished answer that its schema does not allow.
type SchemaError struct {
	Path    string `json:"path"`
	Keyword string `json:"keyword"`
	Message string `json:"message"`
	// Call is the number of the tool call whose arguments it is in, from 0; nil for the content.
	Call *int `json:"tool_call,omitempty"`
}

// maxSchemaErrors is how many of them an answer tells of.
const maxSchemaErrors = 8

// schemaErrors are what is wrong with a text, behind what is wrong elsewhere. call is where it is, as in SchemaError.
func schemaErrors(before []SchemaError, problems []schema.Problem, call *int) []SchemaError {
	for _, p := range problems[:min(len(problems), maxSchemaErrors-len(before))] {
		before = append(before, SchemaError{p.Path, p.Keyword, p.Message, call})
	}
	return before
}

// The header names so many keywords, and of each so many characters: what is longer than a few KiB breaks clients.
const (
	maxRelaxedNamed = 16
	maxRelaxedBytes = 120
)

// relaxedNames are the keywords that an answer is not held to, for the header that tells of them.
func relaxedNames(relaxed []schema.Relaxed) string {
	var names []string
	for i, r := range relaxed {
		if i == maxRelaxedNamed {
			names = append(names, fmt.Sprintf("and %d more", len(relaxed)-i))
			break
		}
		names = append(names, strings.Map(func(c rune) rune {
			if c < ' ' || c > '~' || c == ',' {
				return '?'
			}
			return c
		}, fmt.Sprintf("%.*s", maxRelaxedBytes, r.String())))
	}
	return strings.Join(names, ", ")
}
