package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

// A regular expression runs as a program that tries alternatives in order and comes back to the next one when what follows fails: what the reference's
// engine does, so that the same match is found. Such a program may take more steps than anybody can wait for. So each step is paid for, and
// what it comes back to as well. It works on the text's bytes and copies nothing.

// maxProgram bounds the instructions of an expression: repeats of groups are written out.
const maxProgram = 1 << 16

type regexOp uint8

const (
	opMatch  regexOp = iota
	opChars          // one character of set
	opRun            // least to most characters of set, as many as there are, coming back to fewer
	opLazy           // the same, as few as will do, coming back to more
	opAnchor         // a place in the text
	opSplit          // goes on at next, coming back to other
	opJump           // goes on at next
	opLook           // the instructions behind it, up to their opMatch, match (or not) where it stands; then next
	opAtomic         // the instructions behind it, up to their opMatch, match, without coming back; then next
	opEnter          // begins a turn of a loop: notes the place in slot other
	opTurn           // ends a turn of a loop: goes on at next unless the turn has matched nothing
)

type regexInstruction struct {
	op                 regexOp
	backward, negative bool
	anchor             regexAnchor
	set                *regexSet
	least, most        int32 // most -1: any number
	next, other        int32
}

// regexSet is a set of characters, quick to ask for those of ASCII.
type regexSet struct {
	ascii  [2]uint64
	ranges runeSet
}

func newRegexSet(set runeSet) *regexSet {
	s := &regexSet{ranges: set}
	for _, r := range set {
		for c := max(r.lo, 0); c <= min(r.hi, utf8.RuneSelf-1); c++ {
			s.ascii[c>>6] |= 1 << (c & 63)
		}
	}
	return s
}

func (s *regexSet) contains(r rune) bool {
	if uint32(r) < utf8.RuneSelf {
		return s.ascii[r>>6]>>(r&63)&1 != 0
	}
	return s.ranges.contains(r)
}

// regexProgram is a compiled expression, read-only.
type regexProgram struct {
	code  []regexInstruction
	slots int
	// first are the characters that can begin a match; nil if a match may be empty.
	first *regexSet
	sets  map[string]*regexSet // while it is compiled
}

func compileRegex(pattern string) (*regexProgram, error) {
	n, err := parseRegex(pattern)
	if err != nil {
		return nil, err
	}
	p := &regexProgram{sets: map[string]*regexSet{}}
	if err := p.compile(n, false); err != nil {
		return nil, err
	}
	p.code = append(p.code, regexInstruction{op: opMatch})
	if set, nullable := p.begins(n); !nullable {
		p.first = newRegexSet(set)
	}
	p.sets = nil
	return p, nil
}

// set is the same for equal sets: an expression has few different ones.
func (p *regexProgram) set(set runeSet) *regexSet {
	key := fmt.Sprint(len(set))
	if len(set) < 64 {
		key = fmt.Sprint(set)
	} else {
		for _, i := range []int{0, 1, 2, 7, 31, len(set) / 2, len(set) - 3, len(set) - 2, len(set) - 1} {
			key += fmt.Sprint(set[i])
		}
	}
	for n := 0; ; n++ {
		known, ok := p.sets[key]
		if !ok {
			known = newRegexSet(set)
			p.sets[key] = known
		}
		if equalSets(known.ranges, set) {
			return known
		}
		key += "'"
	}
}

func equalSets(a, b runeSet) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func (p *regexProgram) add(i regexInstruction) (at int, err error) {
	if len(p.code) == maxProgram {
		return 0, fmt.Errorf("written out, its repeats have more than %d steps", maxProgram)
	}
	p.code = append(p.code, i)
	return len(p.code) - 1, nil
}

func (p *regexProgram) here() int32 { return int32(len(p.code)) }

