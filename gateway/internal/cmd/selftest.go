package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/gateway/internal/hub"
	"github.com/tinsmith/tinsmith/gateway/internal/selftest"
)

func selftestCommand(version string) *cobra.Command {
	c := &cobra.Command{
		Use: "selftest", Short: "Show on this machine what the README promises: order, accumulation, neighbours, sampler and trainer, kills, export and import", Args: cobra.NoArgs,
		Long: `Start a server of its own with the model and its backend section, ask it for the same work in two ways, and compare the answers, bit for bit where equal bits are promised.

Records are kept in a temporary folder, and the address is a free port on loopback: what a running server has is not touched. The model is loaded once more, though, and takes its memory
a second time. Without --config and --model the built-in model is tested. The exit status is 1 when something differs.`,
	}
	var file, model, reference, markdown string
	var asJSON, write, replace bool
	var readyWithin time.Duration
	flags := c.Flags()
	flags.StringVar(&file, "config", "", "configuration with the model and its backend section")
	flags.StringVar(&model, "model", "", "a model of the configuration, by name; without one: a directory, a name in the Hugging Face cache, or hf://org/name[@revision]")
	flags.StringVar(&reference, "reference", "", "file of reference log-probabilities (default: "+selftest.ReferenceFile+" in the model's directory, if it is there)")
	flags.BoolVar(&write, "write-reference", false, "write the reference file from what the base model says here, and check nothing")
	flags.BoolVar(&replace, "replace", false, "with --write-reference: replace a file that is there")
	flags.StringVar(&markdown, "markdown", "", "write the report to this file too, as Markdown")
	flags.BoolVar(&asJSON, "json", false, "print the report as JSON")
	flags.DurationVar(&readyWithin, "ready-within", 30*time.Minute, "how long the model may take to be loaded, also after each of the two kills")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if replace && !write {
			return errors.New("--replace needs --write-reference")
		}
		if write && (asJSON || markdown != "") {
			return errors.New("--write-reference makes no report: leave out --json and --markdown")
		}
		settings, m, err := selftestConfig(file, model)
		if err != nil {
			return err
		}
		s := &selfTest{Report: selftest.NewReport(version), model: m, settings: settings, readyWithin: readyWithin, progress: func(string) {}}
		s.Report.Model, s.Report.Path, s.Report.Backend = m.Name, m.Path, string(m.Backend)
		messages := shown{c.ErrOrStderr()}
		s.progress = func(text string) { fmt.Fprint(messages, text) }
		if err := s.find(c.Context(), reference, write); err != nil {
			return err
		}
		if write {
			if err := s.write(c.Context(), replace); err != nil {
				return err
			}
			_, err = fmt.Fprintf(shown{c.OutOrStdout()}, "written: %s\n", s.file)
			return err
		}
		if err := s.run(c.Context()); err != nil {
			return err
		}
		if markdown != "" {
			if err := os.WriteFile(markdown, []byte(s.Markdown()), 0o666); err != nil { //nolint:gosec // a report is for everybody that the user's umask lets
				return err
			}
		}
		w := shown{c.OutOrStdout()}
		if asJSON {
			e := json.NewEncoder(w)
			e.SetIndent("", "  ")
			err = e.Encode(s.Report)
		} else {
			_, err = fmt.Fprint(w, s.Text())
		}
		return errors.Join(err, s.Err())
	}
	return c
}

// selfTest is one call of the command.
type selfTest struct {
	*selftest.Report
	model       config.Model
	settings    map[string]any
	readyWithin time.Duration
	progress    func(what string)

	file      string              // where the reference is, or is to be
	reference *selftest.Reference // nil: there is none
}

