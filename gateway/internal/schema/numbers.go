package schema

import (
	"math/big"
	"slices"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
)

// maxExactDigits is up to how many digits divisors are computed with.
const maxExactDigits = 400

// numberSet is a set of numbers by value: those that satisfy all of its parts. The zero value is all numbers.
type numberSet struct {
	minimum, maximum                   *jsonvalue.Decimal
	exclusiveMinimum, exclusiveMaximum bool
	multiple                           *big.Rat   // nil: none. Whole numbers are the multiples of 1
	not                                []*big.Rat // no multiple of any of them
	listed                             bool
	values                             []jsonvalue.Decimal // where listed: these only
	excluded                           []jsonvalue.Decimal
	origin                             Relaxed // of multiple and not
}

var one = big.NewRat(1, 1)

// full tells whether it is all numbers.
func (s *numberSet) full() bool {
	return s.minimum == nil && s.maximum == nil && s.multiple == nil && len(s.not) == 0 && !s.listed && len(s.excluded) == 0
}

// has tells whether a number is in the set.
func (s *numberSet) has(d jsonvalue.Decimal) bool {
	if m := s.minimum; m != nil {
		if c := d.Compare(*m); c < 0 || c == 0 && s.exclusiveMinimum {
			return false
		}
	}
	if m := s.maximum; m != nil {
		if c := d.Compare(*m); c > 0 || c == 0 && s.exclusiveMaximum {
			return false
		}
	}
	same := func(e jsonvalue.Decimal) bool { return d.Compare(e) == 0 }
	if s.listed && !slices.ContainsFunc(s.values, same) || slices.ContainsFunc(s.excluded, same) {
		return false
	}
	if s.multiple != nil && !d.MultipleOf(decimalOf(s.multiple)) {
		return false
	}
	return !slices.ContainsFunc(s.not, func(m *big.Rat) bool { return d.MultipleOf(decimalOf(m)) })
}

// decimalOf is a fraction whose denominator divides a power of ten, as all divisors and their multiples do.
func decimalOf(r *big.Rat) jsonvalue.Decimal {
	return jsonvalue.ParseDecimal(r.FloatString(scaleOf(r)))
}

// scaleOf is how many digits such a fraction has behind the point.
func scaleOf(r *big.Rat) int {
	scale := 0
	power := big.NewInt(1)
	rest := new(big.Int)
	for scale < 4*maxExactDigits && rest.Mod(power, r.Denom()).Sign() != 0 {
		power.Mul(power, big.NewInt(10))
		scale++
	}
	return scale
}

// leastCommonMultiple is the smallest number above 0 that both divide.
func leastCommonMultiple(a, b *big.Rat) *big.Rat {
	x := new(big.Int).Mul(a.Num(), b.Denom())
	y := new(big.Int).Mul(b.Num(), a.Denom())
	gcd := new(big.Int).GCD(nil, nil, x, y)
	x.Mul(x, y).Div(x, gcd)
	return new(big.Rat).SetFrac(x, new(big.Int).Mul(a.Denom(), b.Denom()))
}

// intersect is the numbers in both. ok is false where it is seen to be none.
func (s numberSet) intersect(other numberSet) (out numberSet, ok bool) {
	out = s
	if m := other.minimum; m != nil {
		if out.minimum == nil || m.Compare(*out.minimum) > 0 {
			out.minimum, out.exclusiveMinimum = m, other.exclusiveMinimum
		} else if m.Compare(*out.minimum) == 0 {
			out.exclusiveMinimum = out.exclusiveMinimum || other.exclusiveMinimum
		}
	}
	if m := other.maximum; m != nil {
		if out.maximum == nil || m.Compare(*out.maximum) < 0 {
			out.maximum, out.exclusiveMaximum = m, other.exclusiveMaximum
		} else if m.Compare(*out.maximum) == 0 {
			out.exclusiveMaximum = out.exclusiveMaximum || other.exclusiveMaximum
		}
	}
	switch {
	case out.multiple == nil:
		out.multiple = other.multiple
	case other.multiple != nil:
		out.multiple = leastCommonMultiple(out.multiple, other.multiple)
	}
	if out.origin.Keyword != "multipleOf" && other.origin.Keyword != "" {
		out.origin = other.origin
	}
	out.not = slices.Concat(out.not, other.not)
	out.excluded = slices.Concat(out.excluded, other.excluded)
	if !out.listed {
		out.listed, out.values = other.listed, other.values
	} else if other.listed {
		values := out.values
		out.values = nil
		for _, v := range values {
			if slices.ContainsFunc(other.values, func(w jsonvalue.Decimal) bool { return v.Compare(w) == 0 }) {
				out.values = append(out.values, v)
			}
		}
	}
	return out.tidy()
}

