package grammar

import (
	"fmt"
	"slices"
)

// ThinkRule says how reasoning stands before what a grammar constrains. Tags are sequences of tokens, mostly of one.
type ThinkRule struct {
	Open   []int32 // what begins reasoning at the very start; empty where none may begin
	Close  []int32 // what ends it
	Forced []int32 // what is forced when the budget is used up: it holds Close, and behind it what the grammar's text may begin with
	Budget int     // tokens of reasoning, those of the tags not counted; below 0 is without bound
	Inside bool    // the sequence begins inside reasoning

	Without []int32 // tokens that reasoning may not have, beside end tokens
}

// Thinker is a Matcher behind reasoning. Inside, every token is allowed but end tokens and those of ThinkRule.Without; behind the closing tag at most two
// newlines and then a text of the grammar. Where reasoning may begin at the start and does not, it is the grammar alone. A Thinker is for one goroutine at a
// time.
type Thinker struct {
	c     *Compiled
	rule  ThinkRule
	phase phase
	m     *Matcher // nil in reasoning

	opened  int     // tokens of Open so far, while that may still be what is written
	lost    bool    // what was written is only a beginning of Open, no text of the grammar
	tail    []int32 // the last tokens of reasoning, as many as Close has
	thought int     // tokens of reasoning so far
	forced  int     // tokens of Forced so far
	forcing bool
}

type phase uint8

const (
	phaseOpening phase = iota // reasoning may begin
	phaseThinking
	phaseText
)

// gapNewlines is how many newlines may stand between the closing tag and the text.
const gapNewlines = 2

// NewThinker gives a thinker before the first token. It refuses a rule whose forced tokens do not end reasoning, or go on with what the grammar does not
// allow.
func (c *Compiled) NewThinker(rule ThinkRule) (*Thinker, error) {
	for name, list := range map[string][]int32{"open": rule.Open, "close": rule.Close, "forced": rule.Forced, "without": rule.Without} {
		for _, id := range list {
			if id < 0 || int(id) >= c.tokens.size {
				return nil, fmt.Errorf("think rule: %s: token %d: allowed is 0 to %d", name, id, c.tokens.size-1)
			}
		}
	}
	t := &Thinker{c: c, rule: rule, phase: phaseOpening}
	if !rule.Inside && len(rule.Open) == 0 {
		t.phase, t.m = phaseText, c.NewMatcher()
		return t, nil
	}
	if len(rule.Close) == 0 {
		return nil, fmt.Errorf("think rule: close is empty: allowed is at least one token")
	}
	if rule.Budget >= 0 {
		trial := &Thinker{c: c, rule: ThinkRule{Close: rule.Close, Budget: -1}, phase: phaseThinking}
		for _, id := range rule.Forced {
			if err := trial.Accept(id); err != nil {
				return nil, fmt.Errorf("think rule: forced: %w", err)
			}
		}
		if trial.phase != phaseText {
			return nil, fmt.Errorf("think rule: forced: %d tokens without the close tag: allowed is what ends reasoning", len(rule.Forced))
		}
	}
	if rule.Inside {
		t.think()
	} else {
		t.m = c.NewMatcher()
	}
	return t, nil
}

func (t *Thinker) think() {
	t.phase, t.m, t.lost = phaseThinking, nil, false
	t.forcing = t.rule.Budget == 0
}

// Mask is Matcher.Mask.
func (t *Thinker) Mask(bits []uint64) error {
	x := t.c.tokens
	switch t.phase {
	case phaseThinking:
		if len(bits) != x.Words() {
			return fmt.Errorf("a mask of %d words for a vocabulary that takes %d", len(bits), x.Words())
		}
		if t.forcing {
			clear(bits)
			setBits(bits, t.rule.Forced[t.forced:t.forced+1])
			return nil
		}
		copy(bits, x.written)
		for _, id := range t.rule.Without {
			bits[id>>6] &^= 1 << (id & 63)
		}
		return nil
	case phaseOpening:
		if t.lost {
			clear(bits)
		} else if err := t.m.Mask(bits); err != nil {
			return err
		}
		setBits(bits, t.rule.Open[t.opened:t.opened+1])
		return nil
	}
	if t.forcing && t.forced < len(t.rule.Forced) {
		clear(bits)
		setBits(bits, t.rule.Forced[t.forced:t.forced+1])
		return nil
	}
	return t.m.Mask(bits)
}

