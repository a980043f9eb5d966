package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// suite is tests that run as commands.
type suite struct {
	What     string
	Commands [][]string
	Needs    string // a program without which it is not run; "" = none
	Folder   string // a temporary one that goes with it
}

// outcome is how a suite ended.
type outcome struct {
	What, Failure, Skipped string
	Time                   time.Duration
}

// suites are the tests that use a device where there is one.
func suites() []suite {
	const operations = "./backends/internal/tensor/cuda"
	dir, err := os.MkdirTemp("", "devicebench-")
	if err != nil {
		dir = "." // the command that cannot write there says so
	}
	program := filepath.Join(dir, "cuda.test")
	return []suite{
		{What: "every operation against its float64 reference, rows alone and in a crowd, ragged lengths", Commands: [][]string{{"go", "test", "-count=1", "-v", "-timeout", "60m", "-run", "OnDevice$", operations}}},
		{What: "whole models against transformers and PEFT: log-probabilities, gradients, fifty steps, the sampler's bits against the trainer's, bits however work is cut", Commands: [][]string{{"go", "test", "-count=1", "-v", "-timeout", "60m", "-run", "TestCUDADevice$", "./backends/internal/model"}}},
		{What: "what every backend must do, plugintest, by the engine", Commands: [][]string{{"go", "test", "-count=1", "-v", "-timeout", "60m", "-run", "TestContractOnDevice$", "./backends/internal/engine"}}},
		{What: "compute-sanitizer over every operation", Needs: "compute-sanitizer", Folder: dir, Commands: [][]string{
			{"go", "test", "-c", "-o", program, operations},
			{"compute-sanitizer", "--error-exitcode", "1", program, "-test.v", "-test.run", "OnDevice$"},
		}},
	}
}

// skipped finds the line of a test that found no device after all.
var skipped = regexp.MustCompile(`(?m)^\s*--- SKIP: (.*)$`)

func (s suite) run(ctx context.Context) (o outcome) {
	begin := time.Now()
	o.What = s.What
	defer func() { o.Time = time.Since(begin) }()
	if s.Folder != "" && s.Folder != "." {
		defer func() { _ = os.RemoveAll(s.Folder) }() // what is left lies in the temporary folder
	}
	if s.Needs != "" {
		if _, err := exec.LookPath(s.Needs); err != nil {
			o.Skipped = s.Needs + " is not installed"
			return o
		}
	}
	for _, c := range s.Commands {
		out, err := exec.CommandContext(ctx, c[0], c[1:]...).CombinedOutput()
		if err != nil {
			text := strings.TrimSpace(string(out))
			o.Failure = strings.Join(c, " ") + ": " + err.Error() + ": " + text[max(0, len(text)-2000):]
			return o
		}
		if found := skipped.FindSubmatch(out); found != nil {
			o.Failure = string(found[1]) + " was skipped"
			return o
		}
	}
	return o
}
