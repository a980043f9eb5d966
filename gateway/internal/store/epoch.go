package store

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// SQLite copies its write-ahead log into the database file from time to time, and begins the log anew. An older copy of the file beside the newer log would be taken for what belongs to it: the number of
// the last group is in the log. So before each such copying a number is raised that has a page of the database for itself, which the log has once more only before the next copying: read through the new
// log it is the file's, and the generation mark says what it must at least be.
const (
	epochTable   = "CREATE TABLE IF NOT EXISTS tinsmith_epoch (number BIGINT NOT NULL, sum BIGINT NOT NULL)"
	epochText    = "SELECT number, sum FROM tinsmith_epoch"
	setEpochText = "UPDATE tinsmith_epoch SET number = ?, sum = ?"
	newEpochText = "INSERT INTO tinsmith_epoch (number, sum) SELECT 0, ? WHERE NOT EXISTS (SELECT 1 FROM tinsmith_epoch)"

	checkpointPages = 4096 // 32 MiB of new pages are copied at once. SQLite's own 4 MiB would be every few commits, and one waits for it.
)

func epochSum(n int64) int64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(n))
	return int64(crc32.Checksum(b[:], castagnoli))
}

// makeEpoch makes the table with its row.
func makeEpoch(ctx context.Context, writer *sql.DB) error {
	if _, err := writer.ExecContext(ctx, epochTable); err != nil {
		return fmt.Errorf("make a table: %w", err)
	}
	if _, err := writer.ExecContext(ctx, newEpochText, epochSum(0)); err != nil {
		return fmt.Errorf("make a table: %w", err)
	}
	return nil
}

func readEpoch(ctx context.Context, from *sql.DB) (int64, error) {
	var n, sum int64
	err := from.QueryRowContext(ctx, epochText).Scan(&n, &sum)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the number of copyings: %w", err)
	}
	if sum != epochSum(n) {
		return 0, fmt.Errorf("%w: the checksum of the number of copyings does not fit", ErrCorrupt)
	}
	return n, nil
}

// checkpointer copies SQLite's log into the database. The goroutine that applies changes uses it, and the writer when that has ended.
type checkpointer struct {
	writer *sql.DB
	index  string // the file with the index of the log
	epoch  int64
}

// pages is how many pages the log has now. The index is made anew with the first use after a crash, and says so in its header: a number of which the place is part of the file's format.
func (c *checkpointer) pages() (uint32, error) {
	f, err := os.Open(c.index)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // nothing was written since the database was opened
	}
	if err != nil {
		return 0, fmt.Errorf("read the index of the database's log: %w", err)
	}
	defer f.Close()
	var header [20]byte
	if _, err := f.ReadAt(header[:], 0); errors.Is(err, io.EOF) {
		return 0, nil
	} else if err != nil {
		return 0, fmt.Errorf("read the index of the database's log: %w", err)
	}
	return binary.NativeEndian.Uint32(header[16:]), nil
}

// raise prepares for a copying, if the log has that many pages.
func (c *checkpointer) raise(ctx context.Context, pages uint32) (raised bool, err error) {
	n, err := c.pages()
	if err != nil || n < pages {
		return false, err
	}
	if _, err := c.writer.ExecContext(ctx, setEpochText, c.epoch+1, epochSum(c.epoch+1)); err != nil {
		return false, fmt.Errorf("write the number of copyings: %w", err)
	}
	c.epoch++
	return true, nil
}

// copy copies what has come together, if it is enough, and gives the number of copyings. What readers still need of the log stays there until the next time.
func (c *checkpointer) copy(ctx context.Context) (epoch int64, err error) {
	raised, err := c.raise(ctx, checkpointPages)
	if err == nil && raised {
		if _, err = c.writer.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err != nil {
			err = fmt.Errorf("copy the database's log: %w", err)
		}
	}
	return c.epoch, err
}
