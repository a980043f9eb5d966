package model

import (
	"errors"
	"fmt"
	"math"
	"slices"

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

// loadCounter counts the loads of the examples of a training pass, when it has been launched: devices that go on beside the host are not waited for within it.
type loadCounter struct {
	device   tensor.Device
	outcomes []Outcome
	runs     []tensor.AttentionRun // of the examples
	experts  int
	layer    int // of those with experts
	choices  []choices
}

// choices are what rows from one on have chosen in a layer with experts; there once finish, unless it is nil, has returned.
type choices struct {
	layer, from, slots int
	experts            []float32 // the bits of int32s
	finish             func() error
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
	counter := &loadCounter{device: t.m.Device, outcomes: t.outcomes, runs: slices.Clone(t.p.Runs), experts: c.MoE.Experts, layer: -1}
	t.loads, t.p.Loads = counter, counter.take
	return func(layer int) {
		if c.Sparse(layer) {
			counter.layer++
		}
	}, func() { t.p.Loads = nil }
}

// take is nn.Pass.Loads.
func (l *loadCounter) take(from int, choice tensor.Tensor) error {
	c := choices{layer: l.layer, from: from, slots: choice.Cols, experts: make([]float32, choice.Rows*choice.Cols)}
	var err error
	if d, ok := l.device.(tensor.Differentiator); ok {
		c.finish, err = d.StartDownload(c.experts, choice)
	} else {
		err = l.device.Download(c.experts, choice)
	}
	if err != nil {
		return fmt.Errorf("count the loads of experts: %w", err)
	}
	l.choices = append(l.choices, c)
	return nil
}

// count waits for all that was taken and counts it.
func (l *loadCounter) count() (err error) {
	for _, c := range l.choices {
		if c.finish != nil {
			err = errors.Join(err, c.finish())
		}
	}
	if err != nil {
		return fmt.Errorf("count the loads of experts: %w", err)
	}
	for _, c := range l.choices {
		rows := len(c.experts) / c.slots
		for i, run := range l.runs {
			loads := l.outcomes[i].Loads[c.layer*l.experts : (c.layer+1)*l.experts]
			first, last := max(run.Row, c.from)-c.from, min(run.Row+run.Count, c.from+rows)-c.from
			for at := first * c.slots; at < last*c.slots; at++ {
				if e := int(int32(math.Float32bits(c.experts[at]))); e >= 0 && e < l.experts { // what computes nothing leaves what was there
					loads[e]++
				}
			}
		}
	}
	return nil
}
