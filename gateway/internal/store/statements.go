package store

import (
	"context"
	"database/sql"
	"sync"
)

// maxStatements bounds what statements keeps; the store has about two dozen texts.
const maxStatements = 64

// statements keeps the statements that a reader was asked before: to prepare one takes SQLite longer than to find a row. They are closed with the reader. Safe for concurrent use.
type statements struct {
	mu     sync.RWMutex
	byText map[string]*sql.Stmt
}

// of gives the prepared statement for a text, nil if there are too many already.
func (s *statements) of(ctx context.Context, reader *sql.DB, text string) (*sql.Stmt, error) {
	s.mu.RLock()
	found, n := s.byText[text], len(s.byText)
	s.mu.RUnlock()
	if found != nil || n >= maxStatements {
		return found, nil
	}
	made, err := reader.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	found = s.byText[text]
	if found == nil {
		s.byText[text] = made
	}
	s.mu.Unlock()
	if found == nil {
		return made, nil
	}
	return found, made.Close() // another was faster
}

// read asks the reader. The text has question marks for its arguments.
func (d database) read(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	if d.prepared != nil {
		s, err := d.prepared.of(ctx, d.reader, text)
		if err != nil {
			return nil, err
		}
		if s != nil {
			return s.QueryContext(ctx, args...)
		}
	}
	return d.reader.QueryContext(ctx, d.text(text), args...)
}