// compile appends what matches n. backward: what lies before a place is matched, from there on.
func (p *regexProgram) compile(n regexNode, backward bool) error {
	switch n := n.(type) {
	case regexChars:
		_, err := p.add(regexInstruction{op: opChars, set: p.set(n.set), backward: backward})
		return err
	case regexAnchor:
		_, err := p.add(regexInstruction{op: opAnchor, anchor: n})
		return err
	case regexConcat:
		if backward {
			n = reversed(n)
		}
		for _, part := range n {
			if err := p.compile(part, backward); err != nil {
				return err
			}
		}
		return nil
	case regexAlternatives:
		return p.compileAlternatives(n, backward)
	case regexRepeat:
		return p.compileRepeat(n, backward)
	case regexAtomic:
		return p.compileInner(regexInstruction{op: opAtomic}, n.of, backward)
	case regexLook:
		return p.compileInner(regexInstruction{op: opLook, negative: n.negative}, n.of, n.behind)
	}
	return errors.New("an expression of unknown kind")
}

// compileInner appends a part that is matched by itself.
func (p *regexProgram) compileInner(i regexInstruction, of regexNode, backward bool) error {
	at, err := p.add(i)
	if err != nil {
		return err
	}
	if err := p.compile(of, backward); err != nil {
		return err
	}
	if _, err := p.add(regexInstruction{op: opMatch}); err != nil {
		return err
	}
	p.code[at].next = p.here()
	return nil
}

func (p *regexProgram) compileAlternatives(n regexAlternatives, backward bool) error {
	var ends []int
	for i, part := range n {
		split := -1
		if i < len(n)-1 {
			var err error
			if split, err = p.add(regexInstruction{op: opSplit, next: p.here() + 1}); err != nil {
				return err
			}
		}
		if err := p.compile(part, backward); err != nil {
			return err
		}
		if split >= 0 {
			end, err := p.add(regexInstruction{op: opJump})
			if err != nil {
				return err
			}
			ends = append(ends, end)
			p.code[split].other = p.here()
		}
	}
	for _, end := range ends {
		p.code[end].next = p.here()
	}
	return nil
}

func (p *regexProgram) compileRepeat(n regexRepeat, backward bool) error {
	if one, ok := n.of.(regexChars); ok {
		op := opRun
		if n.lazy {
			op = opLazy
		}
		_, err := p.add(regexInstruction{op: op, set: p.set(one.set), least: int32(n.least), most: int32(n.most), backward: backward})
		return err
	}
	for range n.least {
		if err := p.compile(n.of, backward); err != nil {
			return err
		}
	}
	if n.most < 0 {
		return p.compileLoop(n, backward)
	}
	var splits []int
	for range n.most - n.least {
		split, err := p.add(regexInstruction{op: opSplit})
		if err != nil {
			return err
		}
		splits = append(splits, split)
		if err := p.compile(n.of, backward); err != nil {
			return err
		}
	}
	for _, split := range splits {
		p.code[split].turn(int32(split)+1, p.here(), n.lazy)
	}
	return nil
}

// turn makes a split go into a turn of a loop, or past it, whichever is first, coming back to the other.
func (i *regexInstruction) turn(into, past int32, lazy bool) {
	i.next, i.other = into, past
	if lazy {
		i.next, i.other = past, into
	}
}

func (p *regexProgram) compileLoop(n regexRepeat, backward bool) error {
	slot := int32(p.slots)
	p.slots++
	split, err := p.add(regexInstruction{op: opSplit})
	if err != nil {
		return err
	}
	if _, err := p.add(regexInstruction{op: opEnter, other: slot}); err != nil {
		return err
	}
	if err := p.compile(n.of, backward); err != nil {
		return err
	}
	if _, err := p.add(regexInstruction{op: opTurn, other: slot, next: int32(split)}); err != nil {
		return err
	}
	p.code[split].turn(int32(split)+1, p.here(), n.lazy)
	return nil
}

// regexFrame is what is come back to.
type regexFrame struct {
	kind  frameKind
	at    int32 // instruction
	place int32
	rest  int32
}

type frameKind uint8

