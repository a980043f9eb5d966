// Package cmd has the commands of the program tinsmith, one file each.
package cmd

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Main runs the command line and returns the exit status.
func Main(version string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "tinsmith",
		Short:         "Train LoRA adapters with the Tinker SDK and chat with them through any OpenAI client, on your own machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(version), checkConfigCommand(), versionCommand(version), chatCommand(), modelsCommand(), runsCommand(), importCommand(), keyCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tinsmith:", err)
		return 1
	}
	return 0
}

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
		fmt.Fprintln(c.OutOrStdout(), "tinsmith", version)
	}}
}
