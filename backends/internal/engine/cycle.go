package engine

// series is one run's share of a clock cycle: passes in order of position and, if none of the run's passes before it is left out, the step behind them.
type series struct {
	run     *run
	passes  []*operation
	step    *operation
	version *version // held while the cycle runs
}

// plan picks the next clock cycle: of every run the longest leading series of passes, as far as budget tokens reach, and the optimizer step right behind it. The budget is
// shared by tokens: the next pass is always taken from the run that has the fewest tokens in the cycle so far (the earlier in runs among equals), and a pass that does not fit ends its run's share.
// The first pass is taken whatever its size, so that there is always progress. Runs must be given in an order that changes from cycle to cycle.
func plan(runs []*run, budget int) []series {
	type share struct {
		series
		tokens int
		closed bool
	}
	shares := make([]share, len(runs))
	for i, r := range runs {
		shares[i].run = r
	}
	used := 0
	for {
		var least *share
		for i := range shares {
			s := &shares[i]
			if s.closed || (least != nil && s.tokens >= least.tokens) {
				continue
			}
			if o := s.run.queue.at(len(s.passes)); o == nil || o.kind != kindPass {
				s.closed = true
				continue
			}
			least = s
		}
		if least == nil {
			break
		}
		o := least.run.queue.at(len(least.passes))
		if used > 0 && used+o.tokens > budget {
			least.closed = true
			continue
		}
		least.passes = append(least.passes, o)
		least.tokens += o.tokens
		used += o.tokens
	}
	var cycle []series
	for _, s := range shares {
		if o := s.run.queue.at(len(s.passes)); o != nil && o.kind == kindStep {
			s.step = o
		}
		if len(s.passes) > 0 || s.step != nil {
			cycle = append(cycle, s.series)
		}
	}
	return cycle
}
