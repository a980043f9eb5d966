package runs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// sampleJob is one accepted sample that is not finished.
type sampleJob struct {
	sampler *sampler
	future  *future
	req     sampleRequest
	bytes   int64
	most    int64 // tokens that it may sample, where that counts
	trace   trace.SpanContext

	running bool     // it has a goroutine, which completes it
	stop    func()   // ends the call to the backend, once there is one
	why     *Failure // set: it was cancelled
	blame   blame
}

// accepted is what one owner has of samples that are not finished.
type accepted struct {
	samples int
	bytes   int64     // of their prompts
	refused time.Time // when one more was, last
	why     string    // by which limit of the owner's; "" = by one of everybody
}

// fits tells whether the prompts of another sample may be kept. Where all that they may have is taken, an owner may still have its equal part of it, or one sample: nobody keeps
// others out by being first. mu is held.
func (c *Core) fits(j *sampleJob) bool {
	if c.promptBytes+j.bytes <= c.cfg.MaxQueuedBytes {
		return true
	}
	own := c.owners[j.sampler.Owner]
	owners := len(c.owners)
	if own.samples == 0 {
		owners++
	}
	return own.bytes == 0 || own.bytes+j.bytes <= c.cfg.MaxQueuedBytes/int64(owners)
}

// admit counts a sample against the limits. mu is held.
func (c *Core) admit(j *sampleJob) {
	a := c.owners[j.sampler.Owner]
	a.samples, a.bytes = a.samples+1, a.bytes+j.bytes
	c.owners[j.sampler.Owner] = a
	c.promptBytes += j.bytes
	if c.metered(j.sampler.Owner, paceSampled) != nil {
		j.most = int64(j.req.NumSamples) * int64(j.req.MaxTokens)
		c.reserve(j.sampler.Owner, j.most)
	}
	if j.sampler.jobs == nil {
		j.sampler.jobs = map[*sampleJob]bool{}
	}
	j.sampler.jobs[j] = true
	j.future.cancel = func() {
		c.cancelJob(j, &Failure{Message: "the sample was cancelled", Category: CategoryUser})
	}
}

// dismiss takes it out of the counts. mu is held.
func (c *Core) dismiss(j *sampleJob) {
	a := c.owners[j.sampler.Owner]
	if a.samples, a.bytes = a.samples-1, a.bytes-j.bytes; a.samples > 0 {
		c.owners[j.sampler.Owner] = a
	} else {
		delete(c.owners, j.sampler.Owner)
	}
	c.promptBytes -= j.bytes
	if j.most > 0 {
		c.reserve(j.sampler.Owner, -j.most)
		j.most = 0
	}
	delete(j.sampler.jobs, j)
}

// queueSample lets an admitted sample wait for its turn. mu is held.
func (c *Core) queueSample(j *sampleJob) {
	if j.why != nil { // cancelled while it was journalled
		c.finishCancelled(j)
		return
	}
	j.sampler.model.samples.push(j)
	c.pumpSamples(j.sampler.model)
}

// pumpSamples gives the backend what it may have. mu is held.
func (c *Core) pumpSamples(m *model) {
	q := &m.samples
	for !c.closing && m.open() {
		j := q.pop(c.places(m), c.share)
		if j == nil {
			return
		}
		if j.why != nil {
			q.ended(j)
			continue // finished already
		}
		c.beginSample(j)
	}
}

// beginSample has a sample run that counts as running. mu is held.
func (c *Core) beginSample(j *sampleJob) {
	j.running = true
	j.blame.job, j.blame.what = j, j.future.id
	c.start(func(ctx context.Context) { c.runSample(ctx, j) })
}

// cancelJob ends a sample. mu is held.
func (c *Core) cancelJob(j *sampleJob, why *Failure) {
	if j.why != nil {
		return
	}
	j.why = why
	if j.running {
		if j.stop != nil {
			j.stop()
		}
		return
	}
	select {
	case <-j.future.accepted:
		j.req = sampleRequest{} // it counts against no limit any more, so its prompt may not stay
		j.sampler.model.samples.cancelled(j.sampler)
		c.finishCancelled(j)
	default: // queueSample sees it
	}
}

