package cmd

import (
	"bytes"
	"encoding/json"
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
