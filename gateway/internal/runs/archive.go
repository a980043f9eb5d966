package runs

import (
	"context"
	"io"
	"time"
)

// FileTokens are the files of an exported checkpoint by name, each with a token that opens it without further credentials until Expires.
type FileTokens struct {
	Tokens  map[string]string
	Expires time.Time
}

// ArchiveToken gives a token that lets its bearer read the archive of a sampler or external checkpoint without further credentials until it expires.
func (c *Core) ArchiveToken(ctx context.Context, owner, path string) (token string, expires time.Time, err error) {
	return "", time.Time{}, errNotYet
}

// OpenArchive checks a token and returns the name of the archive and a function that writes it as a tar stream: the adapter's files in its root, no folders, no links.
func (c *Core) OpenArchive(ctx context.Context, token string) (name string, write func(io.Writer) error, err error) {
	return "", nil, errNotYet
}

// FileTokens gives the tokens of an external checkpoint's files.
func (c *Core) FileTokens(ctx context.Context, owner, path string) (FileTokens, error) {
	return FileTokens{}, errNotYet
}

// OpenFile opens the file of a token. The caller closes it.
func (c *Core) OpenFile(ctx context.Context, token string) (name string, modified time.Time, f io.ReadSeekCloser, err error) {
	return "", time.Time{}, nil, errNotYet
}