// finishCancelled completes a sample that has no goroutine. mu is held.
func (c *Core) finishCancelled(j *sampleJob) {
	c.start(func(ctx context.Context) {
		c.finish(ctx, j.future, &Outcome{Failure: j.why}, 0, store.Batch{}, func() { c.dismiss(j) })
	})
}

// runSample runs one sample. When the server stops meanwhile it stays unfinished in the journal.
func (c *Core) runSample(ctx context.Context, j *sampleJob) {
	m := j.sampler.model
	callCtx, cancel := context.WithCancel(trace.ContextWithSpanContext(ctx, j.trace))
	defer cancel()
	c.mu.Lock()
	j.stop = cancel
	if j.why != nil {
		cancel()
	}
	c.mu.Unlock()
	j.future.begun = c.cfg.now().UTC()
	result, err := c.sampleUntilDone(callCtx, j)
	out := Outcome{Sample: result}
	var batch store.Batch
	stored := func() {}
	c.mu.Lock()
	why := j.why
	on := j.blame.slot
	c.clear(&j.blame)
	if err == nil {
		c.worked(on)
	}
	c.mu.Unlock()
	switch {
	case why != nil:
		out = Outcome{Failure: why}
	case err != nil && (ctx.Err() != nil || errors.Is(err, errClosing)):
		c.mu.Lock()
		m.samples.ended(j)
		c.mu.Unlock()
		return
	case err != nil:
		out = Outcome{Failure: failureOf(err)}
	default:
		batch.Add = c.sampleUsage(j, result)
		c.mu.Lock()
		batch.Add = append(batch.Add, c.spend(j.sampler.Owner, paceSampled, result.sampled())...)
		c.mu.Unlock()
		stored = c.sampledOf(j.sampler.RunID, j.future.id, result.entropies(), &batch)
	}
	batch.Release = releasedPrompt(j)
	c.finish(ctx, j.future, &out, 0, batch, func() {
		stored()
		c.dismiss(j)
		m.samples.ended(j)
		c.pumpSamples(m)
	})
}

// releasedPrompt gives up the journalled request of a sample that is finished, where it is worth the work. Its key and hash stay.
func releasedPrompt(j *sampleJob) []store.Span {
	const worthwhile = 8 << 10
	if j.bytes < worthwhile {
		return nil
	}
	parent, seq := parentOf(j.future.id)
	return []store.Span{{Collection: inOperations, Parent: parent, Range: store.Range{From: seq, To: seq + 1}}}
}

// sampleUntilDone tries until the backend has done it: a process that went away is waited for, and so is room, unless there can be none as the backend is. The same seed gives the same tokens.
func (c *Core) sampleUntilDone(ctx context.Context, j *sampleJob) (*SampleResult, error) {
	for attempt := 0; ; attempt++ {
		result, err := c.sampleOnce(ctx, j, attempt)
		if err == nil {
			return result, nil
		}
		if ctx.Err() != nil || !lost(err) && plugins.KindOf(err) != plugins.KindCapacity && !c.movedToDisk(j, err) {
			return nil, err
		}
		if err := pause(ctx, attempt); err != nil {
			return nil, err
		}
	}
}

// movedToDisk tells whether a sample failed because its run was unloaded just then, after its weights had been written, or is being rebuilt.
func (c *Core) movedToDisk(j *sampleJob, err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := j.sampler.snap
	return plugins.KindOf(err) == plugins.KindNotFound && s != nil && (!s.hot && s.dir != "" || s.run != nil && s.run.rebuild != nil)
}

func (c *Core) sampleOnce(ctx context.Context, j *sampleJob, attempt int) (result *SampleResult, err error) {
	m := j.sampler.model
	b, src, err := c.place(ctx, m, func() (source, error) { return c.samplerSource(j.sampler) }, &j.req.SampleRequest, &j.blame)
	if err != nil {
		return nil, err
	}
	defer c.leave(b, j.req.NumSamples)
	if err := c.take(ctx, b, &j.blame); err != nil {
		return nil, err
	}
	defer func() {
		c.mu.Lock()
		c.gave(&j.blame, err)
		c.mu.Unlock()
	}()
	adapter, version, release, err := c.acquire(ctx, b, src)
	if err != nil {
		return nil, err
	}
	defer release()
	req := j.req.SampleRequest
	req.Adapter, req.Version = adapter, version
	req.ID, req.Share, req.PrefixScope = j.future.id, c.share(j.sampler.Owner), c.prefixScope(j.sampler.Owner)
	if attempt > 0 { // an earlier attempt may not have ended there yet
		req.ID += "#" + itoa(attempt)
	}
	req.AtEnd = len(j.req.StopStrings) == 0 // else its tokens are looked at as they come, to end it
	col := newCollector(j.req)
	if err := c.sample(ctx, b, m, req, j.req.StopStrings, col.event); err != nil {
		return nil, err
	}
	return col.result()
}

