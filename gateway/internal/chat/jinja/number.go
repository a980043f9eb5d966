package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode"
)

// normalInt makes an Int where i fits one, else a BigInt.
func normalInt(i *big.Int) Value {
	if i.IsInt64() {
		return Int(i.Int64())
	}
	if i.BitLen() > maxIntBits {
		throw(limitError, "integer of more than %d bits", maxIntBits)
	}
	return &BigInt{i}
}

// integer returns the integer in v; booleans are integers.
func integer(v Value) (*big.Int, bool) {
	switch v := v.(type) {
	case Int:
		return big.NewInt(int64(v)), true
	case Bool:
		if v {
			return big.NewInt(1), true
		}
		return new(big.Int), true
	case *BigInt:
		return v.Big, true
	}
	return nil, false
}

// smallInt returns an integer that fits 64 bits.
func smallInt(v Value) (int64, bool) {
	switch v := v.(type) {
	case Int:
		return int64(v), true
	case Bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func isNumber(v Value) bool {
	switch v.(type) {
	case Int, Bool, Float, *BigInt:
		return true
	}
	return false
}

// toFloat converts a number to float, as Python's float() does for numbers.
func toFloat(v Value) float64 {
	if f, ok := v.(Float); ok {
		return float64(f)
	}
	i, _ := integer(v)
	f, _ := new(big.Float).SetInt(i).Float64()
	if math.IsInf(f, 0) {
		throw(overflowError, "int too large to convert to float")
	}
	return f
}

// floatToInt truncates a finite float.
func floatToInt(f float64) Value {
	if math.IsNaN(f) {
		throw(valueError, "cannot convert float NaN to integer")
	}
	if math.IsInf(f, 0) {
		throw(overflowError, "cannot convert float infinity to integer")
	}
	i, _ := big.NewFloat(math.Trunc(f)).Int(nil)
	return normalInt(i)
}

func unsupported(op string, a, b Value) {
	throw(typeError, "unsupported operand type(s) for %s: '%s' and '%s'", op, a.TypeName(), b.TypeName())
}

// words is the size of a number of more than 64 bits in machine words; 0 for others.
func words(v Value) int {
	if big, ok := v.(*BigInt); ok {
		return big.Big.BitLen()/64 + 1
	}
	return 0
}

// chargeBig counts the work of one operation on a number with n words, printing it included: that grows with the square.
func (r *run) chargeBig(n int) {
	if n > 0 {
		r.alloc(8*n + objectBytes)
		r.work(evaluationSteps + n*n)
	}
}

// arithmetic applies a binary operator to two numbers, and counts it.
func (r *run) arithmetic(op string, a, b Value) Value {
	if n := words(a) + words(b); n > 0 || op == "**" || op == "/" {
		r.chargeBig(n + 1)
	}
	v := arithmetic(op, a, b)
	r.chargeBig(words(v))
	return v
}

// arithmetic applies a binary operator to two numbers.
func arithmetic(op string, a, b Value) Value {
	_, aFloat := a.(Float)
	_, bFloat := b.(Float)
	if aFloat || bFloat {
		return floatArithmetic(op, toFloat(a), toFloat(b))
	}
	if x, ok := smallInt(a); ok {
		if y, ok := smallInt(b); ok {
			if v, ok := smallArithmetic(op, x, y); ok {
				return v
			}
		}
	}
	x, _ := integer(a)
	y, _ := integer(b)
	out := new(big.Int)
	switch op {
	case "+":
		return normalInt(out.Add(x, y))
	case "-":
		return normalInt(out.Sub(x, y))
	case "*":
		return normalInt(out.Mul(x, y))
	case "**":
		return intPower(x, y)
	}
	if y.Sign() == 0 {
		if op == "/" {
			throw(zeroDivision, "division by zero")
		}
		throw(zeroDivision, "integer division or modulo by zero")
	}
	switch op {
	case "/":
		if x.Sign() == 0 {
			return Float(math.Copysign(0, float64(y.Sign())))
		}
		f, _ := new(big.Rat).SetFrac(x, y).Float64()
		if math.IsInf(f, 0) {
			throw(overflowError, "integer division result too large for a float")
		}
		return Float(f)
	}
	// Python rounds the quotient down; the remainder has the divisor's sign.
	quotient, remainder := out.QuoRem(x, y, new(big.Int))
	if remainder.Sign() != 0 && remainder.Sign() != y.Sign() {
		quotient.Sub(quotient, big.NewInt(1))
		remainder.Add(remainder, y)
	}
	if op == "//" {
		return normalInt(quotient)
	}
	return normalInt(remainder)
}

// smallArithmetic does the cases that cannot overflow without big integers.
func smallArithmetic(op string, x, y int64) (Value, bool) {
	const bound = 1 << 31
	if x >= bound || x <= -bound || y >= bound || y <= -bound {
		return nil, false
	}
	switch op {
	case "+":
		return Int(x + y), true
	case "-":
		return Int(x - y), true
	case "*":
		return Int(x * y), true
	}
	return nil, false
}

func intPower(x, y *big.Int) Value {
	if y.Sign() < 0 {
		if x.Sign() == 0 {
			throw(zeroDivision, "0.0 cannot be raised to a negative power")
		}
		return floatArithmetic("**", toFloat(normalInt(x)), toFloat(normalInt(y)))
	}
	if x.BitLen() > 1 && (!y.IsInt64() || y.Int64() > maxIntBits || y.Int64()*int64(x.BitLen()-1) > maxIntBits) {
		throw(limitError, "integer of more than %d bits", maxIntBits)
	}
	if !y.IsInt64() {
		// The base is -1, 0 or 1.
		y = new(big.Int).Add(big.NewInt(2), new(big.Int).And(y, big.NewInt(1)))
	}
	return normalInt(new(big.Int).Exp(x, y, nil))
}

func floatArithmetic(op string, x, y float64) Value {
	switch op {
	case "+":
		return Float(x + y)
	case "-":
		return Float(x - y)
	case "*":
		return Float(x * y)
	case "**":
		if x == 0 && y < 0 {
			throw(zeroDivision, "0.0 cannot be raised to a negative power")
		}
		f := math.Pow(x, y)
		if x < 0 && y != math.Trunc(y) && !math.IsInf(y, 0) && !math.IsNaN(y) && !math.IsInf(x, 0) {
			throw(valueError, "power of a negative number with a fractional exponent is complex, which is not supported")
		}
		if math.IsInf(f, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
			throw(overflowError, "numerical result out of range")
		}
		return Float(f)
	}
	if y == 0 {
		switch op {
		case "/":
			throw(zeroDivision, "float division by zero")
		case "//":
			throw(zeroDivision, "float floor division by zero")
		}
		throw(zeroDivision, "float modulo")
	}
	if op == "/" {
		return Float(x / y)
	}
	mod := math.Mod(x, y)
	div := (x - mod) / y
	if mod != 0 {
		if (y < 0) != (mod < 0) {
			mod += y
			div--
		}
	} else {
		mod = math.Copysign(0, y)
	}
	if op == "%" {
		return Float(mod)
	}
	if div == 0 {
		return Float(math.Copysign(0, x/y))
	}
	floor := math.Floor(div)
	if div-floor > 0.5 {
		floor++
	}
	return Float(floor)
}

// formatFloat is Python's repr of a float: the shortest digits that give the same float.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	mantissa, exponentText, _ := strings.Cut(s, "e")
	exponent, _ := strconv.Atoi(exponentText)
	if exponent >= -4 && exponent < 16 {
		s = strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	sign := "+"
	if exponent < 0 {
		sign = "-"
		exponent = -exponent
	}
	digits := strconv.Itoa(exponent)
	if len(digits) < 2 {
		digits = "0" + digits
	}
	return mantissa + "e" + sign + digits
}

// asciiDigits replaces decimal digits of any script by ASCII ones, as Python's int() and float() do.
func asciiDigits(s string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x80 || !unicode.Is(unicode.Nd, c) {
			return c
		}
		return '0' + digitValue(c)
	}, s)
}

