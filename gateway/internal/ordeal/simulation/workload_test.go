package simulation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// training is a run as its client knows it.
type training struct {
	id       string
	model    string
	seed     uint64
	from     *saved // nil: fresh weights
	withAdam bool
	rank     int
	created  *task
	tasks    []*task // by seq_id
	seq      int64
	unloaded bool // its client has asked for that
}

// task is one operation that a client has asked for.
type task struct {
	of      *training
	number  int64
	what    string
	pass    *runs.ForwardBackward
	step    *runs.OptimStep
	save    *saved
	load    *saved
	optim   bool // of load
	bad     string
	overlap bool // it may have come so late that it was skipped

	id      string // set when it was acknowledged
	refused error  // how it was answered, if not by an acknowledgement
	outcome string // the first that its client saw
	result  *runs.Outcome
}

// saved is a checkpoint, or an unnamed sampler, that a client has asked for.
type saved struct {
	by   *task
	name string
	path string // "" for an unnamed one
	kind runs.CheckpointKind
	slot int64 // of an unnamed one
	ttl  int64 // seconds; 0 = none
	over bool  // overwrites
	kept bool  // somebody goes on from it: it is not deleted
	told bool  // its client knows that it was made
	uses []*sampling
}

// sampling is a sampling session and what was asked of it.
type sampling struct {
	id      string
	model   string
	from    *saved // nil: the base model
	samples []*sample
}

type sample struct {
	of      *sampling
	request runs.Sample
	id      string
	refused error
	outcome string
	result  *runs.Outcome
}

// work is what a client does in its life.
func (c *client) work() {
	defer func() {
		c.mu.Lock()
		c.done = true
		c.mu.Unlock()
	}()
	r := c.random
	time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
	info, err := ask(c, "create session", func(ctx context.Context, core *runs.Core) (runs.SessionInfo, error) {
		return core.CreateSession(ctx, runs.NewSession{Owner: c.owner, IdempotencyKey: fmt.Sprint("client ", c.number)})
	})
	if err != nil {
		c.w.violation("client %d gets no session: %v", c.number, err)
		return
	}
	c.mu.Lock()
	c.session = info.ID
	c.mu.Unlock()
	over := make(chan struct{})
	defer close(over)
	go c.beat(over)

	c.newTraining()
	for n := 0; n < c.w.plan.operations && !c.w.failed(); n++ {
		if len(c.runs) < 3 && r.Float64() < 0.15 {
			c.newTraining()
		}
		if len(c.runs) > 0 {
			c.round(c.runs[r.IntN(len(c.runs))])
		}
		if r.Float64() < 0.15 {
			time.Sleep(time.Duration(r.IntN(8000)) * time.Millisecond)
		}
		if r.Float64() < 0.3 {
			c.tidy()
		}
	}
	c.await()
	for _, t := range c.runs {
		if r.Float64() < 0.3 {
			c.unload(t)
		}
	}
	if r.Float64() < 0.3 {
		c.finish()
	}
}

// beat keeps the session alive.
func (c *client) beat(over chan struct{}) {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-tick.C:
		case <-over:
			return
		}
		c.send(fmt.Sprintf("c%d heartbeat %d", c.number, n), func(ctx context.Context, core *runs.Core) (any, error) {
			return nil, core.Heartbeat(ctx, c.owner, c.session)
		})
	}
}

