package inference

import (
	"crypto/sha256"
	"errors"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// Memory is what was read and sampled up to and with an answer: the next turn's prompt then begins with the same tokens, as in a session. It is as long as the conversation.
type Memory struct {
	from     branch
	tokens   []int32
	rendered printed
	thoughts bool
	ended    int32

	text [sha256.Size]byte // of the tokens' text, once it is stored: another tokenizer gives another one
}

// memoryForm is the first byte of a stored memory.
const memoryForm = 1

// Memory is what the next turn's prompt can begin with, to be stored, once the answer has ended; nil where [Request.Keep] did not ask for it, or the answer was cut.
func (j *Job) Memory() []byte {
	if j.Prompt.memory == nil || j.Prompt.memory.last == nil {
		return nil
	}
	m := j.Prompt.memory.last
	text := sha256.Sum256([]byte(j.Model.Tokenizer.Decode(m.tokens, false)))
	e := pack.Encoder{B: []byte{memoryForm}}
	e.Bytes(m.from[:])
	e.Int32s(m.tokens)
	e.Int(int64(m.rendered.length))
	e.Bytes(m.rendered.sum[:])
	e.Bool(m.thoughts)
	e.Int(int64(m.ended))
	e.Bytes(text[:])
	return e.B
}

// DecodeMemory reads what [Job.Memory] gave; nil for nothing.
func DecodeMemory(b []byte) (*Memory, error) {
	if len(b) == 0 {
		return nil, nil
	}
	d := pack.NewDecoder(b)
	if d.Byte() != memoryForm {
		d.Fail()
	}
	m := &Memory{}
	sum := func(into *[sha256.Size]byte) {
		if v := d.Bytes(); copy(into[:], v) != len(into) || len(v) != len(into) {
			d.Fail()
		}
	}
	sum((*[sha256.Size]byte)(&m.from))
	m.tokens = d.Int32s()
	m.rendered.length = int(d.Int())
	sum(&m.rendered.sum)
	m.thoughts = d.Bool()
	m.ended = int32(d.Int())
	sum(&m.text)
	if err := d.End(); err != nil {
		return nil, err
	}
	if m.rendered.length < 0 {
		return nil, errors.New("a text has no negative length")
	}
	return m, nil
}

// fits tells whether the model's tokens are those that the memory was made with.
func (m *Memory) fits(b *budget.Budget, model *catalog.Model) bool {
	b.Renew(budget.Limits{})
	defer b.Renew(budget.Limits{})
	text, err := model.Tokenizer.DecodeWithin(b, m.tokens, false)
	return err == nil && sha256.Sum256([]byte(text)) == m.text
}

// turn is the memory as the turn of a session.
func (m *Memory) turn() *Turn {
	return &Turn{Read: m.tokens, rendered: m.rendered, thoughts: m.thoughts, ended: m.ended, length: len(m.tokens)}
}
