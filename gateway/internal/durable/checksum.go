package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// Checksum writes a regular file's content to out and gives its size and its SHA-256 in hex. The error is ctx's when that ends.
func Checksum(ctx context.Context, path string, out io.Writer) (bytes int64, sum string, err error) {
	info, err := os.Lstat(path)
	if err != nil {
		return 0, "", err
	}
	if !info.Mode().IsRegular() {
		return 0, "", fmt.Errorf("%s is not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return 0, "", err
	}
	defer f.Close()
	h := sha256.New()
	both := io.MultiWriter(h, out)
	for ctx.Err() == nil {
		n, err := io.CopyN(both, f, 16<<20)
		bytes += n
		if errors.Is(err, io.EOF) {
			return bytes, hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return 0, "", err
		}
	}
	return 0, "", ctx.Err()
}

// sealed is a file with a checksum of its own: SHA256 is of the bytes of Content.
type sealed struct {
	Format  int             `json:"format"` // 1
	SHA256  string          `json:"sha256"`
	Content json.RawMessage `json:"content"`
}

// Seal encodes a value as JSON with a checksum, as the content of a file.
func Seal(value any) ([]byte, error) {
	content, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	b, err := json.Marshal(sealed{Format: 1, SHA256: hex.EncodeToString(sum[:]), Content: content})
	return append(b, '\n'), err
}

// Unseal decodes what Seal made. An error says that it is not that, whole. The checksum is against damage alone: whoever can write the file can write any value, so the caller checks that.
func Unseal(b []byte, value any) error {
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	if s.Format != 1 {
		return fmt.Errorf("format %d is not known: 1", s.Format)
	}
	sum := sha256.Sum256(s.Content)
	if hex.EncodeToString(sum[:]) != s.SHA256 {
		return errors.New("it does not have the checksum that it states")
	}
	return json.Unmarshal(s.Content, value)
}
