package simple

import (
	"cmp"
	"math"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// adjust applies penalties and bias, and tells whether the row is as it was.
func adjust(req *plugins.SampleRequest, s *sequence, prompted map[int32]bool, row []float64) (same bool) {
	penalised := req.FrequencyPenalty != 0 || req.PresencePenalty != 0
	if req.RepetitionPenalty != 1 {
		for t := range row {
			if prompted[int32(t)] || s.counts[int32(t)] > 0 {
				if row[t] > 0 {
					row[t] /= req.RepetitionPenalty
				} else {
					row[t] *= req.RepetitionPenalty
				}
			}
		}
	}
	for t, n := range s.counts {
		if !penalised {
			break
		}
		row[t] -= float64(req.FrequencyPenalty*float64(n)) + req.PresencePenalty
	}
	for t, bias := range req.LogitBias {
		row[t] += bias
	}
	return req.RepetitionPenalty == 1 && !penalised && len(req.LogitBias) == 0
}

// draw is drawFrom on logits that have not met the temperature.
func draw(req *plugins.SampleRequest, logits []float64, noStop bool, u float64) int32 {
	row := slices.Clone(logits)
	if req.Temperature > 0 {
		for i := range row {
			row[i] /= req.Temperature
		}
	}
	return drawFrom(req, row, noStop, u)
}

// drawFrom chooses a token from scaled logits: top-k, then top-p of what is left, then min-p of what is left, then by u.
func drawFrom(req *plugins.SampleRequest, row []float64, noStop bool, u float64) int32 {
	candidates := make([]int32, 0, len(row))
	for t := range row {
		if !math.IsInf(row[t], -1) && (!noStop || !slices.Contains(req.StopTokens, int32(t))) {
			candidates = append(candidates, int32(t))
		}
	}
	if len(candidates) == 0 { // every token is a stop token: then one of them has to be drawn
		for t := range row {
			candidates = append(candidates, int32(t))
		}
	}
	switch {
	case req.Temperature == 0:
		return best(row, candidates, 1)[0]
	case req.TopK > 0 && req.TopK < len(candidates):
		candidates = best(row, candidates, req.TopK)
	case req.TopP < 1:
		candidates = best(row, candidates, len(candidates))
	}
	top := row[candidates[0]]
	for _, t := range candidates {
		top = max(top, row[t])
	}
	mass := func(t int32) float64 { return math.Exp(row[t] - top) }
	if req.TopP < 1 {
		total, sum := 0.0, 0.0
		for _, t := range candidates {
			total += mass(t)
		}
		for i, t := range candidates {
			if sum += mass(t); sum >= req.TopP*total {
				candidates = candidates[:i+1]
				break
			}
		}
	}
	if req.MinP > 0 {
		candidates = slices.DeleteFunc(candidates, func(t int32) bool { return mass(t) < req.MinP })
	}
	total, sum := 0.0, 0.0
	for _, t := range candidates {
		total += mass(t)
	}
	for _, t := range candidates {
		if sum += mass(t); sum > u*total {
			return t
		}
	}
	return candidates[len(candidates)-1]
}

// best gives the n likeliest of some tokens, descending, ties by lower id. It may change their order.
func best(row []float64, tokens []int32, n int) []int32 {
	order := func(x, y int32) int { return likelier(row, x, y) }
	if n > 64 || n >= len(tokens) {
		slices.SortFunc(tokens, order)
		return tokens[:min(n, len(tokens))]
	}
	found := make([]int32, 0, n+1)
	for _, t := range tokens {
		if len(found) == n && order(found[n-1], t) < 0 {
			continue
		}
		at, _ := slices.BinarySearchFunc(found, t, order)
		found = slices.Insert(found, at, t)[:min(n, len(found)+1)]
	}
	return found
}

func likelier(row []float64, x, y int32) int {
	if c := cmp.Compare(row[y], row[x]); c != 0 {
		return c
	}
	return cmp.Compare(x, y)
}

// topOf writes the likeliest tokens, descending, ties by lower id.
func topOf(row []float64, lse float64, ids []int32, logprobs []float32) {
	order := make([]int32, len(row))
	for i := range order {
		order[i] = int32(i)
	}
	for i, t := range best(row, order, len(ids)) {
		ids[i] = t
		logprobs[i] = float32(row[t] - lse)
	}
}

// LogSumExp of a row of logits; a log-probability is logit − LogSumExp.
func LogSumExp(logits []float64) float64 {
	top := math.Inf(-1)
	for _, v := range logits {
		top = max(top, v)
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(v - top)
	}
	return top + math.Log(sum)
}
