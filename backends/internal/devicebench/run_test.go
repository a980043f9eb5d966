package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// A measurement that hangs, or that ends its process, is a failure that says so; what was found before is kept, and what comes after runs.
func TestStepsEnd(t *testing.T) {
	o := tinyOptions(t)
	o.Limit = time.Second
	work := t.TempDir()
	for _, c := range []struct{ kind, want string }{
		{"hang", "| tiny | hang: what follows | **FAILED**: not finished within 1s"},
		{"crash", "| tiny | crash: what follows | **FAILED**: exit status 2: panic: the device is lost"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			r := report{Pending: []string{"tiny-" + c.kind, "sanitizer"}}
			var kept []string
			r.step(t.Context(), o, step{Name: "tiny-" + c.kind, Workload: &tiny, Kind: c.kind}, work, func() { kept = append(kept, r.markdown()) })
			if len(kept) != 1 || !strings.Contains(kept[0], "| tiny | before the "+c.kind+" | 5 |") || !strings.Contains(kept[0], "**Not run yet, or not to their end:** tiny-"+c.kind+", sanitizer.") {
				t.Errorf("kept before the end: %q", kept)
			}
			if text := r.markdown(); !strings.Contains(text, c.want) || r.failures() != 1 {
				t.Errorf("%d failures, want one with %q:\n%s", r.failures(), c.want, text)
			}
		})
	}
}

// leaveGroup has this process go to its parent's group, where the signals that end it do not reach it: so it is as one that waits in the kernel for a device. It says its number.
func leaveGroup() {
	parent, err := syscall.Getpgid(os.Getppid())
	if err == nil {
		err = syscall.Setpgid(0, parent)
	}
	fmt.Printf("\nprocess %d has left its group: %v\n", os.Getpid(), err)
	time.Sleep(time.Minute)
	os.Exit(0)
}

