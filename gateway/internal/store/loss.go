package store

import (
	"errors"
	"strings"
)

// What a Loss is, for errors.Is.
var (
	// ErrLost: the store was known to hold more than is left of it, or its database is damaged as a whole.
	ErrLost = errors.New("the store has lost what it held")
	// ErrForeign: the data directory and the database belong to different stores.
	ErrForeign = errors.New("the data directory belongs to another store")
)

// Loss is why Open refuses a data directory in which something is missing. errors.Is finds ErrLost or ErrForeign in it, never both.
//
// Open with Options.Accept takes the state as it is instead: changes that are still whole are taken over, files that cannot be used any more are moved to a folder lost-TIME of the
// data directory, never removed, records that can still be read go from a damaged database into a new one, and the store gets a new identity, so that what was before does not come
// back by mistake. Accepting is durable and is logged. A store that has lost nothing is only opened.
type Loss struct {
	Kind     error     // ErrLost or ErrForeign
	Findings []Finding // at least one

	cause error // an error that findings tell of, or nil
}

// Finding is one thing that is damaged or missing.
type Finding struct {
	Where  string // a file of the data directory, a folder there, or a PostgreSQL database
	What   string // what was expected and what was found, in words
	Mended bool   // it was made whole again, and nothing is missing by it
}

func (f Finding) String() string { return f.Where + ": " + f.What }

// Error says what is missing, and what to do.
func (l *Loss) Error() string {
	var b strings.Builder
	b.WriteString(l.Kind.Error())
	for i, f := range l.Findings {
		b.WriteString([]string{": ", "; "}[min(i, 1)] + f.String())
	}
	if errors.Is(l.Kind, ErrForeign) {
		b.WriteString(". Nothing was changed. Use the database that belongs to it, or another data_dir to start empty; `tinsmith recover` takes over the files that are here")
	} else {
		b.WriteString(". Nothing was changed. Bring back what is missing, or a backup (`tinsmith restore`); `tinsmith recover` goes on with what is left")
	}
	return b.String()
}

// Unwrap gives the kind, and ErrCorrupt where something is damaged.
func (l *Loss) Unwrap() []error {
	if l.cause != nil {
		return []error{l.Kind, l.cause}
	}
	return []error{l.Kind}
}
