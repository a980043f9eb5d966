package store

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store/storetest"
)

// scene is one or two stores, each with a record, that were closed.
type scene struct {
	t          *testing.T
	one, other Options
}

func (s *scene) put(opts Options, key string) {
	s.t.Helper()
	opened, err := Open(s.t.Context(), opts)
	check(s.t, err)
	check(s.t, opened.Commit(s.t.Context(), Batch{Put: []Record{{Collection: "a", Key: key, Payload: make([]byte, 10<<10)}}}))
	check(s.t, opened.Close())
}

func (s *scene) move(name string) {
	s.t.Helper()
	check(s.t, os.Rename(filepath.Join(s.one.Dir, name), filepath.Join(s.other.Dir, name)))
}

// A data directory and a database that do not belong to each other are refused, with a reason, and nothing is changed; those that do are opened.
func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		name     string
		postgres bool
		do       func(s *scene) Options // what is opened then
		kind     error                  // nil: it opens
		says     string
		not      string // a key that is not there after it was accepted
	}{
		{"a directory that was moved", false, func(s *scene) Options {
			check(s.t, os.RemoveAll(s.other.Dir))
			check(s.t, os.Rename(s.one.Dir, s.other.Dir))
			return s.other
		}, nil, "", ""},
		{"the database of another directory", false, func(s *scene) Options { s.move(databaseName); return s.other }, ErrForeign, "another store", ""},
		{"the database of another directory, with changes in the log", false, func(s *scene) Options {
			opened, err := Open(s.t.Context(), Options{Dir: s.other.Dir, applyAfter: time.Hour})
			check(s.t, err)
			check(s.t, opened.Commit(s.t.Context(), Batch{Put: []Record{{Collection: "a", Key: "foreign"}}}))
			s.other.Dir = crash(s.t, opened.(*sqlStore))
			check(s.t, opened.Close())
			s.move(databaseName)
			return s.other
		}, ErrForeign, "another store", "foreign"},
		{"a database in an empty directory", false, func(s *scene) Options {
			check(s.t, os.RemoveAll(s.other.Dir))
			check(s.t, os.MkdirAll(s.other.Dir, 0o700))
			s.move(databaseName)
			return s.other
		}, ErrForeign, "none of the files", ""},
		{"the database was removed", false, func(s *scene) Options { check(s.t, os.Remove(filepath.Join(s.one.Dir, databaseName))); return s.one }, ErrLost, "missing or empty", ""},
		{"the database is empty", false, func(s *scene) Options {
			check(s.t, os.Truncate(filepath.Join(s.one.Dir, databaseName), 0))
			return s.one
		}, ErrLost, "missing or empty", ""},
		{"the database and the mark were removed", false, func(s *scene) Options {
			check(s.t, errors.Join(os.Remove(filepath.Join(s.one.Dir, databaseName)), os.Remove(filepath.Join(s.one.Dir, markName))))
			return s.one
		}, ErrLost, "journal/*.seg", ""},
		{"the mark was removed", false, func(s *scene) Options { check(s.t, os.Remove(filepath.Join(s.one.Dir, markName))); return s.one }, nil, "generation: it is missing", ""},
		{"an older copy of the whole directory", false, func(s *scene) Options {
			dir := s.t.TempDir()
			check(s.t, os.CopyFS(dir, os.DirFS(s.one.Dir)))
			s.put(s.one, "2")
			s.one.Dir = dir
			return s.one
		}, nil, "", ""},
		{"an older copy of the database", false, func(s *scene) Options {
			older, err := os.ReadFile(filepath.Join(s.one.Dir, databaseName))
			check(s.t, err)
			s.put(s.one, "2")
			check(s.t, os.WriteFile(filepath.Join(s.one.Dir, databaseName), older, 0o600))
			return s.one
		}, ErrLost, "older copy", ""},
		{"PostgreSQL with an empty schema in place of SQLite", true, func(s *scene) Options {
			s.one.PostgresURL = storetest.Schema(s.t)
			s.put(Options{Dir: s.t.TempDir()}, "1")
			dir := s.t.TempDir()
			s.put(Options{Dir: dir}, "1")
			s.one.Dir = dir
			return s.one
		}, ErrForeign, "belongs to SQLite", ""},
		{"the same without a mark", true, func(s *scene) Options {
			dir := s.t.TempDir()
			s.put(Options{Dir: dir}, "1")
			check(s.t, os.Remove(filepath.Join(dir, markName)))
			return Options{Dir: dir, PostgresURL: storetest.Schema(s.t)}
		}, ErrForeign, "of a store in tinsmith.db", ""},
		{"SQLite in place of PostgreSQL", true, func(s *scene) Options { s.one.PostgresURL = ""; return s.one }, ErrForeign, "belongs to PostgreSQL", ""},
		{"a schema in use with an empty directory", true, func(s *scene) Options { s.one.Dir = s.t.TempDir(); return s.one }, ErrForeign, "none of the files", ""},
		{"a schema in use with another directory", true, func(s *scene) Options { s.one.Dir = s.other.Dir; return s.one }, ErrForeign, "another store", ""},
		{"another search path, which is empty", true, func(s *scene) Options { s.one.PostgresURL = storetest.Schema(s.t); return s.one }, ErrForeign, "is empty", ""},
		{"the schema was emptied", true, func(s *scene) Options {
			d, err := openPostgres(s.t.Context(), s.one.PostgresURL, nil)
			check(s.t, err)
			for _, table := range []string{"tinsmith_records", "tinsmith_blocks"} {
				_, err := d.writer.Exec("DROP TABLE " + table)
				check(s.t, err)
			}
			check(s.t, d.close())
			return s.one
		}, ErrLost, "missing or empty", ""},
		{"the schema's rows are from a backup", true, func(s *scene) Options {
			d, err := openPostgres(s.t.Context(), s.one.PostgresURL, nil)
			check(s.t, err)
			_, err = d.writer.Exec("CREATE TABLE saved AS SELECT * FROM tinsmith_records")
			check(s.t, err)
			check(s.t, d.close())
			s.put(s.one, "2")
			d, err = openPostgres(s.t.Context(), s.one.PostgresURL, nil)
			check(s.t, err)
			for _, text := range []string{"DELETE FROM tinsmith_records", "INSERT INTO tinsmith_records SELECT * FROM saved", "DROP TABLE saved"} {
				_, err := d.writer.Exec(text)
				check(s.t, err)
			}
			check(s.t, d.close())
			return s.one
		}, ErrLost, "ends at change", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &scene{t: t, one: Options{Dir: filepath.Join(t.TempDir(), "data")}, other: Options{Dir: filepath.Join(t.TempDir(), "data")}}
			if c.postgres {
				s.one.PostgresURL, s.other.PostgresURL = storetest.Schema(t), storetest.Schema(t)
			}
			s.put(s.one, "1")
			s.put(s.other, "other")
			opts := c.do(s)
			before := contents(t, opts.Dir)
			opened, err := Open(t.Context(), opts)
			if c.kind == nil {
				check(t, err)
				_, err := opened.Get(t.Context(), "a", "1")
				check(t, err)
				if found := strings.Join(words(opened.Damage()), "; "); !strings.Contains(found, c.says) || (c.says == "") != (found == "") {
					t.Errorf("found %q, want %q", found, c.says)
				}
				check(t, opened.Close())
				return
			}
			if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.says) || TroubleOf(err) != nil {
				t.Fatalf("opened with %v, want %v: %s", err, c.kind, c.says)
			}
			if after := contents(t, opts.Dir); !maps.Equal(after, before) {
				t.Errorf("files were changed: %v, before %v", after, before)
			}
			opts.Accept = true
			opened, err = Open(t.Context(), opts)
			check(t, err)
			if _, err := opened.Get(t.Context(), "a", c.not); c.not != "" && !errors.Is(err, ErrNotFound) {
				t.Errorf("%s of another store is there: %v", c.not, err)
			}
			check(t, opened.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "after"}}}))
			check(t, opened.Close())
			opts.Accept = false
			opened, err = Open(t.Context(), opts)
			check(t, err)
			check(t, opened.Close())
		})
	}
}

