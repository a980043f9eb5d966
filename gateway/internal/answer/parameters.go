package answer

// parameters writes the arguments of a call whose format names parameters one by one.
type parameters struct {
	calls  *calls
	schema *toolSchema
	seen   map[string]bool
}

// begin begins a parameter. It gives nil for one that was given before: the first counts, since it is out already.
func (p *parameters) begin(name string) *valueWriter {
	if p.seen[name] {
		p.calls.repeated()
		return nil
	}
	prefix := ", "
	if p.seen == nil {
		p.seen = map[string]bool{}
		prefix = "{"
	}
	p.seen[name] = true
	return &valueWriter{types: p.schema.parameter(name), give: p.calls.arguments, prefix: prefix + `"` + escape([]byte(name)) + `": `}
}

// end ends the call.
func (p *parameters) end() {
	if p.seen == nil {
		p.calls.arguments("{")
	}
	p.calls.arguments("}")
	p.calls.end()
}
