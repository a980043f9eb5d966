package answer

import "strings"

// maxHeld bounds, in bytes, what is held back while it is uncertain whether it is a call. Beyond it the text is content.
const maxHeld = 64 << 10

// mode is which kind of text the reader is in.
type mode uint8

const (
	atBeginning mode = iota // of an answer that may open its reasoning, or repeats the opening tag
	inReasoning
	inContent
)

// Reader reads one answer. It is not safe for concurrent use.
//
// What may still turn out to be something else is held back: the beginning of a tag, white space that is dropped if a call or a tag follows, a call until its
// name is certain. Everything else is given out at once. Time and memory are linear in the text.
type Reader struct {
	options    Options
	definition *definition // nil: no calls are read
	out        output
	mode       mode
	patterns   []pattern // what is looked for in this mode
	first      [256]bool // the bytes with which the patterns begin

	space   []unit // white space that is held back
	partial []unit // what may become one of the patterns
	cut     cutting
	last    byte // the byte before partial; '\n' at the beginning and behind calls
	blank   bool // no content but white space has been given out or held back

	machine   machine // reads a call, or is nil
	candidate []unit  // what the machine holds
	calls     int     // that have begun
	repeated  int     // parameters that were given again
	open      bool    // the last call is not ended
	done      bool
	schemas   map[string]*toolSchema // of the tools that were called

	pieces          int // pushed
	partialAt       int // the piece in which partial begins
	candidateAt     int // the piece in which the candidate begins
	reasoningPieces int
	everReasoned    bool
	unclosed        bool // a call ended the reasoning: the closing tag may come yet
}

// cutting says which white space is dropped next.
type cutting uint8

const (
	cutNothing cutting = iota
	cutNewline         // one newline, behind the opening tag
	cutSpace           // all of it, behind the closing tag
)

// pattern is a text that is looked for, and what it is.
type pattern struct {
	text  string
	place place
	what  int // an index of the definition's openers, or patternOpen, patternClose, patternNoise
}

const (
	patternOpen = -1 - iota
	patternClose
	patternNoise
)

// NewReader makes a reader for one answer.
func NewReader(o Options) *Reader {
	r := &Reader{options: o, last: '\n', blank: true}
	if d := definitionOf(o.Format); o.ReadCalls || d != nil && d.channels && o.Tags.Open != "" {
		r.definition = d
	}
	switch {
	case r.channels() && r.inside():
		r.enter(inReasoning)
	case r.channels():
		r.enter(inContent)
	case o.State == Underway:
		r.blank, r.last = false, 0
		r.enter(inContent)
	case o.Tags.Open == "" || o.State == Over:
		r.enter(inContent)
	default:
		r.enter(atBeginning)
	}
	if o.State == Opened && r.inside() {
		r.cut = cutNewline
	}
	if o.Lead != "" {
		r.blank = false
		r.out.add(Content, 0, o.Lead)
	}
	return r
}

// enter changes the mode.
func (r *Reader) enter(m mode) {
	r.mode = m
	r.patterns = r.patterns[:0]
	tags := !r.channels()
	if tags && m == atBeginning {
		r.patterns = append(r.patterns, pattern{text: r.options.Tags.Open, what: patternOpen})
	}
	if tags && (m == inReasoning || m == atBeginning && r.inside() || m == inContent && r.unclosed) {
		r.patterns = append(r.patterns, pattern{text: r.options.Tags.Close, what: patternClose})
	}
	if r.definition != nil {
		for i, o := range r.definition.openers {
			if o.bare && r.options.TaggedOnly || r.options.HeldCalls && r.thinking() && !r.channels() {
				continue
			}
			r.patterns = append(r.patterns, pattern{text: o.text, place: o.place, what: i})
		}
		for _, text := range r.definition.noise {
			r.patterns = append(r.patterns, pattern{text: text, what: patternNoise})
		}
	}
	r.first = [256]bool{}
	for _, p := range r.patterns {
		r.first[p.text[0]] = true
	}
}

// channels says whether the format has its own way to write reasoning.
func (r *Reader) channels() bool { return r.definition != nil && r.definition.channels }

// channel goes on in reasoning or in content, if reasoning is read.
func (r *Reader) channel(reasoning bool) bool {
	if r.options.Tags.Open == "" {
		return false
	}
	if r.thinking() {
		r.giveSpace()
		r.reasoningPieces = r.pieces
	}
	r.everReasoned = r.everReasoned || reasoning
	if reasoning {
		r.enter(inReasoning)
	} else {
		r.enter(inContent)
	}
	return true
}

