package cmd

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

func modelsCommand() *cobra.Command {
	c := &cobra.Command{Use: "models", Short: "List what a server serves: base models, aliases, live adapters and saved ones", Args: cobra.NoArgs}
	conn := addConnection(c)
	asJSON := c.Flags().Bool("json", false, "print the server's answer as JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *asJSON {
			return conn.copyJSON(c.Context(), "/v1/models", c.OutOrStdout())
		}
		var answer struct {
			Data []struct {
				ID      string `json:"id"`
				Base    string `json:"base_model"`
				Run     string `json:"training_run_id"`
				Created int64  `json:"created"`
				Origin  origin `json:"origin"`

				UserMetadata map[string]any `json:"user_metadata"`
				naming
			} `json:"data"`
		}
		if err := conn.call(c.Context(), http.MethodGet, "/v1/models", nil, &answer); err != nil {
			return err
		}
		health := tellTroubles(c.Context(), conn, c.ErrOrStderr())
		w := shown{c.OutOrStdout()}
		for _, m := range answer.Data {
			kind := "base model"
			switch {
			case m.Run != "":
				kind = "adapter on " + m.Base + ", made " + since(time.Unix(m.Created, 0)) + " ago"
			case m.Base != "":
				kind = "alias of " + m.Base
			}
			fmt.Fprintf(w, "%s\n  %s\n", m.ID, kind)
			if text := health.products(m.ID); kind == "base model" && text != "" {
				fmt.Fprintf(w, "  %s\n", text)
			}
			m.Origin.tell(w, "imported")
			if text := m.text(); text != "" {
				fmt.Fprintf(w, "  %s\n", text)
			}
			if len(m.UserMetadata) > 0 {
				fmt.Fprintf(w, "  %s\n", named(m.UserMetadata, lineWidth-2))
			}
		}
		return nil
	}
	return c
}
