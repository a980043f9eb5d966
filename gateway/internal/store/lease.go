package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// Several gateways may have one PostgreSQL database with everything in it (shared.go); one of them writes, by a lease. The lease is a row with a number, which every taker raises. Each transaction that writes holds the row in the
// mode FOR KEY SHARE if it still has the writer's number, and the number is a key: so PostgreSQL itself keeps what was begun under an old number from being committed beside or after a new one, whatever clocks say.
// Renewals change a column that is no key, and wait for no writer.
//
// Who waits looks at the row a few times a second, and takes the lease when it has seen it unrenewed for as long as the lease lasts, by a clock of its own and over one connection: after the database was away everybody has that long
// again. It does so earlier when the session of the holder has ended, which the holder's advisory lock tells.
const (
	leaseTable = "CREATE TABLE IF NOT EXISTS tinsmith_lease (number BIGINT PRIMARY KEY, one BOOLEAN NOT NULL DEFAULT TRUE UNIQUE CHECK (one), holder TEXT NOT NULL, name TEXT NOT NULL, renewed BIGINT NOT NULL)"
	// Numbers begin with the milliseconds since 1970: those of a row that somebody has removed do not come again.
	leaseRow  = "INSERT INTO tinsmith_lease (number, holder, name, renewed) VALUES ((extract(epoch FROM clock_timestamp()) * 1000)::bigint, '', '', 0) ON CONFLICT DO NOTHING"
	leaseText = "SELECT number, holder, name, renewed FROM tinsmith_lease"
	takeText  = "UPDATE tinsmith_lease SET number = number + 1, holder = $1, name = $2, renewed = 0 WHERE number = $3 AND renewed = $4 RETURNING number"
	renewText = "UPDATE tinsmith_lease SET renewed = renewed + 1 WHERE number = $1"
	leaveText = "UPDATE tinsmith_lease SET holder = '', name = '' WHERE number = $1"
	holdText  = "SELECT number FROM tinsmith_lease WHERE number = ? FOR KEY SHARE"
	endText   = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1 AND pid <> pg_backend_pid()"
	tryText   = "SELECT pg_try_advisory_lock(" + advisoryLock + ")"

	renewals      = 6                      // for each time that a lease lasts
	leasePatience = 2 * time.Second        // for one statement about it
	takePatience  = 300 * time.Millisecond // for transactions of the old holder, before they are ended
	maxLeaseName  = 200
)

// DefaultLease is how long a holder may be silent where nothing else is said.
const DefaultLease = 3 * time.Second

// ErrFenced says that another gateway has the lease: nothing that was not committed before is committed any more.
var ErrFenced = errors.New("another gateway has taken the lease of the database")

// LeaseOptions say which lease is taken, and for whom.
type LeaseOptions struct {
	PostgresURL string
	Name        string        // who it is, for people
	Time        time.Duration // how long a holder may be silent; 0 = 3 s. All gateways of a database should have the same
	// Lost is called once, when another has the lease, before anybody is told of a write that failed for it. A server ends its process there: what it would do next about files could be wrong by now. It must not call the
	// lease.
	Lost func(error)
}

// Lease lets one process write to a database that several have. It renews itself until Leave. Its methods may be called concurrently.
type Lease struct {
	opts   LeaseOptions
	holder string // random: the name of all connections of this process
	number int64
	db     *sql.DB
	conns  *connections

	mu   sync.Mutex
	conn *sql.Conn // has the advisory lock; nil while there is none

	once sync.Once
	end  context.CancelFunc
	done chan struct{}
}

// Waiting is what a process that waits for a lease knows.
type Waiting struct {
	Holder string // the name of who has it; "" if nobody is known to
	Err    error  // why nothing is known at present, or nil
}

// leaseState is the row.
type leaseState struct {
	number, renewed int64
	holder, name    string
}

