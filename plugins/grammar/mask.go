package grammar

// tokenSet is some tokens: a shared bitset, if there is one, and further tokens.
type tokenSet struct {
	bits []uint64
	ids  []int32
}

// denseFrom is how many tokens are kept as a bitset rather than a list.
const denseFrom = 1024

func setBits(bits []uint64, ids []int32) {
	for _, id := range ids {
		bits[id>>6] |= 1 << (id & 63)
	}
}

// lexMask is what is known about tokens in a state of the lexer, whatever the parser says.
type lexMask struct {
	inside tokenSet // tokens behind which something is under way, or just ended
	exits  []exit   // where terminals end within tokens
	steps  int

	wide     []widePart // strings that are under way and have masks of their own
	texts    []textPart // the same for text
	closings []closing  // within strings, where tokens end them; such tokens are not among those inside
}

// widePart is a terminal under way within a string, and the state of the lexer behind the string's end.
type widePart struct {
	mask   *wideMask
	behind lexState
}

// textPart is a terminal under way that is no string, the state of the lexer with it alone, and the set of it.
type textPart struct {
	mask   *wideMask
	lex    lexState
	accept acceptSet
}

// closing is a node of closingTokens.prefixes and the state of the lexer there.
type closing struct {
	node int32
	lex  lexState
}

// restMask is the rests of closingTokens that may follow a config.
type restMask struct {
	bits  []uint64
	steps int
}

// exit is a node of a trie at whose end terminals end. What is below it depends on the parser.
type exit struct {
	trie   *trie
	node   int32
	accept acceptSet
}

// threadMask is the tokens that a thread allows.
type threadMask struct {
	lex   *lexMask
	ids   []int32 // tokens allowed through exits
	steps int
}

// mask sets bits to the tokens that are allowed at a config.
func (e *engine) mask(c configID, x *TokenIndex, bits []uint64) {
	n := e.configs[c]
	steps := 0
	written := false
	add := func(s tokenSet) {
		if s.bits != nil {
			if written {
				for i, w := range s.bits {
					bits[i] |= w
				}
			} else {
				copy(bits, s.bits)
			}
		} else if !written {
			clear(bits)
		}
		written = true
		setBits(bits, s.ids)
	}
	for i := n.from; i < n.to; i++ {
		m := e.threadMask(e.threads[i], x)
		steps += m.steps
		add(m.lex.inside)
		for _, part := range m.lex.wide {
			add(tokenSet{bits: part.mask.inside})
		}
		for _, part := range m.lex.texts {
			add(tokenSet{bits: part.mask.inside})
		}
		setBits(bits, m.ids)
	}
	if steps > e.limits.MaskSteps {
		panic(&LimitError{"steps of a mask", steps, e.limits.MaskSteps})
	}
	if !written {
		clear(bits)
	}
	if n.row == noRow {
		return
	}
	r := e.parser.rows[n.row]
	if r.tags {
		for _, w := range e.parser.waits[r.from:r.rules] {
			if id := e.parser.tags[w.label]; id >= 0 {
				bits[id>>6] |= 1 << (id & 63)
			}
		}
	}
	if r.ends {
		setBits(bits, x.ends)
	}
}

func (e *engine) threadMask(th thread, x *TokenIndex) *threadMask {
	if m, ok := e.masks.threads.get(th); ok {
		return m
	}
	lex := e.lexMask(th.lex, x)
	m := &threadMask{lex: lex}
	w := e.walker(x)
	w.steps = lex.steps
	for _, exit := range lex.exits {
		w.configs(exit.trie, exit.node, e.at(e.parser.advance(th.row, exit.accept)))
	}
	w.closings(th.row, lex.closings)
	for _, part := range lex.wide {
		w.widePart(th.row, part)
	}
	for _, part := range lex.texts {
		w.textPart(th.row, part)
	}
	m.ids, m.steps = w.take(), w.steps
	e.masks.threads.put(th, m, 64+4*len(m.ids))
	return m
}

func (e *engine) lexMask(q lexState, x *TokenIndex) *lexMask {
	if m, ok := e.masks.lexes.get(q); ok {
		return m
	}
	w := e.walker(x)
	m := w.lexMask(q)
	m.steps = w.steps
	e.masks.lexes.put(q, m, 64+4*len(m.inside.ids)+16*len(m.exits)+8*len(m.closings)+w.owned)
	return m
}
