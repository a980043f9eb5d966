package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// formatter is str.format: fields are looked up as the sandbox looks up attributes and elements.
type formatter struct {
	r      *run
	args   []Value
	named  *Dict
	escape bool
	// next numbers the fields without a name; -1 after one with a number.
	next int
}

func (f *formatter) format(s string) string { return f.expand(s, 2) }

// expand formats s; levels is how deep fields may stand inside the specifications of fields.
func (f *formatter) expand(s string, levels int) string {
	if levels < 0 {
		throw(valueError, "max string recursion exceeded")
	}
	f.r.alloc(len(s))
	f.r.scan(8 * len(s))
	var b output
	for s != "" {
		i := strings.IndexAny(s, "{}")
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		if i+1 < len(s) && s[i+1] == s[i] {
			b.WriteString(s[i : i+1])
			s = s[i+2:]
			continue
		}
		if s[i] == '}' {
			throw(valueError, "single '}' encountered in format string")
		}
		end := fieldEnd(s[i+1:])
		out := f.field(s[i+1:i+1+end], levels)
		f.r.alloc(len(out))
		b.WriteString(out)
		s = s[i+end+2:]
	}
	return b.String()
}

// fieldEnd is where the brace that closes a field stands.
func fieldEnd(s string) int {
	depth := 0
	bracket := false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '[':
			bracket = true
		case c == ']':
			bracket = false
		case c == '{' && !bracket:
			depth++
		case c == '}' && !bracket:
			if depth == 0 {
				return i
			}
			depth--
		}
	}
	throw(valueError, "expected '}' before end of string")
	return 0
}

func (f *formatter) field(field string, levels int) string {
	name, specification := field, ""
	if i := strings.IndexAny(field, ":["); i >= 0 {
		// A bracket may hold a colon.
		for i < len(field) && field[i] == '[' {
			end := strings.IndexByte(field[i:], ']')
			if end < 0 {
				throw(valueError, "missing ']' in format string")
			}
			next := strings.IndexAny(field[i+end:], ":[")
			if next < 0 {
				i = len(field)
			} else {
				i += end + next
			}
		}
		if i < len(field) {
			name, specification = field[:i], field[i+1:]
		}
	}
	conversion := ""
	if i := strings.LastIndexByte(name, '!'); i >= 0 {
		name, conversion = name[:i], name[i+1:]
	}
	f.r.step()
	v := f.lookup(name)
	switch conversion {
	case "":
	case "s":
		v = Str(f.r.toStr(v))
	case "r":
		v = Str(f.r.toRepr(v))
	case "a":
		v = Str(f.r.asciiOnly(f.r.toRepr(v)))
	default:
		throw(valueError, "unknown conversion specifier %q", conversion)
	}
	specification = f.expand(specification, levels-1)
	if f.escape {
		if _, marked := v.(markup); marked && specification == "" {
			return f.r.toStr(v)
		}
		return f.r.escapeHTML(f.r.formatValue(v, specification))
	}
	return f.r.formatValue(v, specification)
}

// lookup finds "name", "0", "" and what follows: .attr and [key].
func (f *formatter) lookup(path string) Value {
	end := strings.IndexAny(path, ".[")
	if end < 0 {
		end = len(path)
	}
	first, rest := path[:end], path[end:]
	if first == "" {
		if f.next < 0 {
			throw(valueError, "cannot switch from manual field specification to automatic field numbering")
		}
		first = strconv.Itoa(f.next)
		f.next++
	} else if _, err := strconv.Atoi(first); err == nil {
		if f.next > 0 {
			throw(valueError, "cannot switch from automatic field numbering to manual field specification")
		}
		f.next = -1
	}
	var v Value
	if i, err := strconv.Atoi(first); err == nil {
		if i < 0 || i >= len(f.args) {
			throw(indexError, "replacement index %d out of range for positional args tuple", i)
		}
		v = f.args[i]
	} else {
		var ok bool
		if v, ok = f.named.Get(first); !ok {
			throw(keyError, "%s", reprString(first))
		}
	}
	for rest != "" {
		f.r.step()
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			if end == 1 {
				throw(valueError, "empty attribute in format string")
			}
			v = f.r.getAttr(v, rest[1:end])
			rest = rest[end:]
			continue
		}
		end := strings.IndexByte(rest, ']')
		if rest[0] != '[' || end < 0 {
			throw(valueError, "missing ']' in format string")
		}
		key := rest[1:end]
		if key == "" {
			throw(valueError, "empty attribute in format string")
		}
		if i, err := strconv.Atoi(key); err == nil && key[0] != '-' && key[0] != '+' {
			v = f.r.getItem(v, Int(i))
		} else {
			v = f.r.getItem(v, Str(key))
		}
		rest = rest[end+1:]
	}
	return v
}

// formatValue is Python's format(v, specification).
func (r *run) formatValue(v Value, specification string) string {
	if specification == "" {
		return r.toStr(v)
	}
	if _, ok := text(v); !ok && !isNumber(v) {
		throw(typeError, "unsupported format string passed to %s.__format__", v.TypeName())
	}
	sp := parseSpec(specification)
	if s, ok := text(v); ok {
		if sp.presenting != 0 && sp.presenting != 's' || sp.sign != 0 || sp.alternate || sp.align == '=' || sp.grouping != 0 {
			throw(valueError, "invalid format specifier %q for a string", specification)
		}
		if sp.zero && sp.align == 0 {
			sp.fill = '0'
		}
		if sp.align == 0 {
			sp.align = '<'
		}
		return r.pad(r.cut(s, sp), sp)
	}
	if sp.align == 0 {
		sp.align = '>'
		if sp.zero {
			sp.align, sp.fill = '=', '0'
		}
	}
	sp.zero = false
	if i, ok := integer(v); ok && strings.IndexByte("\x00bcdoxXn", sp.presenting) >= 0 {
		return r.formatInt(i, sp)
	}
	if strings.IndexByte("\x00eEfFgGn%", sp.presenting) < 0 {
		throw(valueError, "unknown format code '%c' for object of type '%s'", sp.presenting, v.TypeName())
	}
	return r.formatFloatSpec(toFloat(v), sp)
}

