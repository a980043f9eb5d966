package jinja

import (
	"math"
	"math/big"
)

func filterRound(r *run, v Value, a callArgs) Value {
	args := a.bind("round", 0, "precision", "method")
	precision := optional(args[0], Int(0))
	method, _ := text(optional(args[1], Str("common")))
	if method != "common" && method != "ceil" && method != "floor" {
		throw(argumentError, "method must be common, ceil or floor, not %s", reprString(method))
	}
	if method == "common" {
		return r.roundValue(v, precision)
	}
	scale := r.binary("**", Int(10), precision)
	scaled := r.binary("*", v, scale)
	if !isNumber(scaled) {
		throw(typeError, "must be real number, not %s", scaled.TypeName())
	}
	if f, ok := scaled.(Float); ok {
		if method == "ceil" {
			scaled = floatToInt(math.Ceil(float64(f)))
		} else {
			scaled = floatToInt(math.Floor(float64(f)))
		}
	}
	return r.binary("/", scaled, scale)
}

// roundValue is Python's round(v, precision).
func (r *run) roundValue(v, precision Value) Value {
	if !isNumber(v) {
		throw(typeError, "type %s doesn't define __round__ method", v.TypeName())
	}
	if precision == None {
		if f, ok := v.(Float); ok {
			return floatToInt(math.RoundToEven(float64(f)))
		}
		return r.arithmetic("+", Int(0), v)
	}
	r.work(64 * evaluationSteps)
	places := indexArg(precision)
	if f, ok := v.(Float); ok {
		return Float(roundFloat(float64(f), int64(max(min(places, 1000), -1000))))
	}
	i, _ := integer(v)
	if places >= 0 {
		return normalInt(i)
	}
	if places < -5000 {
		return Int(0)
	}
	r.chargeBig(words(v) + min(-places, 5000)/16)
	unit := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-places)), nil)
	return normalInt(new(big.Int).Mul(roundRat(new(big.Rat).SetFrac(i, unit)), unit))
}

// filterAttr is foo|attr("bar"): the attribute only, never the element.