// newTraining makes a run: from fresh weights, or from a checkpoint that somebody of the same owner has.
func (c *client) newTraining() {
	r := c.random
	n := int64(len(c.runs))
	t := &training{model: models[r.IntN(len(models))], seed: r.Uint64(), rank: 1 << r.IntN(3)}
	fromCheckpoint, loads, pick, adam := r.Float64() < 0.4, r.IntN(2) == 0, r.IntN(1000), r.IntN(2) == 0
	from := c.trainable(pick, nil)
	if fromCheckpoint && from != nil && !loads {
		t.from, t.model, t.withAdam, t.rank = from, from.by.of.model, adam, from.by.of.rank
	} else if fromCheckpoint && from != nil {
		t.model, t.rank = from.by.of.model, from.by.of.rank
	}
	made := &task{of: t, what: "create"}
	sent, err := ask(c, fmt.Sprint("create model ", n), func(ctx context.Context, core *runs.Core) (runs.Submitted, error) {
		if t.from != nil {
			return core.CreateRunFromCheckpoint(ctx, runs.NewRunFromCheckpoint{Owner: c.owner, SessionID: c.session, ModelSeq: n, Path: t.from.path, WithOptimizer: t.withAdam})
		}
		return core.CreateRun(ctx, runs.NewRun{
			Owner: c.owner, SessionID: c.session, ModelSeq: n, BaseModel: t.model,
			LoRA: runs.LoRAConfig{Rank: t.rank, Seed: &t.seed, TrainAttn: true, TrainMLP: true, TrainUnembed: true},
		})
	})
	if err != nil {
		c.refused(made, err)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.runs = append(c.runs, t) // its number is used
		t.unloaded = true
		return
	}
	made.id, t.id, t.created = sent.RequestID, sent.RunID, made
	c.mu.Lock()
	c.runs = append(c.runs, t)
	c.mu.Unlock()
	if t.from == nil && fromCheckpoint && from != nil && loads {
		t.seq++
		c.submit(c.add(&task{of: t, number: t.seq, what: "load", load: from, optim: adam}))
	}
}