func (r *run) formatInt(i *big.Int, sp spec) string {
	if sp.precision >= 0 {
		throw(valueError, "precision not allowed in integer format specifier")
	}
	base, prefix := 10, ""
	switch sp.presenting {
	case 'b':
		base, prefix = 2, "0b"
	case 'o':
		base, prefix = 8, "0o"
	case 'x', 'X':
		base, prefix = 16, "0x"
	case 'c':
		if !i.IsInt64() || i.Sign() < 0 || i.Int64() > utf8.MaxRune {
			throw(overflowError, "%%c arg not in range(0x110000)")
		}
		return r.pad(string(rune(i.Int64())), sp)
	}
	r.chargeBig(i.BitLen() / 64)
	digits := new(big.Int).Abs(i).Text(base)
	if !sp.alternate {
		prefix = ""
	}
	if sp.presenting == 'X' {
		digits, prefix = strings.ToUpper(digits), strings.ToUpper(prefix)
	}
	size := 3
	if base != 10 {
		size = 4
	}
	return r.grouped(signOf(i.Sign() < 0, sp.sign)+prefix, digits, "", size, sp)
}

func (r *run) formatFloatSpec(f float64, sp spec) string {
	verb := sp.presenting
	abs := math.Abs(f)
	var s string
	switch {
	case verb == 0 && sp.precision < 0:
		s = formatFloat(abs)
	case verb == 0:
		// Like g, with at least one digit behind the point.
		if sp.precision > 100000 {
			throw(valueError, "precision too big")
		}
		r.allocEach(sp.precision, 6)
		r.work(16 * evaluationSteps)
		s = generalDigits(abs, max(sp.precision, 1), sp.alternate)
		if e := strings.IndexByte(s, 'e'); e < 0 && !strings.Contains(s, ".") && !math.IsInf(f, 0) && !math.IsNaN(f) {
			if len(s) >= max(sp.precision, 1) {
				s = strconv.FormatFloat(abs, 'e', max(sp.precision, 1)-1, 64)
			} else {
				s += ".0"
			}
		}
	default:
		if sp.precision < 0 {
			sp.precision = 6
		}
		percent := ""
		if verb == '%' {
			verb, percent = 'f', "%"
			abs *= 100
		}
		if verb == 'n' {
			verb = 'g'
		}
		s = r.floatDigits(abs, verb, sp) + percent
	}
	if math.IsInf(f, 0) || math.IsNaN(f) {
		return r.number(signOf(math.Signbit(f) && !math.IsNaN(f), sp.sign), strings.TrimLeft(s, "+"), sp)
	}
	whole := len(s)
	for i := range len(s) {
		if !decimal(s[i]) {
			whole = i
			break
		}
	}
	return r.grouped(signOf(math.Signbit(f) && !math.IsNaN(f), sp.sign), s[:whole], s[whole:], 3, sp)
}

// grouped puts separators into the whole part; zeros that fill the width are grouped too.
func (r *run) grouped(sign, whole, fraction string, size int, sp spec) string {
	if sp.grouping == 0 {
		return r.number(sign, whole+fraction, sp)
	}
	group := func(digits string) string {
		r.alloc(2 * len(digits))
		var b strings.Builder
		for i := range len(digits) {
			if i > 0 && (len(digits)-i)%size == 0 {
				b.WriteByte(sp.grouping)
			}
			b.WriteByte(digits[i])
		}
		return b.String()
	}
	if sp.align == '=' && sp.fill == '0' {
		if sp.width > 1000 {
			throw(limitError, "width of a grouped number is over 1000")
		}
		for len(sign)+len(group(whole))+len(fraction) < sp.width {
			r.work(8 * len(whole))
			wider := "0" + whole
			if len(sign)+len(group(wider))+len(fraction) > sp.width {
				// A separator may not come first: one digit more than asked for.
				whole = wider
				break
			}
			whole = wider
		}
	}
	return r.number(sign, group(whole)+fraction, sp)
}

// parseSpec parses [[fill]align][sign][#][0][width][grouping][.precision][type].
func parseSpec(s string) spec {
	sp := spec{fill: ' ', precision: -1}
	whole := s
	first, size := utf8.DecodeRuneInString(s)
	if size < len(s) && strings.IndexByte("<>^=", s[size]) >= 0 {
		sp.fill, sp.align = first, s[size]
		s = s[size+1:]
	} else if strings.ContainsRune("<>^=", first) {
		sp.align = s[0]
		s = s[1:]
	}
	take := func(set string) byte {
		if s != "" && strings.IndexByte(set, s[0]) >= 0 {
			c := s[0]
			s = s[1:]
			return c
		}
		return 0
	}
	sp.sign = take("+- ")
	sp.alternate = take("#") != 0
	sp.zero = take("0") != 0
	n, rest := leadingNumber(s)
	sp.width, s = max(n, 0), rest
	sp.grouping = take(",_")
	if take(".") != 0 {
		if sp.precision, s = leadingNumber(s); sp.precision < 0 {
			throw(valueError, "format specifier missing precision")
		}
	}
	sp.presenting = take("bcdeEfFgGnosxX%")
	if s != "" {
		throw(valueError, "invalid format specifier %s", reprString(whole))
	}
	return sp
}
