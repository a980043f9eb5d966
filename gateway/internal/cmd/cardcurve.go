package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// cardPoints is how many points of a loss's curve a card has at most: the first, the last, and some between them.
const cardPoints = 7

// curve is a series as the server gives it.
type curve struct {
	Name   string     `json:"name"`
	Source string     `json:"source"`
	Steps  []int64    `json:"steps"`
	Values []*float64 `json:"values"`
}

// lossRow is one row of a card's table.
type lossRow struct {
	step   int64
	losses map[string]float64 // by the name of the series
}

var lossSeries = []struct{ name, title string }{{"loss", "loss per token"}, {"validation/loss", "validation loss per token"}}

// losses asks for the run's curves of the loss, up to a step; nothing where the server has none of it, as of an import, or is older than its curves.
func (e *exporting) losses(ctx context.Context) ([]lossRow, error) {
	run, _, _ := strings.Cut(strings.TrimPrefix(e.path, "tinker://"), "/")
	last, err := strconv.ParseInt(e.step, 10, 64)
	if run == "" || err != nil {
		return nil, nil
	}
	query := url.Values{"points": {"1000"}}
	for _, s := range lossSeries {
		query.Add("name", s.name)
	}
	res, err := e.ask(ctx, http.MethodGet, "/api/v1/tinsmith/runs/"+url.PathEscape(run)+"/series?"+query.Encode(), nil, "")
	if err != nil {
		return nil, fmt.Errorf("read the run's losses: %w", err)
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, nil
	default:
		return nil, fmt.Errorf("read the run's losses: the server answered %s", res.Status)
	}
	var answer struct {
		Series []curve `json:"series"`
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(&answer); err != nil {
		return nil, fmt.Errorf("read the run's losses: %w", err)
	}
	return lossTable(answer.Series, last), nil
}

// lossTable chooses points of the training loss, evenly over its steps up to the last, and of the validation loss what was known at each of them.
func lossTable(series []curve, last int64) []lossRow {
	var steps []int64
	known := map[string]map[int64]float64{}
	for _, c := range series {
		if c.Source != "server" || len(c.Steps) != len(c.Values) {
			continue
		}
		values := map[int64]float64{}
		for i, step := range c.Steps {
			if v := c.Values[i]; v != nil && step <= last {
				values[step] = *v
				if c.Name == lossSeries[0].name {
					steps = append(steps, step)
				}
			}
		}
		known[c.Name] = values
	}
	var rows []lossRow
	n := min(len(steps), cardPoints)
	for i := range n {
		step := steps[i*(len(steps)-1)/max(n-1, 1)]
		row := lossRow{step, map[string]float64{}}
		for _, s := range lossSeries {
			if v, ok := newestUpTo(known[s.name], step); ok {
				row.losses[s.name] = v
			}
		}
		rows = append(rows, row)
	}
	return rows
}

func newestUpTo(values map[int64]float64, step int64) (v float64, ok bool) {
	best := int64(-1)
	for at, x := range values {
		if at <= step && at > best {
			best, v, ok = at, x, true
		}
	}
	return v, ok
}

// writeLosses writes the table of a card; nothing for no rows.
func writeLosses(w io.Writer, rows []lossRow) {
	if len(rows) == 0 {
		return
	}
	validated := false
	for _, row := range rows {
		_, one := row.losses[lossSeries[1].name]
		validated = validated || one
	}
	columns := lossSeries[:1]
	if validated {
		columns = lossSeries
	}
	fmt.Fprint(w, "\nHow the loss went:\n\n| step |")
	for _, c := range columns {
		fmt.Fprintf(w, " %s |", c.title)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("---|", len(columns)))
	for _, row := range rows {
		fmt.Fprintf(w, "| %d |", row.step)
		for _, c := range columns {
			if v, ok := row.losses[c.name]; ok {
				fmt.Fprintf(w, " %s |", figure(&v))
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
}
