package runs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// LoRAConfig is the shape of an adapter.
type LoRAConfig struct {
	Rank         int     // a power of two, 1 … 512, at most the model's limit
	Seed         *uint64 // of the initial weights; nil = one is drawn, journalled and shown
	TrainAttn    bool
	TrainMLP     bool
	TrainUnembed bool
}

// trains names the parts of a model that have LoRA.
func (l LoRAConfig) trains() string {
	var parts []string
	for _, part := range []struct {
		on   bool
		name string
	}{{l.TrainAttn, "attention"}, {l.TrainMLP, "MLP"}, {l.TrainUnembed, "the output head"}} {
		if part.on {
			parts = append(parts, part.name)
		}
	}
	return strings.Join(parts, " and ")
}

// NewRun asks for a run with fresh weights.
type NewRun struct {
	Owner        string
	SessionID    string
	ModelSeq     int64  // 0, 1, 2, … within the session
	BaseModel    string // a served name or alias
	LoRA         LoRAConfig
	UserMetadata json.RawMessage // a JSON object or nil
	Optimizer    string          // "" or "adamw"; anything else is refused
}

// NewRunFromCheckpoint asks for a run whose weights come from a training checkpoint.
type NewRunFromCheckpoint struct {
	Owner         string
	AccessOwner   string // whose private checkpoints may be read too, resolved by the front end from an access token; "" = none
	SessionID     string
	ModelSeq      int64
	Path          string // tinker://RUN/weights/NAME
	WithOptimizer bool   // restore Adam's moments and step count
	BaseModel     string // "" = the checkpoint's; else a name of the same served model
	UserMetadata  json.RawMessage
	Optimizer     string // "" or "adamw"
}

// Submitted answers an accepted operation.
type Submitted struct {
	RequestID string
	RunID     string // the run it belongs to; "" for sampling
}

// RunInfo describes a run, live or not.
type RunInfo struct {
	ID              string
	SessionID       string
	Owner           string
	BaseModel       string // the name the client used
	ServedModel     string // the configured name
	TokenizerID     string
	Architecture    string // "" until the backend has been seen
	LoRA            LoRAConfig
	Optimizer       string // "adamw"
	UserMetadata    json.RawMessage
	CreatedAt       time.Time
	LastRequest     time.Time
	Live            bool   // its adapter is in a backend (or is about to be)
	Corrupted       bool   // its state was lost
	CorruptedReason string // why
	Inexact         string // "" as a rule; else why a rebuilt adapter's bits may differ from those of an undisturbed run
	LastCheckpoint  *CheckpointInfo
	LastSampler     *CheckpointInfo
	Backend         string  // whose home it is, where its model has several; "" = one
	Moves           int     // how often it has got another one since the server was started
	Began           *Origin // of the import that it was made from, at once or over other runs; nil without one

	apart bool // see wholeRun
}

// RunStatus is how the training of a live run stands.
type RunStatus struct {
	RunInfo
	Naming
	Step            int64
	Version         int64
	Queued          int     // operations accepted and not finished
	LastLoss        float64 // loss:sum of the last forward_backward; NaN before
	GradientNorm    float64 // of the last optim_step; NaN before
	AdapterNorm     float64 // after the last optim_step; NaN before
	TokensPerSecond float64 // trained, over the last minute
	TrainedTokens   int64
	UnreadInputs    []string    // names in loss_fn_inputs that its losses did not read, each once
	Rebuilding      *Rebuilding // its way into a process; nil when it is there
}

// RunQuery selects runs.
type RunQuery struct {
	Scope     Scope
	ProjectID string // "" = all
	Page      Page   // default 20
}

// runState is how far a run is.
type runState string

const (
	stateCreating  runState = "creating"
	stateLive      runState = "live"
	stateFailed    runState = "failed"    // its creation failed
	stateEnded     runState = "ended"     // unloaded, or its session is over
	stateCorrupted runState = "corrupted" // it was lost with its backend and cannot be rebuilt
	stateStored    runState = "stored"    // never had an adapter: it holds checkpoints that were copied or imported
)