// selftestConfig gives the configuration of the server under test, but for its address and folder, and the model.
func selftestConfig(file, name string) (map[string]any, config.Model, error) {
	var m config.Model
	builtIn := ""
	if file == "" {
		if programs, err := pluginDir(); err == nil {
			builtIn = filepath.Join(filepath.Dir(filepath.Dir(programs)), "configs", "default.yaml")
		}
	}
	cfg := config.Default()
	var err error
	switch {
	case file != "":
		cfg, err = config.LoadUnchecked(file)
	case name == "":
		if cfg, err = config.LoadUnchecked(builtIn); err != nil {
			err = fmt.Errorf("the built-in model is not beside this program: name a model with --model or --config (%w)", err)
		}
	default:
		// The built-in model has a name too.
		if known, loadErr := config.LoadUnchecked(builtIn); loadErr == nil && slices.ContainsFunc(known.Models, func(m config.Model) bool { return m.Name == name }) {
			cfg = known
		} else {
			cfg, err = serveConfig("", name, "")
			name = ""
		}
	}
	if err != nil {
		return nil, m, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, m, err
	}
	var names []string
	found := -1
	for i, one := range cfg.Models {
		names = append(names, one.Name)
		if name != "" && (one.Name == name || one.Path == name || slices.Contains(one.Aliases, name)) {
			found = i
		}
	}
	switch {
	case name != "" && found < 0:
		return nil, m, fmt.Errorf("%s has no model %q; it has %s", cfg.File, name, strings.Join(names, ", "))
	case name == "" && len(cfg.Models) != 1:
		return nil, m, fmt.Errorf("%s has %d models; choose one with --model: %s", cfg.File, len(cfg.Models), strings.Join(names, ", "))
	case name == "":
		found = 0
	}
	m = cfg.Models[found]
	if m.Remote != nil {
		return nil, m, fmt.Errorf("%s: %w", m.Name, errElsewhere)
	}
	entry := map[string]any{"name": m.Name, "path": m.Path, "backend": m.Backend}
	if m.ToolFormat != "" {
		entry["tool_format"] = m.ToolFormat
	}
	return map[string]any{
		"models":   []any{entry},
		"backends": map[string]any{"progress_timeout": cfg.Backends.ProgressTimeout.String()},
		"sampling": map[string]any{"share_prefixes": cfg.Sampling.SharePrefixes},
		"training": map[string]any{"gap_wait": "1m"}, // operations in reverse order come as fast as this machine sends them
		"sessions": map[string]any{"expire_after": "1h"},
	}, m, nil
}

// find looks for the model's directory and the reference in it.
func (s *selfTest) find(ctx context.Context, file string, write bool) error {
	dir, err := hub.Find(ctx, s.model.Path)
	if err != nil {
		return err
	}
	s.file = file
	switch {
	case file != "":
	case dir != "":
		s.file = filepath.Join(dir, selftest.ReferenceFile)
	case write:
		return fmt.Errorf("%s is not on this machine yet; name the file with --reference", s.model.Path)
	default:
		return nil // the server downloads the model; a reference that comes along is for the next time
	}
	if write {
		return nil
	}
	if s.reference, err = selftest.ReadReference(s.file); errors.Is(err, fs.ErrNotExist) && file == "" {
		err = nil
	}
	return err
}

// with starts a server, has use it, and ends it.
func (s *selfTest) with(ctx context.Context, use func(o selftest.Options) error) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tinsmith-selftest-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s.progress("starting a server with " + s.model.Name + " …\n")
	begun := time.Now()
	server, err := selftest.Start(ctx, program, dir, s.settings, s.readyWithin)
	if err != nil {
		return err
	}
	defer server.Stop()
	s.StartSeconds = time.Since(begun).Seconds()
	return use(selftest.Options{Server: server, Model: s.model.Name, Dir: dir, Patience: s.readyWithin, Reference: s.reference,
		Progress: func(name string) { s.progress(name + " … ") },
		Done:     func(c *selftest.Check) { s.progress(fmt.Sprintf("%s, %.1f s\n", c.Result, c.Seconds)) },
	})
}

func (s *selfTest) run(ctx context.Context) error {
	return s.with(ctx, func(o selftest.Options) error {
		checks, state, err := selftest.Run(ctx, o)
		if err == nil {
			s.Fill(checks, state)
		}
		return err
	})
}

func (s *selfTest) write(ctx context.Context, replace bool) error {
	return s.with(ctx, func(o selftest.Options) error {
		r, err := selftest.MakeReference(ctx, o)
		if err != nil {
			return err
		}
		return r.Write(s.file, replace)
	})
}
