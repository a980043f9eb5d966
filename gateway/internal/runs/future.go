package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// OperationKind names what a future is of.
type OperationKind string

// The kinds of operation.
const (
	OpCreateRun           OperationKind = "create_model"
	OpUnloadRun           OperationKind = "unload_model"
	OpForwardBackward     OperationKind = "forward_backward"
	OpOptimStep           OperationKind = "optim_step"
	OpSaveWeights         OperationKind = "save_weights"
	OpSaveForSampler      OperationKind = "save_weights_for_sampler"
	OpSaveWeightsExternal OperationKind = "save_weights_external"
	OpLoadWeights         OperationKind = "load_weights"
	OpSample              OperationKind = "sample"
)

// Outcome is a completed future: Failure is set, or the one result that belongs to Kind.
type Outcome struct {
	RequestID string
	Kind      OperationKind
	Failure   *Failure

	CreatedRun      *CreatedRun            // OpCreateRun
	UnloadedRun     *UnloadedRun           // OpUnloadRun
	ForwardBackward *ForwardBackwardResult // OpForwardBackward
	OptimStep       *plugins.OptimStepResult
	Saved           *SavedWeights  // OpSaveWeights, OpSaveWeightsExternal, OpSaveForSampler with a name
	SavedSampler    *SavedSampler  // OpSaveForSampler without a name
	Loaded          *LoadedWeights // OpLoadWeights
	Sample          *SampleResult  // OpSample
}

// CreatedRun names the new run.
type CreatedRun struct{ RunID string }

// UnloadedRun names the run that ended.
type UnloadedRun struct{ RunID string }

// ForwardBackwardResult is the backend's result with the shape of every output.
type ForwardBackwardResult struct {
	plugins.ForwardBackwardResult
	K []int // per datum 0 for shape (N), else the K of shape (N, K)
}

// SavedWeights names the checkpoint.
type SavedWeights struct {
	Path string
	Size int64 // bytes on disk
}

// SavedSampler names the sampling session of an unnamed save.
type SavedSampler struct{ SamplerID string }

// LoadedWeights names what was loaded and where.
type LoadedWeights struct{ Path, RunID string }

// future is an accepted operation that is not complete.
type future struct {
	id      string
	kind    OperationKind
	owner   string
	session *session // nil for an unload of a run without one
	model   *model   // nil where its model is not served any more
	hash    string
	since   time.Time
	scores  bool              // a pass without gradients
	fault   *Failure          // found when it was submitted
	ran     plugins.Execution // what a backend said about a training operation; as begun
	boot    string            // the process that said it; as begun
	begun   time.Time         // when the backend was asked; zero before. Written by the goroutine that runs it
	kept    bool              // see resultRecord; as begun
	event   *history.Event    // what the run's series have of it; nil = nothing; as begun

	accepted chan struct{} // closed when it is durable, or refused
	refusal  error         // set before accepted is closed: it never came to be
	done     chan struct{} // closed when it is complete
	outcome  *Outcome      // set before done is closed
	cancel   context.CancelFunc
}

// newFuture takes note of an operation that is about to be journalled. mu is held.
func (c *Core) newFuture(id string, kind OperationKind, owner string, s *session, m *model, hash string) *future {
	f := &future{id: id, kind: kind, owner: owner, session: s, model: m, hash: hash, since: c.cfg.now().UTC(), accepted: make(chan struct{}), done: make(chan struct{})}
	c.futures[id] = f
	if s != nil {
		s.pending++
		s.seen = c.cfg.now()
	}
	return f
}

// record is the journal's entry.
func (f *future) record(parent string, seq int64, payload []byte) store.Record {
	session := ""
	if f.session != nil {
		session = f.session.ID
	}
	value := operationRecord{Kind: f.kind, Hash: f.hash, Owner: f.owner, Session: session, Time: f.since, ForwardOnly: f.scores, Fault: f.fault}
	return store.Record{Collection: inOperations, Key: f.id, Parent: parent, Rank: seq, Payload: payload, Value: value.json()}
}

