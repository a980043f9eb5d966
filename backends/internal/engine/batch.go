package engine

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// piece is one datum in a batch.
type piece struct {
	pass  *pass
	index int
}

// batch is what one replica runs at once.
type batch struct {
	replica *replica
	pieces  []piece
}

// spread gives each of n replicas a lane of data. What goes to one replica as a whole, in its order, is a group of an operation, whose gradient is one chain: so the sums are the same whatever the number of replicas. The
// largest group goes first to the lane with the fewest tokens.
func spread(passes []*pass, n int) [][]piece {
	lanes := make([][]piece, n)
	if n == 1 {
		for _, p := range passes {
			for i := range p.op.pass.Data {
				lanes[0] = append(lanes[0], piece{p, i})
			}
		}
		return lanes
	}
	type unit struct {
		order  int // in which units stand in their lane
		lane   int
		pieces []piece
		tokens int
	}
	var units []*unit
	for _, p := range passes {
		data := p.op.pass.Data
		for i := range data {
			// Without a gradient nothing is summed, so that each datum is a unit.
			if i == 0 || p.op.pass.ForwardOnly || lora.GroupOf(i, len(data)) != lora.GroupOf(i-1, len(data)) {
				units = append(units, &unit{order: len(units)})
			}
			u := units[len(units)-1]
			u.pieces, u.tokens = append(u.pieces, piece{p, i}), u.tokens+len(data[i].Tokens)
		}
	}
	bySize := slices.Clone(units)
	slices.SortStableFunc(bySize, func(a, b *unit) int { return b.tokens - a.tokens })
	tokens := make([]int, n)
	for _, u := range bySize {
		for i := range tokens {
			if tokens[i] < tokens[u.lane] {
				u.lane = i
			}
		}
		tokens[u.lane] += u.tokens
	}
	for _, u := range units {
		lanes[u.lane] = append(lanes[u.lane], u.pieces...)
	}
	return lanes
}

// training is a batch made ready to run on a replica.
type training struct {
	replica       *replica
	examples      []model.Example
	tokens, pages int
	rank          int  // the largest of its adapters
	backward      bool // there are gradients
	recompute     bool
	need          model.Memory // of a workspace
	room          bool         // there is as much
	outcomes      []model.Outcome
	finish        func() ([]model.Outcome, error) // gives them; nil if they are there, or nothing was launched
}

func (l *loaded) prepare(b batch) (training, error) {
	t := training{replica: b.replica, examples: make([]model.Example, len(b.pieces))}
	for _, at := range b.pieces {
		t.pages += pagesOf(at.pass.op.pass.Data[at.index].Tokens)
	}
	numbers := make([]int32, t.pages)
	for i := range numbers {
		numbers[i] = int32(i)
	}
	for i, at := range b.pieces {
		p := at.pass
		d := &p.op.pass.Data[at.index]
		n := pagesOf(d.Tokens)
		ids := numbers[:n:n]
		numbers = numbers[n:]
		t.tokens += len(d.Tokens)
		t.examples[i] = model.Example{
			Sequence: model.Sequence{Adapter: p.version.weights.weights(), Tokens: d.Tokens, Pages: ids},
			Targets:  d.Targets, K: d.K, Loss: p.op.loss,
			Inputs: loss.Inputs{Weights: d.Weights, Logprobs: d.Logprobs, Advantages: d.Advantages, SequenceRatioMask: d.SequenceRatioMask},
		}
		t.rank = max(t.rank, p.run.layout.Rank)
		if p.op.pass.ForwardOnly {
			continue
		}
		t.backward, t.recompute = true, t.recompute || p.again
		if p.reduction == nil {
			var err error
			if p.reduction, err = l.reduction(p.run.layout, len(p.op.pass.Data)); err != nil {
				return t, err
			}
			p.give = l.adapters.giveGradient
		}
		var err error
		if t.examples[i].Gradient, err = p.reduction.Buffer(at.index); err != nil {
			return t, err
		}
	}
	t.joinSums(b.pieces)
	return t, l.chooseRecompute(&t)
}

// joinSums has the pass add gradients of one operation to each other where it has both, so that they need not be read and written again.
func (t *training) joinSums(pieces []piece) {
	for from := 0; from < len(pieces); {
		p, to := pieces[from].pass, from+1
		for to < len(pieces) && pieces[to].pass == p && pieces[to].index == pieces[to-1].index+1 {
			to++
		}
		for i := from; i < to && p.reduction != nil; i++ {
			t.examples[i].Onto = p.reduction.Onto(pieces[i].index, pieces[from].index, pieces[to-1].index)
		}
		from = to
	}
}

// pagesOf is the number of pages that a sequence takes.
func pagesOf(tokens []int32) int { return (len(tokens) + kvcache.PageSize - 1) / kvcache.PageSize }

// chooseRecompute decides whether a batch computes its activations again: always, never, or, when that is left to the engine, if one of its operations must or if they do not fit the replica's share of training. It notes
// the memory that the pass takes.
func (l *loaded) chooseRecompute(t *training) (err error) {
	t.recompute = t.recompute || l.plan.recompute == RecomputeOn
	if t.need, err = l.measure(t.tokens, t.rank, t.recompute || !t.backward); err != nil {
		return err
	}
	if !t.recompute && t.backward && l.plan.recompute == RecomputeAuto && l.passBytes(t.need, t.pages) > l.plan.training/int64(len(l.training)) {
		t.recompute = true
		t.need, err = l.measure(t.tokens, t.rank, true)
	}
	return err
}

// run takes the batch through the replica's model, in device steps of about so many operations. It counts running down when it has ended. On the home device, where the engine's own goroutine would wait for it, end does the
// waiting.
func (t *training) run(stepWork float64, running *atomic.Int32, yield func() error) error {
	r := t.replica
	return r.each(func(rank int) error {
		if rank == 0 {
			defer running.Add(-1)
		}
		pages, err := r.trainer.reserve(rank, r.models[rank], t.pages)
		if err != nil {
			return err
		}
		// Else the measure is of more than it takes. One datum alone has it all the same where there is room, because pieces would lose some, and it may be as long as the plan has just enough for.
		if t.backward && (len(r.models) == 1 || t.room && len(t.examples) == 1) {
			if err := r.trainer.workspaces[rank].Reserve(t.need); err != nil {
				return err
			}
		} else if err := r.trainer.workspaces[rank].Reserve(model.Memory{Operations: t.need.Operations}); err != nil && !errors.Is(err, tensor.ErrMemory) { // products do without
			return err
		}
		finish, err := r.models[rank].StartTrain(r.trainer.workspaces[rank], pages, t.examples, model.TrainOptions{Recompute: t.recompute, Yield: r.point(rank), StepWork: stepWork})
		if err != nil {
			return err
		}
		if r.homes.has(r.devices[rank]) {
			t.finish = finish
			return nil
		}
		outcomes, err := finish()
		if rank == 0 { // all ranks have the same
			t.outcomes = outcomes
		}
		return err
	}, yield)
}

// end waits for what run has left on the home device.
func (t *training) end() (err error) {
	if t.finish != nil {
		t.outcomes, err = t.finish()
	}
	return err
}
