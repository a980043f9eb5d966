package cmd

import (
	"fmt"
	"net/http"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
)

func modelsCommand() *cobra.Command {
	c := &cobra.Command{Use: "models", Short: "List what a server serves: base models, aliases, live adapters and saved ones", Args: cobra.NoArgs}
	conn := addConnection(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var answer struct {
			Data []struct {
				ID      string `json:"id"`
				Base    string `json:"base_model"`
				Run     string `json:"training_run_id"`
				Created int64  `json:"created"`
			} `json:"data"`
		}
		if err := conn.call(c.Context(), http.MethodGet, "/v1/models", nil, &answer); err != nil {
			return err
		}
		w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
		fmt.Fprintln(w, "MODEL\tKIND\tBASE\tMADE")
		for _, m := range answer.Data {
			kind, made := "base", "-"
			switch {
			case m.Run != "":
				kind, made = "adapter", ago(time.Unix(m.Created, 0))
			case m.Base != "":
				kind = "alias"
			}
			base := m.Base
			if base == "" {
				base = "-"
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.ID, kind, base, made)
		}
		return w.Flush()
	}
	return c
}
