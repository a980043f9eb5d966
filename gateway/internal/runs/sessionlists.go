package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

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

// Sessions lists session ids, newest first, with the number there are in all. Page.Limit is 20 by default.
func (c *Core) Sessions(ctx context.Context, owner string, page Page) ([]string, int, error) {
	found, total, err := c.page(ctx, inSessions, owner, page, 20)
	if err != nil {
		return nil, 0, fmt.Errorf("list sessions: %w", err)
	}
	ids := make([]string, 0, len(found))
	for _, rec := range found {
		ids = append(ids, rec.Key)
	}
	return ids, total, nil
}

// page reads the keys of a page of a list in the store, newest first, and how many there are in all.
func (c *Core) page(ctx context.Context, collection, parent string, page Page, limit int) ([]store.Record, int, error) {
	_, limit, err := page.cut(math.MaxInt, limit)
	if err != nil {
		return nil, 0, err
	}
	limit -= page.Offset
	total, err := c.cfg.Store.Count(ctx, collection, parent, store.Range{})
	if err != nil || limit == 0 || page.Offset >= total {
		return nil, total, err
	}
	list, _, err := c.cfg.Store.Page(ctx, collection, parent, store.PageQuery{Newest: true, Offset: page.Offset, Limit: limit, Keys: true})
	return list, total, err
}

// What one search reads at most, in sessions and in bytes, before it answers with what it has found and the place where it goes on; and how many bytes of metadata and details it answers with at most.
const (
	searchRecords = 5000
	searchBytes   = 32 << 20
	searchPage    = 1 << 20
)

// maxListBytes bounds the texts of clients in one answer.
const maxListBytes = 8 << 20

// SearchSessions finds sessions, newest first; the cursor is nil at the end. It may give fewer than Limit, or none, with a cursor: then it has read much, and goes on there.
func (c *Core) SearchSessions(ctx context.Context, owner string, q SessionQuery) ([]SessionInfo, *SessionCursor, error) {
	if q.Limit == 0 {
		q.Limit = 50
	}
	if q.Limit < 1 || q.Limit > 200 {
		return nil, nil, invalidf("limit: is %d, must be in 1 … 200", q.Limit)
	}
	var found []SessionInfo
	query := store.PageQuery{Newest: true, Limit: 200, Bytes: searchPage}
	if at := q.Cursor; at != nil {
		query.After = &store.Place{Rank: at.LastCreatedAt.UnixNano(), Key: at.LastSessionID}
	}
	read, bytes, answer := 0, int64(0), int64(0)
	for {
		page, more, err := c.cfg.Store.Page(ctx, inSessions, owner, query)
		if err != nil {
			return nil, nil, fmt.Errorf("search sessions: %w", err)
		}
		for i, rec := range page {
			info, ok, size, err := c.findSession(ctx, rec, q)
			if err != nil {
				return nil, nil, fmt.Errorf("search sessions: %w", err)
			}
			if read, bytes = read+1, bytes+int64(len(rec.Value))+size; ok {
				found, answer = append(found, info), answer+size
			}
			if more = more || i+1 < len(page); more && (len(found) == q.Limit || read >= searchRecords || bytes >= searchBytes || answer >= maxListBytes) {
				return found, &SessionCursor{LastCreatedAt: time.Unix(0, rec.Rank).UTC(), LastSessionID: rec.Key}, nil
			}
		}
		if !more || len(page) == 0 {
			return found, nil, nil
		}
		last := page[len(page)-1]
		query.After = &store.Place{Rank: last.Rank, Key: last.Key}
	}
}

// findSession describes the session of a record if it is one of those that are asked for, and gives how many bytes of texts it has read for that.
func (c *Core) findSession(ctx context.Context, rec store.Record, q SessionQuery) (info SessionInfo, ok bool, size int64, err error) {
	c.mu.Lock()
	s := c.sessions[rec.Key]
	if s == nil {
		c.mu.Unlock()
		if s, err = decodeSession(rec); err != nil {
			return SessionInfo{}, false, 0, err
		}
		c.mu.Lock()
	}
	info = c.describeSession(s)
	c.mu.Unlock()
	info.RunIDs, info.SamplerIDs = nil, nil // nobody else has read them either
	if !q.selects(info) {
		return SessionInfo{}, false, 0, nil
	}
	if size, err = c.whole(ctx, &info); err != nil {
		return SessionInfo{}, false, 0, err
	}
	return info, metadataHas(info.UserMetadata, q.UserMetadata), size, nil
}

// selects tells whether a session is asked for, cursor and metadata apart.
func (q SessionQuery) selects(s SessionInfo) bool {
	if q.SessionID != "" && s.ID != q.SessionID || q.ProjectIDs != nil && !slices.Contains(q.ProjectIDs, s.ProjectID) || q.Owners != nil && !slices.Contains(q.Owners, s.Owner) {
		return false
	}
	name := strings.ToLower(s.DisplayName)
	if slices.ContainsFunc(strings.Fields(strings.ToLower(q.DisplayName)), func(w string) bool { return !strings.Contains(name, w) }) {
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
