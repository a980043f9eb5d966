package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// The statements of apply. One row each: with several SQLite keeps a journal to undo half of one.
const (
	upsert  = "INSERT INTO tinsmith_records (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (collection, id) DO UPDATE SET "
	putText = upsert + putColumns
	// Of a record that is written whole.
	putColumns = "parent = excluded.parent, place = excluded.place, amount = excluded.amount, value = excluded.value, payload = excluded.payload, " +
		"segment = excluded.segment, start = excluded.start, size = excluded.size, head_sum = excluded.head_sum, payload_sum = excluded.payload_sum"
	addText      = upsert + "amount = tinsmith_records.amount + excluded.amount, head_sum = tinsmith_records.head_sum + excluded.amount" // NULL stays NULL
	delText      = "DELETE FROM tinsmith_records WHERE collection = ? AND id = ?"
	delUnderText = "DELETE FROM tinsmith_records WHERE collection = ? AND parent = ?"
	releaseText  = "UPDATE tinsmith_records SET payload = NULL, segment = 0, start = 0, size = 0, payload_sum = 0 * payload_sum WHERE collection = ? AND parent = ? AND (payload IS NOT NULL OR segment > 0)" + inRange
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
	if err := w.hold(s.db.lease); err != nil {
		return err
	}
	// When the answer to an earlier attempt was lost, it may have been committed, or may be yet.
	applied, err := w.number(appliedText+s.db.lockOwn, inStore, appliedKey)
	if err != nil || applied >= p.last {
		return err
	}
	if applied < s.inDatabase {
		return fmt.Errorf("%w: the database ends at change %d, and had change %d", ErrLost, applied, s.inDatabase)
	}
	// What is done to all records of a parent is done to older ones: it comes first.
	under, release, del := w.prepare(delUnderText), w.prepare(releaseText), w.prepare(delText)
	joint, put := w.joint(del), w.prepare(putText)
	packed := joint.blocks(put)
	for k := range p.under {
		packed.removeUnder(k, p.under[ParentKey{hosts, k.Parent}] && p.under[ParentKey{guests, k.Parent}])
		w.run(under, k.Collection, k.Parent)
	}
	for k, ranges := range p.released {
		for _, r := range ranges {
			from, to := r.bounds()
			w.run(release, k.Collection, k.Parent, from, to)
			packed.release(k.Collection, k.Parent, from, to)
			if k.Collection == guests {
				joint.releaseUnder(k.Parent, from, to)
			}
		}
	}
	rows := p.rows()
	packed.unpack(rows)
	whole, rows := blocks(rows)
	for i := range whole {
		packed.writeBlock(&whole[i])
	}
	joint.removeOwn(rows)
	add := w.prepare(addText)
	for _, x := range rows {
		k, e := x.key, x.change
		if x.guest != nil {
			joint.writePair(&e.record, &x.guest.record)
			continue
		}
		if paired(k.Collection) {
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
	if s.db.lease != nil {
		w.run(w.prepare(forgetText), p.last)
	}
	if w.err != nil {
		return w.err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	committed = true
	return nil
}

// rowChange is what is written to one row: the change of a record, and for an operation with its result that of the guest.
type rowChange struct {
	key           RecordKey
	change, guest *change
}

// rows gives all changes in the order of their keys: neighbours share pages.
func (p *pending) rows() []rowChange {
	list := make([]rowChange, 0, len(p.entries))
	for k, e := range p.entries {
		partner := p.partner(k, e)
		if partner != nil && k.Collection == guests {
			continue // it goes with its host
		}
		list = append(list, rowChange{k, e, partner})
	}
	slices.SortFunc(list, func(a, b rowChange) int {
		if c := strings.Compare(a.key.Collection, b.key.Collection); c != 0 {
			return c
		}
		return strings.Compare(a.key.Key, b.key.Key)
	})
	return list
}

// rowWriter runs statements on a connection of a driver until one fails.
type rowWriter struct {
	ctx   context.Context
	db    database
	conn  driver.ConnPrepareContext
	stmts []driver.Stmt
	args  []driver.NamedValue
	sums  summer
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
	w.run(stmt, r.Collection, r.Key, r.Parent, r.Rank, r.Count, r.Value, r.Payload, r.Ref.Segment, r.Ref.Offset, r.Ref.Length, w.sums.head(r), w.sums.payload(r))
}

// query yields the rows that a statement reads; each is valid until the next one.
func (w *rowWriter) query(stmt driver.Stmt, yield func([]driver.Value), args ...driver.Value) {
	if w.err != nil {
		return
	}
	with, ok := stmt.(driver.StmtQueryContext)
	if !ok {
		w.err = fmt.Errorf("the driver's statement %T cannot be queried", stmt)
		return
	}
	rows, err := with.QueryContext(w.ctx, w.values(args...))
	if err != nil {
		w.err = err
		return
	}
	row := make([]driver.Value, len(rows.Columns()))
	for err == nil {
		if err = rows.Next(row); err == nil {
			yield(row)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	w.err = errors.Join(err, rows.Close())
}

// number reads the one number that a query gives; 0 if it gives none.
func (w *rowWriter) number(text string, args ...driver.Value) (int64, error) {
	var v driver.Value = int64(0)
	w.query(w.prepare(text), func(row []driver.Value) { v = row[0] }, args...)
	n, ok := v.(int64)
	if w.err == nil && !ok {
		w.err = fmt.Errorf("the database gave %T for a number", v)
	}
	return n, w.err
}

// hold is Lease.hold; nil is no lease.
func (w *rowWriter) hold(l *Lease) error {
	if l == nil {
		return nil
	}
	number, err := w.number(holdText, l.number)
	if err == nil && number != l.number {
		l.lose(ErrFenced)
		err = ErrFenced
	}
	return err
}

func (w *rowWriter) close() error {
	var err error
	for _, stmt := range w.stmts {
		err = errors.Join(err, stmt.Close())
	}
	return err
}

func arguments(r Record) []any {
	var sums summer
	return []any{r.Collection, r.Key, r.Parent, r.Rank, r.Count, r.Value, r.Payload, r.Ref.Segment, r.Ref.Offset, r.Ref.Length, sums.head(&r), sums.payload(&r)}
}
