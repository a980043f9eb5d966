package runs

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// Tensor is a dense loss input. Exactly one of Floats and Ints is not nil unless it is empty.
type Tensor struct {
	Shape  []int // nil = one dimension
	Floats []float32
	Ints   []int64
}

// Span says where consecutive positions of a datum come from.
type Span struct {
	Sampled    bool   // from the sampled tokens of the sequence; else from its prompt
	SequenceID string // as given by Sample
	Offset     int64
	Length     int64
}

// Datum is one training sequence as a client sends it. Inputs go by their public names: target_tokens, weights, logprobs, advantages, sequence_ratio_mask.
type Datum struct {
	Tokens     []int32
	Inputs     map[string]Tensor
	InputSpans []Span // tile Tokens; nil = no provenance
	LossSpans  []Span // tile the rows of target_tokens
}

// Operation is what all operations of a run have in common.
type Operation struct {
	Owner string
	RunID string
	Seq   int64 // 1, 2, 3, … within the run; KindInvalid outside 1 … 2^31-1
	// Unnumbered says that Seq is not given: the operation comes behind everything of the run that has arrived, and gets the next number.
	Unnumbered bool
	// Refusal is a defect that the front end found in a well-formed request (an image chunk, a tensor whose bytes do not fit its shape): the operation takes its place in
	// the order and its future fails with this text, category user. "" = none.
	Refusal string
}

// ForwardBackward is one chunk of a client's call.
type ForwardBackward struct {
	Operation
	Data        []Datum
	Loss        string
	Config      map[string]float64 // numeric loss settings
	ConfigText  map[string]string  // textual ones; no loss that we have takes any
	ForwardOnly bool
}

// OptimStep is one optimizer step.
type OptimStep struct {
	Operation
	Adam plugins.AdamParams
}

// SaveWeights saves weights and optimizer state as tinker://RUN/weights/NAME.
type SaveWeights struct {
	Operation
	Name         string
	TTLSeconds   *int64
	Overwrite    bool
	UserMetadata map[string]string
}

// SaveWeightsForSampler saves weights for sampling. With a Name it makes a checkpoint tinker://RUN/sampler_weights/NAME; without, a sampling session over
// the weights as they are at its place in the order, which lives as long as the session.
type SaveWeightsForSampler struct {
	Operation
	Name         string
	SamplerSeq   int64 // used when Name is ""
	TTLSeconds   *int64
	UserMetadata map[string]string
	Kind         string // "" or "snapshot"; "inflight" is refused
}

// SaveWeightsExternal exports the adapter as tinker://RUN/external_weights/NAME.
type SaveWeightsExternal struct {
	Operation
	Name          string
	TTLSeconds    *int64
	UserMetadata  map[string]string
	AgeRecipients []string // encryption is not offered: not empty is refused
}

// LoadWeights loads a training checkpoint into a run at its place in the order: its weights, with WithOptimizer also Adam's moments and step count, which start at zero else. The accumulated gradient is cleared, whatever
// forward_backward or failed load it comes from.
type LoadWeights struct {
	Operation
	AccessOwner   string // as in NewRunFromCheckpoint
	Path          string
	WithOptimizer bool
}

// check refuses numbers that cannot be.
func (o Operation) check() error {
	if o.Unnumbered {
		return nil
	}
	if o.Seq < 1 || o.Seq > math.MaxInt32 {
		return invalidf("seq_id: is %d, must be in 1 … %d", o.Seq, math.MaxInt32)
	}
	return nil
}

func (o Operation) id() string { return o.RunID + ":" + itoa(o.Seq) }

