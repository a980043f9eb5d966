package jinja

import (
	"fmt"
)

// Error is a template that cannot be parsed, or that failed while it rendered.
type Error struct {
	// Template is the name given to [Parse].
	Template string
	// Line is the template's line, counted from 1.
	Line int
	// Construct is the statement, filter, test or operator at that line that failed, such as "for" or "filter sort"; empty for a template that cannot be parsed.
	Construct string
	// Class is the name of the exception that Python would raise for the same fault: TemplateSyntaxError, UndefinedError, TypeError, ValueError,
	// SecurityError, ZeroDivisionError, OverflowError and so on. LimitError is ours: a bound of [Limits] was reached.
	Class string
	// Message says what happened.
	Message string
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("template %s line %d: %s: %s", e.Template, e.Line, e.Class, e.Described())
}

// Described is the message, behind the construct where a bound was reached: then that says what to change.
func (e *Error) Described() string {
	if e.Class != limitError || e.Construct == "" {
		return e.Message
	}
	return e.Construct + ": " + e.Message
}

// RaisedError is a template's own refusal of its input: it called raise_exception. The message is written for whoever sent the conversation.
type RaisedError struct {
	// Template is the name given to [Parse].
	Template string
	// Line is the line of the call, counted from 1.
	Line int
	// Message is the argument of raise_exception.
	Message string
}

// Error implements error.
func (e *RaisedError) Error() string {
	return fmt.Sprintf("template %s line %d: %s", e.Template, e.Line, e.Message)
}

// fault is how evaluation stops: a panic inside the package that Parse or Render turns into an [Error] with the line being evaluated.
type fault struct {
	class, message string
	// line is 0 where the line is the one that the run has noted.
	line int
}

// raised is the fault of raise_exception.
type raised struct{ message string }

// cancelled is the fault of a context that ended.
type cancelled struct{ err error }

const (
	typeError      = "TypeError"
	valueError     = "ValueError"
	undefinedError = "UndefinedError"
	securityError  = "SecurityError"
	syntaxError    = "TemplateSyntaxError"
	runtimeError   = "TemplateRuntimeError"
	argumentError  = "FilterArgumentError"
	overflowError  = "OverflowError"
	zeroDivision   = "ZeroDivisionError"
	keyError       = "KeyError"
	indexError     = "IndexError"
	limitError     = "LimitError"
)

func throw(class, format string, args ...any) {
	panic(&fault{class: class, message: fmt.Sprintf(format, args...)})
}
