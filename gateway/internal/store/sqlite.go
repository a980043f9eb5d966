package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	_ "modernc.org/sqlite" // the database/sql driver "sqlite"
)

// openSQLite opens a database file in WAL mode with a full sync at every commit. One connection writes; readers do not wait for it.
func openSQLite(ctx context.Context, path string) (database, error) {
	dsn := func(pragmas ...string) string {
		q := url.Values{"_pragma": append([]string{"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)"}, pragmas...)}
		return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
	}
	writer, err := sql.Open("sqlite", dsn())
	if err != nil {
		return database{}, fmt.Errorf("open the database: %w", err)
	}
	writer.SetMaxOpenConns(1)
	if err := writer.PingContext(ctx); err != nil {
		return database{}, errors.Join(fmt.Errorf("open the database %s: %w", path, err), writer.Close())
	}
	reader, err := sql.Open("sqlite", dsn("query_only(1)"))
	if err != nil {
		return database{}, errors.Join(fmt.Errorf("open the database: %w", err), writer.Close())
	}
	reader.SetMaxOpenConns(4)
	reader.SetMaxIdleConns(4)
	return database{
		writer: writer, reader: reader, name: "TEXT", blob: "BLOB", placeholder: func(int) string { return "?" },
		close: func() error { return errors.Join(reader.Close(), writer.Close()) },
	}, nil
}
