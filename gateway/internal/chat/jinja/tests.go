package jinja

// testFunc is a test: what stands behind "is".
type testFunc func(r *run, v Value, a callArgs) bool

// tests are the tests by name. Filled in init because two of them look into it.
var tests map[string]testFunc

func init() {
	tests = map[string]testFunc{
		"boolean":     plainTest(func(v Value) bool { _, ok := v.(Bool); return ok }),
		"callable":    plainTest(isCallable),
		"defined":     plainTest(func(v Value) bool { return !isUndefined(v) }),
		"divisibleby": func(r *run, v Value, a callArgs) bool { return r.equal(r.binary("%", v, operand(a)), Int(0)) },
		"escaped":     plainTest(func(v Value) bool { _, ok := v.(markup); return ok }),
		"even":        countedTest(func(r *run, v Value) bool { return r.equal(r.binary("%", v, Int(2)), Int(0)) }),
		"false":       plainTest(func(v Value) bool { return v == Bool(false) }),
		"filter": func(r *run, v Value, a callArgs) bool {
			a.positional("filter", 0)
			r.hashKey(v)
			name, _ := text(v)
			return filters[name] != nil
		},
		"float": plainTest(isFloat),
		"in":    func(r *run, v Value, a callArgs) bool { return r.contains(operand(a), v) },
		"integer": plainTest(func(v Value) bool {
			_, isBool := v.(Bool)
			_, ok := integer(v)
			return ok && !isBool
		}),
		"iterable": countedTest(func(r *run, v Value) bool { _, ok := r.iterator(v); return ok }),
		"lower":    countedTest(func(r *run, v Value) bool { s := r.toStr(v); r.work(8 * len(s)); return isLowerText(s) }),
		"mapping":  plainTest(func(v Value) bool { _, ok := v.(*Dict); return ok }),
		"none":     plainTest(func(v Value) bool { return v == None }),
		"number":   plainTest(isNumber),
		"odd":      countedTest(func(r *run, v Value) bool { return r.equal(r.binary("%", v, Int(2)), Int(1)) }),
		"sameas":   func(_ *run, v Value, a callArgs) bool { return same(v, operand(a)) },
		"sequence": plainTest(isSequence),
		"string":   plainTest(func(v Value) bool { _, ok := text(v); return ok }),
		"test": func(r *run, v Value, a callArgs) bool {
			a.positional("test", 0)
			r.hashKey(v)
			name, _ := text(v)
			return tests[name] != nil
		},
		"true":      plainTest(func(v Value) bool { return v == Bool(true) }),
		"undefined": plainTest(isUndefined),
		"upper":     countedTest(func(r *run, v Value) bool { s := r.toStr(v); r.work(8 * len(s)); return isUpperText(s) }),
	}
	for op, names := range map[string][]string{
		"==": {"==", "eq", "equalto"}, "!=": {"!=", "ne"}, ">": {">", "gt", "greaterthan"}, ">=": {">=", "ge"}, "<": {"<", "lt", "lessthan"}, "<=": {"<=", "le"},
	} {
		for _, name := range names {
			tests[name] = func(r *run, v Value, a callArgs) bool { return r.compare(op, v, operand(a)) }
		}
	}
}

// plainTest makes a test without arguments.
func plainTest(holds func(Value) bool) testFunc {
	return func(_ *run, v Value, a callArgs) bool {
		a.positional("test", 0)
		return holds(v)
	}
}

// countedTest is plainTest for tests that count their work.
func countedTest(holds func(*run, Value) bool) testFunc {
	return func(r *run, v Value, a callArgs) bool {
		a.positional("test", 0)
		return holds(r, v)
	}
}

// operand is the one argument that a test needs.
func operand(a callArgs) Value {
	args := a.positional("test", 1)
	if len(args) == 0 {
		throw(typeError, "the test misses its argument")
	}
	return args[0]
}

// isSequence: whatever has a length and can be subscripted, dictionaries and undefined values included.
func isSequence(v Value) bool {
	switch v.(type) {
	case Str, markup, *List, Tuple, *Dict, *rangeValue, *undefined, *groupTuple:
		return true
	}
	return false
}
