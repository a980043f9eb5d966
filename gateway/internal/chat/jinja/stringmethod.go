package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// stringMethod gets the string, the bound arguments (nil where left out) and returns the result.
type stringMethod struct {
	required int
	params   []string
	call     func(r *run, s string, a []Value) Value
	// plainArgs: on marked text, arguments are not escaped.
	plainArgs bool
	// local: it looks at the text's ends only, and counts that itself.
	local bool
}

// stringAttribute is a method of a string. On marked text the arguments are escaped and results are marked.
func (r *run) stringAttribute(object Value, name string) (Value, bool) {
	s, _ := text(object)
	_, marked := object.(markup)
	switch name {
	case "format", "format_map":
		return method(name, func(r *run, a callArgs) Value {
			f := formatter{r: r, args: a.args, named: a.dict(r), escape: marked}
			if name == "format_map" {
				args := a.positional(name, 1)
				if len(args) != 1 {
					throw(typeError, "format_map() takes exactly one argument (%d given)", len(args))
				}
				mapping, ok := args[0].(*Dict)
				if !ok {
					throw(typeError, "format_map() argument must be a mapping, not %s", args[0].TypeName())
				}
				f.args, f.named = nil, mapping
			}
			return likeString(object, f.format(s))
		}), true
	case "encode", "translate", "maketrans":
		return method(name, func(*run, callArgs) Value {
			throw(typeError, "str.%s is not supported in templates", name)
			return nil
		}), true
	}
	m, ok := stringMethods[name]
	if !ok {
		return nil, false
	}
	return method(name, func(r *run, a callArgs) Value {
		args := a.bind(name, m.required, m.params...)
		if !m.local {
			r.scan(len(s))
			if len(args) == 3 && (args[1] != nil || args[2] != nil) {
				r.work(2 * len(s)) // for a window
			}
		}
		if !marked {
			return m.call(r, s, args)
		}
		if !m.plainArgs {
			args = slices.Clone(args)
			for i, arg := range args {
				if plain, ok := arg.(Str); ok {
					args[i] = Str(r.escapeHTML(string(plain)))
				}
			}
		}
		return r.markResult(m.call(r, s, args))
	}), true
}

// likeString marks s where the object is marked.
func likeString(object Value, s string) Value {
	if _, ok := object.(markup); ok {
		return markup(s)
	}
	return Str(s)
}

func (r *run) markResult(v Value) Value {
	mark := func(items []Value) []Value {
		out := r.room(len(items))
		for _, item := range items {
			out = append(out, r.markResult(item))
		}
		return out
	}
	switch v := v.(type) {
	case Str:
		return markup(v)
	case *List:
		return &List{mark(v.Items)}
	case Tuple:
		return Tuple(mark(v))
	}
	return v
}

// mapper makes a method without arguments of a text function.
func mapper(f func(string) string) stringMethod {
	return stringMethod{call: func(r *run, s string, _ []Value) Value { return Str(r.mapped(f, s)) }}
}

// mapped is f(s) for a function that looks at each character by itself, or nearly, piece by piece so that what it makes is counted.
func (r *run) mapped(f func(string) string, s string) string {
	// The full case mappings of other scripts take up to two microseconds a character.
	others := 0 // bytes outside ASCII, of which no mapping makes more than three each
	for i := range len(s) {
		if s[i] >= utf8.RuneSelf {
			others++
		}
	}
	r.work(8*len(s) + 128*others)
	r.alloc(len(s) + 2*others)
	return f(s)
}

// predicate makes a method without arguments that is true when the text is not empty and holds for every character.
func predicate(holds func(rune) bool) stringMethod {
	return stringMethod{call: func(r *run, s string, _ []Value) Value {
		r.work(8 * len(s))
		return Bool(s != "" && strings.IndexFunc(s, func(c rune) bool { return !holds(c) }) < 0)
	}}
}

var stringMethods map[string]stringMethod

