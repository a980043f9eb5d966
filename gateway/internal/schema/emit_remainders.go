package schema

import (
	"math/big"

	"github.com/tinsmith/tinsmith/gateway/internal/schema/jsonvalue"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// Bounds of the automata of sets of numbers: one, all together, and those that were made in vain too.
const (
	maxRemainderStates = 20_000 // of one set
	allRemainderStates = 30_000
	maxRemainderTries  = 45_000
)

// The digits of numbers are counted, which takes so many times the states, where there are few remainders, or all automata stay small.
const (
	countedRemainders    = 12
	countedRemainderAll  = 10_000 // states of all automata
	statesOfOneRemainder = 2 * numberDigits
)

// comparison is how the digits so far stand against those of a bound, signs aside.
type comparison struct {
	at     int16 // digits read of the part
	behind bool  // the point is past
	result int8  // of the digits so far
}

// size is a bound's digits.
type size struct{ whole, fraction string }

func (s size) digit(c comparison, d byte) comparison {
	digits := s.whole
	if c.behind {
		digits = s.fraction
	}
	if c.behind && c.result != 0 {
		return c
	}
	if !c.behind && int(c.at) >= len(digits) {
		return comparison{at: int16(len(digits) + 1), result: 1} // more digits than the bound has
	}
	other := byte('0')
	if int(c.at) < len(digits) {
		other = digits[c.at]
	}
	if c.result == 0 && d != other {
		c.result = 1
		if d < other {
			c.result = -1
		}
	}
	if int(c.at) < len(digits) {
		c.at++
	}
	if c.behind && c.result != 0 {
		c.at = 0
	}
	return c
}

func (s size) point(c comparison) comparison {
	return comparison{behind: true, result: s.wholePart(c)}
}

func (s size) wholePart(c comparison) int8 {
	if int(c.at) < len(s.whole) {
		return -1
	}
	return c.result
}

// end is how the whole number stands against the bound.
func (s size) end(c comparison) int8 {
	if !c.behind {
		c = s.point(c)
	}
	if c.result == 0 && int(c.at) < len(s.fraction) {
		return -1 // a bound's fraction does not end with 0
	}
	return c.result
}

// remainderState is a place in the text of a number.
type remainderState struct {
	phase     uint8
	negative  bool
	nonzero   bool
	beyond    bool // there are digits other than 0 behind the last that divisors have
	remainder int32
	fraction  int8
	count     int8
	low, high comparison
}

const (
	atStart = iota
	afterMinus
	afterZero
	inWhole
	afterPoint
	inFraction
)

// remainderWriter makes the automaton of a set of numbers that has divisors.
type remainderWriter struct {
	*compiler
	set       *numberSet
	modulus   int64
	scale     int
	multiple  int64   // scaled; 0 is none
	not       []int64 // scaled
	low, high size
	limit     int8 // digits of a part; 0: they are not counted

	network network
	states  map[remainderState]int
	queue   []remainderState
}

// remainders is the texts of such a set; ok is false where it takes too many states.
func (c *compiler) remainders(s *numberSet) (grammar.Symbol, bool) {
	w := &remainderWriter{compiler: c, set: s, states: map[remainderState]int{}}
	all := s.not
	if s.multiple != nil {
		all = append(append([]*big.Rat(nil), all...), s.multiple)
	}
	for _, r := range all {
		w.scale = max(w.scale, scaleOf(r))
	}
	if w.scale > 32 || len(s.excluded) > 0 {
		return 0, false
	}
	power := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(w.scale)), nil))
	scaled := func(r *big.Rat) int64 {
		n := new(big.Rat).Mul(r, power)
		if !n.IsInt() || !n.Num().IsInt64() || n.Num().Int64() > maxRemainder {
			return 0
		}
		return n.Num().Int64()
	}
	modulus := big.NewRat(1, 1)
	for _, r := range all {
		n := scaled(r)
		if n == 0 {
			return 0, false
		}
		modulus = leastCommonMultiple(modulus, big.NewRat(n, 1))
		if !modulus.Num().IsInt64() || modulus.Num().Int64() > maxRemainder {
			return 0, false
		}
	}
	w.modulus = modulus.Num().Int64()
	if s.multiple != nil {
		w.multiple = scaled(s.multiple)
	}
	for _, r := range s.not {
		w.not = append(w.not, scaled(r))
	}
	var ok bool
	if s.minimum != nil {
		if w.low.whole, w.low.fraction, ok = s.minimum.Parts(); !ok {
			return 0, false
		}
	}
	if s.maximum != nil {
		if w.high.whole, w.high.fraction, ok = s.maximum.Parts(); !ok {
			return 0, false
		}
	}
	if n := int(w.modulus) * (w.scale + 1); n <= countedRemainders || w.compiler.remainderStates+n*statesOfOneRemainder <= countedRemainderAll {
		w.limit = numberDigits
	}
	return w.write()
}

