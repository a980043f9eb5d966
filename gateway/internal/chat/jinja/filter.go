package jinja

import (
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filterFunc is a filter: v is what stands left of the bar.
type filterFunc func(r *run, v Value, a callArgs) Value

// filters are the filters by name. Filled in init because some of them call others by name.
var filters map[string]filterFunc

func init() {
	filters = map[string]filterFunc{
		"abs":            filterAbs,
		"attr":           filterAttr,
		"batch":          filterBatch,
		"capitalize":     textFilter(capitalize),
		"center":         filterCenter,
		"count":          filterLength,
		"d":              filterDefault,
		"default":        filterDefault,
		"dictsort":       filterDictSort,
		"e":              filterEscape,
		"escape":         filterEscape,
		"filesizeformat": filterFileSize,
		"first":          filterFirst,
		"float":          filterFloat,
		"forceescape":    filterForceEscape,
		"format":         filterFormat,
		"groupby":        filterGroupBy,
		"indent":         filterIndent,
		"int":            filterInt,
		"items":          filterItems,
		"join":           filterJoin,
		"last":           filterLast,
		"length":         filterLength,
		"list":           filterList,
		"lower":          textFilter(lower),
		"map":            filterMap,
		"max":            extremeFilter(">"),
		"min":            extremeFilter("<"),
		"pprint":         unsupportedFilter("pprint"),
		"random":         unsupportedFilter("random"),
		"reject":         selectFilter(false, false),
		"rejectattr":     selectFilter(false, true),
		"replace":        filterReplace,
		"reverse":        filterReverse,
		"round":          filterRound,
		"safe":           filterSafe,
		"select":         selectFilter(true, false),
		"selectattr":     selectFilter(true, true),
		"slice":          filterSlice,
		"sort":           filterSort,
		"string":         filterString,
		"striptags":      unsupportedFilter("striptags"),
		"sum":            filterSum,
		"title":          textFilter(titleFilter),
		"tojson":         filterToJSON,
		"trim":           filterTrim,
		"truncate":       filterTruncate,
		"unique":         filterUnique,
		"upper":          textFilter(upper),
		"urlencode":      filterURLEncode,
		"urlize":         unsupportedFilter("urlize"),
		"wordcount":      filterWordCount,
		"wordwrap":       unsupportedFilter("wordwrap"),
		"xmlattr":        unsupportedFilter("xmlattr"),
	}
}

// unsupportedFilter is a filter of jinja2 that makes no prompt (links, random choice, debugging): it is known, so a template that never reaches it renders.
func unsupportedFilter(name string) filterFunc {
	return func(*run, Value, callArgs) Value {
		throw(runtimeError, "filter %q is not supported in chat templates", name)
		return nil
	}
}

// softText is a string as it is, marked or not, and anything else printed.
func (r *run) softText(v Value) (s string, marked bool) {
	s, ok := text(v)
	if !ok {
		return r.toStr(v), false
	}
	_, marked = v.(markup)
	return s, marked
}

func withMark(s string, marked bool) Value {
	if marked {
		return markup(s)
	}
	return Str(s)
}

func textFilter(f func(string) string) filterFunc {
	return func(r *run, v Value, a callArgs) Value {
		a.positional("filter", 0)
		s, marked := r.softText(v)
		return withMark(r.mapped(f, s), marked)
	}
}

// titleFilter differs from str.title: words start behind spaces, hyphens and opening brackets only.
func titleFilter(s string) string {
	var b strings.Builder
	isBreak := func(c rune) bool { return isSpace(c) || strings.ContainsRune("-({[<", c) }
	for s != "" {
		n := strings.IndexFunc(s, isBreak)
		if n == 0 {
			n = len(s) - len(strings.TrimLeftFunc(s, isBreak))
		}
		if n < 0 {
			n = len(s)
		}
		first, size := utf8.DecodeRuneInString(s)
		if first < utf8.RuneSelf {
			b.WriteRune(unicode.ToUpper(first))
		} else {
			b.WriteString(upper(s[:size]))
		}
		for i, c := range s[size:n] {
			writeLower(&b, s[size:n], i, c)
		}
		s = s[n:]
	}
	return b.String()
}

func filterAbs(r *run, v Value, a callArgs) Value {
	a.positional("abs", 0)
	if u, ok := v.(*undefined); ok {
		throw(typeError, "bad operand type for abs(): '%s'", u.TypeName())
	}
	if !isNumber(v) {
		throw(typeError, "bad operand type for abs(): '%s'", v.TypeName())
	}
	if f, ok := v.(Float); ok {
		return Float(math.Abs(float64(f)))
	}
	if r.numberCompare(v, Int(0)) < 0 {
		return r.arithmetic("-", Int(0), v)
	}
	return r.arithmetic("+", Int(0), v)
}

func filterCenter(r *run, v Value, a callArgs) Value {
	width := optional(a.bind("center", 0, "width")[0], Int(80))
	s, marked := r.softText(v)
	out := stringMethods["center"].call(r, s, []Value{width, nil})
	return withMark(textArg(out), marked)
}

func filterDefault(_ *run, v Value, a callArgs) Value {
	args := a.bind("default", 0, "default_value", "boolean")
	if isUndefined(v) || args[1] != nil && truth(args[1]) && !truth(v) {
		return optional(args[0], Str(""))
	}
	return v
}

func filterEscape(r *run, v Value, a callArgs) Value {
	a.positional("escape", 0)
	if _, ok := v.(markup); ok {
		return v
	}
	return markup(r.escapeHTML(r.toStr(v)))
}

func filterForceEscape(r *run, v Value, a callArgs) Value {
	a.positional("forceescape", 0)
	return markup(r.escapeHTML(r.toStr(v)))
}

func filterSafe(r *run, v Value, a callArgs) Value {
	a.positional("safe", 0)
	return markup(r.toStr(v))
}

func filterString(r *run, v Value, a callArgs) Value {
	a.positional("string", 0)
	s, marked := r.softText(v)
	return withMark(s, marked)
}

func filterFileSize(r *run, v Value, a callArgs) Value {
	binary := a.bind("filesizeformat", 0, "binary")[0]
	size := asFloat(v)
	base, suffix := 1000.0, "B"
	prefixes := []string{"k", "M", "G", "T", "P", "E", "Z", "Y"}
	if binary != nil && truth(binary) {
		base, suffix = 1024, "iB"
		prefixes[0] = "K"
	}
	switch {
	case size == 1:
		return Str("1 Byte")
	case size < base:
		return r.str(r.toStr(floatToInt(size)) + " Bytes")
	}
	unit := base
	for i, prefix := range prefixes {
		unit *= base
		if size < unit || i == len(prefixes)-1 {
			return Str(fmt.Sprintf("%.1f %s%s", base*size/unit, prefix, suffix))
		}
	}
	return Str("")
}

// asFloat is Python's float(v); faults as Python's.
func asFloat(v Value) float64 {
	switch v := v.(type) {
	case *undefined:
		v.fail()
	case Str, markup:
		s, _ := text(v)
		f, ok := parseFloat(s)
		if !ok {
			throw(valueError, "could not convert string to float: %s", reprString(s))
		}
		return f
	}
	if !isNumber(v) {
		throw(typeError, "float() argument must be a string or a real number, not '%s'", v.TypeName())
	}
	return toFloat(v)
}

// try runs f and reports whether it raised one of the classes; other faults go on.
func try(f func(), classes ...string) (raisedOne bool) {
	defer func() {
		panicked := recover()
		if panicked == nil {
			return
		}
		if p, ok := panicked.(*fault); ok {
			for _, class := range classes {
				if p.class == class {
					raisedOne = true
					return
				}
			}
		}
		panic(panicked)
	}()
	f()
	return false
}

func filterFloat(r *run, v Value, a callArgs) Value {
	if s, ok := text(v); ok {
		r.chargeNumeral(s)
	}
	out := optional(a.bind("float", 0, "default")[0], Float(0))
	try(func() { out = Float(asFloat(v)) }, typeError, valueError)
	return out
}

// chargeNumeral counts the work of reading a number.
func (r *run) chargeNumeral(s string) {
	r.alloc(2 * len(s))
	r.work(64 * len(s))
	n := min(len(s), maxIntText) / 16
	r.work(n * n)
}

func filterInt(r *run, v Value, a callArgs) Value {
	args := a.bind("int", 0, "default", "base")
	otherwise := optional(args[0], Int(0))
	switch n := v.(type) {
	case *undefined:
		n.fail()
	case Float:
		if math.IsNaN(float64(n)) {
			return otherwise
		}
		return floatToInt(float64(n))
	case Int, Bool, *BigInt:
		i, _ := integer(v)
		return normalInt(i)
	case Str, markup:
		s, _ := text(v)
		r.chargeNumeral(s)
		base := 10
		if args[1] != nil {
			i, ok := smallInt(args[1])
			if !ok || i != 0 && (i < 2 || i > 36) {
				base = -1
			} else {
				base = int(i)
			}
		}
		if base >= 0 {
			if i, ok := parseInt(s, base); ok {
				return i
			}
		}
		if f, ok := parseFloat(s); ok && !math.IsNaN(f) && !math.IsInf(f, 0) {
			return floatToInt(f)
		}
	}
	return otherwise
}

func filterFormat(r *run, v Value, a callArgs) Value {
	s, marked := r.softText(v)
	if len(a.args) > 0 && len(a.named) > 0 {
		throw(argumentError, "can't handle positional and keyword arguments at the same time")
	}
	if len(a.named) > 0 {
		return r.percent(withMark(s, marked), a.dict(r))
	}
	return r.percent(withMark(s, marked), Tuple(a.args))
}

func filterIndent(r *run, v Value, a callArgs) Value {
	args := a.bind("indent", 0, "width", "first", "blank")
	s, ok := text(v)
	if !ok {
		if u, isUndef := v.(*undefined); isUndef {
			u.fail()
		}
		class := typeError
		if _, isList := v.(*List); isList {
			class = "AttributeError"
		}
		throw(class, "indent needs a string, not %s", v.TypeName())
	}
	indent, ok := text(optional(args[0], Int(4)))
	if !ok {
		indent = r.repeat(" ", indexArg(optional(args[0], Int(4))))
	}
	_, marked := v.(markup)
	r.alloc(len(s) + 1)
	lines := r.splitLines(s+"\n", false)
	var b output
	for i, line := range lines {
		r.alloc(len(line) + 1)
		if i > 0 {
			b.WriteString("\n")
			if line != "" || args[2] != nil && truth(args[2]) {
				r.alloc(len(indent))
				b.WriteString(indent)
			}
		}
		b.WriteString(line)
	}
	out := b.String()
	if args[1] != nil && truth(args[1]) {
		r.alloc(len(indent) + len(out))
		out = indent + out
	}
	return withMark(out, marked)
}

func filterReplace(r *run, v Value, a callArgs) Value {
	args := a.bind("replace", 2, "old", "new", "count")
	count := -1
	if args[2] != nil && args[2] != None {
		count = indexArg(args[2])
	}
	return Str(r.replace(r.toStr(v), r.toStr(args[0]), r.toStr(args[1]), count))
}

func filterTrim(r *run, v Value, a callArgs) Value {
	args := a.bind("trim", 0, "chars")
	s, marked := r.softText(v)
	return withMark(textArg(stringMethods["strip"].call(r, s, args)), marked)
}

func filterTruncate(r *run, v Value, a callArgs) Value {
	args := a.bind("truncate", 0, "length", "killwords", "end", "leeway")
	length := indexArg(optional(args[0], Int(255)))
	end := textArg(optional(args[2], Str("...")))
	leeway := 5
	if args[3] != nil && args[3] != None {
		leeway = indexArg(args[3])
	}
	endLength := utf8.RuneCountInString(end)
	if length < endLength {
		throw("AssertionError", "expected length >= %d, got %d", endLength, length)
	}
	if leeway < 0 {
		throw("AssertionError", "expected leeway >= 0, got %d", leeway)
	}
	n, ok := r.lengthOf(v)
	if !ok {
		throw(typeError, "object of type '%s' has no len()", v.TypeName())
	}
	if n <= length+leeway {
		return v
	}
	s, ok := text(v)
	if !ok {
		throw(typeError, "truncate needs a string, not %s", v.TypeName())
	}
	cut := s[:byteOffset(s, length-endLength, n)]
	if args[1] == nil || !truth(args[1]) {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return likeString(v, string(r.str(cut+end)))
}

func filterWordCount(r *run, v Value, a callArgs) Value {
	a.positional("wordcount", 0)
	s, _ := r.softText(v)
	r.work(8 * len(s))
	n, inWord := 0, false
	for _, c := range s {
		isWord := c == '_' || unicode.IsLetter(c) || isNumeric(c)
		if isWord && !inWord {
			n++
		}
		inWord = isWord
	}
	return Int(n)
}

// filterURLEncode quotes text for a URL; a mapping or pairs become a query.
func filterURLEncode(r *run, v Value, a callArgs) Value {
	a.positional("urlencode", 0)
	_, isText := text(v)
	next, iterable := r.iterator(v)
	if isText || !iterable {
		return Str(r.quoteURL(r.toStr(v), false))
	}
	if d, ok := v.(*Dict); ok {
		next = r.iterate(&dictView{d, "items"})
	}
	var parts []string
	for pair, ok := next(); ok; pair, ok = next() {
		kv := r.items(pair)
		if len(kv) != 2 {
			throw(valueError, "urlencode needs pairs")
		}
		r.alloc(valueBytes)
		part := r.quoteURL(r.toStr(kv[0]), true) + "=" + r.quoteURL(r.toStr(kv[1]), true)
		r.alloc(len(part))
		parts = append(parts, part)
	}
	return Str(r.join(parts, "&"))
}

func (r *run) quoteURL(s string, forQuery bool) string {
	r.work(16 * len(s))
	r.allocEach(len(s), 3)
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case isNameRune(rune(c)) && c < utf8.RuneSelf, strings.IndexByte("-.~", c) >= 0, c == '/' && !forQuery:
			b.WriteByte(c)
		case c == ' ' && forQuery:
			b.WriteByte('+')
		default:
			const digits = "0123456789ABCDEF"
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}
