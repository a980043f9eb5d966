package jinja

func (r *run) eval(e expr, a *activation) Value {
	r.descend()
	v := r.evalOne(e, a)
	r.ascend()
	return v
}

func (r *run) evalOne(e expr, a *activation) Value {
	r.step()
	switch e := e.(type) {
	case *constExpr:
		return e.value
	case *nameExpr:
		if v := *a.at(e.ref); v != nil {
			return v
		}
		r.alloc(objectBytes)
		return undefinedName(e.name)
	case *tupleExpr:
		return Tuple(r.evalAll(e.items, a))
	case *listExpr:
		return &List{r.evalAll(e.items, a)}
	case *dictExpr:
		d := &Dict{}
		r.allocEach(len(e.keys), entryBytes)
		for i, key := range e.keys {
			k := r.eval(key, a)
			d.set(r, k, r.eval(e.values[i], a))
		}
		return d
	case *condExpr:
		if truth(r.eval(e.test, a)) {
			return r.eval(e.then, a)
		}
		if e.otherwise == nil {
			return undefinedHint("the inline if-expression evaluated to false and no else section was defined.")
		}
		return r.eval(e.otherwise, a)
	case *logicExpr:
		left := r.eval(e.left, a)
		if truth(left) == e.isOr {
			return left
		}
		return r.eval(e.right, a)
	case *notExpr:
		return Bool(!truth(r.eval(e.operand, a)))
	case *binaryExpr:
		left := r.eval(e.left, a)
		right := r.eval(e.right, a)
		r.at = e
		return r.binary(e.op, left, right)
	case *signExpr:
		v := r.eval(e.operand, a)
		r.at = e
		return r.sign(v, e.negative)
	case *compareExpr:
		left := r.eval(e.first, a)
		for i, op := range e.ops {
			right := r.eval(e.rest[i], a)
			r.at = e
			if !r.compare(op, left, right) {
				return Bool(false)
			}
			left = right
		}
		return Bool(true)
	case *concatExpr:
		parts := make([]string, len(e.parts))
		values := r.evalAll(e.parts, a)
		r.at = e
		for i, v := range values {
			parts[i] = r.toStr(v)
		}
		return Str(r.join(parts, ""))
	case *attrExpr:
		object := r.eval(e.object, a)
		r.at = e
		return r.getAttr(object, e.attr)
	case *itemExpr:
		object := r.eval(e.object, a)
		if s, ok := e.key.(*sliceExpr); ok {
			key := r.evalSlice(s, a)
			r.at = e
			return r.slice(object, key)
		}
		key := r.eval(e.key, a)
		r.at = e
		return r.getItem(object, key)
	case *sliceExpr:
		return r.evalSlice(e, a)
	case *callExpr:
		return r.evalCall(e, a, nil)
	case *filterExpr:
		return r.applyFilters(e, nil, a)
	case *testExpr:
		v := r.eval(e.operand, a)
		args := r.evalArgs(e, &e.arguments, a)
		r.at = e
		if e.test == nil {
			throw(runtimeError, "no test named %q", e.name)
		}
		return Bool(e.test(r, v, args))
	}
	panic("jinja: unknown expression")
}

func (r *run) evalAll(list []expr, a *activation) []Value {
	if len(list) == 0 {
		return nil
	}
	out := r.room(len(list))
	for _, e := range list {
		out = append(out, r.eval(e, a))
	}
	return out
}

func (r *run) evalSlice(e *sliceExpr, a *activation) *sliceValue {
	part := func(e expr) Value {
		if e == nil {
			return None
		}
		return r.eval(e, a)
	}
	return &sliceValue{part(e.start), part(e.stop), part(e.step)}
}

// evalArgs evaluates the arguments of a call, filter or test; extra ones come behind the named ones that are written out.
func (r *run) evalArgs(of expr, args *arguments, a *activation, extra ...keyword) callArgs {
	out := callArgs{args: r.evalAll(args.args, a)}
	if args.starArgs != nil {
		more := r.eval(args.starArgs, a)
		r.at = of
		out.args = append(out.args, r.items(more)...)
	}
	r.allocEach(len(args.names)+len(extra), valueBytes)
	for i, name := range args.names {
		out.named = append(out.named, keyword{name, r.eval(args.values[i], a)})
	}
	out.named = append(out.named, extra...)
	if args.starKeys != nil {
		d, ok := r.eval(args.starKeys, a).(*Dict)
		r.at = of
		if !ok {
			throw(typeError, "argument after ** must be a mapping")
		}
		for i := range d.Len() {
			key, value := d.At(i)
			name, ok := text(key)
			if !ok {
				throw(typeError, "keywords must be strings")
			}
			r.work(len(out.named))
			for _, k := range out.named {
				if k.name == name {
					throw(typeError, "got multiple values for keyword argument %q", name)
				}
			}
			r.alloc(valueBytes)
			out.named = append(out.named, keyword{name, value})
		}
	}
	return out
}