// AwaitLease waits until it has the lease, and calls tell with whatever changes meanwhile. It ends early only with ctx, or when the address of the database cannot be understood.
func AwaitLease(ctx context.Context, opts LeaseOptions, tell func(Waiting)) (*Lease, error) {
	if opts.Time == 0 {
		opts.Time = DefaultLease
	}
	opts.Name = strings.ToValidUTF8(opts.Name[:min(len(opts.Name), maxLeaseName)], "")
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	l := &Lease{opts: opts, holder: "tinsmith " + hex.EncodeToString(id[:]), done: make(chan struct{})}
	config, err := pgx.ParseConfig(opts.PostgresURL)
	if err != nil {
		return nil, fmt.Errorf("open the PostgreSQL database: %w", err)
	}
	l.conns = &connections{open: map[*patientConn]bool{}}
	l.conns.patience.Store(int64(leasePatience))
	l.configure(config, l.conns)
	l.db = stdlib.OpenDB(*config)
	l.db.SetMaxOpenConns(1)
	if err := l.await(ctx, tell); err != nil {
		return nil, errors.Join(err, l.close())
	}
	renewing, end := context.WithCancel(context.Background())
	l.end = end
	go l.renew(renewing)
	return l, nil
}

// configure has connections tell whose they are, and not wait for ever.
func (l *Lease) configure(config *pgx.ConnConfig, conns *connections) {
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = connectPatience
	}
	config.RuntimeParams["application_name"] = l.holder
	config.RuntimeParams["default_transaction_isolation"] = "read committed" // a transaction that waited for the lease's row sees who has it then
	config.DialFunc = conns.dial(config.DialFunc)
}

// await looks and waits until the lease is taken.
func (l *Lease) await(ctx context.Context, tell func(Waiting)) error {
	ticker := time.NewTicker(l.opts.Time / (2 * renewals))
	defer ticker.Stop()
	var seen leaseState
	var since time.Time // since when it is known to be the same; zero: nothing is known
	told, any := Waiting{}, false
	for {
		now, err := l.look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		switch {
		case err != nil:
			since = time.Time{}
		case since.IsZero() || now != seen:
			seen, since = now, time.Now()
		}
		if err == nil && l.may(ctx, seen, time.Since(since)) {
			taken := false
			if taken, err = l.take(ctx, seen); taken {
				return nil
			}
			_ = l.failed(errors.New("not taken")) // its session may have the advisory lock
			since = time.Time{}
		}
		if t := (Waiting{now.name, err}); !any || t.Holder != told.Holder || (t.Err == nil) != (told.Err == nil) {
			told, any = t, true
			tell(t)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// look reads the row, and makes it where there is none.
func (l *Lease) look(ctx context.Context) (s leaseState, err error) {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	conn, err := l.connection(ctx)
	if err != nil {
		return s, err
	}
	err = conn.QueryRowContext(ctx, leaseText).Scan(&s.number, &s.holder, &s.name, &s.renewed)
	if e := (*pgconn.PgError)(nil); errors.Is(err, sql.ErrNoRows) || errors.As(err, &e) && e.Code == "42P01" { // undefined_table
		for _, text := range []string{leaseTable, leaseRow} {
			if _, err := conn.ExecContext(ctx, text); err != nil {
				return s, l.failed(fmt.Errorf("make the lease: %w", err))
			}
		}
		err = conn.QueryRowContext(ctx, leaseText).Scan(&s.number, &s.holder, &s.name, &s.renewed)
	}
	if err != nil {
		return s, l.failed(fmt.Errorf("read the lease: %w", err))
	}
	return s, nil
}

// may tells whether a lease that was the same for so long may be taken.
func (l *Lease) may(ctx context.Context, s leaseState, same time.Duration) bool {
	if s.holder == "" || same >= l.opts.Time {
		return true
	}
	if same < l.opts.Time/2 {
		return false
	}
	locked, err := l.lock(ctx)
	return err == nil && locked
}

// lock tries to take the advisory lock, which the session keeps.
func (l *Lease) lock(ctx context.Context) (locked bool, err error) {
	conn, err := l.connection(ctx)
	if err == nil {
		err = conn.QueryRowContext(ctx, tryText).Scan(&locked)
	}
	return locked, l.failed(err)
}

// take takes the lease if it is still as it was seen. Transactions of the old holder that are in the way are ended, as are all its sessions afterwards.
func (l *Lease) take(ctx context.Context, seen leaseState) (bool, error) {
	for tries := 0; ; tries++ {
		err := l.takeOnce(ctx, seen)
		if err == nil {
			break
		}
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil // it was renewed or taken a moment ago
		}
		if e := (*pgconn.PgError)(nil); !errors.As(err, &e) || e.Code != "55P03" || tries == 10 { // lock_not_available
			return false, l.failed(fmt.Errorf("take the lease: %w", err))
		}
		if err := l.terminate(ctx, seen.holder); err != nil {
			return false, err
		}
	}
	if seen.holder != "" {
		if err := l.terminate(ctx, seen.holder); err != nil {
			slog.WarnContext(ctx, "the database sessions of the gateway before could not be ended", "error", err)
		}
	}
	if err := l.lockSoon(ctx); err != nil {
		return false, errors.Join(err, l.leave(ctx))
	}
	return true, nil
}

// takeOnce is one try, which waits a moment only for transactions that have the row.
func (l *Lease) takeOnce(ctx context.Context, seen leaseState) error {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	conn, err := l.connection(ctx)
	if err != nil {
		return err
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", takePatience.Milliseconds()))
	if err == nil {
		err = tx.QueryRowContext(ctx, takeText, l.holder, l.opts.Name, seen.number, seen.renewed).Scan(&l.number)
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// terminate ends the sessions of a holder.
func (l *Lease) terminate(ctx context.Context, holder string) error {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	conn, err := l.connection(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, endText, holder)
	}
	return l.failed(err)
}

// lockSoon takes the advisory lock, which keeps gateways away that know of no lease. Sessions that have been told to end take a moment.
func (l *Lease) lockSoon(ctx context.Context) error {
	for deadline := time.Now().Add(leasePatience); ; {
		locked, err := l.lock(ctx)
		if err != nil || locked {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: the PostgreSQL database", ErrLocked)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// connection gives the one connection. Only one goroutine uses it at a time.
func (l *Lease) connection(ctx context.Context) (*sql.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		return l.conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	conn, err := l.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	l.conn = conn
	return conn, nil
}

// failed lets go of the connection after an error, which it gives.
func (l *Lease) failed(err error) error {
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conns.drop() // it is not used again, whatever its pool thinks
		_ = l.conn.Close()
		l.conn = nil
	}
	return err
}

// renew keeps the lease until ctx ends or another has it.
func (l *Lease) renew(ctx context.Context) {
	defer close(l.done)
	ticker := time.NewTicker(l.opts.Time / renewals)
	defer ticker.Stop()
	away := false
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		err := l.renewOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, ErrFenced):
			l.lose(err)
			return
		case err != nil && !away:
			slog.WarnContext(ctx, "the lease of the database cannot be renewed; another gateway may take it", "error", err)
		case err == nil && away:
			slog.InfoContext(ctx, "the lease of the database is renewed again")
		}
		away = err != nil
	}
}

func (l *Lease) renewOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, leasePatience)
	defer cancel()
	l.mu.Lock()
	again := l.conn == nil
	l.mu.Unlock()
	conn, err := l.connection(ctx)
	if err != nil {
		return err
	}
	result, err := conn.ExecContext(ctx, renewText, l.number)
	if err != nil {
		return l.failed(err)
	}
	if n, err := result.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return ErrFenced
	}
	if !again {
		return nil
	}
	// The lock went with the session before. Who still waits for that one to end has the lock by its name.
	if locked, err := l.lock(ctx); err != nil || locked {
		return err
	}
	return l.failed(errors.New("the session before has not ended yet"))
}

