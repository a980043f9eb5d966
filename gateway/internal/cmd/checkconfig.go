package cmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
)

func checkConfigCommand() *cobra.Command {
	return &cobra.Command{Use: "check-config FILE", Short: "Check a configuration file without starting anything", Args: cobra.ExactArgs(1), RunE: func(c *cobra.Command, args []string) error {
		cfg, err := config.Load(args[0])
		if err != nil {
			return err
		}
		fmt.Fprintf(c.OutOrStdout(), "%s is valid: %d model(s), listening on %s; the backend sections are checked by the plugins when they load\n", args[0], len(cfg.Models), cfg.Listen)
		return nil
	}}
}
