package model

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/dry"
)

// Loads are how many slots of tokens each expert of each layer has taken: layer by layer, of those that have experts. They are whole numbers, so sums of them do not depend on how tokens were put together.
type Loads []int64

// Add adds those of others to l, which is nil before there are any, and gives the sum.
func (l Loads) Add(others Loads) Loads {
	if l == nil {
		l = make(Loads, len(others))
	}
	for i, n := range others {
		l[i] += n
	}
	return l
}

// Metrics are the measures of balance that the official service has for mixtures of so many experts, each the mean over layers, or the most.
func (l Loads) Metrics(experts int) map[string]float64 {
	if experts == 0 || len(l) == 0 {
		return nil
	}
	var with, over, most, least, worst float64
	layers := len(l) / experts
	for layer := range layers {
		loads := l[layer*experts : (layer+1)*experts]
		var all, largest int64
		smallest := int64(math.MaxInt64)
		for _, n := range loads {
			all, largest, smallest = all+n, max(largest, n), min(smallest, n)
		}
		if all == 0 {
			return nil
		}
		balance := float64(all) / float64(experts)
		used, more := 0, 0
		for _, n := range loads {
			if n > 0 {
				used++
			}
			if float64(n) > balance {
				more++
			}
		}
		violation := (float64(largest) - balance) / balance
		with, over = with+float64(used)/float64(experts), over+float64(more)/float64(experts)
		most, least, worst = most+violation, least+(float64(smallest)-balance)/balance, max(worst, violation)
	}
	n := float64(layers)
	return map[string]float64{
		"e_frac_with_tokens:mean": with / n, "e_frac_oversubscribed:mean": over / n, "e_max_violation:mean": most / n, "e_max_violation:max": worst, "e_min_violation:mean": least / n,
	}
}

// loadCounter counts the loads of the examples of a training pass.
type loadCounter struct {
	device   tensor.Device
	outcomes []Outcome
	runs     []tensor.AttentionRun // of the examples
	experts  int
	layer    int // of those with experts
	host     []float32
}

// countLoads makes a pass count what it goes through, for the outcomes of its examples; nil of a model without experts. A function that it gives is to be called before every layer.
func (t *training) countLoads() (next func(layer int), end func()) {
	c := t.m.Config
	if c.MoE == nil || dry.Is(t.m.Device) { // where nothing is computed there is nothing to count
		return func(int) {}, func() {}
	}
	layers := 0
	for i := range c.Layers {
		if c.Sparse(i) {
			layers++
		}
	}
	for i := range t.outcomes {
		t.outcomes[i].Loads = make(Loads, layers*c.MoE.Experts)
	}
	counter := &loadCounter{device: t.m.Device, outcomes: t.outcomes, runs: t.p.Runs, experts: c.MoE.Experts, layer: -1}
	t.p.Loads = counter.count
	return func(layer int) {
		if c.Sparse(layer) {
			counter.layer++
		}
	}, func() { t.p.Loads = nil }
}

// count is nn.Pass.Loads.
func (l *loadCounter) count(from int, choice tensor.Tensor) error {
	n := choice.Rows * choice.Cols
	if cap(l.host) < n {
		l.host = make([]float32, n)
	}
	if err := l.device.Download(l.host[:n], choice); err != nil {
		return fmt.Errorf("count the loads of experts: %w", err)
	}
	for i, run := range l.runs {
		loads := l.outcomes[i].Loads[l.layer*l.experts : (l.layer+1)*l.experts]
		first, last := max(run.Row, from)-from, min(run.Row+run.Count, from+choice.Rows)-from
		for at := first * choice.Cols; at < last*choice.Cols; at++ {
			if e := int(int32(math.Float32bits(l.host[at]))); e >= 0 && e < l.experts { // what computes nothing leaves what was there
				loads[e]++
			}
		}
	}
	return nil
}
