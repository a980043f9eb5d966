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
	"sort"
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
	inPoints      = "recovery_points"
	inUsage       = "usage"
	inAudit       = "audit"
	inSecrets     = "secrets"
	inCrashes     = "crashes" // of work and rebuilds with which processes ended, until they succeed
	inCycles      = "cycles"  // reserved numbers of clock cycles
	inRetired     = "retired" // Parent: what of a session is deleted next; Rank: when it ended, in Unix nanoseconds
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
	Ran      *ranRecord    `json:"ran,omitempty"` // of a training operation that a backend ran
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

// load reads everything but operations, results, and sessions that are retired, and gives the operations that have no result.
func (c *Core) load(ctx context.Context) ([]store.Record, error) {
	if err := c.loadSecret(ctx); err != nil {
		return nil, err
	}
	now := c.cfg.now()
	err := c.each(ctx, inSessions, func(b []byte) error {
		s := &session{seen: now}
		if err := json.Unmarshal(b, &s.sessionRecord); err != nil {
			return err
		}
		if !s.Retired {
			c.sessions[s.ID] = s
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = c.each(ctx, inRuns, func(b []byte) error {
		r, err := c.decodeRun(b)
		if err != nil {
			return err
		}
		if r.session = c.sessions[r.SessionID]; r.session != nil {
			r.session.runs = append(r.session.runs, r)
		} else if r.SessionID != "" {
			return nil // it is retired
		}
		c.runs[r.ID] = r
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := c.listRuns(ctx); err != nil {
		return nil, err
	}
	if err := c.each(ctx, inCycles, c.loadCycles); err != nil {
		return nil, err
	}
	err = c.each(ctx, inSamplers, func(b []byte) error {
		s, err := c.decodeSampler(b)
		if err != nil {
			return err
		}
		if s.session = c.sessions[s.SessionID]; s.session == nil {
			return nil // it is retired
		}
		s.session.samplers = append(s.session.samplers, s)
		c.samplers[s.ID] = s
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = c.each(ctx, inCheckpoints, func(b []byte) error {
		cp := &checkpoint{}
		if err := json.Unmarshal(b, &cp.checkpointRecord); err != nil {
			return err
		}
		c.checkpoints[cp.Path] = cp
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
		} else {
			stale.Delete = append(stale.Delete, store.RecordKey{Collection: inPoints, Key: p.Dir})
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
	for _, s := range c.sessions {
		sort.SliceStable(s.runs, func(i, j int) bool { return s.runs[i].CreatedAt.Before(s.runs[j].CreatedAt) })
		sort.SliceStable(s.samplers, func(i, j int) bool { return s.samplers[i].CreatedAt.Before(s.samplers[j].CreatedAt) })
	}
	if err := c.removeOrphans(); err != nil {
		return nil, err
	}
	return c.cfg.Store.Missing(ctx, inOperations, inResults)
}

// listRuns gives the runs of older versions, which had no such lists, their places among those of their owners.
func (c *Core) listRuns(ctx context.Context) error {
	missing, err := c.cfg.Store.Missing(ctx, inRuns, inOwned)
	var b store.Batch
	for _, rec := range missing {
		r, err := c.decodeRun(rec.Value)
		if err != nil {
			return fmt.Errorf("load state: record %s %q: %w", rec.Collection, rec.Key, err)
		}
		b.Put = append(b.Put, r.listed())
	}
	if err == nil && len(b.Put) > 0 {
		err = c.cfg.Store.Commit(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("load state: %w", err)
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

func (c *Core) each(ctx context.Context, collection string, read func([]byte) error) error {
	err := c.cfg.Store.All(ctx, collection, func(r store.Record) error {
		if err := read(r.Value); err != nil {
			return fmt.Errorf("record %s %q: %w", collection, r.Key, err)
		}
		return nil
	})
	if err != nil {
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
	return c.write(ctx, s.records)
}

// writeRun stores a run as it is now.
func (c *Core) writeRun(ctx context.Context, r *run) error {
	return c.write(ctx, func() []store.Record { return []store.Record{r.record()} })
}

// write stores records that are taken under mu; writes take effect in the order in which the records were taken.
func (c *Core) write(ctx context.Context, take func() []store.Record) error {
	c.saveMu.Lock()
	defer c.saveMu.Unlock()
	c.mu.Lock()
	records := take()
	c.mu.Unlock()
	return c.commit(ctx, store.Batch{Put: records})
}

// logged reports an error of background work that nobody waits for.
func (c *Core) logged(what string, err error, attrs ...any) {
	if err != nil && !errors.Is(err, context.Canceled) {
		c.log.Error(what, append(attrs, "error", err)...)
	}
}
