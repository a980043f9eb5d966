package jinja

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// Clock gives the time that strftime_now prints.
type Clock func() time.Time

// Template is a parsed template. It is immutable and may render concurrently.
type Template struct {
	name     string
	body     []stmt
	function *function
	frame    *frame
}

// Parse parses a template's source. The name is for messages. Faults in the syntax, unknown tags, filters and tests, and sources over the bounds of
// size and nesting are an *[Error].
func Parse(name, source string) (t *Template, err error) {
	if len(source) > maxSourceBytes {
		return nil, &Error{Template: name, Line: 1, Class: limitError, Message: fmt.Sprintf("template of %d bytes; at most %d are allowed", len(source), maxSourceBytes)}
	}
	if !utf8.ValidString(source) {
		return nil, &Error{Template: name, Line: 1, Class: syntaxError, Message: "template is not valid UTF-8"}
	}
	defer func() {
		if fault := recoverFault(recover(), name, nil); fault != nil {
			t, err = nil, fault
		}
	}()
	p := &parser{tokens: tokenize(source)}
	t = &Template{name: name, body: p.statements()}
	checkDepth(t.body)
	t.function, t.frame = new(resolver).template(t.body)
	return t, nil
}

// recoverFault turns what evaluation panicked with into an error; other panics go on.
func recoverFault(panicked any, name string, at node) error {
	line := 1
	if at != nil {
		line = at.lineNo()
	}
	switch p := panicked.(type) {
	case nil:
		return nil
	case *fault:
		if p.line != 0 {
			line = p.line
		}
		return &Error{Template: name, Line: line, Construct: construct(at), Class: p.class, Message: p.message}
	case *raised:
		return &RaisedError{Template: name, Line: line, Message: p.message}
	case *cancelled:
		return fmt.Errorf("render template %s: %w", name, p.err)
	}
	panic(panicked)
}

// Options are the parts of a rendering that are not data.
type Options struct {
	// Limits bounds the work; zero fields take their defaults.
	Limits Limits
	// Budget pays for the work, within the limits. Without one, Render makes its own.
	Budget *budget.Budget
	// Clock is what strftime_now reads. Without one, strftime_now is undefined, as in an environment that does not offer it.
	Clock Clock
}

// Render runs the template with vars as its variables and returns what it printed. vars is not changed. A template that called raise_exception gives a
// *[RaisedError], one that failed or reached a limit an *[Error], and an ended context an error that wraps the context's cause. [budget.ErrBusy] is
// wrapped where a long rendering found no place.
func (t *Template) Render(ctx context.Context, vars *Dict, options Options) (out string, err error) {
	limits := budget.Limits{Steps: options.Limits.Steps, Bytes: options.Limits.Bytes}
	if options.Budget == nil {
		options.Budget = budget.New(ctx, limits)
		defer options.Budget.End()
	} else {
		options.Budget.Renew(limits)
	}
	r := &run{budget: options.Budget, most: options.Limits.Depth, clock: options.Clock, vars: vars, globals: newGlobals(options.Clock), out: &output{}}
	if r.most == 0 {
		r.most = DefaultLimits.Depth
	}
	if err := context.Cause(ctx); err != nil {
		return "", fmt.Errorf("render template %s: %w", t.name, err)
	}
	defer func() {
		if fault := recoverFault(recover(), t.name, r.at); fault != nil {
			out, err = "", fault
		}
	}()
	a := r.newActivation(t.function, nil)
	r.enterFrame(a, t.frame)
	r.exec(t.body, a)
	return r.out.String(), nil
}
