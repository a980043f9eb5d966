package runs

import (
	"context"
	"encoding/json"
)

// Naming is what people call a run.
type Naming struct {
	DisplayName     string          // of its session; "" = none
	Recipe          string          // from the metadata of the run or its session; "" = none
	SessionMetadata json.RawMessage // nil where it is large
}

// recipeKeys name the recipe in metadata, the first that is there.
var recipeKeys = []string{"recipe_name", "recipe"}

// namingOf reads names from a session and the metadata of a run. s may be nil.
func namingOf(s *session, metadata json.RawMessage) (n Naming) {
	all := []json.RawMessage{metadata}
	if s != nil {
		n.DisplayName = s.DisplayName
		if len(s.UserMetadata) <= maxInline && !s.Apart {
			n.SessionMetadata = s.UserMetadata
			all = append(all, s.UserMetadata)
		}
	}
	for _, raw := range all {
		if len(raw) > maxInline {
			continue
		}
		var values map[string]any
		if json.Unmarshal(raw, &values) != nil {
			continue
		}
		for _, key := range recipeKeys {
			if text, ok := values[key].(string); ok && n.Recipe == "" && len(text) <= maxLabel {
				n.Recipe = text
			}
		}
	}
	return n
}

// What is looked up of sessions that are not in memory for one list of models, and remembered of all.
const (
	namesRead = 200
	namesKept = 10_000
)

// nameAll gives adapters the names of their sessions, as far as they have none: those of sessions that are not in memory are read once, some at a time.
func (c *Core) nameAll(ctx context.Context, list []ServedModel) {
	read := 0
	for i := range list {
		m := &list[i]
		if m.RunID == "" || m.DisplayName != "" || m.Recipe != "" || m.SessionID == "" {
			continue
		}
		c.mu.Lock()
		n, known := c.names[m.SessionID]
		known = known || c.sessions[m.SessionID] != nil // it has no name
		c.mu.Unlock()
		if !known {
			if read++; read > namesRead {
				return
			}
			rec, err := c.cfg.Store.Get(ctx, inSessions, m.SessionID)
			if err != nil { // a name is not worth an error
				continue
			}
			if s, err := decodeSession(rec); err == nil {
				n = namingOf(s, nil)
			}
			n.SessionMetadata = nil
			c.mu.Lock()
			if len(c.names) >= namesKept {
				clear(c.names)
			}
			c.names[m.SessionID] = n
			c.mu.Unlock()
		}
		m.DisplayName, m.Recipe = n.DisplayName, n.Recipe
	}
}