// trainable picks a checkpoint that is there for as long as the test lasts: of any run, or of one.
func (c *client) trainable(pick int, of *training) *saved {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	var list []*saved
	for _, s := range c.w.saved {
		if s.kind == runs.KindWeights && s.ttl == 0 && !s.over && !c.w.deleted[s.path] && s.by.of.owner(c.w) == c.owner && (of == nil || s.by.of == of) {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil
	}
	s := list[pick%len(list)]
	s.kept = true
	return s
}

// owner is whose run it is.
func (t *training) owner(w *world) string {
	for _, c := range w.clients {
		if slices.Contains(c.runs, t) {
			return c.owner
		}
	}
	return ""
}

func (c *client) add(x *task) *task {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.of.tasks = append(x.of.tasks, x)
	return x
}

// round is what one does between two steps, more or less.
func (c *client) round(t *training) {
	if t.unloaded {
		return
	}
	r := c.random
	var group []*task
	next := func(what string) *task {
		t.seq++
		x := &task{of: t, number: t.seq, what: what}
		group = append(group, x)
		return x
	}
	var late *task
	for range 1 + r.IntN(3) {
		c.newPass(next("pass"))
		if r.Float64() < 0.1 {
			t.seq++ // a number that does not come, or comes late
			if r.IntN(3) > 0 {
				late = &task{of: t, number: t.seq, overlap: true, what: "late pass"}
				c.newPass(late)
			}
		}
	}
	if r.Float64() < 0.85 {
		next("step").step = &runs.OptimStep{Adam: plugins.AdamParams{LearningRate: 0.01 + 0.1*r.Float64(), Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradClipNorm: float64(r.IntN(2))}}
	}
	if r.Float64() < 0.25 {
		c.newSave(next("save"), runs.KindWeights)
	}
	if r.Float64() < 0.2 {
		c.newSave(next("save for sampler"), runs.KindSampler)
	}
	if r.Float64() < 0.25 {
		x := next("unnamed save")
		x.save = &saved{by: x, slot: t.number(c)*1000 + x.number}
	}
	if r.Float64() < 0.15 { // goes back to where it was
		pick, optim := r.IntN(1000), r.IntN(2) == 0
		if own := c.trainable(pick, t); own != nil {
			x := next("load")
			x.load, x.optim = own, optim
		}
	}
	for _, x := range group {
		c.add(x)
	}
	if r.Float64() < 0.35 {
		var all sync.WaitGroup
		for _, x := range group {
			x.overlap = len(group) > 1
			all.Go(func() { c.submit(x) })
		}
		all.Wait()
	} else {
		for _, x := range group {
			c.submit(x)
		}
	}
	if late != nil {
		time.Sleep(time.Duration(r.IntN(6000)) * time.Millisecond)
		c.add(late)
		c.submit(late)
	}
	again := group[r.IntN(len(group))]
	if r.Float64() < 0.15 {
		c.repeat(again)
	}
	if r.Float64() < 0.4 {
		c.await()
		c.use(group)
	}
}

// number is the run's among those of its client.
func (t *training) number(c *client) int64 { return int64(slices.Index(c.runs, t)) }

func (c *client) newPass(x *task) {
	r := c.random
	fb := &runs.ForwardBackward{Loss: "cross_entropy", ForwardOnly: r.Float64() < 0.15}
	if r.IntN(3) == 0 {
		fb.Loss = "importance_sampling"
	}
	for range 1 + r.IntN(2) {
		n := 2 + r.IntN(4)
		d := runs.Datum{Inputs: map[string]runs.Tensor{}}
		targets, a, b := make([]int64, n), make([]float32, n), make([]float32, n)
		for i := range n {
			d.Tokens = append(d.Tokens, int32(r.IntN(vocabulary)))
			targets[i], a[i], b[i] = int64(r.IntN(vocabulary)), r.Float32(), -3*r.Float32()
		}
		d.Inputs["target_tokens"] = runs.Tensor{Ints: targets}
		if fb.Loss == "cross_entropy" {
			d.Inputs["weights"] = runs.Tensor{Floats: a}
		} else {
			d.Inputs["advantages"], d.Inputs["logprobs"] = runs.Tensor{Floats: a}, runs.Tensor{Floats: b}
		}
		fb.Data = append(fb.Data, d)
	}
	if r.Float64() < 0.06 {
		fb.Data[0].Tokens[0], x.bad = vocabulary, "token 0 is 16"
	}
	x.pass = fb
}

func (c *client) newSave(x *task, kind runs.CheckpointKind) {
	r := c.random
	s := &saved{by: x, kind: kind, name: fmt.Sprint("at-", x.number)}
	switch r.IntN(6) {
	case 0:
		if !c.w.plan.lasting {
			s.ttl = int64(10 + r.IntN(100))
		}
	case 1:
		if kind == runs.KindWeights {
			s.name, s.over = "again", true
		}
	}
	s.path = runs.Path{RunID: x.of.id, Kind: kind, Name: s.name}.String()
	x.save = s
}

// submit asks for an operation.
func (c *client) submit(x *task) {
	what := fmt.Sprintf("%s %d:%d", x.what, x.of.number(c), x.number)
	sent, err := ask(c, what, func(ctx context.Context, core *runs.Core) (runs.Submitted, error) {
		return x.request(ctx, core, c.owner)
	})
	c.mu.Lock()
	if err == nil {
		x.id = sent.RequestID
	}
	c.mu.Unlock()
	if err != nil {
		c.refused(x, err)
	}
}

// request is one attempt to ask for an operation.
func (x *task) request(ctx context.Context, core *runs.Core, owner string) (runs.Submitted, error) {
	at := runs.Operation{Owner: owner, RunID: x.of.id, Seq: x.number}
	switch {
	case x.pass != nil:
		op := *x.pass
		op.Operation = at
		return core.ForwardBackward(ctx, op)
	case x.step != nil:
		op := *x.step
		op.Operation = at
		return core.OptimStep(ctx, op)
	case x.load != nil:
		return core.LoadWeights(ctx, runs.LoadWeights{Operation: at, Path: x.load.path, WithOptimizer: x.optim})
	case x.save.kind == runs.KindWeights:
		return core.SaveWeights(ctx, runs.SaveWeights{Operation: at, Name: x.save.name, TTLSeconds: x.save.seconds(), Overwrite: x.save.over})
	case x.save.kind == runs.KindSampler:
		return core.SaveWeightsForSampler(ctx, runs.SaveWeightsForSampler{Operation: at, Name: x.save.name, TTLSeconds: x.save.seconds()})
	}
	return core.SaveWeightsForSampler(ctx, runs.SaveWeightsForSampler{Operation: at, SamplerSeq: x.save.slot})
}

func (s *saved) seconds() *int64 {
	if s.ttl == 0 {
		return nil
	}
	return &s.ttl
}

// refused notes an answer that is no acknowledgement. Nothing that clients here ask for is refused, but of runs that have ended.
func (c *client) refused(x *task, err error) {
	c.mu.Lock()
	x.refused = err
	c.mu.Unlock()
	if !c.ended(x.of) {
		c.w.violation("%s %s:%d of client %d is refused: %v", x.what, x.of.id, x.number, c.number, err)
	}
}

// ended tells whether a run may be over by its client's wish.
func (c *client) ended(t *training) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return t.unloaded || c.finished
}

