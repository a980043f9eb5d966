package runs

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// NewSampler asks for a sampling session. ModelPath decides if both are given.
type NewSampler struct {
	Owner       string
	AccessOwner string // as in NewRunFromCheckpoint
	SessionID   string
	Seq         int64  // one counter per session, shared with unnamed saves
	BaseModel   string // a served name or alias
	ModelPath   string // tinker://RUN/sampler_weights/NAME
}

// SamplerInfo describes a sampling session.
type SamplerInfo struct {
	ID          string
	SessionID   string
	BaseModel   string // the name the client used, from which it finds the tokenizer
	ServedModel string
	ModelPath   string // "" for the base model and for unnamed saves
	RunID       string // whose weights; "" for the base model
	CreatedAt   time.Time
}

// sampler is a sampling session in memory. The record is what is stored.
type sampler struct {
	samplerRecord
	model       *model // nil if it is not served any more
	session     *session
	snap        *snapshot // of an unnamed save
	ended       bool
	jobs        map[*sampleJob]bool
	completions map[int64]*completionQueue // one per client that asked, by its number
	earlier     bool                       // an earlier process made it, and may have taken samples that are not in taken
	taken       numbers                    // of samples that this process has taken
	accepted    int64                      // how often taken has grown
	unnumbered  int64                      // the lowest number that a sample without one may get; 0 = not known
}

// mayHave tells whether a sample with this number may be in the store. mu is held.
func (s *sampler) mayHave(seq int64) bool { return s.earlier || s.taken.has(seq) }

type samplerRecord struct {
	ID          string           `json:"id"`
	SessionID   string           `json:"session_id"`
	Owner       string           `json:"owner"`
	BaseModel   string           `json:"base_model"`
	ServedModel string           `json:"served_model"`
	ModelPath   string           `json:"model_path,omitempty"`
	RunID       string           `json:"run_id,omitempty"`
	CreatedAt   time.Time        `json:"created_at"`
	ExpiresAt   *time.Time       `json:"expires_at,omitempty"`
	Joined      int64            `json:"joined,omitempty"`
	JoinKeys    map[string]int64 `json:"join_keys,omitempty"` // of idempotency keys, the newest ones
	Unnamed     bool             `json:"unnamed,omitempty"`
	Version     int64            `json:"version,omitempty"` // of the run, when Unnamed
	Seq         int64            `json:"seq,omitempty"`     // of the save that made it, when Unnamed
	Dir         string           `json:"dir,omitempty"`     // where that version is on disk
	Removed     bool             `json:"removed,omitempty"` // it was there, and had to make room
}

func (s *sampler) record() store.Record {
	return store.Record{Collection: inSamplers, Key: s.ID, Parent: s.SessionID, Rank: s.CreatedAt.UnixNano(), Value: mustJSON(s.samplerRecord)}
}

func (s *sampler) info() SamplerInfo {
	return SamplerInfo{ID: s.ID, SessionID: s.SessionID, BaseModel: s.BaseModel, ServedModel: s.ServedModel, ModelPath: s.ModelPath, RunID: s.RunID, CreatedAt: s.CreatedAt}
}

// ownSampler finds a sampling session of the owner that has not ended. mu is held.
func (c *Core) ownSampler(owner, id string) (*sampler, error) {
	s := c.samplers[id]
	if s == nil || s.Owner != owner {
		return nil, notFoundf("no sampling session %s", quote(id))
	}
	if s.session == nil || !s.session.active() {
		return nil, notFoundf("sampling session %s has ended with its session", id)
	}
	if expired(s.ExpiresAt, c.cfg.now()) {
		return nil, notFoundf("sampling session %s has expired", id)
	}
	return s, nil
}

// CreateSampler makes a sampling session. KindForbidden: no such session; KindNotFound: no such checkpoint; KindInvalid: not a sampler path; KindFailed: its model
// cannot be served.
func (c *Core) CreateSampler(ctx context.Context, req NewSampler) (SamplerInfo, error) {
	if req.Seq < 0 {
		return SamplerInfo{}, invalidf("sampling_session_seq_id: is %d, must be at least 0", req.Seq)
	}
	if req.BaseModel == "" && req.ModelPath == "" {
		return SamplerInfo{}, invalidf("base_model or model_path is required")
	}
	if err := c.recall(ctx, req.SessionID); err != nil {
		return SamplerInfo{}, err
	}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return SamplerInfo{}, errClosing
	}
	session, err := c.usableSession(req.Owner, req.SessionID)
	if err != nil {
		c.mu.Unlock()
		return SamplerInfo{}, err
	}
	rec := samplerRecord{ID: session.ID + ":sample:" + itoa(req.Seq), SessionID: session.ID, Owner: req.Owner, CreatedAt: c.cfg.now().UTC()}
	s := c.samplers[rec.ID]
	if s != nil && (s.Unnamed || s.ModelPath != req.ModelPath || req.ModelPath == "" && s.BaseModel != req.BaseModel) || session.reserved[rec.ID] {
		c.mu.Unlock()
		return SamplerInfo{}, invalidf("sampling_session_seq_id: %d was used before, for another sampling session", req.Seq)
	}
	if s == nil {
		if req.ModelPath != "" {
			cp, err := c.samplable(req.Owner, req.AccessOwner, req.ModelPath)
			if err != nil {
				c.mu.Unlock()
				return SamplerInfo{}, err
			}
			rec.ModelPath, rec.RunID, rec.BaseModel, rec.ServedModel = cp.Path, cp.RunID, cp.BaseModel, cp.ServedModel
		} else {
			m := c.byName[req.BaseModel]
			if m == nil {
				c.mu.Unlock()
				return SamplerInfo{}, c.unknownModel(req.BaseModel)
			}
			rec.BaseModel, rec.ServedModel = req.BaseModel, m.Name
		}
		if err := c.failed(c.byName[rec.ServedModel]); err != nil {
			c.mu.Unlock()
			return SamplerInfo{}, err
		}
		s = &sampler{samplerRecord: rec, model: c.byName[rec.ServedModel], session: session}
		if err := c.mayHold(s.Owner, 0, s.size()); err != nil {
			c.mu.Unlock()
			return SamplerInfo{}, err
		}
		c.hold(session, 0, s.size())
		c.samplers[s.ID] = s
		session.samplers = append(session.samplers, s)
	}
	info := s.info()
	c.mu.Unlock()
	// A repeat waits for the same write, so that no answer comes before the sampler is durable.
	if err := c.writeRecords(ctx, func() []store.Record { return []store.Record{s.record()} }); err != nil {
		return SamplerInfo{}, fmt.Errorf("create sampling session: %w", err)
	}
	return info, nil
}