func init() {
	// Filled at run time because the methods reach back here through formatting.
	stringMethods = map[string]stringMethod{
		"upper":      mapper(upper),
		"lower":      mapper(lower),
		"casefold":   mapper(casefold),
		"title":      mapper(titleWords),
		"capitalize": mapper(capitalize),
		"swapcase":   mapper(swapCase),

		"isalpha":   predicate(unicode.IsLetter),
		"isalnum":   predicate(func(c rune) bool { return unicode.IsLetter(c) || isNumeric(c) }),
		"isdecimal": predicate(func(c rune) bool { return unicode.Is(unicode.Nd, c) }),
		"isdigit":   predicate(isDigit),
		"isnumeric": predicate(isNumeric),
		"isspace":   predicate(isSpace),
		"isascii": {call: func(_ *run, s string, _ []Value) Value {
			return Bool(strings.IndexFunc(s, func(c rune) bool { return c >= utf8.RuneSelf }) < 0)
		}},
		"isprintable": {call: func(r *run, s string, _ []Value) Value {
			r.work(8 * len(s))
			return Bool(strings.IndexFunc(s, func(c rune) bool { return !isPrintable(c) }) < 0)
		}},
		"isidentifier": {call: func(r *run, s string, _ []Value) Value { r.work(8 * len(s)); return Bool(isIdentifier(s)) }},
		"islower":      {call: func(r *run, s string, _ []Value) Value { r.work(8 * len(s)); return Bool(isLowerText(s)) }},
		"isupper":      {call: func(r *run, s string, _ []Value) Value { r.work(8 * len(s)); return Bool(isUpperText(s)) }},
		"istitle":      {call: func(r *run, s string, _ []Value) Value { r.work(8 * len(s)); return Bool(isTitleText(s)) }},

		"strip":  stripper(func(s string, cut func(rune) bool) string { return strings.TrimFunc(s, cut) }),
		"lstrip": stripper(strings.TrimLeftFunc),
		"rstrip": stripper(strings.TrimRightFunc),
		"removeprefix": {required: 1, local: true, params: []string{"prefix"}, call: func(r *run, s string, a []Value) Value {
			prefix := textArg(a[0])
			r.work(len(prefix) >> 6)
			return Str(strings.TrimPrefix(s, prefix))
		}},
		"removesuffix": {required: 1, local: true, params: []string{"suffix"}, call: func(r *run, s string, a []Value) Value {
			suffix := textArg(a[0])
			r.work(len(suffix) >> 6)
			return Str(strings.TrimSuffix(s, suffix))
		}},
		"startswith": affix("startswith", strings.HasPrefix),
		"endswith":   affix("endswith", strings.HasSuffix),

		"split":  {params: []string{"sep", "maxsplit"}, plainArgs: true, call: splitMethod(false)},
		"rsplit": {params: []string{"sep", "maxsplit"}, plainArgs: true, call: splitMethod(true)},
		"splitlines": {params: []string{"keepends"}, call: func(r *run, s string, a []Value) Value {
			return r.strings(r.splitLines(s, indexArg(optional(a[0], Int(0))) != 0))
		}},
		"partition": {required: 1, params: []string{"sep"}, call: func(_ *run, s string, a []Value) Value {
			if before, after, ok := strings.Cut(s, separator(a[0])); ok {
				return Tuple{Str(before), Str(textArg(a[0])), Str(after)}
			}
			return Tuple{Str(s), Str(""), Str("")}
		}},
		"rpartition": {required: 1, params: []string{"sep"}, call: func(_ *run, s string, a []Value) Value {
			sep := separator(a[0])
			if i := strings.LastIndex(s, sep); i >= 0 {
				return Tuple{Str(s[:i]), Str(sep), Str(s[i+len(sep):])}
			}
			return Tuple{Str(""), Str(""), Str(s)}
		}},
		"replace": {required: 2, params: []string{"old", "new", "count"}, call: func(r *run, s string, a []Value) Value {
			return Str(r.replace(s, textArg(a[0]), textArg(a[1]), indexArg(optional(a[2], Int(-1)))))
		}},
		"join": {required: 1, params: []string{"iterable"}, call: func(r *run, s string, a []Value) Value {
			var parts []string
			for i, item := range r.items(a[0]) {
				r.alloc(valueBytes)
				part, ok := text(item)
				if !ok {
					throw(typeError, "sequence item %d: expected str instance, %s found", i, item.TypeName())
				}
				parts = append(parts, part)
			}
			return Str(r.join(parts, s))
		}},
		"find":   finder(false, false),
		"rfind":  finder(true, false),
		"index":  finder(false, true),
		"rindex": finder(true, true),
		"count": {required: 1, params: []string{"sub", "start", "end"}, call: func(_ *run, s string, a []Value) Value {
			part, _, ok := window(s, a[1], a[2])
			sub := textArg(a[0])
			if !ok {
				return Int(0)
			}
			return Int(strings.Count(part, sub))
		}},
		"center": justify(func(pad, width int) int { return pad/2 + pad&width&1 }),
		"ljust":  justify(func(int, int) int { return 0 }),
		"rjust":  justify(func(pad, _ int) int { return pad }),
		"zfill": {required: 1, params: []string{"width"}, call: func(r *run, s string, a []Value) Value {
			pad := indexArg(a[0]) - utf8.RuneCountInString(s)
			if pad <= 0 {
				return Str(s)
			}
			r.alloc(len(s))
			sign := ""
			if s != "" && (s[0] == '+' || s[0] == '-') {
				sign, s = s[:1], s[1:]
			}
			return Str(sign + r.repeat("0", pad) + s)
		}},
		"expandtabs": {params: []string{"tabsize"}, call: func(r *run, s string, a []Value) Value {
			return Str(r.expandTabs(s, indexArg(optional(a[0], Int(8)))))
		}},
	}
}

