package lora

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Groups is the number of gradient groups of one operation.
const Groups = 8

// GroupOf gives the group of sequence i of an operation's n: group g holds the sequences [g·n/8, (g+1)·n/8).
func GroupOf(i, n int) int {
	g := i * Groups / n
	for (g+1)*n/Groups <= i {
		g++
	}
	return g
}

// Reduction sums the gradient of one operation in an order that does not depend on how the operation was cut into passes: every group is one chain over its
// tokens from zero, and groups are added as ((0+1)+(2+3))+((4+5)+(6+7)), those without sequences left out. Groups that are complete are joined at once, so at
// most four sums are held when passes come in order, one group each.
type Reduction struct {
	device tensor.Device
	layout *Layout
	n      int
	free   func() (*Gradient, error) // takes a gradient, which may be unset
	give   func(*Gradient)
	nodes  [2 * Groups]*Gradient // heap order: leaves at Groups + g, the root at 1
	left   [2 * Groups]int       // sequences of the node that are not done

	// Of a model that is cut: by rank.
	cuts    [][]Part
	layouts []*Layout
	whole   func() (*Gradient, error)
	// giveWhole gives back what whole has given.
	giveWhole func(*Gradient)
}

// NewReduction starts the sum of an operation with n sequences (at least 1). take gives a gradient of the layout, zeros or unset, and give takes one back.
func NewReduction(device tensor.Device, layout *Layout, n int, take func() (*Gradient, error), give func(*Gradient)) *Reduction {
	r := &Reduction{device: device, layout: layout, n: n, free: take, give: give}
	for node := 1; node < 2*Groups; node++ {
		from, to := r.sequences(node)
		r.left[node] = to - from
	}
	return r
}

// sequences is the range of sequences below a node.
func (r *Reduction) sequences(node int) (from, to int) {
	low, high := node, node+1
	for low < Groups {
		low, high = 2*low, 2*high
	}
	return (low - Groups) * r.n / Groups, (high - Groups) * r.n / Groups
}

// Buffer is where a pass sums the gradient of sequence i. Sequences of one group share it, and must be passed in ascending order.
func (r *Reduction) Buffer(i int) (*Gradient, error) {
	leaf := Groups + GroupOf(i, r.n)
	if r.nodes[leaf] == nil {
		g, err := r.free()
		if err != nil {
			return nil, fmt.Errorf("gradient buffer: %w", err)
		}
		r.nodes[leaf] = g
	}
	return r.nodes[leaf], nil
}

// Done says that sequence i's gradient is in its buffer, and joins what is complete.
func (r *Reduction) Done(i int) error {
	for node := Groups + GroupOf(i, r.n); node >= 1; node /= 2 {
		r.left[node]--
		if r.left[node] > 0 {
			continue
		}
		if node >= Groups {
			if g := r.nodes[node]; g != nil {
				if err := g.Settle(); err != nil {
					return err
				}
			}
			continue
		}
		if err := r.join(node); err != nil {
			return err
		}
	}
	return nil
}

func (r *Reduction) join(node int) error {
	a, b := r.nodes[2*node], r.nodes[2*node+1]
	r.nodes[2*node], r.nodes[2*node+1] = nil, nil
	r.nodes[node] = a
	if a == nil {
		r.nodes[node] = b
		return nil
	}
	if b == nil {
		return nil
	}
	defer r.give(b)
	if r.cuts == nil {
		return a.add(r.device, b)
	}
	for rank := range r.cuts {
		if err := a.ranks[rank].add(r.device, b.ranks[rank]); err != nil {
			return err
		}
	}
	return nil
}

// add adds what a pass has not joined already.
func (g *Gradient) add(device tensor.Device, b *Gradient) error {
	if !slices.ContainsFunc(b.modules, func(m nn.LoRAGradient) bool { return m.Joined }) {
		return device.Add(g.Flat, b.Flat)
	}
	for i, m := range b.modules {
		if m.Joined || m.A.Buffer == nil {
			continue
		}
		if err := errors.Join(device.Add(g.modules[i].A, m.A), device.Add(g.modules[i].B, m.B)); err != nil {
			return err
		}
	}
	return nil
}

// Onto is the gradient to which that of sequence i is added when it is complete, for a pass that takes sequences first to last, Buffer of which was called, and can add it itself: nil unless both are of one group alone, and the pass has all
// sequences of both.
func (r *Reduction) Onto(i, first, last int) *Gradient {
	here := func(node int) bool {
		from, to := r.sequences(node)
		return from >= first && to <= last+1
	}
	empty := func(node int) bool {
		from, to := r.sequences(node)
		return from == to
	}
	node := Groups + GroupOf(i, r.n)
	if !here(node) {
		return nil
	}
	for node > 1 && empty(node^1) {
		node /= 2
	}
	if node == 1 || node%2 == 0 {
		return nil
	}
	left := node - 1
	for left < Groups {
		switch {
		case empty(2*left + 1):
			left = 2 * left
		case empty(2 * left):
			left = 2*left + 1
		default:
			return nil
		}
	}
	if !here(left) {
		return nil
	}
	return r.nodes[left]
}

// Total is the operation's gradient after Done of every sequence; it belongs to the caller from then on.
func (r *Reduction) Total() (*Gradient, error) {
	if r.left[1] != 0 {
		return nil, fmt.Errorf("%d sequences of the operation are not done", r.left[1])
	}
	g := r.nodes[1]
	r.nodes[1] = nil
	if r.cuts == nil || g == nil {
		return g, nil
	}
	defer r.give(g)
	whole, err := r.whole()
	if err != nil {
		return nil, fmt.Errorf("gradient: %w", err)
	}
	if err := errors.Join(whole.Zero(), r.merge(whole, g)); err != nil {
		r.giveWhole(whole)
		return nil, err
	}
	return whole, nil
}

// Abandon gives all buffers back.
func (r *Reduction) Abandon() {
	for i, g := range r.nodes {
		if g != nil {
			r.give(g)
			r.nodes[i] = nil
		}
	}
}