// run is a run in memory. The record is what is stored.
type run struct {
	runRecord
	model    *model         // nil if it is not served any more
	session  *session       // nil for copies and imports
	home     *slot          // the backend that has the adapter, or is to have it; nil as model
	adapter  string         // its id there
	boot     string         // process there that has the adapter; "" = none
	stay     *stay          // who uses it there; nil where the model has one backend
	homes    int            // how often it has got another one
	resident residence      // how it is counted there
	moving   *move          // to another backend, once nothing of it is with its home
	moved    time.Time      // when it got its home, if not at first
	full     map[*slot]bool // backends that had no room for it when it was to be rebuilt or made there last
	crashes  int            // that cut its rebuild off, one after the other
	rebuild  *rebuild       // while the adapter is on its way into a process; nil = it is there, or has not been made yet
	points   []*recoveryPoint
	since    sincePoint
	writing  bool           // a recovery point is on its way
	pruning  bool           // recovery points and requests that nothing needs any more are being deleted
	prunable bool           // since that began there may be more of them
	written  *recoveryPoint // it is on disk, and counts when everything up to its place is in the journal
	live     runStats
	series   runSeries
	untaken  untaken // of what was sampled since the last step
	queue    queue
	pins     map[int64]*snapshot // versions that unnamed samplers use
	reserved map[string]bool     // checkpoint paths that saves in flight will make
	gap      *time.Timer
	turn     turn
}

type runRecord struct {
	ID           string          `json:"id"`
	SessionID    string          `json:"session_id,omitempty"`
	Owner        string          `json:"owner"`
	ProjectID    string          `json:"project_id,omitempty"` // of a run without a session
	BaseModel    string          `json:"base_model"`
	ServedModel  string          `json:"served_model"`
	Architecture string          `json:"architecture,omitempty"`
	LoRA         LoRAConfig      `json:"lora"`
	UserMetadata json.RawMessage `json:"user_metadata"`
	CreatedAt    time.Time       `json:"created_at"`
	LastRequest  time.Time       `json:"last_request"`
	State        runState        `json:"state"`
	Reason       string          `json:"reason,omitempty"`     // of the states failed, ended and corrupted
	ModelHash    string          `json:"model_hash,omitempty"` // of the base model's weights when the adapter was made
	Arithmetic   string          `json:"arithmetic,omitempty"` // under which its state was computed last
	Apart        bool            `json:"apart,omitempty"`      // its metadata have a record of their own
	Unread       []string        `json:"unread,omitempty"`     // names in loss_fn_inputs that its losses did not read, see noteUnread
	Import       bool            `json:"import,omitempty"`     // its weights are those of an import, which no step has trained yet
	Inexact      string          `json:"inexact,omitempty"`    // why its bits may not be what they would have been without a loss
	Began        *Origin         `json:"began,omitempty"`      // of the import, or of the run of one, whose checkpoint it was made from
}

func (c *Core) newRun(rec runRecord) *run {
	return &run{
		runRecord: rec, queue: newQueue(c.cfg.GapWait), pins: map[int64]*snapshot{}, reserved: map[string]bool{},
		live:   runStats{loss: math.NaN(), gradient: math.NaN(), norm: math.NaN(), weightsAt: rec.CreatedAt},
		series: runSeries{fold: &history.Fold{}},
	}
}

func (r *run) record() store.Record {
	return store.Record{Collection: inRuns, Key: r.ID, Parent: r.SessionID, Rank: r.CreatedAt.UnixNano(), Value: mustJSON(r.runRecord)}
}

// listed is the run's place among those of its owner, and the project of one without a session. It never changes.
func (r *run) listed() store.Record {
	return store.Record{Collection: inOwned, Key: r.ID, Parent: r.Owner, Rank: r.CreatedAt.UnixNano(), Value: []byte(r.ProjectID)}
}

// inProject is its place among those of a project.
func (r *run) inProject(project string) store.Record {
	return store.Record{Collection: inProjects, Key: r.ID, Parent: ofProject(r.Owner, project), Rank: r.CreatedAt.UnixNano()}
}

// listInProject lists the run in the project that it is in now, and in no other.
func (r *run) listInProject(b *store.Batch) {
	if project := r.project(); project != "" {
		b.Put = append(b.Put, r.inProject(project))
	} else {
		b.Delete = append(b.Delete, store.RecordKey{Collection: inProjects, Key: r.ID})
	}
}

