package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/tinsmith/tinsmith/plugins"
)

// advice says what does not fit, and what would, a sentence each.
func (f *planner) advice(ctx context.Context, p *plugins.Plan) []string {
	var all []string
	best := bestPlacement(p.Placements)
	if best.Fits == plugins.FitsTraining {
		return f.adviseOnLength(p, best)
	}
	what := "The model does not fit"
	if best.Fits == plugins.FitsSampling {
		what = fmt.Sprintf("The model fits for sampling (%s), but no adapter of rank %d can be trained", best.Name, f.request.Rank)
		if rank := f.smallerRank(ctx); rank > 0 {
			all = append(all, fmt.Sprintf("%s. With --rank %d one can.", what, rank))
			what = fmt.Sprintf("For rank %d the model does not fit", f.request.Rank)
		}
	}
	all = append(all, f.relaxed(ctx)...)
	more, devices := f.moreDevices(ctx)
	bytes := f.moreMemory(ctx, p)
	switch memory := fmt.Sprintf("about %s on one device", gibibytes(bytes)); {
	case bytes == 0 && devices == 0:
		all = append(all, fmt.Sprintf("%s. Neither more memory nor up to %d devices with as much each make it fit.", what, maxRanks))
	case devices == 0:
		all = append(all, fmt.Sprintf("%s. It would with %s.", what, memory))
	case bytes == 0:
		all = append(all, fmt.Sprintf("%s. It would on %d devices with as much each (%s).", what, devices, more))
	default:
		all = append(all, fmt.Sprintf("%s. It would with %s, or on %d devices with as much each (%s).", what, memory, devices, more))
	}
	if weights := p.Model.WeightBytes; p.Model.DType == "bfloat16" && bytes > 0 && weights > bytes/2 && weights > p.Model.Parameters*3/2 {
		all = append(all, "Most of that is the base model's weights. Those of a model that is published in FP8 take half.")
	}
	if p.Model.DType == "float32" {
		all = append(all, "With --dtype bfloat16 the weights, keys and values take half.")
	}
	return all
}

// bestPlacement is one that is good for most, of several the first: that with the simplest arrangement.
func bestPlacement(all []plugins.PlannedPlacement) plugins.PlannedPlacement {
	worth := map[string]int{plugins.FitsTraining: 2, plugins.FitsSampling: 1}
	return slices.MaxFunc(all, func(a, b plugins.PlannedPlacement) int { return worth[a.Fits] - worth[b.Fits] })
}

// adviseOnLength says so where data as long as the context do not train anywhere, and what would help.
func (f *planner) adviseOnLength(p *plugins.Plan, best plugins.PlannedPlacement) []string {
	longest := best
	for _, other := range p.Placements {
		if other.Fits == plugins.FitsTraining && other.LongestDatum > longest.LongestDatum {
			longest = other
		}
	}
	wanted := f.request.Context
	if wanted == 0 {
		wanted = p.Model.MaxContextLength
	}
	if longest.LongestDatum >= wanted {
		return nil
	}
	text := fmt.Sprintf("A datum of %d tokens does not train here; the longest has %d (%s).", wanted, longest.LongestDatum, longest.Name)
	if string(f.settings["recompute"]) == `"off"` {
		text += " Longer ones do where recompute is not off."
	} else {
		text += " More memory, more devices (tensorparallel) or a smaller rank make room for longer ones."
	}
	return []string{text}
}

// smallerRank is the largest half, quarter, … of the rank that trains somewhere; 0: none does.
func (f *planner) smallerRank(ctx context.Context) int {
	smaller := *f
	for smaller.request.Rank /= 2; smaller.request.Rank > 0; smaller.request.Rank /= 2 {
		for _, w := range smaller.ways(f.devices) {
			if p, err := smaller.place(ctx, w); err == nil && p.Fits == plugins.FitsTraining {
				return smaller.request.Rank
			}
		}
	}
	return 0
}

// relaxed says which settings alone keep the model from being trained.
func (f *planner) relaxed(ctx context.Context) []string {
	trains := func(change func(settings map[string]json.RawMessage)) (plugins.PlannedPlacement, bool) {
		other := *f
		other.settings = maps.Clone(f.settings)
		change(other.settings)
		for _, w := range other.ways(f.devices) {
			if p, err := other.place(ctx, w); err == nil && p.Fits == plugins.FitsTraining {
				return p, true
			}
		}
		return plugins.PlannedPlacement{}, false
	}
	var all []string
	if f.settings["max_context_length"] != nil {
		if p, ok := trains(func(s map[string]json.RawMessage) { delete(s, "max_context_length") }); ok {
			all = append(all, fmt.Sprintf("With a context of at most %d tokens it trains (%s).", p.LongestDatum, p.Name))
		}
	}
	if string(f.settings["recompute"]) == `"off"` {
		if p, ok := trains(func(s map[string]json.RawMessage) { delete(s, "recompute") }); ok {
			all = append(all, fmt.Sprintf("With recompute: auto it trains (%s).", p.Name))
		}
	}
	return all
}

// moreDevices is the least power of two of devices with as much memory each on which the model trains, and how; 0: there is none, as of processors, which share one memory.
func (f *planner) moreDevices(ctx context.Context) (way string, devices int) {
	if !f.gpus {
		return "", 0
	}
	for n := 2; n <= maxRanks; n *= 2 {
		if n <= f.devices {
			continue
		}
		for _, w := range []where{f.cut(n), f.shared(n)} {
			if p, err := f.place(ctx, w); err == nil && p.Fits == plugins.FitsTraining {
				return w.name, n
			}
		}
	}
	return "", 0
}

// moreMemory is about how much memory one device needs for the model to be trained; 0 if it cannot be told.
func (f *planner) moreMemory(ctx context.Context, p *plugins.Plan) int64 {
	l, err := f.load(ctx, f.ways(1)[0], unlimited)
	if err != nil {
		return 0
	}
	defer func() { _ = f.close(l) }() // there is nothing on such devices
	layout, err := l.referenceLayout(f.request.Rank)
	if err != nil {
		return 0
	}
	trains := func(bytes int64) bool {
		limits := f.limits(l, bytes)
		if l.weights >= limits.total() {
			return false
		}
		plan, err := l.planMemory(ctx, limits, nil)
		if err != nil {
			return false
		}
		why, err := l.untrainable(&plan, layout)
		return err == nil && why == ""
	}
	low := max(p.Model.WeightBytes, 1<<20) // too little: nothing is beside the weights
	high := 2 * low
	for ; !trains(high); high *= 2 {
		if high > mostMemory/2 || ctx.Err() != nil {
			return 0
		}
		low = high
	}
	for high-low > high/16 {
		if middle := low + (high-low)/2; trains(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// gibibytes writes so many bytes for a sentence.
func gibibytes(n int64) string {
	if n < 10<<30 {
		return mebibytes(n)
	}
	return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
}
