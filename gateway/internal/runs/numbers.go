package runs

import "slices"

// numbers is a set of numbers that mostly come in order. It takes memory for its gaps, not for what is in it.
type numbers struct{ spans []span64 } // ascending, with gaps between them

// find gives the place of the first span that ends behind n, and whether it holds n.
func (s *numbers) find(n int64) (int, bool) {
	i, _ := slices.BinarySearchFunc(s.spans, n, func(x span64, n int64) int {
		if x.To <= n {
			return -1
		}
		return 1
	})
	return i, i < len(s.spans) && s.spans[i].From <= n
}

func (s *numbers) has(n int64) bool {
	_, ok := s.find(n)
	return ok
}

// fits tells whether a number is in the set or beside one that is: it makes no more gaps.
func (s *numbers) fits(n int64) bool { return s.has(n) || s.has(n-1) || s.has(n+1) }

func (s *numbers) remove(n int64) {
	i, ok := s.find(n)
	if !ok {
		return
	}
	x := s.spans[i]
	left, right := span64{x.From, n}, span64{n + 1, x.To}
	switch {
	case left.From == left.To && right.From == right.To:
		s.spans = slices.Delete(s.spans, i, i+1)
	case left.From == left.To:
		s.spans[i] = right
	case right.From == right.To:
		s.spans[i] = left
	default:
		s.spans[i] = left
		s.spans = slices.Insert(s.spans, i+1, right)
	}
}

func (s *numbers) add(n int64) {
	i, ok := s.find(n)
	if ok {
		return
	}
	after := i > 0 && s.spans[i-1].To == n
	before := i < len(s.spans) && s.spans[i].From == n+1
	switch {
	case after && before:
		s.spans[i-1].To = s.spans[i].To
		s.spans = slices.Delete(s.spans, i, i+1)
	case after:
		s.spans[i-1].To++
	case before:
		s.spans[i].From--
	default:
		s.spans = slices.Insert(s.spans, i, span64{n, n + 1})
	}
}
