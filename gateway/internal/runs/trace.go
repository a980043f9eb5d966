package runs

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// TraceEvent is one operation on a session's timeline.
type TraceEvent struct {
	Object    string // the run or sampling session
	RequestID string
	Kind      OperationKind
	Accepted  time.Time
	Begun     time.Time // when the backend was asked; zero if it never was
	Done      time.Time // zero while it is not finished
	Failed    bool
	// Ran says in which clock cycle the device ran a training operation, and when: between Begun and Done. Zero where the backend does not tell.
	Ran  plugins.Execution
	Boot string // the backend's process that ran it: each counts its cycles from 1
}

// TraceToken gives a token that lets its bearer read a session's timeline without further credentials until it expires.
func (c *Core) TraceToken(ctx context.Context, by Requester, sessionID string) (token string, expires time.Time, err error) {
	if err := c.recall(ctx, sessionID); err != nil {
		return "", time.Time{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.ownSession(by.Owner, sessionID); err != nil {
		return "", time.Time{}, err
	}
	expires = c.cfg.now().UTC().Add(c.cfg.URLLifetime).Truncate(time.Second)
	return c.signToken(forTrace, tokenBody{Path: sessionID, Ends: expires.Unix(), By: by.Owner, Key: by.Key}), expires, nil
}

// Trace gives the operations of the session that a token is for, in the order in which they were accepted.
func (c *Core) Trace(ctx context.Context, token string) (sessionID string, events []TraceEvent, err error) {
	t, err := c.openToken(forTrace, token)
	if err != nil {
		return "", nil, err
	}
	if err := c.recall(ctx, t.Path); err != nil {
		return "", nil, err
	}
	c.mu.Lock()
	s, err := c.ownSession(t.By, t.Path)
	if err != nil {
		c.mu.Unlock()
		return "", nil, err
	}
	info := c.describeSession(s)
	c.mu.Unlock()
	for _, object := range append(info.RunIDs, info.SamplerIDs...) {
		more, err := c.traceOf(ctx, object)
		if err != nil {
			return "", nil, fmt.Errorf("trace of %s: %w", object, err)
		}
		events = append(events, more...)
	}
	sort.SliceStable(events, func(i, j int) bool { return events[i].Accepted.Before(events[j].Accepted) })
	return t.Path, events, nil
}

// traceOf joins the operations of a run or sampling session with their results.
func (c *Core) traceOf(ctx context.Context, object string) ([]TraceEvent, error) {
	operations, err := c.cfg.Store.List(ctx, inOperations, object, store.Range{}, 0)
	if err != nil {
		return nil, err
	}
	results, err := c.cfg.Store.List(ctx, inResults, object, store.Range{}, 0)
	if err != nil {
		return nil, err
	}
	byID := make(map[string]resultRecord, len(results))
	for _, rec := range results {
		var r resultRecord
		if err := json.Unmarshal(rec.Value, &r); err != nil {
			return nil, err
		}
		byID[rec.Key] = r
	}
	events := make([]TraceEvent, len(operations))
	for i, rec := range operations {
		var op operationRecord
		if err := json.Unmarshal(rec.Value, &op); err != nil {
			return nil, err
		}
		r := byID[rec.Key]
		events[i] = TraceEvent{Object: object, RequestID: rec.Key, Kind: op.Kind, Accepted: op.Time, Begun: r.Begun, Done: r.Done, Failed: r.Failure != nil}
		if x := r.Ran; x != nil {
			events[i].Boot = x.Boot
			events[i].Ran = plugins.Execution{Cycle: x.Cycle, Begin: x.Begin, End: x.End, SamplingTurns: x.SamplingTurns, Sampling: x.Sampling}
		}
	}
	return events, nil
}
