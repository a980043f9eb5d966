package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
)

// usageAnswer is what a server says about use.
type usageAnswer struct {
	Since string `json:"since"`
	Days  []struct {
		Date        string `json:"date"`
		Key         string `json:"key"`
		Model       string `json:"model"`
		Trained     int64  `json:"trained_tokens"`
		Sampled     int64  `json:"sampled_tokens"`
		Prompt      int64  `json:"prompt_tokens"`
		Cached      int64  `json:"cached_tokens"`
		Steps       int64  `json:"steps"`
		Requests    int64  `json:"requests"`
		Checkpoints int64  `json:"checkpoints"`
	} `json:"days"`
	Now []struct {
		Key     string  `json:"key"`
		Runs    int64   `json:"runs"`
		Samples int64   `json:"samples"`
		Trained int64   `json:"trained_tokens_of_this_minute"`
		Sampled int64   `json:"sampled_tokens_of_this_minute"`
		Bytes   int64   `json:"checkpoint_bytes"`
		Values  int64   `json:"metric_values"`
		Weight  float64 `json:"weight"`
		Limits  struct {
			Runs    *int64 `json:"runs"`
			Samples *int64 `json:"samples"`
			Trained *int64 `json:"trained_tokens_per_minute"`
			Sampled *int64 `json:"sampled_tokens_per_minute"`
			Bytes   *int64 `json:"checkpoint_bytes"`
			Values  *int64 `json:"metric_values"`
		} `json:"limits"`
	} `json:"now"`
}

func usageCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "usage", Short: "Show what keys have used, by day and model, and what they have now beside their limits", Args: cobra.NoArgs,
		Long: "Show trained and sampled tokens, prompt tokens (and how many of them were found in the cache), optimizer steps and requests by day (UTC), key and model, and what each key has now beside its limits. " +
			"A key sees its own name; an administrator's key, and everybody on a server without keys, sees all.",
	}
	conn := addConnection(c)
	days := c.Flags().Int("days", 30, "how many days, today among them")
	asJSON := c.Flags().Bool("json", false, "print the server's answer as JSON")
	c.RunE = func(c *cobra.Command, _ []string) error {
		var raw json.RawMessage
		if err := conn.call(c.Context(), http.MethodGet, "/api/v1/tinsmith/usage?days="+strconv.Itoa(*days), nil, &raw); err != nil {
			return err
		}
		if *asJSON {
			e := json.NewEncoder(c.OutOrStdout())
			e.SetIndent("", "  ")
			return e.Encode(raw)
		}
		var answer usageAnswer
		if err := json.Unmarshal(raw, &answer); err != nil {
			return fmt.Errorf("the server's answer: %w", err)
		}
		writeUsage(shown{c.OutOrStdout()}, answer)
		return nil
	}
	return c
}

func writeUsage(w io.Writer, answer usageAnswer) {
	const row = "%-10s  %-16s %11s %11s %11s %11s %7s %8s  %s\n"
	if len(answer.Days) == 0 {
		fmt.Fprintf(w, "nothing was used since %s\n", answer.Since)
	} else {
		fmt.Fprintf(w, row, "DAY", "KEY", "TRAINED", "SAMPLED", "PROMPT", "CACHED", "STEPS", "REQUESTS", "MODEL")
	}
	for _, d := range answer.Days {
		fmt.Fprintf(w, row, d.Date, printable(d.Key), wholeNumber(d.Trained), wholeNumber(d.Sampled), wholeNumber(d.Prompt), wholeNumber(d.Cached), wholeNumber(d.Steps), wholeNumber(d.Requests), printable(d.Model))
	}
	const now = "%-16s %11s %13s %20s %20s %22s %22s %7s\n"
	fmt.Fprintln(w)
	fmt.Fprintf(w, now, "NOW", "RUNS", "SAMPLES", "TRAINED/MIN", "SAMPLED/MIN", "CHECKPOINT MiB", "METRIC VALUES", "WEIGHT")
	for _, n := range answer.Now {
		fmt.Fprintf(w, now, printable(n.Key), beside(n.Runs, n.Limits.Runs), beside(n.Samples, n.Limits.Samples), beside(n.Trained, n.Limits.Trained), beside(n.Sampled, n.Limits.Sampled),
			beside(n.Bytes>>20, mebi(n.Limits.Bytes)), beside(n.Values, n.Limits.Values), strconv.FormatFloat(n.Weight, 'g', 4, 64))
	}
}

func wholeNumber(n int64) string { return strconv.FormatInt(n, 10) }

// beside writes what there is, and the limit behind it if there is one.
func beside(n int64, limit *int64) string {
	if limit == nil {
		return wholeNumber(n)
	}
	return wholeNumber(n) + " of " + wholeNumber(*limit)
}

func mebi(bytes *int64) *int64 {
	if bytes == nil {
		return nil
	}
	n := *bytes >> 20
	return &n
}
