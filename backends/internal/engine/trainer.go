package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/optim"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// trainer is the memory of training passes. It belongs to the device goroutine.
type trainer struct {
	workspace *model.Workspace
	pages     tensor.Pages // keys and values of one packed pass; grows to the largest
}

// pass is one ForwardBackward operation while it runs. Its data goes through the model in order, in as many packed batches as it takes, together with other operations' data.
type pass struct {
	run     *run
	op      *operation
	version *version

	next      int // index of the first datum that has not gone through
	reduction *lora.Reduction
	logprobs  [][]float32
	loss      float64
	failure   error
}

// restart forgets what has gone through.
func (p *pass) restart() {
	p.abandon()
	p.next, p.logprobs, p.loss = 0, nil, 0
}

func (p *pass) abandon() {
	if p.reduction != nil {
		p.reduction.Abandon()
		p.reduction = nil
	}
}

// execute runs passes of any number of runs, fused, and decides each as soon as it is through. A batch that fails as a whole (for want of memory, say) says nothing about a single one of its
// operations: each of them is tried again alone, and fails only if it fails alone.
func (e *Engine) execute(passes []*pass, cycle int64) {
	for len(passes) > 0 {
		var batch []piece
		if batch, passes = e.fill(passes, cycle); len(batch) == 0 {
			continue
		}
		err := e.runBatch(batch)
		if err == nil {
			if e.yield() != nil { // the engine is closing and fails what is left
				for _, p := range passes {
					p.abandon()
				}
				return
			}
			continue
		}
		var touched []*pass
		for _, b := range batch {
			if len(touched) == 0 || touched[len(touched)-1] != b.pass {
				touched = append(touched, b.pass)
			}
		}
		// The operations of the batch were taken from the head of passes, but for the last, which may have more to come.
		if len(passes) > 0 && passes[0] == touched[len(touched)-1] {
			passes = passes[1:]
		}
		for _, p := range touched {
			p.restart()
			if len(touched) == 1 || errors.Is(err, errClosed) {
				p.failure = internal("forward_backward", err)
				e.settle(p, cycle)
			} else {
				e.execute([]*pass{p}, cycle)
			}
		}
	}
}

// piece is one datum in a batch.
type piece struct {
	pass  *pass
	index int
}

// fill packs the next batch: data in order, operation by operation, up to the batch's tokens, but one datum at least. It gives the passes that are not through yet; those that are through when
// the batch has run are left to runBatch. Failed passes are decided here.
func (e *Engine) fill(passes []*pass, cycle int64) ([]piece, []*pass) {
	var batch []piece
	tokens := 0
	var memory int64 // of adapters: weights and buffers of gradients
	for len(passes) > 0 {
		p := passes[0]
		if p.failure != nil {
			if len(batch) > 0 && batch[len(batch)-1].pass.run == p.run {
				break // the run's operations are decided in order: those in this batch first
			}
			e.settle(p, cycle)
			passes = passes[1:]
			continue
		}
		if len(batch) > 0 && batch[0].pass.op.pass.ForwardOnly != p.op.pass.ForwardOnly {
			break // data without gradient would go through the backward pass of those with one
		}
		for i := p.next; i < len(p.op.pass.Data); i++ {
			n, bytes := len(p.op.pass.Data[i].Tokens), e.loaded.pieceMemory(batch, p, i)
			if len(batch) > 0 && (tokens+n > e.loaded.config.BatchTokens || memory+bytes > e.loaded.adapters.limit/2) {
				return batch, passes
			}
			batch = append(batch, piece{p, i})
			tokens += n
			memory += bytes
		}
		passes = passes[1:]
	}
	return batch, passes
}

// pieceMemory is what a datum adds to the memory of adapters that its batch needs at once: the weights, unless the datum before it has them too, and a buffer if it is the first of its group.
func (l *loaded) pieceMemory(batch []piece, p *pass, index int) int64 {
	var n int64
	if len(batch) == 0 || batch[len(batch)-1].pass.version != p.version {
		n += p.version.weights.bytes
	}
	if data := len(p.op.pass.Data); !p.op.pass.ForwardOnly && (index == 0 || lora.GroupOf(index, data) != lora.GroupOf(index-1, data)) {
		n += lora.ParameterBytes(p.run.layout)
	}
	return n
}

