package tokenizer

import (
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/budget"
)

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
