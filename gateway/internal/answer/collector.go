package answer

import "strings"

// Collector puts the events of a stream together as they come. The zero value is ready.
type Collector struct {
	content, reasoning strings.Builder
	calls              []Call
	arguments          []*strings.Builder
}

// Add takes the next events.
func (c *Collector) Add(events []Event) {
	for _, e := range events {
		switch e.Kind {
		case Reasoning:
			c.reasoning.WriteString(e.Text)
		case Content:
			c.content.WriteString(e.Text)
		case CallBegin:
			c.calls = append(c.calls, Call{ID: e.ID, Name: e.Name})
			c.arguments = append(c.arguments, new(strings.Builder))
		case CallArguments:
			c.arguments[e.Index].WriteString(e.Text)
		case CallEnd:
			c.calls[e.Index].Ended = true
		}
	}
}

// Answer is what has come so far.
func (c *Collector) Answer() Answer {
	a := Answer{Calls: c.calls}
	for i := range a.Calls {
		a.Calls[i].Arguments = c.arguments[i].String()
	}
	if c.content.Len() > 0 {
		s := c.content.String()
		a.Content = &s
	}
	if c.reasoning.Len() > 0 {
		s := c.reasoning.String()
		a.Reasoning = &s
	}
	return a
}
