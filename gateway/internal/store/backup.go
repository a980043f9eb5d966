package store

import (
	"context"
	"errors"
)

// Backup implements Store.
func (s *sqlStore) Backup(context.Context, string) error { return errors.New("not made yet") }

// Restore makes of a backup the store that opts name, of either driver: so a backup is also the way from one to the other. The data directory must hold no store, the database no records; else
// an error says so and nothing is changed. The backup is checked as a whole, and stays as it is. A Restore that was cut off is done again; until then Open refuses the data directory with a *Loss. The store has an
// identity of its own.
func Restore(_ context.Context, _ string, _ Options) error { return errors.New("not made yet") }
