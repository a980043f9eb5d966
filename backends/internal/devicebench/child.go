package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/cudart"
)

// Everything that touches a device is done by a process of its own, this program again: what hangs there, or leaves the device in an error that stays, ends with it.

// jobVariable has, for such a process, what it does.
const jobVariable = "TINSMITH_DEVICEBENCH_JOB"

// job is what a process does: a measurement, "facts", "copies", or "touch", which only uses the device.
type job struct {
	Kind      string
	Workload  workload // of a measurement
	Dir       string   // the model's folder
	Facts     facts    // of a measurement: what was gathered
	Libraries []string
	Kernels   bool // times by kernel are wanted
}

// message is what it says, one JSON object in a line that begins with marker; libraries print lines of their own.
type message struct {
	Facts  *facts  `json:",omitempty"`
	Result *result `json:",omitempty"`
	Note   *note   `json:",omitempty"`
	Copies float64 `json:",omitempty"` // GB/s
	Error  string  `json:",omitempty"` // why it could not go on
	Done   bool    `json:",omitempty"`
}

const marker = "devicebench-message "

// measurements are the kinds of them.
var measurements = map[string]func(ctx context.Context, j job, found func(result)) error{
	"bits": bits, "gradients": gradients, "speed": speed, "products": products, "placements": placements,
}

// child does this process's job, and tells whether it has one.
func child() bool {
	text := os.Getenv(jobVariable)
	if text == "" {
		return false
	}
	os.Unsetenv(jobVariable) // processes that it starts are others
	var mu sync.Mutex        // whoever logs may be on any goroutine
	say := func(m message) {
		mu.Lock()
		defer mu.Unlock()
		line, err := json.Marshal(m)
		if err != nil {
			line = []byte(fmt.Sprintf(`{"Error": %q}`, err))
		}
		fmt.Printf("\n%s%s\n", marker, line)
	}
	slog.SetDefault(slog.New(noting{say: func(n note) { say(message{Note: &n}) }}))
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.do(context.Background(), say)
	}
	if err != nil {
		say(message{Error: err.Error()})
	} else {
		say(message{Done: true})
	}
	return true
}

func (j job) do(ctx context.Context, say func(message)) error {
	switch j.Kind {
	case "facts":
		f, err := gather(j.Libraries)
		if err == nil {
			say(message{Facts: &f})
		}
		return err
	case "copies":
		rate, err := copies(j.Libraries)
		if err == nil {
			say(message{Copies: rate})
		}
		return err
	case "touch":
		return touch(j.Libraries)
	}
	measure, ok := measurements[j.Kind]
	if !ok {
		return fmt.Errorf("no measurement is called %q", j.Kind)
	}
	if j.Kind != "products" { // which need its shapes alone
		if err := j.Workload.Shape.provide(j.Dir); err != nil {
			return fmt.Errorf("write the model: %w", err)
		}
	}
	return measure(ctx, j, func(r result) { say(message{Result: &r}) })
}

// touch computes something on the first device.
func touch(libraries []string) error {
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return err
	}
	defer driver.Close()
	v, err := driver.Open(0)
	if err != nil {
		return err
	}
	w := workload{Sequences: 1, Length: 64}
	_, err = w.product(v, 64, 64, false)
	return errors.Join(err, v.Close())
}

// copies gives the speed of a copy on the first device, of what is more than its caches hold, in GB/s read and written.
func copies(libraries []string) (rate float64, err error) {
	driver, err := cudart.Open(cudart.Options{Directories: libraries})
	if err != nil {
		return 0, err
	}
	defer driver.Close()
	v, err := driver.Open(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, v.Close()) }()
	free, _, err := v.Memory()
	if err != nil {
		return 0, err
	}
	const times = 10
	bytes := int(min(1<<30, free/8))
	o := operands{v: v}
	defer func() { err = errors.Join(err, o.free()) }()
	from, to := o.memory(int64(bytes)), o.memory(int64(bytes))
	if o.err != nil {
		return 0, o.err
	}
	best, err := workload{Repeat: 3}.best(v, func() error {
		for range times {
			if err := v.Copy(to, v, from, bytes); err != nil {
				return err
			}
		}
		return nil
	})
	return 2 * times * float64(bytes) / best.Seconds() / 1e9, err
}

// command is this program with a job.
func (j job) command() (*exec.Cmd, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program) //nolint:noctx // finish ends it
	cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	return cmd, nil
}

// run has a process do the job, and hands on what it finds, when it does. The error says why it did not come to its end.
func (j job) run(ctx context.Context, limit time.Duration, heard func(message)) error {
	cmd, err := j.command()
	if err != nil {
		return err
	}
	l := &listener{heard: heard}
	err = finish(ctx, cmd, time.Now(), limit, l)
	switch {
	case l.failure != "":
		return errors.New(l.failure)
	case l.done:
		return nil // closing may have failed, but everything was found
	case err == nil:
		err = errors.New("the process ended early")
	}
	if text := strings.TrimSpace(l.rest.String()); text != "" {
		err = fmt.Errorf("%w: %s", err, excerpt(text))
	}
	return err
}

// listener takes messages out of a process's output.
type listener struct {
	heard   func(message)
	line    []byte
	rest    bytes.Buffer // what was no message, the first and the last of it
	done    bool
	failure string
}

func (l *listener) Write(p []byte) (int, error) {
	l.line = append(l.line, p...)
	for {
		line, after, whole := bytes.Cut(l.line, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.take(string(line))
		l.line = after
	}
}

func (l *listener) take(line string) {
	var m message
	text, is := strings.CutPrefix(line, marker)
	if !is || json.Unmarshal([]byte(text), &m) != nil {
		if l.rest.Len() < 1<<20 {
			fmt.Fprintln(&l.rest, line)
		}
		return
	}
	l.done, l.failure = l.done || m.Done, l.failure+m.Error
	l.heard(m)
}
