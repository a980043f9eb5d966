package engine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
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
func (b *passBound) through() { b.since++ }

// grow doubles a bound with which enough passes have gone through. It is called between cycles: within one a bound only falls, so that an operation for whose data the larger one is too much does not begin again each time.
func (b *passBound) grow() {
	if b.data == 0 || b.since < patience {
		return
	}
	if b.data, b.since = 2*b.data, 0; b.data > mostTokens {
		b.data = 0
	}
}

// execute runs passes of any number of runs, fused and spread over the replicas, and decides each as soon as it is through. A batch for which there is no memory is tried again with half of its data, down to a single
// datum on one replica, and that again with its activations computed twice; only what does not fit then fails, if nothing else is trained in the same cycle:
// else it has a cycle to come for itself. Where the disk takes no adapters that would have to be moved out for it, its run waits for a later cycle. A batch that fails as a whole for another reason says nothing about a single one of its operations: each of them is tried again alone, and fails only if it fails alone.
func (e *Engine) execute(passes []*pass, cycle int64) {
	for _, p := range passes {
		p.restart()
	}
	e.loaded.bound.grow()
	e.runPasses(passes, passes, cycle)
}

// runPasses runs some of the passes that are executed, and settles those that are through, of all of them. It is false if the engine is closing.
func (e *Engine) runPasses(some, passes []*pass, cycle int64) bool {
	l := e.loaded
	lanes := spread(some, len(l.training))
	inTurn := false      // for want of memory, one replica at a time
	var roomy *passBound // that of the last passes that went through, while smaller ones are tried
	for {
		e.settleAll(passes, cycle) // those that had failed before: nothing of a run that waits for it is in the batches
		var batches []batch
		for i := range lanes {
			if inTurn && len(batches) > 0 {
				break
			}
			if pieces := e.fill(&lanes[i], len(lanes)); len(pieces) > 0 {
				batches = append(batches, batch{replica: e.loaded.training[i], pieces: pieces})
			}
		}
		if len(batches) == 0 {
			return true
		}
		err := e.runBatches(batches)
		if err == nil {
			l.bound.through()
			roomy = nil
			e.settleAll(passes, cycle)
			if e.yield() != nil { // the engine is closing and fails what is left
				for _, p := range passes {
					p.abandon()
				}
				return false
			}
			continue
		}
		var touched []*pass
		for _, p := range some {
			if slices.ContainsFunc(batches, func(b batch) bool {
				return slices.ContainsFunc(b.pieces, func(at piece) bool { return at.pass == p })
			}) {
				touched = append(touched, p)
			}
		}
		if isMemory(err) || isStuck(err) {
			largest := 0
			for _, b := range batches {
				largest = max(largest, len(b.pieces))
			}
			for _, p := range touched {
				p.restart()
			}
			if roomy == nil {
				was := l.bound
				roomy = &was
			}
			switch p := touched[0]; {
			case largest > 1:
				l.bound.tooMuch(largest)
			case len(batches) > 1:
				inTurn = true
			case isStuck(err):
				e.putOff(passes, p.run, err)
			case l.plan.recompute == RecomputeAuto && !p.again && !p.op.pass.ForwardOnly:
				p.again = true
			default:
				p.failure = l.tooLarge(batches[0].pieces[0], err)
				l.bound, inTurn, roomy = *roomy, false, nil // this one has had no memory, which says nothing of the others
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
			if p.failure == nil && !p.held && !e.runPasses([]*pass{p}, passes, cycle) {
				return false
			}
		}
		e.settleAll(passes, cycle)
	}
}

// tooLarge says why a datum cannot be trained: because of the memory of adapters, if that is what was missing, or else of that of its pass. It is KindTooLarge where nothing else would have to be in memory for it.
func (l *loaded) tooLarge(at piece, cause error) error {
	p := at.pass
	refused := func(kind plugins.Kind, message string) error {
		return &plugins.Error{Kind: kind, Field: fmt.Sprintf("data[%d]", at.index), Message: message}
	}
	kind := internal("forward_backward", cause).Kind
	var crowded crowdedError
	if errors.As(cause, &crowded) || kind == plugins.KindTooLarge {
		sum, err := l.gradientBytes(p.run.layout)
		if err != nil {
			return err
		}
		need := l.adapters.weightBytes(p.run.layout) + gradientBuffers(len(p.op.pass.Data))*sum
		if !p.op.pass.ForwardOnly && need > l.adapters.limit {
			return refused(plugins.KindTooLarge, l.adapters.beyondLimit(fmt.Sprintf("the weights of an adapter of rank %d, and the gradients of %d data, take %s of memory", p.run.layout.Rank, len(p.op.pass.Data), mebibytes(need))).Error())
		}
		return refused(kind, "cannot be trained: "+cause.Error())
	}
	tokens, rank := len(p.op.pass.Data[at.index].Tokens), p.run.layout.Rank
	message := fmt.Sprintf("%d tokens do not fit into memory", tokens)
	recompute := l.plan.recompute != RecomputeOff
	if need, err := l.datumBytes(tokens, rank, recompute); err == nil {
		if most, err := l.mostForDatum(&l.plan, p.run.layout); err == nil && need > most {
			kind = plugins.KindTooLarge
		}
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
	return refused(kind, message+": "+cause.Error())
}

// fill packs a lane's next batch: data in order up to the batch's tokens and memory, but one datum at least. Data of passes that have failed or were put off are left out.
func (e *Engine) fill(lane *[]piece, lanes int) []piece {
	l := e.loaded
	var taken []piece
	tokens, pages := 0, 0
	var memory int64 // of adapters: weights and buffers of gradients
	for ; len(*lane) > 0; *lane = (*lane)[1:] {
		at := (*lane)[0]
		p := at.pass
		if p.failure != nil || p.held {
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
		case p.settled || p.held || waits[p.run]:
		case p.left == 0 || p.failure != nil:
			if later := e.settle(p, cycle, len(passes) == 1); later == nil {
				p.settled = true
			} else {
				e.putOff(passes, p.run, later)
			}
		default:
			waits[p.run] = true
		}
	}
}

// putOff leaves the passes of a run undecided that are not settled: those in the same cycle are given up, and what they hold with them. Where the disk is why, their turn comes again after a while; where the memory is that others' passes
// hold, the first has one of the next cycles for itself.
func (e *Engine) putOff(passes []*pass, r *run, why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range passes {
		if p.run == r && !p.settled && !p.held {
			p.abandon()
			p.held = true
			r.tag -= float64(p.op.tokens) / p.op.weight // it has not had them
		}
	}
	r.backlogged = true
	if isStuck(why) {
		e.holdBack(r)
	} else if !slices.Contains(e.lonely, r) {
		e.lonely = append(e.lonely, r)
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
		if isMemory(err) || isStuck(err) || l.trainingBytes() > l.plan.training {
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
			for i := range trainings {
				trainings[i].room = true
			}
			return nil
		}
		if l.givePages(false) {
			continue
		}
		moved, err := l.adapters.moveOut(short)
		switch {
		case moved || l.givePages(true):
		case err != nil:
			return noRoom("memory for a training pass", err)
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

// trim gives back what devices keep of freed memory, that of adapters at the homes included. That is never more than has been in use before, so nothing but rest needs it. No pass may be under way.
func (l *loaded) trim() {
	l.trimmed, l.deleted = time.Now(), 0
	for _, d := range l.homes.devices {
		d.Trim()
	}
	for _, r := range slices.Concat(l.training, l.sampling) {
		for _, d := range r.devices {
			if !l.homes.has(d) {
				d.Trim()
			}
		}
	}
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
