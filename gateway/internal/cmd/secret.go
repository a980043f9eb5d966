package cmd

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"

	"github.com/tinsmith/tinsmith/gateway/internal/durable"
)

const (
	secretBytes   = 32
	secretSumSize = 4 // of a CRC-32C behind the secret; files of older versions have none
)

// loadSecret reads the secret that signs tokens, or makes it. Tokens stay valid over restarts. A damaged file is set aside, which the log says: the tokens of before end, clients get new ones with their keys, and
// nothing else depends on it.
func loadSecret(ctx context.Context, path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	switch {
	case err == nil && len(b) == secretBytes:
		return b, nil
	case err == nil && len(b) == secretBytes+secretSumSize && binary.LittleEndian.Uint32(b[secretBytes:]) == secretSum(b):
		return b[:secretBytes], nil
	case err == nil:
		aside := path + ".damaged"
		if err := os.Rename(path, aside); err != nil {
			return nil, err
		}
		slog.WarnContext(ctx, "the file token-secret is damaged: a new one is made, and the tokens of before end", "bytes", len(b), "set_aside", aside)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	b = make([]byte, secretBytes, secretBytes+secretSumSize)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	if err := durable.WriteFile(path, binary.LittleEndian.AppendUint32(b, secretSum(b)), 0o600); err != nil {
		return nil, err
	}
	return b, nil
}

func secretSum(b []byte) uint32 {
	return crc32.Checksum(b[:secretBytes], crc32.MakeTable(crc32.Castagnoli))
}
