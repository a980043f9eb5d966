package cmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/backup"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

func backupCommand(version string) *cobra.Command {
	c := &cobra.Command{Use: "backup DIR --config FILE", Short: "Copy what a server keeps into a new folder, while it runs or not", Args: cobra.ExactArgs(1)}
	data := addDataFlags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := data.existing()
		if err != nil {
			return err
		}
		if backup.Unfinished(cfg.DataDir) {
			return unfinishedRestore(cfg.DataDir)
		}
		tell := tellProgress(c.ErrOrStderr())
		result, err := backup.Ask(c.Context(), cfg.DataDir, args[0], tell)
		if errors.Is(err, backup.ErrNotRunning) {
			var records store.Store
			if records, err = openOffline(c.Context(), cfg, false); err != nil {
				if errors.Is(err, store.ErrLocked) {
					err = fmt.Errorf("the server does not answer to commands yet, or it is none of this version: %w", err)
				}
				return err
			}
			src := backup.Source{Version: version, DataDir: cfg.DataDir, FilesDir: cfg.FilesDir(), Store: records}
			if l, shared := records.(leased); shared && l.turn.bucket != nil {
				src.Folders = l.turn.bucket
			}
			result, err = backup.Make(c.Context(), src, args[0], tell)
			err = errors.Join(err, records.Close())
		}
		if err != nil {
			return err
		}
		for _, path := range result.Damaged {
			fmt.Fprintf(c.ErrOrStderr(), "damaged, and in the backup as it is: %s\n", path)
		}
		fmt.Fprintf(c.OutOrStdout(), "backed up %d files, %s, of which %s share the disk with the data directory\n", result.Files, size(result.Bytes), size(result.Linked))
		return nil
	}
	return c
}

func restoreCommand() *cobra.Command {
	c := &cobra.Command{Use: "restore DIR --config FILE", Short: "Put a backup into an empty data directory", Args: cobra.ExactArgs(1)}
	data := addDataFlags(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		cfg, err := data.load()
		if err != nil {
			return err
		}
		options, err := storeOptions(cfg)
		if err != nil {
			return err
		}
		put := func(ctx context.Context, from string) error {
			if cfg.Files.Shared() {
				return restoreShared(ctx, from, cfg, options)
			}
			return store.Restore(ctx, from, options)
		}
		if err := backup.Restore(c.Context(), args[0], cfg.DataDir, cfg.FilesDir(), put, tellProgress(c.ErrOrStderr())); err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "restored to %s; the server can be started\n", cfg.DataDir)
		return nil
	}
	return c
}

// tellProgress prints how far something is, now and then.
func tellProgress(out io.Writer) func(backup.Progress) {
	var told time.Time
	return func(p backup.Progress) {
		if time.Since(told) < time.Second {
			return
		}
		told = time.Now()
		of := ""
		if p.Of > 0 {
			of = " of " + size(p.Of)
		}
		fmt.Fprintf(out, "%s: %d files, %s%s\n", p.Doing, p.Files, size(p.Bytes), of)
	}
}

func unfinishedRestore(dataDir string) error {
	return fmt.Errorf("`tinsmith restore` was not finished in the data directory %s: call it again, or empty the directory", dataDir)
}