// prior finds the first submission of a number. If there is none, it gives the run; else the error of repeated, or nil.
func (c *Core) prior(ctx context.Context, o Operation, hash string) (r *run, repeat bool, err error) {
	if err := o.check(); err != nil {
		return nil, false, err
	}
	if err := c.recall(ctx, o.RunID); err != nil {
		return nil, false, err
	}
	c.mu.Lock()
	r, err = c.liveRun(o.Owner, o.RunID)
	if r == nil {
		// The answer to a repeat stays the same after the run has ended.
		owned := c.runs[o.RunID] != nil && c.runs[o.RunID].Owner == o.Owner
		c.mu.Unlock()
		if owned && !o.Unnumbered && KindOf(err) == KindNotFound && c.repeated(ctx, o.id(), hash) == nil {
			return nil, true, nil
		}
		return nil, false, err
	}
	var full error
	if r.queue.unfinished >= c.cfg.MaxQueuedOps {
		full = refusef(KindBusy, "model %s: %d operations wait already", o.RunID, c.cfg.MaxQueuedOps)
	}
	if o.Unnumbered {
		c.mu.Unlock()
		return r, false, full
	}
	if behind := c.behindTurn(r, o.Seq); behind != nil {
		full = behind
	}
	waiting, skipped := c.futures[o.id()] != nil, r.queue.sequence.wasSkipped(o.Seq)
	decided := r.queue.sequence.seen(o.Seq) && !skipped
	c.mu.Unlock()
	if waiting || decided {
		return nil, true, c.repeated(ctx, o.id(), hash)
	}
	if skipped {
		// It may have come late once already.
		if err := c.repeated(ctx, o.id(), hash); KindOf(err) != KindNotFound {
			return nil, true, err
		}
	}
	return r, false, full
}

// submit journals an operation and puts it into its place.
func (c *Core) submit(ctx context.Context, o Operation, op *operation, hash string, payload []byte) (Submitted, error) {
	if o.Refusal != "" {
		op.fault = &Failure{Message: o.Refusal, Category: CategoryUser}
	}
	op.trace = trace.SpanContextFromContext(ctx)
	if op.bytes == 0 {
		op.bytes = int64(len(payload))
	}
	c.mu.Lock()
	r, err := c.liveRun(o.Owner, o.RunID)
	if err != nil {
		c.mu.Unlock()
		return Submitted{}, err
	}
	if o.Unnumbered {
		hash = unnumbered(hash)
	}
	for o.Unnumbered && (o.Seq == 0 || c.futures[o.id()] != nil) { // that of one that is being journalled is not known to the queue
		if o.Seq, err = r.queue.nextNumber(); err != nil {
			c.mu.Unlock()
			return Submitted{}, err
		}
	}
	answer := Submitted{RequestID: o.id(), RunID: o.RunID}
	op.seq = o.Seq
	if c.futures[answer.RequestID] != nil || r.queue.sequence.seen(o.Seq) && !r.queue.sequence.wasSkipped(o.Seq) {
		c.mu.Unlock()
		return answer, c.repeated(ctx, answer.RequestID, hash)
	}
	if err := c.withinLimits(r, op); err != nil {
		news := false
		if o.Unnumbered { // nobody will send that number again
			c.refused(r, o.Seq)
		} else {
			news = c.holdTurn(r, o.Seq, err)
		}
		c.mu.Unlock()
		if news {
			err = firstError(c.journalTurn(ctx, r, o.Seq, err), err)
		}
		return Submitted{}, err
	}
	if op.save != nil && op.save.SamplerID != "" && op.fault == nil {
		if c.samplers[op.save.SamplerID] != nil || r.session.reserved[op.save.SamplerID] {
			c.refused(r, o.Seq)
			c.mu.Unlock()
			return Submitted{}, invalidf("sampling_session_seq_id: %s exists already", op.save.SamplerID)
		}
		r.session.reserve(op.save.SamplerID)
	}
	if op.texts > 0 {
		c.saving[o.Owner] += op.texts
	}
	op.run = r
	op.future = c.newFuture(answer.RequestID, op.kind, o.Owner, r.session, r.model, hash)
	op.future.scores, op.future.fault = op.kind == OpForwardBackward && !op.trains, op.fault
	r.LastRequest = c.cfg.now().UTC()
	c.recount(r)
	late := r.queue.sequence.wasSkipped(o.Seq)
	tokens := op.pass.tokens()
	batch := store.Batch{Put: []store.Record{op.future.record(r.ID, o.Seq, payload)}, Add: c.spend(o.Owner, paceTrained, tokens)}
	c.store(o.Owner, op.storing)
	r.tookTurn(o.Seq, &batch)
	c.mu.Unlock()

	err = c.journalBatch(ctx, r.model, batch)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.spend(o.Owner, paceTrained, -tokens)
		c.saveEnded(op)
		c.refuseFuture(op.future, notJournalled(err))
		if o.Unnumbered { // nobody will send that number again
			c.refused(r, o.Seq)
		}
		return Submitted{}, op.future.refusal
	}
	c.acceptFuture(op.future)
	if op.pass != nil {
		// What does not fit in memory is read back from the journal when its turn comes.
		if r.queue.buffered > 0 && r.queue.buffered+op.bytes > plugins.MaxAheadBytes || c.passBytes > 0 && c.passBytes+op.bytes > c.cfg.MaxPassBytes {
			op.pass = nil
		} else {
			r.queue.buffered += op.bytes
			c.passBytes += op.bytes
		}
	}
	if late { // a restart that does not find the skip may run it: what was behind it waits until the skip is durable
		r.queue.unfinished++
		c.recount(r)
		c.complete(op, skippedFailure(o.Seq))
		return answer, nil
	}
	c.arrived(op)
	return answer, nil
}

