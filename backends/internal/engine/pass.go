package engine

import (
	"fmt"
	"maps"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// pass is one ForwardBackward operation while it runs. Its data goes through the model in as many packed batches as it takes, together with other operations' data, in order on each replica.
type pass struct {
	run     *run
	op      *operation
	version *version

	refused   bool // before it ran
	left      int  // data that have not gone through
	settled   bool
	held      bool // it waits, undecided, for a cycle to come: see Engine.putOff
	again     bool // its activations are computed again in the backward pass, because there was no memory to keep those of a single datum
	reduction *lora.Reduction
	total     *lora.Gradient       // the reduction's, once all data have gone through
	finite    bool                 // total was found to be
	give      func(*lora.Gradient) // takes total back
	logprobs  [][]float32
	terms     [][]float32
	losses    []float64
	loads     model.Loads // of experts
	failure   error

	begin  time.Time // of its first batch
	before turns     // what the sampler had had by then
}

// restart forgets what has gone through.
func (p *pass) restart() {
	p.abandon()
	n := len(p.op.pass.Data)
	p.left, p.logprobs, p.terms, p.losses = n, make([][]float32, n), make([][]float32, n), make([]float64, n)
	p.loads = nil
}

func (p *pass) abandon() {
	if p.reduction != nil {
		p.reduction.Abandon()
		p.reduction = nil
	}
	if p.total != nil {
		p.give(p.total)
		p.total, p.finite = nil, false
	}
}

// sum adds the gradients of data that have gone through to those of their operations, and has the sums that are complete checked; check, to be called once, notes which are finite.
func (l *loaded) sum(pieces []piece) (check func()) {
	var through []*pass
	var totals []tensor.Tensor
	for _, at := range pieces {
		p := at.pass
		p.left--
		if p.reduction == nil || p.failure != nil {
			continue
		}
		if err := p.reduction.Done(at.index); err != nil {
			p.failure = internal("sum the gradient", err)
			continue
		}
		if p.left > 0 {
			continue
		}
		if p.total, p.failure = p.reduction.Total(); p.total != nil {
			through, totals = append(through, p), append(totals, p.total.Values())
		}
	}
	wait, err := l.device.SumSquares(totals...)
	if err != nil {
		return func() {} // each is checked when it is settled: an error says nothing about a single one
	}
	return func() {
		squares, err := wait()
		if err != nil {
			return
		}
		for i, p := range through {
			p.finite = finite(squares[i])
		}
	}
}

// add books the outcome of a datum.
func (p *pass) add(index int, o model.Outcome) {
	p.logprobs[index], p.terms[index], p.losses[index] = o.Logprobs, o.Terms, o.Loss
	if o.Loads != nil {
		p.loads = p.loads.Add(o.Loads)
	}
	if o.Err != nil && p.failure == nil {
		p.failure = &plugins.Error{Kind: plugins.KindNotFinite, Field: fmt.Sprintf("data[%d]", index), Message: o.Err.Error()}
	}
}

// settle decides a pass that is through or has failed: its gradient is checked and added to the run's accumulator, or nothing is. The error it gives is why that cannot be done yet, and then nothing is decided: for the disk,
// or because others' passes, if it is not alone in its cycle, have memory that it needs.
func (e *Engine) settle(p *pass, cycle int64, alone bool) error {
	later := func(err error) bool {
		return !p.refused && (isStuck(err) || !alone && plugins.KindOf(err) == plugins.KindCapacity)
	}
	err := p.failure
	if later(err) {
		return err
	}
	if err == nil && p.total != nil && !p.finite {
		if bad := p.total.CheckFinite(); bad != nil {
			err = notFinite("gradient", bad)
		}
	}
	var sum *lora.Gradient
	if err == nil {
		sum, p.total = p.total, nil
	}
	p.abandon()
	r := p.run
	e.mu.Lock()
	deleted := r.deleted
	e.mu.Unlock()
	if sum != nil {
		switch {
		case deleted:
			e.loaded.adapters.giveGradient(sum)
		case r.accumulator == nil:
			r.accumulator = e.loaded.adapters.adopt(fmt.Sprintf("gradient of adapter %q", r.id), sum)
		default:
			if err = e.loaded.accumulate(r.accumulator, sum); later(err) {
				return err
			}
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.deleted {
		return nil
	}
	if p.op.gradient() {
		r.window.add(err)
	}
	if err != nil {
		r.decide(p.op, nil, err)
		return nil
	}
	total := 0.0
	for _, x := range p.losses {
		total += x
	}
	metrics := map[string]float64{"loss:sum": total, "clock_cycle:unique": float64(cycle)}
	if moe := e.loaded.model.Config.MoE; moe != nil {
		maps.Copy(metrics, p.loads.Metrics(moe.Experts))
	}
	r.decide(p.op, plugins.ForwardBackwardResult{Logprobs: p.logprobs, Terms: p.terms, Metrics: metrics, Execution: e.execution(p.begin, p.before)}, nil)
	return nil
}

// accumulate adds a gradient, which it frees, to an accumulated one.
func (l *loaded) accumulate(accumulator *spillable, g *lora.Gradient) error {
	defer l.adapters.giveGradient(g)
	if err := l.adapters.need(accumulator); err != nil {
		return err
	}
	defer l.adapters.done(accumulator)
	if err := l.device.Add(accumulator.gradient().Flat, g.Flat); err != nil {
		return internal("add the gradient", err)
	}
	l.adapters.changed(accumulator)
	return nil
}
