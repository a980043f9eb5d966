package tinker

import (
	"encoding/json"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// idempotencyKey is the same over the SDK's own repeats of one request.
func idempotencyKey(c call) string { return c.GetHeader("X-Idempotency-Key") }

func (s *Service) createSession(c call) (any, error) {
	var in struct {
		Tags         []string        `json:"tags"`
		UserMetadata json.RawMessage `json:"user_metadata"`
		SDKVersion   string          `json:"sdk_version"`
		ProjectID    string          `json:"project_id"`
		DisplayName  string          `json:"display_name"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	session, err := s.core.CreateSession(c, runs.NewSession{
		Owner: c.owner, Tags: in.Tags, UserMetadata: in.UserMetadata, SDKVersion: in.SDKVersion, ProjectID: in.ProjectID, DisplayName: in.DisplayName, IdempotencyKey: idempotencyKey(c),
	})
	if err != nil {
		return nil, err
	}
	return gin.H{"session_id": session.ID, "type": "create_session"}, nil
}

func (s *Service) heartbeat(c call) (any, error) {
	var in struct {
		SessionID string `json:"session_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if err := s.core.Heartbeat(c, c.owner, in.SessionID); err != nil {
		return nil, err
	}
	return gin.H{"type": "session_heartbeat"}, nil
}

func (s *Service) finishSession(c call) (any, error) {
	var in struct {
		Reason struct {
			Type string `json:"type"`
		} `json:"reason"`
		Detail string `json:"detail"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	return nil, s.core.FinishSession(c, c.owner, c.Param("session"), in.Reason.Type, in.Detail)
}

func (s *Service) listSessions(c call) (any, error) {
	p, err := page(c, 20)
	if err != nil {
		return nil, err
	}
	if _, err := scope(c); err != nil { // sessions are shared with nobody: both scopes mean the same
		return nil, err
	}
	ids, total, err := s.core.Sessions(c, c.owner, p)
	if err != nil {
		return nil, err
	}
	return gin.H{"sessions": list(ids), "cursor": cursor{p.Offset, p.Limit, total}}, nil
}

func (s *Service) getSession(c call) (any, error) {
	if _, err := scope(c); err != nil {
		return nil, err
	}
	session, err := s.core.Session(c, c.owner, c.Param("session"))
	if err != nil {
		return nil, err
	}
	out := gin.H{"training_run_ids": list(session.RunIDs), "sampler_ids": list(session.SamplerIDs), "user_metadata": session.UserMetadata}
	if session.DisplayName != "" {
		out["display_name"] = session.DisplayName
	}
	return out, nil
}

func (s *Service) assignProject(c call) (any, error) {
	var in struct {
		ProjectID string `json:"project_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	return nil, s.core.AssignProject(c, c.owner, c.Param("session"), in.ProjectID)
}

// sessionCursor is a place in the list of sessions, given back as it came.
type sessionCursor struct {
	LastCreatedAt time.Time `json:"last_created_at"`
	LastSessionID string    `json:"last_session_id"`
}

func (s *Service) searchSessions(c call) (any, error) {
	var in struct {
		Owner struct {
			Type string   `json:"type"`
			URNs []string `json:"owner_urns"`
		} `json:"owner"`
		Limit        int                        `json:"limit"`
		UserMetadata map[string]json.RawMessage `json:"user_metadata"`
		SessionID    string                     `json:"session_id"`
		ProjectIDs   []string                   `json:"project_ids"`
		DisplayName  string                     `json:"display_name"`
		Statuses     []struct {
			Type    string   `json:"type"`
			Reasons []string `json:"reasons"`
		} `json:"statuses"`
		Cursor *struct {
			LastCreatedAt string `json:"last_created_at"`
			LastSessionID string `json:"last_session_id"`
		} `json:"cursor"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	q := runs.SessionQuery{SessionID: in.SessionID, ProjectIDs: in.ProjectIDs, DisplayName: in.DisplayName, UserMetadata: in.UserMetadata, Limit: in.Limit}
	switch in.Owner.Type {
	case "own", "":
		q.Owners = []string{c.owner}
	case "accessible":
	case "user":
		for _, urn := range in.Owner.URNs {
			q.Owners = append(q.Owners, ownerOfURN(urn))
		}
		if len(q.Owners) == 0 {
			return nil, badRequestf("owner.owner_urns: must name at least one user")
		}
	default:
		return nil, badRequestf("owner.type: %.40q is not one of own, accessible, user", in.Owner.Type)
	}
	for _, st := range in.Statuses {
		if len(st.Reasons) == 0 {
			q.Statuses = append(q.Statuses, runs.SessionStatus{Type: runs.StatusType(st.Type)})
		}
		for _, reason := range st.Reasons {
			q.Statuses = append(q.Statuses, runs.SessionStatus{Type: runs.StatusType(st.Type), Reason: reason})
		}
	}
	if in.Cursor != nil {
		created, err := time.Parse(time.RFC3339Nano, in.Cursor.LastCreatedAt)
		if err != nil {
			return nil, badRequestf("cursor.last_created_at: %.40q is not a time such as 2026-01-02T03:04:05Z", in.Cursor.LastCreatedAt)
		}
		q.Cursor = &runs.SessionCursor{LastCreatedAt: created, LastSessionID: in.Cursor.LastSessionID}
	}
	found, next, err := s.core.SearchSessions(c, c.owner, q)
	if err != nil {
		return nil, err
	}
	sessions := make([]gin.H, len(found))
	for i, f := range found {
		sessions[i] = gin.H{
			"session_id": f.ID, "created_at": f.CreatedAt, "owner": urnOfOwner(f.Owner), "project_id": f.ProjectID, "checkpoints_count": f.Checkpoints,
			"status": sessionStatus(c, f.Status), "user_metadata": f.UserMetadata, "checkpoint_storage_bytes": f.StorageBytes,
		}
		if f.DisplayName != "" {
			sessions[i]["display_name"] = f.DisplayName
		}
	}
	out := gin.H{"sessions": sessions}
	if next != nil {
		out["next_cursor"] = sessionCursor{next.LastCreatedAt, next.LastSessionID}
	}
	return out, nil
}

func sessionStatus(c call, st runs.SessionStatus) gin.H {
	out := gin.H{"type": st.Type}
	switch st.Type {
	case runs.StatusFinished:
		out["reason"] = gin.H{"type": st.Reason}
		if st.Detail != "" {
			out["detail"] = st.Detail
		}
	case runs.StatusCancelled:
		if st.Detail != "" {
			out["detail"] = st.Detail
		}
	case runs.StatusFailed:
		category := "internal"
		if st.Category == runs.CategoryUser {
			category = "user"
		}
		out["category"], out["message"] = category, tellFailure(c, st.Category, st.Detail)
		out["reason"] = gin.H{"type": "training_run", "ids": list(st.RunIDs)}
	}
	return out
}

// list makes an empty list out of nil: null is not a list to the SDK.
func list[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