// strings makes a list of strings.
func (r *run) strings(parts []string) *List {
	items := r.room(len(parts))
	for _, part := range parts {
		items = append(items, Str(part))
	}
	return &List{items}
}

// repeat is s * n.
func (r *run) repeat(s string, n int) string {
	if n <= 0 || s == "" {
		return ""
	}
	r.allocEach(n, len(s))
	return strings.Repeat(s, n)
}

// join is separator.join(parts).
func (r *run) join(parts []string, separator string) string {
	n := 0
	for _, part := range parts {
		if n += len(part) + len(separator); n > budget.Most.Bytes {
			break // which alloc refuses
		}
	}
	r.alloc(n)
	return strings.Join(parts, separator)
}

// replace is s.replace(old, new, count); a negative count means all.
func (r *run) replace(s, old, replacement string, count int) string {
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	r.scan(len(s))
	r.work(n)
	r.alloc(len(s))
	r.allocEach(n, max(0, len(replacement)-len(old)))
	return strings.Replace(s, old, replacement, n)
}

// stripper makes strip, lstrip and rstrip: without an argument they cut whitespace, with one any of its characters.
func stripper(trim func(string, func(rune) bool) string) stringMethod {
	return stringMethod{params: []string{"chars"}, local: true, call: func(r *run, s string, a []Value) Value {
		if a[0] == nil || a[0] == None {
			return Str(trim(s, func(c rune) bool { r.work(1); return isSpace(c) }))
		}
		chars := textArg(a[0])
		return Str(trim(s, func(c rune) bool { r.work(2 + len(chars)); return strings.ContainsRune(chars, c) }))
	}}
}

// affix makes startswith and endswith; they take a string or a tuple of strings, and a window.
func affix(name string, has func(s, part string) bool) stringMethod {
	return stringMethod{required: 1, local: true, params: []string{"prefix", "start", "end"}, call: func(r *run, s string, a []Value) Value {
		if a[1] != nil || a[2] != nil {
			r.work(2 * len(s))
		}
		part, _, ok := window(s, a[1], a[2])
		if options, isTuple := a[0].(Tuple); isTuple {
			for _, option := range options {
				r.work(1)
				if _, isText := text(option); !isText {
					throw(typeError, "tuple for %s must only contain str, not %s", name, option.TypeName())
				}
				if ok && has(part, textArg(option)) {
					return Bool(true)
				}
			}
			return Bool(false)
		}
		if _, isText := text(a[0]); !isText {
			throw(typeError, "%s first arg must be str or a tuple of str, not %s", name, a[0].TypeName())
		}
		return Bool(ok && has(part, textArg(a[0])))
	}}
}

// window is s[start:end] by code points, with the code points before it; ok is false where start lies behind the end of s.
func window(s string, start, end Value) (part string, skipped int, ok bool) {
	if (start == nil || start == None) && (end == nil || end == None) {
		return s, 0, true
	}
	n := utf8.RuneCountInString(s)
	bound := func(v Value, otherwise int) int {
		if v == nil || v == None {
			return otherwise
		}
		if _, ok := integer(v); !ok {
			throw(typeError, "slice indices must be integers or None or have an __index__ method")
		}
		i := indexArg(v)
		if i < 0 {
			i = max(i+n, 0)
		}
		return i
	}
	from, to := bound(start, 0), min(bound(end, n), n)
	if from > to {
		return "", 0, false
	}
	low := byteOffset(s, from, n)
	return s[low : low+byteOffset(s[low:], to-from, n-from)], from, true
}

func finder(last, mustFind bool) stringMethod {
	return stringMethod{required: 1, params: []string{"sub", "start", "end"}, call: func(_ *run, s string, a []Value) Value {
		sub := textArg(a[0])
		part, skipped, ok := window(s, a[1], a[2])
		i := -1
		if ok && last {
			i = strings.LastIndex(part, sub)
		} else if ok {
			i = strings.Index(part, sub)
		}
		if i < 0 {
			if mustFind {
				throw(valueError, "substring not found")
			}
			return Int(-1)
		}
		return Int(skipped + utf8.RuneCountInString(part[:i]))
	}}
}