// journal makes new work for a model durable, or refuses it while it could not be done or its result not be stored. A client that goes away meanwhile changes nothing: it will
// repeat the request and find it here.
func (c *Core) journal(ctx context.Context, m *model, records ...store.Record) error {
	return c.journalBatch(ctx, m, store.Batch{Put: records})
}

func (c *Core) journalBatch(ctx context.Context, m *model, b store.Batch) error {
	if err := firstError(notNow(c.cfg.Store.Err()), c.refuses(m)); err != nil {
		return err
	}
	return c.commit(context.WithoutCancel(ctx), b)
}

// notJournalled says why an operation was not accepted.
func notJournalled(err error) error {
	if KindOf(err) == KindFailed {
		return err
	}
	return fmt.Errorf("journal the operation: %w", err)
}

// refuses says why new work for a model is not taken, for now or until the server is started again.
func (c *Core) refuses(m *model) error {
	if err := c.failed(m); err != nil || c.cfg.Refuse == nil || m == nil {
		return err
	}
	return notNow(c.cfg.Refuse(m.Name))
}

// Unserved says, with KindFailed, why a model cannot be served until the server is started again; nil if it can, or is unknown.
func (c *Core) Unserved(model string) error { return c.failed(c.byName[model]) }

// failed says why a model cannot be served until the server is started again; nil if it can.
func (c *Core) failed(m *model) error {
	if c.cfg.Failed == nil || m == nil {
		return nil
	}
	if why := c.cfg.Failed(m.Name); why != nil {
		return refusef(KindFailed, "model %s is not served, and will not be before the server is started again: %v", m.Name, why)
	}
	return nil
}

// notNow makes the reason why new work is not taken the error that says so, if there is one.
func notNow(reason error) error {
	if reason == nil {
		return nil
	}
	return refusef(KindUnavailable, "nothing new is taken for now: %v", reason)
}

// commit makes a batch durable. While the store cannot be written to, that is KindUnavailable: the client repeats the request.
func (c *Core) commit(ctx context.Context, b store.Batch) error {
	err := c.cfg.Store.Commit(ctx, b)
	if errors.Is(err, store.ErrUnavailable) {
		return refusef(KindUnavailable, "%v", err)
	}
	return err
}

// commitPatiently is for what has happened already and must not be lost: it is tried again until the store takes it. ErrClosed when the server stops meanwhile.
func (c *Core) commitPatiently(ctx context.Context, b store.Batch) error {
	return c.patiently(func() error { return c.cfg.Store.Commit(ctx, b) })
}

// commitCheckpoint is commitPatiently for a batch with the record of a checkpoint. When it gives no error nothing else changes records until release is called: what deletes or changes an older
// checkpoint of the same path comes before it, or after it is known here.
func (c *Core) commitCheckpoint(ctx context.Context, b store.Batch) (release func(), err error) {
	err = c.patiently(func() error {
		c.saveMu.Lock()
		err := c.cfg.Store.Commit(ctx, b)
		if err != nil { // others are told so while this waits
			c.saveMu.Unlock()
		}
		return err
	})
	return c.saveMu.Unlock, err
}

func (c *Core) patiently(commit func() error) error {
	for attempt := 0; ; attempt++ {
		err := commit()
		if err == nil || errors.Is(err, store.ErrClosed) {
			return err
		}
		if attempt == 0 {
			c.log.Warn("what has happened waits until the store can be written to", "error", err)
		}
		select {
		case <-time.After(retryStore):
		case <-c.closed:
			return store.ErrClosed
		}
	}
}

// retryStore is the pause between two attempts to store a result.
const retryStore = 500 * time.Millisecond

// acceptFuture says that the operation is durable. mu is held.
func (c *Core) acceptFuture(f *future) {
	close(f.accepted)
	c.used(f.owner)
}

// refuseFuture forgets an operation that could not be journalled. mu is held.
func (c *Core) refuseFuture(f *future, why error) {
	f.refusal = why
	c.forget(f)
	close(f.accepted)
}

