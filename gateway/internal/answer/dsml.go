package answer

import "strings"

// DSML is <｜DSML｜invoke name="N"><｜DSML｜parameter name="P" string="true">VALUE</｜DSML｜parameter></｜DSML｜invoke>, in a section.
const DSML Format = "dsml"

const (
	dsmlInvoke       = `<｜DSML｜invoke name="`
	dsmlInvokeEnd    = "</｜DSML｜invoke>"
	dsmlParameter    = `<｜DSML｜parameter name="`
	dsmlParameterEnd = "</｜DSML｜parameter>"
)

// dsmlSections are the openings of a section and their ends: DeepSeek V3.2 writes the first, V4 the second.
var dsmlSections, dsmlSectionEnds = []string{"<｜DSML｜function_calls>", "<｜DSML｜tool_calls>"}, []string{"</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"}

// dsml is the format of DeepSeek V3.2 and V4. A parameter says itself whether it is a string or JSON.
var dsml = definition{
	format:  DSML,
	signs:   func(template string) bool { return strings.Contains(template, "｜DSML｜") },
	openers: []opener{{text: dsmlSections[0]}, {text: dsmlSections[1]}},
	open: func(i int, c *calls) machine {
		d := &dsmlCalls{calls: c, close: dsmlSectionEnds[i]}
		d.expect(beforeInvoke, dsmlInvoke, d.close)
		return d
	},
}

// dsmlCalls reads the calls of a section.
type dsmlCalls struct {
	calls *calls
	close string

	state     dsmlState
	any       bool
	in        matcher
	head      []byte
	arguments parameters
	value     *valueWriter // nil: the parameter was given before
}

type dsmlState uint8

const (
	beforeInvoke dsmlState = iota
	inInvokeName
	inInvoke
	inParameterHead
	inParameterValue
)

// expect goes on in a state, looking for tags.
func (d *dsmlCalls) expect(s dsmlState, tags ...string) {
	d.state, d.in, d.head = s, matcher{texts: tags}, nil
}

func (d *dsmlCalls) feed(b byte) (progress, int) {
	switch d.state {
	case inInvokeName, inParameterHead:
		return d.inHead(b)
	}
	free, found := d.in.feed(b)
	if d.state == beforeInvoke {
		if strings.Trim(string(free), whiteSpace) != "" || found == d.close && !d.any {
			return done, len(free) + len(d.in.held) + len(found)
		}
		if found == d.close {
			return takeDone, 0
		}
		if found == "" && d.any && len(d.in.held) == 0 {
			return take, 0
		}
	}
	if d.state == inParameterValue {
		if d.value != nil && len(free) > 0 {
			d.value.add(free)
		}
		if found != "" && d.value != nil {
			d.value.end()
			d.value = nil
		}
	}
	switch found {
	case "":
	case dsmlInvoke:
		if d.state == inInvoke {
			d.arguments.end()
		}
		d.expect(inInvokeName)
	case dsmlParameter:
		d.expect(inParameterHead)
	case dsmlParameterEnd:
		d.expect(inInvoke, dsmlParameter, dsmlInvokeEnd, dsmlInvoke, d.close)
	case dsmlInvokeEnd:
		d.arguments.end()
		d.expect(beforeInvoke, dsmlInvoke, d.close)
	case d.close:
		d.arguments.end()
		return takeDone, 0
	}
	if d.state == beforeInvoke && found == "" || d.state == inInvokeName {
		return hold, 0
	}
	return take, 0
}

// inHead takes a byte of the head of a call or a parameter, up to ">".
func (d *dsmlCalls) inHead(b byte) (progress, int) {
	if b != '>' {
		d.head = append(d.head, b)
		if len(d.head) > maxHead || b == '\n' {
			return d.broken()
		}
		return d.held(), 0
	}
	name, attribute, ok := strings.Cut(string(d.head), `"`)
	if !ok || name == "" {
		return d.broken()
	}
	if d.state == inInvokeName {
		d.any = true
		d.calls.begin(name, "")
		d.arguments = parameters{calls: d.calls, schema: d.calls.schema(name)}
		d.expect(inInvoke, dsmlParameter, dsmlInvokeEnd, dsmlInvoke, d.close)
		return take, 0
	}
	d.value = d.arguments.begin(name)
	if d.value != nil {
		switch strings.Trim(attribute, whiteSpace) {
		case `string="true"`:
			d.value.types = stringType
		case `string="false"`:
			d.value.types = anyJSON
		}
	}
	d.expect(inParameterValue, dsmlParameterEnd, dsmlInvokeEnd, d.close)
	return take, 0
}

// broken is a head that is none: without a call it is text, in one it is left out.
func (d *dsmlCalls) broken() (progress, int) {
	if d.state == inInvokeName {
		return done, 1
	}
	d.expect(inInvoke, dsmlParameter, dsmlInvokeEnd, dsmlInvoke, d.close)
	return take, 0
}

// held is what becomes of a head's byte.
func (d *dsmlCalls) held() progress {
	if d.state == inInvokeName {
		return hold
	}
	return take
}

func (d *dsmlCalls) finish(cut bool) (text bool) {
	switch {
	case d.state == beforeInvoke:
		return !d.any
	case d.state == inInvokeName:
		return true
	case cut:
		return false
	}
	if d.value != nil {
		d.value.add(d.in.held)
		d.value.end()
	}
	d.arguments.end()
	return false
}