// digitValue: the decimal digits of a script are ten code points in a row, from zero to nine.
func digitValue(c rune) rune {
	zero := c
	for unicode.Is(unicode.Nd, zero-1) && c-zero < 9 {
		zero--
	}
	// Neighbouring scripts may touch; then the row starts at a multiple of ten from the table's own range.
	for _, table := range unicode.Nd.R16 {
		if rune(table.Lo) <= c && c <= rune(table.Hi) {
			return (c - rune(table.Lo)) % 10
		}
	}
	for _, table := range unicode.Nd.R32 {
		if rune(table.Lo) <= c && c <= rune(table.Hi) {
			return (c - rune(table.Lo)) % 10
		}
	}
	return c - zero
}

// validUnderscores: Python allows one underscore between two digits.
func validUnderscores(s string) bool {
	for i := range len(s) {
		if s[i] != '_' {
			continue
		}
		if i == 0 || i == len(s)-1 || !isHexDigit(s[i-1]) || !isHexDigit(s[i+1]) {
			return false
		}
	}
	return true
}

func isHexDigit(c byte) bool { return decimal(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

// maxIntText is longer than any text of an integer: 4300 digits of at most four bytes, with an underscore behind each.
const maxIntText = 5*4300 + 8

// parseInt is Python's int(text, base).
func parseInt(s string, base int) (Value, bool) {
	if s = strings.TrimFunc(s, isSpace); len(s) > maxIntText {
		return nil, false
	}
	s = asciiDigits(s)
	sign, rest := "", s
	if rest != "" && (rest[0] == '+' || rest[0] == '-') {
		sign, rest = rest[:1], rest[1:]
	}
	if base != 0 && (base < 2 || base > 36) {
		throw(valueError, "int() base must be >= 2 and <= 36, or 0")
	}
	if len(rest) > 1 && rest[0] == '0' {
		prefix := map[byte]int{'x': 16, 'o': 8, 'b': 2}[rest[1]|0x20]
		if prefix != 0 && (base == 0 || base == prefix) {
			base = prefix
			rest = strings.TrimPrefix(rest[2:], "_")
		}
	}
	if base == 0 {
		base = 10
		if strings.Trim(rest, "0_") != "" && strings.HasPrefix(rest, "0") {
			return nil, false
		}
	}
	if rest == "" || rest[0] == '+' || rest[0] == '-' || len(rest) > 4300 {
		return nil, false
	}
	for i := range len(rest) {
		if rest[i] == '_' && (i == 0 || i == len(rest)-1 || rest[i-1] == '_') {
			return nil, false
		}
	}
	i, ok := new(big.Int).SetString(sign+strings.ReplaceAll(rest, "_", ""), base)
	if !ok {
		return nil, false
	}
	return normalInt(i), true
}

// parseFloat is Python's float(text).
func parseFloat(s string) (float64, bool) {
	s = asciiDigits(strings.TrimFunc(s, isSpace))
	lower := strings.ToLower(strings.TrimLeft(s, "+-"))
	switch lower {
	case "inf", "infinity", "nan":
		if len(s)-len(lower) > 1 {
			return 0, false
		}
	default:
		if lower == "" || strings.Trim(s, "0123456789+-._eE") != "" || !validUnderscores(s) {
			return 0, false
		}
		s = strings.ReplaceAll(s, "_", "")
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

// roundFloat rounds half to even at a decimal place, on the exact value of f. Negative places round to tens, hundreds and so on.
func roundFloat(f float64, places int64) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || f == 0 || places > 330 {
		return f
	}
	if places < -330 {
		return math.Copysign(0, f)
	}
	if places >= 0 {
		out, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(places), 64), 64)
		return out
	}
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(-places), nil)
	scaled := new(big.Rat).Quo(new(big.Rat).SetFloat64(f), new(big.Rat).SetInt(unit))
	out, _ := new(big.Float).SetInt(new(big.Int).Mul(roundRat(scaled), unit)).Float64()
	return math.Copysign(math.Abs(out), f)
}

// roundRat rounds to the nearest integer, half to even.
func roundRat(x *big.Rat) *big.Int {
	doubled := new(big.Int).Mul(x.Num(), big.NewInt(2))
	floor := new(big.Int).Div(x.Num(), x.Denom())
	rest := doubled.Sub(doubled, new(big.Int).Mul(new(big.Int).Mul(floor, big.NewInt(2)), x.Denom()))
	if c := rest.Cmp(x.Denom()); c > 0 || c == 0 && floor.Bit(0) == 1 {
		floor.Add(floor, big.NewInt(1))
	}
	return floor
}
