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
