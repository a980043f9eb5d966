package grammar

import (
	"errors"
	"fmt"
)

// Matcher follows one sequence. It is for one goroutine at a time; matchers of one Compiled may run at once.
type Matcher struct {
	c     *Compiled
	e     *engine
	own   bool // e is this matcher's alone
	at    configID
	ended bool  // by an end token
	err   error // a limit was met: nothing more can be said
}

// NewMatcher gives a matcher before the first token.
func (c *Compiled) NewMatcher() *Matcher {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &Matcher{c: c, e: c.shared, at: unknownConfig}
}

// ErrNotAllowed is what Accept gives, wrapped, for a token that may not stand here.
var ErrNotAllowed = errors.New("the grammar does not allow it here")

// Mask sets the bits of the tokens that may come next and clears all others. bits has TokenIndex.Words words; token i is bit i%64 of word i/64.
// Behind an end token nothing but end tokens may come. A *LimitError says that the grammar is too complex here; the matcher gives it from then on.
func (m *Matcher) Mask(bits []uint64) error {
	if want := m.c.tokens.Words(); len(bits) != want {
		return fmt.Errorf("a mask of %d words for a vocabulary that takes %d", len(bits), want)
	}
	return m.run(func(e *engine) error {
		if m.ended {
			clear(bits)
			setBits(bits, m.c.tokens.ends)
			return nil
		}
		e.mask(m.at, m.c.tokens, bits)
		return nil
	})
}

// Accept goes on by a token. If it is not allowed nothing has changed and the error wraps ErrNotAllowed.
func (m *Matcher) Accept(id int32) error {
	if id < 0 || int(id) >= m.c.tokens.size {
		return fmt.Errorf("token %d: allowed is 0 to %d", id, m.c.tokens.size-1)
	}
	return m.run(func(e *engine) error {
		if m.c.tokens.role[id] == roleEnd {
			if !m.ended && !e.ends(m.at) {
				return fmt.Errorf("end token %d: %w", id, ErrNotAllowed)
			}
			m.ended = true
			return nil
		}
		next := deadConfig
		if !m.ended {
			next = m.step(e, m.at, id)
		}
		if next == deadConfig {
			return fmt.Errorf("token %d: %w", id, ErrNotAllowed)
		}
		m.at = next
		return nil
	})
}

// step is the config behind a token.
func (m *Matcher) step(e *engine, at configID, id int32) configID {
	switch m.c.tokens.role[id] {
	case roleText:
		for _, b := range m.c.tokens.bytes[id] {
			if at = e.step(at, e.lexer.utf8.column[b]); at == deadConfig {
				return deadConfig
			}
		}
		return at
	case roleSpecial:
		return e.tag(at, id)
	}
	return deadConfig
}

// MayEnd says whether the text so far is a whole text of the language.
func (m *Matcher) MayEnd() bool {
	may := m.ended
	err := m.run(func(e *engine) error {
		may = may || e.ends(m.at)
		return nil
	})
	return err == nil && may
}

// Finished says whether nothing can follow: an end token was accepted, or the text is whole and no longer one begins with it.
func (m *Matcher) Finished() bool {
	finished := m.ended
	err := m.run(func(e *engine) error {
		finished = finished || e.ends(m.at) && !e.grows(m.at)
		return nil
	})
	return err == nil && finished
}

// run does something with the engine at which the matcher is. Where its tables are full, which others may have caused, it is done again in fresh ones, at
// last in some that nobody else has: so only what this sequence alone needs decides whether a limit is met.
func (m *Matcher) run(do func(*engine) error) error {
	if m.err != nil {
		return m.err
	}
	for fresh := false; ; {
		full, err := m.try(do)
		if full == nil {
			var limit *LimitError
			if errors.As(err, &limit) {
				m.err = err
			}
			return err
		}
		if m.own && fresh {
			m.err = &LimitError{full.what, full.count, full.limit}
			return m.err
		}
		next, own := m.c.engineAfter(m.e), false
		if m.own || fresh {
			next, own = newEngine(m.c), true
		}
		if full, err := m.move(next, own); full != nil || err != nil {
			if own {
				m.err = err
				if full != nil {
					m.err = &LimitError{full.what, full.count, full.limit}
				}
				return m.err
			}
		}
		fresh = true
	}
}

// move goes over to another engine. If there is no room for what is under way, the engine is as full as if something had been done with it.
func (m *Matcher) move(next *engine, own bool) (full *capacity, err error) {
	old, at := m.e, m.at
	if at == unknownConfig {
		m.e, m.own = next, own
		return nil, nil
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	full, err = next.guard(func() error {
		at = next.adopt(old, at)
		return nil
	})
	if full == nil && err == nil {
		m.e, m.own, m.at = next, own, at
	}
	return full, err
}

// try does it once. full is not nil if the engine's tables are.
func (m *Matcher) try(do func(*engine) error) (full *capacity, err error) {
	e := m.e
	full, err = e.guard(func() error {
		if m.at == unknownConfig {
			m.at = e.begin()
		}
		return do(e)
	})
	return full, err
}

// guard does something with an engine that nobody else uses meanwhile, and turns what it panics with into what it returns.
func (e *engine) guard(do func() error) (full *capacity, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retired != nil {
		return e.retired, nil
	}
	defer func() {
		if e.holds != nil {
			e.holds.Store(int64(e.size() + e.masks.size()))
		}
		switch r := recover().(type) {
		case nil:
		case capacity:
			e.retired, full = &r, &r
		case *LimitError:
			err = r
		default:
			panic(r)
		}
	}()
	return nil, do()
}
