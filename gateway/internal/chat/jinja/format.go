package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text formatting: the % operator and str.format.

// percent is Python's format % value.
func (r *run) percent(format Value, value Value) Value {
	s, _ := text(format)
	_, escape := format.(markup)
	args, isTuple := value.(Tuple)
	if !isTuple {
		args = Tuple{value}
	}
	// Anything that can be subscripted, save strings and tuples, passes for a mapping and need not be used up.
	mappingLike := false
	switch value.(type) {
	case *Dict, *List, *undefined, *rangeValue:
		mappingLike = true
	}
	r.alloc(len(s))
	r.scan(4 * len(s))
	used := 0
	next := func() Value {
		if used >= len(args) {
			throw(typeError, "not enough arguments for format string")
		}
		used++
		return args[used-1]
	}
	var b output
	for s != "" {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			b.WriteString(s)
			break
		}
		b.WriteString(s[:i])
		s = s[i+1:]
		if strings.HasPrefix(s, "%") {
			b.WriteString("%")
			s = s[1:]
			continue
		}
		var spec spec
		var named Value
		if strings.HasPrefix(s, "(") {
			depth, end := 1, 1
			for ; end < len(s) && depth > 0; end++ {
				switch s[end] {
				case '(':
					depth++
				case ')':
					depth--
				}
			}
			if depth > 0 {
				throw(valueError, "incomplete format key")
			}
			if !mappingLike || isTuple {
				throw(typeError, "format requires a mapping")
			}
			r.step()
			key := s[1 : end-1]
			s = s[end:]
			v, ok := r.element(value, Str(key))
			if !ok {
				if u, isUndef := value.(*undefined); isUndef {
					u.fail()
				}
				throw(keyError, "%s", reprString(key))
			}
			named = v
		}
		s = spec.percentFlags(s, next)
		if s == "" {
			throw(valueError, "incomplete format")
		}
		verb, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		v := named
		if v == nil {
			v = next()
		}
		out := r.percentOne(verb, spec, v)
		if escape {
			if _, marked := v.(markup); !marked {
				out = r.escapeHTML(out)
			}
		}
		r.alloc(len(out))
		b.WriteString(out)
	}
	if used < len(args) && !mappingLike {
		throw(typeError, "not all arguments converted during string formatting")
	}
	return likeString(format, b.String())
}

// spec is a parsed format specification.
type spec struct {
	fill                 rune
	align, sign          byte // '<' '>' '^' '=' or 0; '+' ' ' '-' or 0
	alternate, zero      bool
	width, precision     int // precision -1: none
	grouping, presenting byte
}

// percentFlags parses flags, width, precision and length of a % conversion and returns the rest.
func (sp *spec) percentFlags(s string, next func() Value) string {
	sp.fill, sp.precision = ' ', -1
flags:
	for s != "" {
		switch s[0] {
		case '-':
			sp.align = '<'
		case '+':
			sp.sign = '+'
		case ' ':
			if sp.sign == 0 {
				sp.sign = ' '
			}
		case '#':
			sp.alternate = true
		case '0':
			sp.zero = true
		default:
			break flags
		}
		s = s[1:]
	}
	number := func() int {
		if strings.HasPrefix(s, "*") {
			s = s[1:]
			v := next()
			if _, ok := smallInt(v); !ok {
				throw(typeError, "* wants int")
			}
			return indexArg(v)
		}
		n, rest := leadingNumber(s)
		s = rest
		return max(n, 0)
	}
	sp.width = number()
	if sp.width < 0 {
		sp.align = '<'
		sp.width = -sp.width
	}
	if strings.HasPrefix(s, ".") {
		s = s[1:]
		sp.precision = max(number(), 0)
	}
	if s != "" && (s[0] == 'h' || s[0] == 'l' || s[0] == 'L') {
		s = s[1:]
	}
	return s
}

// leadingNumber reads decimal digits; n is -1 where there are none.
func leadingNumber(s string) (n int, rest string) {
	i := 0
	for i < len(s) && decimal(s[i]) {
		i++
	}
	if i == 0 {
		return -1, s
	}
	n, err := strconv.Atoi(s[:i])
	if err != nil {
		throw(valueError, "too many decimal digits in format string")
	}
	return n, s[i:]
}

