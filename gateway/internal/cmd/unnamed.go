package cmd

import (
	"golang.org/x/sys/unix"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

// leastUnnamed is what the unnamed samplers of a key may have on a disk that is nearly full, where the configuration says nothing.
const leastUnnamed = 1 << 30

// unnamedBytes bounds the files of one key's unnamed samplers: as configured, or by what is free on the disk now.
func unnamedBytes(cfg *config.Config) int64 {
	if cfg.Sampling.UnnamedMiB > 0 {
		return int64(cfg.Sampling.UnnamedMiB) << 20
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(cfg.FilesDir(), &fs); err != nil {
		return leastUnnamed
	}
	return max(leastUnnamed, int64(fs.Bavail)*fs.Bsize/10)
}
