// Package ecma reads regular expressions as ECMA-262 writes them (with the flag u, generous about needless escapes), turns those that are regular into
// expressions of a grammar, and matches all of them, look-around and backreferences included, within a bound of steps. It knows nothing of schemas.
package ecma

import (
	"errors"
	"fmt"
)

// Bounds of what Parse takes.
const (
	MaxBytes        = 16 << 10
	MaxCount        = 100_000
	MaxAlternatives = 10_000
	MaxRanges       = 200_000 // of which all classes are made
	maxNesting      = 250
)

// ErrTooLarge is wrapped by errors about bounds.
var ErrTooLarge = errors.New("too large")

type operation uint8

const (
	opEmpty         operation = iota
	opClass                   // one character of ranges
	opConcat                  // subs one after another
	opAlternate               // one of subs
	opRepeat                  // subs[0], min to max times; max -1: without end
	opGroup                   // subs[0], captured as number
	opStart                   // ^
	opEnd                     // $
	opBoundary                // \b, or \B when negated
	opLook                    // (?= and its kin: subs[0], behind, negated
	opBackreference           // \1 or \k<name>: what group number caught
)

type node struct {
	operation operation
	ranges    []rune // pairs, inclusive, ascending, none touching the next
	subs      []*node
	min, max  int
	lazy      bool
	negated   bool
	behind    bool
	number    int
	anchors   bool // there is ^ or $ in it
}

// Pattern is a regular expression that was read.
type Pattern struct {
	source string
	root   *node
	groups int
	unfit  string // what no regular language has: "look-around", …; "" if there is nothing
	ranges int
}

// Source is the text that was read.
func (p *Pattern) Source() string { return p.source }

// Ranges is of about how many ranges of characters the pattern's classes were made, which is what they take.
func (p *Pattern) Ranges() int { return p.ranges }

// Irregular names what in the pattern keeps it from being a regular language; "" says that nothing does.
func (p *Pattern) Irregular() string {
	if p.unfit != "" {
		return p.unfit
	}
	if _, err := p.branches(); err != nil {
		return err.Error()
	}
	return ""
}

// branch is one way to match: body, which is free of anchors, at the start or anywhere, up to the end or anywhere.
type branch struct {
	start, end bool
	body       []*node
}

// maxBranches is into how many branches anchors may cut a pattern.
const maxBranches = 256

var errAnchor = errors.New("an anchor in the middle of a pattern")

// branches cuts the pattern so that anchors stand only at the ends of branches.
func (p *Pattern) branches() ([]branch, error) {
	front, err := leading([]*node{p.root})
	if err != nil {
		return nil, err
	}
	var all []branch
	for _, b := range front {
		back, err := trailing(b.body)
		if err != nil {
			return nil, err
		}
		for _, c := range back {
			c.start = b.start
			for _, n := range c.body {
				if n.anchors {
					return nil, errAnchor
				}
			}
			if all = append(all, c); len(all) > maxBranches {
				return nil, fmt.Errorf("%w: anchors in more than %d alternatives", ErrTooLarge, maxBranches)
			}
		}
	}
	return all, nil
}

// leading takes ^ off the front of a sequence, by cutting alternatives in front apart where they hold anchors.
func leading(sequence []*node) ([]branch, error) {
	if len(sequence) == 0 || !sequence[0].anchors {
		return []branch{{body: sequence}}, nil
	}
	first, rest := sequence[0], sequence[1:]
	switch first.operation {
	case opStart:
		inner, err := leading(rest)
		for i := range inner {
			inner[i].start = true
		}
		return inner, err
	case opEnd: // left to trailing
		return []branch{{body: sequence}}, nil
	case opConcat:
		return leading(join(first.subs, rest))
	case opGroup:
		return leading(join(first.subs[:1], rest))
	case opAlternate:
		return each(first.subs, func(sub *node) ([]branch, error) { return leading(join([]*node{sub}, rest)) })
	case opRepeat:
		if first.max == 1 && first.min == 0 {
			with, err := leading(join(first.subs, rest))
			if err != nil {
				return nil, err
			}
			without, err := leading(rest)
			return append(with, without...), err
		}
		if first.max == 1 && first.min == 1 {
			return leading(join(first.subs, rest))
		}
	}
	return nil, errAnchor
}

// trailing takes $ off the end likewise. A lone $ in front of what may be empty is an anchor in the middle.
func trailing(sequence []*node) ([]branch, error) {
	if len(sequence) == 0 || !sequence[len(sequence)-1].anchors {
		return []branch{{body: sequence}}, nil
	}
	last, rest := sequence[len(sequence)-1], sequence[:len(sequence)-1]
	switch last.operation {
	case opEnd:
		inner, err := trailing(rest)
		for i := range inner {
			inner[i].end = true
		}
		return inner, err
	case opConcat:
		return trailing(join(rest, last.subs))
	case opGroup:
		return trailing(join(rest, last.subs[:1]))
	case opAlternate:
		return each(last.subs, func(sub *node) ([]branch, error) { return trailing(join(rest, []*node{sub})) })
	case opRepeat:
		if last.max == 1 && last.min == 0 {
			with, err := trailing(join(rest, last.subs))
			if err != nil {
				return nil, err
			}
			without, err := trailing(rest)
			return append(with, without...), err
		}
		if last.max == 1 && last.min == 1 {
			return trailing(join(rest, last.subs))
		}
	}
	return nil, errAnchor
}

func join(a, b []*node) []*node {
	return append(append(make([]*node, 0, len(a)+len(b)), a...), b...)
}

func each(subs []*node, cut func(*node) ([]branch, error)) ([]branch, error) {
	var all []branch
	for _, sub := range subs {
		some, err := cut(sub)
		if err != nil {
			return nil, err
		}
		if all = append(all, some...); len(all) > maxBranches {
			return nil, fmt.Errorf("%w: anchors in more than %d alternatives", ErrTooLarge, maxBranches)
		}
	}
	return all, nil
}
