package runs

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// The collections of the store. Operations and results have the same keys (request ids) and the same parents (run, or sampler and clone); an operation without a result is
// not finished. Neither is ever changed; both go when their session has been over for a while.
const (
	inSessions    = "sessions"
	inRuns        = "runs"
	inOwned       = "owned_runs" // Parent: the owner; otherwise as in runs
	inSamplers    = "samplers"
	inCheckpoints = "checkpoints"
	inOperations  = store.Operations
	inResults     = store.Results
	inSkips       = "skips" // Rank … Count: numbers of a run that were skipped
	inTurns       = "turns" // Key: the run; Rank: the number whose operation was refused and will be repeated
	inPoints      = "recovery_points"
	inUsage       = "usage"      // by hour; Parent: the owner
	inUsageDays   = "usage_days" // sums of what was inUsage
	inPaces       = "paces"      // tokens that count against limits per minute, by slice of time; Parent: the owner
	inAudit       = "audit"
	inSecrets     = "secrets"
	inCrashes     = "crashes"       // of work and rebuilds with which processes ended, until they succeed
	inCycles      = "cycles"        // reserved numbers of clock cycles
	inDrains      = "drains"        // Key: a backend that somebody drained
	inDeletions   = "deletions"     // Key: a folder whose files are to go, see deletions.go
	inRetired     = "retired"       // Parent: what of a session is deleted next; Rank: when it ended, in Unix nanoseconds
	inLive        = "live_sessions" // keys of the sessions that are not retired
	inTexts       = "texts"         // Parent: the session; what clients had kept with it and its runs, where that is large
	inProjects    = "project_runs"  // keys of runs in a project; Parent: owner and project
	inUpgrades    = "upgrades"      // what has been done to the records of older versions
	inResponses   = "responses"     // see shelf
	inSequences   = "sequences"     // likewise; sampled directly

	inEntropies = "entropies" // Parent: the run; see entropy.go

	inHeads   = "series_heads"   // Parent: the run; see series.go
	inSeries  = "series"         // Parent: the run and the table; Rank: the number of a block
	inMetrics = "client_metrics" // Key: the run, Parent: the owner; Count: how many values of a client's own the run has

	inResponseBytes = "response_bytes" // Count: how many bytes of responses an owner has
	inSequenceBytes = "sequence_bytes" // the same of sequences
)

// operationRecord is the Value of an operation; its payload is the resolved request.
type operationRecord struct {
	Kind    OperationKind `json:"kind"`
	Hash    string        `json:"hash"` // of the client's request
	Owner   string        `json:"owner"`
	Session string        `json:"session"`
	Time    time.Time     `json:"time"`

	ForwardOnly bool     `json:"forward_only,omitempty"` // a pass without gradients
	Fault       *Failure `json:"fault,omitempty"`        // found when it was submitted: it only takes its place in the order
}

// resultRecord is the Value of a result; its payload is the outcome, in JSON or, for passes and samples, packed.
type resultRecord struct {
	Kind     OperationKind `json:"kind"`
	Failure  *Failure      `json:"failure,omitempty"`
	Position int64         `json:"position,omitempty"` // the one that the backend decided; 0 = it never saw the operation
	Kept     bool          `json:"kept,omitempty"`     // an optim_step that failed for want of memory: the backend keeps the gradient for the next one
	Size     int64         `json:"size,omitempty"`
	Begun    time.Time     `json:"begun,omitzero"` // zero = the backend was never asked
	Done     time.Time     `json:"done,omitzero"`
	Ran      *ranRecord    `json:"ran,omitempty"`   // of a training operation that a backend ran
	Stats    []byte        `json:"stats,omitempty"` // what the run's series have of it: a history.Event
}