func (r *run) percentOne(verb rune, sp spec, v Value) string {
	if sp.align == 0 {
		sp.align = '>'
	}
	switch verb {
	case 's', 'r', 'a':
		var s string
		switch verb {
		case 's':
			s = r.toStr(v)
		default:
			s = r.toRepr(v)
			if verb == 'a' {
				s = r.asciiOnly(s)
			}
		}
		sp.zero = false
		return r.pad(r.cut(s, sp), sp)
	case 'c':
		if s, ok := text(v); ok {
			if utf8.RuneCountInString(s) != 1 {
				throw(typeError, "%%c requires int or char")
			}
			return r.pad(s, sp)
		}
		big, ok := integer(v)
		if !ok {
			throw(typeError, "%%c requires int or char")
		}
		i := big.Int64()
		if !big.IsInt64() || i < 0 || i > utf8.MaxRune {
			throw(overflowError, "%%c arg not in range(0x110000)")
		}
		return r.pad(string(rune(i)), sp)
	case 'd', 'i', 'u', 'x', 'X', 'o':
		if u, ok := v.(*undefined); ok && (verb == 'd' || verb == 'i' || verb == 'u') {
			u.fail()
		}
		if !isNumber(v) || isFloat(v) && verb != 'd' && verb != 'i' && verb != 'u' {
			throw(typeError, "%%%c format: a real number is required, not %s", verb, v.TypeName())
		}
		if f, ok := v.(Float); ok {
			v = floatToInt(float64(f))
		}
		i, _ := integer(v)
		base := map[rune]int{'x': 16, 'X': 16, 'o': 8}[verb]
		if base == 0 {
			base = 10
		}
		r.chargeBig(i.BitLen() / 64)
		digits := new(big.Int).Abs(i).Text(base)
		if sp.precision > len(digits) {
			digits = r.repeat("0", sp.precision-len(digits)) + digits
		}
		prefix := ""
		if sp.alternate {
			prefix = map[int]string{16: "0x", 8: "0o"}[base]
		}
		if verb == 'X' {
			prefix, digits = strings.ToUpper(prefix), strings.ToUpper(digits)
		}
		return r.number(signOf(i.Sign() < 0, sp.sign)+prefix, digits, sp)
	case 'e', 'E', 'f', 'F', 'g', 'G':
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
		if !isNumber(v) {
			throw(typeError, "must be real number, not %s", v.TypeName())
		}
		f := toFloat(v)
		if sp.precision < 0 {
			sp.precision = 6
		}
		return r.number(signOf(math.Signbit(f) && !math.IsNaN(f), sp.sign), r.floatDigits(math.Abs(f), byte(verb), sp), sp)
	}
	throw(valueError, "unsupported format character '%c'", verb)
	return ""
}

func (r *run) toRepr(v Value) string {
	p := printer{r: r}
	p.repr(v, 0)
	return p.b.String()
}

// asciiOnly is the function of that name, counted.
func (r *run) asciiOnly(s string) string {
	r.work(16 * len(s))
	r.allocEach(len(s), 3)
	return asciiOnly(s)
}

// asciiOnly escapes what is not ASCII, as Python's ascii() does.
func asciiOnly(s string) string {
	var b strings.Builder
	for _, c := range s {
		switch {
		case c < utf8.RuneSelf:
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

func signOf(negative bool, sign byte) string {
	if negative {
		return "-"
	}
	if sign == '+' || sign == ' ' {
		return string(sign)
	}
	return ""
}

// cut applies a precision to text.
func (r *run) cut(s string, sp spec) string {
	if sp.precision < 0 {
		return s
	}
	r.scan(len(s))
	if n := utf8.RuneCountInString(s); sp.precision >= 0 && n > sp.precision {
		return s[:byteOffset(s, sp.precision, n)]
	}
	return s
}

// pad fills s to the width.
func (r *run) pad(s string, sp spec) string {
	if sp.width <= 0 {
		return s
	}
	r.scan(len(s))
	n := sp.width - utf8.RuneCountInString(s)
	if n <= 0 {
		return s
	}
	r.alloc(len(s) + n)
	fill := string(sp.fill)
	switch sp.align {
	case '<':
		return s + r.repeat(fill, n)
	case '^':
		return r.repeat(fill, n/2) + s + r.repeat(fill, n-n/2)
	}
	return r.repeat(fill, n) + s
}

// number joins sign and digits; zeros, where asked for, go between them.
func (r *run) number(sign, digits string, sp spec) string {
	r.alloc(2 * len(digits))
	if sp.zero && sp.align != '<' || sp.align == '=' {
		fill := "0"
		if sp.align == '=' {
			fill = string(sp.fill)
		}
		return sign + r.repeat(fill, sp.width-len(sign)-utf8.RuneCountInString(digits)) + digits
	}
	return r.pad(sign+digits, sp)
}

// floatDigits formats a float that is not negative, with precision digits, in the style of verb.
func (r *run) floatDigits(f float64, verb byte, sp spec) string {
	lowerVerb := verb | 0x20
	r.work(16 * evaluationSteps)
	var s string
	switch {
	case math.IsInf(f, 0):
		s = "inf"
	case math.IsNaN(f):
		s = "nan"
	case sp.precision > 100000:
		throw(valueError, "precision too big")
	case lowerVerb == 'g':
		r.allocEach(sp.precision, 4)
		s = generalDigits(f, max(sp.precision, 1), sp.alternate)
	default:
		r.alloc(sp.precision)
		s = strconv.FormatFloat(f, lowerVerb, sp.precision, 64)
		if sp.alternate && sp.precision == 0 {
			s = strings.Replace(s, "e", ".e", 1)
			if lowerVerb == 'f' {
				s += "."
			}
		}
	}
	if verb != lowerVerb {
		s = strings.ToUpper(s)
	}
	return s
}

// generalDigits is the g style: digits significant digits, an exponent where it is under -4 or too large, no trailing zeros.
func generalDigits(f float64, digits int, keepZeros bool) string {
	e := strconv.FormatFloat(f, 'e', digits-1, 64)
	mantissa, exponentText, _ := strings.Cut(e, "e")
	exponent, _ := strconv.Atoi(exponentText)
	s, tail := mantissa, "e"+exponentText
	if exponent >= -4 && exponent < digits {
		s, tail = strconv.FormatFloat(f, 'f', digits-1-exponent, 64), ""
	}
	if strings.Contains(s, ".") && !keepZeros {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + tail
}
