package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// NewSession is what a client says about itself.
type NewSession struct {
	Owner          string
	Tags           []string
	UserMetadata   json.RawMessage // a JSON object, kept as it came; nil = {}
	SDKVersion     string
	ProjectID      string
	DisplayName    string
	IdempotencyKey string // the same key of the same owner gives the same session for an hour; "" = none
}

// StatusType is the state of a session.
type StatusType string

// The states.
const (
	StatusActive    StatusType = "active"
	StatusFinished  StatusType = "client_finished"
	StatusCancelled StatusType = "cancelled" // expired without heartbeat
	StatusFailed    StatusType = "failed"    // a run of it was lost
)

// SessionStatus tells how a session stands.
type SessionStatus struct {
	Type     StatusType
	Reason   string   // StatusFinished: "success", "errored" or "interrupted"
	Detail   string   // StatusFinished, StatusCancelled; StatusFailed: the message
	Category Category // StatusFailed
	RunIDs   []string // StatusFailed: the runs that were lost
}

// SessionInfo describes a session.
type SessionInfo struct {
	ID            string
	Owner         string
	CreatedAt     time.Time
	LastHeartbeat time.Time
	Tags          []string
	UserMetadata  json.RawMessage
	SDKVersion    string
	ProjectID     string
	DisplayName   string
	Status        SessionStatus
	RunIDs        []string // in order of creation; not of those that SearchSessions finds
	SamplerIDs    []string // likewise
	Checkpoints   int      // of its runs
	StorageBytes  int64

	apart, detailApart bool // see whole
}

// session is a session in memory. The record is what is stored.
type session struct {
	sessionRecord
	seen     time.Time // last heartbeat, submission or poll, counted anew after a restart
	asked    time.Time // when somebody named it last
	pending  int       // futures that are not complete
	runs     []*run
	samplers []*sampler
	leaving  []string        // folders of its samplers that go when its end is in the store
	reserved map[string]bool // sampler ids that unnamed saves will make
	holds    held            // what it is counted with, while it is active

	unwritten []store.Record // of texts that lie apart, to become durable with the session's record
}

func (s *session) reserve(samplerID string) {
	if s.reserved == nil {
		s.reserved = map[string]bool{}
	}
	s.reserved[samplerID] = true
}

// saveEnded ends what is reserved for a save that is over, in whatever way: from then on its sampling session exists, or somebody else may make it. mu is held.
func (c *Core) saveEnded(op *operation) {
	if op.texts > 0 {
		if c.saving[op.run.Owner] -= op.texts; c.saving[op.run.Owner] <= 0 {
			delete(c.saving, op.run.Owner)
		}
		op.texts = 0
	}
	c.store(op.run.Owner, -op.storing)
	op.storing = 0
	if op.save != nil && op.save.SamplerID != "" && op.future != nil && op.future.fault == nil {
		delete(op.run.session.reserved, op.save.SamplerID)
	}
}

type sessionRecord struct {
	ID           string          `json:"id"`
	Owner        string          `json:"owner"`
	CreatedAt    time.Time       `json:"created_at"`
	Tags         []string        `json:"tags,omitempty"`
	UserMetadata json.RawMessage `json:"user_metadata"`
	SDKVersion   string          `json:"sdk_version,omitempty"`
	ProjectID    string          `json:"project_id,omitempty"`
	DisplayName  string          `json:"display_name,omitempty"`
	Status       SessionStatus   `json:"status"`
	EndedAt      *time.Time      `json:"ended_at,omitempty"`
	Purged       bool            `json:"purged,omitempty"`    // operations are gone, and results but those of samples
	Forgotten    bool            `json:"forgotten,omitempty"` // the results of samples as well
	Retired      bool            `json:"retired,omitempty"`   // it is in memory only when it is asked for
	Apart        bool            `json:"apart,omitempty"`     // tags and metadata have a record of their own
	DetailApart  bool            `json:"detail_apart,omitempty"`
}

func (s *session) record() store.Record {
	return store.Record{Collection: inSessions, Key: s.ID, Parent: s.Owner, Rank: s.CreatedAt.UnixNano(), Value: mustJSON(s.sessionRecord)}
}

func (s *session) active() bool { return s.Status.Type == StatusActive }

// ownSession finds a session of the owner. mu is held.
func (c *Core) ownSession(owner, id string) (*session, error) {
	s := c.sessions[id]
	if s == nil || s.Owner != owner {
		return nil, notFoundf("no session %s", quote(id))
	}
	return s, nil
}

