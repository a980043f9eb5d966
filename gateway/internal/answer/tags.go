package answer

import "strings"

// Tags enclose a model's reasoning. The zero value is none.
type Tags struct{ Open, Close string }

// knownTags in the order in which they are looked for.
var knownTags = []Tags{{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}}

// TagsOf finds the reasoning tags that a chat template writes.
func TagsOf(template string) Tags {
	if harmony.signs(template) {
		return harmonyTags
	}
	for _, t := range knownTags {
		if strings.Contains(template, t.Close) {
			return t
		}
	}
	return Tags{}
}

// State is where an answer begins.
type State uint8

const (
	// MayOpen is an answer that may begin with an opening tag.
	MayOpen State = iota
	// Opened is right behind an opening tag: a newline that comes first belongs to the tag.
	Opened
	// Inside is in the middle of reasoning.
	Inside
	// Over is where reasoning is over and content begins.
	Over
	// Underway is in the middle of content: a turn that is continued.
	Underway
)

const whiteSpace = " \t\r\n\v\f"

// At says where an answer begins whose rendered prompt ends with a generation prompt: behind an opening tag it is reasoning, behind a closing tag that is over.
func (t Tags) At(prompt string) State {
	if t.Open == "" {
		return MayOpen
	}
	end := strings.TrimRight(prompt, whiteSpace)
	switch {
	case strings.HasSuffix(end, t.Open) && end == prompt:
		return Opened
	case strings.HasSuffix(end, t.Open):
		return Inside
	case strings.HasSuffix(end, t.Close):
		return Over
	}
	return MayOpen
}

// Continued says where an answer begins that goes on with a turn of which turn is rendered already, without what stands before it in the prompt.
func (t Tags) Continued(turn string) State {
	s := t.At(turn)
	if s != MayOpen || strings.Trim(turn, whiteSpace) == "" {
		return s
	}
	if t.Open != "" {
		if opened, closed := strings.LastIndex(turn, t.Open), strings.LastIndex(turn, t.Close); opened > closed {
			return Inside
		}
	}
	return Underway
}

// Behind is what stands in a raw text behind its thoughts, if it begins with some that have ended; else all of it.
func (t Tags) Behind(text string) string {
	if t.Open == "" || !strings.HasPrefix(strings.TrimLeft(text, whiteSpace), t.Open) {
		return text
	}
	_, rest, closed := strings.Cut(text, t.Close)
	if !closed {
		return text
	}
	return strings.TrimLeft(rest, whiteSpace)
}

// Opening is the opening tag, with the white space behind it, that a prompt ends with, or "". Clients that want the raw text get it in front of the answer.
func (t Tags) Opening(prompt string) string {
	if t.Open == "" {
		return ""
	}
	if end := strings.TrimRight(prompt, whiteSpace); strings.HasSuffix(end, t.Open) {
		return prompt[len(end)-len(t.Open):]
	}
	return ""
}
