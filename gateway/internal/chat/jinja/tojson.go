package jinja

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"
)

// jsonWriter is Python's json.dumps with transformers' defaults: characters outside ASCII stay as they are.
type jsonWriter struct {
	r               *run
	b               output
	indent          string
	indented        bool
	itemSep, keySep string
	ascii, sorted   bool
}

// filterToJSON is the tojson filter.
func filterToJSON(r *run, v Value, a callArgs) Value {
	args := a.bind("tojson", 0, "ensure_ascii", "indent", "separators", "sort_keys")
	w := &jsonWriter{r: r, itemSep: ", ", keySep: ": "}
	w.ascii = args[0] != nil && truth(args[0])
	w.sorted = args[3] != nil && truth(args[3])
	if args[1] != nil && args[1] != None {
		w.indented = true
		w.itemSep = ","
		if s, ok := text(args[1]); ok {
			w.indent = s
		} else {
			w.indent = r.repeat(" ", indexArg(args[1]))
		}
	}
	if args[2] != nil && args[2] != None {
		separators := r.items(args[2])
		if len(separators) != 2 {
			throw(valueError, "separators must be two strings, got %d", len(separators))
		}
		w.itemSep, w.keySep = textArg(separators[0]), textArg(separators[1])
	}
	w.value(v, 0)
	return Str(w.b.String())
}

func (w *jsonWriter) add(s string) {
	w.r.alloc(len(s))
	w.b.WriteString(s)
}

func (w *jsonWriter) value(v Value, depth int) {
	w.r.step()
	if depth > maxValueDepth {
		throw("RecursionError", "value nests deeper than %d", maxValueDepth)
	}
	if s, ok := text(v); ok {
		w.string(s)
		return
	}
	switch v := v.(type) {
	case none:
		w.add("null")
	case Bool:
		w.add(fmt.Sprint(bool(v)))
	case Int, *BigInt:
		w.add(w.r.toStr(v))
	case Float:
		w.add(jsonFloat(float64(v)))
	case *List:
		w.array(v.Items, depth)
	case Tuple:
		w.array(v, depth)
	case *groupTuple:
		w.array([]Value{v.key, v.list}, depth)
	case *Dict:
		w.object(v, depth)
	default:
		throw(typeError, "Object of type %s is not JSON serializable", v.TypeName())
	}
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return formatFloat(f)
}

func (w *jsonWriter) newline(depth int) {
	if w.indented {
		w.add("\n")
		w.add(w.r.repeat(w.indent, depth))
	}
}

func (w *jsonWriter) array(items []Value, depth int) {
	if len(items) == 0 {
		w.add("[]")
		return
	}
	w.add("[")
	for i, item := range items {
		if i > 0 {
			w.add(w.itemSep)
		}
		w.newline(depth + 1)
		w.value(item, depth+1)
	}
	w.newline(depth)
	w.add("]")
}

func (w *jsonWriter) object(d *Dict, depth int) {
	if d.Len() == 0 {
		w.add("{}")
		return
	}
	w.r.allocEach(d.Len(), 8)
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	if w.sorted {
		slices.SortStableFunc(order, func(i, j int) int { return w.r.sortOrder(d.keys[i], d.keys[j]) })
	}
	w.add("{")
	for n, i := range order {
		key, value := d.At(i)
		if n > 0 {
			w.add(w.itemSep)
		}
		w.newline(depth + 1)
		w.string(jsonKey(w.r, key))
		w.add(w.keySep)
		w.value(value, depth+1)
	}
	w.newline(depth)
	w.add("}")
}

func jsonKey(r *run, key Value) string {
	if s, ok := text(key); ok {
		return s
	}
	switch key := key.(type) {
	case none:
		return "null"
	case Bool:
		return fmt.Sprint(bool(key))
	case Float:
		return jsonFloat(float64(key))
	case Int, *BigInt:
		return r.toStr(key)
	}
	throw(typeError, "keys must be str, int, float, bool or None, not %s", key.TypeName())
	return ""
}

// jsonEscape is the short escape of a character, "" for none.
func jsonEscape(c rune) string {
	switch c {
	case '"':
		return `\"`
	case '\\':
		return `\\`
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	case '\f':
		return `\f`
	case '\b':
		return `\b`
	}
	return ""
}

// writeHex writes an escape with so many hexadecimal digits.
func writeHex(b *strings.Builder, kind byte, c rune, digits int) {
	b.WriteByte('\\')
	b.WriteByte(kind)
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		b.WriteByte("0123456789abcdef"[c>>shift&15])
	}
}

func (w *jsonWriter) string(s string) {
	w.add(`"`)
	piecewise(s, func(piece string) {
		w.r.work(2 * len(piece))
		w.add(w.escaped(piece))
	})
	w.add(`"`)
}

// escaped is s as it stands between quotes.
func (w *jsonWriter) escaped(s string) string {
	var b strings.Builder
	for _, c := range s {
		escape := jsonEscape(c)
		switch {
		case escape != "":
			b.WriteString(escape)
		case c < 0x20 || w.ascii && c >= 0x7f && c < 0x10000 && c != 0x7f:
			writeHex(&b, 'u', c, 4)
		case w.ascii && c > 0xffff:
			c -= 0x10000
			writeHex(&b, 'u', 0xd800+c>>10, 4)
			writeHex(&b, 'u', 0xdc00+c&0x3ff, 4)
		case c < utf8.RuneSelf:
			b.WriteByte(byte(c))
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}
