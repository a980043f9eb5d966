package cmd

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func runsCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "runs [RUN]", Short: "Show the training runs of a server: step, loss, norms, speed; of one RUN its curves",
		Long: "Show the training runs of a server that are live: step, loss, norms, speed. With a RUN, live or ended, draw the curves of its series.",
		Args: cobra.MaximumNArgs(1),
	}
	conn := addConnection(c)
	all := c.Flags().Bool("all", false, "list the runs that have ended too, newest first")
	owners := c.Flags().String("owners", "me", "with --all: of whom, me or all; all is for administrators' keys")
	names := c.Flags().StringArray("series", nil, "with a RUN: a series to draw, such as loss; may be given again (default: all)")
	cycles := c.Flags().Bool("cycles", false, "with a RUN: what its newest clock cycles ran, how long, and what it waited for them, instead of its curves")
	asJSON := c.Flags().Bool("json", false, "print the server's answer as JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		switch {
		case *owners != "me" && *owners != "all":
			return fmt.Errorf("--owners: %q is not one of me, all", *owners)
		case *cycles && (len(args) != 1 || len(*names) > 0):
			return errors.New("--cycles is for one RUN, and without --series")
		case *cycles:
			return showCycles(c.Context(), conn, c.OutOrStdout(), args[0], *asJSON)
		case len(args) == 1:
			return showRun(c.Context(), conn, c.OutOrStdout(), args[0], *names, *asJSON)
		case *all || *owners == "all":
			return listAllRuns(c.Context(), conn, c.OutOrStdout(), *owners, *asJSON)
		case *asJSON:
			return conn.copyJSON(c.Context(), "/api/v1/tinsmith/runs", c.OutOrStdout())
		}
		var answer struct {
			Runs []struct {
				ID          string    `json:"run_id"`
				Base        string    `json:"base_model"`
				Rank        int       `json:"rank"`
				Corrupted   bool      `json:"corrupted"`
				Reason      string    `json:"corrupted_reason"`
				Inexact     string    `json:"inexact"`
				Backend     string    `json:"backend"`
				Moves       int       `json:"moves"`
				Unread      []string  `json:"unread_inputs"`
				Step        int64     `json:"step"`
				Queued      int       `json:"queued"`
				TokensPerS  float64   `json:"tokens_per_second"`
				Loss        *float64  `json:"last_loss"`
				GradNorm    *float64  `json:"grad_norm"`
				AdapterNorm *float64  `json:"adapter_norm"`
				LastRequest time.Time `json:"last_request_time"`
				Began       origin    `json:"began"`

				UserMetadata map[string]any `json:"user_metadata"`
				naming

				Rebuilding *struct {
					Replayed int    `json:"operations_replayed"`
					ToReplay int    `json:"operations_to_replay"`
					Reason   string `json:"reason"`
				} `json:"rebuilding"`
			} `json:"runs"`
		}
		if err := conn.call(c.Context(), http.MethodGet, "/api/v1/tinsmith/runs", nil, &answer); err != nil {
			return err
		}
		tellTroubles(c.Context(), conn, c.ErrOrStderr())
		w := shown{c.OutOrStdout()}
		fmt.Fprintf(w, runRow, "RUN", "STEP", "LOSS", "TOKENS/S", "LAST")
		for _, r := range answer.Runs {
			fmt.Fprintf(w, runRow, r.ID, strconv.FormatInt(r.Step, 10), figure(r.Loss), strconv.FormatFloat(r.TokensPerS, 'f', 0, 64), since(r.LastRequest))
			fmt.Fprintf(w, "  %s, rank %d\n", r.Base, r.Rank)
			fmt.Fprintf(w, "  gradient norm %s, adapter norm %s, %d queued\n", figure(r.GradNorm), figure(r.AdapterNorm), r.Queued)
			if text := r.text(); text != "" {
				fmt.Fprintf(w, "  %s\n", text)
			}
			if len(r.UserMetadata) > 0 {
				fmt.Fprintf(w, "  %s\n", named(r.UserMetadata, lineWidth-2))
			}
			r.Began.tell(w, "began as an import")
			if r.Corrupted {
				fmt.Fprintf(w, "  lost: %s\n", r.Reason)
			}
			if b := r.Rebuilding; b != nil {
				fmt.Fprintf(w, "  being rebuilt: %d of %d operations have run again\n", b.Replayed, b.ToReplay)
				if b.Reason != "" {
					fmt.Fprintf(w, "  an attempt failed and is repeated: %s\n", b.Reason)
				}
			}
			if r.Backend != "" {
				fmt.Fprintf(w, "  in backend %s, moved %d times\n", printable(r.Backend), r.Moves)
			}
			if r.Inexact != "" {
				fmt.Fprintf(w, "  not bit-equal to an undisturbed run: %s\n", r.Inexact)
			}
			if len(r.Unread) > 0 {
				fmt.Fprintf(w, "  sent in loss_fn_inputs and not read by the loss: %s\n", quoted(r.Unread))
			}
		}
		return tellImports(c.Context(), conn, w)
	}
	return c
}

// lineWidth is what a line of a list has room for, but for names that are longer.
const lineWidth = 80

// runRow fits lineWidth with the id of a run, which has 44 characters.
const runRow = "%-45s %6s %9s %8s %8s\n"

// named writes what a user called something, in at most so many characters.
func named(metadata map[string]any, width int) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		parts = append(parts, printable(fmt.Sprintf("%s=%v", key, metadata[key])))
	}
	text := []rune(strings.ReplaceAll(strings.Join(parts, ", "), "\n", " "))
	if len(text) > width {
		text = append(text[:width-1], '…')
	}
	return string(text)
}

// quoted lists names that come from outside.
func quoted(names []string) string {
	out := make([]string, len(names))
	for i, name := range names {
		out[i] = strconv.Quote(name)
	}
	return strings.Join(out, ", ")
}

func figure(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.5g", *v)
}