// A store of the last format gets what it lacks, without a word.
func TestUpgrade(t *testing.T) {
	opts := Options{Dir: t.TempDir(), applyAfter: time.Hour}
	opened, err := Open(t.Context(), opts)
	check(t, err)
	s := opened.(*sqlStore)
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "1", Value: []byte("value")}, {Collection: inStore, Key: formatKey, Value: []byte("5")}},
		Delete: []RecordKey{{inStore, schemaKey}, {inStore, identityKey}}}))
	check(t, s.flush(t.Context()))
	for _, table := range []struct {
		name    string
		columns []string
	}{{"tinsmith_records", addedColumns[7:]}, {"tinsmith_blocks", addedBlockColumns}} {
		for _, column := range table.columns {
			name, _, _ := strings.Cut(column, " ")
			_, err := s.db.writer.Exec("ALTER TABLE " + table.name + " DROP COLUMN " + name)
			check(t, err)
		}
	}
	_, err = s.db.writer.Exec("DROP TABLE tinsmith_epoch")
	check(t, err)
	s.db.end = s.db.settle // not for that table
	_ = s.Close()
	check(t, errors.Join(os.Remove(filepath.Join(opts.Dir, markName)), os.Chmod(filepath.Join(opts.Dir, databaseName), 0o644), os.Chmod(filepath.Join(opts.Dir, journalName), 0o755)))
	for range 2 {
		opened, err = Open(t.Context(), opts)
		check(t, err)
		r, err := opened.Get(t.Context(), "a", "1")
		if err != nil || string(r.Value) != "value" || len(opened.Damage()) > 0 {
			t.Errorf("%+v, %v, %v", r, err, opened.Damage())
		}
		check(t, opened.Commit(t.Context(), Batch{Add: []Record{{Collection: "a", Key: "1", Count: 3}}}))
		check(t, opened.Close())
	}
	check(t, os.Remove(filepath.Join(opts.Dir, databaseName)))
	if _, err := Open(t.Context(), opts); !errors.Is(err, ErrLost) {
		t.Errorf("without its database: %v", err)
	}
}

// Nobody but the owner reads what a store keeps.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	check(t, os.Mkdir(dir, 0o755))
	opts := Options{Dir: dir, InlineBytes: 100}
	look := func() {
		t.Helper()
		files := 0
		check(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
			files++
			if err == nil && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s has mode %v", path, info.Mode())
			}
			return err
		}))
		if files < 9 {
			t.Errorf("only %d files", files)
		}
	}
	s, err := Open(t.Context(), opts)
	check(t, err)
	check(t, s.Commit(t.Context(), Batch{Put: []Record{{Collection: "a", Key: "1", Payload: make([]byte, 200)}}}))
	look()
	check(t, s.Close())
	check(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		return errors.Join(err, os.Chmod(path, info.Mode().Perm()|0o044|info.Mode().Perm()&0o100>>3|info.Mode().Perm()&0o100>>6))
	}))
	s, err = Open(t.Context(), opts)
	check(t, err)
	look()
	check(t, s.Close())
}
