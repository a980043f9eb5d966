package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// longestSockets is how long the path of a folder of sockets may be: that of a socket in it has 107 bytes at most, 30 of which are its folder and its name.
const longestSockets = 77

// socketFolder is where the sockets of a data directory's backends lie: a folder that is this user's alone, and this data directory's. It is not in the data
// directory, whose path may be too long, and which may be on a file system without sockets. What killed processes have left there is removed; the caller holds the
// data directory. "" stands for the folder for temporary files, where no such folder can be had.
func socketFolder(dataDir string) string {
	sum := sha256.Sum256([]byte(dataDir))
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("tinsmith-%d-%s", os.Getuid(), hex.EncodeToString(sum[:6])))
	if len(dir) > longestSockets {
		return ""
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		slog.Warn("no folder for sockets: they go into the folder for temporary files", "folder", dir, "error", err)
		return ""
	}
	// Anybody may make folders beside it: one of another user, or a link, is not touched.
	info, err := os.Lstat(dir)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o700 || !own(info) {
		slog.Warn("the folder for sockets is not this user's alone: they go into the folder for temporary files", "folder", dir)
		return ""
	}
	removeSockets(dir)
	return dir
}

// own tells whether a file is this user's.
func own(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Getuid()
}

// removeSockets removes the folders of earlier processes with their sockets, and nothing that is not a socket or is called otherwise.
func removeSockets(dir string) {
	folders, err := os.ReadDir(dir)
	if err != nil {
		slog.Warn("old sockets are left", "folder", dir, "error", err)
		return
	}
	for _, f := range folders {
		if !f.IsDir() || !strings.HasPrefix(f.Name(), "tinsmith-") {
			continue
		}
		folder := filepath.Join(dir, f.Name())
		sockets, err := os.ReadDir(folder)
		for _, s := range sockets {
			if s.Type() == fs.ModeSocket && strings.HasPrefix(s.Name(), "plugin") {
				err = errors.Join(err, os.Remove(filepath.Join(folder, s.Name())))
			}
		}
		if err = errors.Join(err, os.Remove(folder)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			slog.Warn("an old socket is left", "folder", folder, "error", err)
		}
	}
}
