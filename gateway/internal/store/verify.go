package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
)

// What is checked, and when. At every opening: the mark, the store's own records, the definitions of the tables, the whole commit log. A small database is checked as a whole then: its
// structure, every index against its table, every row. A larger one is checked while the store is used, slowly, soon after it was opened and once a day after that, as are the journal's segments.
const (
	wholeBytes  = 1 << 20          // of a database that is checked before it is used
	verifyAfter = 10 * time.Second // the check of the rest begins
	verifyEvery = 24 * time.Hour
	verifyShare = 10  // as long as a step of the check took it rests so many times
	verifyStep  = 100 // rows
	quickBytes  = 64 << 20
	mostFound   = 100 // findings that are kept
)

// finding notes something damaged, once.
func (s *sqlStore) finding(f Finding) {
	s.found.Lock()
	defer s.found.Unlock()
	if s.found.seen[f] || len(s.found.list) >= mostFound {
		return
	}
	if s.found.seen == nil {
		s.found.seen = map[Finding]bool{}
	}
	s.found.seen[f] = true
	s.found.list = append(s.found.list, f)
	slog.Error("the store is damaged", "where", f.Where, "found", f.What)
}

// Damage implements Store.
func (s *sqlStore) Damage() []Finding {
	s.found.Lock()
	defer s.found.Unlock()
	return slices.Clone(s.found.list)
}

// verify checks a small SQLite database as a whole, and any that is to be accepted after a loss.
func (o *opening) verify(ctx context.Context) error {
	if !o.sqlite() || o.look == nil {
		return nil
	}
	if o.loss.Kind != nil {
		if !o.opts.Accept {
			return nil
		}
	} else if !o.opts.Accept {
		var size int64
		for _, name := range []string{databaseName, databaseName + "-wal"} {
			if info, err := os.Stat(o.path(name)); err == nil {
				size += info.Size()
			}
		}
		if size > wholeBytes {
			return nil
		}
	}
	found, err := structure(ctx, o.look, "integrity_check")
	if err != nil {
		return err
	}
	for _, what := range found {
		o.lost(o.db.where, "its structure is damaged: %s", what)
	}
	rows := 0
	if len(found) == 0 && o.held.format == formatVersion {
		var sums summer
		err = o.db.eachRow(ctx, o.look, verifyStep, func(context.Context) error { return nil }, func(r tableRow) error {
			if err := r.check(&sums); err != nil {
				rows++
				o.damage = append(o.damage, Finding{Where: o.db.where, What: err.Error()})
			}
			return nil
		})
		if damagedDatabase(err) {
			o.lost(o.db.where, "%v", err)
			err = nil
		}
	}
	if o.opts.Accept && rows > 0 { // without them what is left can be used
		o.lost(o.db.where, "%d of its rows are damaged", rows)
	}
	o.damaged = o.damaged || len(found) > 0 || rows > 0
	return err
}

// structure has SQLite check its file, and gives what it finds.
func structure(ctx context.Context, look querier, pragma string) (found []string, err error) {
	rows, err := look.QueryContext(ctx, "PRAGMA "+pragma+"(5)")
	if err == nil {
		defer rows.Close()
		for rows.Next() {
			var what sql.NullString
			if err := rows.Scan(&what); err != nil {
				return nil, fmt.Errorf("check the database: %w", err)
			}
			if what.String != "ok" {
				found = append(found, strings.Join(strings.Fields(what.String), " "))
			}
		}
		err = rows.Err()
	}
	if damagedDatabase(err) {
		return append(found, err.Error()), nil
	}
	if err != nil {
		return nil, fmt.Errorf("check the database: %w", err)
	}
	return found, nil
}

// startVerifying checks what opening did not, in the background; what it gives ends that.
func (s *sqlStore) startVerifying() (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause := verifyAfter; ; pause = verifyEvery {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
			if err := s.verifyAll(ctx, rest); err != nil && ctx.Err() == nil {
				slog.Warn("the store could not be checked as a whole", "error", err)
			}
		}
	}()
	return func() { cancel(); <-done }
}

// rest waits in proportion to what was done.
func rest(ctx context.Context, worked time.Duration) error {
	select {
	case <-time.After(verifyShare * worked):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// verifyAll checks the structure of the database, every row and what it names in the journal.
func (s *sqlStore) verifyAll(ctx context.Context, rest func(context.Context, time.Duration) error) error {
	if s.db.place == sqliteDatabase().place {
		if err := s.verifyStructure(ctx); err != nil {
			return err
		}
	}
	begun := time.Now()
	var sums summer
	err := s.db.eachRow(ctx, s.db.reader, verifyStep, func(ctx context.Context) error {
		err := rest(ctx, time.Since(begun))
		begun = time.Now()
		return err
	}, func(r tableRow) error {
		if damage := r.check(&sums); damage != nil {
			s.finding(Finding{Where: s.db.where, What: damage.Error()})
			return nil //nolint:nilerr // it is told as a finding
		}
		for _, ref := range r.refs() {
			if ref == (Ref{}) {
				continue
			}
			if _, err := s.journal.read(ref); errors.Is(err, ErrCorrupt) && s.stillRefers(ctx, r) {
				s.finding(Finding{Where: "journal", What: fmt.Sprintf("the payload of %s: %v", r.name(), err)})
			}
			if time.Since(begun) > 50*time.Millisecond {
				if err := rest(ctx, time.Since(begun)); err != nil {
					return err
				}
				begun = time.Now()
			}
		}
		return nil
	})
	if damagedDatabase(err) {
		s.brokenStructure(err.Error())
		return nil
	}
	return err
}

// structureDamaged tells whether the database cannot be relied upon as a whole.
func (s *sqlStore) structureDamaged() bool { return s.broke.Load() != nil }

// brokenStructure notes that the database cannot be relied upon as a whole: from then on nothing new is taken, and no segment is removed.
func (s *sqlStore) brokenStructure(what string) {
	f := Finding{Where: s.db.where, What: "its structure is damaged: " + what}
	s.finding(f)
	s.broke.Store(&Trouble{Failing, &Loss{Kind: ErrLost, Findings: []Finding{f}}})
}

// stillRefers tells whether a row is as it was read: a segment goes when nothing refers to it any more.
func (s *sqlStore) stillRefers(ctx context.Context, r tableRow) bool {
	row, ok := r.(*recordRow)
	if !ok {
		return false
	}
	if err := s.flush(ctx); err != nil {
		return false
	}
	same := false
	_, err := readRows(ctx, s.db.reader, s.db.text("SELECT "+rowColumns+" FROM tinsmith_records WHERE collection = ? AND id = ?"), []any{row.record.Collection, row.record.Key},
		func() tableRow { return &recordRow{} }, func(now tableRow) error {
			same = slices.Equal(now.refs(), row.refs())
			return nil
		})
	return err == nil && same
}

// verifyStructure has SQLite check its file. With indexes compared to their tables that is slow, and keeps SQLite from beginning its log anew as long as it takes.
func (s *sqlStore) verifyStructure(ctx context.Context) error {
	pragma := "quick_check"
	if info, err := os.Stat(s.dir + "/" + databaseName); err == nil && info.Size() <= quickBytes {
		pragma = "integrity_check"
	}
	conn, err := s.db.reader.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	found, err := structure(ctx, conn, pragma)
	if err != nil {
		return err
	}
	for _, what := range found {
		s.brokenStructure(what)
	}
	return nil
}
