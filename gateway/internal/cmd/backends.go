package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/server"
)

func backendsCommand() *cobra.Command {
	c := &cobra.Command{Use: "backends", Short: "Show the backends of a server's models: state, device, runs, samples", Args: cobra.NoArgs}
	conn := addConnection(c)
	asJSON := c.Flags().Bool("json", false, "print the models of the server's /healthz as JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		models, err := conn.health(c.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return json.NewEncoder(c.OutOrStdout()).Encode(models)
		}
		w := shown{c.OutOrStdout()}
		fmt.Fprintf(w, backendRow, "BACKEND", "STATE", "RUNS", "ACTIVE", "SAMPLES")
		for _, m := range models {
			if len(m.Backends) == 0 { // the model's only one
				fmt.Fprintf(w, backendRow, m.Name, m.State, "-", "-", "-")
				tellBackend(w, m.Device, m.DType, m.Arithmetic, m.Reason, m.Restarts, m.LastLoss)
			}
			for _, b := range m.Backends {
				state := b.State
				if b.Drained {
					state += ", drained"
				}
				fmt.Fprintf(w, backendRow, b.Name, state, fmt.Sprint(b.Runs), fmt.Sprint(b.ActiveRuns), fmt.Sprint(b.Samples))
				tellBackend(w, b.Device, b.DType, b.Arithmetic, b.Reason, b.Restarts, b.LastLoss)
				if b.Leaving > 0 {
					fmt.Fprintf(w, "  %d of its runs are moving to other backends\n", b.Leaving)
				}
			}
		}
		return nil
	}
	return c
}

// backendRow fits lineWidth where names are not long.
const backendRow = "%-37s %-20s %5s %6s %7s\n"

func tellBackend(w io.Writer, device, dtype, arithmetic, reason string, restarts int, lastLoss string) {
	if device != "" {
		fmt.Fprintf(w, "  %s, %s, arithmetic %s\n", printable(device), printable(dtype), printable(arithmetic))
	}
	if reason != "" {
		fmt.Fprintf(w, "  %s\n", printable(reason))
	}
	if restarts > 0 {
		fmt.Fprintf(w, "  restarted %d times, last because: %s\n", restarts, printable(lastLoss))
	}
}

// health asks how the models stand. The answer has the same form with status 503.
func (conn *connection) health(ctx context.Context) ([]server.Model, error) {
	res, err := conn.ask(ctx, http.MethodGet, "/healthz", nil, "")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var health server.Health
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&health); err != nil {
		return nil, fmt.Errorf("%s/healthz: %w", conn.url, err)
	}
	return health.Models, nil
}

func drainCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "drain BACKEND", Short: "Empty one backend of a model: its runs move to the others, and it gets nothing new",
		Long: "Empty one of a model's backends, which `tinsmith backends` names: its runs move to the others, each as soon as what was sent for it is done, and it gets nothing new. " +
			"The command returns when no run is left there. Samples that run there are finished there. It is kept until --undo, or until the server is started again. With keys it takes an administrator's.",
		Args: cobra.ExactArgs(1),
	}
	conn := addConnection(c)
	undo := c.Flags().Bool("undo", false, "have it take work again")
	wait := c.Flags().Duration("wait", 10*time.Minute, "how long to wait until it is empty; 0 = not at all")
	c.RunE = func(c *cobra.Command, args []string) error {
		body, err := json.Marshal(map[string]any{"backend": args[0], "drained": !*undo})
		if err != nil {
			return err
		}
		var answer struct{}
		if err := conn.call(c.Context(), http.MethodPost, "/api/v1/tinsmith/backends/drain", bytes.NewReader(body), &answer); err != nil {
			return err
		}
		w := shown{c.OutOrStdout()}
		if *undo {
			_, err = fmt.Fprintf(w, "%s takes work again\n", args[0])
			return err
		}
		if *wait > 0 {
			if err := awaitEmpty(c.Context(), conn, args[0], *wait); err != nil {
				return err
			}
			_, err = fmt.Fprintf(w, "%s is empty\n", args[0])
			return err
		}
		_, err = fmt.Fprintf(w, "%s is being drained\n", args[0])
		return err
	}
	return c
}

// awaitEmpty waits until a backend has no run and no sample.
func awaitEmpty(ctx context.Context, conn *connection, name string, longest time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, errors.New("it is not empty yet"))
	defer cancel()
	for left := ""; ; {
		models, err := conn.health(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		for _, m := range models {
			for _, b := range m.Backends {
				if b.Name != name {
					continue
				}
				if b.Runs == 0 && b.Samples == 0 {
					return nil
				}
				left = fmt.Sprintf("%d runs and %d sequences are left in %s", b.Runs, b.Samples, name)
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", strings.TrimSpace(left), context.Cause(ctx))
		}
	}
}
