package tensor

// MaxSegments is how many segments the axis has that the ranks of a model share: the most ranks that give the bits of one.
const MaxSegments = 8

// Segments cut the inner axis of a product. Each segment is a chain of its own, which starts from zero, and the chains' sums are added as the tree ((0+1)+(2+3))+((4+5)+(6+7)), of which a rank that has 4 or 2 of the 8 segments has a
// half or a quarter. Nothing is rounded before the tree's end. With Count 0 the axis is one chain; else Count is 1, 2, 4 or 8, segment i ends before element Ends[i] of the axis, and all Ends but the last, where the axis ends, are even.
type Segments struct {
	Count int
	Ends  [MaxSegments]int32
}

// SegmentStart is where segment s of an axis of n elements begins: a function of the whole axis, whatever the ranks. Segment MaxSegments would begin where the axis ends.
func SegmentStart(n, s int) int {
	if s == MaxSegments {
		return n
	}
	return n * s / MaxSegments &^ 1
}

// RankSegments are the segments of an axis of n elements that a rank has, and the first of its elements. They end where elements do that the rank has; it has none if the ranks do not have whole segments.
func RankSegments(n, rank, ranks int) (s Segments, from int) {
	if MaxSegments%ranks != 0 {
		return Segments{}, n * rank / ranks
	}
	s.Count = MaxSegments / ranks
	first := rank * s.Count
	from = SegmentStart(n, first)
	for i := range s.Count {
		s.Ends[i] = int32(SegmentStart(n, first+i+1) - from)
	}
	return s, from
}
