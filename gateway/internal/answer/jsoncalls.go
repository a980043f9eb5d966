package answer

import "strings"

// jsonCalls reads calls that are JSON objects: one, several behind each other, or a list of them.
type jsonCalls struct {
	calls *calls
	// opening and closing are the tags around the calls; either may be "".
	opening, closing string
	// ids says that an id that the model wrote is the call's.
	ids bool
	// lists says that a list of calls is taken.
	lists bool
	// separators may stand between two objects, besides white space.
	separators string

	state     jsonState
	object    *callObject
	element   scanner // of a list, if it is no object
	inList    bool
	any       bool   // a call has begun
	partial   []byte // of the closing tag
	separated bool   // a separator has been read
}

type jsonState uint8

const (
	beforeCalls  jsonState = iota // white space
	inObject                      // in a call, or what may be one
	inElement                     // in a list's element that is no object
	beforeNext                    // in a list, behind '[' or ','
	afterElement                  // in a list
	afterCalls                    // behind an object or list: what closes it
)

func (j *jsonCalls) feed(b byte) (progress, int) {
	switch j.state {
	case beforeCalls:
		switch {
		case isSpace(b):
			return hold, 0
		case b == '{':
			return j.begin(), 0
		case b == '[' && j.lists:
			j.inList, j.state = true, beforeNext
			return hold, 0
		}
		return done, 1
	case inObject:
		return j.inObject(b)
	case inElement:
		switch j.element.feed(b) {
		case ended:
			j.state = afterElement
		case before:
			j.state = afterElement
			return j.feed(b)
		case invalid:
			return j.wrong(b)
		}
		return j.skipped(), 0
	case beforeNext, afterElement:
		return j.inBrackets(b)
	}
	return j.after(b)
}

// begin begins an object. Its opening brace is held until it is certain that it is a call.
func (j *jsonCalls) begin() progress {
	j.state = inObject
	j.object = &callObject{calls: j.calls, takes: j.ids}
	for _, s := range []string{j.closing, j.opening} {
		if s != "" {
			j.object.stops = append(j.object.stops, s)
		}
	}
	return j.skipped()
}

// skipped is what becomes of bytes that are not certain to be a call: beside a call in a list they are left out.
func (j *jsonCalls) skipped() progress {
	if j.inList && j.any {
		return take
	}
	return hold
}

func (j *jsonCalls) inObject(b byte) (progress, int) {
	result := j.object.feed(b)
	j.any = j.any || j.object.begun
	if !j.object.begun && !j.inList {
		switch result {
		case broken:
			return done, 1
		case closed:
			return done, 0
		case atStop:
			return done, len(j.object.stopped)
		}
	}
	switch result {
	case closed:
		switch {
		case j.inList:
			j.state = afterElement
		case j.closing == "" && j.calls.full():
			return takeDone, 0
		default:
			j.state = afterCalls
		}
	case broken:
		return j.wrong(b)
	case atStop:
		if !j.any {
			return done, len(j.object.stopped)
		}
		if j.object.stopped == j.closing {
			return takeDone, 0
		}
		j.state, j.inList = beforeCalls, false
		return hold, 0
	}
	if j.object.begun && !j.object.atTag() {
		return take, 0
	}
	return j.skipped(), 0
}

// wrong is a byte that cannot be where it is: with a call before it the call stands.
func (j *jsonCalls) wrong(b byte) (progress, int) {
	if !j.any {
		return done, 1
	}
	j.state, j.inList = afterCalls, false
	return j.after(b)
}

// inBrackets takes what stands between the elements of a list.
func (j *jsonCalls) inBrackets(b byte) (progress, int) {
	switch {
	case isSpace(b):
	case b == ']':
		if !j.any {
			return done, 0
		}
		j.state, j.inList = afterCalls, false
		return take, 0
	case j.state == afterElement && b == ',':
		j.state = beforeNext
	case j.state == beforeNext && b == '{':
		return j.begin(), 0
	case j.state == beforeNext:
		j.state, j.element = inElement, scanner{strict: true}
		if j.element.feed(b) == invalid {
			return j.wrong(b)
		}
	default:
		return j.wrong(b)
	}
	return j.skipped(), 0
}

// after takes what stands behind an object or list: white space and braces too many are dropped, the closing tag ends the machine, another object may be
// another call.
func (j *jsonCalls) after(b byte) (progress, int) {
	if len(j.partial) == 0 {
		switch {
		case isSpace(b) && j.separated:
			return hold, 0
		case isSpace(b), b == '}' && !j.separated:
			return take, 0
		case b == '{':
			j.separated = false
			return j.begin(), 0
		case strings.IndexByte(j.separators, b) >= 0 && !j.separated:
			j.separated = true
			return hold, 0
		}
	}
	j.partial = append(j.partial, b)
	switch {
	case j.closing == "" || !strings.HasPrefix(j.closing, string(j.partial)):
		return done, len(j.partial)
	case len(j.partial) == len(j.closing):
		return takeDone, 0
	}
	return hold, 0
}

func (j *jsonCalls) finish(bool) (text bool) {
	if j.state == inObject && j.object.begun {
		j.object.finish()
		return false
	}
	return !j.any || j.state == inObject || j.state == beforeCalls
}
