package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"modernc.org/sqlite" // the database/sql driver "sqlite", too
	sqlite3 "modernc.org/sqlite/lib"
)

// openSQLite opens a database file in WAL mode with a full sync at every commit. One connection writes; readers do not wait for it.
func openSQLite(ctx context.Context, path string) (database, error) {
	// The log is copied into the database after 32 MiB, not SQLite's 4: at many commits a second that would be every few of them, and one waits for it.
	// Operations and results are rows of about 1 KiB: pages of 4 KiB have room for three and are half empty, those of 8 KiB take a fifth less time for the same rows. WAL mode makes the file,
	// and with it the size; the driver sets the mode behind all pragmas. A file that is there keeps its own size.
	dsn := func(pragmas ...string) string {
		q := url.Values{"_pragma": append([]string{"busy_timeout(10000)", "page_size(8192)", "synchronous(FULL)", "wal_autocheckpoint(4096)"}, pragmas...), "_journal_mode": {"WAL"}}
		return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
	}
	// A cached page takes more than twice its size, because the driver's allocator rounds 8 KiB and a little up to the next power of two: these are 18 MiB for the writer, and 2 for each reader. Larger
	// caches were not faster, since the system has the file in memory as well; they only kept growing for as long as the database did.
	writer, err := sql.Open("sqlite", dsn("cache_size(-8192)", "temp_store(MEMORY)"))
	if err != nil {
		return database{}, fmt.Errorf("open the database: %w", err)
	}
	writer.SetMaxOpenConns(1)
	if err := writer.PingContext(ctx); err != nil {
		return database{}, errors.Join(fmt.Errorf("open the database %s: %w", path, err), writer.Close())
	}
	reader, err := sql.Open("sqlite", dsn("query_only(1)", "cache_size(-1024)"))
	if err != nil {
		return database{}, errors.Join(fmt.Errorf("open the database: %w", err), writer.Close())
	}
	reader.SetMaxOpenConns(4)
	reader.SetMaxIdleConns(4)
	return database{
		writer: writer, reader: reader, name: "TEXT", blob: "BLOB", placeholder: func(int) string { return "?" },
		writers: 1, trouble: TroubleOf, check: func(Batch) error { return nil }, reconnect: func(context.Context) error { return nil },
		close: func() error { return errors.Join(reader.Close(), writer.Close()) },
	}, nil
}

// sqliteState tells the errors of the disk and of other processes from those of a statement, for which it gives "".
func sqliteState(err error) State {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return ""
	}
	switch e.Code() & 0xff { // the rest of an extended code only adds detail
	case sqlite3.SQLITE_FULL:
		return Full
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN:
		return ReadOnly
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return Locked
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return Failing
	}
	return ""
}
