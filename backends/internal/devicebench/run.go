package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// options say what a run does, and where.
type options struct {
	Report        string        // the report's file
	Limit         time.Duration // of each step
	Only          []string      // names or groups of steps; none: all
	Tests         string        // folder of test binaries, or ""
	Libraries     []string      // folders
	Workloads     []workload
	DriverVersion string   // the file in which NVIDIA's driver says its version
	ToolFolders   []string // that tools are looked for in after PATH
	Root          string   // the repository's
	Work          string   // models are kept there between runs; "": in a folder of its own, which goes
	Kernels       bool     // times by kernel are measured
	Predict       *prediction
}

// run does everything and writes the report, after everything that is found, also of a device that fails; the error then says so.
func (o options) run(ctx context.Context) (err error) {
	chosen, left, err := choose(steps(o.Workloads), o.Only)
	if err != nil {
		return err
	}
	r := report{Time: time.Now().UTC(), Left: left}
	if err := (job{Kind: "facts", Libraries: o.Libraries}).run(ctx, o.Limit, func(m message) {
		if m.Facts != nil {
			r.Facts = *m.Facts
		}
	}); err != nil {
		return fmt.Errorf("there is no GPU to measure: %w", err)
	}
	r.Facts.Kernel = driverVersion(o.DriverVersion)
	for _, s := range chosen {
		r.Pending = append(r.Pending, s.Name)
	}
	work := o.Work
	if work == "" {
		if work, err = os.MkdirTemp("", "devicebench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	} else if err := os.MkdirAll(work, 0o700); err != nil {
		return err
	}
	var unwritten error
	keep := func() { unwritten = transfer.WriteFile(o.Report, []byte(r.markdown()), 0o644) }
	if keep(); unwritten != nil {
		return unwritten // before hours are spent
	}
	if slices.ContainsFunc(chosen, func(s step) bool { return s.Kind == "speed" }) {
		if err := (job{Kind: "copies", Libraries: o.Libraries}).run(ctx, o.Limit, func(m message) { r.Facts.Copies = max(r.Facts.Copies, m.Copies) }); err != nil {
			r.note(&note{"warn", "the speed of a copy is not known: " + err.Error()})
		}
	}
	for i, s := range chosen {
		fmt.Println("==", s.Name)
		r.step(ctx, o, s, work, keep)
		if ctx.Err() != nil {
			keep()
			return errors.Join(fmt.Errorf("%w: %s has what was found until then", ctx.Err(), o.Report), unwritten)
		}
		r.Pending = r.Pending[1:]
		if w := s.Workload; w != nil && o.Work == "" && !uses(chosen[i+1:], w) { // its files are large
			_ = os.RemoveAll(filepath.Join(work, w.Name)) // tried again at the end
		}
		keep()
	}
	fmt.Print(r.markdown())
	if n := r.failures(); n > 0 {
		return errors.Join(fmt.Errorf("%d failures, see %s", n, o.Report), unwritten)
	}
	return unwritten
}

// uses tells whether there is a step of a workload.
func uses(steps []step, w *workload) bool {
	for _, s := range steps {
		if s.Workload != nil && s.Workload.Name == w.Name {
			return true
		}
	}
	return false
}

// step runs one and calls keep with each of its results.
func (r *report) step(ctx context.Context, o options, s step, work string, keep func()) {
	if s.Suite != nil {
		found := o.suite(ctx, *s.Suite, work)
		if ctx.Err() == nil {
			r.Suites = append(r.Suites, found)
		}
		return
	}
	j := job{Kind: s.Kind, Workload: *s.Workload, Dir: filepath.Join(work, s.Workload.Name), Facts: r.Facts, Libraries: o.Libraries, Kernels: o.Kernels}
	err := j.run(ctx, o.Limit, func(m message) {
		r.note(m.Note)
		if m.Result != nil {
			r.Results = append(r.Results, *m.Result)
			keep()
		}
	})
	if err != nil && ctx.Err() == nil {
		r.Results = append(r.Results, result{Shape: s.Workload.Shape.Name, What: s.Kind + ": what follows", Failure: err.Error()})
	}
}