// tidy lists the values where there are few, and drops what says nothing. ok is false where the set is seen to be empty.
func (s numberSet) tidy() (numberSet, bool) {
	if !s.listed && s.minimum != nil && s.maximum != nil {
		c := s.minimum.Compare(*s.maximum)
		if c > 0 || c == 0 && (s.exclusiveMinimum || s.exclusiveMaximum) {
			return s, false
		}
		if c == 0 {
			s.listed, s.values = true, []jsonvalue.Decimal{*s.minimum}
		} else if s.multiple != nil {
			if values, few := s.multiplesBetween(); few {
				s.listed, s.values = true, values
			}
		}
	}
	if s.listed {
		all := s
		s = numberSet{listed: true}
		for _, v := range all.values {
			if all.has(v) {
				s.values = append(s.values, v)
			}
		}
		return s, len(s.values) > 0
	}
	for _, n := range s.not {
		if s.multiple != nil && new(big.Rat).Quo(s.multiple, n).IsInt() {
			return s, false
		}
	}
	return s, true
}

// fewMultiples is up to how many numbers between bounds are listed.
const fewMultiples = 64

func (s numberSet) multiplesBetween() ([]jsonvalue.Decimal, bool) {
	low, ok := s.minimum.Rat(maxExactDigits)
	high, ok2 := s.maximum.Rat(maxExactDigits)
	if !ok || !ok2 {
		return nil, false
	}
	first := floor(new(big.Rat).Quo(low, s.multiple))
	if new(big.Rat).Mul(new(big.Rat).SetInt(first), s.multiple).Cmp(low) < 0 {
		first.Add(first, big.NewInt(1))
	}
	last := floor(new(big.Rat).Quo(high, s.multiple))
	count := new(big.Int).Sub(last, first)
	if count.Cmp(big.NewInt(fewMultiples)) >= 0 {
		return nil, false
	}
	var values []jsonvalue.Decimal
	for k := new(big.Int).Set(first); k.Cmp(last) <= 0; k.Add(k, big.NewInt(1)) {
		values = append(values, decimalOf(new(big.Rat).Mul(new(big.Rat).SetInt(k), s.multiple)))
	}
	return values, true
}

func floor(r *big.Rat) *big.Int {
	q, m := new(big.Int).DivMod(r.Num(), r.Denom(), new(big.Int)) // Euclidean: the remainder is never below 0
	_ = m
	return q
}

// opposite is the numbers that are not in the set, as a union.
func (s numberSet) opposite() []numberSet {
	var out []numberSet
	if s.minimum != nil {
		out = append(out, numberSet{maximum: s.minimum, exclusiveMaximum: !s.exclusiveMinimum})
	}
	if s.maximum != nil {
		out = append(out, numberSet{minimum: s.maximum, exclusiveMinimum: !s.exclusiveMaximum})
	}
	if s.multiple != nil {
		out = append(out, numberSet{not: []*big.Rat{s.multiple}, origin: s.origin})
	}
	for _, n := range s.not {
		out = append(out, numberSet{multiple: n, origin: s.origin})
	}
	if s.listed {
		out = append(out, numberSet{excluded: s.values})
	}
	if len(s.excluded) > 0 {
		out = append(out, numberSet{listed: true, values: s.excluded})
	}
	return out
}
