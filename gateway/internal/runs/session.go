package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

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
	RunIDs        []string // in order of creation
	SamplerIDs    []string // in order of creation
	Checkpoints   int      // of its runs
	StorageBytes  int64
}

// SessionQuery selects sessions. Zero fields select everything.
type SessionQuery struct {
	SessionID    string
	ProjectIDs   []string
	Owners       []string                   // only these owners; sessions the caller may not read are never found
	DisplayName  string                     // words that must all occur, case-insensitive
	UserMetadata map[string]json.RawMessage // equal values
	Statuses     []SessionStatus            // Type, and for StatusFinished the Reason if set
	Limit        int                        // 1 … 200; 0 = 50
	Cursor       *SessionCursor             // continue after
}

// SessionCursor is a place in the list, newest first.
type SessionCursor struct {
	LastCreatedAt time.Time
	LastSessionID string
}

// session is a session in memory. The record is what is stored.
type session struct {
	sessionRecord
	seen     time.Time // last heartbeat, submission or poll, counted anew after a restart
	asked    time.Time // when somebody named it last
	pending  int       // futures that are not complete
	runs     []*run
	samplers []*sampler
	reserved map[string]bool // sampler ids that unnamed saves will make
}

func (s *session) reserve(samplerID string) {
	if s.reserved == nil {
		s.reserved = map[string]bool{}
	}
	s.reserved[samplerID] = true
}

// giveUpSampler ends the reservation of a save that is over, in whatever way: from then on its sampling session exists, or somebody else may make it. mu is held.
func (op *operation) giveUpSampler() {
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

// Bounds of what a client may have kept with a session, a run or a checkpoint: all of it is in memory as long as they are.
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

// CreateSession makes a session.
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
	defer c.mu.Unlock()
	s, err := c.ownSession(owner, id)
	if err != nil {
		return SessionInfo{}, err
	}
	return c.describeSession(s), nil
}

// describeSession copies a session. mu is held.
func (c *Core) describeSession(s *session) SessionInfo {
	info := SessionInfo{
		ID: s.ID, Owner: s.Owner, CreatedAt: s.CreatedAt, LastHeartbeat: s.seen, Tags: s.Tags, UserMetadata: s.UserMetadata, SDKVersion: s.SDKVersion,
		ProjectID: s.ProjectID, DisplayName: s.DisplayName, Status: s.Status,
	}
	inside := map[string]bool{}
	for _, r := range s.runs {
		info.RunIDs = append(info.RunIDs, r.ID)
		inside[r.ID] = true
		if r.State == stateCorrupted && s.active() {
			info.Status.Type, info.Status.Category, info.Status.Detail = StatusFailed, CategoryServer, r.Reason
			info.Status.RunIDs = append(info.Status.RunIDs, r.ID)
		}
	}
	for _, smp := range s.samplers {
		info.SamplerIDs = append(info.SamplerIDs, smp.ID)
	}
	now := c.cfg.now()
	for _, cp := range c.checkpoints {
		if inside[cp.RunID] && !expired(cp.ExpiresAt, now) {
			info.Checkpoints++
			info.StorageBytes += cp.Size
		}
	}
	return info
}

// newestSessions reads the owner's sessions, newest first.
func (c *Core) newestSessions(ctx context.Context, owner string) ([]store.Record, error) {
	list, err := c.cfg.Store.List(ctx, inSessions, owner, store.Range{}, 0)
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	newestFirst(list)
	return list, nil
}

// Sessions lists session ids, newest first, with the number there are in all. Page.Limit is 20 by default.
func (c *Core) Sessions(ctx context.Context, owner string, page Page) ([]string, int, error) {
	all, err := c.newestSessions(ctx, owner)
	if err != nil {
		return nil, 0, err
	}
	from, to, err := page.cut(len(all), 20)
	if err != nil {
		return nil, 0, err
	}
	ids := make([]string, 0, to-from)
	for _, rec := range all[from:to] {
		ids = append(ids, rec.Key)
	}
	return ids, len(all), nil
}