// inside says whether the prompt ends in reasoning.
func (r *Reader) inside() bool {
	return r.options.Tags.Open != "" && (r.options.State == Opened || r.options.State == Inside)
}

// thinking says whether text is reasoning now.
func (r *Reader) thinking() bool { return r.mode == inReasoning || r.mode == atBeginning && r.inside() }

// Push takes the next piece of the text and gives what is certain now. Pieces may be cut anywhere; a caller that counts pushes one for each token, with ""
// where a token gives no text. special says that the piece is the text of a special token: it can be a tag or a part of one.
func (r *Reader) Push(text string, special bool) []Event {
	r.pieces++
	for i := 0; i < len(text) && !r.done; i++ {
		r.feed(unit{text[i], special})
	}
	if r.thinking() {
		r.reasoningPieces = r.pieces
	}
	return r.out.take(false)
}

// Finish ends the text and gives the rest. cut says that it was cut by a limit or a stop string; else the model ended it, and a call that only lacks its end
// is whole.
func (r *Reader) Finish(cut bool) []Event {
	if r.machine != nil && !r.done {
		text := r.machine.finish(cut)
		r.machine = nil
		if text {
			r.plain(r.candidate)
		}
		r.candidate = nil
	}
	if !r.done {
		r.plain(r.partial)
		r.partial = nil
		if r.calls == 0 || r.thinking() {
			r.giveSpace()
		}
	}
	r.done = true
	return r.out.take(true)
}

// Reasoning says whether the text is in reasoning now. The opening and the closing tag belong to it.
func (r *Reader) Reasoning() bool { return r.thinking() }

// ReasoningPieces is how many of the pushed pieces are reasoning, from the first up to and with the one that ends the closing tag.
func (r *Reader) ReasoningPieces() int {
	if !r.everReasoned && !r.inside() {
		return 0
	}
	return r.reasoningPieces
}

// Calls is how many calls have begun.
func (r *Reader) Calls() int { return r.calls }

// Open says whether the last call is not ended: the text is, or was cut, inside of it.
func (r *Reader) Open() bool { return r.open }

// Repeated is how many parameters of calls were given again. The first of a name counts, since it may be given out already; the others are dropped.
func (r *Reader) Repeated() int { return r.repeated }

// Done says that Options.MaxCalls calls are read, with what closes them: nothing that follows is wanted, and pushing it gives nothing.
func (r *Reader) Done() bool { return r.done }

// feed takes one byte.
func (r *Reader) feed(u unit) {
	if r.machine == nil {
		r.text(u)
		return
	}
	r.candidate = append(r.candidate, u)
	p, back := r.machine.feed(u.b)
	switch {
	case p == take:
		r.candidate = r.candidate[:0]
	case p == takeDone:
		r.candidate = r.candidate[:0]
		r.leave(0)
	case p == done:
		r.leave(back)
	case len(r.candidate) > maxHeld:
		r.leave(0)
	}
}

// leave ends the machine: what it held is text, and the last units are read again.
func (r *Reader) leave(back int) {
	r.machine = nil
	held := r.candidate
	r.candidate = nil
	if r.full() {
		r.done = true
		return
	}
	r.plain(held[:len(held)-back])
	for _, u := range held[len(held)-back:] {
		if r.done {
			return
		}
		r.feed(u)
	}
}

// full says whether there are as many calls as are wanted.
func (r *Reader) full() bool { return r.options.MaxCalls > 0 && r.calls >= r.options.MaxCalls }

// text takes one byte outside of calls.
func (r *Reader) text(u unit) {
	if len(r.partial) == 0 {
		if !r.first[u.b] {
			r.plainUnit(u)
			return
		}
		r.partialAt = r.pieces
	}
	r.partial = append(r.partial, u)
	for len(r.partial) > 0 {
		p, whole := r.match()
		if whole {
			r.found(p)
			return
		}
		if p != nil {
			return
		}
		first := r.partial[0]
		r.partial = append(r.partial[:0], r.partial[1:]...)
		r.plainUnit(first)
	}
}

// match finds a pattern of which partial is the beginning, or all.
func (r *Reader) match() (found *pattern, whole bool) {
	for i := range r.patterns {
		p := &r.patterns[i]
		if len(r.partial) > len(p.text) || !begins(p.text, r.partial) || !r.counts(p.place) {
			continue
		}
		if len(r.partial) == len(p.text) {
			return p, true
		}
		found = p
	}
	return found, false
}