// repeat sends a request that was acknowledged once more, and another one with its number.
func (c *client) repeat(x *task) {
	if x.id == "" {
		return
	}
	what := fmt.Sprintf("repeat %s %d:%d", x.what, x.of.number(c), x.number)
	sent, err := ask(c, what, func(ctx context.Context, core *runs.Core) (runs.Submitted, error) {
		return x.request(ctx, core, c.owner)
	})
	if err != nil || sent.RequestID != x.id {
		c.w.violation("a repetition of %s is answered %q, %v", x.id, sent.RequestID, err)
	}
	other := task{of: x.of, number: x.number, step: &runs.OptimStep{Adam: plugins.AdamParams{LearningRate: 7, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8}}}
	_, err = ask(c, what+" otherwise", func(ctx context.Context, core *runs.Core) (runs.Submitted, error) {
		return other.request(ctx, core, c.owner)
	})
	if runs.KindOf(err) != runs.KindInvalid {
		c.w.violation("another request with the number of %s is answered with %v", x.id, err)
	}
}

// await waits for everything that was asked for.
func (c *client) await() {
	for _, t := range c.runs {
		if t.created != nil {
			c.outcome(t.created)
		}
		for _, x := range t.tasks {
			c.outcome(x)
		}
	}
	for _, s := range c.samplers {
		for _, x := range s.samples {
			if x.id != "" && x.outcome == "" {
				x.result = c.wait(x.id)
				c.mu.Lock()
				x.outcome = canonical(x.result)
				c.mu.Unlock()
			}
		}
	}
}

func (c *client) outcome(x *task) {
	if x.id == "" || x.outcome != "" || c.w.failed() {
		return
	}
	result := c.wait(x.id)
	c.mu.Lock()
	x.result, x.outcome = result, canonical(result)
	c.mu.Unlock()
	if s := x.save; s != nil && result != nil && result.Failure == nil {
		c.w.mu.Lock()
		defer c.w.mu.Unlock()
		s.told = true
		if s.path != "" && s.over {
			c.w.saved = slices.DeleteFunc(c.w.saved, func(other *saved) bool { return other.path == s.path })
		}
		if s.path != "" {
			c.w.saved = append(c.w.saved, s)
		}
	}
}

func (c *client) wait(id string) *runs.Outcome {
	out, err := ask(c, "wait for "+id, func(ctx context.Context, core *runs.Core) (*runs.Outcome, error) {
		return core.Wait(ctx, c.owner, id, 5*time.Second)
	})
	if err != nil {
		c.w.violation("client %d gets no result of %s: %v", c.number, id, err)
		return nil
	}
	return out
}

// use samples what was saved.
func (c *client) use(group []*task) {
	r := c.random
	var list []*sampling
	for _, x := range group {
		s := x.save
		if s == nil || x.result == nil || x.result.Failure != nil || s.kind == runs.KindWeights || s.ttl > 0 {
			continue
		}
		smp := &sampling{model: x.of.model, from: s}
		if s.path == "" {
			smp.id = x.result.SavedSampler.SamplerID
		} else {
			smp.id = c.newSampler(runs.NewSampler{Owner: c.owner, SessionID: c.session, Seq: s.slotOf(c), ModelPath: s.path})
		}
		list = append(list, smp)
	}
	if r.Float64() < 0.1 {
		model := models[r.IntN(len(models))]
		list = append(list, &sampling{model: model, id: c.newSampler(runs.NewSampler{Owner: c.owner, SessionID: c.session, Seq: 900_000 + int64(len(c.samplers)), BaseModel: model})})
	}
	if len(c.samplers) > 0 && r.Float64() < 0.3 {
		list = append(list, c.samplers[r.IntN(len(c.samplers))])
	}
	for _, smp := range list {
		if smp.id == "" {
			continue
		}
		if !slices.Contains(c.samplers, smp) {
			c.mu.Lock()
			c.samplers = append(c.samplers, smp)
			if smp.from != nil {
				smp.from.uses = append(smp.from.uses, smp)
			}
			c.mu.Unlock()
		}
		c.draw(smp, 1+r.IntN(2))
	}
}

