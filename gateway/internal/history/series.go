package history

import "math"

// Series is one name's numbers in the order of their steps.
type Series struct {
	Name   string
	Steps  []int64
	Times  []int64 // Unix milliseconds; 0 = not known
	Values []float64
}

// Collect appends what blocks and rows have of some names, from a step on, to series in the order of the names.
type Collect struct {
	From   int64
	series []Series
	at     map[string]int
}

// NewCollect collects these names.
func NewCollect(names []string, from int64) *Collect {
	c := &Collect{From: from, at: map[string]int{}}
	for _, name := range names {
		if _, twice := c.at[name]; !twice {
			c.at[name] = len(c.series)
			c.series = append(c.series, Series{Name: name})
		}
	}
	return c
}

// Wanted tells whether a name is one of them.
func (c *Collect) Wanted(name string) bool {
	_, ok := c.at[name]
	return ok
}

// Block takes a block.
func (c *Collect) Block(b *Block) {
	for i, name := range b.Names {
		at, ok := c.at[name]
		if !ok {
			continue
		}
		s := &c.series[at]
		for row, v := range b.Columns[i] {
			if !isMissing(v) && b.Steps[row] >= c.From {
				s.Steps, s.Times, s.Values = append(s.Steps, b.Steps[row]), append(s.Times, b.Times[row]), append(s.Values, v)
			}
		}
	}
}

// Row takes a row that is in no block yet.
func (c *Collect) Row(r Row) {
	for _, v := range r.Values {
		if at, ok := c.at[v.Name]; ok && r.Step >= c.From {
			s := &c.series[at]
			s.Steps, s.Times, s.Values = append(s.Steps, r.Step), append(s.Times, r.Time), append(s.Values, v.Number)
		}
	}
}

// Series gives what was collected.
func (c *Collect) Series() []Series { return c.series }

// Draw leaves at most so many points of a series, at least 3, whose line looks as that of all of them does: the largest triangle of three buckets (Steinarsson, 2013). The first and the last
// stay. Values that are no numbers count as zero there.
func (s Series) Draw(points int) Series {
	n := len(s.Steps)
	if points = max(points, 3); n <= points {
		return s
	}
	y := func(i int) float64 {
		if v := s.Values[i]; !math.IsNaN(v) && !math.IsInf(v, 0) {
			return v
		}
		return 0
	}
	out := Series{Name: s.Name, Steps: make([]int64, 0, points), Times: make([]int64, 0, points), Values: make([]float64, 0, points)}
	take := func(i int) {
		out.Steps, out.Times, out.Values = append(out.Steps, s.Steps[i]), append(out.Times, s.Times[i]), append(out.Values, s.Values[i])
	}
	bucket := func(i int) int { return 1 + i*(n-2)/(points-2) } // where the i-th of points-2 begins
	take(0)
	before := 0
	for i := range points - 2 {
		from, to := bucket(i), bucket(i+1)
		nextFrom, nextTo := to, n
		if i < points-3 {
			nextTo = bucket(i + 2)
		}
		var meanX, meanY float64
		for j := nextFrom; j < nextTo; j++ {
			meanX, meanY = meanX+float64(s.Steps[j]), meanY+y(j)
		}
		count := float64(max(nextTo-nextFrom, 1))
		meanX, meanY = meanX/count, meanY/count
		best, largest := from, -1.0
		for j := from; j < to; j++ {
			area := math.Abs((float64(s.Steps[before])-meanX)*(y(j)-y(before)) - (float64(s.Steps[before])-float64(s.Steps[j]))*(meanY-y(before)))
			if area > largest {
				best, largest = j, area
			}
		}
		take(best)
		before = best
	}
	take(n - 1)
	return out
}