// ofProject is the parent of a project's runs.
func ofProject(owner, project string) string { return owner + "\x1f" + project }

func (r *run) usable() bool { return r.State == stateLive || r.State == stateCreating }

func (r *run) project() string {
	if r.session != nil {
		return r.session.ProjectID
	}
	return r.ProjectID
}

// checkOptimizer refuses what we do not have.
func checkOptimizer(name string) error {
	if name != "" && name != "adamw" {
		return invalidf("optimizer_config.type %s: must be adamw", quote(name))
	}
	return nil
}

func checkLoRA(l LoRAConfig) error {
	if l.Rank < 1 || l.Rank > 512 || l.Rank&(l.Rank-1) != 0 {
		return invalidf("lora_config.rank: is %d, must be positive and a power of two, 1 … 512", l.Rank)
	}
	if !l.TrainAttn && !l.TrainMLP && !l.TrainUnembed {
		return invalidf("lora_config: at least one of train_attn, train_mlp and train_unembed must be true")
	}
	return nil
}

// CreateRun makes a run; the outcome has a CreatedRun. KindForbidden for an unknown or foreign session, KindBusy when the owner's sessions may take no more memory.
func (c *Core) CreateRun(ctx context.Context, req NewRun) (Submitted, error) {
	if err := checkOptimizer(req.Optimizer); err != nil {
		return Submitted{}, err
	}
	if err := checkLoRA(req.LoRA); err != nil {
		return Submitted{}, err
	}
	if req.BaseModel == "" {
		return Submitted{}, invalidf("base_model is required")
	}
	m := c.byName[req.BaseModel]
	if m == nil {
		return Submitted{}, c.unknownModel(req.BaseModel)
	}
	metadata, err := checkMetadata(req.UserMetadata)
	if err != nil {
		return Submitted{}, err
	}
	var h hasher
	h.text(req.BaseModel, string(metadata))
	h.int(int64(req.LoRA.Rank))
	h.bool(req.LoRA.TrainAttn, req.LoRA.TrainMLP, req.LoRA.TrainUnembed, req.LoRA.Seed != nil)
	if req.LoRA.Seed != nil {
		h.int(int64(*req.LoRA.Seed))
	} else {
		seed := randomSeed()
		req.LoRA.Seed = &seed
	}
	rec := runRecord{Owner: req.Owner, SessionID: req.SessionID, BaseModel: req.BaseModel, ServedModel: m.Name, LoRA: req.LoRA, UserMetadata: metadata}
	return c.submitCreation(ctx, req.ModelSeq, rec, OpCreateRun, createBody{}, h.sum(string(OpCreateRun)))
}

// CreateRunFromCheckpoint makes a run from a checkpoint; the outcome has a LoadedWeights. KindNotFound for a checkpoint that does not exist.
func (c *Core) CreateRunFromCheckpoint(ctx context.Context, req NewRunFromCheckpoint) (Submitted, error) {
	if err := checkOptimizer(req.Optimizer); err != nil {
		return Submitted{}, err
	}
	metadata, err := checkMetadata(req.UserMetadata)
	if err != nil {
		return Submitted{}, err
	}
	cp, err := c.trainable(req.Owner, req.AccessOwner, req.Path, req.WithOptimizer)
	if err != nil {
		return Submitted{}, err
	}
	base := cp.BaseModel
	if req.BaseModel != "" {
		base = req.BaseModel
	}
	m := c.byName[base]
	if m == nil {
		return Submitted{}, c.unknownModel(base)
	}
	if m.Name != cp.ServedModel {
		return Submitted{}, invalidf("base_model %s: the checkpoint %s belongs to %s", quote(base), cp.Path, cp.ServedModel)
	}
	var h hasher
	h.text(req.Path, req.BaseModel, string(metadata))
	h.bool(req.WithOptimizer)
	c.mu.Lock()
	untrained := c.untrained(cp)
	c.mu.Unlock()
	rec := runRecord{Owner: req.Owner, SessionID: req.SessionID, BaseModel: base, ServedModel: m.Name, LoRA: cp.LoRA, UserMetadata: metadata, Import: untrained, Began: c.began(&cp.CheckpointInfo, req.Owner)}
	return c.submitCreation(ctx, req.ModelSeq, rec, OpLoadWeights, createBody{Path: cp.Path, Dir: cp.Dir, WithOptimizer: req.WithOptimizer}, h.sum(string(OpLoadWeights)))
}

