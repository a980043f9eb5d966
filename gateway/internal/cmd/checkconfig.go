package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/fleet"
	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/server"
	"github.com/tinsmith/tinsmith/gateway/internal/supervisor"
	"github.com/tinsmith/tinsmith/plugins"
)

// checkTimeout is how long a plugin may take to check its section. It opens no device.
const checkTimeout = 30 * time.Second

func checkConfigCommand() *cobra.Command {
	return &cobra.Command{Use: "check-config FILE", Short: "Check a configuration file without starting anything: values, models' files, plugins and their sections", Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, args []string) error {
		cfg, err := config.Load(args[0])
		if err != nil {
			return err
		}
		programs, err := pluginDir()
		if err != nil {
			return err
		}
		var faults []error
		if cfg.TLS.Used() {
			if certificate, err := server.OpenCertificate(cfg.TLS.CertFile, cfg.TLS.KeyFile); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", args[0], err))
			} else if end := certificate.Expires(); time.Now().After(end) {
				faults = append(faults, fmt.Errorf("%s: tls.cert_file: the certificate expired at %s", args[0], end.UTC().Format(time.RFC3339)))
			}
		}
		faults = append(faults, checkFiles(args[0], cfg)...)
		faults = append(faults, unknownNames(args[0], cfg)...)
		for i, m := range cfg.Models {
			if err := checkModel(c.Context(), c.OutOrStdout(), m, programs); err != nil {
				faults = append(faults, fmt.Errorf("%s: models[%d]: %w", args[0], i, err))
			}
		}
		if len(faults) > 0 {
			return errors.Join(faults...)
		}
		fmt.Fprintf(c.OutOrStdout(), "%s is valid: %d model(s), listening on %s\n", args[0], len(cfg.Models), cfg.Listen)
		return nil
	}}
}

// checkFiles looks for what can be known of shared files without a server.
func checkFiles(file string, cfg config.Config) (faults []error) {
	if dir := cfg.Files.Dir; dir != "" {
		if info, err := os.Stat(dir); err != nil {
			faults = append(faults, fmt.Errorf("%s: files.dir: %w", file, err))
		} else if !info.IsDir() {
			faults = append(faults, fmt.Errorf("%s: files.dir: %s is not a directory", file, dir))
		}
	}
	if s := cfg.Files.S3; s != nil {
		if _, _, err := bucketKeys(s.KeyFile); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", file, err))
		}
	}
	return faults
}

// unknownNames finds names with limits of which there is no key: a misspelled one would have none. Without a keys file, or with one that cannot be read, nobody knows.
func unknownNames(file string, cfg config.Config) (faults []error) {
	list, err := keys.List(cfg.Auth.KeysFile)
	if err != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Limits.Keys)) {
		if !slices.ContainsFunc(list, func(e keys.Entry) bool { return e.Name == name }) {
			faults = append(faults, fmt.Errorf("%s: limits.keys.%s: %s has no key of that name", file, name, cfg.Auth.KeysFile))
		}
	}
	return faults
}

// checkModel looks for what the server would find out about a model when it starts, but for the weights. What cannot be told before is noted.
func checkModel(ctx context.Context, notes io.Writer, m config.Model, programs string) error {
	var faults []error
	dir, err := hub.Find(ctx, m.Path)
	switch {
	case err != nil:
		faults = append(faults, fmt.Errorf("path: %w", err))
	case dir == "":
		fmt.Fprintf(notes, "model %s: %s is not in the cache; it is downloaded when the server starts\n", m.Name, m.Path)
	default:
		if _, err := catalog.Load(m, dir); err != nil {
			faults = append(faults, err)
		}
	}
	members := m.Members()
	noteShares(notes, m.Name, members)
	for i, b := range members {
		if i > 0 && b.Remote == nil && b.Plugin == members[i-1].Plugin && bytes.Equal(b.Section, members[i-1].Section) {
			continue // a replica
		}
		if err := checkBackend(ctx, notes, b, programs); err != nil && len(members) > 1 {
			faults = append(faults, fmt.Errorf("%s: %w", b.Name, err))
		} else if err != nil {
			faults = append(faults, err)
		}
	}
	return errors.Join(faults...)
}

// noteShares notes which of several backends on this machine take its memory and its processors as if they were alone.
func noteShares(notes io.Writer, model string, members []config.Backend) {
	local := slices.DeleteFunc(slices.Clone(members), func(b config.Backend) bool { return b.Remote != nil })
	if len(local) < 2 {
		return
	}
	for _, key := range []string{"memory_mib", "threads"} {
		var without []string
		for _, b := range local {
			var section map[string]json.RawMessage
			if json.Unmarshal(b.Section, &section) == nil && section[key] == nil {
				without = append(without, b.Name)
			}
		}
		if len(without) > 0 {
			fmt.Fprintf(notes, "model %s: %d backends share this machine, and %s sets no %s: without it each takes nearly all there is\n", model, len(local), strings.Join(without, ", "), key)
		}
	}
}

// checkBackend is checkModel for one of its backends.
func checkBackend(ctx context.Context, notes io.Writer, b config.Backend, programs string) error {
	if b.Remote != nil {
		fmt.Fprintf(notes, "model %s: the backend at %s is not asked: it checks its section when it loads\n", b.Name, b.Remote.Address)
		return checkRemote(b.Remote)
	}
	program, err := fleet.Program(programs, b.Plugin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err = supervisor.CheckConfig(ctx, program, b.Section)
	if errors.Is(err, plugins.ErrUnchecked) {
		fmt.Fprintf(notes, "model %s: the plugin %s checks its section when it loads only\n", b.Name, b.Plugin)
		err = nil
	}
	return err
}
