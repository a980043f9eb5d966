package jsonvalue

import (
	"math/big"
	"strconv"
	"strings"
)

// Decimal is an exact number of a JSON text: ±0.Digits × 10^Exponent. Zero has no digits. Its size is that of its text, whatever the exponent says.
type Decimal struct {
	Negative bool
	Digits   string // no zero first or last
	Exponent int
}

// maxExponent is where exponents end: beyond, they only keep their sign. Nothing that is written out comes near.
const maxExponent = 1 << 40

// ParseDecimal reads the text of a JSON number. It must be one.
func ParseDecimal(text string) Decimal {
	var d Decimal
	if strings.HasPrefix(text, "-") {
		d.Negative = true
		text = text[1:]
	}
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		var err error
		if exponent, err = strconv.Atoi(strings.TrimPrefix(text[i+1:], "+")); err != nil || exponent > maxExponent || exponent < -maxExponent {
			exponent = maxExponent
			if text[i+1] == '-' {
				exponent = -maxExponent
			}
		}
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := whole + fraction
	exponent += len(whole)
	trimmed := strings.TrimLeft(digits, "0")
	exponent -= len(digits) - len(trimmed)
	d.Digits, d.Exponent = strings.TrimRight(trimmed, "0"), exponent
	if d.Digits == "" {
		return Decimal{}
	}
	return d
}

// Zero tells whether it is zero.
func (d Decimal) Zero() bool { return d.Digits == "" }

// Sign is -1, 0 or 1.
func (d Decimal) Sign() int {
	switch {
	case d.Digits == "":
		return 0
	case d.Negative:
		return -1
	}
	return 1
}

// Compare is -1, 0 or 1 as d is below, equal to or above e.
func (d Decimal) Compare(e Decimal) int {
	if d.Sign() != e.Sign() {
		if d.Sign() < e.Sign() {
			return -1
		}
		return 1
	}
	if d.Sign() < 0 {
		return e.compareSize(d)
	}
	return d.compareSize(e)
}

func (d Decimal) compareSize(e Decimal) int {
	switch {
	case d.Zero() || e.Zero():
		return len(d.Digits) - len(e.Digits) // both signs are equal here, so both are zero
	case d.Exponent < e.Exponent:
		return -1
	case d.Exponent > e.Exponent:
		return 1
	}
	return strings.Compare(d.Digits, e.Digits)
}

// Integer tells whether it is a whole number.
func (d Decimal) Integer() bool { return len(d.Digits) <= d.Exponent || d.Zero() }

// Scale is how many digits it has behind the point.
func (d Decimal) Scale() int { return max(0, len(d.Digits)-d.Exponent) }

// mantissa is the digits as a number; the value is mantissa × 10^(Exponent-len(Digits)).
func (d Decimal) mantissa() *big.Int {
	m := new(big.Int)
	if !d.Zero() {
		m.SetString(d.Digits, 10)
	}
	return m
}

// MultipleOf tells whether d is a whole multiple of a divisor that is not zero. Its work depends on the digits only, not on the exponents.
func (d Decimal) MultipleOf(divisor Decimal) bool {
	if d.Zero() {
		return true
	}
	shift := (d.Exponent - len(d.Digits)) - (divisor.Exponent - len(divisor.Digits))
	value, modulus := d.mantissa(), divisor.mantissa()
	if shift >= 0 {
		power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(shift)), modulus)
		value.Mul(value, power)
	} else {
		if -shift > len(d.Digits) {
			return false // d would need more zeros at its end than it has digits
		}
		modulus.Mul(modulus, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-shift)), nil))
	}
	return value.Mod(value, modulus).Sign() == 0
}

// Rat is the number as a fraction; ok is false where it would have more than maxDigits digits.
func (d Decimal) Rat(maxDigits int) (r *big.Rat, ok bool) {
	shift := d.Exponent - len(d.Digits)
	if d.Zero() {
		return new(big.Rat), true
	}
	if d.Exponent > maxDigits || -shift > maxDigits || len(d.Digits) > maxDigits {
		return nil, false
	}
	m := d.mantissa()
	if d.Negative {
		m.Neg(m)
	}
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(shift, -shift))), nil)
	if shift >= 0 {
		return new(big.Rat).SetInt(m.Mul(m, power)), true
	}
	return new(big.Rat).SetFrac(m, power), true
}

// plainDigits is up to how many digits a number is written without an exponent.
const plainDigits = 64

// Parts are the digits before and behind the point, as a text without exponent has them: whole is "0" below one. ok is false where it would be too long.
func (d Decimal) Parts() (whole, fraction string, ok bool) {
	switch {
	case d.Zero():
		return "0", "", true
	case d.Exponent > plainDigits || len(d.Digits)-d.Exponent > plainDigits:
		return "", "", false
	case d.Exponent <= 0:
		return "0", strings.Repeat("0", -d.Exponent) + d.Digits, true
	case d.Exponent >= len(d.Digits):
		return d.Digits + strings.Repeat("0", d.Exponent-len(d.Digits)), "", true
	}
	return d.Digits[:d.Exponent], d.Digits[d.Exponent:], true
}

// String is the shortest plain text of the number; one with an exponent where that has more than 64 digits on a side of the point.
func (d Decimal) String() string {
	sign := ""
	if d.Negative {
		sign = "-"
	}
	whole, fraction, ok := d.Parts()
	switch {
	case !ok && len(d.Digits) == 1:
		return sign + d.Digits + "e" + strconv.Itoa(d.Exponent-1)
	case !ok:
		return sign + d.Digits[:1] + "." + d.Digits[1:] + "e" + strconv.Itoa(d.Exponent-1)
	case fraction == "":
		return sign + whole
	}
	return sign + whole + "." + fraction
}
