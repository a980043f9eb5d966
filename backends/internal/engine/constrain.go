package engine

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/constraint"
)

// SetVocabulary implements plugins.Backend.
func (e *Engine) SetVocabulary(_ context.Context, v plugins.Vocabulary) error {
	l, err := e.ifLoaded()
	if err != nil {
		return err
	}
	return l.rules.SetVocabulary(v)
}

// constrain prepares the constraint of a checked request, and a state for each of its sequences; nothing without one. It may take long, and is done before the request enters the books.
func (l *loaded) constrain(ctx context.Context, req *plugins.SampleRequest) ([]constrained, error) {
	if req.Constraint == nil {
		return nil, nil
	}
	if l.vocabulary > tensor.MaxColumns {
		return nil, plugins.Invalidf("constraint", "is not allowed with a vocabulary of %d tokens: at most %d", l.vocabulary, tensor.MaxColumns)
	}
	compiled, err := l.rules.Compile(ctx, req)
	if err != nil {
		return nil, err
	}
	states := make([]constrained, req.NumSamples)
	for i := range states {
		s := &states[i]
		s.state, s.end = compiled.Start()
		s.empty = s.end != constraint.GoesOn
	}
	return states, nil
}

// constrained is what a sequence has of its constraint. It is the device goroutine's, and a thread's that computes its mask.
type constrained struct {
	state *constraint.State // nil: it has none
	end   constraint.End    // what the last token that was drawn did
	empty bool              // it can have no token at all
	left  []float32         // plugins.SampledTokens.ConstraintLogprobs of the generated tokens
}

// followConstraints has the constraints of a step's sequences take note of what was drawn, before it is booked. It is host work of some microseconds each.
func followConstraints(steps []step) {
	for _, st := range steps {
		for i, c := range st.chunks {
			of, t := &c.sequence.constrained, &st.drawn[i]
			if of.state == nil || t.err != nil || !c.final() {
				continue
			}
			of.end, t.err = of.state.Accept(t.id)
		}
	}
}

// masking computes the masks of a step's draws on threads of its own while the model's pass runs: they need the tokens before only. They wait between steps.
type masking struct {
	begin []chan struct{} // by thread
	rest  sync.WaitGroup  // threads that are at work
	next  atomic.Int64    // of chunks, that nobody has taken

	// Of the step.
	words  int
	chunks []masked
	bits   []uint64 // words for each
}

// masked is a chunk whose token is drawn under a constraint.
type masked struct {
	chunk int
	state *constraint.State
	all   bool // nothing is forbidden
	err   error
}

// newMasking starts the threads. The caller ends them with close.
func newMasking(threads, vocabulary int) *masking {
	m := &masking{words: constraint.Words(vocabulary)}
	for range max(1, threads) {
		begin := make(chan struct{})
		m.begin = append(m.begin, begin)
		go func() {
			for range begin {
				m.work()
				m.rest.Done()
			}
		}()
	}
	return m
}

// start begins with the masks of the chunks that end with a draw. They are there when wait returns.
func (m *masking) start(chunks []chunk) {
	m.chunks = m.chunks[:0]
	for i, c := range chunks {
		if state := c.sequence.constrained.state; state != nil && c.final() {
			m.chunks = append(m.chunks, masked{chunk: i, state: state})
		}
	}
	n := len(m.chunks)
	m.bits = slices.Grow(m.bits[:0], n*m.words)[:n*m.words]
	m.next.Store(0)
	for _, begin := range m.begin[:min(n, len(m.begin))] {
		m.rest.Add(1)
		begin <- struct{}{}
	}
}

func (m *masking) work() {
	for {
		i := int(m.next.Add(1)) - 1
		if i >= len(m.chunks) {
			return
		}
		c := &m.chunks[i]
		mask := m.bits[i*m.words : (i+1)*m.words]
		if c.all, c.err = c.state.Mask(mask); c.err != nil { // the request fails; something has to be drawn all the same
			c.all = true
			for w := range mask {
				mask[w] = ^uint64(0)
			}
		}
	}
}

// wait returns when all masks are there; it helps with what is left.
func (m *masking) wait() {
	m.work()
	m.rest.Wait()
}

// forget lets go of the step's sequences.
func (m *masking) forget() { clear(m.chunks) }

// close ends the threads. Another close does nothing.
func (m *masking) close() {
	for t, begin := range m.begin {
		if begin != nil {
			close(begin)
			m.begin[t] = nil
		}
	}
}

// masks are those of the rows of a draw.
type masks struct {
	rows   []int32 // that have one
	bits   []uint64
	chunks []masked
}

// of gives the masks of rows, in the order of the step's chunks as these are. to is memory for the list of rows.
func (m *masking) of(rows []row, to []int32) masks {
	m.wait()
	from := 0
	for from < len(m.chunks) && m.chunks[from].chunk < rows[0].chunk {
		from++
	}
	end := from
	to = to[:0]
	for i, r := range rows {
		if end < len(m.chunks) && m.chunks[end].chunk == r.chunk {
			to = append(to, int32(i))
			end++
		}
	}
	return masks{rows: to, bits: m.bits[from*m.words : end*m.words], chunks: m.chunks[from:end]}
}

// mask is the i-th.
func (m *masks) mask(i int) []uint64 {
	words := len(m.bits) / len(m.rows)
	return m.bits[i*words : (i+1)*words]
}

// at gives the mask of row i, nil if it has none.
func (m *masks) at(i int) *masked {
	if at, ok := slices.BinarySearch(m.rows, int32(i)); ok {
		return &m.chunks[at]
	}
	return nil
}

// forbids tells whether something of row i is forbidden.
func (m *masks) forbids(i int) bool {
	c := m.at(i)
	return c != nil && !c.all
}

// spans calls f for rows of which something is forbidden, neighbours at once.
func (m *masks) spans(f func(from, to int) error) error {
	for i := 0; i < len(m.rows); {
		end := i + 1
		if m.chunks[i].all {
			i = end
			continue
		}
		for end < len(m.rows) && !m.chunks[end].all && m.rows[end] == m.rows[end-1]+1 {
			end++
		}
		if err := f(int(m.rows[i]), int(m.rows[end-1])+1); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// of is the log-probability of all that a mask left of a row, by the log-sum-exps of what is left and of everything. That of a part is not above that of the whole, also where the two were summed differently.
func (m *masked) of(left, sum float32) float32 {
	if m.all {
		return 0
	}
	return min(0, left-sum)
}
