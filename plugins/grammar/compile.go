package grammar

import (
	"context"
	"sync"
	"sync/atomic"
)

// Compiled is a grammar prepared for a vocabulary. It is safe for concurrent use; what its matchers find out they share.
type Compiled struct {
	grammar *Grammar
	tokens  *TokenIndex // nil: texts only
	limits  Limits
	part    *partition
	utf8    *utf8Table
	tags    []int32 // of each terminal the special token it is, or -1

	mu     sync.Mutex
	shared *engine

	gapOnce sync.Once
	gap     atomic.Pointer[Compiled] // see afterGap
	gapErr  error
	size    atomic.Int64
}

// Compile prepares a grammar for a vocabulary. Most of what there is to do is done when a matcher first needs it.
func Compile(ctx context.Context, g *Grammar, tokens *TokenIndex, limits Limits) (*Compiled, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return compile(g, tokens, limits)
}

func compile(g *Grammar, tokens *TokenIndex, limits Limits) (*Compiled, error) {
	part, err := newPartition(g.terms)
	if err != nil {
		return nil, err
	}
	c := &Compiled{grammar: g, tokens: tokens, limits: limits, part: part, tags: make([]int32, len(g.terminals))}
	c.utf8 = newUTF8Table(c.part)
	for i, t := range g.terminals {
		c.tags[i] = -1
		if n := g.terms.nodes[t.x]; t.tag && tokens != nil {
			if id, ok := tokens.special[string(g.terms.texts[n.a:n.a+n.b])]; ok {
				c.tags[i] = id
			}
		}
	}
	c.shared = newEngine(c)
	c.shared.holds = &c.size
	c.size.Store(int64(c.shared.size()))
	return c, nil
}

// engineAfter gives the engine that matchers share now that old is retired.
func (c *Compiled) engineAfter(old *engine) *engine {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared == old {
		c.shared = newEngine(c)
		c.shared.holds = &c.size
	}
	return c.shared
}

// compiledBytes is what a small grammar holds beside what is counted: its terms, classes and tables of bytes.
const compiledBytes = 16 << 10

// Size is about how many bytes of memory c holds now.
func (c *Compiled) Size() int {
	size := compiledBytes + 2*len(c.grammar.encoded) + int(c.size.Load())
	if gap := c.gap.Load(); gap != nil {
		size += gap.Size()
	}
	return size
}

// Matches says whether text is in the language of g. Tags stand for their text. It is for checking finished texts; it fails only where a limit is met.
func Matches(g *Grammar, text string) (bool, error) {
	c, err := Compile(context.Background(), g, nil, DefaultLimits())
	if err != nil {
		return false, err
	}
	return c.MatchesText(text)
}

// MatchesText says whether text is in the language, tags standing for their text. It may only be asked of a grammar that was compiled without a vocabulary.
func (c *Compiled) MatchesText(text string) (bool, error) {
	m := c.NewMatcher()
	err := m.run(func(e *engine) error {
		m.at = e.begin() // again, if it is run again
		for i := 0; i < len(text) && m.at != deadConfig; i++ {
			m.at = e.step(m.at, e.lexer.utf8.column[text[i]])
		}
		return nil
	})
	return err == nil && m.MayEnd(), err
}
