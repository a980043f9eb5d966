package tokenizer

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// parseScore reads a JSON number as the reference's JSON library does: up to 19
// or 20 significant digits as an integer, then one multiplication or division by
// a power of ten. The result can be one unit in the last place off the nearest
// float64, and where two ways to cut a word have equal scores but for rounding,
// that unit decides between them.
func parseScore(text string) (float64, error) {
	malformed := fmt.Errorf("a score is %.40q: a number is needed", text)
	rest, negative := strings.CutPrefix(text, "-")
	mantissa, power, scientific := strings.Cut(strings.ToLower(rest), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	if whole == "" || strings.Trim(whole+fraction, "0123456789") != "" {
		return 0, malformed
	}
	var significand uint64
	exponent, full := 0, false
	for i, c := range []byte(whole + fraction) {
		digit := uint64(c - '0')
		if full = full || significand > (math.MaxUint64-digit)/10; full {
			if i < len(whole) {
				exponent++
			}
			continue
		}
		significand = significand*10 + digit
		if i >= len(whole) {
			exponent--
		}
	}
	if scientific {
		n, err := strconv.Atoi(power)
		if err != nil {
			return 0, malformed
		}
		exponent += max(min(n, 1<<20), -1<<20)
	}
	value := float64(significand)
	for exponent < -308 && value != 0 {
		value /= 1e308
		exponent += 308
	}
	switch {
	case value == 0:
	case exponent > 308:
		value = math.Inf(1)
	case exponent >= 0:
		value *= powerOfTen(exponent)
	default:
		value /= powerOfTen(-exponent)
	}
	if math.IsInf(value, 0) {
		return 0, fmt.Errorf("the score %.40q is out of range", text)
	}
	if negative {
		value = -value
	}
	return value, nil
}

// powerOfTen returns the float64 nearest to 10^n, for n from 0 to 308.
func powerOfTen(n int) float64 {
	v, err := strconv.ParseFloat("1e"+strconv.Itoa(n), 64)
	if err != nil {
		panic(err) // n is in range
	}
	return v
}
