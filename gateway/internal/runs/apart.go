package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// What clients have kept with their sessions and runs may be large, and is asked for seldom. So what is more than a little has records of its own, which are written once and read when somebody asks for
// what is in them: in memory, and in the records that change with every state, is only that there are some.

// maxInline is how many bytes of such texts stay with a session or a run.
const maxInline = 4 << 10

// sessionTexts is what of a session may lie apart.
type sessionTexts struct {
	Tags         []string        `json:"tags,omitempty"`
	UserMetadata json.RawMessage `json:"user_metadata"`
}

// runTexts is what of a run may lie apart.
type runTexts struct {
	UserMetadata json.RawMessage `json:"user_metadata"`
}

// endTexts is what of the end of a session may lie apart.
type endTexts struct {
	Detail string `json:"detail"`
}

// endKey is the key of a session's endTexts.
func endKey(session string) string { return session + ":end" }

func apart(key, session string, texts any) store.Record {
	return store.Record{Collection: inTexts, Key: key, Parent: session, Value: mustJSON(texts)}
}

// part takes out of a session's record what is large, to be written apart with it. The caller holds mu, or nobody else knows the session.
func (s *session) part() {
	bytes := len(s.UserMetadata)
	for _, tag := range s.Tags {
		bytes += len(tag)
	}
	if !s.Apart && bytes > maxInline {
		s.unwritten = append(s.unwritten, apart(s.ID, s.ID, sessionTexts{s.Tags, s.UserMetadata}))
		s.Apart, s.Tags, s.UserMetadata = true, nil, json.RawMessage("{}")
	}
	if !s.DetailApart && len(s.Status.Detail) > maxInline {
		s.unwritten = append(s.unwritten, apart(endKey(s.ID), s.ID, endTexts{s.Status.Detail}))
		s.DetailApart, s.Status.Detail = true, ""
	}
}

// part takes what is large out of a run that is being made, as part of a session does, and gives the record that it goes to.
func (r *run) part() []store.Record {
	if r.Apart || len(r.UserMetadata) <= maxInline {
		return nil
	}
	rec := apart(r.ID, r.SessionID, runTexts{r.UserMetadata})
	r.Apart, r.UserMetadata = true, json.RawMessage("{}")
	return []store.Record{rec}
}

// textsApart reads what lies apart; there is none in the moment before it is written.
func (c *Core) textsApart(ctx context.Context, key string, into any) error {
	rec, err := c.cfg.Store.Get(ctx, inTexts, key)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(rec.Value, into)
	}
	if err != nil {
		return fmt.Errorf("read what was kept with %s: %w", key, err)
	}
	return nil
}

// whole completes the description of a session by what lies apart, and gives how many bytes that were.
func (c *Core) whole(ctx context.Context, info *SessionInfo) (int64, error) {
	if info.apart {
		texts := sessionTexts{UserMetadata: info.UserMetadata}
		if err := c.textsApart(ctx, info.ID, &texts); err != nil {
			return 0, err
		}
		info.Tags, info.UserMetadata = texts.Tags, texts.UserMetadata
	}
	if info.detailApart {
		var texts endTexts
		if err := c.textsApart(ctx, endKey(info.ID), &texts); err != nil {
			return 0, err
		}
		info.Status.Detail = texts.Detail
	}
	return int64(len(info.UserMetadata) + len(info.Status.Detail)), nil
}

// wholeRun completes the description of a run, and gives how many bytes its metadata are.
func (c *Core) wholeRun(ctx context.Context, info *RunInfo) (int64, error) {
	if info.apart {
		texts := runTexts{UserMetadata: info.UserMetadata}
		if err := c.textsApart(ctx, info.ID, &texts); err != nil {
			return 0, err
		}
		info.UserMetadata = texts.UserMetadata
	}
	return int64(len(info.UserMetadata)), nil
}
