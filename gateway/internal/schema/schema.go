// Package schema makes grammars of what requests ask an answer to be: a JSON Schema, a regular expression, a list of choices, a GBNF grammar. What a
// grammar cannot hold to is named, and finished values are checked against the whole schema. It fetches nothing, and its work is bounded whatever the
// request says. It must not know HTTP, tokens or how a grammar is used.
//
// Values are checked by code of its own rather than by a library: those that there are compile in time that grows with the square of a schema, and
// check references that double at each level without end, which nobody can stop.
package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/ecma"
	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// Options say how a schema is compiled. The zero value is right for a schema that is not strict.
type Options struct {
	Strict bool // every keyword must be in the grammar; else those that cannot be are left to Validate

	// White space at the places where JSON allows it. By default that is nothing, one space, or a newline with at most 64 spaces and tabs.
	NoWhitespace bool
	Whitespace   string // a pattern instead; not both

	// Draft is that of schemas that do not name one; 2020-12 if it is not given.
	Draft Draft

	// Coarse does not try to have in the grammar what may be left to the finished value. It is for schemas that are too large otherwise: see TooInvolved.
	Coarse bool

	// Root lets only values of one kind through, by its name in JSON Schema; "" lets all.
	Root string
}

// Compiled is a schema that was compiled. It is safe for concurrent use.
type Compiled struct {
	Grammar  *grammar.Grammar
	Relaxed  []Relaxed // what the grammar does not hold to; empty with Strict
	document *document
}

// Validate tells what is wrong with a finished text, at most eight problems; none if it is valid.
func (c *Compiled) Validate(text []byte) []Problem { return c.document.validate(text) }

// Value is a schema in a grammar of the caller's.
type Value struct {
	Symbol  grammar.Symbol
	Relaxed []Relaxed

	document     *document
	beyondDigits bool
}

// Validate is Compiled's.
func (v *Value) Validate(text []byte) []Problem { return v.document.validate(text) }

func (d *document) validate(text []byte) []Problem {
	value, err := jsonvalue.Read(text, jsonvalue.Limits{Bytes: maxInstanceBytes, Depth: maxInstanceDepth, RepeatKeys: true})
	if err != nil {
		return []Problem{{Message: "no JSON value: " + err.Error()}}
	}
	return newValidator(d, maxValidateSteps).explain(d.root, value)
}

// Validator is Validate of a schema that nothing is to be held to.
func Validator(schema []byte, options Options) (func(text []byte) []Problem, error) {
	d, err := readDocument(schema, options.Draft)
	if err != nil {
		return nil, err
	}
	if err := d.noLoop(); err != nil {
		return nil, err
	}
	return d.validate, nil
}

// Compile makes the grammar of the JSON values that satisfy a schema. Its errors are *Error but for that of a context that is done.
func Compile(ctx context.Context, schema []byte, options Options) (*Compiled, error) {
	compiled, err := compile(ctx, schema, options)
	if TooInvolved(err) && !options.Strict && !options.Coarse {
		options.Coarse = true
		if coarse, coarseErr := compile(ctx, schema, options); coarseErr == nil {
			return coarse, nil
		}
	}
	return compiled, err
}

// compile is Compile as the options say, coarse or not.
func compile(ctx context.Context, schema []byte, options Options) (compiled *Compiled, err error) {
	b := grammar.NewBuilder(Limits())
	b.Within(ctx)
	value, err := Add(ctx, b, schema, options)
	if err != nil {
		return nil, err
	}
	g, err := b.Grammar(value.Symbol)
	if err != nil {
		if errors.Is(err, grammar.ErrNoText) && value.beyondDigits {
			return nil, &Error{Pointer: "#", Reason: fmt.Sprintf("%s that is written with at most %d digits before and behind the point of a number", noValue,
				numberDigits)}
		}
		return nil, grammarError(err, "#")
	}
	return &Compiled{Grammar: g, Relaxed: value.Relaxed, document: value.document}, nil
}

// TooInvolved tells of an error that a bound was met which a coarser grammar might not meet.
func TooInvolved(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.involved
}

// Limits are those of a Builder for what requests say.
func Limits() grammar.Limits {
	limits := grammar.DefaultLimits()
	limits.Steps = maxExpressionSteps
	return limits
}

// Finish makes the grammar of what was added to a Builder. An error is an *Error about the schema at pointer, "" where there is none.
func Finish(b *grammar.Builder, root grammar.Symbol, pointer string) (*grammar.Grammar, error) {
	g, err := b.Grammar(root)
	if err == nil && len(g.Encode()) > b.Limits().Encoding {
		err = &grammar.LimitError{What: "bytes", Count: len(g.Encode()), Limit: b.Limits().Encoding}
	}
	return g, grammarError(err, pointer)
}

// noValue is said of schemas under which nothing can be written.
const noValue = "no value satisfies it"

// grammarError puts an error of a Builder into our words.
func grammarError(err error, pointer string) error {
	var limit *grammar.LimitError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, grammar.ErrNoText):
		return &Error{Pointer: pointer, Reason: noValue}
	case errors.As(err, &limit):
		e := tooLarge(pointer, "", limit.What, limit.Count, limit.Limit)
		e.involved = true
		return e
	}
	return &Error{Pointer: pointer, Reason: err.Error()}
}

