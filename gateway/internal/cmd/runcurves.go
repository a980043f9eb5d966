package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// overview is a run as the server describes it.
type overview struct {
	ID          string         `json:"run_id"`
	Owner       string         `json:"owner"`
	Base        string         `json:"base_model"`
	Rank        int            `json:"rank"`
	State       string         `json:"state"`
	Reason      string         `json:"reason"`
	LastRequest time.Time      `json:"last_request_time"`
	Metadata    map[string]any `json:"user_metadata"`
	naming
	Series []struct {
		Name    string   `json:"name"`
		Source  string   `json:"source"`
		Step    int64    `json:"step"`
		Value   *float64 `json:"value"`
		Thinned int64    `json:"thinned"`
	} `json:"series"`
}

// naming is what people call a run.
type naming struct {
	DisplayName string `json:"display_name"`
	Recipe      string `json:"recipe"`
}

// text is the names in one line; "" if there are none.
func (n naming) text() string {
	var parts []string
	for _, part := range []string{n.DisplayName, n.Recipe} {
		if part != "" {
			parts = append(parts, strings.ReplaceAll(printable(part), "\n", " "))
		}
	}
	return cut(strings.Join(parts, ", "), lineWidth-2)
}

// cut shortens a text to so many characters.
func cut(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}

// newest finds the last value of a series that the server makes.
func (o *overview) newest(name string) (value *float64, step int64) {
	for _, s := range o.Series {
		if s.Name == name && s.Source == "server" {
			return s.Value, s.Step
		}
	}
	return nil, 0
}

// listAllRuns shows the runs that are live or were, newest first, at most a hundred.
func listAllRuns(ctx context.Context, conn *connection, w io.Writer, owners string, asJSON bool) error {
	path := "/api/v1/tinsmith/runs?state=all&limit=100&owners=" + owners
	if asJSON {
		return conn.copyJSON(ctx, path, w)
	}
	var answer struct {
		Runs   []overview
		Cursor struct {
			Total int `json:"total_count"`
		}
	}
	if err := conn.call(ctx, http.MethodGet, path, nil, &answer); err != nil {
		return err
	}
	w = shown{w}
	fmt.Fprintf(w, runRow, "RUN", "STEP", "LOSS", "STATE", "LAST")
	for _, o := range answer.Runs {
		loss, step := o.newest("loss")
		fmt.Fprintf(w, runRow, o.ID, fmt.Sprint(step), figure(loss), cut(o.State, 8), since(o.LastRequest))
		fmt.Fprintf(w, "  %s, rank %d%s\n", o.Base, o.Rank, prefixed(", of ", o.Owner, owners == "all"))
		if text := o.text(); text != "" {
			fmt.Fprintf(w, "  %s\n", text)
		}
		if len(o.Metadata) > 0 {
			fmt.Fprintf(w, "  %s\n", named(o.Metadata, lineWidth-2))
		}
	}
	if n := answer.Cursor.Total - len(answer.Runs); n > 0 {
		fmt.Fprintf(w, "and %d older ones\n", n)
	}
	return nil
}

func prefixed(prefix, text string, show bool) string {
	if !show {
		return ""
	}
	return prefix + text
}

// showRun draws the curves of one run; names = all that it has.
func showRun(ctx context.Context, conn *connection, w io.Writer, id string, names []string, asJSON bool) error {
	path := "/api/v1/tinsmith/runs/" + url.PathEscape(strings.TrimPrefix(id, "tinker://"))
	query := url.Values{"points": {"256"}}
	for _, name := range names {
		query.Add("name", name)
	}
	if asJSON {
		return conn.copyJSON(ctx, path+"/series?"+query.Encode(), w)
	}
	var o overview
	if err := conn.call(ctx, http.MethodGet, path, nil, &o); err != nil {
		return err
	}
	var answer struct {
		Series []struct {
			Name    string     `json:"name"`
			Source  string     `json:"source"`
			Steps   []int64    `json:"steps"`
			Values  []*float64 `json:"values"`
			Thinned int64      `json:"thinned"`
		} `json:"series"`
	}
	if err := conn.call(ctx, http.MethodGet, path+"/series?"+query.Encode(), nil, &answer); err != nil {
		return err
	}
	w = shown{w}
	fmt.Fprintf(w, "%s\n  %s, rank %d, %s%s\n", o.ID, o.Base, o.Rank, o.State, prefixed(": ", o.Reason, o.Reason != ""))
	if text := o.text(); text != "" {
		fmt.Fprintf(w, "  %s\n", text)
	}
	if len(o.Metadata) > 0 {
		fmt.Fprintf(w, "  %s\n", named(o.Metadata, lineWidth-2))
	}
	if len(answer.Series) == 0 {
		fmt.Fprintln(w, "  no series yet: they begin with the first optimizer step, or with `tinsmith metrics`")
	}
	for _, s := range answer.Series {
		last := "no number"
		if n := len(s.Values); n > 0 {
			last = figure(s.Values[n-1])
		}
		fmt.Fprintf(w, "\n%s: %s%s%s\n", cut(s.Name, lineWidth), last, prefixed(", from the client", "", s.Source == "client"), prefixed(fmt.Sprintf(", one step in %d is kept", s.Thinned), "", s.Thinned > 1))
		drawCurve(w, s.Steps, s.Values)
	}
	return nil
}

// copyJSON writes the answer to a request as it is, indented.
func (conn *connection) copyJSON(ctx context.Context, path string, w io.Writer) error {
	var answer any
	if err := conn.call(ctx, http.MethodGet, path, nil, &answer); err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(answer)
}
