package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

func keyCommand() *cobra.Command {
	key := &cobra.Command{
		Use: "key", Short: "Manage API keys",
		Long: "Make, list, remove and rotate API keys. They are in a file that holds their hashes, which a server reads again within two seconds after each change.",
	}
	key.AddCommand(keyAddCommand(), keyListCommand(), keyRemoveCommand(), keyRotateCommand())
	return key
}

// keysFile is where a command finds the keys.
type keysFile struct{ config, file string }

func addKeysFile(c *cobra.Command) *keysFile {
	f := &keysFile{}
	c.Flags().StringVar(&f.config, "config", "", "configuration file that names the keys file")
	c.Flags().StringVar(&f.file, "file", "", "keys file")
	return f
}

func (f *keysFile) path() (string, error) {
	if f.file != "" {
		return f.file, nil
	}
	if f.config == "" {
		return "", fmt.Errorf("say where keys are kept: --file KEYS, or --config FILE with auth.keys_file")
	}
	cfg, err := config.LoadUnchecked(f.config)
	if err != nil {
		return "", err
	}
	if cfg.Auth.KeysFile == "" {
		return "", fmt.Errorf("%s sets no auth.keys_file", f.config)
	}
	return cfg.Auth.KeysFile, nil
}

func keyAddCommand() *cobra.Command {
	var admin bool
	var expires string
	c := &cobra.Command{Use: "add NAME", Aliases: []string{"create"}, Short: "Make a key, print it once, and store its hash", Args: cobra.ExactArgs(1)}
	where := addKeysFile(c)
	c.Flags().BoolVar(&admin, "admin", false, "an administrator's key: it is told why something is not well, with paths, the database's address and what plugins wrote, and sees everybody's usage")
	c.Flags().StringVar(&expires, "expires", "", "when the key ends: a day (2030-01-31, its end in UTC), a time (2030-01-31T12:00:00Z), or how long from now (90d, 12h)")
	c.RunE = func(c *cobra.Command, args []string) error {
		end, err := endOfKey(expires, time.Now())
		if err != nil {
			return err
		}
		path, err := where.path()
		if err != nil {
			return err
		}
		made, err := keys.AddWith(path, args[0], admin, end)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), made)
		fmt.Fprintf(c.ErrOrStderr(), "stored its hash in %s; the key itself is not shown again\n", path)
		return nil
	}
	return c
}

func keyListCommand() *cobra.Command {
	c := &cobra.Command{Use: "list", Short: "Show names, ids, rights and ends of the keys in a file", Args: cobra.NoArgs}
	where := addKeysFile(c)
	asJSON := c.Flags().Bool("json", false, "print JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		path, err := where.path()
		if err != nil {
			return err
		}
		list, err := keys.List(path)
		if err != nil {
			return err
		}
		if *asJSON {
			out := make([]map[string]any, len(list))
			for i, e := range list {
				out[i] = map[string]any{"name": e.Name, "id": e.ID, "admin": e.Admin, "expires": nil}
				if !e.Expires.IsZero() {
					out[i]["expires"] = e.Expires.UTC()
				}
			}
			e := json.NewEncoder(c.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(map[string]any{"keys": out})
		}
		writeKeys(c.OutOrStdout(), list, time.Now())
		return nil
	}
	return c
}

func writeKeys(w io.Writer, list []keys.Entry, now time.Time) {
	const row = "%-30s %-9s %-6s %s\n"
	fmt.Fprintf(w, row, "NAME", "ID", "ADMIN", "EXPIRES")
	for _, e := range list {
		admin, end := "-", "never"
		if e.Admin {
			admin = "yes"
		}
		if !e.Expires.IsZero() {
			end = e.Expires.UTC().Format(time.RFC3339)
			if !now.Before(e.Expires) {
				end += " (expired)"
			}
		}
		fmt.Fprintf(w, row, e.Name, e.ID, admin, end)
	}
}

func keyRemoveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "remove NAME", Short: "Remove a key: what it has begun ends with it", Args: cobra.ExactArgs(1),
		Long: "Remove a key from the file. A server that uses the file refuses it within two seconds, and ends its requests. Runs and checkpoints belong to the name and stay: another key of the name finds them.",
	}
	where := addKeysFile(c)
	var which keys.Selection
	c.Flags().StringVar(&which.ID, "id", "", "which key of the name, as `tinsmith key list` shows it")
	c.Flags().BoolVar(&which.All, "all", false, "all keys of the name")
	c.RunE = func(c *cobra.Command, args []string) error {
		path, err := where.path()
		if err != nil {
			return err
		}
		which.Name = args[0]
		gone, err := keys.Remove(path, which)
		for _, e := range gone {
			if err == nil {
				fmt.Fprintf(c.OutOrStdout(), "removed the key %s of %s\n", e.ID, e.Name)
			}
		}
		return err
	}
	return c
}

func keyRotateCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "rotate NAME", Short: "Replace a key by a new one, and print that once", Args: cobra.ExactArgs(1),
		Long: "Make a new key with the name, the rights and the end of another one. Runs and checkpoints belong to the name: they go on with the new key. The old one works for the time that --keep says, so that what runs with it can end; with " +
			"--keep 0 it is removed at once, and its requests end with it.",
	}
	where := addKeysFile(c)
	var which keys.Selection
	c.Flags().StringVar(&which.ID, "id", "", "which key of the name, as `tinsmith key list` shows it")
	keep := c.Flags().String("keep", "1h", "how long the old key works yet (12h, 7d); 0: not at all")
	c.RunE = func(c *cobra.Command, args []string) error {
		kept, err := spanOfTime(*keep)
		if err != nil {
			return fmt.Errorf("--keep: %w", err)
		}
		path, err := where.path()
		if err != nil {
			return err
		}
		which.Name = args[0]
		made, old, err := keys.Rotate(path, which, kept)
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), made)
		if kept == 0 {
			fmt.Fprintf(c.ErrOrStderr(), "the old key %s of %s is removed; the new one is not shown again\n", old.ID, old.Name)
		} else {
			fmt.Fprintf(c.ErrOrStderr(), "the old key %s of %s works until %s; the new one is not shown again\n", old.ID, old.Name, old.Expires.Format(time.RFC3339))
		}
		return nil
	}
	return c
}

// maxSpan is longer than anybody means.
const maxSpan = 100 * 366 * 24 * time.Hour

// spanOfTime reads how long something is to take, also in days.
func spanOfTime(text string) (time.Duration, error) {
	bad := fmt.Errorf("%q is not a span of time such as 12h or 90d", text)
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int
		if n, err = strconv.Atoi(days); err == nil && n <= int(maxSpan/(24*time.Hour)) {
			d = time.Duration(n) * 24 * time.Hour
		} else {
			return 0, bad
		}
	}
	if err != nil || d < 0 || d > maxSpan {
		return 0, bad
	}
	return d, nil
}

// endOfKey reads when something ends; "" is never.
func endOfKey(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	end, err := time.Parse(time.RFC3339, text)
	if err != nil {
		if end, err = time.Parse(time.DateOnly, text); err == nil {
			end = end.Add(24 * time.Hour)
		}
	}
	if err != nil {
		var d time.Duration
		if d, err = spanOfTime(text); err != nil {
			return time.Time{}, fmt.Errorf("--expires: %q is not a day (2030-01-31), a time (2030-01-31T12:00:00Z) or a span of time (90d, 12h)", text)
		}
		end = now.Add(d)
	}
	if end = end.UTC().Truncate(time.Second); !end.After(now) {
		return time.Time{}, fmt.Errorf("--expires: %s is over", end.Format(time.RFC3339))
	}
	return end, nil
}