// withinLimits refuses what is over its owner's limits, and notes what a save is to take. mu is held.
func (c *Core) withinLimits(r *run, op *operation) error {
	if op.fault != nil {
		return nil
	}
	if op.save != nil && op.save.Path != "" {
		bytes := c.sizeOfSave(r, op.save)
		if err := c.mayStore(r.Owner, bytes); err != nil {
			return err
		}
		op.storing = bytes
	}
	if op.pass != nil {
		return c.mayTrain(r.Owner)
	}
	return nil
}

// tokens counts those of all data; 0 for an operation that is no pass.
func (p *forwardBackward) tokens() (n int64) {
	if p == nil {
		return 0
	}
	for _, d := range p.Data {
		n += int64(len(d.Tokens))
	}
	return n
}

// refuse notes that a number was answered with a refusal, and gives it back.
func (c *Core) refuse(o Operation, err error) (Submitted, error) {
	if KindOf(err) == KindInvalid || KindOf(err) == KindNotFound || KindOf(err) == KindForbidden {
		c.NoteRefused(o.Owner, o.RunID, o.Seq)
	}
	return Submitted{}, err
}

// NoteRefused says that the front end refused an operation with this number (a 4xx), so that it is not waited for. Unknown runs and used numbers are ignored.
// Operations refused by a method of this package need no note.
func (c *Core) NoteRefused(owner, runID string, seq int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, err := c.liveRun(owner, runID); err == nil && seq >= 1 && seq <= math.MaxInt32 && c.futures[runID+":"+itoa(seq)] == nil {
		c.refused(r, seq)
	}
}

// ForwardBackward submits; the outcome has a ForwardBackwardResult. The data are read during the call and kept until the future is complete: do not change them.
func (c *Core) ForwardBackward(ctx context.Context, op ForwardBackward) (Submitted, error) {
	hash := hashForwardBackward(op)
	r, repeat, err := c.prior(ctx, op.Operation, hash)
	if repeat || err != nil {
		return Submitted{RequestID: op.id(), RunID: op.RunID}.unless(err)
	}
	vocab, limit := c.limits(r.model)
	var pass forwardBackward
	if op.Refusal == "" {
		pass, err = checkData(op, vocab, limit)
		if err == nil && losses[op.Loss].sampled {
			err = c.resolveProvenance(ctx, op.Owner, op, &pass)
		}
		if err != nil && KindOf(err) == 0 {
			return Submitted{}, err
		}
		if err != nil {
			op.Refusal = err.Error()
		}
		if err == nil {
			c.noteUnread(r, op)
		}
	}
	body := &operation{kind: OpForwardBackward, trains: !op.ForwardOnly}
	var payload []byte
	if op.Refusal == "" {
		body.pass = &pass
		payload = encodeForwardBackward(pass)
	}
	return c.submit(ctx, op.Operation, body, hash, payload)
}

