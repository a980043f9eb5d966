package cmd

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func runsCommand() *cobra.Command {
	c := &cobra.Command{Use: "runs", Short: "Show the training runs of a server: step, loss, norms, speed", Args: cobra.NoArgs}
	conn := addConnection(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var answer struct {
			Runs []struct {
				ID          string    `json:"run_id"`
				Base        string    `json:"base_model"`
				Rank        int       `json:"rank"`
				Corrupted   bool      `json:"corrupted"`
				Reason      string    `json:"corrupted_reason"`
				Inexact     string    `json:"inexact"`
				Unread      []string  `json:"unread_inputs"`
				Step        int64     `json:"step"`
				Queued      int       `json:"queued"`
				TokensPerS  float64   `json:"tokens_per_second"`
				Loss        *float64  `json:"last_loss"`
				GradNorm    *float64  `json:"grad_norm"`
				AdapterNorm *float64  `json:"adapter_norm"`
				LastRequest time.Time `json:"last_request_time"`
				Rebuilding  *struct {
					Replayed int    `json:"operations_replayed"`
					ToReplay int    `json:"operations_to_replay"`
					Reason   string `json:"reason"`
				} `json:"rebuilding"`
			} `json:"runs"`
		}
		if err := conn.call(c.Context(), http.MethodGet, "/api/v1/tinsmith/runs", nil, &answer); err != nil {
			return err
		}
		w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "RUN\tBASE\tRANK\tSTEP\tQUEUED\tLOSS\tGRAD NORM\tADAPTER NORM\tTOKENS/S\tLAST REQUEST")
		for _, r := range answer.Runs {
			fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\t%s\t%s\t%.0f\t%s\n", r.ID, r.Base, r.Rank, r.Step, r.Queued, figure(r.Loss), figure(r.GradNorm), figure(r.AdapterNorm), r.TokensPerS, ago(r.LastRequest))
			if r.Corrupted {
				fmt.Fprintf(w, "  lost: %s\n", r.Reason)
			}
			if b := r.Rebuilding; b != nil {
				fmt.Fprintf(w, "  being rebuilt: %d of %d operations have run again\n", b.Replayed, b.ToReplay)
				if b.Reason != "" {
					fmt.Fprintf(w, "  an attempt failed and is repeated: %s\n", b.Reason)
				}
			}
			if r.Inexact != "" {
				fmt.Fprintf(w, "  not bit-equal to an undisturbed run: %s\n", r.Inexact)
			}
			if len(r.Unread) > 0 {
				fmt.Fprintf(w, "  sent in loss_fn_inputs and not read by the loss: %s\n", quoted(r.Unread))
			}
		}
		return w.Flush()
	}
	return c
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