// evalCall calls; caller, where it is not nil, is the body of a call block.
func (r *run) evalCall(e *callExpr, a *activation, caller *macro) Value {
	function := r.eval(e.function, a)
	var extra []keyword
	if caller != nil {
		extra = []keyword{{"caller", caller}}
	}
	args := r.evalArgs(e, &e.arguments, a, extra...)
	r.at = e
	return r.call(function, args)
}

// applyFilters applies e and the filters that it stands on; text is the operand of the innermost one where that has none.
func (r *run) applyFilters(e *filterExpr, text Value, a *activation) Value {
	v := text
	if inner, ok := e.operand.(*filterExpr); ok {
		v = r.applyFilters(inner, text, a)
	} else if e.operand != nil {
		v = r.eval(e.operand, a)
	}
	args := r.evalArgs(e, &e.arguments, a)
	r.at = e
	if e.filter == nil {
		throw(runtimeError, "no filter named %q", e.name)
	}
	return e.filter(r, v, args)
}

func (r *run) sign(v Value, negative bool) Value {
	if u, ok := v.(*undefined); ok {
		u.fail()
	}
	if !isNumber(v) {
		throw(typeError, "bad operand type for unary sign: '%s'", v.TypeName())
	}
	if f, ok := v.(Float); ok {
		if negative {
			return -f
		}
		return f
	}
	if negative {
		return r.arithmetic("-", Int(0), v)
	}
	return r.arithmetic("+", Int(0), v)
}

// binary applies an arithmetic operator to any two values.
func (r *run) binary(op string, a, b Value) Value {
	if _, ok := text(a); ok && op == "%" {
		return r.percent(a, b)
	}
	for _, v := range []Value{a, b} {
		if u, ok := v.(*undefined); ok {
			u.fail()
		}
	}
	if isNumber(a) && isNumber(b) {
		return r.arithmetic(op, a, b)
	}
	switch op {
	case "+":
		return r.add(a, b)
	case "*":
		if _, ok := integer(a); ok {
			a, b = b, a
		}
		if _, ok := integer(b); ok {
			if v, ok := r.multiply(a, indexArg(b)); ok {
				return v
			}
		}
	case "-":
		if x, ok := a.(*dictView); ok && x.kind != "values" {
			throw(typeError, "set operations on dictionary views are not supported")
		}
	}
	unsupported(op, a, b)
	return nil
}

func (r *run) add(a, b Value) Value {
	s, aText := text(a)
	t, bText := text(b)
	if aText && bText {
		_, aMarked := a.(markup)
		_, bMarked := b.(markup)
		if !aMarked && !bMarked {
			return Str(r.join([]string{s, t}, ""))
		}
		if !aMarked {
			s = r.escapeHTML(s)
		}
		if !bMarked {
			t = r.escapeHTML(t)
		}
		return markup(r.join([]string{s, t}, ""))
	}
	if aText {
		throw(typeError, "can only concatenate str (not \"%s\") to str", b.TypeName())
	}
	if x, ok := a.(*List); ok {
		y, ok := b.(*List)
		if !ok {
			throw(typeError, "can only concatenate list (not \"%s\") to list", b.TypeName())
		}
		return &List{append(append(r.room(len(x.Items)+len(y.Items)), x.Items...), y.Items...)}
	}
	if x, y, ok := sequencePair(a, b); ok {
		return Tuple(append(append(r.room(len(x)+len(y)), x...), y...))
	}
	unsupported("+", a, b)
	return nil
}

// multiply repeats a string, list or tuple.
func (r *run) multiply(v Value, n int) (Value, bool) {
	repeatItems := func(items []Value) []Value {
		if n <= 0 || len(items) == 0 {
			return nil
		}
		r.allocEach(n, valueBytes*len(items))
		out := make([]Value, 0, n*len(items))
		for range n {
			out = append(out, items...)
		}
		return out
	}
	switch v := v.(type) {
	case Str:
		return Str(r.repeat(string(v), n)), true
	case markup:
		return markup(r.repeat(string(v), n)), true
	case *List:
		return &List{repeatItems(v.Items)}, true
	case Tuple:
		return Tuple(repeatItems(v)), true
	}
	return nil, false
}