// unless gives the answer if there is no error.
func (s Submitted) unless(err error) (Submitted, error) {
	if err != nil {
		return Submitted{}, err
	}
	return s, nil
}

// OptimStep submits; the outcome has a plugins.OptimStepResult.
func (c *Core) OptimStep(ctx context.Context, op OptimStep) (Submitted, error) {
	var h hasher
	h.text(op.Refusal)
	for _, v := range []float64{op.Adam.LearningRate, op.Adam.Beta1, op.Adam.Beta2, op.Adam.Eps, op.Adam.WeightDecay, op.Adam.GradClipNorm} {
		h.float(v)
	}
	hash := h.sum(string(OpOptimStep))
	if _, repeat, err := c.prior(ctx, op.Operation, hash); repeat || err != nil {
		return Submitted{RequestID: op.id(), RunID: op.RunID}.unless(err)
	}
	var payload []byte
	if err := checkAdam(op.Adam); err != nil {
		op.Refusal = cmp.Or(op.Refusal, err.Error())
	} else {
		payload = mustJSON(op.Adam)
	}
	return c.submit(ctx, op.Operation, &operation{kind: OpOptimStep, adam: &op.Adam}, hash, payload)
}

// saveBody is the journalled form of a save.
type saveBody struct {
	Path         string            `json:"path,omitempty"` // of the checkpoint
	SamplerID    string            `json:"sampler_id,omitempty"`
	TTLSeconds   *int64            `json:"ttl_seconds,omitempty"`
	Overwrite    bool              `json:"overwrite,omitempty"`
	UserMetadata map[string]string `json:"user_metadata,omitempty"`
}

// submitSave is what all saves have in common. hashed leaves out what a repeat may change.
func (c *Core) submitSave(ctx context.Context, o Operation, kind OperationKind, body saveBody, hashed saveBody, check func() error) (Submitted, error) {
	var h hasher
	h.text(o.Refusal, string(mustJSON(hashed)))
	hash := h.sum(string(kind))
	if _, repeat, err := c.prior(ctx, o, hash); repeat || err != nil {
		return Submitted{RequestID: o.id(), RunID: o.RunID}.unless(err)
	}
	texts := int64(0)
	for k, v := range body.UserMetadata {
		texts += int64(len(k) + len(v))
	}
	if o.Refusal == "" {
		c.mu.Lock()
		full := c.mayKeep(o.Owner, 1, c.saving[o.Owner]+texts)
		c.mu.Unlock()
		if err := firstError(checkTexts(body.UserMetadata), check(), full); err != nil {
			return c.refuse(o, err)
		}
	}
	return c.submit(ctx, o, &operation{kind: kind, save: &body, texts: texts}, hash, mustJSON(body))
}

// maxTTL is ten years.
const maxTTL = 10 * 366 * 24 * 3600

func checkTTL(ttl *int64) error {
	if ttl != nil && (*ttl < 1 || *ttl > maxTTL) {
		return invalidf("ttl_seconds: is %d, must be in 1 … %d, or absent for no end", *ttl, maxTTL)
	}
	return nil
}

// SaveWeights submits; the outcome has a SavedWeights.
func (c *Core) SaveWeights(ctx context.Context, op SaveWeights) (Submitted, error) {
	body := saveBody{Path: Path{op.RunID, KindWeights, op.Name}.String(), TTLSeconds: op.TTLSeconds, Overwrite: op.Overwrite, UserMetadata: op.UserMetadata}
	return c.submitSave(ctx, op.Operation, OpSaveWeights, body, body, func() error { return firstError(checkName(op.Name), checkTTL(op.TTLSeconds)) })
}

