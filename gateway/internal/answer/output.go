package answer

import "unicode/utf8"

// output gathers events: what follows itself becomes one event, and texts are cut at whole characters only.
type output struct {
	events []Event
	text   []byte // of an event that is not finished
	kind   Kind
	index  int
}

// add appends text of a kind; index is the call's.
func (o *output) add(kind Kind, index int, text string) {
	o.turn(kind, index)
	o.text = append(o.text, text...)
}

// addByte appends one byte.
func (o *output) addByte(kind Kind, index int, b byte) {
	o.turn(kind, index)
	o.text = append(o.text, b)
}

// turn begins text of another kind.
func (o *output) turn(kind Kind, index int) {
	if len(o.text) > 0 && (o.kind != kind || o.index != index) {
		o.give(len(o.text))
	}
	o.kind, o.index = kind, index
}

// event appends an event without text.
func (o *output) event(e Event) {
	o.give(len(o.text))
	o.events = append(o.events, e)
}

// give makes an event of the first n bytes of the text.
func (o *output) give(n int) {
	if n == 0 {
		return
	}
	o.events = append(o.events, Event{Kind: o.kind, Index: o.index, Text: string(o.text[:n])})
	o.text = append(o.text[:0], o.text[n:]...)
}

// take gives the events so far. Unless the text is at its end, the beginning of a character stays.
func (o *output) take(end bool) []Event {
	n := len(o.text)
	for i := max(0, n-utf8.UTFMax+1); i < n && !end; i++ {
		if utf8.RuneStart(o.text[i]) && !utf8.FullRune(o.text[i:]) {
			n = i
		}
	}
	o.give(n)
	events := o.events
	o.events = nil
	return events
}
