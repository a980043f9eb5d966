package jinja

import (
	"context"
)

// Limits bounds one rendering. A zero field takes its value from [DefaultLimits].
type Limits struct {
	// Steps is the number of evaluations of statements, expressions and loop turns.
	Steps int
	// OutputBytes is the number of bytes written, into captured blocks too.
	OutputBytes int
	// AllocatedBytes is the sum of what strings, lists and dictionaries made by the template occupy, counted when they are made.
	AllocatedBytes int
	// Depth is how deep macros, calls and recursive loops may nest.
	Depth int
}

// DefaultLimits is what Render uses. A conversation of a million tokens stays well inside.
var DefaultLimits = Limits{Steps: 50_000_000, OutputBytes: 64 << 20, AllocatedBytes: 1 << 30, Depth: 200}

const (
	// maxSourceBytes bounds a template's text; the longest published chat templates have about 30 kB.
	maxSourceBytes = 1 << 20
	// maxNesting bounds the nesting of tags and of expressions.
	maxNesting = 200
	// maxChain bounds a series of operators without brackets.
	maxChain = 500
	// maxRange is the sandbox's bound on range(): jinja2 refuses more.
	maxRange = 100000
	// maxValueDepth bounds how deep nested containers may be when they are printed, compared or hashed. Python's own recursion limit is 1000.
	maxValueDepth = 900
	// maxIntBits bounds integers; Python refuses to print integers of more than 4300 digits.
	maxIntBits = 14000
	// valueBytes is what one element of a container counts in AllocatedBytes.
	valueBytes = 16
)

func (l Limits) withDefaults() Limits {
	if l.Steps == 0 {
		l.Steps = DefaultLimits.Steps
	}
	if l.OutputBytes == 0 {
		l.OutputBytes = DefaultLimits.OutputBytes
	}
	if l.AllocatedBytes == 0 {
		l.AllocatedBytes = DefaultLimits.AllocatedBytes
	}
	if l.Depth == 0 {
		l.Depth = DefaultLimits.Depth
	}
	return l
}

// run is the state of one rendering. It belongs to one goroutine.
type run struct {
	ctx    context.Context
	limits Limits
	clock  Clock
	// vars are what the caller gave; globals are the environment's functions, which vars hide.
	vars, globals *Dict
	// line is the line being evaluated, for errors.
	line int
	// out is the buffer that output goes to now.
	out       *[]byte
	steps     int
	written   int
	allocated int
	depth     int
}

// step counts one evaluation and looks at the context now and then.
func (r *run) step() { r.work(1) }

// work counts n evaluations at once, for builtins that touch n elements.
func (r *run) work(n int) {
	before := r.steps
	r.steps += n
	if r.steps > r.limits.Steps || r.steps < before {
		throw(limitError, "more than %d steps", r.limits.Steps)
	}
	if before>>12 != r.steps>>12 {
		if err := context.Cause(r.ctx); err != nil {
			panic(&cancelled{err})
		}
	}
}

// alloc counts n bytes about to be made. Callers count before they make them.
func (r *run) alloc(n int) {
	r.allocated += n
	if n < 0 || r.allocated < 0 || r.allocated > r.limits.AllocatedBytes {
		throw(limitError, "more than %d bytes of values", r.limits.AllocatedBytes)
	}
	// Making bytes takes time as well, 64 of them about as much as a step.
	r.work(n >> 6)
}

// str makes a string value of text that was just built, counting it.
func (r *run) str(s string) Str {
	r.alloc(len(s))
	return Str(s)
}

// list makes a list of items that were just built, counting it.
func (r *run) list(items []Value) *List {
	r.alloc(valueBytes * len(items))
	return &List{Items: items}
}

func (r *run) write(s string) {
	r.written += len(s)
	if r.written > r.limits.OutputBytes {
		throw(limitError, "more than %d bytes of output", r.limits.OutputBytes)
	}
	*r.out = append(*r.out, s...)
}

// capture runs body with output going to a buffer of its own and returns what it wrote.
func (r *run) capture(body func()) string {
	outer := r.out
	var buffer []byte
	r.out = &buffer
	body()
	r.out = outer
	return string(buffer)
}

// enter counts one level of calls; the caller must leave.
func (r *run) enter() {
	r.depth++
	if r.depth > r.limits.Depth {
		throw(limitError, "calls nest deeper than %d", r.limits.Depth)
	}
}

func (r *run) leave() { r.depth-- }
