package constraint

import (
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// phase is where a sequence is of its thinking.
type phase uint8

const (
	answering phase = iota // there is none, or it is over
	opening                // what was drawn so far begins Open, or nothing was drawn
	thoughts               // inside
	closing                // Forced is being drawn
)

// thinking keeps a ThinkRule before an answer that may be anything; before a grammar's it is grammar.Thinker that does.
type thinking struct {
	phase phase
	done  int     // tokens of Open, or of Forced, that were drawn
	count int     // tokens of thought
	tail  []int32 // the last of them, as many as Close has at most
}

func (t *thinking) begin(rule *plugins.ThinkRule) {
	switch {
	case rule == nil:
	case rule.Inside:
		t.enter(rule)
	default:
		t.phase = opening
	}
}

func (t *thinking) enter(rule *plugins.ThinkRule) {
	t.phase, t.done = thoughts, 0
	if len(rule.Forced) > 0 && rule.Budget == 0 {
		t.phase = closing
	}
}

// allow writes the tokens that may come next.
func (t *thinking) allow(c *Compiled, bits []uint64) {
	switch t.phase {
	case thoughts:
		copy(bits, c.vocabulary.thoughts)
		for _, id := range c.think.Without {
			unset(bits, id)
		}
	case closing:
		clear(bits)
		set(bits, c.think.Forced[t.done])
	default:
		for i := range bits {
			bits[i] = ^uint64(0)
		}
	}
}

func (t *thinking) accept(rule *plugins.ThinkRule, token int32) {
	switch t.phase {
	case opening:
		if rule.Open[t.done] != token {
			t.phase = answering
		} else if t.done++; t.done == len(rule.Open) {
			t.enter(rule)
		}
	case thoughts:
		t.count++
		t.tail = append(t.tail, token)
		if over := len(t.tail) - len(rule.Close); over > 0 {
			t.tail = slices.Delete(t.tail, 0, over)
		}
		switch {
		case slices.Equal(t.tail, rule.Close):
			t.phase = answering
		case len(rule.Forced) > 0 && t.count >= rule.Budget:
			t.phase, t.done = closing, 0
		}
	case closing:
		if t.done++; t.done == len(rule.Forced) {
			t.phase = answering
		}
	}
}
