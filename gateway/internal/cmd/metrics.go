package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
)

// Bounds of what is read and sent at a time.
const (
	maxMetricsLine = 1 << 20
	metricsRows    = 500
	followEvery    = time.Second
)

func metricsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "metrics RUN FILE.jsonl",
		Short: "Send a program's own numbers to a run: the metrics.jsonl that tinker-cookbook writes",
		Long: "Send a program's own numbers to a run: the metrics.jsonl that tinker-cookbook writes.\n\n" +
			"Each line is a JSON object of names and numbers, with \"step\". What is no number is left out. A step that is sent again gets the newer values, so the same file can be sent twice.",
		Args: cobra.ExactArgs(2),
	}
	conn := addConnection(c)
	follow := c.Flags().Bool("follow", false, "go on with what is added to the file, and wait for it, until interrupted")
	c.RunE = func(c *cobra.Command, args []string) error {
		m := metricsFile{conn: conn, run: strings.TrimPrefix(args[0], "tinker://"), path: args[1], told: shown{c.ErrOrStderr()}}
		sent, err := m.send(c.Context(), *follow)
		fmt.Fprintf(shown{c.OutOrStdout()}, "%d lines sent\n", sent)
		if errors.Is(err, context.Canceled) && *follow { // which is how following ends
			return nil
		}
		return err
	}
	return c
}

// metricsFile is a file that is sent to a run.
type metricsFile struct {
	conn      *connection
	run, path string
	told      io.Writer
	step      int64           // of the last line
	leftOut   map[string]bool // names that the user was told of
	rows      []metricsRow
}

type metricsRow struct {
	Step   int64               `json:"step"`
	Values map[string]*float64 `json:"values"`
}

// send sends the lines of the file, with follow until ctx ends.
func (m *metricsFile) send(ctx context.Context, follow bool) (sent int, err error) {
	var rest []byte // of a line that is not whole yet
	offset := int64(0)
	for {
		more, err := m.read(&offset, &rest)
		if err != nil && (!follow || !errors.Is(err, os.ErrNotExist)) { // it may be made later
			return sent, err
		}
		if !more && !follow && len(rest) > 0 {
			m.line(rest)
			rest = nil
		}
		for len(m.rows) > 0 && (!more || len(m.rows) >= metricsRows) {
			n := min(len(m.rows), metricsRows)
			if err := m.post(ctx, m.rows[:n], follow); err != nil {
				return sent, err
			}
			sent, m.rows = sent+n, m.rows[n:]
		}
		if more {
			continue
		}
		if !follow {
			return sent, nil
		}
		if err := wait(ctx, followEvery); err != nil {
			return sent, err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// read takes the next part of the file, and tells whether there was one. A file that has become shorter is read anew.
func (m *metricsFile) read(offset *int64, rest *[]byte) (more bool, err error) {
	f, err := os.Open(m.path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if info.Size() < *offset {
		*offset, *rest = 0, nil
	}
	part := make([]byte, 256<<10)
	n, err := f.ReadAt(part, *offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	*offset += int64(n)
	*rest = append(*rest, part[:n]...)
	for {
		end := bytes.IndexByte(*rest, '\n')
		if end < 0 {
			break
		}
		m.line((*rest)[:end])
		*rest = (*rest)[end+1:]
	}
	if len(*rest) > maxMetricsLine {
		return false, fmt.Errorf("%s: a line has more than %d bytes", m.path, maxMetricsLine)
	}
	return n > 0, nil
}

// line takes one line; what cannot be sent of it is told.
func (m *metricsFile) line(text []byte) {
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(withoutNaN(text), &values); err != nil {
		fmt.Fprintf(m.told, "a line is left out: %v: %s\n", err, history.Quote(string(text)))
		return
	}
	if raw, ok := values["step"]; ok {
		var step float64
		if json.Unmarshal(raw, &step) != nil || step < 0 || step != math.Trunc(step) || step > 1<<53 {
			fmt.Fprintf(m.told, "a line is left out: step %s must be a whole number of at least 0\n", history.Quote(string(raw)))
			return
		}
		m.step = int64(step)
		delete(values, "step")
	}
	row := metricsRow{m.step, map[string]*float64{}} // a summary has no step: it is of the last one
	for name, raw := range values {
		var v *float64
		err := history.CheckName(name)
		if err == nil {
			if err = json.Unmarshal(raw, &v); err != nil {
				err = fmt.Errorf("%s is no number", history.Quote(name))
			}
		}
		if err == nil && len(row.Values) >= history.MaxNames {
			err = fmt.Errorf("%s is one name too many, %d are allowed", history.Quote(name), history.MaxNames)
		}
		if err != nil {
			m.leave(name, err)
			continue
		}
		row.Values[name] = v
	}
	if len(row.Values) > 0 {
		m.rows = append(m.rows, row)
	}
}

// leave tells once of a name that is left out.
func (m *metricsFile) leave(name string, why error) {
	name = name[:min(len(name), history.MaxName)]
	if m.leftOut == nil {
		m.leftOut = map[string]bool{}
	}
	if !m.leftOut[name] && len(m.leftOut) < 100 {
		m.leftOut[name] = true
		fmt.Fprintf(m.told, "left out: %v\n", why)
	}
}

// post sends rows. Who follows waits for a server that does not take them now.
func (m *metricsFile) post(ctx context.Context, rows []metricsRow, patient bool) error {
	body, err := json.Marshal(map[string]any{"rows": rows})
	if err != nil {
		return err
	}
	for attempt := 0; ; attempt++ {
		var answer struct {
			PassedOver int `json:"values_passed_over"`
		}
		err := m.conn.call(ctx, http.MethodPost, "/api/v1/tinsmith/runs/"+url.PathEscape(m.run)+"/metrics", bytes.NewReader(body), &answer)
		if err == nil {
			if answer.PassedOver > 0 {
				fmt.Fprintf(m.told, "the server passed over %d values: a run has at most %d names, and steps that were thinned out are not added again\n", answer.PassedOver, history.MaxNames)
			}
			return nil
		}
		var bad *badAnswer
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !patient || errors.As(err, &bad) && bad.status < 500 && bad.status != http.StatusTooManyRequests {
			return err
		}
		if attempt == 0 {
			fmt.Fprintf(m.told, "the server does not take the numbers now, and is asked again: %v\n", err)
		}
		if err := wait(ctx, min(time.Second<<min(attempt, 5), 30*time.Second)); err != nil {
			return err
		}
	}
}

// withoutNaN writes null for the words that Python's json has for numbers that are none, outside of texts.
func withoutNaN(line []byte) []byte {
	if !bytes.Contains(line, []byte("NaN")) && !bytes.Contains(line, []byte("Infinity")) {
		return line
	}
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case '"':
			end := i + 1
			for end < len(line) && line[end] != '"' {
				if line[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(line))
			out = append(out, line[i:end]...)
			i = end - 1
		case 'N', 'I', '-':
			word := ""
			for _, w := range []string{"NaN", "Infinity", "-Infinity"} {
				if bytes.HasPrefix(line[i:], []byte(w)) {
					word = w
				}
			}
			if word == "" {
				out = append(out, c)
				continue
			}
			out = append(out, "null"...)
			i += len(word) - 1
		default:
			out = append(out, c)
		}
	}
	return out
}
