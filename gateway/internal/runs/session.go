package runs

import (
	"context"
	"encoding/json"
	"time"
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

// CreateSession makes a session.
func (c *Core) CreateSession(ctx context.Context, req NewSession) (SessionInfo, error) {
	return SessionInfo{}, errNotYet
}

// Heartbeat keeps a session alive. KindNotFound: unknown, foreign or expired; KindGone: finished.
func (c *Core) Heartbeat(ctx context.Context, owner, id string) error { return errNotYet }

// FinishSession ends a session: its runs and samplers are freed, its checkpoints stay. reason is "success", "errored" or "interrupted". Finishing twice succeeds.
func (c *Core) FinishSession(ctx context.Context, owner, id, reason, detail string) error {
	return errNotYet
}

// Session describes one session.
func (c *Core) Session(ctx context.Context, owner, id string, scope Scope) (SessionInfo, error) {
	return SessionInfo{}, errNotYet
}

// Sessions lists session ids, newest first, with the number there are in all.
func (c *Core) Sessions(ctx context.Context, owner string, scope Scope, page Page) ([]string, int, error) {
	return nil, 0, errNotYet
}

// SearchSessions finds sessions, newest first; the cursor is nil at the end.
func (c *Core) SearchSessions(ctx context.Context, owner string, q SessionQuery) ([]SessionInfo, *SessionCursor, error) {
	return nil, nil, errNotYet
}

// AssignProject moves a session to a project ("" = none).
func (c *Core) AssignProject(ctx context.Context, owner, id, project string) error { return errNotYet }
