package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printer builds the text of values as Python's str and repr do. It charges the run for what it builds; a nil run is for messages.
type printer struct {
	r *run
	b output
}

func (p *printer) add(s string) {
	if p.r != nil {
		p.r.alloc(len(s))
	}
	p.b.WriteString(s)
}

// str is Python's str(v).
func (r *run) toStr(v Value) string {
	if s, ok := text(v); ok {
		return s
	}
	p := printer{r: r}
	p.value(v, 0)
	return p.b.String()
}

// reprValue is Python's repr(v), for messages: it is cut off when it is long.
func reprValue(v Value) string {
	switch v := v.(type) {
	case *List, *Dict, Tuple, *namespace:
		return "<" + v.TypeName() + ">"
	}
	if s, ok := text(v); ok && len(s) > 400 {
		v = Str(strings.ToValidUTF8(s[:400], ""))
	}
	var p printer
	p.repr(v, 0)
	if s := p.b.String(); len(s) > 200 {
		return s[:200] + "..."
	}
	return p.b.String()
}

func (p *printer) value(v Value, depth int) {
	if _, ok := v.(*undefined); ok {
		return
	}
	if s, ok := text(v); ok {
		p.add(s)
		return
	}
	p.repr(v, depth)
}

func (p *printer) repr(v Value, depth int) {
	if depth > maxValueDepth {
		throw("RecursionError", "value nests deeper than %d", maxValueDepth)
	}
	if p.r != nil {
		p.r.step()
	}
	switch v := v.(type) {
	case none:
		p.add("None")
	case Bool:
		if v {
			p.add("True")
		} else {
			p.add("False")
		}
	case Int:
		p.add(fmt.Sprint(int64(v)))
	case *BigInt:
		if p.r != nil {
			p.r.chargeBig(words(v))
		}
		p.add(v.Big.String())
	case Float:
		p.add(formatFloat(float64(v)))
	case Str:
		p.quoted(string(v))
	case markup:
		p.add("Markup(")
		p.quoted(string(v))
		p.add(")")
	case *List:
		p.sequence("[", v.Items, "]", depth)
	case Tuple:
		end := ")"
		if len(v) == 1 {
			end = ",)"
		}
		p.sequence("(", v, end, depth)
	case *Dict:
		p.dict(v, depth)
	case *groupTuple:
		p.repr(v.pair(), depth)
	case *dictView:
		p.add(v.TypeName() + "([")
		for i := range v.dict.Len() {
			if i > 0 {
				p.add(", ")
			}
			if p.r != nil {
				p.repr(v.item(p.r, i), depth+1)
			} else {
				p.repr(v.at(i), depth+1)
			}
		}
		p.add("])")
	case *rangeValue:
		if v.step == 1 {
			p.add(fmt.Sprintf("range(%d, %d)", v.start, v.stop))
		} else {
			p.add(fmt.Sprintf("range(%d, %d, %d)", v.start, v.stop, v.step))
		}
	case *undefined:
		p.add("Undefined")
	case *namespace:
		p.add("<Namespace ")
		p.dict(v.attrs, depth+1)
		p.add(">")
	case *macro:
		if v.name == "" {
			p.add("<Macro anonymous>")
		} else {
			p.add("<Macro " + reprString(v.name) + ">")
		}
	case *loopContext:
		p.add(fmt.Sprintf("<LoopContext %d/%d>", v.index+1, v.length()))
	case *builtin:
		p.add("<built-in function " + v.name + ">")
	default:
		p.add("<" + v.TypeName() + " object>")
	}
}

func (p *printer) sequence(open string, items []Value, end string, depth int) {
	p.add(open)
	for i, item := range items {
		if i > 0 {
			p.add(", ")
		}
		p.repr(item, depth+1)
	}
	p.add(end)
}

func (p *printer) dict(d *Dict, depth int) {
	p.add("{")
	for i := range d.Len() {
		if i > 0 {
			p.add(", ")
		}
		key, value := d.At(i)
		p.repr(key, depth+1)
		p.add(": ")
		p.repr(value, depth+1)
	}
	p.add("}")
}

// piecewise hands s to use in pieces of whole characters, so that what is made of a piece can be counted before the next one.
func piecewise(s string, use func(piece string)) {
	const size = 4096
	for len(s) > size {
		n := size
		for !utf8.RuneStart(s[n]) {
			n--
		}
		use(s[:n])
		s = s[n:]
	}
	use(s)
}

// quoted adds Python's repr of a string.
func (p *printer) quoted(s string) {
	quote := quoteFor(s)
	p.add(string(quote))
	piecewise(s, func(piece string) {
		if p.r != nil {
			p.r.work(4 * len(piece))
		}
		p.add(reprInner(piece, quote))
	})
	p.add(string(quote))
}

// reprString is Python's repr of a string: single quotes unless the text has only single ones, escapes for what does not print.
func reprString(s string) string {
	quote := quoteFor(s)
	return string(quote) + reprInner(s, quote) + string(quote)
}

func quoteFor(s string) rune {
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		return '"'
	}
	return '\''
}

// reprInner is s between its quotes.
func reprInner(s string, quote rune) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == quote || c == '\\':
			b.WriteByte('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\r':
			b.WriteString(`\r`)
		case c == '\t':
			b.WriteString(`\t`)
		case isPrintable(c):
			b.WriteRune(c)
		case c < 0x100:
			writeHex(&b, 'x', c, 2)
		case c < 0x10000:
			writeHex(&b, 'u', c, 4)
		default:
			writeHex(&b, 'U', c, 8)
		}
	}
	return b.String()
}

// isPrintable is Python's str.isprintable for one character: no controls, formats, private or unassigned code points, and of spaces only the ASCII one.
func isPrintable(c rune) bool { return unicode.IsPrint(c) || c == utf8.RuneError }