// Sampler describes a sampling session.
func (c *Core) Sampler(ctx context.Context, owner, id string) (SamplerInfo, error) {
	if err := c.recall(ctx, id); err != nil {
		return SamplerInfo{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.ownSampler(owner, id)
	if err != nil {
		return SamplerInfo{}, err
	}
	return s.info(), nil
}

// JoinSampler gives a further client of a sampling session its number: 1, 2, 3, …; the same idempotency key gives the same number.
func (c *Core) JoinSampler(ctx context.Context, owner, id, idempotencyKey string) (int64, error) {
	const keysKept = 100
	if len(idempotencyKey) > maxLabel {
		return 0, invalidf("X-Idempotency-Key: has %d bytes, at most %d are allowed", len(idempotencyKey), maxLabel)
	}
	if err := c.recall(ctx, id); err != nil {
		return 0, err
	}
	c.mu.Lock()
	s, err := c.ownSampler(owner, id)
	if err != nil {
		c.mu.Unlock()
		return 0, err
	}
	n, known := s.JoinKeys[idempotencyKey]
	if !known {
		if s.Joined >= cloneSize-1 {
			c.mu.Unlock()
			return 0, refusef(KindForbidden, "sampling session %s: no number is left", id)
		}
		s.Joined++
		n = s.Joined
		if idempotencyKey != "" {
			keys := map[string]int64{idempotencyKey: n}
			for k, v := range s.JoinKeys {
				if v > n-keysKept {
					keys[k] = v
				}
			}
			s.JoinKeys = keys
		}
	}
	c.mu.Unlock()
	if err := c.writeRecords(ctx, func() []store.Record { return []store.Record{s.record()} }); err != nil {
		return 0, fmt.Errorf("join sampling session: %w", err)
	}
	return n, nil
}

// samplerSource is where its weights come from. mu is held.
func (c *Core) samplerSource(s *sampler) (source, error) {
	switch {
	case s.model == nil:
		return source{}, refusef(KindNotFound, "model %s is not served any more", s.ServedModel)
	case s.ModelPath != "":
		cp := c.checkpoints[s.ModelPath]
		if cp == nil || expired(cp.ExpiresAt, c.cfg.now()) {
			return source{}, notFoundf("checkpoint %s is deleted", s.ModelPath)
		}
		return source{saved: cp}, nil
	case s.Unnamed:
		return source{snap: s.snap}, nil
	}
	return source{}, nil
}

// twin is another sampler of the same version, which has its weights already; nil if there is none. mu is held, or nothing runs yet.
func (s *sampler) twin() *sampler {
	if s.session == nil {
		return nil
	}
	for _, other := range s.session.samplers {
		if other.snap != nil && s.sharesVersion(other) {
			return other
		}
	}
	return nil
}

// sharesVersion tells whether another sampler is of the same version of the same run, both unnamed: they have one snapshot, and one folder.
func (s *sampler) sharesVersion(other *sampler) bool {
	return other != s && s.Unnamed && other.Unnamed && other.RunID == s.RunID && other.Version == s.Version
}

// endSampler fails what is unfinished of a sampling session and frees its weights unless another one uses them. mu is held.
func (c *Core) endSampler(s *sampler, why *Failure) {
	if s.ended {
		return
	}
	s.ended = true
	for _, j := range slices.SortedFunc(maps.Keys(s.jobs), func(a, b *sampleJob) int { return cmp.Compare(a.future.id, b.future.id) }) {
		c.cancelJob(j, why)
	}
	s.completions = nil
	for _, twin := range s.session.samplers {
		if !twin.ended && s.sharesVersion(twin) {
			return
		}
	}
	snap := s.snap
	if snap != nil {
		c.uncount(s.Owner, snap)
	}
	if snap != nil && snap.run != nil {
		delete(snap.run.pins, snap.version)
		if b, ok := snap.run.home.current(); ok && snap.hot && b.BootID == snap.run.boot {
			c.unpin(b, snap.run.adapter, snap.pin)
		}
		snap.hot, snap.lost = false, "its sampling session has ended"
	}
	switch {
	case s.Dir == "":
	case s.session.active(): // its record says when it expired
		c.deleteBehind("the sampling session has expired", s.Dir)
	default: // it must not go before its session's end is stored
		s.session.leaving = append(s.session.leaving, s.Dir)
	}
}
