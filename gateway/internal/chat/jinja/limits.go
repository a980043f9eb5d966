package jinja

import (
	"errors"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// Limits bounds one rendering. A zero field takes its value from [DefaultLimits]; Steps and Bytes cannot be raised above it.
type Limits struct {
	// Steps is the work, in the units of package budget; an evaluation of a statement or expression counts as evaluationSteps of them.
	Steps int
	// Bytes is the memory of everything that the template makes: strings, lists, dictionaries and output, counted when they are made.
	Bytes int
	// Depth is how deep macros, calls and recursive loops may nest.
	Depth int
}

// DefaultLimits is what Render uses. A conversation of a million tokens stays well inside.
var DefaultLimits = Limits{Steps: budget.Most.Steps, Bytes: budget.Most.Bytes, Depth: 200}

const (
	// maxSourceBytes bounds a template's text; the longest published chat templates have about 30 kB.
	maxSourceBytes = 1 << 20
	// maxNesting bounds the nesting of tags and of expressions.
	maxNesting = 200
	// maxChain bounds a series of operators without brackets.
	maxChain = 500
	// maxTreeDepth bounds the depth of an expression's tree, to which chains within brackets within chains add up.
	maxTreeDepth = 1000
	// maxNames bounds the parameters of a macro and the keyword arguments of a call.
	maxNames = 1000
	// maxAnalysis bounds what is copied and visited to find out which variable each name is: conditions times names, and loops within loops.
	maxAnalysis = 10_000_000
	// maxEvaluationDepth bounds evaluations within each other, over all calls and lazy filters: each has a place on the stack.
	maxEvaluationDepth = 4000
	// maxRange is the sandbox's bound on range(): jinja2 refuses more.
	maxRange = 100000
	// maxValueDepth bounds how deep nested containers may be when they are printed, compared or hashed. Python's own recursion limit is 1000.
	maxValueDepth = 900
	// maxIntBits bounds integers; Python refuses to print integers of more than 4300 digits.
	maxIntBits = 14000
)

// What is counted. The bytes are what Go takes for these, rounded up.
const (
	// evaluationSteps is the work of one evaluation, a loop's turn or an element's comparison: about 50 nanoseconds.
	evaluationSteps = 16
	// valueBytes is an element of a list or tuple: its place there, and the value itself where that is small.
	valueBytes = 32
	// entryBytes is a key with its value in a dictionary.
	entryBytes = 192
	// objectBytes is what is made beside values: an iterator, a bound method, a loop, an undefined value.
	objectBytes = 64
)

// run is the state of one rendering. It belongs to one goroutine.
type run struct {
	budget *budget.Budget
	depth  int // of calls
	nested int // evaluations within each other
	most   int // of depth
	clock  Clock
	// vars are what the caller gave; globals are the environment's functions, which vars hide.
	vars, globals *Dict
	// at is what is being evaluated, for errors.
	at node
	// out is the buffer that output goes to now.
	out *output
}

// node is a statement or expression.
type node interface{ lineNo() int }

// step counts one evaluation.
func (r *run) step() { r.work(evaluationSteps) }

// work counts n steps at once, for builtins that touch many elements or characters.
func (r *run) work(n int) {
	if err := r.budget.Work(n); err != nil {
		r.stop(err)
	}
}

// scan counts the work of going through a text of n bytes.
func (r *run) scan(n int) { r.work(n >> 1) }

// alloc counts n bytes about to be made. Callers count before they make them.
func (r *run) alloc(n int) {
	if err := r.budget.Take(n); err != nil {
		r.stop(err)
	}
}

// allocEach counts count times n bytes about to be made.
func (r *run) allocEach(count, n int) {
	if err := r.budget.TakeEach(count, n); err != nil {
		r.stop(err)
	}
}

// stop ends the rendering.
func (r *run) stop(err error) {
	var exceeded *budget.Exceeded
	if errors.As(err, &exceeded) {
		throw(limitError, "%v", exceeded)
	}
	panic(&cancelled{err})
}

// str makes a string value of text that was just built, counting it.
func (r *run) str(s string) Str {
	r.alloc(len(s))
	return Str(s)
}

// room makes place for n items.
func (r *run) room(n int) []Value {
	r.allocEach(n, valueBytes)
	return make([]Value, 0, n)
}

// write is output.
func (r *run) write(s string) {
	r.alloc(len(s))
	r.out.WriteString(s)
}

// capture runs body with output going to a buffer of its own and returns what it wrote.
func (r *run) capture(body func()) string {
	outer := r.out
	r.out = &output{}
	body()
	text := r.out.String()
	r.out = outer
	return text
}

// enter counts one level of calls; the caller must leave.
func (r *run) enter() {
	r.depth++
	if r.depth > r.most {
		throw(limitError, "calls nest deeper than %d", r.most)
	}
}

func (r *run) leave() { r.depth-- }

// descend counts one evaluation within another; the caller must ascend.
func (r *run) descend() {
	r.nested++
	if r.nested > maxEvaluationDepth {
		throw(limitError, "evaluations nest deeper than %d", maxEvaluationDepth)
	}
}

func (r *run) ascend() { r.nested-- }