// A process that cannot be ended is left behind: its step is a failure that says so, what it found is kept, and the step after it runs. What it still says is not waited for.
func TestUnkillable(t *testing.T) {
	defer func(before time.Duration) { last = before }(last)
	last = 200 * time.Millisecond
	o := tinyOptions(t)
	o.Limit = time.Second
	work, r, kept := t.TempDir(), report{}, 0
	r.step(t.Context(), o, step{Name: "tiny-unkillable", Workload: &tiny, Kind: "unkillable"}, work, func() { kept++ })
	text := r.markdown()
	said := regexp.MustCompile(`process (\d+) has left its group: <nil>`).FindStringSubmatch(text)
	if said == nil {
		t.Fatalf("the process says nothing:\n%s", text)
	}
	pid, err := strconv.Atoi(said[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process has ended: %v", err)
	}
	const want = "| tiny | unkillable: what follows | **FAILED**: not finished within 1s; the process cannot be ended: "
	if kept != 1 || r.failures() != 1 || !strings.Contains(text, want) || !strings.Contains(text, "| tiny | before the unkillable | 5 |") {
		t.Errorf("%d failures, %d times kept, want one with %q:\n%s", r.failures(), kept, want, text)
	}
	r.step(t.Context(), o, step{Name: "tiny-crash", Workload: &tiny, Kind: "crash"}, work, func() { kept++ })
	if kept != 2 || r.failures() != 2 {
		t.Errorf("after it: %d failures, %d times kept", r.failures(), kept)
	}
	// It is a child of this process, whose Wait is still under way.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// A run that is interrupted leaves the report of what it found, whole, with what is left; nothing else stays beside it.
func TestInterrupted(t *testing.T) {
	o := tinyOptions(t)
	o.Tests = filepath.Join(o.Root, "tests")
	write(t, filepath.Join(o.Root, "backends/internal/tensor/cuda/here"), "")
	write(t, filepath.Join(o.Root, "backends/internal/model/here"), "")
	started := filepath.Join(o.Root, "started")
	write(t, filepath.Join(o.Tests, "cuda.test"), "#!/bin/sh\necho PASS\n")
	write(t, filepath.Join(o.Tests, "model.test"), "#!/bin/sh\n> "+started+"\nsleep 60\n")
	o.Only = []string{"operations", "models", "tiny-speed"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx) }()
	for {
		if _, err := os.Stat(started); err == nil {
			break
		}
		select {
		case err := <-ended:
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted run: %v", err)
	}
	text := read(t, o.Report)
	if !strings.Contains(text, "**Not run yet, or not to their end:** models, tiny-speed.") || !strings.Contains(text, "ragged lengths | passed |") {
		t.Errorf("the report is\n%s", text)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(o.Report), ".devicebench-*")); err != nil || len(left) > 0 {
		t.Errorf("beside the report lie %v, %v", left, err)
	}
}

// Steps are chosen by name or group, in the order of the program; comparisons come first and the sanitizer last.
func TestChoose(t *testing.T) {
	all := steps(workloads)
	for _, c := range []struct {
		only []string
		want string
	}{
		{nil, "0.6B-bits 8B-bits 30B-A3B-bits Qwen3.5-bits gpt-oss-bits 0.6B-gradients 8B-gradients 0.6B-placements 8B-placements operations models contract " +
			"0.6B-speed 8B-speed 30B-A3B-speed Qwen3.5-speed gpt-oss-speed 0.6B-products 8B-products sanitizer"},
		{[]string{"suites"}, "operations models contract sanitizer"},
		{[]string{"speed", "0.6B"}, "0.6B-bits 0.6B-gradients 0.6B-placements 0.6B-speed 8B-speed 30B-A3B-speed Qwen3.5-speed gpt-oss-speed 0.6B-products"},
		{[]string{"8B-products"}, "8B-products"},
	} {
		chosen, left, err := choose(all, c.only)
		var got []string
		for _, s := range chosen {
			got = append(got, s.Name)
		}
		if err != nil || strings.Join(got, " ") != c.want || len(left)+len(got) != len(all) {
			t.Errorf("%v: %v and %v, %v", c.only, got, left, err)
		}
	}
	if _, _, err := choose(all, []string{"speed", "70B"}); err == nil || !strings.Contains(err.Error(), `"70B"`) || !strings.Contains(err.Error(), "0.6B, bits, 0.6B-bits, 8B,") {
		t.Errorf("a name that is no step: %v", err)
	}
}

// Suites that fail, hang, or found no device after all, are failures of the report; what this machine lacks is not. Tests run in their package's folder.
func TestSuites(t *testing.T) {
	const inFolder = "#!/bin/sh\n[ -f here ] && echo PASS\n"
	const through = "#!/bin/sh\nshift 2\nexec \"$@\"\n" // a tool
	for _, c := range []struct{ name, test, tool, want string }{
		{"well", inFolder, "", "passed"},
		{"ill", "#!/bin/sh\necho 'wrong | bits'; exit 3\n", "", "exit status 3: wrong \\| bits |"},
		{"idle", "#!/bin/sh\necho '--- SKIP: TestX (0.00s)'\n", "", "**FAILED**: TestX (0.00s) was skipped |"},
		{"hangs", "#!/bin/sh\necho begun; /bin/sleep 60\n", "", "not finished within 3s: begun"},
		{"no binary and no Go", "", "", "not run: there is no Go here to compile the tests, and stat /"},
		{"tool well", inFolder, through, "passed"},
		{"tool ill", "#!/bin/sh\necho '========= Invalid __global__ write'; exit 1\n", through, "**FAILED**: "},
		{"tool idle", "#!/bin/sh\necho '--- SKIP: TestX (0.00s)'\n", through, "not run: TestX (0.00s) was skipped under compute-sanitizer |"},
		{"tool with a part skipped", "#!/bin/sh\necho '    --- SKIP: TestX/y (0.00s)'\n", through, "passed"},
		{"no device for the tool", inFolder, "#!/bin/sh\necho '========= Error: Device not supported. Please refer to the manual'; exit 1\n", "not run: /"},
		{"no device for the tool later", "#!/bin/sh\necho '========= Error: Device not supported'; exit 1\n", through, "not run: ========= Error: Device not supported |"},
		{"the tool fails", inFolder, "#!/bin/sh\nexit 4\n", "exit status 4"},
		{"no tool", inFolder, "none", "not run: compute-sanitizer is not installed: it is not in PATH or /"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := tinyOptions(t)
			t.Setenv("PATH", "/nowhere")
			o.Limit, o.Tests, o.ToolFolders = 3*time.Second, filepath.Join(o.Root, "tests"), []string{filepath.Join(o.Root, "tools")}
			write(t, filepath.Join(o.Root, "backends/internal/tensor/cuda/here"), "")
			s := suites[0]
			if c.test != "" {
				write(t, filepath.Join(o.Tests, "cuda.test"), c.test)
			}
			if c.tool != "" {
				s = suites[len(suites)-1]
			}
			if c.tool != "none" && c.tool != "" {
				write(t, filepath.Join(o.ToolFolders[0], sanitizer), c.tool)
			}
			r := report{Suites: []outcome{o.suite(t.Context(), s, t.TempDir())}}
			text, failed := r.markdown(), strings.Contains(r.markdown(), "**FAILED**")
			if !strings.Contains(text, c.want) || (r.failures() == 1) != failed || failed != slices.Contains([]string{"ill", "idle", "hangs", "tool ill"}, c.name) {
				t.Errorf("%d failures, want %q:\n%s", r.failures(), c.want, text)
			}
		})
	}
}