// usableSession finds a session to which something can be added. mu is held.
func (c *Core) usableSession(owner, id string) (*session, error) {
	switch s := c.sessions[id]; {
	case id == "":
		return nil, invalidf("session_id is required; update the tinker package if it does not send one")
	case s == nil || s.Owner != owner:
		return nil, refusef(KindForbidden, "Invalid session_id: no session %s", quote(id))
	case !s.active():
		return nil, refusef(KindForbidden, "Invalid session_id: session %s has ended (%s)", quote(id), s.Status.Type)
	default:
		s.seen = c.cfg.now()
		return s, nil
	}
}

// Bounds of what a client may have kept with a session, a run or a checkpoint.
const (
	maxMetadata = 256 << 10 // bytes of user_metadata, and of the detail of an end
	maxTags     = 1000
	maxLabel    = 1000 // bytes of a tag, a display name, a project id and a version
)

// check refuses labels that are too long to be kept.
func (n *NewSession) check() error {
	if len(n.Tags) > maxTags {
		return invalidf("tags: has %d entries, at most %d are allowed", len(n.Tags), maxTags)
	}
	for i, tag := range n.Tags {
		if len(tag) > maxLabel {
			return invalidf("tags[%d]: has %d bytes, at most %d are allowed", i, len(tag), maxLabel)
		}
	}
	return firstError(checkLabel("display_name", n.DisplayName), checkLabel("project_id", n.ProjectID), checkLabel("sdk_version", n.SDKVersion))
}

func checkLabel(field, text string) error {
	if len(text) > maxLabel {
		return invalidf("%s: has %d bytes, at most %d are allowed", field, len(text), maxLabel)
	}
	if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 { // some become names of records, which not every database could hold
		return invalidf("%s: must be UTF-8 without zero bytes", field)
	}
	return nil
}

// checkTexts refuses metadata of a checkpoint that are too long to be kept.
func checkTexts(metadata map[string]string) error {
	n := 0
	for k, v := range metadata {
		n += len(k) + len(v)
	}
	if n > maxMetadata {
		return invalidf("user_metadata: has %d bytes, at most %d are allowed", n, maxMetadata)
	}
	return nil
}

// checkMetadata refuses metadata that are not an object, and gives {} for none.
func checkMetadata(raw json.RawMessage) (json.RawMessage, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return json.RawMessage("{}"), nil
	}
	if len(raw) > maxMetadata {
		return nil, invalidf("user_metadata: has %d bytes, at most %d are allowed", len(raw), maxMetadata)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		return nil, invalidf("user_metadata: must be an object")
	}
	return raw, nil
}

