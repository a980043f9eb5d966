package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// trainer is the memory of training passes on one replica, by rank.
type trainer struct {
	memory     []*budget
	workspaces []*model.Workspace
	pages      []tensor.Pages // keys and values of one packed pass; grow to the largest
}

// passBound is how large passes may be after the device had no memory for larger ones.
type passBound struct {
	data  int // of one replica's pass at most; 0 = no bound
	since int // passes that have gone through with that bound
}

// patience is how many passes go through with a bound before it is doubled.
const patience = 64

// tooMuch notes that a pass of so many data had no memory.
func (b *passBound) tooMuch(data int) {
	b.data, b.since = max(1, data/2), 0
}

// through notes that a pass has gone through.
func (b *passBound) through() {
	if b.data == 0 {
		return
	}
	if b.since++; b.since >= patience {
		b.data, b.since = 2*b.data, 0
	}
	if b.data > mostTokens {
		b.data = 0
	}
}

// pass is one ForwardBackward operation while it runs. Its data goes through the model in as many packed batches as it takes, together with other operations' data, in order on each replica.
type pass struct {
	run     *run
	op      *operation
	version *version

	left      int // data that have not gone through
	settled   bool
	again     bool // its activations are computed again in the backward pass, because there was no memory to keep those of a single datum
	reduction *lora.Reduction
	total     *lora.Gradient       // the reduction's, once all data have gone through
	finite    bool                 // total was found to be
	give      func(*lora.Gradient) // takes total back
	logprobs  [][]float32
	losses    []float64
	failure   error

	begin  time.Time // of its first batch
	before turns     // what the sampler had had by then
}

