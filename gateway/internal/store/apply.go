package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// The statements of apply. One row each: with several SQLite keeps a journal to undo half of one.
const (
	upsert  = "INSERT INTO tinsmith_records (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, id) DO UPDATE SET "
	putText = upsert + putColumns
	// Of a record that is written whole.
	putColumns = "parent = excluded.parent, place = excluded.place, amount = excluded.amount, value = excluded.value, payload = excluded.payload, " +
		"segment = excluded.segment, start = excluded.start, size = excluded.size"
	addText      = upsert + "amount = tinsmith_records.amount + excluded.amount"
	delText      = "DELETE FROM tinsmith_records WHERE collection = ? AND id = ?"
	delUnderText = "DELETE FROM tinsmith_records WHERE collection = ? AND parent = ?"
	releaseText  = "UPDATE tinsmith_records SET payload = NULL, segment = 0, start = 0, size = 0 WHERE collection = ? AND parent = ? AND (payload IS NOT NULL OR segment > 0)" + inRange
	appliedText  = "SELECT amount FROM tinsmith_records WHERE collection = ? AND id = ?"
)

// apply brings changes to the database in one transaction, with the number of their last group: so each group counts once there, whatever crashes when. The changes are not changed meanwhile.
func (s *sqlStore) apply(ctx context.Context, p *pending) error {
	conn, err := s.db.writer.Conn(ctx)
	if err != nil {
		return fmt.Errorf("write to the database: %w", err)
	}
	err = conn.Raw(func(c any) error { return s.applyTo(ctx, c, p) })
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("write to the database: %w", err)
	}
	return nil
}

// applyTo writes through the connection of the driver: what database/sql does around every statement takes a fifth of the time of a row.
func (s *sqlStore) applyTo(ctx context.Context, c any, p *pending) (err error) {
	begin, canBegin := c.(driver.ConnBeginTx)
	prepare, canPrepare := c.(driver.ConnPrepareContext)
	if !canBegin || !canPrepare {
		return fmt.Errorf("the driver's connection %T has no transactions or no statements", c)
	}
	tx, err := begin.BeginTx(ctx, driver.TxOptions{})
	if err != nil {
		return err
	}
	w := &rowWriter{ctx: ctx, db: s.db, conn: prepare}
	committed := false
	defer func() {
		err = errors.Join(err, w.close())
		if committed {
			return
		}
		if failed := tx.Rollback(); failed != nil {
			err = errors.Join(err, failed, driver.ErrBadConn) // the connection is not used again
		}
	}()
	// When the answer to an earlier attempt was lost, it may have been committed.
	applied, err := w.number(appliedText, inStore, appliedKey)
	if err != nil || applied >= p.last {
		return err
	}
	// What is done to all records of a parent is done to older ones: it comes first.
	under, release, del := w.prepare(delUnderText), w.prepare(releaseText), w.prepare(delText)
	joint := w.joint(del)
	for k := range p.under {
		joint.removeUnder(k, p.under[ParentKey{hosts, k.Parent}] && p.under[ParentKey{guests, k.Parent}])
		w.run(under, k.Collection, k.Parent)
	}
	for k, ranges := range p.released {
		for _, r := range ranges {
			from, to := r.bounds()
			w.run(release, k.Collection, k.Parent, from, to)
			if k.Collection == guests {
				joint.releaseUnder(k.Parent, from, to)
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(p.entries), func(a, b RecordKey) int { // neighbours share pages
		if c := strings.Compare(a.Collection, b.Collection); c != 0 {
			return c
		}
		return strings.Compare(a.Key, b.Key)
	})
	add, put := w.prepare(addText), w.prepare(putText)
	for _, k := range keys {
		e := p.entries[k]
		if partner := p.partner(k, e); partner != nil {
			if k.Collection == hosts {
				joint.writePair(&e.record, &partner.record)
			}
			continue
		}
		if k.Collection == hosts || k.Collection == guests {
			joint.separate(k.Key)
		}
		switch e.kind {
		case removed:
			w.run(del, k.Collection, k.Key)
		case added:
			w.write(add, &e.record)
		default:
			w.write(put, &e.record)
		}
	}
	w.write(put, &Record{Collection: inStore, Key: appliedKey, Count: p.last})
	if w.err != nil {
		return w.err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	committed = true
	return nil
}

// rowWriter runs statements on a connection of a driver until one fails.
type rowWriter struct {
	ctx   context.Context
	db    database
	conn  driver.ConnPrepareContext
	stmts []driver.Stmt
	args  []driver.NamedValue
	err   error
}

func (w *rowWriter) prepare(text string) driver.Stmt {
	if w.err != nil {
		return nil
	}
	stmt, err := w.conn.PrepareContext(w.ctx, w.db.text(text))
	if err != nil {
		w.err = err
		return nil
	}
	w.stmts = append(w.stmts, stmt)
	return stmt
}

// values are arguments of a statement; they are valid until the next call.
func (w *rowWriter) values(args ...driver.Value) []driver.NamedValue {
	w.args = w.args[:0]
	for i, v := range args {
		w.args = append(w.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return w.args
}

// run gives how many rows it changed.
func (w *rowWriter) run(stmt driver.Stmt, args ...driver.Value) (rows int64) {
	if w.err != nil {
		return 0
	}
	with, ok := stmt.(driver.StmtExecContext)
	if !ok {
		w.err = fmt.Errorf("the driver's statement %T cannot be run", stmt)
		return 0
	}
	result, err := with.ExecContext(w.ctx, w.values(args...))
	if err == nil {
		rows, err = result.RowsAffected()
	}
	w.err = err
	return rows
}

// write runs a statement with the columns of a record.
func (w *rowWriter) write(stmt driver.Stmt, r *Record) {
	w.run(stmt, r.Collection, r.Key, r.Parent, r.Rank, r.Count, r.Value, r.Payload, r.Ref.Segment, r.Ref.Offset, r.Ref.Length)
}

// number reads the one number that a query gives; 0 if it gives none.
func (w *rowWriter) number(text string, args ...driver.Value) (int64, error) {
	stmt, ok := w.prepare(text).(driver.StmtQueryContext)
	if w.err != nil {
		return 0, w.err
	}
	if !ok {
		return 0, errors.New("the driver's statement cannot be queried")
	}
	rows, err := stmt.QueryContext(w.ctx, w.values(args...))
	if err != nil {
		return 0, err
	}
	row := make([]driver.Value, 1)
	err = rows.Next(row)
	if closing := rows.Close(); err == nil {
		err = closing
	}
	if errors.Is(err, io.EOF) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	n, ok := row[0].(int64)
	if !ok {
		return 0, fmt.Errorf("the database gave %T for a number", row[0])
	}
	return n, nil
}

func (w *rowWriter) close() error {
	var err error
	for _, stmt := range w.stmts {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

func arguments(r Record) []any {
	return []any{r.Collection, r.Key, r.Parent, r.Rank, r.Count, r.Value, r.Payload, r.Ref.Segment, r.Ref.Offset, r.Ref.Length}
}