// submitCreation accepts the operation that makes a run: it has number 0 and everything else waits for it.
func (c *Core) submitCreation(ctx context.Context, modelSeq int64, rec runRecord, kind OperationKind, body createBody, hash string) (Submitted, error) {
	if modelSeq < 0 || modelSeq > math.MaxInt32 {
		return Submitted{}, invalidf("model_seq_id: is %d, must be in 0 … %d", modelSeq, math.MaxInt32)
	}
	if err := c.recall(ctx, rec.SessionID); err != nil {
		return Submitted{}, err
	}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return Submitted{}, errClosing
	}
	s, err := c.usableSession(rec.Owner, rec.SessionID)
	if err != nil {
		c.mu.Unlock()
		return Submitted{}, err
	}
	now := c.cfg.now().UTC()
	rec.ID = rec.SessionID + ":train:" + itoa(modelSeq)
	rec.CreatedAt, rec.LastRequest, rec.State = now, now, stateCreating
	answer := Submitted{RequestID: rec.ID + ":0", RunID: rec.ID}
	if c.runs[rec.ID] != nil {
		c.mu.Unlock()
		return answer, c.repeated(ctx, answer.RequestID, hash)
	}
	if c.copying[rec.ID] { // its record would replace this run's
		c.mu.Unlock()
		return Submitted{}, invalidf("model_seq_id: model %s exists already: a copy of a checkpoint is making it", rec.ID)
	}
	if err := c.mayHaveRun(rec.Owner); err != nil {
		c.mu.Unlock()
		return Submitted{}, err
	}
	r := c.newRun(rec)
	r.model, r.session = c.byName[rec.ServedModel], s
	c.settleIn(r)
	texts := r.part()
	if err := c.mayHold(r.Owner, 0, r.size()); err != nil {
		c.mu.Unlock()
		return Submitted{}, err
	}
	op := &operation{run: r, kind: kind, create: &body, trace: trace.SpanContextFromContext(ctx)}
	op.future = c.newFuture(answer.RequestID, kind, rec.Owner, s, r.model, hash)
	c.runs[r.ID] = r
	c.recount(r)
	s.runs = append(s.runs, r)
	c.hold(s, 0, r.size())
	project := r.project()
	records := append(texts, r.record(), r.listed(), op.future.record(r.ID, 0, mustJSON(body)))
	if project != "" {
		records = append(records, r.inProject(project))
	}
	c.mu.Unlock()

	err = c.journal(ctx, r.model, records...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if s.active() {
			c.hold(s, 0, -r.size())
		}
		delete(c.runs, r.ID)
		c.recount(r)
		s.runs = slices.DeleteFunc(s.runs, func(x *run) bool { return x == r })
		c.refuseFuture(op.future, notJournalled(err))
		return Submitted{}, op.future.refusal
	}
	if r.project() != project { // it was moved meanwhile, and this list may have been written after that one
		c.start(func(ctx context.Context) {
			err := c.write(context.WithoutCancel(ctx), func() (b store.Batch) {
				r.listInProject(&b)
				return b
			})
			c.logged("run could not be listed in its project", err, "run", r.ID)
		})
	}
	c.acceptFuture(op.future)
	c.enqueue(op)
	return answer, nil
}

// unloadSeq is the place of a run's end: after all its numbers.
const unloadSeq = math.MaxInt32 + 1

// liveRun finds a run of the owner that takes operations. mu is held.
func (c *Core) liveRun(owner, id string) (*run, error) {
	r := c.runs[id]
	if r == nil || r.Owner != owner {
		return nil, notFoundf("no model %s", quote(id))
	}
	if c.closing {
		return nil, errClosing
	}
	if !r.usable() {
		return nil, notFoundf("model %s is gone (%s: %s); %s", id, r.State, r.Reason, c.newestOf(r))
	}
	return r, nil
}