func (s *saved) slotOf(c *client) int64 { return 500_000 + s.by.of.number(c)*1000 + s.by.number }

func (c *client) newSampler(req runs.NewSampler) string {
	info, err := ask(c, fmt.Sprint("create sampler ", req.Seq), func(ctx context.Context, core *runs.Core) (runs.SamplerInfo, error) {
		return core.CreateSampler(ctx, req)
	})
	if err != nil {
		c.w.violation("client %d gets no sampler of %s: %v", c.number, req.ModelPath, err)
	}
	return info.ID
}

// draw asks for samples at the same time.
func (c *client) draw(smp *sampling, n int) {
	r := c.random
	var all sync.WaitGroup
	for range n {
		seed, tokens := r.Uint64(), 1+r.IntN(6)
		req := runs.Sample{Owner: c.owner, SamplerID: smp.id, Seq: int64(len(smp.samples)), NumSamples: 1 + r.IntN(2), Params: runs.SamplingParams{
			MaxTokens: &tokens, Seed: &seed, Temperature: float64(r.IntN(3)) / 2, TopP: 1, Stops: runs.Stops{Given: true},
		}}
		for range 2 + r.IntN(4) {
			req.Prompt = append(req.Prompt, int32(r.IntN(vocabulary)))
		}
		x := &sample{of: smp, request: req}
		c.mu.Lock()
		smp.samples = append(smp.samples, x)
		c.mu.Unlock()
		all.Go(func() {
			sent, err := ask(c, fmt.Sprint("sample ", x.request.SamplerID, ":", x.request.Seq), func(ctx context.Context, core *runs.Core) (runs.SubmittedSample, error) {
				return core.Sample(ctx, x.request)
			})
			c.mu.Lock()
			x.id, x.refused = sent.RequestID, err
			c.mu.Unlock()
			if err != nil {
				c.w.violation("a sample of %s is refused: %v", smp.id, err)
			}
		})
	}
	all.Wait()
}

// tidy deletes a checkpoint, or gives it a time to live.
func (c *client) tidy() {
	r := c.random
	pick, del := r.IntN(1000), r.IntN(2) == 0
	c.w.mu.Lock()
	var mine []*saved
	for _, s := range c.w.saved {
		if slices.Contains(c.runs, s.by.of) && !c.w.deleted[s.path] && !s.kept && s.ttl == 0 && len(s.uses) == 0 {
			mine = append(mine, s)
		}
	}
	if len(mine) == 0 {
		c.w.mu.Unlock()
		return
	}
	s := mine[pick%len(mine)]
	if del {
		c.w.deleted[s.path] = true
	}
	c.w.mu.Unlock()
	key := fmt.Sprint("key of ", s.path)
	what := fmt.Sprintf("%s %d:%s", map[bool]string{true: "delete", false: "publish"}[del], s.by.of.number(c), s.name)
	_, err := ask(c, what, func(ctx context.Context, core *runs.Core) (struct{}, error) {
		if del {
			return nothing(core.DeleteCheckpoint(ctx, c.owner, s.path, key))
		}
		return nothing(core.PublishCheckpoint(ctx, c.owner, s.path, true))
	})
	// Which deletions were asked for is not kept over a restart: a repetition may find nothing.
	if err != nil && !(del && runs.KindOf(err) == runs.KindNotFound) {
		c.w.violation("%s of %s: %v", what, s.path, err)
	}
}

func (c *client) unload(t *training) {
	if t.unloaded || t.id == "" {
		return
	}
	c.mu.Lock()
	t.unloaded = true
	c.mu.Unlock()
	sent, err := ask(c, fmt.Sprint("unload ", t.number(c)), func(ctx context.Context, core *runs.Core) (runs.Submitted, error) {
		return core.UnloadRun(ctx, c.owner, t.id)
	})
	if err == nil {
		c.wait(sent.RequestID)
	}
}

func (c *client) finish() {
	c.mu.Lock()
	c.finished = true
	c.mu.Unlock()
	_, err := ask(c, "finish session", func(ctx context.Context, core *runs.Core) (struct{}, error) {
		return nothing(core.FinishSession(ctx, c.owner, c.session, "success", ""))
	})
	if err != nil {
		c.w.violation("client %d cannot finish its session: %v", c.number, err)
	}
}
