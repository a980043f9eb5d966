package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// statements are those of the writing connection.
type statements struct{ put, add, del, delUnder, release *sql.Stmt }

func (s *statements) prepare(ctx context.Context, db database) error {
	// One row a statement: with several SQLite keeps a journal to undo half of one.
	const upsert = "INSERT INTO tinsmith_records (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, id) DO UPDATE SET "
	const replace = "parent = excluded.parent, place = excluded.place, amount = excluded.amount, value = excluded.value, payload = excluded.payload, " +
		"segment = excluded.segment, start = excluded.start, size = excluded.size"
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&s.put, upsert + replace},
		{&s.add, upsert + "amount = tinsmith_records.amount + excluded.amount"},
		{&s.del, "DELETE FROM tinsmith_records WHERE collection = ? AND id = ?"},
		{&s.delUnder, "DELETE FROM tinsmith_records WHERE collection = ? AND parent = ?"},
		{&s.release, "UPDATE tinsmith_records SET payload = NULL, segment = 0, start = 0, size = 0 WHERE collection = ? AND parent = ? AND (payload IS NOT NULL OR segment > 0)" + inRange},
	} {
		stmt, err := db.writer.PrepareContext(ctx, db.text(p.text))
		if err != nil {
			return fmt.Errorf("prepare the database: %w", err)
		}
		*p.stmt = stmt
	}
	return nil
}

func (s *statements) close() error {
	var err error
	for _, stmt := range []*sql.Stmt{s.put, s.add, s.del, s.delUnder, s.release} {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

// apply brings changes to the database in one transaction, with the number of their last group: so each group counts once there, whatever crashes when. The changes are not changed meanwhile.
func (s *sqlStore) apply(ctx context.Context, p *pending) (err error) {
	tx, err := s.db.writer.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write to the database: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write to the database: %w", err), tx.Rollback())
		}
	}()
	// When the answer to an earlier attempt was lost, it may have been committed.
	applied := int64(0)
	if err := tx.QueryRowContext(ctx, s.db.text("SELECT amount FROM tinsmith_records WHERE collection = ? AND id = ?"), inStore, appliedKey).Scan(&applied); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	if applied >= p.last {
		return tx.Rollback()
	}
	run := func(stmt *sql.Stmt, args ...any) {
		if err == nil {
			_, err = stmt.ExecContext(ctx, args...)
		}
	}
	// What is done to all records of a parent is done to older ones: it comes first.
	under, release := tx.StmtContext(ctx, s.stmts.delUnder), tx.StmtContext(ctx, s.stmts.release)
	for k := range p.under {
		run(under, k.Collection, k.Parent)
	}
	for k, ranges := range p.released {
		for _, r := range ranges {
			from, to := r.bounds()
			run(release, k.Collection, k.Parent, from, to)
		}
	}
	keys := slices.SortedFunc(maps.Keys(p.entries), func(a, b RecordKey) int { // neighbours share pages
		if c := strings.Compare(a.Collection, b.Collection); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	del, add := tx.StmtContext(ctx, s.stmts.del), tx.StmtContext(ctx, s.stmts.add)
	put := tx.StmtContext(ctx, s.stmts.put)
	for _, k := range keys {
		switch e := p.entries[k]; e.kind {
		case removed:
			run(del, k.Collection, k.Key)
		case added:
			run(add, arguments(e.record)...)
		default:
			run(put, arguments(e.record)...)
		}
	}
	run(put, arguments(Record{Collection: inStore, Key: appliedKey, Count: p.last})...)
	if err != nil {
		return err
	}
	return tx.Commit()
}

func arguments(r Record) []any {
	return []any{r.Collection, r.Key, r.Parent, r.Rank, r.Count, r.Value, r.Payload, r.Ref.Segment, r.Ref.Offset, r.Ref.Length}
}
