package selftest

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// Report is what a self-test tells: on what, and how every promise stands.
type Report struct {
	Passed bool `json:"passed"`
	// Tinsmith and Go are versions, System the operating system and architecture, Processor what the processor calls itself.
	Tinsmith  string `json:"tinsmith"`
	Go        string `json:"go"`
	System    string `json:"system"`
	Processor string `json:"processor"`
	Cores     int    `json:"cores"`

	Model      string `json:"model"`
	Path       string `json:"path"`
	Backend    string `json:"backend"` // the section of the configuration, as JSON
	Device     string `json:"device"`
	DType      string `json:"dtype"`
	Arithmetic string `json:"arithmetic"`

	Started      time.Time `json:"started"`
	StartSeconds float64   `json:"start_seconds"` // until the model was ready
	Seconds      float64   `json:"seconds"`       // of all
	Checks       []Check   `json:"checks"`
}

// NewReport begins a report of this machine.
func NewReport(version string) *Report {
	return &Report{
		Tinsmith: version, Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH, Processor: processor(), Cores: runtime.NumCPU(), Started: time.Now().UTC().Truncate(time.Second),
	}
}

// Fill puts in what a self-test has found.
func (r *Report) Fill(checks []Check, h state) {
	r.Checks, r.Device, r.DType, r.Arithmetic = checks, h.Device, h.DType, h.Arithmetic
	r.Passed = r.Err() == nil
	r.Seconds = time.Since(r.Started).Seconds()
}

// processor is the name that the kernel tells, "" where it tells none.
func processor() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// facts are the head of the report.
func (r *Report) facts() [][2]string {
	machine := fmt.Sprintf("%s, %s, %d cores", r.System, r.Processor, r.Cores)
	if r.Processor == "" {
		machine = fmt.Sprintf("%s, %d cores", r.System, r.Cores)
	}
	return [][2]string{
		{"tinsmith", r.Tinsmith + ", built with " + r.Go},
		{"machine", machine},
		{"model", r.Model + " (" + r.Path + ")"},
		{"backend", r.Backend},
		{"device", r.Device + ", weights in " + r.DType},
		{"arithmetic", r.Arithmetic},
		{"when", r.Started.Format(time.RFC3339)},
		{"time", fmt.Sprintf("%.1f s, of which %.1f s until the model was ready", r.Seconds, r.StartSeconds)},
	}
}

// verdict is the last line.
func (r *Report) verdict() string {
	counts := map[string]int{}
	for _, c := range r.Checks {
		counts[c.Result]++
	}
	parts := []string{fmt.Sprintf("%d passed", counts[passed])}
	for _, result := range []string{differs, failed, skipped} {
		if n := counts[result]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, map[string]string{differs: "differ", failed: "could not be checked", skipped: "skipped"}[result]))
		}
	}
	return strings.Join(parts, ", ")
}

// lines are what is to be said of a check beside its row.
func (c *Check) lines() []string {
	var out []string
	if c.Difference != nil {
		out = append(out, "first difference: "+c.Difference.Where, "  expected "+c.Difference.Expected, "  got      "+c.Difference.Got)
	}
	if c.Error != "" {
		out = append(out, c.Error)
	}
	return out
}

// Text is the report for a terminal.
func (r *Report) Text() string {
	var b strings.Builder
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "%-11s %s\n", f[0], f[1])
	}
	b.WriteString("\n")
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(&b, "%-8s %-14s %6.1f s  %6d values  %s\n", c.Result, c.Name, c.Seconds, c.Compared, c.Promise)
		if c.Detail != "" {
			fmt.Fprintf(&b, "%25s%s\n", "", c.Detail)
		}
		for _, line := range c.lines() {
			fmt.Fprintf(&b, "%25s%s\n", "", line)
		}
	}
	fmt.Fprintf(&b, "\n%s\n", r.verdict())
	return b.String()
}

// Markdown is the report as a page.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Self-test of %s\n\n%s.\n\n| | |\n|---|---|\n", cell(r.Model), r.verdict())
	for _, f := range r.facts() {
		fmt.Fprintf(&b, "| %s | %s |\n", f[0], cell(f[1]))
	}
	b.WriteString("\n| check | result | values | seconds | |\n|---|---|---|---|---|\n")
	for i := range r.Checks {
		c := &r.Checks[i]
		said := append([]string{c.Promise}, c.lines()...)
		if c.Detail != "" {
			said = append(said, c.Detail)
		}
		for j := range said {
			said[j] = cell(said[j])
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %.1f | %s |\n", c.Name, c.Result, c.Compared, c.Seconds, strings.Join(said, "<br>"))
	}
	return b.String()
}

// cell makes text one line of a table, in which nothing is markup: a path or an error may hold anything.
func cell(text string) string {
	return strings.NewReplacer("\r", " ", "\n", " ", "|", `\|`, "<", "&lt;", ">", "&gt;", "&", "&amp;", "`", "'", "*", `\*`, "_", `\_`, "[", `\[`).Replace(strings.TrimSpace(text))
}
