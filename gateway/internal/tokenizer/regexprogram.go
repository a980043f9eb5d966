package tokenizer

import (
	"errors"
	"fmt"
	"unicode/utf8"
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