// Add makes a schema a symbol of the caller's grammar, such as the arguments of a tool. The Builder should be Within ctx. Where it, or the grammar, turns out
// TooInvolved it is for the caller to begin again with Options.Coarse.
func Add(ctx context.Context, b *grammar.Builder, schema []byte, options Options) (*Value, error) {
	c, err := prepareSchema(ctx, b, schema, options)
	if err != nil {
		return nil, err
	}
	root := c.single(c.document.root)
	if options.Root != "" {
		kind := slices.IndexFunc(kindsByName(), func(k jsonvalue.Kind) bool { return k.String() == options.Root })
		if kind < 0 {
			return nil, fmt.Errorf("root kind %q", options.Root)
		}
		only := &node{id: c.nextID(), pointer: "#", value: &jsonvalue.Value{Kind: jsonvalue.Object}, types: only(jsonvalue.Kind(kind))}
		unset(only)
		root = c.and(root, c.set([]literal{{schema: only}}))
	}
	return c.value(c.symbol(root), options.Strict)
}

// value makes what is left to make, and says what became of it.
func (c *compiler) value(symbol grammar.Symbol, strict bool) (*Value, error) {
	c.finish()
	if err := c.result(strict); err != nil {
		return nil, err
	}
	return &Value{Symbol: symbol, Relaxed: c.relaxed, document: c.document, beyondDigits: c.beyondDigits}, nil
}

func kindsByName() []jsonvalue.Kind {
	return []jsonvalue.Kind{jsonvalue.Null, jsonvalue.Boolean, jsonvalue.Number, jsonvalue.String, jsonvalue.Array, jsonvalue.Object}
}

// prepareSchema reads a schema and what the options say about texts.
func prepareSchema(ctx context.Context, b *grammar.Builder, schema []byte, options Options) (*compiler, error) {
	d, err := readDocument(schema, options.Draft)
	if err != nil {
		return nil, err
	}
	if err := d.noLoop(); err != nil {
		return nil, err
	}
	between := defaultSpace(b)
	switch {
	case options.NoWhitespace && options.Whitespace != "":
		return nil, &Error{Keyword: "whitespace_pattern", Reason: "white space cannot be both switched off and described"}
	case options.NoWhitespace:
		between = b.Empty()
	case options.Whitespace != "":
		if len(options.Whitespace) > MaxWhitespaceBytes {
			return nil, tooLarge("", "whitespace_pattern", "bytes", len(options.Whitespace), MaxWhitespaceBytes)
		}
		pattern, err := ecma.Parse(options.Whitespace)
		if err != nil {
			return nil, &Error{Keyword: "whitespace_pattern", Reason: "not a regular expression of ECMA-262: " + err.Error()}
		}
		e, err := pattern.WholeExpression(b)
		if err != nil {
			return nil, &Error{Keyword: "whitespace_pattern", Reason: err.Error() + " cannot be enforced"}
		}
		allowed := b.Repeat(b.Class(grammar.RuneRange{Lo: ' ', Hi: ' '}, grammar.RuneRange{Lo: '\t', Hi: '\n'}, grammar.RuneRange{Lo: '\r', Hi: '\r'}), 0, -1)
		between = b.Intersect(e, allowed)
		if none, _ := b.Ask(between, questionSteps); none {
			return nil, &Error{Keyword: "whitespace_pattern", Reason: "it matches no white space of JSON; allowed: space, tab, newline, carriage return"}
		}
	}
	c := newCompiler(ctx, b, d, space{between})
	c.coarse = options.Coarse
	return c, nil
}

// result is what went wrong, if anything did.
func (c *compiler) result(strict bool) error {
	switch {
	case c.err != nil:
		return c.err
	case c.over != nil:
		return c.over
	case c.b.Err() != nil:
		return grammarError(c.b.Err(), "#")
	case strict && len(c.relaxed) > 0:
		r := c.relaxed[0]
		return &Error{Pointer: r.Pointer, Keyword: r.Keyword, Reason: "cannot be enforced while the answer is written: " + r.Reason, Relaxed: true}
	}
	return nil
}

// JSONObject is the texts of all JSON objects.
func JSONObject(b *grammar.Builder) grammar.Symbol {
	c := newCompiler(context.Background(), b, &document{}, space{defaultSpace(b)})
	c.prepare()
	object := c.anyObject()
	symbol := c.object(&object, c.jsonForm())
	c.finish()
	return symbol
}

// Choice is one of some texts.
func Choice(b *grammar.Builder, choices []string) (grammar.Symbol, error) {
	if len(choices) == 0 || len(choices) > MaxChoices {
		return 0, &Error{Keyword: "choice", Reason: fmt.Sprintf("want 1 to %d texts, got %d", MaxChoices, len(choices))}
	}
	list := make([]grammar.Expr, len(choices))
	size := 0
	for i, choice := range choices {
		if size += len(choice); size > MaxEnumBytes {
			return 0, tooLarge("", "choice", "bytes of all choices", size, MaxEnumBytes)
		}
		list[i] = b.Literal(choice)
	}
	return b.Terminal(b.Union(list...)), grammarError(b.Err(), "")
}

// Regex is the texts that a pattern of ECMA-262 matches from start to end.
func Regex(b *grammar.Builder, source string) (grammar.Symbol, error) {
	pattern, err := ecma.Parse(source)
	if err != nil {
		return 0, &Error{Keyword: "regex", Reason: "not a regular expression of ECMA-262: " + err.Error()}
	}
	e, err := pattern.WholeExpression(b)
	if err != nil {
		return 0, &Error{Keyword: "regex", Reason: err.Error() + " cannot be enforced; allowed: classes, groups, alternatives, repetitions, ^ and $ at the ends"}
	}
	return b.Terminal(e), grammarError(b.Err(), "")
}