// lose tells that another has the lease.
func (l *Lease) lose(err error) {
	l.once.Do(func() {
		if l.opts.Lost != nil {
			l.opts.Lost(err)
		}
	})
}

// hold keeps others from taking the lease while a transaction lasts. ErrFenced if another has it.
func (l *Lease) hold(ctx context.Context, d database, tx *sql.Tx) error {
	var number int64
	err := tx.QueryRowContext(ctx, d.text(holdText), l.number).Scan(&number)
	if errors.Is(err, sql.ErrNoRows) {
		l.lose(ErrFenced)
		return ErrFenced
	}
	if err != nil {
		return fmt.Errorf("hold the lease: %w", err)
	}
	return nil
}

// Leave gives the lease up, so that another takes it at once. The store must have been closed.
func (l *Lease) Leave() error {
	l.end()
	<-l.done
	ctx, cancel := context.WithTimeout(context.Background(), leasePatience)
	defer cancel()
	return errors.Join(l.leave(ctx), l.close())
}

func (l *Lease) leave(ctx context.Context) error {
	conn, err := l.connection(ctx)
	if err == nil {
		_, err = conn.ExecContext(ctx, leaveText, l.number)
	}
	if err != nil {
		return l.failed(fmt.Errorf("leave the lease: %w", err))
	}
	return nil
}

func (l *Lease) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var err error
	if l.conn != nil {
		err = l.conn.Close()
		l.conn = nil
	}
	return errors.Join(err, l.db.Close())
}
