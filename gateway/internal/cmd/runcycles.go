package cmd

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// shownCycles is how many operations the terminal shows the cycles of.
const shownCycles = 40

const cycleRow = "%10s  %-12s  %9s  %9s  %9s\n"

// showCycles lists the clock cycles in which a run's newest operations ran.
func showCycles(ctx context.Context, conn *connection, w io.Writer, id string, asJSON bool) error {
	path := fmt.Sprintf("/api/v1/tinsmith/runs/%s/cycles?operations=%d", url.PathEscape(strings.TrimPrefix(id, "tinker://")), shownCycles)
	if asJSON {
		return conn.copyJSON(ctx, path, w)
	}
	var answer struct {
		Cycles []struct {
			Cycle      int64     `json:"cycle"`
			Begin      time.Time `json:"begin"`
			End        time.Time `json:"end"`
			Sampling   float64   `json:"sampling_seconds"`
			Operations []struct {
				Kind   string  `json:"kind"`
				Queued float64 `json:"queue_seconds"`
				Tokens int64   `json:"tokens"`
				Failed bool    `json:"failed"`
			} `json:"operations"`
		} `json:"cycles"`
	}
	if err := conn.call(ctx, http.MethodGet, path, nil, &answer); err != nil {
		return err
	}
	w = shown{w}
	if len(answer.Cycles) == 0 {
		fmt.Fprintln(w, "no clock cycles: they are known of operations that have run, while their results are kept")
		return nil
	}
	fmt.Fprintf(w, cycleRow, "CYCLE", "BEGAN", "WAITED", "TOOK", "SAMPLING")
	for _, x := range answer.Cycles {
		waited, ran := 0.0, make([]string, len(x.Operations))
		for i, o := range x.Operations {
			waited = max(waited, o.Queued)
			ran[i] = o.Kind
			if o.Tokens > 0 {
				ran[i] += fmt.Sprintf(" of %d tokens", o.Tokens)
			}
			if o.Failed {
				ran[i] += ", failed"
			}
		}
		fmt.Fprintf(w, cycleRow, fmt.Sprint(x.Cycle), x.Begin.Local().Format("15:04:05.000"), seconds(waited), seconds(x.End.Sub(x.Begin).Seconds()), seconds(x.Sampling))
		fmt.Fprintf(w, "  %s\n", cut(strings.Join(ran, "; "), lineWidth-2))
	}
	return nil
}

func seconds(s float64) string {
	if s < 1 {
		return fmt.Sprintf("%.1f ms", 1000*s)
	}
	return fmt.Sprintf("%.2f s", s)
}