// runBatch runs one packed batch, adds its results to their operations, and settles those that are through. An error is about the batch as a whole: its operations are then undefined.
func (e *Engine) runBatch(batch []piece) error {
	l := e.loaded
	examples := make([]model.Example, len(batch))
	tokens, pages := 0, 0
	release, err := l.needWeights(len(batch), func(i int) *version { return batch[i].pass.version })
	if err != nil {
		return err
	}
	defer release()
	for i, b := range batch {
		d := &b.pass.op.pass.Data[b.index]
		n := (len(d.Tokens) + kvcache.PageSize - 1) / kvcache.PageSize
		ids := make([]int32, n)
		for k := range ids {
			ids[k] = int32(pages + k)
		}
		pages += n
		tokens += len(d.Tokens)
		examples[i] = model.Example{
			Sequence: model.Sequence{Adapter: b.pass.version.weights.weights(), Tokens: d.Tokens, Pages: ids},
			Targets:  d.Targets, K: d.K, Loss: b.pass.op.loss,
			Inputs: loss.Inputs{Weights: d.Weights, Logprobs: d.Logprobs, Advantages: d.Advantages, SequenceRatioMask: d.SequenceRatioMask},
		}
		if b.pass.op.pass.ForwardOnly {
			continue
		}
		if b.pass.reduction == nil {
			layout := b.pass.run.layout
			b.pass.reduction = lora.NewReduction(l.device, layout, len(b.pass.op.pass.Data),
				func() (*lora.Gradient, error) { return l.adapters.gradient(layout) }, l.adapters.giveGradient)
		}
		if examples[i].Gradient, err = b.pass.reduction.Buffer(b.index); err != nil {
			return err
		}
	}
	if err := l.trainer.reserve(l.model, pages); err != nil {
		return err
	}
	recompute := l.config.Recompute == RecomputeOn || (l.config.Recompute == RecomputeAuto && activationBytes(l.model.Config, tokens) > l.config.TrainingMemory)
	begin, sampling := time.Now(), e.pace.sampling
	outcomes, err := l.model.Train(l.trainer.workspace, l.trainer.pages, examples, model.TrainOptions{Recompute: recompute, Yield: e.yield, StepWork: e.pace.stepWork()})
	if err != nil {
		return err
	}
	e.pace.trained(passWork(l.model, tokens, batch[0].pass.op.pass.ForwardOnly), time.Since(begin)-(e.pace.sampling-sampling))
	e.counters.trainedTokens.Add(int64(tokens))
	cycle := e.counters.cycles.Load()
	for i, b := range batch {
		p := b.pass
		p.next = b.index + 1
		if outcomes[i].Err != nil && p.failure == nil {
			p.failure = &plugins.Error{Kind: plugins.KindNotFinite, Field: fmt.Sprintf("data[%d]", b.index), Message: outcomes[i].Err.Error()}
		}
		p.logprobs = append(p.logprobs, outcomes[i].Logprobs)
		p.loss += outcomes[i].Loss
		if p.reduction != nil && p.failure == nil {
			if err := p.reduction.Done(b.index); err != nil {
				p.failure = internal("sum the gradient", err)
			}
		}
		if p.next == len(p.op.pass.Data) {
			e.settle(p, cycle)
		}
	}
	return nil
}

// passWork is about how many operations a pass over so many tokens takes, attention left out: two for each weight forward, and as many for the gradient by the inputs.
func passWork(m *model.Model, tokens int, forwardOnly bool) float64 {
	work := 2 * float64(m.Parameters) * float64(tokens)
	if !forwardOnly {
		work *= 2
	}
	return work
}