func (w *remainderWriter) write() (grammar.Symbol, bool) {
	var accept []int
	allowed := min(maxRemainderStates, allRemainderStates-w.compiler.remainderStates, maxRemainderTries-w.compiler.tried)
	w.place(remainderState{})
	const chars = "0123456789-."
	symbols := map[uint16]grammar.Symbol{} // by the set of characters
	for len(w.queue) > 0 {
		at := w.queue[0]
		w.queue = w.queue[1:]
		if w.network.states > allowed {
			w.compiler.tried += w.network.states
			return 0, false
		}
		from := w.states[at]
		if w.accepts(at) {
			accept = append(accept, from)
		}
		var targets [len(chars)]int
		var possible uint16
		for i := range len(chars) {
			if next, ok := w.next(at, chars[i]); ok {
				targets[i] = w.place(next)
				possible |= 1 << i
			}
		}
		for i := range len(chars) {
			if possible&(1<<i) == 0 {
				continue
			}
			var set uint16
			for j := i; j < len(chars); j++ {
				if possible&(1<<j) != 0 && targets[j] == targets[i] {
					set |= 1 << j
				}
			}
			possible &^= set
			symbol, ok := symbols[set]
			if !ok {
				var ranges []grammar.RuneRange
				for j := range len(chars) {
					if set&(1<<j) != 0 {
						ranges = append(ranges, grammar.RuneRange{Lo: rune(chars[j]), Hi: rune(chars[j])})
					}
				}
				symbol = w.terminal(w.b.Class(ranges...))
				symbols[set] = symbol
			}
			w.network.edge(from, targets[i], symbol)
		}
	}
	w.compiler.remainderStates += w.network.states
	w.compiler.tried += w.network.states
	w.compiler.places(w.network.states / 4)
	return w.b.Network(w.network.states, 0, accept, w.network.edges), true
}

func (w *remainderWriter) place(s remainderState) int {
	if s.negative && s.nonzero && w.set.minimum == nil && w.set.maximum == nil {
		s.negative = false // the sign matters no more
	}
	if !s.negative {
		s.nonzero = false // only a negative zero would matter
	}
	if state, ok := w.states[s]; ok {
		return state
	}
	state := w.network.state()
	w.states[s] = state
	w.queue = append(w.queue, s)
	return state
}

func (w *remainderWriter) next(s remainderState, char byte) (remainderState, bool) {
	switch {
	case char == '-':
		if s.phase != atStart {
			return s, false
		}
		s.phase, s.negative = afterMinus, true
		return s, true
	case char == '.':
		if s.phase != afterZero && s.phase != inWhole || w.set.multiple != nil && w.set.multiple.IsInt() {
			return s, false
		}
		s.phase, s.count = afterPoint, 0
		s.low, s.high = w.low.point(s.low), w.high.point(s.high)
		return s, true
	}
	switch s.phase {
	case afterZero:
		return s, false
	case atStart, afterMinus:
		s.phase = inWhole
		if char == '0' {
			s.phase = afterZero
		}
	case afterPoint:
		s.phase = inFraction
	}
	if w.limit > 0 {
		if s.count++; s.count > w.limit {
			return s, false
		}
	}
	s.nonzero = s.nonzero || char != '0'
	s.low, s.high = w.low.digit(s.low, char), w.high.digit(s.high, char)
	if s.phase == inFraction {
		if int(s.fraction) == w.scale {
			if w.multiple != 0 { // further digits could only be 0
				return s, false
			}
			s.beyond = s.beyond || char != '0'
			return s, true
		}
		s.fraction++
	}
	s.remainder = int32((int64(s.remainder)*10 + int64(char-'0')) % w.modulus)
	return s, true
}

func (w *remainderWriter) accepts(s remainderState) bool {
	if s.phase != afterZero && s.phase != inWhole && s.phase != inFraction || s.negative && !s.nonzero {
		return false
	}
	r := int64(s.remainder)
	for i := int(s.fraction); i < w.scale; i++ {
		r = r * 10 % w.modulus
	}
	if w.multiple != 0 && r%w.multiple != 0 {
		return false
	}
	if !s.beyond {
		for _, n := range w.not {
			if r%n == 0 {
				return false
			}
		}
	}
	if m := w.set.minimum; m != nil {
		if c := against(s.negative, w.low.end(s.low), m); c < 0 || c == 0 && w.set.exclusiveMinimum {
			return false
		}
	}
	if m := w.set.maximum; m != nil {
		if c := against(s.negative, w.high.end(s.high), m); c > 0 || c == 0 && w.set.exclusiveMaximum {
			return false
		}
	}
	return true
}

// against is how a number stands against a bound, where their sizes stand like that.
func against(negative bool, sizes int8, bound *jsonvalue.Decimal) int8 {
	switch {
	case negative && bound.Sign() < 0:
		return -sizes
	case negative:
		return -1
	case bound.Sign() < 0:
		return 1
	}
	return sizes
}