// newestOf says where a run could be continued. mu is held.
func (c *Core) newestOf(r *run) string {
	if cp := c.newestCheckpoint(r.ID, KindWeights); cp != nil {
		return "its newest checkpoint is " + cp.Path
	}
	if cp := c.newestCheckpoint(r.ID, KindSampler); cp != nil {
		return "it has no training checkpoint; its newest sampler checkpoint is " + cp.Path
	}
	return "it has no checkpoint"
}

// UnloadRun ends a run after its queued operations and frees its adapter; checkpoints stay. The outcome has an UnloadedRun.
func (c *Core) UnloadRun(ctx context.Context, owner, runID string) (Submitted, error) {
	answer := Submitted{RequestID: runID + ":unload", RunID: runID}
	if err := c.recall(ctx, runID); err != nil {
		return Submitted{}, err
	}
	c.mu.Lock()
	if r := c.runs[runID]; r != nil && r.Owner == owner && (c.futures[answer.RequestID] != nil || r.State == stateEnded && r.session != nil && r.session.active()) {
		c.mu.Unlock()
		return answer, c.repeated(ctx, answer.RequestID, "unload")
	}
	r, err := c.liveRun(owner, runID)
	if err != nil {
		c.mu.Unlock()
		return Submitted{}, err
	}
	op := &operation{run: r, kind: OpUnloadRun, seq: unloadSeq, trace: trace.SpanContextFromContext(ctx)}
	op.future = c.newFuture(answer.RequestID, op.kind, owner, r.session, r.model, "unload")
	c.mu.Unlock()
	err = c.journal(ctx, r.model, op.future.record(r.ID, unloadSeq, nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.refuseFuture(op.future, notJournalled(err))
		return Submitted{}, op.future.refusal
	}
	c.acceptFuture(op.future)
	c.enqueue(op)
	return answer, nil
}

// endRun frees a run's adapter and fails what is unfinished. mu is held; the state is stored in the background.
func (c *Core) endRun(r *run, state runState, reason string, why *Failure) {
	if !r.usable() {
		return
	}
	making := r.State == stateCreating
	r.State, r.Reason = state, reason
	if r.gap != nil {
		r.gap.Stop()
	}
	c.failQueue(r, why)
	for _, s := range r.pins {
		if s.dir == "" {
			s.lost = cmp.Or(s.lost, reason)
		}
		s.hot = false
	}
	c.settled(r)
	c.changed(r, changedRun)
	r.moving = nil
	c.recount(r)
	c.proceed(r.home)
	c.start(func(ctx context.Context) {
		err := c.writeRun(context.WithoutCancel(ctx), r)
		c.logged("run could not be stored", err, "run", r.ID)
		c.logged("adapter could not be deleted", c.deleteAdapter(ctx, r, making), "run", r.ID)
		if err == nil { // else the store may have it as one that goes on, and the next start ends it again
			c.logged("recovery points could not be deleted", c.dropPoints(context.WithoutCancel(ctx), r, math.MaxInt64), "run", r.ID)
		}
		c.logged("what samples told could not be deleted", c.dropEntropies(context.WithoutCancel(ctx), r), "run", r.ID)
	})
}

// deleteAdapter frees an adapter if the process that has it, or may be making it, still runs. The making of one ends with it.
func (c *Core) deleteAdapter(ctx context.Context, r *run, making bool) error {
	c.mu.Lock()
	b, ok := r.home.current()
	boot, adapter := r.boot, r.adapter
	c.mu.Unlock()
	if !ok || b.BootID != boot && !making {
		return nil
	}
	if err := b.DeleteAdapter(ctx, adapter); err != nil && !lost(err) {
		return fmt.Errorf("delete adapter: %w", err)
	}
	return nil
}

// loseRun gives up a run whose adapter is gone and cannot be rebuilt. mu is held.
func (c *Core) loseRun(r *run, reason string) {
	if !r.usable() {
		return
	}
	c.log.Warn("a run was lost", "run", r.ID, "reason", reason)
	why := &Failure{Category: CategoryServer, Message: "the run was lost and is not continued with other weights: " + reason + "; " + c.newestOf(r)}
	c.endRun(r, stateCorrupted, reason, why)
}