// forget takes a future out of the unfinished ones. mu is held.
func (c *Core) forget(f *future) {
	if c.futures[f.id] == f {
		delete(c.futures, f.id)
		if f.session != nil {
			f.session.pending--
		}
	}
}

// repeated answers a submission whose request id exists: nil if it is the same request.
func (c *Core) repeated(ctx context.Context, id, hash string) error {
	c.mu.Lock()
	f := c.futures[id]
	c.mu.Unlock()
	stored := ""
	if f != nil {
		select {
		case <-f.accepted:
		case <-ctx.Done():
			return ctx.Err()
		}
		if f.refusal != nil {
			return f.refusal
		}
		stored = f.hash
	} else {
		rec, err := c.cfg.Store.Get(ctx, inOperations, id)
		if errors.Is(err, store.ErrNotFound) {
			return notFoundf("operation %s is not kept any more", quote(id))
		}
		if err != nil {
			return fmt.Errorf("find the first submission: %w", err)
		}
		var op operationRecord
		if err := json.Unmarshal(rec.Value, &op); err != nil {
			return fmt.Errorf("operation %s: %w", id, err)
		}
		stored = op.Hash
	}
	if stored != hash {
		field, number := "seq_id", id
		if parent, seq := parentOf(id); seq == 0 && strings.Contains(parent, ":train:") { // what makes a run; its operations begin with 1
			field, number = "model_seq_id", parent
		}
		parent, seq := parentOf(number)
		return invalidf("%s: %d was used before in %s, for another request", field, seq, parent)
	}
	return nil
}

// parentOf gives the parent of an operation's records, which is the run or the sampling session, and their rank.
func parentOf(requestID string) (parent string, seq int64) {
	cut := strings.LastIndexByte(requestID, ':')
	if cut < 0 {
		return "", 0
	}
	seq, err := strconv.ParseInt(requestID[cut+1:], 10, 64)
	if err != nil {
		seq = unloadSeq
	}
	return requestID[:cut], seq
}

// cloneSize is the block of seq_ids of one client of a sampling session.
const cloneSize = 1_000_000_000

// finish stores an outcome and completes the future. extra becomes durable with it. then runs under mu at the moment of completion. While the store takes nothing the future
// waits: a client is never told what a restart would forget.
func (c *Core) finish(ctx context.Context, f *future, out *Outcome, position int64, extra store.Batch, then func()) {
	out.RequestID, out.Kind = f.id, f.kind
	parent, seq := parentOf(f.id)
	rec := store.Record{Collection: inResults, Key: f.id, Parent: parent, Rank: seq}
	switch {
	case out.Failure != nil:
	case out.ForwardBackward != nil:
		rec.Payload = encodeForwardBackwardResult(out.ForwardBackward)
	case out.Sample != nil:
		rec.Payload = encodeSampleResult(out.Sample)
	default:
		rec.Payload = mustJSON(out)
	}
	value := resultRecord{Kind: f.kind, Failure: out.Failure, Position: position, Kept: f.kept, Size: int64(len(rec.Payload)), Begun: f.begun, Done: c.cfg.now().UTC(), Ran: ranRecordOf(f.ran, f.boot)}
	event := f.recorded(&value)
	rec.Value = value.json()
	extra.Put = append(extra.Put, rec)
	if f.model != nil {
		extra.Add = append(extra.Add, c.oneMore(f.owner, f.model.Name, UsageRequest))
		if out.OptimStep != nil {
			extra.Add = append(extra.Add, c.oneMore(f.owner, f.model.Name, UsageStep))
		}
	}
	// What was computed is kept, also while the server stops.
	commit := func(ctx context.Context, b store.Batch) (func(), error) { return func() {}, c.commitPatiently(ctx, b) }
	if out.Saved != nil {
		commit = c.commitCheckpoint
	}
	release, err := commit(context.WithoutCancel(ctx), extra)
	if err != nil {
		return // it stays unfinished in the journal, and leads to the same result in the next process
	}
	defer release()
	c.mu.Lock()
	defer c.mu.Unlock()
	f.outcome = out
	c.forget(f)
	c.used(f.owner)
	if event != nil {
		c.record(c.runs[parent], seq, event)
	}
	if then != nil {
		then()
	}
	close(f.done)
	c.announce(f, int64(len(rec.Payload)))
}