// begins says whether text begins with the units.
func begins(text string, units []unit) bool {
	for i, u := range units {
		if text[i] != u.b {
			return false
		}
	}
	return true
}

// counts says whether a pattern that begins here is at its place.
func (r *Reader) counts(p place) bool {
	switch p {
	case atLineStart:
		return r.last == '\n' && !r.thinking()
	case atStart:
		return r.blank && r.calls == 0 && !r.thinking()
	}
	return true
}

// found acts on a pattern.
func (r *Reader) found(p *pattern) {
	tag := r.partial
	r.partial = nil
	switch p.what {
	case patternOpen:
		r.space, r.cut, r.everReasoned = nil, cutNewline, true
		r.enter(inReasoning)
	case patternClose:
		if !r.unclosed {
			r.reasoningPieces = r.pieces
		}
		r.space, r.cut = nil, cutSpace
		r.last, r.everReasoned, r.unclosed = '\n', true, false
		r.enter(inContent)
	case patternNoise:
		if r.channels() && r.thinking() {
			r.channel(false)
		}
	default:
		r.candidate, r.candidateAt = tag, r.partialAt
		r.machine = r.definition.open(p.what, &calls{r})
	}
}

// plain takes text that is nothing else.
func (r *Reader) plain(units []unit) {
	for _, u := range units {
		r.plainUnit(u)
	}
}

// plainUnit takes a byte of text. White space is held back until something else follows.
func (r *Reader) plainUnit(u unit) {
	if u.special && r.options.SkipSpecial {
		return
	}
	r.last = u.b
	switch {
	case r.cut == cutNewline && u.b == '\n', r.cut == cutSpace && strings.IndexByte(whiteSpace, u.b) >= 0:
		if r.cut == cutNewline {
			r.cut = cutNothing
		}
		return
	case strings.IndexByte(whiteSpace, u.b) >= 0:
		if r.cut == cutNewline {
			r.cut = cutNothing
		}
		r.space = append(r.space, u)
		return
	}
	r.cut = cutNothing
	if r.mode == atBeginning {
		if r.inside() {
			r.enter(inReasoning)
		} else {
			r.enter(inContent)
		}
	}
	r.giveSpace()
	r.give(u)
}

// giveSpace gives out the white space that is held back.
func (r *Reader) giveSpace() {
	for _, u := range r.space {
		r.give(u)
	}
	r.space = r.space[:0]
}

// give gives out one byte.
func (r *Reader) give(u unit) {
	if r.thinking() {
		r.everReasoned = true
		r.out.addByte(Reasoning, 0, u.b)
		return
	}
	r.blank = false
	r.out.addByte(Content, 0, u.b)
}

// beginCall is a machine's word that a call is certain.
func (r *Reader) beginCall(name, id string) {
	if r.full() {
		r.done = true
	}
	if r.done {
		return
	}
	if r.mode != inContent {
		if r.thinking() {
			r.reasoningPieces, r.unclosed = r.candidateAt-1, true
		}
		r.enter(inContent)
	}
	r.space = r.space[:0]
	r.candidate = r.candidate[max(0, len(r.candidate)-1):] // what becomes of the byte that was fed is not said yet
	r.cut, r.last = cutNothing, '\n'
	if r.blank {
		r.cut = cutSpace // content begins with something to read
	}
	if id == "" {
		id = r.newID()
	}
	r.calls++
	r.open = true
	r.out.event(Event{Kind: CallBegin, Index: r.calls - 1, ID: id, Name: name})
}

// newID makes an id for a call that has none.
func (r *Reader) newID() string {
	switch {
	case r.options.NewID != nil:
		return r.options.NewID()
	case r.definition.newID != nil:
		return r.definition.newID()
	}
	return NewID()
}

func (r *Reader) callArguments(text string) {
	if !r.done && r.open && text != "" {
		r.out.add(CallArguments, r.calls-1, text)
	}
}

func (r *Reader) callArgumentByte(b byte) {
	if !r.done && r.open {
		r.out.addByte(CallArguments, r.calls-1, b)
	}
}

func (r *Reader) endCall() {
	if !r.done && r.open {
		r.open = false
		r.out.event(Event{Kind: CallEnd, Index: r.calls - 1})
	}
}
