package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/keys"
)

func keyCommand() *cobra.Command {
	key := &cobra.Command{Use: "key", Short: "Manage API keys"}
	var configFile, keysFile string
	var admin bool
	add := &cobra.Command{Use: "add NAME", Short: "Make a key, print it once, and store its hash", Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, args []string) error {
		path := keysFile
		if path == "" {
			if configFile == "" {
				return fmt.Errorf("say where keys are kept: --file KEYS, or --config FILE with auth.keys_file")
			}
			cfg, err := config.LoadUnchecked(configFile)
			if err != nil {
				return err
			}
			if path = cfg.Auth.KeysFile; path == "" {
				return fmt.Errorf("%s sets no auth.keys_file", configFile)
			}
		}
		store := keys.Add
		if admin {
			store = keys.AddAdmin
		}
		made, err := store(path, args[0])
		if err != nil {
			return err
		}
		fmt.Fprintln(c.OutOrStdout(), made)
		fmt.Fprintf(c.ErrOrStderr(), "stored its hash in %s; the key itself is not shown again\n", path)
		return nil
	}}
	add.Flags().StringVar(&configFile, "config", "", "configuration file that names the keys file")
	add.Flags().StringVar(&keysFile, "file", "", "keys file")
	add.Flags().BoolVar(&admin, "admin", false, "an administrator's key: it is told why something is not well, with paths, the database's address and what plugins wrote")
	key.AddCommand(add)
	return key
}
