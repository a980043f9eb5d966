package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
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
		if t := postgresTrouble(err); t != nil {
			err = t
		}
		return database{}, errors.Join(fmt.Errorf("connect to PostgreSQL: %w", err), db.Close())
	}
	if err := lockPostgres(ctx, holder); err != nil {
		return database{}, errors.Join(err, holder.Close(), db.Close())
	}
	var name, schema string
	if err := holder.QueryRowContext(ctx, "SELECT current_database(), COALESCE(current_schema(), '')").Scan(&name, &schema); err != nil {
		return database{}, errors.Join(fmt.Errorf("ask PostgreSQL for its schema: %w", err), holder.Close(), db.Close())
	}
	place := fmt.Sprintf("PostgreSQL, database %q, schema %q", name, schema)
	nothing := func(context.Context) (int64, error) { return 0, nil }
	return database{
		snapshot: &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}, where: place, place: place, setUp: func(context.Context) error { return nil }, settle: nothing, end: nothing,
		definitions: func(ctx context.Context, from querier) (map[string]string, error) {
			return readDefinitions(ctx, from, `SELECT tablename, '' FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'tinsmith\_%'`)
		},
		writer: db, reader: db, name: `TEXT COLLATE "C"`, blob: "BYTEA", placeholder: func(i int) string { return "$" + strconv.Itoa(i) },
		writers: 8, trouble: postgresTrouble, check: postgresCheck,
		reconnect: func(ctx context.Context) error {
			if holder.PingContext(ctx) == nil {
				return nil
			}
			_ = holder.Close() // it is broken already
			fresh, err := db.Conn(ctx)
			if err != nil {
				return fmt.Errorf("connect to PostgreSQL: %w", err)
			}
			holder = fresh
			return lockPostgres(ctx, holder)
		},
		close: func() error {
			_, err := holder.ExecContext(context.Background(), "SELECT pg_advisory_unlock("+advisoryLock+")")
			return errors.Join(err, holder.Close(), db.Close())
		},
	}, nil
}

// lockPostgres takes the lock for a connection, which holds it as long as it lives.
func lockPostgres(ctx context.Context, holder *sql.Conn) error {
	var locked bool
	if err := holder.QueryRowContext(ctx, "SELECT pg_try_advisory_lock("+advisoryLock+")").Scan(&locked); err != nil {
		return fmt.Errorf("lock the PostgreSQL database: %w", err)
	}
	if !locked {
		return fmt.Errorf("%w: the PostgreSQL database", ErrLocked)
	}
	return nil
}

// postgresTrouble tells the errors of the server and of the way to it from those of a statement. The first two characters of a code are its class.
func postgresTrouble(err error) *Trouble {
	var e *pgconn.PgError
	if !errors.As(err, &e) {
		if t := TroubleOf(err); t != nil {
			return t
		}
		return &Trouble{Failing, err}
	}
	switch class := e.Code[:min(2, len(e.Code))]; {
	case e.Code == "53100": // disk_full
		return &Trouble{Full, err}
	case e.Code == "25006": // read_only_sql_transaction
		return &Trouble{ReadOnly, err}
	case class == "08", class == "53", class == "57", class == "58", class == "XX": // connection, resources, operator, system, internal
		return &Trouble{Failing, err}
	}
	return nil
}

// postgresCheck refuses a batch with names that PostgreSQL cannot hold as text, or not in an index.
func postgresCheck(b Batch) error {
	const longest = 2400
	var err error
	check := func(names ...string) {
		sum := 0
		for _, n := range names {
			if !utf8.ValidString(n) || strings.IndexByte(n, 0) >= 0 {
				err = fmt.Errorf("the name %.100q is not valid UTF-8 without zeros", n)
			}
			sum += len(n)
		}
		if sum > longest {
			err = fmt.Errorf("the names of a record have %d bytes, at most %d are possible; they begin with %.100q", sum, longest, names)
		}
	}
	for _, k := range b.DeleteUnder {
		check(k.Collection, k.Parent)
	}
	for _, k := range b.Delete {
		check(k.Collection, k.Key)
	}
	for _, s := range b.Release {
		check(s.Collection, s.Parent)
	}
	for _, list := range [][]Record{b.Put, b.Add} {
		for _, r := range list {
			check(r.Collection, r.Key, r.Parent)
		}
	}
	return err
}
