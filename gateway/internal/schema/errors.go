package schema

import (
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// Error says why a schema, grammar, pattern or choice is refused.
type Error struct {
	Pointer string // of the schema that is wrong, like #/properties/a; "" where there is none
	Keyword string // of that schema
	Reason  string // what is wrong and what is allowed
	Relaxed bool   // without strict it would be taken, and checked on the finished value

	involved bool // see TooInvolved
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Pointer != "" {
		b.WriteString(e.Pointer)
		b.WriteByte(' ')
	}
	if e.Keyword != "" {
		b.WriteString(e.Keyword)
	}
	text := strings.TrimSpace(b.String())
	if text != "" {
		text += ": "
	}
	text += e.Reason
	if e.Relaxed {
		text += "; set strict to false to have it checked after the fact"
	}
	return text
}

// Relaxed is a keyword that the mask does not hold to. The finished value is checked instead.
type Relaxed struct {
	Pointer string // of the schema, like #/properties/a
	Keyword string
	Reason  string // why the mask has it not
}

func (r Relaxed) String() string { return r.Pointer + " " + r.Keyword }

func tooLarge(pointer, keyword string, what string, count, limit int) *Error {
	return &Error{Pointer: pointer, Keyword: keyword, Reason: fmt.Sprintf("schema too large: %s: %d > %d", what, count, limit)}
}

// escapePointer writes one step of a JSON pointer.
func escapePointer(step string) string {
	if !strings.ContainsAny(step, "~/") {
		return step
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(step)
}

// show writes a value for a message, shortened.
func show(v *jsonvalue.Value) string {
	if v.Kind == jsonvalue.Array && len(v.Items) > 16 || v.Kind == jsonvalue.Object && len(v.Members) > 16 {
		return "an " + v.Kind.String()
	}
	text := jsonvalue.Canonical(v)
	if len(text) > 80 {
		text = strings.ToValidUTF8(text[:80], "") + "…"
	}
	return text
}