// sample calls the backend, cutting sequences where a stop string is complete.
func (c *Core) sample(ctx context.Context, b Backend, m *model, req plugins.SampleRequest, stops []string, emit func(plugins.SampleEvent) error) error {
	if len(stops) == 0 {
		return b.Sample(ctx, req, emit)
	}
	return c.sampleCut(ctx, b, m, req, stops, emit)
}

// sampleCut is sample for an emit that may end sequences by [ErrEndSequence].
func (c *Core) sampleCut(ctx context.Context, b Backend, m *model, req plugins.SampleRequest, stops []string, emit func(plugins.SampleEvent) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var cancelling sync.WaitGroup
	defer cancelling.Wait()
	defer cancel()
	k := cutter{emit: emit, sequences: make([]cutSequence, req.NumSamples), cancel: func(sequence int) {
		// The backend may be calling us with its own order of events to keep, so it is not called back from here.
		cancelling.Go(func() {
			if err := b.Cancel(ctx, plugins.CancelRequest{ID: req.ID, Sequence: sequence}); err != nil && !lost(err) {
				c.logged("a sequence could not be cancelled", err, "request", req.ID)
			}
		})
	}}
	for i := range k.sequences {
		if len(stops) > 0 {
			k.sequences[i].matcher = m.NewStopMatcher(stops)
		}
	}
	return b.Sample(ctx, req, k.event)
}

// cutter passes on the events of a sample up to the token that completes a stop string.
type cutter struct {
	sequences []cutSequence
	emit      func(plugins.SampleEvent) error
	cancel    func(sequence int)
}

type cutSequence struct {
	matcher StopMatcher // nil without stop strings
	ended   bool
}

func (k *cutter) event(e plugins.SampleEvent) error {
	switch {
	case e.Tokens != nil:
		if e.Tokens.Sequence < 0 || e.Tokens.Sequence >= len(k.sequences) {
			return fmt.Errorf("the backend sent tokens of sequence %d of %d", e.Tokens.Sequence, len(k.sequences))
		}
		s := &k.sequences[e.Tokens.Sequence]
		if s.ended {
			return nil
		}
		for i, t := range e.Tokens.Tokens {
			if s.matcher == nil || !s.matcher.Push(t) {
				continue
			}
			if err := k.emit(plugins.SampleEvent{Tokens: firstTokens(e.Tokens, i+1)}); err != nil && !errors.Is(err, ErrEndSequence) {
				return err
			}
			return k.end(e.Tokens.Sequence)
		}
		if err := k.emit(e); !errors.Is(err, ErrEndSequence) {
			return err
		}
		return k.end(e.Tokens.Sequence)
	case e.Finished != nil && e.Finished.Sequence >= 0 && e.Finished.Sequence < len(k.sequences):
		s := &k.sequences[e.Finished.Sequence]
		if s.ended {
			return nil
		}
		s.ended = true
	}
	return k.emit(e)
}

// end ends a sequence after the tokens that were passed on.
func (k *cutter) end(sequence int) error {
	k.sequences[sequence].ended = true
	k.cancel(sequence)
	return k.emit(plugins.SampleEvent{Finished: &plugins.SequenceFinished{Sequence: sequence, Reason: plugins.StopToken}})
}

// firstTokens cuts a piece of a sequence.
func firstTokens(t *plugins.SampledTokens, n int) *plugins.SampledTokens {
	out := *t
	out.Tokens = t.Tokens[:n]
	out.Logprobs = t.Logprobs[:min(n, len(t.Logprobs))]
	if t.ConstraintLogprobs != nil {
		out.ConstraintLogprobs = t.ConstraintLogprobs[:min(n, len(t.ConstraintLogprobs))]
	}
	if k := t.Top.K; k > 0 {
		out.Top.IDs = t.Top.IDs[:min(n*k, len(t.Top.IDs))]
		out.Top.Logprobs = t.Top.Logprobs[:min(n*k, len(t.Top.Logprobs))]
	}
	return &out
}