// ranRecord is a plugins.Execution, its cycle as clients see it, and the process in which it was.
type ranRecord struct {
	Cycle         int64         `json:"cycle"`
	Boot          string        `json:"boot,omitempty"`
	Begin         time.Time     `json:"begin"`
	End           time.Time     `json:"end"`
	SamplingTurns int           `json:"sampling_turns,omitempty"`
	Sampling      time.Duration `json:"sampling,omitempty"`
}

func ranRecordOf(x plugins.Execution, boot string) *ranRecord {
	if x.Cycle == 0 {
		return nil
	}
	return &ranRecord{Cycle: x.Cycle, Boot: boot, Begin: x.Begin.UTC(), End: x.End.UTC(), SamplingTurns: x.SamplingTurns, Sampling: x.Sampling}
}

// mustJSON encodes values of our own types, which cannot fail.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", v, err))
	}
	return b
}

// load reads what is in memory while nobody asks: everything but operations, results, and sessions that are retired. It gives the operations that have no result.
func (c *Core) load(ctx context.Context) ([]store.Record, error) {
	if err := c.loadSecret(ctx); err != nil {
		return nil, err
	}
	if err := c.upgrade(ctx); err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	if err := c.loadSessions(ctx); err != nil {
		return nil, fmt.Errorf("load state: %w", err)
	}
	if err := c.cfg.Store.All(ctx, inCycles, c.loadCycles); err != nil { // one that is missed would have numbers given twice
		return nil, fmt.Errorf("load state: %w", err)
	}
	used := map[string]bool{}  // folders that records name
	ended := map[string]bool{} // those of samplers whose session is over
	for _, s := range c.samplers {
		if s.Dir != "" {
			used[s.Dir], ended[s.Dir] = true, !s.session.active()
		}
	}
	err := c.each(ctx, inCheckpoints, func(b []byte) error {
		cp := &checkpoint{}
		if err := json.Unmarshal(b, &cp.checkpointRecord); err != nil {
			return err
		}
		c.checkpoints[cp.Path] = cp
		c.lists.add(cp)
		used[cp.Dir] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	var stale store.Batch // of runs that ended as the server did
	err = c.each(ctx, inPoints, func(b []byte) error {
		p := &recoveryPoint{}
		if err := json.Unmarshal(b, p); err != nil {
			return err
		}
		if r := c.runs[p.RunID]; r != nil && r.usable() {
			r.points = append(r.points, p)
			used[p.Dir] = true
			return nil
		}
		stale.Delete = append(stale.Delete, store.RecordKey{Collection: inPoints, Key: p.Dir})
		if c.knows(ctx, p.RunID) { // else they are all that is left of it
			stale.Put = append(stale.Put, c.deletion(p.Dir, "the run has ended"))
		}
		return nil
	})
	if err == nil && len(stale.Delete) > 0 {
		err = c.cfg.Store.Commit(ctx, stale)
	}
	if err != nil {
		return nil, err
	}
	for _, s := range c.samplers {
		c.attachSnapshot(s)
	}
	if c.erasures.waiting, err = c.loadDeletions(ctx, func(dir string) bool { return used[dir] && !ended[dir] }); err != nil {
		return nil, err
	}
	for _, dir := range c.erasures.waiting {
		used[dir] = true
	}
	if err := c.setAsideUnnamed(ctx, used); err != nil {
		return nil, err
	}
	c.checkDescriptions()
	pending, err := c.cfg.Store.Missing(ctx, inOperations, inResults)
	return pending, c.others(err)
}

// others passes over that single records are damaged, which a start does: what is not read is as if it were not there, but that its files are set aside, and everything else goes on.
func (c *Core) others(err error) error {
	if !errors.Is(err, store.ErrRows) {
		return err
	}
	c.log.Error("the server starts without records that are damaged", "error", err)
	return nil
}

// knows tells whether a run has a record, in memory or as one that is over, and was not lost: then nobody wants the states of it that no record names. One that is neither went with its session's record.
func (c *Core) knows(ctx context.Context, runID string) bool {
	if r := c.runs[runID]; r != nil {
		return r.State != stateCorrupted
	}
	rec, err := c.cfg.Store.Get(ctx, inRuns, runID)
	if err != nil {
		return false
	}
	r, err := c.decodeRun(rec.Value)
	return err == nil && r.State != stateCorrupted && !r.usable()
}

// loadSessions reads the sessions that are not retired, with their runs and sampling sessions, and the runs that have no session.
func (c *Core) loadSessions(ctx context.Context) error {
	now := c.cfg.now()
	var live []string
	if err := c.others(c.cfg.Store.All(ctx, inLive, func(rec store.Record) error { live = append(live, rec.Key); return nil })); err != nil {
		return err
	}
	for _, id := range live {
		s := &session{seen: now}
		rec, err := c.cfg.Store.Get(ctx, inSessions, id)
		if err == nil {
			if err = json.Unmarshal(rec.Value, &s.sessionRecord); err != nil {
				return fmt.Errorf("record %s %q: %w", inSessions, id, err)
			}
			err = c.readParts(ctx, s)
		}
		if errors.Is(err, store.ErrRows) || errors.Is(err, store.ErrNotFound) { // in a part of it something could be made anew that is there
			c.log.Error("the server starts without a session of which records are damaged or missing", "session", id, "error", err)
			continue
		}
		if err != nil {
			return err
		}
		c.sessions[id] = s
		bytes := s.size()
		for _, r := range s.runs {
			c.runs[r.ID] = r
			bytes += r.size()
		}
		for _, smp := range s.samplers {
			c.samplers[smp.ID] = smp
			bytes += smp.size()
		}
		if s.active() {
			c.hold(s, 1, bytes)
		}
	}
	without, err := c.cfg.Store.List(ctx, inRuns, "", store.Range{}, 0)
	if err = c.others(err); err != nil {
		return err
	}
	for _, rec := range without {
		r, err := c.decodeRun(rec.Value)
		if err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		c.runs[r.ID] = r
	}
	return nil
}

// readParts reads the runs and the sampling sessions of a session, in order of creation.
func (c *Core) readParts(ctx context.Context, s *session) error {
	runs, err := c.cfg.Store.List(ctx, inRuns, s.ID, store.Range{}, 0)
	if err != nil {
		return err
	}
	for _, rec := range runs {
		r, err := c.decodeRun(rec.Value)
		if err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		r.session = s
		s.runs = append(s.runs, r)
	}
	samplers, err := c.cfg.Store.List(ctx, inSamplers, s.ID, store.Range{}, 0)
	if err != nil {
		return err
	}
	for _, rec := range samplers {
		smp, err := c.decodeSampler(rec.Value)
		if err != nil {
			return fmt.Errorf("record %s %q: %w", rec.Collection, rec.Key, err)
		}
		smp.session = s
		s.samplers = append(s.samplers, smp)
	}
	return nil
}

// decodeRun reads a run; its session is the caller's to set.
func (c *Core) decodeRun(b []byte) (*run, error) {
	r := c.newRun(runRecord{})
	if err := json.Unmarshal(b, &r.runRecord); err != nil {
		return nil, err
	}
	r.model = c.byName[r.ServedModel]
	return r, nil
}

// decodeSampler reads a sampling session; its session is the caller's to set.
func (c *Core) decodeSampler(b []byte) (*sampler, error) {
	s := &sampler{earlier: true}
	if err := json.Unmarshal(b, &s.samplerRecord); err != nil {
		return nil, err
	}
	s.model = c.byName[s.ServedModel]
	return s, nil
}

// each reads the records of a collection that can be read.
func (c *Core) each(ctx context.Context, collection string, read func([]byte) error) error {
	err := c.cfg.Store.All(ctx, collection, func(r store.Record) error {
		if err := read(r.Value); err != nil {
			return fmt.Errorf("record %s %q: %w", collection, r.Key, err)
		}
		return nil
	})
	if err = c.others(err); err != nil {
		return fmt.Errorf("load state: %w", err)
	}
	return nil
}

func (c *Core) loadSecret(ctx context.Context) error {
	r, err := c.cfg.Store.Get(ctx, inSecrets, "main")
	if errors.Is(err, store.ErrNotFound) {
		c.secret = make([]byte, 32)
		if _, err := rand.Read(c.secret); err != nil {
			return fmt.Errorf("make a secret: %w", err)
		}
		r = store.Record{Collection: inSecrets, Key: "main", Value: c.secret}
		err = c.cfg.Store.Commit(ctx, store.Batch{Put: []store.Record{r}})
	}
	if err != nil {
		return fmt.Errorf("load the secret: %w", err)
	}
	c.secret = r.Value
	return nil
}

// digest is a keyed hash of some texts.
func (c *Core) digest(parts ...string) []byte {
	h := hmac.New(sha256.New, c.secret)
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return h.Sum(nil)
}

// newID makes a session's id: random, or for an idempotency key always the same.
func (c *Core) newID(kind, owner, idempotencyKey string) string {
	b := make([]byte, 16)
	if idempotencyKey == "" {
		rand.Read(b) // never fails: the program is ended instead
	} else {
		copy(b, c.digest(kind, owner, idempotencyKey))
	}
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80 // the form of a random UUID
	h := hex.EncodeToString(b)
	return strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// randomSeed draws a seed for a request that gave none.
func randomSeed() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: the program is ended instead
	var v uint64
	for _, x := range b {
		v = v<<8 | uint64(x)
	}
	return v
}

// writeSession stores a session as it is now.
func (c *Core) writeSession(ctx context.Context, s *session) error {
	texts := 0
	var leaving []string
	err := c.write(ctx, func() store.Batch {
		texts = len(s.unwritten)
		b := s.batch()
		if leaving = slices.Clone(s.leaving); s.active() {
			leaving = nil
		}
		for _, dir := range leaving {
			b.Put = append(b.Put, c.deletion(dir, "the session has ended"))
		}
		return b
	})
	if err != nil || texts+len(leaving) == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if texts > 0 {
		s.unwritten = slices.Clone(s.unwritten[min(texts, len(s.unwritten)):]) // a part of it would keep all of it in memory
		if len(s.unwritten) == 0 {
			s.unwritten = nil
		}
	}
	s.leaving = slices.DeleteFunc(s.leaving, func(dir string) bool { return slices.Contains(leaving, dir) })
	c.erase(leaving...)
	return nil
}

// writeRun stores a run as it is now.
func (c *Core) writeRun(ctx context.Context, r *run) error {
	return c.writeRecords(ctx, func() []store.Record { return []store.Record{r.record()} })
}

// writeRecords stores records that are taken under mu, as write does.
func (c *Core) writeRecords(ctx context.Context, take func() []store.Record) error {
	return c.write(ctx, func() store.Batch { return store.Batch{Put: take()} })
}

// write makes changes that are taken under mu; writes take effect in the order in which they were taken.
func (c *Core) write(ctx context.Context, take func() store.Batch) error {
	if err := c.takeTurn(); err != nil {
		return err
	}
	defer c.saveMu.Unlock()
	c.mu.Lock()
	b := take()
	c.mu.Unlock()
	return c.commit(ctx, b)
}

// takeTurn locks saveMu for what a client asked for, which does not wait behind something that waits for a database that is away.
func (c *Core) takeTurn() error {
	for !c.saveMu.lockWithin(turnPatience) {
		if t := store.TroubleOf(c.cfg.Store.Err()); t != nil && t.State == store.Failing {
			return refusef(KindUnavailable, "%v", t)
		}
	}
	return nil
}

// logged reports an error of background work that nobody waits for.
func (c *Core) logged(what string, err error, attrs ...any) {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.log.Error(what, append(attrs, "error", err)...)
	}
}
