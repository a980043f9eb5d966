package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// suite is tests of a package that use a device where there is one.
type suite struct {
	Name, What   string
	Package, Run string // below the repository's root; the tests
	Tool         string // a program that they run under; "" = none
}

// outcome is how a suite ended.
type outcome struct {
	What, Failure, Skipped string
	Time                   time.Duration
}

const sanitizer = "compute-sanitizer"

// suites are the tests that use a device where there is one.
var suites = []suite{
	{Name: "operations", What: "every operation against its float64 reference, rows alone and in a crowd, ragged lengths", Package: "backends/internal/tensor/cuda", Run: "OnDevice$"},
	{Name: "models", What: "whole models against transformers and PEFT: log-probabilities, gradients, fifty steps, the sampler's bits against the trainer's, bits however work is cut", Package: "backends/internal/model", Run: "TestCUDADevice$"},
	{Name: "contract", What: "what every backend must do, plugintest, by the engine: one device, and two ranks on one as copies and as a cut model", Package: "backends/internal/engine", Run: "TestContractOnDevice$"},
	{Name: "sanitizer", What: sanitizer + " over every operation", Package: "backends/internal/tensor/cuda", Run: "OnDevice$", Tool: sanitizer},
}

// A test that was skipped found no device after all; one within another says why itself.
var (
	skipped    = regexp.MustCompile(`(?m)^\s*--- SKIP: (.*)$`)
	skippedAll = regexp.MustCompile(`(?m)^--- SKIP: (.*)$`)
)

// notHere are answers of compute-sanitizer about the machine, not the program.
var notHere = regexp.MustCompile(`(?i)[^\n]*(device not supported|terminated before first instrumented API call|unable to find injection library)[^\n]*`)

// missing is why a suite cannot be run here.
type missing struct{ why string }

func (m missing) Error() string { return m.why }

// suite runs one. The suite's package is compiled into the folder work if there is no test binary of it yet.
func (o options) suite(ctx context.Context, s suite, work string) (r outcome) {
	begin := time.Now()
	r.What = s.What
	defer func() { r.Time = time.Since(begin) }()
	out, err := o.try(ctx, s, work, begin)
	var m missing
	switch {
	case errors.As(err, &m):
		r.Skipped = m.why
	case err != nil:
		r.Failure = err.Error()
	case s.Tool != "":
		if found := skippedAll.FindStringSubmatch(out); found != nil {
			r.Skipped = found[1] + " was skipped under " + s.Tool
		}
	default:
		if found := skipped.FindStringSubmatch(out); found != nil {
			r.Failure = found[1] + " was skipped"
		}
	}
	return r
}

// try gives the tests' output.
func (o options) try(ctx context.Context, s suite, work string, begin time.Time) (string, error) {
	dir := filepath.Join(o.Root, filepath.FromSlash(s.Package))
	if _, err := os.Stat(dir); err != nil {
		return "", missing{fmt.Sprintf("the tests' folder is not here: %v", err)}
	}
	var tool []string
	if s.Tool != "" {
		at, err := o.tool(ctx, s.Tool, begin)
		if err != nil {
			return "", err
		}
		tool = []string{at, "--error-exitcode", "1"}
	}
	binary, err := o.binary(ctx, s.Package, work, begin)
	if err != nil {
		return "", err
	}
	arguments := append(tool, binary, "-test.v", "-test.count=1", "-test.timeout=0", "-test.run", s.Run)
	out, err := o.command(ctx, begin, dir, arguments...)
	if err != nil && s.Tool != "" && !errors.Is(err, errTime) {
		if found := notHere.FindString(out); found != "" {
			return "", missing{strings.TrimSpace(found)}
		}
	}
	return out, err
}

// command runs one in a folder, until the step's time is up. The error has the command and what it said.
func (o options) command(ctx context.Context, begin time.Time, dir string, arguments ...string) (string, error) {
	cmd := exec.Command(arguments[0], arguments[1:]...) //nolint:noctx // finish ends it
	cmd.Dir = dir
	if len(o.Libraries) > 0 { // tests ask for devices without folders
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(append(o.Libraries[:len(o.Libraries):len(o.Libraries)], filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...), ":"))
	}
	var out bytes.Buffer
	err := finish(ctx, cmd, begin, o.Limit, &out)
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(arguments, " "), err, excerpt(strings.TrimSpace(out.String())))
	}
	return out.String(), err
}

// binary finds a package's tests in the folder of those compiled before, else compiles them, where there is Go.
func (o options) binary(ctx context.Context, of, work string, begin time.Time) (string, error) {
	name := path.Base(of) + ".test"
	why := "no folder of test binaries is given (-tests)"
	if o.Tests != "" {
		at := filepath.Join(o.Tests, name)
		_, err := os.Stat(at)
		if err == nil {
			return at, nil
		}
		why = err.Error()
	}
	program, err := exec.LookPath("go")
	if err != nil {
		return "", missing{fmt.Sprintf("there is no Go here to compile the tests, and %s", why)}
	}
	at := filepath.Join(work, name)
	if _, err := os.Stat(at); err == nil {
		return at, nil
	}
	_, err = o.command(ctx, begin, o.Root, program, "test", "-c", "-o", at, "./"+of)
	return at, err
}

// tool finds a program and sees whether it works on this machine, with one that only uses a device: where a device is shared out, or its driver is another, compute-sanitizer does not. (It also refuses programs that use none.)
func (o options) tool(ctx context.Context, name string, begin time.Time) (string, error) {
	at, err := exec.LookPath(name)
	for i := 0; err != nil && i < len(o.ToolFolders); i++ {
		at, err = exec.LookPath(filepath.Join(o.ToolFolders[i], name))
	}
	if err != nil {
		return "", missing{fmt.Sprintf("%s is not installed: it is not in PATH or %s", name, strings.Join(o.ToolFolders, ", "))}
	}
	cmd, err := job{Kind: "touch", Libraries: o.Libraries}.command()
	if err != nil {
		return "", err
	}
	cmd.Path, cmd.Args = at, append([]string{at, "--error-exitcode", "1"}, cmd.Args...)
	l := &listener{heard: func(message) {}}
	switch err := finish(ctx, cmd, begin, o.Limit, l); {
	case notHere.MatchString(l.rest.String()):
		return "", missing{fmt.Sprintf("%s does not work here: %s", at, strings.TrimSpace(notHere.FindString(l.rest.String())))}
	case err != nil || l.failure != "" || !l.done:
		return "", missing{fmt.Sprintf("%s does not work here: a program that multiplies two matrices under it: %v: %s", at, err, excerpt(strings.TrimSpace(l.failure+" "+l.rest.String())))}
	}
	return at, nil
}
