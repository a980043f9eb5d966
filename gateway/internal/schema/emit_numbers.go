package schema

import (
	"math/big"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// numbers is the texts of a union of sets of numbers.
func (c *compiler) numbers(sets []numberSet) []grammar.Symbol {
	c.prepare()
	var list []grammar.Symbol
	var simple []grammar.Expr
	for i := range sets {
		if e, ok := c.plainNumbers(&sets[i]); ok {
			simple = append(simple, e)
			continue
		}
		symbol, ok := c.remainders(&sets[i])
		if !ok {
			loose := sets[i]
			loose.multiple, loose.not = nil, nil
			if sets[i].multiple != nil && sets[i].multiple.IsInt() {
				loose.multiple = one
			}
			e, _ := c.plainNumbers(&loose)
			symbol = c.terminal(e)
			c.relax(sets[i].origin)
		}
		list = append(list, symbol)
	}
	if len(simple) > 0 {
		list = append(list, c.terminal(c.b.Union(simple...)))
	}
	return list
}

// numberText is the canonical text of a number. A long one is written with an exponent, with and without its sign.
func (c *compiler) numberText(d jsonvalue.Decimal) grammar.Expr {
	text := d.String()
	if before, after, found := strings.Cut(text, "e"); found && !strings.HasPrefix(after, "-") {
		return c.b.Union(c.b.Literal(text), c.b.Literal(before+"e+"+after))
	}
	return c.b.Literal(text)
}

// decimalTexts is the texts of numbers without exponent.
func (c *compiler) decimalTexts(signed bool) grammar.Expr {
	b := c.b
	fraction := b.Union(b.Empty(), b.Concat(b.Literal("."), c.symbols.digits))
	whole := b.Union(b.Literal("0"), b.Concat(c.oneOfDigits('1', '9'), b.Repeat(c.symbols.digit, 0, numberDigits-1)))
	if signed {
		whole = b.Concat(b.Union(b.Empty(), b.Literal("-")), whole)
	}
	return b.Concat(whole, fraction)
}

func (c *compiler) oneOfDigits(low, high byte) grammar.Expr {
	if low > high {
		return c.b.Nothing()
	}
	return c.b.Class(grammar.RuneRange{Lo: rune(low), Hi: rune(high)})
}

// powerOfTen is the exponent of a divisor that is a power of ten.
func powerOfTen(r *big.Rat) (int, bool) {
	d := decimalOf(r)
	return d.Exponent - 1, d.Digits == "1"
}

// plainNumbers is the texts of a set that needs no remainders: bounds, lists, whole numbers, powers of ten.
func (c *compiler) plainNumbers(s *numberSet) (grammar.Expr, bool) {
	b := c.b
	if s.full() {
		return c.symbols.anyNumber, true
	}
	if s.listed {
		list := make([]grammar.Expr, 0, len(s.values))
		for _, d := range s.values {
			list = append(list, c.numberText(d))
		}
		return b.Union(list...), true
	}
	if s.multiple != nil && s.multiple.Cmp(one) == 0 && len(s.not)+len(s.excluded) == 0 {
		return c.integersBetween(s)
	}
	var parts []grammar.Expr
	if s.multiple != nil {
		power, ok := powerOfTen(s.multiple)
		if !ok {
			return 0, false
		}
		digits := b.Concat(c.oneOfDigits('1', '9'), b.Repeat(c.symbols.digit, 0, numberDigits-1))
		minus := b.Union(b.Empty(), b.Literal("-"))
		switch {
		case power > numberDigits:
			c.beyondDigits = true
			return 0, false
		case power == 0:
			parts = append(parts, b.Union(b.Literal("0"), b.Concat(minus, digits)))
		case power > 0:
			zeros := b.Literal(strings.Repeat("0", power))
			parts = append(parts, b.Union(b.Literal("0"), b.Concat(minus, c.oneOfDigits('1', '9'), b.Repeat(c.symbols.digit, 0, numberDigits-power-1), zeros)))
		default:
			fraction := b.Union(b.Empty(), b.Concat(b.Literal("."), b.Repeat(c.symbols.digit, 1, -power)))
			parts = append(parts, b.Concat(minus, b.Union(b.Literal("0"), digits), fraction))
		}
	} else if s.minimum == nil && s.maximum == nil {
		parts = append(parts, c.decimalTexts(true))
	}
	for _, n := range s.not {
		power, ok := powerOfTen(n)
		if !ok || power > numberDigits {
			return 0, false
		}
		parts = append(parts, b.Not(c.multiplesOfPower(power)))
	}
	if s.minimum != nil {
		parts = append(parts, c.bounded(*s.minimum, 1, !s.exclusiveMinimum))
	}
	if s.maximum != nil {
		parts = append(parts, c.bounded(*s.maximum, -1, !s.exclusiveMaximum))
	}
	for _, d := range s.excluded {
		parts = append(parts, b.Not(c.everyText(d)))
	}
	return b.Intersect(parts...), true
}

// multiplesOfPower is every text without exponent of the multiples of a power of ten.
func (c *compiler) multiplesOfPower(power int) grammar.Expr {
	b := c.b
	minus := b.Union(b.Empty(), b.Literal("-"))
	zero := b.Literal("0")
	noFraction := b.Union(b.Empty(), b.Concat(b.Literal("."), b.Repeat(zero, 1, -1)))
	digits := b.Repeat(c.symbols.digit, 1, -1)
	switch {
	case power == 0:
		return b.Concat(minus, digits, noFraction)
	case power > 0:
		return b.Concat(minus, b.Union(zero, b.Concat(digits, b.Literal(strings.Repeat("0", power)))), noFraction)
	}
	return b.Concat(minus, digits, b.Union(b.Empty(), b.Concat(b.Literal("."), b.Repeat(c.symbols.digit, 1, -power), b.Repeat(zero, 0, -1))))
}

// everyText is every text without exponent of one number.
func (c *compiler) everyText(d jsonvalue.Decimal) grammar.Expr {
	b := c.b
	whole, fraction, ok := d.Parts()
	if !ok {
		return b.Nothing()
	}
	sign := b.Empty()
	if d.Zero() {
		sign = b.Union(b.Empty(), b.Literal("-"))
	} else if d.Negative {
		sign = b.Literal("-")
	}
	zeros := b.Repeat(b.Literal("0"), 0, numberDigits-max(len(fraction), 1))
	if fraction == "" {
		return b.Concat(sign, b.Literal(whole), b.Union(b.Empty(), b.Concat(b.Literal(".0"), zeros)))
	}
	return b.Concat(sign, b.Literal(whole+"."+fraction), zeros)
}

// bounded is every text without exponent of the numbers above (direction 1) or below (-1) a bound.
func (c *compiler) bounded(bound jsonvalue.Decimal, direction int, with bool) grammar.Expr {
	b := c.b
	minus := b.Literal("-")
	any := c.decimalTexts(false)
	zero := jsonvalue.Decimal{}
	size := bound
	size.Negative = false
	negative := b.Concat(minus, any)
	switch {
	case direction > 0 && !bound.Negative:
		e := c.sized(size, 1, with)
		if bound.Zero() && with {
			e = b.Union(e, c.everyText(zero))
		}
		return e
	case direction > 0:
		return b.Union(any, b.Concat(minus, c.sized(size, -1, with)))
	case bound.Zero():
		e := b.Concat(minus, c.sized(zero, 1, with))
		if with {
			return b.Union(e, c.everyText(zero))
		}
		return e
	case bound.Negative:
		return b.Concat(minus, c.sized(size, 1, with))
	}
	return b.Union(negative, c.sized(size, -1, with))
}

// sized is every text without sign and exponent of the numbers above or below a size, which is not below 0.
func (c *compiler) sized(size jsonvalue.Decimal, direction int, with bool) grammar.Expr {
	b := c.b
	whole, fraction, ok := size.Parts()
	if !ok {
		if (size.Exponent > 0) == (direction > 0) { // larger than any text, or as good as zero from below
			c.beyondDigits = true
			return b.Nothing()
		}
		return c.decimalTexts(false)
	}
	tail := b.Union(b.Empty(), b.Concat(b.Literal("."), c.symbols.digits))
	var wholes []grammar.Expr // whole parts beyond the bound's, of texts whose fraction does not matter
	if direction > 0 {
		if len(whole) < numberDigits {
			wholes = append(wholes, b.Concat(c.oneOfDigits('1', '9'), b.Repeat(c.symbols.digit, len(whole), numberDigits-1)))
		}
	} else if len(whole) > 1 {
		wholes = append(wholes, b.Literal("0"), b.Concat(c.oneOfDigits('1', '9'), b.Repeat(c.symbols.digit, 0, len(whole)-2)))
	}
	wholes = append(wholes, c.beyond(whole, direction, true))
	parts := []grammar.Expr{b.Concat(b.Union(wholes...), tail)}
	// The same whole part: the fraction decides.
	point := b.Literal(".")
	zeros := b.Repeat(b.Literal("0"), 0, numberDigits-max(len(fraction), 1))
	rest := func(used int) grammar.Expr { return b.Repeat(c.symbols.digit, 0, numberDigits-used) }
	var fractions []grammar.Expr
	if direction > 0 {
		for i := range fraction {
			fractions = append(fractions, b.Concat(point, b.Literal(fraction[:i]), c.oneOfDigits(fraction[i]+1, '9'), rest(i+1)))
		}
		if n := numberDigits - len(fraction); n > 0 { // zeros that go on for long and digits behind them make up to twice as many digits, which hurts nobody
			fractions = append(fractions, b.Concat(point, b.Literal(fraction), b.Repeat(b.Literal("0"), 0, n-1), c.oneOfDigits('1', '9'), rest(len(fraction)+1)))
		}
	} else {
		for i := range fraction {
			fractions = append(fractions, b.Concat(point, b.Literal(fraction[:i]), c.oneOfDigits('0', fraction[i]-1), rest(i+1)))
			if i > 0 {
				fractions = append(fractions, b.Concat(point, b.Literal(fraction[:i])))
			}
		}
		if fraction != "" {
			fractions = append(fractions, b.Empty())
		}
	}
	if with {
		if fraction == "" {
			fractions = append(fractions, b.Empty(), b.Concat(b.Literal(".0"), zeros))
		} else {
			fractions = append(fractions, b.Concat(point, b.Literal(fraction), zeros))
		}
	}
	parts = append(parts, b.Concat(b.Literal(whole), b.Union(fractions...)))
	return b.Union(parts...)
}

// beyond is the digits of the same length that are above or below; the first is no 0 unless it is alone.
func (c *compiler) beyond(digits string, direction int, whole bool) grammar.Expr {
	b := c.b
	var list []grammar.Expr
	for i := range digits {
		low, high := digits[i]+1, byte('9')
		if direction < 0 {
			low, high = '0', digits[i]-1
			if whole && i == 0 && len(digits) > 1 {
				low = '1'
			}
		}
		if low <= high {
			list = append(list, b.Concat(b.Literal(digits[:i]), c.oneOfDigits(low, high), b.Repeat(c.symbols.digit, len(digits)-i-1, len(digits)-i-1)))
		}
	}
	return b.Union(list...)
}

// integersBetween is the texts of the whole numbers of a set that has bounds and nothing else.
func (c *compiler) integersBetween(s *numberSet) (grammar.Expr, bool) {
	low, high := "", "" // sizes; "" is none
	negativeLow, negativeHigh := true, false
	if m := s.minimum; m != nil {
		size, negative, ok := c.wholeBound(*m, 1, s.exclusiveMinimum)
		if !ok {
			return c.b.Nothing(), true
		}
		low, negativeLow = size, negative
	}
	if m := s.maximum; m != nil {
		size, negative, ok := c.wholeBound(*m, -1, s.exclusiveMaximum)
		if !ok {
			return c.b.Nothing(), true
		}
		high, negativeHigh = size, negative
	}
	var list []grammar.Expr
	if !negativeHigh { // from 0 or low on
		from := "0"
		if !negativeLow {
			from = low
		}
		list = append(list, c.sizes(from, high))
	}
	if negativeLow {
		from := "1"
		if negativeHigh {
			from = high
		}
		list = append(list, c.b.Concat(c.b.Literal("-"), c.sizes(from, low)))
	}
	return c.b.Union(list...), true
}

// wholeBound is the first whole number at or beyond a bound, as its size. ok is false where no text is beyond it.
func (c *compiler) wholeBound(bound jsonvalue.Decimal, direction int, exclusive bool) (size string, negative, ok bool) {
	if bound.Exponent > numberDigits {
		if bound.Negative == (direction > 0) {
			return "", bound.Negative, true // as good as none
		}
		c.beyondDigits = true
		return "", false, false
	}
	r, ok := bound.Rat(maxExactDigits)
	if !ok { // so close to 0 that only its side counts
		r = big.NewRat(int64(bound.Sign()), 2)
	}
	n := floor(r)
	whole := r.IsInt()
	switch {
	case direction > 0 && (!whole || exclusive):
		n.Add(n, big.NewInt(1))
	case direction < 0 && whole && exclusive:
		n.Sub(n, big.NewInt(1))
	}
	return new(big.Int).Abs(n).String(), n.Sign() < 0, true
}

// sizes is the digits of whole numbers from low up to high; high "" is as far as numbers go.
func (c *compiler) sizes(low, high string) grammar.Expr {
	if high == "" {
		high = strings.Repeat("9", numberDigits)
	}
	var list []grammar.Expr
	for n := len(low); n <= len(high); n++ {
		from, to := "1"+strings.Repeat("0", n-1), strings.Repeat("9", n)
		if n == len(low) {
			from = low
		}
		if n == len(high) {
			to = high
		}
		if n > len(low) && n < len(high) { // all of the lengths between at once
			list = append(list, c.b.Concat(c.oneOfDigits('1', '9'), c.b.Repeat(c.symbols.digit, n-1, len(high)-2)))
			n = len(high) - 1
			continue
		}
		list = append(list, c.between(from, to))
	}
	return c.b.Union(list...)
}

// between is the digits between two of the same length.
func (c *compiler) between(low, high string) grammar.Expr {
	b := c.b
	if low > high {
		return b.Nothing()
	}
	if low == high {
		return b.Literal(low)
	}
	same := 0
	for low[same] == high[same] {
		same++
	}
	prefix, l, h := low[:same], low[same:], high[same:]
	rest := len(l) - 1
	any := func(n int) grammar.Expr { return b.Repeat(c.symbols.digit, n, n) }
	list := []grammar.Expr{b.Concat(c.oneOfDigits(l[0]+1, h[0]-1), any(rest))}
	for i := 1; i <= rest; i++ {
		list = append(list,
			b.Concat(b.Literal(l[:i]), c.oneOfDigits(l[i]+1, '9'), any(rest-i)),
			b.Concat(b.Literal(h[:i]), c.oneOfDigits('0', h[i]-1), any(rest-i)))
	}
	list = append(list, b.Literal(l), b.Literal(h))
	return b.Concat(b.Literal(prefix), b.Union(list...))
}
