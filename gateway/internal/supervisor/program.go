package supervisor

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"
)

// program is the process as go-plugin sees it. go-plugin ends one that does not shake hands as it should, also one that has ended by itself, and in the same words: the difference is noticed here.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr io.ReadCloser
	goesOn         func() // called before a process is killed that would not end by itself
}

// newProgram makes a runner of a command that has not been started.
func newProgram(cmd *exec.Cmd, goesOn func()) (runner.Runner, error) {
	r := &program{cmd: cmd, goesOn: goesOn}
	var err error
	if r.stdout, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if r.stderr, err = cmd.StderrPipe(); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *program) Start(context.Context) error { return r.cmd.Start() }
func (r *program) Wait(context.Context) error  { return r.cmd.Wait() }
func (r *program) Stdout() io.ReadCloser       { return r.stdout }
func (r *program) Stderr() io.ReadCloser       { return r.stderr }
func (r *program) Name() string                { return r.cmd.Path }

// ID is "" until the process has been started.
func (r *program) ID() string {
	if r.cmd.Process == nil {
		return ""
	}
	return strconv.Itoa(r.cmd.Process.Pid)
}

// lastBreath is how long a process that is ending may take from the closing of its descriptors to its end.
const lastBreath = 2 * time.Second

// Kill ends the process. It may be called more than once.
func (r *program) Kill(context.Context) error {
	if r.cmd.Process == nil {
		return nil
	}
	if !r.endsWithin(lastBreath) {
		r.goesOn()
	}
	if err := r.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// endsWithin tells whether the process has ended, or does so in a while.
func (r *program) endsWithin(d time.Duration) bool {
	for end := time.Now().Add(d); ; time.Sleep(time.Millisecond) {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, r.cmd.Process.Pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil, info.Signo != 0: // Wait has seen its end, or will
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// Diagnose implements runner.Runner: there is nothing to add to what go-plugin says.
func (r *program) Diagnose(context.Context) string { return "" }

// PluginToHost implements runner.Runner: both are on one machine.
func (r *program) PluginToHost(network, address string) (hostNetwork, hostAddress string, err error) {
	return network, address, nil
}

// HostToPlugin implements runner.Runner.
func (r *program) HostToPlugin(network, address string) (pluginNetwork, pluginAddress string, err error) {
	return network, address, nil
}
