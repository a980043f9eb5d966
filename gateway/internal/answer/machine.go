package answer

// A machine reads what stands behind a call's opening text, byte by byte.
type machine interface {
	// feed takes the next byte. With done the machine has ended and back says how many of the last bytes are not its own: they are read again as text.
	feed(b byte) (p progress, back int)
	// finish is the end of the text: cut short by a limit, or ended by the model. It says whether what the machine holds is text.
	finish(cut bool) (text bool)
}

// progress says what becomes of the byte that a machine was fed.
type progress uint8

const (
	// hold keeps the byte: it may be text yet.
	hold progress = iota
	// take makes everything up to and with the byte a part of the call.
	take
	// done ends the machine. What was held is text, but for the last bytes, which are read again.
	done
	// takeDone ends the machine with the byte as a part of the call.
	takeDone
)

// place says where an opening text counts.
type place uint8

const (
	anywhere    place = iota
	atLineStart       // and not in reasoning
	atStart           // nothing but white space before it
)

// opener is a text with which calls begin.
type opener struct {
	text  string
	place place
	bare  bool // it is the beginning of the call itself: its tag is missing
}

// unit is a byte of the text and whether it is one of a special token.
type unit struct {
	b       byte
	special bool
}

// calls is where a machine puts what it reads.
type calls struct{ reader *Reader }

// tools are those of the request.
func (c *calls) tools() []Tool { return c.reader.options.Tools }

// schema is that of a tool's arguments; nil if there is none.
func (c *calls) schema(name string) *toolSchema {
	s, ok := c.reader.schemas[name]
	if !ok {
		s = schemaOf(c.tools(), name)
		if c.reader.schemas == nil {
			c.reader.schemas = map[string]*toolSchema{}
		}
		c.reader.schemas[name] = s
	}
	return s
}

// begin says that a call is certain. id "" is a new one.
func (c *calls) begin(name, id string) { c.reader.beginCall(name, id) }

// arguments gives out a piece of the call's arguments.
func (c *calls) arguments(text string) { c.reader.callArguments(text) }

// argumentByte gives out one byte of them.
func (c *calls) argumentByte(b byte) { c.reader.callArgumentByte(b) }

// repeated says that a parameter was given again, and is dropped.
func (c *calls) repeated() { c.reader.repeated++ }

// full says whether there are as many calls as are wanted.
func (c *calls) full() bool { return c.reader.full() }

// channel goes on in reasoning or in content. It says false, and does nothing, if reasoning is not read.
func (c *calls) channel(reasoning bool) bool { return c.reader.channel(reasoning) }

// end says that the call's arguments are whole.
func (c *calls) end() { c.reader.endCall() }