// SaveWeightsForSampler submits; the outcome has a SavedWeights (with a Name) or a SavedSampler.
func (c *Core) SaveWeightsForSampler(ctx context.Context, op SaveWeightsForSampler) (Submitted, error) {
	body := saveBody{TTLSeconds: op.TTLSeconds, UserMetadata: op.UserMetadata}
	hashed := body
	if op.Name != "" {
		body.Path = Path{op.RunID, KindSampler, op.Name}.String()
		hashed = body
	} else {
		session, _, _ := strings.Cut(op.RunID, ":train:")
		body.SamplerID = session + ":sample:" + itoa(op.SamplerSeq) // a repeat of the client has another one: it is not hashed
	}
	return c.submitSave(ctx, op.Operation, OpSaveForSampler, body, hashed, func() error {
		if op.Kind != "" && op.Kind != "snapshot" {
			return invalidf("kind %s: must be snapshot; weights that change under a running sampler are not offered", quote(op.Kind))
		}
		if op.Name == "" {
			if op.SamplerSeq < 0 {
				return invalidf("sampling_session_seq_id: is %d, must be at least 0", op.SamplerSeq)
			}
			return checkTTL(op.TTLSeconds)
		}
		return firstError(checkName(op.Name), checkTTL(op.TTLSeconds))
	})
}

// SaveWeightsExternal submits; the outcome has a SavedWeights.
func (c *Core) SaveWeightsExternal(ctx context.Context, op SaveWeightsExternal) (Submitted, error) {
	body := saveBody{Path: Path{op.RunID, KindExternal, op.Name}.String(), TTLSeconds: op.TTLSeconds, UserMetadata: op.UserMetadata}
	return c.submitSave(ctx, op.Operation, OpSaveWeightsExternal, body, body, func() error {
		if len(op.AgeRecipients) > 0 {
			return invalidf("age_encryption_recipients: encryption is not offered; leave it out to export in the clear")
		}
		return firstError(checkName(op.Name), checkTTL(op.TTLSeconds))
	})
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// LoadWeights submits; the outcome has a LoadedWeights.
func (c *Core) LoadWeights(ctx context.Context, op LoadWeights) (Submitted, error) {
	var h hasher
	h.text(op.Refusal, op.Path)
	h.bool(op.WithOptimizer)
	hash := h.sum(string(OpLoadWeights))
	r, repeat, err := c.prior(ctx, op.Operation, hash)
	if repeat || err != nil {
		return Submitted{RequestID: op.id(), RunID: op.RunID}.unless(err)
	}
	body := createBody{Path: op.Path, WithOptimizer: op.WithOptimizer}
	if op.Refusal == "" {
		cp, err := c.trainable(op.Owner, op.AccessOwner, op.Path, op.WithOptimizer)
		if err != nil {
			return c.refuse(op.Operation, err)
		}
		misfit := ""
		switch {
		case cp.ServedModel != r.ServedModel:
			misfit = fmt.Sprintf("the checkpoint %s belongs to %s, the model to %s", cp.Path, cp.ServedModel, r.ServedModel)
		case cp.LoRA.Rank != r.LoRA.Rank:
			misfit = fmt.Sprintf("the checkpoint %s has rank %d, the model %d", cp.Path, cp.LoRA.Rank, r.LoRA.Rank)
		case op.Seq != 1 && cp.LoRA.trains() != r.LoRA.trains(): // at first the backend says so, in its words
			misfit = fmt.Sprintf("the checkpoint %s trains %s, the model %s", cp.Path, cp.LoRA.trains(), r.LoRA.trains())
		}
		if misfit != "" && op.Seq != 1 { // what the model has learnt must not be lost with it: nothing happens, and it goes on
			return c.refuse(op.Operation, invalidf("path: %s", misfit))
		}
		op.Refusal = misfit
		body.Dir = cp.Dir
	}
	return c.submit(ctx, op.Operation, &operation{kind: OpLoadWeights, load: &body}, hash, mustJSON(body))
}
