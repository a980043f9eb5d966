package store

import (
	"log/slog"
	"os"
	"path/filepath"
)

// narrow makes what the store keeps readable by its owner only, also what older programs left wider. Where that is not possible it says so: the store is as it was.
func narrow(dir string) {
	paths := []string{dir, filepath.Join(dir, "lock"), filepath.Join(dir, markName)}
	for _, pattern := range []string{databaseName + "*", "journal", "journal/*", "log", "log/*"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are well formed
		paths = append(paths, found...)
	}
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || info.Mode()&os.ModeSymlink != 0 || info.Mode().Perm()&0o077 == 0 {
			continue
		}
		if err := os.Chmod(path, info.Mode().Perm()&0o700); err != nil {
			slog.Warn("a file of the store can be read by others", "path", path, "error", err)
		}
	}
}