// restart forgets what has gone through.
func (p *pass) restart() {
	p.abandon()
	n := len(p.op.pass.Data)
	p.left, p.logprobs, p.losses = n, make([][]float32, n), make([]float64, n)
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

// piece is one datum in a batch.
type piece struct {
	pass  *pass
	index int
}

// execute runs passes of any number of runs, fused and spread over the replicas, and decides each as soon as it is through. A batch for which there is no memory is tried again with half of its data, down to a single
// datum on one replica, and that again with its activations computed twice; only what does not fit then fails. A batch that fails as a whole for another reason says nothing about a single one of its operations:
// each of them is tried again alone, and fails only if it fails alone.
func (e *Engine) execute(passes []*pass, cycle int64) {
	for _, p := range passes {
		p.restart()
	}
	l := e.loaded
	lanes := spread(passes, len(l.training))
	inTurn := false // for want of memory, one replica at a time
	for {
		var batches []batch
		for i := range lanes {
			if inTurn && len(batches) > 0 {
				break
			}
			if pieces := e.fill(&lanes[i], len(lanes)); len(pieces) > 0 {
				batches = append(batches, batch{replica: e.loaded.training[i], pieces: pieces})
			}
		}
		e.settleAll(passes, cycle) // those that had failed before
		if len(batches) == 0 {
			return
		}
		err := e.runBatches(batches)
		if err == nil {
			l.bound.through()
			e.settleAll(passes, cycle)
			if e.yield() != nil { // the engine is closing and fails what is left
				for _, p := range passes {
					p.abandon()
				}
				return
			}
			continue
		}
		var touched []*pass
		for _, p := range passes {
			if slices.ContainsFunc(batches, func(b batch) bool {
				return slices.ContainsFunc(b.pieces, func(at piece) bool { return at.pass == p })
			}) {
				touched = append(touched, p)
			}
		}
		if isMemory(err) {
			largest := 0
			for _, b := range batches {
				largest = max(largest, len(b.pieces))
			}
			for _, p := range touched {
				p.restart()
			}
			switch p := touched[0]; {
			case largest > 1:
				l.bound.tooMuch(largest)
			case len(batches) > 1:
				inTurn = true
			case l.plan.recompute == RecomputeAuto && !p.again && !p.op.pass.ForwardOnly:
				p.again = true
			default:
				p.failure = l.tooLarge(batches[0].pieces[0], err)
			}
			for i, first := range spread(touched, len(lanes)) {
				rest := slices.DeleteFunc(lanes[i], func(at piece) bool { return slices.Contains(touched, at.pass) })
				lanes[i] = append(first, rest...)
			}
			continue
		}
		// What has been touched runs alone, in order, before anything behind it is decided; the others go on in their lanes.
		for _, p := range touched {
			p.restart()
			if len(touched) == 1 || errors.Is(err, errClosed) {
				p.failure = internal("forward_backward", err)
			}
		}
		for i := range lanes {
			lanes[i] = slices.DeleteFunc(lanes[i], func(at piece) bool { return slices.Contains(touched, at.pass) })
		}
		for _, p := range touched {
			if p.failure == nil {
				e.alone(passes, p, cycle)
			}
		}
		e.settleAll(passes, cycle)
	}
}

// alone runs one pass of several by itself, leaving it to be settled in its place.
func (e *Engine) alone(passes []*pass, p *pass, cycle int64) {
	lanes := spread([]*pass{p}, len(e.loaded.training))
	for p.failure == nil {
		var batches []batch
		for i := range lanes {
			if pieces := e.fill(&lanes[i], len(lanes)); len(pieces) > 0 {
				batches = append(batches, batch{replica: e.loaded.training[i], pieces: pieces})
			}
		}
		if len(batches) == 0 {
			return
		}
		err := e.runBatches(batches)
		if err == nil {
			err = e.yield()
		}
		if err != nil {
			p.restart()
			p.failure = internal("forward_backward", err)
		}
	}
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

// tooLarge says why a datum cannot be trained.
func (l *loaded) tooLarge(at piece, cause error) error {
	tokens, rank := len(at.pass.op.pass.Data[at.index].Tokens), at.pass.run.layout.Rank
	message := fmt.Sprintf("%d tokens do not fit into memory", tokens)
	recompute := l.plan.recompute != RecomputeOff
	if need, err := l.datumBytes(tokens, rank, recompute); err == nil {
		how := "with its activations computed twice"
		if !recompute {
			how = "as backend.recompute is off"
		}
		left, limit := l.memory.free(), mebibytes(l.plan.limit)
		if len(l.memories) > 1 {
			ranks := int64(len(l.training[0].models))
			least := slices.MinFunc(l.memories, func(a, b *budget) int { return cmp.Compare(a.free(), b.free()) })
			need, left, limit = need/ranks, least.free(), mebibytes(least.limit.Load())+" of "+least.device
			how += ", for each rank"
		}
		message += fmt.Sprintf(": a training pass over them takes %s %s, and %s of %s (%s) are left beside the weights, the sampler and its keys and values",
			mebibytes(need), how, mebibytes(left), limit, l.plan.source)
	}
	return &plugins.Error{Kind: plugins.KindCapacity, Field: fmt.Sprintf("data[%d]", at.index), Message: message + ": " + cause.Error()}
}

// fill packs a lane's next batch: data in order up to the batch's tokens and memory, but one datum at least. Data of passes that have failed are left out.
func (e *Engine) fill(lane *[]piece, lanes int) []piece {
	l := e.loaded
	var taken []piece
	tokens, pages := 0, 0
	var memory int64 // of adapters: weights and buffers of gradients
	for ; len(*lane) > 0; *lane = (*lane)[1:] {
		at := (*lane)[0]
		p := at.pass
		if p.failure != nil {
			continue
		}
		n, bytes := len(p.op.pass.Data[at.index].Tokens), l.pieceMemory(taken, p, at.index)
		rows := (n + kvcache.PageSize - 1) / kvcache.PageSize
		if len(taken) > 0 {
			if taken[0].pass.op.pass.ForwardOnly != p.op.pass.ForwardOnly {
				break // data without gradient would go through the backward pass of those with one
			}
			if tokens+n > l.plan.batchTokens || pages+rows > passPages(l.plan.batchTokens) || memory+bytes > l.adapters.limit/int64(2*lanes) || len(taken) == l.bound.data {
				break
			}
		}
		taken = append(taken, at)
		tokens += n
		pages += rows
		memory += bytes
	}
	return taken
}

// settleAll decides the passes that are through or have failed, of each run in order.
func (e *Engine) settleAll(passes []*pass, cycle int64) {
	waits := map[*run]bool{}
	for _, p := range passes {
		switch {
		case p.settled || waits[p.run]:
		case p.left == 0 || p.failure != nil:
			p.settled = true
			e.settle(p, cycle)
		default:
			waits[p.run] = true
		}
	}
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

// runBatches runs one packed batch on each of several replicas at once, and adds the results to their operations. An error is about all of them: their operations are then undefined;
// after one for want of memory nothing is kept for passes.
func (e *Engine) runBatches(batches []batch) (err error) {
	l := e.loaded
	l.passing, l.lastPass = true, time.Now()
	defer func() {
		l.passing = false
		if isMemory(err) || l.trainingBytes() > l.plan.training {
			l.shrink()
		}
	}()
	pieces := batches[0].pieces
	for _, b := range batches[1:] {
		pieces = append(pieces[:len(pieces):len(pieces)], b.pieces...)
	}
	release, err := l.needWeights(len(pieces), func(i int) *version { return pieces[i].pass.version })
	if err != nil {
		return err
	}
	defer release()
	for _, b := range batches {
		for _, at := range b.pieces {
			if at.pass.begin.IsZero() {
				at.pass.begin, at.pass.before = time.Now(), e.turns
			}
		}
	}
	trainings := make([]training, len(batches))
	for i, b := range batches {
		if trainings[i], err = l.prepare(b); err != nil {
			return err
		}
	}
	if err := l.clear(trainings); err != nil {
		return err
	}
	begin, before, stepWork := time.Now(), e.turns, e.pace.stepWork()
	l.running.Store(int32(len(batches)))
	err = concurrently(len(batches), e.yield, func(i int, yield func() error) error { return trainings[i].run(stepWork, &l.running, yield) })
	// What is left to be done for the operations that are through is launched before the host waits for the passes.
	check := func() {}
	if err == nil {
		check = l.sum(pieces)
	}
	for i := range trainings {
		err = errors.Join(err, trainings[i].end())
	}
	check()
	if err != nil {
		return err
	}
	work := 0.0 // of all replicas
	for i, b := range batches {
		e.counters.trainedTokens.Add(int64(trainings[i].tokens))
		work += passWork(l.model, trainings[i].tokens, b.pieces[0].pass.op.pass.ForwardOnly)
		for k, at := range b.pieces {
			at.pass.add(at.index, trainings[i].outcomes[k])
		}
	}
	e.pace.trained(work/float64(len(batches)), time.Since(begin)-(e.turns.time-before.time))
	return nil
}

// passWork is about how many operations a pass over so many tokens takes, attention left out.
func passWork(m *model.Model, tokens int, forwardOnly bool) float64 {
	work := trainingWork * float64(m.Parameters) * float64(tokens)
	if forwardOnly {
		work /= 2
	}
	return work
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
	p.logprobs[index], p.losses[index] = o.Logprobs, o.Loss
	if o.Err != nil && p.failure == nil {
		p.failure = &plugins.Error{Kind: plugins.KindNotFinite, Field: fmt.Sprintf("data[%d]", index), Message: o.Err.Error()}
	}
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
	return t, l.chooseRecompute(&t)
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

// clear makes room for passes: pages that nothing is on, then adapters that nobody needs, then cached prompts are given up.
func (l *loaded) clear(trainings []training) error {
	need := make([]int64, len(l.memories))
	for _, t := range trainings {
		for rank, m := range t.replica.models {
			need[l.homes.index(t.replica.devices[rank])] += max(0, t.need.Bytes()+int64(t.pages)*pageBytes(m)-t.replica.trainer.rankBytes(rank))
		}
	}
	for {
		short := 0
		for short < len(need) && l.memories[short].free() >= need[short] {
			short++
		}
		if short == len(need) {
			return nil
		}
		if l.givePages(false) {
			continue
		}
		if short > 0 {
			return nil // adapters are counted at the first home: passes will tell
		}
		moved, err := l.adapters.moveOut()
		switch {
		case moved || l.givePages(true):
		case err != nil:
			return capacity("memory for a training pass", err)
		default:
			return nil // what is measured is what they take at most; they will tell
		}
	}
}

// trainingBytes is what training passes hold, on all replicas.
func (l *loaded) trainingBytes() int64 {
	var n int64
	for _, r := range l.training {
		n += r.trainer.bytes()
	}
	return n
}

// shrink gives the memory of training passes back unless some are under way, and tells whether there was any.
func (l *loaded) shrink() bool {
	if l.passing || l.trainingBytes() == 0 {
		return false
	}
	for _, r := range l.training {
		_ = r.each(func(rank int) error { // it cannot fail
			r.trainer.free(rank)
			return nil
		}, nil)
	}
	return true
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
		if len(r.models) == 1 && t.backward { // else the measure is of more than it takes
			if err := r.trainer.workspaces[rank].Reserve(t.need); err != nil {
				return err
			}
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

// reserve makes sure that a rank has n pages, all zero beyond what a pass will write, and gives them.
func (t *trainer) reserve(rank int, m *model.Model, n int) (tensor.Pages, error) {
	pages := t.pages[rank]
	if pages != nil && pages.Count() < n {
		t.freePages(rank)
		pages = nil
	}
	if pages == nil {
		bytes := int64(n) * pageBytes(m)
		if err := t.memory[rank].room(bytes); err != nil {
			return nil, capacity("memory for keys and values of training", err)
		}
		var err error
		if pages, err = m.NewPages(n); err != nil {
			t.memory[rank].give(bytes)
			return nil, capacity("memory for keys and values of training", err)
		}
		t.memory[rank].give(bytes - int64(pages.Bytes())) // what they are exactly
		t.pages[rank] = pages
		return pages, nil
	}
	for i := range n {
		if err := pages.Zero(int32(i)); err != nil {
			return nil, internal("clear a page", err)
		}
	}
	return pages, nil
}

// settle decides a pass that is through or has failed: its gradient is checked and added to the run's accumulator, or nothing is.
func (e *Engine) settle(p *pass, cycle int64) {
	err := p.failure
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
			err = e.loaded.accumulate(r.accumulator, sum)
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
	total := 0.0
	for _, x := range p.losses {
		total += x
	}
	r.decide(p.op, plugins.ForwardBackwardResult{Logprobs: p.logprobs, Metrics: map[string]float64{"loss:sum": total, "clock_cycle:unique": float64(cycle)}, Execution: e.execution(p.begin, p.before)}, nil)
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