// Accept is Matcher.Accept.
func (t *Thinker) Accept(id int32) error {
	x := t.c.tokens
	if id < 0 || int(id) >= x.size {
		return fmt.Errorf("token %d: allowed is 0 to %d", id, x.size-1)
	}
	if t.forcing && t.forced < len(t.rule.Forced) {
		if id != t.rule.Forced[t.forced] {
			return fmt.Errorf("token %d: the budget of reasoning is used up: %w", id, ErrNotAllowed)
		}
	}
	switch t.phase {
	case phaseOpening:
		return t.acceptOpening(id)
	case phaseThinking:
		if x.written[id>>6]>>(id&63)&1 == 0 || !t.forcing && slices.Contains(t.rule.Without, id) {
			return fmt.Errorf("token %d in reasoning: %w", id, ErrNotAllowed)
		}
		return t.acceptThought(id)
	}
	if err := t.m.Accept(id); err != nil {
		return err
	}
	if t.forcing {
		t.forced++
	}
	return nil
}

func (t *Thinker) acceptOpening(id int32) error {
	opens := id == t.rule.Open[t.opened]
	var err error
	if t.lost {
		err = fmt.Errorf("token %d: %w", id, ErrNotAllowed)
	} else {
		err = t.m.Accept(id)
	}
	if !opens {
		if err == nil {
			t.phase = phaseText
		}
		return err
	}
	t.opened++
	t.lost = err != nil
	if t.opened == len(t.rule.Open) {
		t.think()
	}
	return nil
}

func (t *Thinker) acceptThought(id int32) error {
	if t.forcing {
		t.forced++
	}
	t.thought++
	if len(t.tail) == len(t.rule.Close) {
		t.tail = t.tail[1:]
	}
	t.tail = append(t.tail, id)
	if slices.Equal(t.tail, t.rule.Close) {
		gap, err := t.c.afterGap()
		if err != nil {
			return err
		}
		t.phase, t.m = phaseText, gap.NewMatcher()
		return nil
	}
	if t.rule.Budget >= 0 && t.thought >= t.rule.Budget {
		t.forcing = true
	}
	return nil
}

// MayEnd is Matcher.MayEnd.
func (t *Thinker) MayEnd() bool { return t.m != nil && !t.lost && t.m.MayEnd() }

// Finished is Matcher.Finished.
func (t *Thinker) Finished() bool {
	return t.m != nil && !t.lost && t.phase == phaseText && t.m.Finished()
}

// afterGap is the grammar with newlines before its texts, made when it is first needed.
func (c *Compiled) afterGap() (*Compiled, error) {
	c.gapOnce.Do(func() {
		gap, err := compile(c.grammar.withGap(), c.tokens, c.limits)
		if err != nil {
			c.gapErr = err
			return
		}
		c.gap.Store(gap)
	})
	return c.gap.Load(), c.gapErr
}

// withGap is the language with at most gapNewlines newlines before each text.
func (g *Grammar) withGap() *Grammar {
	out := *g
	out.terms = g.terms.clone()
	newline := out.terms.class(runes{{'\n', '\n'}})
	out.terminals = append(slices.Clip(g.terminals), terminal{x: out.terms.repeat(newline, 0, gapNewlines)})
	// The root's rule stays where it is, since others may refer to it; what begins is a new one at the end.
	first, r := int32(len(g.states)), int32(len(g.rules))
	edges := int32(len(g.edges))
	out.edges = append(slices.Clip(g.edges),
		edge{label: label{labelTerminal, int32(len(g.terminals))}, to: first + 1},
		edge{label: label{labelRule, g.root}, to: first + 2})
	out.states = append(slices.Clip(g.states),
		state{rule: r, from: edges, to: edges + 1},
		state{rule: r, from: edges + 1, to: edges + 2},
		state{rule: r, from: edges + 2, to: edges + 2, accept: true})
	out.rules = append(slices.Clip(g.rules), rule{start: first, high: unbounded, nullable: g.rules[g.root].nullable})
	out.root = r
	return &out
}
