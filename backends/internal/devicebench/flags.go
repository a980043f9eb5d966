package main

import (
	"flag"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// parse reads the command line.
func parse() (options, error) {
	o := options{Workloads: workloads, DriverVersion: "/proc/driver/nvidia/version", ToolFolders: []string{"/usr/local/cuda/bin"}, Root: "."}
	flag.StringVar(&o.Report, "report", "cudart/REPORT.md", "the report is written there, anew with everything that is found")
	flag.DurationVar(&o.Limit, "step-timeout", 15*time.Minute, "time for each step; one that takes longer is ended, and the next one begins")
	only := flag.String("only", "", "steps to run, by commas: "+strings.Join(names(steps(o.Workloads)), ", "))
	flag.StringVar(&o.Tests, "tests", "", "folder with test binaries (go test -c -o FOLDER/NAME.test PACKAGE), for a machine without Go")
	flag.StringVar(&o.Work, "work", "", "folder in which models are kept between runs (46 GB for all); without, each run writes its own")
	flag.BoolVar(&o.Kernels, "kernels", false, "also time every kernel, in the steps of speed")
	p := prediction{}
	predict := flag.Bool("predict", false, "run nothing: print what launches of a training pass and of a decoding step have of operations and bytes, and the time that is expected of them, and end; needs no GPU")
	flag.StringVar(&p.Model, "model", "", "with -predict: a folder that has a config.json, or one of "+strings.Join(predictedNames(), ", ")+"; without, the section of the report with all of them")
	flag.StringVar(&p.Device, "device", "H200", "with -predict: one of "+strings.Join(cudart.AbsentGPUs(), ", "))
	flag.IntVar(&p.Sequences, "sequences", 1, "with -predict: of a training pass")
	flag.IntVar(&p.Length, "length", 4096, "with -predict: of each, in tokens")
	flag.IntVar(&p.Streams, "streams", 64, "with -predict: sequences that are decoded at once")
	flag.IntVar(&p.Context, "context", 512, "with -predict: tokens before them")
	flag.IntVar(&p.Rank, "rank", 32, "with -predict: of the adapter")
	flag.BoolVar(&p.Recompute, "recompute", false, "with -predict: activations are computed again for the way back")
	flag.StringVar(&p.Attention, "attention", "", "with -predict: "+cuda.AttentionWarpgroups+", as backend.attention")
	flag.StringVar(&p.Gradients, "adapter-gradients", "", "with -predict: "+cuda.GradientsTensorCores+", as backend.adapter_gradients")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "%s\nFlags:\n", firstHalfHour)
		flag.PrintDefaults()
	}
	libraries := flag.String("libraries", "", "folders, by colons, that CUDA's libraries are looked for in first, as backend.cuda_libraries")
	flag.Parse()
	if *predict {
		if flag.NArg() > 0 {
			return o, fmt.Errorf("-predict: unknown argument %q", flag.Arg(0))
		}
		o.Predict = &p
		return o, p.check()
	}
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
		if o.Tests, err = filepath.Abs(o.Tests); err != nil {
			return err
		}
	}
	if o.Work != "" {
		o.Work, err = filepath.Abs(o.Work)
	}
	return err
}
