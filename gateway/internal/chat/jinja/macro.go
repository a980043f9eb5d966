package jinja

// macro is a callable body: a macro, or what a call block hands to the macro it calls.
type macro struct {
	name    string // empty for the body of a call block
	body    *macroBody
	closure *activation
}

func (*macro) TypeName() string { return "Macro" }

// attr is an attribute of the macro itself.
func (m *macro) attr(name string) (Value, bool) {
	switch name {
	case "name":
		if m.name == "" {
			return None, true
		}
		return Str(m.name), true
	case "arguments":
		out := Tuple{}
		for _, param := range m.body.params {
			out = append(out, Str(param))
		}
		return out, true
	case "catch_kwargs":
		return Bool(m.body.wantsKeywords), true
	case "catch_varargs":
		return Bool(m.body.wantsPositional), true
	case "caller":
		return Bool(m.body.wantsCaller), true
	}
	return nil, false
}

// call binds the arguments as jinja2 does and returns what the body prints.
func (m *macro) call(r *run, a callArgs) Value {
	r.enter()
	defer r.leave()
	b := m.body
	vars := r.newActivation(b.function, m.closure)
	named := a.named
	take := func(name string) Value {
		r.allocEach(len(named), valueBytes)
		for i, k := range named {
			if k.name == name {
				named = append(append([]keyword{}, named[:i]...), named[i+1:]...)
				return k.value
			}
		}
		return nil
	}
	explicitCaller := false
	for i, param := range b.params {
		explicitCaller = explicitCaller || param == "caller"
		if i < len(a.args) {
			*vars.at(b.slots[i]) = a.args[i]
		} else {
			*vars.at(b.slots[i]) = take(param)
		}
	}
	if b.wantsCaller && !explicitCaller {
		caller := take("caller")
		if caller == nil || caller == None {
			caller = undefinedHint("No caller defined")
		}
		*vars.at(b.callerSlot) = caller
	}
	if b.wantsKeywords {
		*vars.at(b.keywordsSlot) = callArgs{named: named}.dict(r)
	} else if len(named) > 0 {
		throw(typeError, "macro '%s' takes no keyword argument '%s'", m.name, named[0].name)
	}
	if b.wantsPositional {
		*vars.at(b.positionalSlot) = Tuple(a.args[min(len(a.args), len(b.params)):])
	} else if len(a.args) > len(b.params) {
		throw(typeError, "macro '%s' takes not more than %d argument(s)", m.name, len(b.params))
	}
	at := r.at
	text := r.capture(func() {
		r.enterFrame(vars, b.frame)
		m.defaults(r, vars)
		r.exec(b.body, vars)
	})
	r.at = at
	return Str(text)
}

// defaults gives the parameters that were not passed their values, in order, so that one may use those before it.
func (m *macro) defaults(r *run, vars *activation) {
	b := m.body
	for i, param := range b.params {
		slot := vars.at(b.slots[i])
		if *slot != nil {
			continue
		}
		if d := i - len(b.params) + len(b.defaults); d >= 0 {
			*slot = r.eval(b.defaults[d], vars)
		} else {
			*slot = &undefined{hint: "parameter " + reprString(param) + " was not provided", name: Str(param), class: undefinedError}
		}
	}
}
