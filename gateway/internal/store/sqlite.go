package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	"modernc.org/sqlite" // the database/sql driver "sqlite", too
	sqlite3 "modernc.org/sqlite/lib"
)

// sqliteDSN names a database file with what every connection sets.
func sqliteDSN(path string, query url.Values) string {
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: query.Encode()}).String()
}

// sqliteDatabase is what SQLite has in common with and without a connection.
func sqliteDatabase() database {
	return database{
		name: "TEXT", blob: "BLOB", placeholder: func(int) string { return "?" }, writers: 1, trouble: TroubleOf, check: func(Batch) error { return nil },
		reconnect: func(context.Context) error { return nil }, where: databaseName, place: "SQLite", definitions: sqliteDefinitions,
	}
}

// openSQLite opens a database file in WAL mode with a full sync at every commit. One connection writes; readers do not wait for it.
func openSQLite(ctx context.Context, path string) (database, error) {
	// Operations and results are rows of about 1 KiB: pages of 4 KiB have room for three and are half empty, those of 8 KiB take a fifth less time for the same rows. WAL mode makes the file,
	// and with it the size; the driver sets the mode behind all pragmas. A file that is there keeps its own size. The log is copied by the checkpointer; what it does not get to do SQLite does.
	dsn := func(pragmas ...string) string {
		q := url.Values{"_pragma": append([]string{"busy_timeout(10000)", "page_size(8192)", "synchronous(FULL)", fmt.Sprintf("wal_autocheckpoint(%d)", 4*checkpointPages)}, pragmas...), "_journal_mode": {"WAL"}}
		return sqliteDSN(path, q)
	}
	// SQLite's other files get the rights of this one.
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return database{}, fmt.Errorf("open the database: %w", err)
	} else if err := f.Close(); err != nil {
		return database{}, fmt.Errorf("open the database: %w", err)
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
	d := sqliteDatabase()
	d.writer, d.reader, d.prepared = writer, reader, &statements{byText: map[string]*sql.Stmt{}}
	d.close = func() error { return errors.Join(reader.Close(), writer.Close()) }
	copier := &checkpointer{writer: writer, index: path + "-shm"}
	d.setUp = func(ctx context.Context) (err error) {
		if err := makeEpoch(ctx, writer); err != nil {
			return err
		}
		copier.epoch, err = readEpoch(ctx, writer)
		return err
	}
	d.settle = copier.copy
	d.end = func(ctx context.Context) (int64, error) { // closing copies what there is
		_, err := copier.raise(ctx, 1)
		return copier.epoch, err
	}
	return d, nil
}

// readSQLite opens a database file that is there for reading alone. SQLite then neither copies its log into it nor removes that at the end.
func readSQLite(path string) (*sql.DB, error) {
	look, err := sql.Open("sqlite", sqliteDSN(path, url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(10000)", "query_only(1)"}}))
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	look.SetMaxOpenConns(1)
	look.SetMaxIdleConns(1) // while it is open another one does not read the log anew
	return look, nil
}

func sqliteDefinitions(ctx context.Context, from querier) (map[string]string, error) {
	return readDefinitions(ctx, from, "SELECT name, COALESCE(sql, '') FROM sqlite_schema WHERE tbl_name LIKE 'tinsmith\\_%' ESCAPE '\\'")
}

func readDefinitions(ctx context.Context, from querier, text string) (map[string]string, error) {
	rows, err := from.QueryContext(ctx, text)
	if err != nil {
		return nil, fmt.Errorf("read the definitions of the tables: %w", err)
	}
	defer rows.Close()
	tables := map[string]string{}
	for rows.Next() {
		var name, text string
		if err := rows.Scan(&name, &text); err != nil {
			return nil, fmt.Errorf("read the definitions of the tables: %w", unreadable(err))
		}
		tables[name] = text
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the definitions of the tables: %w", err)
	}
	return tables, nil
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
	case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM:
		return Failing
	}
	return ""
}