// CreateSession makes a session. KindBusy when the owner has as many as may be active at once.
func (c *Core) CreateSession(ctx context.Context, req NewSession) (SessionInfo, error) {
	metadata, err := checkMetadata(req.UserMetadata)
	if err = firstError(err, req.check()); err != nil {
		return SessionInfo{}, err
	}
	id := c.newID("session", req.Owner, req.IdempotencyKey)
	if req.IdempotencyKey != "" {
		if err := c.recall(ctx, id); err != nil {
			return SessionInfo{}, err
		}
	}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return SessionInfo{}, errClosing
	}
	s := c.sessions[id]
	if s == nil {
		now := c.cfg.now().UTC()
		s = &session{seen: now, sessionRecord: sessionRecord{
			ID: id, Owner: req.Owner, CreatedAt: now, Tags: req.Tags, UserMetadata: metadata, SDKVersion: req.SDKVersion, ProjectID: req.ProjectID, DisplayName: req.DisplayName,
			Status: SessionStatus{Type: StatusActive},
		}}
		s.part()
		if err := c.mayHold(s.Owner, 1, s.size()); err != nil {
			c.mu.Unlock()
			return SessionInfo{}, err
		}
		c.hold(s, 1, s.size())
		c.sessions[id] = s
	}
	c.mu.Unlock()
	// A repeat waits for the same write, so that no answer comes before the session is durable.
	if err := c.writeSession(ctx, s); err != nil {
		return SessionInfo{}, fmt.Errorf("create session: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.describeSession(s), nil
}

// Heartbeat keeps a session alive. KindNotFound: unknown, foreign or expired; KindGone: finished.
func (c *Core) Heartbeat(ctx context.Context, owner, id string) error {
	if err := c.recall(ctx, id); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := c.ownSession(owner, id)
	if err != nil {
		return err
	}
	switch s.Status.Type {
	case StatusFinished:
		return refusef(KindGone, "session %s is finished", quote(id))
	case StatusActive:
		s.seen = c.cfg.now()
		return nil
	}
	return notFoundf("session %s has expired: %s", quote(id), s.Status.Detail)
}

// FinishSession ends a session: its runs and samplers are freed, its checkpoints stay. reason is "success", "errored" or "interrupted". Finishing twice succeeds.
func (c *Core) FinishSession(ctx context.Context, owner, id, reason, detail string) error {
	switch reason {
	case "success", "errored", "interrupted":
	default:
		return invalidf("reason.type %s: must be success, errored or interrupted", quote(reason))
	}
	if len(detail) > maxMetadata {
		return invalidf("detail: has %d bytes, at most %d are allowed", len(detail), maxMetadata)
	}
	if err := c.recall(ctx, id); err != nil {
		return err
	}
	c.mu.Lock()
	s, err := c.ownSession(owner, id)
	if err == nil && s.active() {
		c.endSession(s, SessionStatus{Type: StatusFinished, Reason: reason, Detail: detail})
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.writeSession(ctx, s)
}

// endSession frees what the session has in the backend and fails what is unfinished. mu is held; the caller stores the session.
func (c *Core) endSession(s *session, status SessionStatus) {
	now := c.cfg.now().UTC()
	s.Status, s.EndedAt = status, &now
	s.part()
	c.letGo(s)
	why := &Failure{Message: "the session has ended", Category: CategoryUser}
	for _, smp := range s.samplers {
		c.endSampler(smp, why)
	}
	for _, r := range s.runs {
		c.endRun(r, stateEnded, "its session has ended", why)
	}
}

// Session describes one session.
func (c *Core) Session(ctx context.Context, owner, id string) (SessionInfo, error) {
	if err := c.recall(ctx, id); err != nil {
		return SessionInfo{}, err
	}
	c.mu.Lock()
	s, err := c.ownSession(owner, id)
	if err != nil {
		c.mu.Unlock()
		return SessionInfo{}, err
	}
	info := c.describeSession(s)
	c.mu.Unlock()
	_, err = c.whole(ctx, &info)
	return info, err
}

// describeSession copies a session. mu is held.
func (c *Core) describeSession(s *session) SessionInfo {
	info := SessionInfo{
		ID: s.ID, Owner: s.Owner, CreatedAt: s.CreatedAt, LastHeartbeat: s.seen, Tags: s.Tags, UserMetadata: s.UserMetadata, SDKVersion: s.SDKVersion,
		ProjectID: s.ProjectID, DisplayName: s.DisplayName, Status: s.Status, apart: s.Apart, detailApart: s.DetailApart,
	}
	for _, r := range s.runs {
		info.RunIDs = append(info.RunIDs, r.ID)
		if r.State == stateCorrupted && s.active() {
			info.Status.Type, info.Status.Category, info.Status.Detail = StatusFailed, CategoryServer, r.Reason
			info.Status.RunIDs = append(info.Status.RunIDs, r.ID)
		}
	}
	for _, smp := range s.samplers {
		info.SamplerIDs = append(info.SamplerIDs, smp.ID)
	}
	now := c.cfg.now()
	for _, cp := range c.lists.bySession[s.ID] {
		if !expired(cp.ExpiresAt, now) {
			info.Checkpoints++
			info.StorageBytes += cp.Size
		}
	}
	return info
}

// AssignProject moves a session to a project ("" = none).
func (c *Core) AssignProject(ctx context.Context, owner, id, project string) error {
	if err := firstError(checkLabel("project_id", project), c.recall(ctx, id)); err != nil {
		return err
	}
	c.mu.Lock()
	_, err := c.ownSession(owner, id)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	write := c.write(ctx, func() store.Batch {
		var s *session
		if s, err = c.ownSession(owner, id); err != nil {
			return store.Batch{}
		}
		s.ProjectID = project
		b := s.batch()
		for _, r := range s.runs {
			r.listInProject(&b)
		}
		for _, cp := range c.lists.bySession[id] {
			cp.Project = project
			b.Put = append(b.Put, cp.record())
		}
		b.Put = append(b.Put, c.audit(owner, AuditEntry{Event: "project_assigned", Details: map[string]any{"session_id": id, "project_id": project}}))
		return b
	})
	if err == nil && write != nil {
		err = fmt.Errorf("assign project: %w", write)
	}
	return err
}