const (
	frameSplit frameKind = iota // goes on at the instruction, at the place
	frameRun                    // gives a character of an opRun up, down to the place rest
	frameLazy                   // takes one more character for an opLazy, of rest that it may; below 0: any number
	frameSlot                   // gives a slot, that of an opEnter, its former place back
)

// regexSearch is the state of searching one text. It belongs to one goroutine.
type regexSearch struct {
	*regexProgram
	budget *budget.Budget
	text   string
	stack  []regexFrame
	places []int32 // slots
	steps  int
	err    error
}

func (p *regexProgram) search(b *budget.Budget, text string) *regexSearch {
	return &regexSearch{regexProgram: p, budget: b, text: text, places: make([]int32, p.slots)}
}

// close gives back what the search has held.
func (s *regexSearch) close() error {
	s.budget.Return(cap(s.stack) * frameBytes)
	s.stack = nil
	if s.err != nil {
		return s.err
	}
	return s.budget.Work(s.steps)
}

// find gives the first match at or after from; start is -1 if there is none.
func (s *regexSearch) find(from int) (start, end int, err error) {
	for at := from; at <= len(s.text); {
		size := 1
		if at < len(s.text) {
			var r rune
			if r, size = rune(s.text[at]), 1; r >= utf8.RuneSelf {
				r, size = utf8.DecodeRuneInString(s.text[at:])
			}
			if s.first != nil && !s.first.contains(r) {
				if !s.pay(1) {
					return -1, 0, s.err
				}
				at += size
				continue
			}
		} else if s.first != nil {
			break
		}
		end, ok := s.match(0, at)
		if s.err != nil {
			return -1, 0, s.err
		}
		if ok {
			return at, end, nil
		}
		at += size
	}
	return -1, 0, nil
}

// pay counts steps; false ends the search with s.err.
func (s *regexSearch) pay(n int) bool {
	if s.steps += n; s.steps < 1024 {
		return true
	}
	if err := s.budget.Work(s.steps); err != nil && s.err == nil {
		s.err = err
	}
	s.steps = 0
	return s.err == nil
}

const frameBytes = 16

// push notes what is come back to.
func (s *regexSearch) push(f regexFrame) bool {
	if len(s.stack) == cap(s.stack) {
		grown := max(64, 2*cap(s.stack))
		if err := s.budget.Take(grown * frameBytes); err != nil {
			s.err = err
			return false
		}
		s.budget.Return(cap(s.stack) * frameBytes)
		s.stack = append(make([]regexFrame, 0, grown), s.stack...)
	}
	s.stack = append(s.stack, f)
	return true
}

// step moves over the character at a place if it belongs to the set; -1 if it does not.
func (s *regexSearch) step(set *regexSet, place int, backward bool) int {
	if backward {
		if place == 0 {
			return -1
		}
		if c := s.text[place-1]; c < utf8.RuneSelf {
			if set.ascii[c>>6]>>(c&63)&1 == 0 {
				return -1
			}
			return place - 1
		}
		r, size := utf8.DecodeLastRuneInString(s.text[:place])
		if !set.ranges.contains(r) {
			return -1
		}
		return place - size
	}
	if place == len(s.text) {
		return -1
	}
	if c := s.text[place]; c < utf8.RuneSelf {
		if set.ascii[c>>6]>>(c&63)&1 == 0 {
			return -1
		}
		return place + 1
	}
	r, size := utf8.DecodeRuneInString(s.text[place:])
	if !set.ranges.contains(r) {
		return -1
	}
	return place + size
}