// activationBytes estimates what a training pass over so many tokens keeps between forward and backward without recomputation: of every layer two norms, the residual stream twice, queries, keys and values before and after
// their norm and rotation, the attention's output, and the three wide vectors of the MLP, in float32.
func activationBytes(c *model.Config, tokens int) int64 {
	heads := (c.Heads + 2*c.KVHeads) * c.HeadDim
	perLayer := 4*c.HiddenSize + 2*heads + c.Heads*c.HeadDim + 3*c.IntermediateSize
	return int64(tokens) * int64(c.Layers) * int64(perLayer) * int64(tensor.Float32.Size())
}

// reserve makes sure that there are n pages, all zero beyond what a pass will write.
func (t *trainer) reserve(m *model.Model, n int) error {
	if t.pages != nil && t.pages.Count() < n {
		t.pages.Free()
		t.pages = nil
	}
	if t.pages == nil {
		pages, err := m.NewPages(n)
		if err != nil {
			return capacity("memory for keys and values of training", err)
		}
		t.pages = pages
		return nil
	}
	for i := range n {
		if err := t.pages.Zero(int32(i)); err != nil {
			return internal("clear a page", err)
		}
	}
	return nil
}

// settle decides a pass that is through or has failed: its gradient is checked and added to the run's accumulator, or nothing is.
func (e *Engine) settle(p *pass, cycle int64) {
	err := p.failure
	var total *lora.Gradient
	if err == nil && p.reduction != nil {
		if total, err = p.reduction.Total(); err == nil {
			if bad := total.CheckFinite(); bad != nil {
				e.loaded.adapters.giveGradient(total)
				total, err = nil, notFinite("gradient", bad)
			}
		}
	}
	p.abandon()
	r := p.run
	e.mu.Lock()
	deleted := r.deleted
	e.mu.Unlock()
	if total != nil {
		switch {
		case deleted:
			e.loaded.adapters.giveGradient(total)
		case r.accumulator == nil:
			r.accumulator = e.loaded.adapters.adopt(fmt.Sprintf("gradient of adapter %q", r.id), total)
		default:
			err = e.loaded.accumulate(r.accumulator, total)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if r.deleted {
		return
	}
	if p.op.gradient() {
		r.window.add(err)
	}
	if err != nil {
		r.decide(p.op, nil, err)
		return
	}
	r.decide(p.op, plugins.ForwardBackwardResult{Logprobs: p.logprobs, Metrics: map[string]float64{"loss:sum": p.loss, "clock_cycle:unique": float64(cycle)}}, nil)
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

// needWeights has the weights of n versions in memory until release is called; those side by side may be the same, and nil is the base model.
func (l *loaded) needWeights(n int, version func(i int) *version) (release func(), err error) {
	var held []*spillable
	release = func() {
		for _, b := range held {
			l.adapters.done(b)
		}
	}
	for i := range n {
		v := version(i)
		if v == nil || (len(held) > 0 && held[len(held)-1] == v.weights) {
			continue
		}
		if err := l.adapters.need(v.weights); err != nil {
			release()
			return nil, err
		}
		held = append(held, v.weights)
	}
	return release, nil
}

// advance makes the version behind old from the accumulated gradient.
func (e *Engine) advance(r *run, old *version, a optim.Adam) (next *version, norms optim.Norms, err error) {
	l := e.loaded
	var gradient *lora.Gradient
	for _, b := range []*spillable{old.weights, old.moments, r.accumulator} {
		if b == nil { // no gradient is a gradient of zeros
			continue
		}
		if err := l.adapters.need(b); err != nil {
			return nil, norms, err
		}
		defer l.adapters.done(b)
	}
	if r.accumulator != nil {
		gradient = r.accumulator.gradient()
	} else {
		if gradient, err = l.adapters.gradient(r.layout); err != nil {
			return nil, norms, err
		}
		defer l.adapters.giveGradient(gradient)
	}
	if next, err = l.emptyVersion(r.id, r.layout, true); err != nil {
		return nil, norms, err
	}
	norms, err = optim.Step(l.device, next.weights.weights(), next.moments.state(), old.weights.weights(), old.moments.state(), gradient, a)
	if err != nil {
		l.free(next)
		return nil, norms, notFinite("optim_step", err)
	}
	next.step = next.moments.state().Step
	l.written(next)
	return next, norms, nil
}
