package cmd

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

func execute(t *testing.T, c *cobra.Command, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

// What the commands are asked for and cannot be is refused before anything is changed.
func TestRecoverRefuses(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s, err := store.Open(t.Context(), store.Options{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	stray := filepath.Join(data, "checkpoints", "a:train:0", "weights", "x~1")
	if err := os.MkdirAll(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		command func() *cobra.Command
		args    []string
		words   string
	}{
		{"no data directory", recoverCommand, nil, "config"},
		{"both", recoverCommand, []string{"--config", "x", "--data-dir", data}, "data-dir"},
		{"a data directory that is missing", recoverCommand, []string{"--data-dir", filepath.Join(data, "none")}, "data_dir"},
		{"a file", recoverCommand, []string{"--data-dir", filepath.Join(data, "lock")}, "not a directory"},
		{"in use", recoverCommand, []string{"--data-dir", data}, "stop it first"},
		{"a path without what", recoverCommand, []string{"--data-dir", data, "x"}, "--claim or --discard"},
		{"a path for both", recoverCommand, []string{"--data-dir", data, "--claim", "a", "--discard", "b", "x"}, "--claim or --discard"},
		{"backup of what is in use and does not answer", func() *cobra.Command { return backupCommand("v") }, []string{filepath.Join(t.TempDir(), "b"), "--data-dir", data}, "does not answer"},
		{"restore of nothing", restoreCommand, []string{t.TempDir(), "--data-dir", filepath.Join(t.TempDir(), "d")}, "is no backup"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if out, err := execute(t, c.command(), c.args...); err == nil || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v\n%s", err, out)
			}
		})
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--claim", "checkpoints/none"}, {"--discard", "checkpoints/a:train:0/weights/x~1"}, {"--discard", "unclaimed/../checkpoints"}, {"--discard", data}, {"--claim", "checkpoints/a:train:0/weights/x~1"}} {
		if out, err := execute(t, recoverCommand(), append(args, "--data-dir", data)...); err == nil {
			t.Errorf("%v: %s", args, out)
		}
	}
	if _, err := os.Stat(stray); err != nil {
		t.Error(err)
	}
	out, err := execute(t, recoverCommand(), "--data-dir", data, "--json", "--claim", "all")
	var report recoveryReport
	if err != nil || json.Unmarshal([]byte(out), &report) != nil || len(report.Items) != 1 || len(report.NotClaimed) != 1 || report.Items[0].Whole || !report.Opened {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = execute(t, recoverCommand(), "--data-dir", data)
	if err != nil || !strings.Contains(out, "weights/x~1") || !strings.Contains(out, "damaged") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A damaged row keeps nobody from what is beside it, and is given up when that is asked for: then a backup can be made again.
func TestRecoverAcceptsDamagedRows(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	s, err := store.Open(t.Context(), store.Options{Dir: data})
	if err != nil {
		t.Fatal(err)
	}
	one := store.Record{Collection: "checkpoints", Key: "tinker://a:train:0/weights/x", Value: []byte(`{"Path": "tinker://a:train:0/weights/x", "Dir": "checkpoints/a:train:0/weights/x~1"}`)}
	two := store.Record{Collection: "checkpoints", Key: "tinker://a:train:0/weights/y", Value: []byte(`{"Path": "tinker://a:train:0/weights/y", "Dir": "checkpoints/a:train:0/weights/y~1"}`)}
	if err := errors.Join(s.Commit(t.Context(), store.Batch{Put: []store.Record{one, two}}), s.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", filepath.Join(data, "tinsmith.db"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), "UPDATE tinsmith_records SET place = 7 WHERE id = ?", one.Key)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	read := func(args ...string) recoveryReport {
		t.Helper()
		out, err := execute(t, recoverCommand(), append(args, "--data-dir", data, "--json")...)
		var report recoveryReport
		if err != nil || json.Unmarshal([]byte(out), &report) != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return report
	}
	backUp := func() error {
		_, err := execute(t, backupCommand("v"), filepath.Join(t.TempDir(), "b"), "--data-dir", data)
		return err
	}
	if got := read(); !got.Opened || !strings.Contains(strings.Join(got.Findings, "\n"), one.Key) || len(got.Missing) != 1 || got.Missing[0].Name != two.Key {
		t.Errorf("%+v", got)
	}
	if err := backUp(); err == nil || !strings.Contains(err.Error(), one.Key) {
		t.Errorf("a backup of a damaged row: %v", err)
	}
	if got := read("--accept"); !strings.Contains(strings.Join(got.Findings, "\n"), one.Key) || len(got.Missing) != 1 {
		t.Errorf("%+v", got)
	}
	if got := read(); len(got.Findings) != 0 || len(got.Missing) != 1 {
		t.Errorf("it was not accepted: %+v", got)
	}
	if err := backUp(); err != nil {
		t.Error(err)
	}
}