// match runs the program from an instruction to its opMatch, at a place of the text. It leaves the stack as it was. False with s.err set is no answer.
func (s *regexSearch) match(at, place int) (end int, ok bool) {
	base := len(s.stack)
	for {
		if !s.pay(3) {
			return 0, false
		}
		i := &s.code[at]
		failed := false
		switch i.op {
		case opMatch:
			s.stack = s.stack[:base]
			return place, true
		case opChars:
			if next := s.step(i.set, place, i.backward); next >= 0 {
				place = next
				at++
			} else {
				failed = true
			}
		case opRun:
			place, failed = s.run(at, i, place)
			at++
		case opLazy:
			for range i.least {
				if place = s.step(i.set, place, i.backward); place < 0 || !s.pay(1) {
					break
				}
			}
			if failed = place < 0; !failed && i.most != i.least {
				failed = !s.push(regexFrame{frameLazy, int32(at), int32(place), max(-1, i.most-i.least)})
			}
			at++
		case opAnchor:
			failed = !s.anchored(i.anchor, place)
			at++
		case opSplit:
			failed = !s.push(regexFrame{kind: frameSplit, at: i.other, place: int32(place)})
			at = int(i.next)
		case opJump:
			at = int(i.next)
		case opLook, opAtomic:
			end, found := s.match(at+1, place)
			if i.op == opAtomic {
				failed, place = !found, end
			} else {
				failed = found == i.negative
			}
			at = int(i.next)
		case opEnter:
			failed = !s.push(regexFrame{kind: frameSlot, at: int32(at), place: s.places[i.other]})
			s.places[i.other] = int32(place)
			at++
		case opTurn:
			if place == int(s.places[i.other]) {
				at++ // a turn that has matched nothing is the last
			} else {
				at = int(i.next)
			}
		}
		if s.err != nil {
			return 0, false
		}
		if failed {
			if at, place, ok = s.back(base); !ok {
				return 0, false
			}
		}
	}
}

// run takes as many characters as there are, and notes that it may have been fewer.
func (s *regexSearch) run(at int, i *regexInstruction, place int) (int, bool) {
	fewest := -1
	for n := int32(0); ; n++ {
		if n == i.least {
			fewest = place
		}
		if n == i.most {
			break
		}
		next := s.step(i.set, place, i.backward)
		if next < 0 {
			break
		}
		if place = next; !s.pay(1) {
			return place, true
		}
	}
	if fewest < 0 {
		return place, true
	}
	if place != fewest {
		return place, !s.push(regexFrame{frameRun, int32(at), int32(place), int32(fewest)})
	}
	return place, false
}

// back goes to the last alternative that was left; ok is false if there is none above base.
func (s *regexSearch) back(base int) (at, place int, ok bool) {
	for len(s.stack) > base {
		if !s.pay(3) {
			return 0, 0, false
		}
		top := len(s.stack) - 1
		f := &s.stack[top]
		i := &s.code[f.at]
		switch f.kind {
		case frameSplit:
			s.stack = s.stack[:top]
			return int(f.at), int(f.place), true
		case frameRun:
			f.place = s.over(f.place, !i.backward)
			if f.place == f.rest {
				s.stack = s.stack[:top]
			}
			return int(f.at) + 1, int(f.place), true
		case frameLazy:
			next := s.step(i.set, int(f.place), i.backward)
			if f.place, f.rest = int32(next), f.rest-1; next < 0 || f.rest == 0 {
				s.stack = s.stack[:top]
			}
			if next >= 0 {
				return int(f.at) + 1, next, true
			}
		case frameSlot:
			s.places[i.other] = f.place
			s.stack = s.stack[:top]
		}
	}
	return 0, 0, false
}

// over moves over the character at a place.
func (s *regexSearch) over(place int32, backward bool) int32 {
	if backward {
		_, size := utf8.DecodeLastRuneInString(s.text[:place])
		return place - int32(size)
	}
	_, size := utf8.DecodeRuneInString(s.text[place:])
	return place + int32(size)
}

// anchored tells whether a place is one of an anchor's.
func (s *regexSearch) anchored(a regexAnchor, place int) bool {
	n := len(s.text)
	switch a {
	case '^':
		return place == 0 || s.text[place-1] == '\n'
	case '$':
		return place == n || s.text[place] == '\n'
	case 'A':
		return place == 0
	case 'z':
		return place == n
	}
	return place == n || place == n-1 && s.text[place] == '\n'
}
