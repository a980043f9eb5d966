package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver "pgx"
)

// advisoryLock is the key that keeps a second gateway from using the same records with a journal of its own: ours, and one for the schema that the
// connection string selects, so that several gateways may share a database in schemas of their own.
const advisoryLock = "1953066611, hashtext(coalesce(current_schema(), ''))" // "tins"

// openPostgres connects to a PostgreSQL database. Its records are lost to us without the journal in the data directory, and the other way round.
func openPostgres(ctx context.Context, dsn string) (database, error) {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return database{}, fmt.Errorf("open the PostgreSQL database: %w", err)
	}
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	// The lock belongs to this connection, which stays open as long as the store.
	holder, err := db.Conn(ctx)
	if err != nil {
		return database{}, errors.Join(fmt.Errorf("connect to PostgreSQL: %w", err), db.Close())
	}
	var locked bool
	if err := holder.QueryRowContext(ctx, "SELECT pg_try_advisory_lock("+advisoryLock+")").Scan(&locked); err != nil {
		return database{}, errors.Join(fmt.Errorf("lock the PostgreSQL database: %w", err), holder.Close(), db.Close())
	}
	if !locked {
		return database{}, errors.Join(fmt.Errorf("%w: the PostgreSQL database", ErrLocked), holder.Close(), db.Close())
	}
	return database{
		writer: db, reader: db, name: `TEXT COLLATE "C"`, blob: "BYTEA", placeholder: func(i int) string { return "$" + strconv.Itoa(i) },
		close: func() error {
			_, err := holder.ExecContext(context.Background(), "SELECT pg_advisory_unlock("+advisoryLock+")")
			return errors.Join(err, holder.Close(), db.Close())
		},
	}, nil
}