// Training keeps activations if it can, in passes as large as fit; the last way is to compute them again.
func TestPick(t *testing.T) {
	need := func(tokens int, recompute bool) (int64, error) {
		if recompute {
			return int64(tokens), nil
		}
		return 10 * int64(tokens), nil
	}
	for _, c := range []struct {
		left int64
		want []passes
	}{
		{160, []passes{{16, 160, true}, {8, 80, true}, {4, 40, true}, {16, 16, false}}},
		{159, []passes{{8, 80, true}, {4, 40, true}, {16, 16, false}}},
		{39, []passes{{16, 16, false}}},
		{9, []passes{{8, 8, false}}},
		{2, []passes{{4, 2, false}}},
		{-1, []passes{{4, 1, false}}},
	} {
		if got, err := pick([]int{16, 8, 4}, c.left, need); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%d left: %v, %v, want %v", c.left, got, err, c.want)
		}
	}
}

// A way of cutting training that memory lacks for after all gives way to the next one, of which the report then is; the last one's lack, and any other error, is an error.
func TestFirstWithRoom(t *testing.T) {
	ways := []passes{{16, 160, true}, {8, 80, true}, {16, 16, false}}
	lack := fmt.Errorf("a pass: %w", &plugins.Error{Kind: plugins.KindCapacity, Message: "no memory"})
	tooLarge := &plugins.Error{Kind: plugins.KindTooLarge, Message: "more than there is"}
	other := errors.New("the device is lost")
	for _, c := range []struct {
		name    string
		answers []error
		way     int // of the answer
		err     error
	}{
		{"the first", []error{nil}, 0, nil},
		{"the second", []error{lack, nil}, 1, nil},
		{"the last", []error{lack, tooLarge, nil}, 2, nil},
		{"none", []error{lack, lack, lack}, 2, lack},
		{"another error", []error{lack, other}, 1, other},
	} {
		tried := 0
		took, way, err := firstWithRoom(ways, func(way passes) (time.Duration, error) {
			if way != ways[tried] {
				t.Errorf("%s: %v was tried, want %v", c.name, way, ways[tried])
			}
			tried++
			return time.Duration(tried), c.answers[tried-1]
		})
		if way != ways[c.way] || tried != c.way+1 || !errors.Is(err, c.err) || err == nil && took != time.Duration(tried) {
			t.Errorf("%s: %v, %v, error %v after %d tries", c.name, took, way, err, tried)
		}
	}
	if _, _, err := firstWithRoom(nil, nil); err == nil {
		t.Error("no way is no error")
	}
}

// Where no pass with kept activations fits, the report says that they are recomputed. It has the arithmetic and the routes that the device takes, the speed of a copy and, if wanted, the time of every kernel. The model stays for the
// next run.
func TestRecomputed(t *testing.T) {
	o := tinyOptions(t)
	o.Kernels, o.Work = true, filepath.Join(o.Root, "work")
	o.Workloads[0].Section += `, "memory_mib": 40`
	o.Workloads[0].Batches = []int{16384}
	o.Only = []string{"tiny-speed"}
	if err := o.run(t.Context()); err != nil {
		t.Error(err)
	}
	text := read(t, o.Report)
	for _, want := range []string{" tok/s; passes of 16384 tokens, activations recomputed |", "| a copy | ", "| log | products of many rows use warpgroups; device no GPU", "| log | arithmetic; device cuda:0; weights bfloat16; arithmetic cuda-sm90-",
		"\n## Time by kernel: tiny, forward and backward, 2 sequences of 9 tokens, rank 2\n", "\n| outer_product | ", "\n## Time by kernel: tiny, decoding 2 sequences after 5 tokens\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	// One a step, but for the sequences that came too late for the first step of one of the two times that are subtracted.
	if !regexp.MustCompile(`\n\| draw_tokens \| (0\.9|1\b)`).MatchString(text) {
		t.Errorf("tokens are not drawn about once a step:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(o.Work, "tiny", made)); err != nil {
		t.Errorf("the model is not kept: %v", err)
	}
}

func TestDriverVersion(t *testing.T) {
	for text, want := range map[string]string{
		"NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\nGCC version:  gcc version 12.2.0": "535.129.03",
		"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65  Release Build":                                             "580.65",
		"nothing": `begins with "nothing"`,
	} {
		path := filepath.Join(t.TempDir(), "version")
		write(t, path, text)
		if got := driverVersion(path); got != want && !strings.HasSuffix(got, want) {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := driverVersion(filepath.Join(t.TempDir(), "none")); !strings.HasPrefix(got, "unknown: ") {
		t.Errorf("without a driver: %q", got)
	}
}