// SearchSessions finds sessions, newest first; the cursor is nil at the end.
func (c *Core) SearchSessions(ctx context.Context, owner string, q SessionQuery) ([]SessionInfo, *SessionCursor, error) {
	if q.Limit == 0 {
		q.Limit = 50
	}
	if q.Limit < 1 || q.Limit > 200 {
		return nil, nil, invalidf("limit: is %d, must be in 1 … 200", q.Limit)
	}
	all, err := c.newestSessions(ctx, owner)
	if err != nil {
		return nil, nil, err
	}
	var found []SessionInfo
	for _, rec := range all {
		if at := q.Cursor; at != nil && (rec.Rank > at.LastCreatedAt.UnixNano() || rec.Rank == at.LastCreatedAt.UnixNano() && rec.Key >= at.LastSessionID) {
			continue
		}
		info, ok, err := c.findSession(ctx, rec, q)
		if err != nil {
			return nil, nil, fmt.Errorf("search sessions: %w", err)
		}
		if !ok {
			continue
		}
		if len(found) == q.Limit {
			last := found[len(found)-1]
			return found, &SessionCursor{LastCreatedAt: last.CreatedAt, LastSessionID: last.ID}, nil
		}
		found = append(found, info)
	}
	return found, nil, nil
}

// findSession describes the session of a record if it is one of those that are asked for.
func (c *Core) findSession(ctx context.Context, rec store.Record, q SessionQuery) (SessionInfo, bool, error) {
	describe := func(s *session) SessionInfo {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.describeSession(s)
	}
	c.mu.Lock()
	s := c.sessions[rec.Key]
	c.mu.Unlock()
	if s != nil {
		info := describe(s)
		return info, q.selects(info), nil
	}
	alone, err := decodeSession(rec)
	if err != nil || !q.selects(describe(alone)) {
		return SessionInfo{}, false, err
	}
	if s, err = c.readSession(ctx, rec); err != nil {
		return SessionInfo{}, false, err
	}
	return describe(s), true, nil
}

// selects tells whether a session is asked for, the cursor apart.
func (q SessionQuery) selects(s SessionInfo) bool {
	if q.SessionID != "" && s.ID != q.SessionID || q.ProjectIDs != nil && !slices.Contains(q.ProjectIDs, s.ProjectID) || q.Owners != nil && !slices.Contains(q.Owners, s.Owner) {
		return false
	}
	name := strings.ToLower(s.DisplayName)
	if slices.ContainsFunc(strings.Fields(strings.ToLower(q.DisplayName)), func(w string) bool { return !strings.Contains(name, w) }) || !metadataHas(s.UserMetadata, q.UserMetadata) {
		return false
	}
	return q.Statuses == nil || slices.ContainsFunc(q.Statuses, func(want SessionStatus) bool {
		return want.Type == s.Status.Type && (want.Reason == "" || want.Reason == s.Status.Reason)
	})
}

// metadataHas tells whether an object has these members with equal values.
func metadataHas(object json.RawMessage, want map[string]json.RawMessage) bool {
	if len(want) == 0 {
		return true
	}
	var members map[string]any
	if json.Unmarshal(object, &members) != nil {
		return false
	}
	for name, raw := range want {
		var value any
		have, ok := members[name]
		if !ok || json.Unmarshal(raw, &value) != nil || !reflect.DeepEqual(have, value) {
			return false
		}
	}
	return true
}

// AssignProject moves a session to a project ("" = none).
func (c *Core) AssignProject(ctx context.Context, owner, id, project string) error {
	if err := firstError(checkLabel("project_id", project), c.recall(ctx, id)); err != nil {
		return err
	}
	c.mu.Lock()
	s, err := c.ownSession(owner, id)
	if err == nil {
		s.ProjectID = project
	}
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := c.writeSession(ctx, s); err != nil {
		return fmt.Errorf("assign project: %w", err)
	}
	return c.commit(ctx, store.Batch{Put: []store.Record{c.audit(owner, AuditEntry{Event: "project_assigned", Details: map[string]any{"session_id": id, "project_id": project}})}})
}

// cut gives the bounds of a page of a list.
func (p Page) cut(length, limit int) (from, to int, err error) {
	if p.Limit != 0 {
		limit = p.Limit
	}
	if limit < 0 || limit > 1000 {
		return 0, 0, invalidf("limit: is %d, must be in 0 … 1000", p.Limit)
	}
	if p.Offset < 0 {
		return 0, 0, invalidf("offset: is %d, must be at least 0", p.Offset)
	}
	from = min(p.Offset, length)
	return from, min(from+limit, length), nil
}
