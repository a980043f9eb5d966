package cmd

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The secret outlives a restart, and what is left of a damaged one is no secret.
func TestSecret(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "token-secret")
	first, err := loadSecret(ctx, path)
	if err != nil || len(first) != 32 {
		t.Fatalf("made %d bytes, %v", len(first), err)
	}
	again, err := loadSecret(ctx, path)
	if err != nil || !bytes.Equal(first, again) {
		t.Errorf("another one after a restart, %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[7] ^= 1
	for name, damaged := range map[string][]byte{"empty": {}, "cut": whole[:5], "flipped": flipped, "longer": append(bytes.Clone(whole), 0)} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			fresh, err := loadSecret(ctx, path)
			if err != nil || len(fresh) != 32 || bytes.Equal(fresh, first) || len(damaged) > 0 && bytes.HasPrefix(damaged, fresh) {
				t.Errorf("got %d bytes, %v", len(fresh), err)
			}
			if aside, err := os.ReadFile(path + ".damaged"); err != nil || !bytes.Equal(aside, damaged) {
				t.Errorf("set aside: %d bytes, %v", len(aside), err)
			}
			if again, err := loadSecret(ctx, path); err != nil || !bytes.Equal(again, fresh) {
				t.Errorf("another one after a restart, %v", err)
			}
		})
	}
	// Older versions wrote no checksum.
	if err := os.WriteFile(path, first, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := loadSecret(ctx, path); err != nil || !bytes.Equal(first, again) {
		t.Errorf("an older version's secret is not taken, %v", err)
	}
}
