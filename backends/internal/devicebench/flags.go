package main

import (
	"flag"
	"path/filepath"
	"strings"
	"time"
)

// parse reads the command line.
func parse() (options, error) {
	o := options{Workloads: workloads, DriverVersion: "/proc/driver/nvidia/version", ToolFolders: []string{"/usr/local/cuda/bin"}, Root: "."}
	flag.StringVar(&o.Report, "report", "cudart/REPORT.md", "the report is written there, anew with everything that is found")
	flag.DurationVar(&o.Limit, "step-timeout", 15*time.Minute, "time for each step; one that takes longer is ended, and the next one begins")
	only := flag.String("only", "", "steps to run, by commas: "+strings.Join(names(steps(o.Workloads)), ", "))
	flag.StringVar(&o.Tests, "tests", "", "folder with test binaries (go test -c -o FOLDER/NAME.test PACKAGE), for a machine without Go")
	libraries := flag.String("libraries", "", "folders, by colons, that CUDA's libraries are looked for in first, as backend.cuda_libraries")
	flag.Parse()
	if *only != "" {
		o.Only = strings.Split(*only, ",")
	}
	return o, o.folders(*libraries)
}

// folders makes the paths absolute: steps run in other folders.
func (o *options) folders(libraries string) (err error) {
	for _, dir := range filepath.SplitList(libraries) {
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		o.Libraries = append(o.Libraries, dir)
	}
	if o.Tests != "" {
		o.Tests, err = filepath.Abs(o.Tests)
	}
	return err
}