// justify makes center, ljust and rjust; left tells how many of pad fill characters go before the text.
func justify(left func(pad, width int) int) stringMethod {
	return stringMethod{required: 1, params: []string{"width", "fillchar"}, call: func(r *run, s string, a []Value) Value {
		fill := textArg(optional(a[1], Str(" ")))
		if utf8.RuneCountInString(fill) != 1 {
			throw(typeError, "the fill character must be exactly one character long")
		}
		width := indexArg(a[0])
		pad := width - utf8.RuneCountInString(s)
		if pad <= 0 {
			return Str(s)
		}
		before := left(pad, width)
		out := r.repeat(fill, before)
		r.alloc(len(s))
		return Str(out + s + r.repeat(fill, pad-before))
	}}
}

func separator(v Value) string {
	sep := textArg(v)
	if sep == "" {
		throw(valueError, "empty separator")
	}
	return sep
}

func splitMethod(fromRight bool) func(r *run, s string, a []Value) Value {
	return func(r *run, s string, a []Value) Value {
		limit := indexArg(optional(a[1], Int(-1)))
		var parts []string
		if a[0] == nil || a[0] == None {
			parts = r.splitSpace(s, limit, fromRight)
		} else {
			parts = r.splitText(s, separator(a[0]), limit, fromRight)
		}
		return r.strings(parts)
	}
}

func (r *run) splitText(s, sep string, limit int, fromRight bool) []string {
	if limit < 0 {
		limit = len(s)
	}
	if !fromRight {
		limit = min(limit, strings.Count(s, sep))
		r.allocEach(limit+1, valueBytes)
		return strings.SplitN(s, sep, limit+1)
	}
	var parts []string
	for ; limit > 0; limit-- {
		r.alloc(valueBytes)
		i := strings.LastIndex(s, sep)
		if i < 0 {
			break
		}
		parts = append(parts, s[i+len(sep):])
		s = s[:i]
	}
	parts = append(parts, s)
	slices.Reverse(parts)
	return parts
}

// splitSpace splits at runs of whitespace, which do not count at the ends.
func (r *run) splitSpace(s string, limit int, fromRight bool) []string {
	var parts []string
	if fromRight {
		s = strings.TrimRightFunc(s, isSpace)
		for s != "" {
			r.alloc(valueBytes)
			i := strings.LastIndexFunc(s, isSpace)
			if limit >= 0 && len(parts) == limit || i < 0 {
				parts = append(parts, s)
				break
			}
			_, size := utf8.DecodeRuneInString(s[i:])
			parts = append(parts, s[i+size:])
			s = strings.TrimRightFunc(s[:i], isSpace)
		}
		slices.Reverse(parts)
		return parts
	}
	s = strings.TrimLeftFunc(s, isSpace)
	for s != "" {
		r.alloc(valueBytes)
		i := strings.IndexFunc(s, isSpace)
		if limit >= 0 && len(parts) == limit || i < 0 {
			parts = append(parts, s)
			break
		}
		parts = append(parts, s[:i])
		s = strings.TrimLeftFunc(s[i:], isSpace)
	}
	return parts
}

// splitLines is str.splitlines, which knows more line ends than "\n".
func (r *run) splitLines(s string, keepEnds bool) []string {
	var lines []string
	r.scan(8 * len(s))
	for s != "" {
		r.alloc(valueBytes)
		i := strings.IndexFunc(s, func(c rune) bool {
			switch c {
			case '\n', '\r', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
				return true
			}
			return false
		})
		if i < 0 {
			return append(lines, s)
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			size = 2
		}
		if keepEnds {
			lines = append(lines, s[:i+size])
		} else {
			lines = append(lines, s[:i])
		}
		s = s[i+size:]
	}
	return lines
}

func (r *run) expandTabs(s string, size int) string {
	var b strings.Builder
	column := 0
	r.alloc(len(s))
	r.work(2 * len(s))
	for _, c := range s {
		switch c {
		case '\t':
			if size > 0 {
				n := size - column%size
				b.WriteString(r.repeat(" ", n))
				column += n
			}
		case '\n', '\r':
			b.WriteRune(c)
			column = 0
		default:
			b.WriteRune(c)
			column++
		}
	}
	return b.String()
}