// collector gathers the events of a sample into its result.
type collector struct {
	sample   SampleResult
	prompted bool
	finished []bool
}

func newCollector(req sampleRequest) *collector {
	return &collector{
		sample: SampleResult{
			Sequences: make([]SampledSequence, req.NumSamples), PromptLength: len(req.Prompt), TargetPromptTokens: req.TargetPromptTokens,
			TargetPromptK: req.TargetPromptK, TargetPromptSparse: req.SparseTargets, PromptAlternatives: req.PromptAlternatives,
		},
		finished: make([]bool, req.NumSamples),
	}
}

func (k *collector) event(e plugins.SampleEvent) error {
	switch {
	case e.Prompt != nil:
		k.sample.Prompt, k.prompted = *e.Prompt, true
	case e.Tokens != nil:
		t := e.Tokens
		if t.Sequence < 0 || t.Sequence >= len(k.finished) || k.finished[t.Sequence] || len(t.Logprobs) != len(t.Tokens) {
			return fmt.Errorf("the backend sent %d tokens and %d log-probabilities for sequence %d of %d", len(t.Tokens), len(t.Logprobs), t.Sequence, len(k.finished))
		}
		s := &k.sample.Sequences[t.Sequence]
		s.Tokens = append(s.Tokens, t.Tokens...)
		s.Logprobs = append(s.Logprobs, t.Logprobs...)
		if t.Top.K > 0 {
			s.Top.K = t.Top.K
			s.Top.IDs = append(s.Top.IDs, t.Top.IDs...)
			s.Top.Logprobs = append(s.Top.Logprobs, t.Top.Logprobs...)
		}
	case e.Finished != nil:
		f := e.Finished
		if f.Sequence < 0 || f.Sequence >= len(k.finished) {
			return fmt.Errorf("the backend ended sequence %d of %d", f.Sequence, len(k.finished))
		}
		if f.Reason == plugins.StopCancelled {
			return &plugins.Error{Kind: plugins.KindCancelled, Message: "the backend cancelled the sample"}
		}
		k.finished[f.Sequence] = true
		k.sample.Sequences[f.Sequence].StoppedByLength = f.Reason == plugins.StopLength
	}
	return nil
}

// result gives what was gathered, if it is whole.
func (k *collector) result() (*SampleResult, error) {
	for i, ok := range k.finished {
		if !ok || !k.prompted {
			return nil, fmt.Errorf("the backend ended the sample without finishing sequence %d", i)
		}
	}
	return &k.sample, nil
}

// resumeSample queues a sample that an earlier process accepted. A suspect among them waits for its trial, not for its turn. mu is held.
func (c *Core) resumeSample(f *future, rec store.Record, known charges) {
	s := c.samplers[rec.Parent]
	if s == nil || s.session == nil || !s.session.active() || s.model == nil {
		c.start(func(ctx context.Context) {
			why := &Failure{Message: "the sampling session ended while the server was down", Category: CategoryServer}
			c.finish(ctx, f, &Outcome{Failure: why}, 0, store.Batch{}, nil)
		})
		return
	}
	c.start(func(ctx context.Context) {
		payload, err := c.cfg.Store.Payload(ctx, rec)
		var req sampleRequest
		if err == nil {
			req, err = decodeSample(payload)
		}
		if err != nil {
			why := &Failure{Message: "the journalled request cannot be read: " + err.Error(), Category: CategoryServer}
			c.finish(ctx, f, &Outcome{Failure: why}, 0, store.Batch{}, nil)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		f.model = s.model
		j := &sampleJob{sampler: s, future: f, req: req, bytes: req.promptBytes()}
		c.admit(j)
		if j.blame.job = j; s.model.slots[0].charge(&j.blame, known) && j.why == nil {
			s.model.samples.begin(j)
			c.beginSample(j)
			c.proceed(j.blame.slot)
			return
		}
		c.queueSample(j)
	})
}