// knownOwner finds who owns the object that a request id belongs to. mu is held.
func (c *Core) knownOwner(requestID string) (string, bool) {
	cut := strings.LastIndexByte(requestID, ':')
	if cut < 0 {
		return "", false
	}
	if r := c.runs[requestID[:cut]]; r != nil {
		return r.Owner, true
	}
	if s := c.samplers[requestID[:cut]]; s != nil {
		return s.Owner, true
	}
	return "", false
}

// Wait returns the outcome of a future, waiting for it at most hold (0 = do not wait). ErrPending when it is not there by then; KindNotFound for an unknown
// or foreign id; ctx's error when ctx ends first. A result stays readable until its session has ended, that of a sample, unless it is large, for a day longer.
func (c *Core) Wait(ctx context.Context, owner, requestID string, hold time.Duration) (*Outcome, error) {
	out, err := c.outcome(ctx, owner, requestID, hold)
	if err == nil && out.Sample != nil && out.Sample.recorded {
		return nil, notFoundf("future %s: the session is over, and what the sample came with, such as alternatives, is not kept any more", quote(requestID))
	}
	return out, err
}

// outcome is Wait, also for a sample of which only what was recorded for training is left.
func (c *Core) outcome(ctx context.Context, owner, requestID string, hold time.Duration) (*Outcome, error) {
	if err := c.recall(ctx, requestID); err != nil {
		return nil, err
	}
	c.mu.Lock()
	holder, known := c.knownOwner(requestID)
	f := c.futures[requestID]
	if known && holder == owner && f != nil && f.session != nil {
		f.session.seen = c.cfg.now() // who polls is there, with or without heartbeats
	}
	c.mu.Unlock()
	if !known || holder != owner {
		return nil, notFoundf("no future %s", quote(requestID))
	}
	if f == nil {
		return c.stored(ctx, requestID)
	}
	select {
	case <-f.done:
		return f.outcome, nil
	default:
	}
	if hold <= 0 {
		return nil, ErrPending
	}
	timer := time.NewTimer(hold)
	defer timer.Stop()
	select {
	case <-f.done:
		return f.outcome, nil
	case <-timer.C:
		return nil, ErrPending
	case <-c.closed:
		return nil, errClosing
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// stored reads the outcome of a completed future.
func (c *Core) stored(ctx context.Context, id string) (*Outcome, error) {
	rec, err := c.cfg.Store.Get(ctx, inResults, id)
	if errors.Is(err, store.ErrNotFound) {
		return nil, notFoundf("no future %s", quote(id))
	}
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", id, err)
	}
	var r resultRecord
	if err := json.Unmarshal(rec.Value, &r); err != nil {
		return nil, fmt.Errorf("read result %s: %w", id, err)
	}
	out := &Outcome{RequestID: id, Kind: r.Kind, Failure: r.Failure}
	if r.Failure != nil {
		return out, nil
	}
	payload, err := c.cfg.Store.Payload(ctx, rec)
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", id, err)
	}
	switch r.Kind {
	case OpForwardBackward:
		out.ForwardBackward, err = decodeForwardBackwardResult(payload)
	case OpSample:
		out.Sample, err = decodeSampleResult(payload)
	default:
		err = json.Unmarshal(payload, out)
	}
	if err != nil {
		return nil, fmt.Errorf("read result %s: %w", id, err)
	}
	return out, nil
}

// CancelFuture stops a sample that nobody waits for any more; its future fails. Unknown, finished and foreign ids, and futures that are not samples, are left alone.
func (c *Core) CancelFuture(_ context.Context, owner, requestID string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.futures[requestID]; f != nil && f.owner == owner && f.kind == OpSample && f.cancel != nil {
		f.cancel()
	}
	return nil
}
