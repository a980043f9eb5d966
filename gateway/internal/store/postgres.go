package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// advisoryLock is the key that keeps a second gateway from using the same records with a journal of its own: ours, and one for the schema that the
// connection string selects, so that several gateways may share a database in schemas of their own.
const advisoryLock = "1953066611, hashtext(coalesce(current_schema(), ''))" // "tins"

// holder is the connection that has the lock, as long as the store is open.
type holder struct {
	db    *sql.DB
	conns *connections
	lease *Lease // has the lock in its place; nil = none

	mu   sync.Mutex
	conn *sql.Conn // nil while there is none
}

// alive finds out whether the server answers, and connects again where that is needed.
func (h *holder) alive(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		ping, cancel := context.WithTimeout(ctx, pingPatience)
		defer cancel()
		err := h.conn.PingContext(ping)
		if err == nil || ctx.Err() != nil {
			return err
		}
		h.conns.drop() // what others wait for does not come either
		_ = h.conn.Close()
		h.conn = nil
		return fmt.Errorf("PostgreSQL does not answer: %w", err)
	}
	return h.connect(ctx)
}

// connect takes the lock with a new connection. mu is held.
func (h *holder) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	conn, err := h.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	if h.lease == nil {
		err = lockPostgres(ctx, conn)
	} else {
		err = conn.PingContext(ctx)
	}
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	h.conn = conn
	return nil
}

func (h *holder) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn == nil {
		return h.db.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingPatience)
	defer cancel()
	var err error
	if h.lease == nil {
		_, err = h.conn.ExecContext(ctx, "SELECT pg_advisory_unlock("+advisoryLock+")")
	}
	return errors.Join(err, h.conn.Close(), h.db.Close())
}

// openPostgres connects to a PostgreSQL database. Without a lease its records are lost to us without the journal in the data directory, and the other way round.
func openPostgres(ctx context.Context, dsn string, lease *Lease) (database, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return database{}, fmt.Errorf("open the PostgreSQL database: %w", err)
	}
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectPatience
	}
	conns := &connections{open: map[*patientConn]bool{}}
	conns.patience.Store(int64(openingPatience))
	if lease != nil {
		lease.configure(config, conns)
	} else {
		config.DialFunc = conns.dial(config.DialFunc)
	}
	db := stdlib.OpenDB(*config)
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	h := &holder{db: db, conns: conns, lease: lease}
	var name, schema string
	h.mu.Lock()
	if err = h.connect(ctx); err == nil {
		err = h.conn.QueryRowContext(ctx, "SELECT current_database(), COALESCE(current_schema(), '')").Scan(&name, &schema)
	}
	h.mu.Unlock()
	if err != nil {
		if t := postgresTrouble(err); t != nil && !errors.Is(err, ErrLocked) {
			err = t
		}
		return database{}, errors.Join(err, h.close())
	}
	place := fmt.Sprintf("PostgreSQL, database %q, schema %q", name, schema)
	nothing := func(context.Context) (int64, error) { return 0, nil }
	return database{
		snapshot: &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}, where: place, place: place, settle: nothing, end: nothing,
		lease: lease, lockOwn: " FOR UPDATE",
		setUp: func(ctx context.Context) error {
			if lease != nil {
				for _, text := range []string{logTable, payloadTable} {
					if _, err := db.ExecContext(ctx, text); err != nil {
						return err
					}
				}
			}
			conns.patience.Store(int64(patience)) // the tables are made
			return nil
		},
		definitions: func(ctx context.Context, from querier) (map[string]string, error) {
			return readDefinitions(ctx, from, `SELECT tablename, '' FROM pg_tables WHERE schemaname = current_schema() AND tablename LIKE 'tinsmith\_%'`)
		},
		writer: db, reader: db, name: `TEXT COLLATE "C"`, blob: "BYTEA", placeholder: func(i int) string { return "$" + strconv.Itoa(i) },
		writers: 8, trouble: postgresTrouble, check: postgresCheck, alive: h.alive, drop: conns.drop, close: h.close,
		reconnect: func(context.Context) error { return nil }, // alive does it
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

// interrupted tells the errors of the way to a server, which may pass.
func interrupted(err error) bool {
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &network) || errors.As(err, &connect) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
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
