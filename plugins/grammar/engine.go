package grammar

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
)

// configID is all that is known behind some text: an index into engine.configs. deadConfig is behind texts that nothing can follow and that are no whole
// text.
type configID int32

const (
	deadConfig    configID = 0
	unknownConfig configID = -1
)

// thread is a terminal, or one of several, that is under way since a row.
type thread struct {
	row rowID
	lex lexState
}

type config struct {
	from, to int32 // in threads, ascending
	row      rowID // the row right here, where a terminal has just ended, or -1
}

const noRow rowID = -1

// engine is an automaton over bytes for a whole grammar, made as it is needed. Several threads are followed at once where a terminal may end and may go on,
// or where one text can be read in several ways. It is not safe for concurrent use. What it was asked never changes what it answers.
type engine struct {
	mu      sync.Mutex
	lexer   *lexer
	parser  *parser
	limits  *Limits
	configs []config
	threads []thread
	next    []configID // of each config and column
	index   intern
	initial configID
	masks   maskCaches
	holds   *atomic.Int64 // where its size is told, if it is shared
	retired *capacity     // a limit of its size was met; what it would answer is not to be relied upon

	// scratch
	found  []thread
	kernel []item
	ids    []int32
	lexes  []lexState
	steps  []configID
}

// capacity is what methods of an engine panic with when its tables are full. Whether they are depends on everything it was asked.
type capacity struct {
	what         string
	count, limit int
}

func newEngine(c *Compiled) *engine {
	e := &engine{limits: &c.limits, masks: newMaskCaches()}
	d := &deriver{terms: c.grammar.terms.clone(), part: c.part, limit: c.limits.Steps}
	e.lexer = newLexer(d, c.utf8, e.limits)
	e.parser = newParser(c.grammar, e.lexer, c.tags, e.limits)
	e.configs = append(e.configs, config{row: noRow})
	for range e.lexer.width {
		e.next = append(e.next, deadConfig)
	}
	return e
}

// begin is the config before the text.
func (e *engine) begin() configID {
	if e.initial == deadConfig {
		e.initial = e.at(e.parser.first())
	}
	return e.initial
}

// at is the config right at a row, with nothing else under way.
func (e *engine) at(r rowID) configID {
	e.found = e.found[:0]
	if q := e.parser.rows[r].start; q != deadState {
		e.found = append(e.found, thread{r, q})
	}
	return e.config(r)
}

// step is the config behind a byte of a column.
func (e *engine) step(c configID, column uint8) configID {
	at := int(c)*e.lexer.width + int(column)
	if s := e.next[at]; s != unknownConfig {
		return s
	}
	s := e.make(c, column)
	e.next[at] = s
	return s
}

func (e *engine) make(c configID, column uint8) configID {
	n := e.configs[c]
	e.found, e.kernel = e.found[:0], e.kernel[:0]
	ended := 0
	var last rowAccept
	for _, th := range e.threads[n.from:n.to] {
		q := e.lexer.step(th.lex, column)
		if q == deadState {
			continue
		}
		if e.lexer.grown(q) {
			e.found = append(e.found, thread{th.row, q})
		}
		if a := e.lexer.states[q].accept; a != noAccept {
			ended++
			last = rowAccept{th.row, a}
			e.kernel = e.parser.shift(e.kernel, th.row, e.lexer.accepts[a])
		}
	}
	if ended == 0 {
		return e.config(noRow)
	}
	var r rowID
	if ended == 1 {
		r = e.parser.advance(last.row, last.accept)
	} else {
		r = e.parser.close(e.kernel)
	}
	if q := e.parser.rows[r].start; q != deadState {
		e.found = append(e.found, thread{r, q})
	}
	return e.config(r)
}

// behind is the config behind a state of the lexer, for a terminal that began in r.
func (e *engine) behind(r rowID, q lexState) configID {
	here := noRow
	if a := e.lexer.states[q].accept; a != noAccept {
		here = e.parser.advance(r, a)
	}
	e.found = e.found[:0]
	if e.lexer.grown(q) {
		e.found = append(e.found, thread{r, q})
	}
	if here != noRow && e.parser.rows[here].start != deadState {
		e.found = append(e.found, thread{here, e.parser.rows[here].start})
	}
	return e.config(here)
}

// tag is the config behind a special token, deadConfig if it may not stand there.
func (e *engine) tag(c configID, token int32) configID {
	r := e.configs[c].row
	if r == noRow || !e.parser.rows[r].tags {
		return deadConfig
	}
	e.kernel = e.kernel[:0]
	n := e.parser.rows[r]
	for _, w := range e.parser.waits[n.from:n.rules] {
		if e.parser.tags[w.label] == token {
			e.kernel = append(e.kernel, resolve(w, r))
		}
	}
	if len(e.kernel) == 0 {
		return deadConfig
	}
	return e.at(e.parser.close(e.kernel))
}

// config is the number of the config with the threads in e.found.
func (e *engine) config(r rowID) configID {
	if r == noRow && len(e.found) == 0 {
		return deadConfig
	}
	slices.SortFunc(e.found, func(a, b thread) int { return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.lex, b.lex)) })
	e.found = slices.Compact(e.found)
	h := newHash()
	h.add(uint64(uint32(r)))
	for _, th := range e.found {
		h.add(uint64(uint32(th.row))<<32 | uint64(uint32(th.lex)))
	}
	at := e.index.find(h, func(i int32) bool {
		c := e.configs[i]
		return c.row == r && slices.Equal(e.threads[c.from:c.to], e.found)
	})
	if at >= 0 {
		return configID(at)
	}
	if size := e.size(); size > e.limits.MatcherMemory {
		panic(capacity{"bytes of tables", size, e.limits.MatcherMemory})
	}
	from := int32(len(e.threads))
	e.threads = append(e.threads, e.found...)
	e.configs = append(e.configs, config{from, int32(len(e.threads)), r})
	for range e.lexer.width {
		e.next = append(e.next, unknownConfig)
	}
	c := configID(len(e.configs) - 1)
	e.index.put(h, int32(c))
	return c
}

// ends says whether the text may end at a config.
func (e *engine) ends(c configID) bool {
	r := e.configs[c].row
	return r != noRow && e.parser.rows[r].ends
}

// grows says whether anything may follow at a config.
func (e *engine) grows(c configID) bool {
	n := e.configs[c]
	return n.from < n.to || n.row != noRow && e.parser.rows[n.row].tags
}

func (e *engine) size() int {
	return e.lexer.size() + e.parser.size() + 4*len(e.next) + 8*len(e.threads) + 12*len(e.configs) + e.index.size()
}
