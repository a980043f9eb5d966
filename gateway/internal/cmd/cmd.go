// Package cmd has the commands of the program tinsmith, one file each.
package cmd

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// Program is what runs. Test binaries put faults around the store and the backends; nil leaves them as they are.
type Program struct {
	Version          string
	DecorateStore    func(store.Store) store.Store
	DecorateBackends func(runs.Backends) runs.Backends
}

// Main runs the command line of the ordinary program and returns the exit status.
func Main(version string) int { return Program{Version: version}.Main() }

// Main runs the command line and returns the exit status.
func (p Program) Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := p.Root().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(shown{os.Stderr}, "tinsmith:", err) // it may have in it what a server said
		return 1
	}
	return 0
}

// Root is the command line, for Main and for who checks arguments that are written somewhere.
func (p Program) Root() *cobra.Command {
	root := &cobra.Command{
		Use:           "tinsmith",
		Short:         "Train LoRA adapters with the Tinker SDK and chat with them through any OpenAI client, on your own machine",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(p), checkConfigCommand(), planCommand(), versionCommand(p.Version), chatCommand(), modelsCommand(), backendsCommand(), drainCommand(), runsCommand(), metricsCommand(), importCommand(), exportCommand(), pushCommand(), pullCommand(), fetchCommand(), envCommand(), keyCommand(), usageCommand(), backupCommand(p.Version), restoreCommand(), recoverCommand(), selftestCommand(p.Version), hyperparamsCommand())
	return root
}

func versionCommand(version string) *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version", Args: cobra.NoArgs, Run: func(c *cobra.Command, _ []string) {
		fmt.Fprintln(c.OutOrStdout(), "tinsmith", version)
	}}
}
