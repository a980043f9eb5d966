package cmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// dataFlags say on which data directory a command works, and where its records are.
type dataFlags struct{ file, dir string }

func addDataFlags(c *cobra.Command) *dataFlags {
	f := &dataFlags{}
	c.Flags().StringVar(&f.file, "config", "", "the server's configuration file")
	c.Flags().StringVar(&f.dir, "data-dir", "", "the data directory of a server without a configuration file")
	c.MarkFlagsOneRequired("config", "data-dir")
	c.MarkFlagsMutuallyExclusive("config", "data-dir")
	return f
}

// load reads the configuration. The data directory is absolute in it.
func (f *dataFlags) load() (cfg config.Config, err error) {
	if f.file == "" {
		cfg = config.Default()
		cfg.DataDir = f.dir
	} else if cfg, err = config.LoadUnchecked(f.file); err != nil {
		return cfg, err
	}
	return cfg, absolute(&cfg)
}

// absolute makes the folders of a configuration absolute.
func absolute(cfg *config.Config) (err error) {
	if cfg.DataDir, err = filepath.Abs(cfg.DataDir); err == nil && cfg.Files.Dir != "" {
		cfg.Files.Dir, err = filepath.Abs(cfg.Files.Dir)
	}
	return err
}

// existing reads the configuration of a data directory that must be there.
func (f *dataFlags) existing() (config.Config, error) {
	cfg, err := f.load()
	if err != nil {
		return cfg, err
	}
	if info, err := os.Stat(cfg.DataDir); err != nil {
		return cfg, fmt.Errorf("data_dir: %w", err)
	} else if !info.IsDir() {
		return cfg, fmt.Errorf("data_dir: %s is not a directory", cfg.DataDir)
	}
	return cfg, nil
}

// storeOptions say where the records of a server are.
func storeOptions(cfg config.Config) (store.Options, error) {
	options := store.Options{Dir: cfg.DataDir, Reserve: int64(cfg.Store.ReserveMiB) << 20}
	if options.Reserve == 0 {
		options.Reserve = -1 // none
	}
	options.Files = cfg.Files.Dir
	var err error
	options.PostgresURL, err = postgresURL(cfg)
	return options, err
}

// openOffline opens the records of a server that does not run.
func openOffline(ctx context.Context, cfg config.Config, accept bool) (store.Store, error) {
	options, err := storeOptions(cfg)
	if err != nil {
		return nil, err
	}
	options.Accept = accept
	var turn turn
	if cfg.Files.Shared() {
		turn, err = takeTurn(ctx, cfg)
		options.Lease = turn.lease
	}
	var records store.Store
	if err == nil {
		records, err = store.Open(ctx, options)
	}
	if errors.Is(err, store.ErrLocked) {
		err = fmt.Errorf("%w; stop it first", err)
	}
	if turn.lease == nil {
		return records, err
	}
	if err != nil {
		return nil, errors.Join(err, turn.end())
	}
	if turn.bucket, err = openBucket(ctx, cfg, nil); err == nil {
		err = bindFiles(ctx, records, filesOf(cfg, turn.bucket), accept)
	}
	if err != nil {
		return nil, errors.Join(err, records.Close(), turn.end())
	}
	return leased{records, turn}, nil
}
