package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// facts are what a report's figures were measured with.
type facts struct {
	Devices  []cudart.Information
	Kernel   string  // the version of NVIDIA's driver in the kernel
	Driver   string  // the newest CUDA that the driver supports, and where it was found
	NCCL     string  // version and place, or why there is none
	CuBLASLt string  // those of cuBLASLt
	Copies   float64 // GB/s that a copy has on the first device; 0: not measured
}

// noLibrary is what facts say of a library that was not found, before the reason.
const noLibrary = "none: "

// gather asks the driver. The libraries are looked for in the given folders before the system's.
func gather(libraries []string) (facts, error) {
	var f facts
	d, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return f, err
	}
	defer d.Close()
	n, err := d.Devices()
	if err != nil {
		return f, err
	}
	if n == 0 {
		return f, fmt.Errorf("the driver %s has no devices", d.Path())
	}
	for i := range n {
		info, err := d.Information(i)
		if err != nil {
			return f, err
		}
		f.Devices = append(f.Devices, info)
	}
	f.Driver = fmt.Sprintf("CUDA %d.%d (%s)", d.Version()/1000, d.Version()%1000/10, d.Path())
	if library, err := d.OpenCuBLASLt(cudart.Options{Directories: libraries}); err != nil {
		f.CuBLASLt = noLibrary + err.Error()
	} else {
		f.CuBLASLt = fmt.Sprintf("%s (%s)", library.Version(), library.Path())
		library.Close()
	}
	nccl, err := cudart.OpenNCCL(cudart.Options{Directories: libraries})
	if err != nil {
		f.NCCL = noLibrary + err.Error()
		return f, nil
	}
	f.NCCL = fmt.Sprintf("%s (%s)", nccl.Version(), nccl.Path())
	return f, nccl.Close()
}

// driverVersion reads it from the file in which the kernel's module has it.
func driverVersion(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown: " + err.Error()
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if version := versionPattern.FindString(line); version != "" {
		return version
	}
	return fmt.Sprintf("unknown: %s begins with %q", path, line)
}

// versionPattern is a version like 535.129.03, not a processor's name.
var versionPattern = regexp.MustCompile(`\b[0-9]{2,}\.[0-9]+(\.[0-9]+)?\b`)

// bandwidths are the memory bandwidths in GB/s that NVIDIA states for devices by a part of their names, the longer ones first.
var bandwidths = []struct {
	name string
	rate float64
}{{"GH200", 4000}, {"H200", 4800}, {"H100 PCIe", 2000}, {"H100", 3350}, {"A100", 2039}, {"B200", 8000}}

// bandwidth is that of a device; 0 if it is not known.
func bandwidth(device string) float64 {
	for _, b := range bandwidths {
		if strings.Contains(device, b.name) {
			return b.rate
		}
	}
	return 0
}

// result is one line about one model: a comparison of bits, or a figure.
type result struct {
	Shape, What string
	Measured    string       // "" if it is a comparison that holds
	Predicted   string       // what the model of cost expects, where it does
	Kernels     []kernelTime `json:",omitempty"`
	Goal        string       // of one H200
	Failure     string       // why there is no figure, or what does not hold
}

// report is everything that was found.
type report struct {
	Time    time.Time
	Facts   facts
	Suites  []outcome
	Results []result
	Pending []string // steps that have not come to their end
	Left    []string // steps that were not chosen
	Notes   []note   // what measurements have logged, each once
}

// failures is how many suites and comparisons failed.
func (r report) failures() int {
	n := 0
	for _, s := range r.Suites {
		if s.Failure != "" {
			n++
		}
	}
	for _, x := range r.Results {
		if x.Failure != "" {
			n++
		}
	}
	return n
}

// cell makes a text fit one cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}

// markdown is the report as it is committed.
func (r report) markdown() string {
	var b strings.Builder
	row := func(cells ...string) {
		for _, c := range cells {
			fmt.Fprintf(&b, "| %s ", cell(c))
		}
		b.WriteString("|\n")
	}
	fmt.Fprintf(&b, "# What has run on a GPU\n\nWritten by `make bench GPU=1` at %s. Speed is measured on the first device, with random weights in the models' true shapes.\n\n", r.Time.Format(time.RFC3339))
	if len(r.Pending) > 0 {
		fmt.Fprintf(&b, "**Not run yet, or not to their end:** %s.\n\n", strings.Join(r.Pending, ", "))
	}
	if len(r.Left) > 0 {
		fmt.Fprintf(&b, "Not chosen, so not run: %s.\n\n", strings.Join(r.Left, ", "))
	}
	row("", "")
	row("---", "---")
	for i, d := range r.Facts.Devices {
		row(fmt.Sprintf("cuda:%d", i), fmt.Sprintf("%s, compute capability %d.%d, %d multiprocessors, %d MiB", d.Name, d.Major, d.Minor, d.Multiprocessors, d.Memory>>20))
	}
	row("NVIDIA driver", r.Facts.Kernel)
	row("driver", r.Facts.Driver)
	row("NCCL", r.Facts.NCCL)
	row("cuBLASLt", r.Facts.CuBLASLt)
	if r.Facts.Copies > 0 {
		row("a copy", fmt.Sprintf("%.0f GB/s, read and written", r.Facts.Copies))
	}
	for _, n := range r.Notes {
		if n.Level == "info" {
			row("log", n.Text)
		} else {
			row("**"+n.Level+"**", n.Text)
		}
	}
	b.WriteString("\n## Tests on the device\n\n")
	row("what", "outcome", "time")
	row("---", "---", "---")
	for _, s := range r.Suites {
		outcome := "passed"
		switch {
		case s.Failure != "":
			outcome = "**FAILED**: " + s.Failure
		case s.Skipped != "":
			outcome = "not run: " + s.Skipped
		}
		row(s.What, outcome, s.Time.Round(time.Second).String())
	}
	b.WriteString("\n## Bits and speed\n\n")
	row("model", "what", "measured", "predicted", "goal on one H200")
	row("---", "---", "---", "---", "---")
	for _, x := range r.Results {
		measured := x.Measured
		switch {
		case x.Failure != "":
			measured = "**FAILED**: " + x.Failure
		case measured == "":
			measured = "equal"
		}
		row(x.Shape, x.What, measured, x.Predicted, x.Goal)
	}
	for _, x := range r.Results {
		if len(x.Kernels) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## Time by kernel: %s, %s\n\nTimed one by one and without graphs, so the sum is more than the pass takes. Operations and bytes are counted from the launches' arguments.\n\n", cell(x.Shape), cell(x.What))
		row("kernel", "launches", "ms", "predicted ms", "reached")
		row("---", "---", "---", "---", "---")
		all := kernelTime{Kernel: "all"}
		for _, k := range x.Kernels {
			all.Launches, all.Seconds, all.Predicted = all.Launches+k.Launches, all.Seconds+k.Seconds, all.Predicted+k.Predicted
		}
		for _, k := range append(x.Kernels, all) {
			row(k.Kernel, fmt.Sprintf("%.4g", k.Launches), fmt.Sprintf("%.3g", 1e3*k.Seconds), fmt.Sprintf("%.3g", 1e3*k.Predicted), k.rates())
		}
	}
	return b.String()
}

// note adds one that is new.
func (r *report) note(n *note) {
	if n != nil && !slices.Contains(r.Notes, *n) {
		r.Notes = append(r.Notes, *n)
	}
}
