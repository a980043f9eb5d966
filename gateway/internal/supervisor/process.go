package supervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"github.com/tinsmith/tinsmith/plugins"
	"golang.org/x/sys/unix"
)

// lockPoll is how often a lock that another process holds is tried again.
const lockPoll = 50 * time.Millisecond

// process is one start of a plugin.
type process struct {
	cmd       *exec.Cmd
	client    *goplugin.Client
	calls     *plugins.Client
	lifeline  *os.File // its end makes the plugin exit
	output    *output
	socketDir string
	terminate context.CancelFunc // sends SIGKILL

	mu     sync.Mutex
	reason string // why we ended it
	starve int64  // processes that the kernel had ended for want of memory when this one started
}

// launch starts the program and shakes hands with it; what it writes goes to out. Cancelling ctx gives up, with the process killed. With an error comes whether somebody else ended the process before that.
func (s *Supervisor) launch(ctx context.Context, out *output) (p *process, outside bool, err error) {
	lock, err := s.acquireLock(ctx)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = lock.Close() }() // the plugin's own copy keeps the lock
	lifelineEnd, lifeline, err := os.Pipe()
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = lifelineEnd.Close() }()
	begun := &process{lifeline: lifeline, output: out, starve: plugins.OutOfMemoryKills()}
	p = begun
	defer func() {
		if err != nil {
			begun.End(0)
			outside = begun.cmd != nil && begun.cmd.ProcessState != nil && begun.Outside()
		}
	}()
	if p.socketDir, err = os.MkdirTemp(s.config.Sockets, "tinsmith-"); err != nil { // not in the data directory: a socket's path may have 108 bytes only
		return nil, false, err
	}
	var processCtx context.Context
	processCtx, p.terminate = context.WithCancel(context.Background())
	p.cmd = exec.CommandContext(processCtx, s.config.Program)
	p.cmd.Env = append(allowed(os.Environ()), plugins.EnvLifeline+"=3", plugins.EnvLock+"=4", plugins.EnvProgressTimeout+"="+s.config.ProgressTimeout.String())
	p.cmd.ExtraFiles = []*os.File{lifelineEnd, lock} // descriptors 3 and 4
	if s.config.prepare != nil {
		s.config.prepare(p.cmd)
	}
	if same, err := (&goplugin.SecureConfig{Checksum: s.checksum, Hash: sha256.New()}).Check(s.config.Program); err != nil {
		return nil, false, err
	} else if !same {
		return nil, false, fmt.Errorf("%s is not the program that it was when the gateway started: restart the gateway", s.config.Program)
	}
	config := plugins.ClientConfig(nil)
	config.RunnerFunc = func(_ hclog.Logger, with *exec.Cmd, own string) (runner.Runner, error) {
		// go-plugin has made a folder of its own for the socket, in ours: the path would be longer, and the plugin, which removes the folder that it is told of when the gateway is killed, would leave ours.
		if err := os.Remove(own); err != nil {
			return nil, err
		}
		begun.cmd.Env = append(append(begun.cmd.Env, with.Env...), plugins.EnvSocketDir+"="+begun.socketDir) // of a name that is there twice the last one counts
		return newProgram(begun.cmd, func() { begun.ended("killed because it did not shake hands") })
	}
	config.UnixSocketConfig = &goplugin.UnixSocketConfig{TempDir: p.socketDir}
	config.StartTimeout = s.config.StartTimeout
	config.Logger = hclog.New(&hclog.LoggerOptions{Level: hclog.Off, Output: io.Discard}) // what it would say is in its errors and in the output
	config.Stderr, config.SyncStdout, config.SyncStderr = p.output, p.output, p.output
	p.client = goplugin.NewClient(config)

	stop := context.AfterFunc(ctx, p.terminate)
	defer stop()
	if _, err = p.client.Start(); err != nil {
		return nil, false, err
	}
	if p.calls, err = plugins.Dispense(p.client); err != nil {
		p.ended("killed because it does not answer")
		return nil, false, err
	}
	p.calls.ExplainLoss(p.Explain)
	return p, false, nil
}

// acquireLock opens and locks the lock file, waiting for a process that an earlier gateway may have left.
func (s *Supervisor) acquireLock(ctx context.Context) (*os.File, error) {
	f, err := os.OpenFile(s.config.LockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for waited := false; ; waited = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", s.config.LockFile, err)
		}
		if !waited {
			s.log.Info("waiting for the previous backend process to end", "lock", s.config.LockFile)
			s.change(func(st *State) { st.Reason = "waiting for the previous backend process to end" })
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return nil, ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}

// Backend implements Process.
func (p *process) Backend() plugins.Backend { return p.calls }

// Kill ends the process at once, for a reason that its errors will tell.
func (p *process) Kill(reason string) {
	p.ended(reason)
	p.terminate()
}

// ended notes why we end the process; the first reason counts.
func (p *process) ended(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason == "" {
		p.reason = reason
	}
}

// End closes the lifeline, gives the process that long to exit, then kills it, and frees everything. It returns when the process is gone.
func (p *process) End(patience time.Duration) {
	_ = p.lifeline.Close()
	if p.calls != nil && patience > 0 {
		timer := time.NewTimer(patience)
		select {
		case <-p.calls.Done():
		case <-timer.C:
			p.Kill("killed because it did not end by itself")
		}
		timer.Stop()
	}
	if p.terminate != nil {
		p.terminate()
	}
	if p.calls != nil {
		<-p.calls.Done() // go-plugin asks a living process to end, without a time limit: it must be gone before
	}
	if p.client != nil {
		p.client.Kill()
	}
	if p.socketDir != "" {
		_ = os.RemoveAll(p.socketDir)
	}
}

// Ending says how the process ended.
func (p *process) Ending() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reason != "" {
		return p.reason
	}
	select {
	case <-p.calls.Done():
		text := p.cmd.ProcessState.String()
		switch reason := p.output.reason(); {
		case p.killed() && plugins.OutOfMemoryKills() != p.starve:
			text += " (the kernel ended a process for want of memory)"
		case !p.killed() && reason != "":
			text += ": " + reason
		}
		return text
	default:
		return "its connection broke"
	}
}

// killed tells whether a signal ended the process that cannot come from a fault of its own. The process is gone.
func (p *process) killed() bool {
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && (status.Signal() == syscall.SIGKILL || status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGINT || status.Signal() == syscall.SIGHUP)
}

// Outside tells whether somebody else ended the process: not we, not a fault of its own, not the kernel for want of memory (nor may it have been, where the kernel does not tell). The process is gone.
func (p *process) Outside() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason == "" && p.killed() && p.starve >= 0 && plugins.OutOfMemoryKills() == p.starve
}

// Explain says how the process ended, with the last of its output.
func (p *process) Explain() string {
	text := p.Ending()
	if tail := p.output.last(); tail != "" {
		text += "; its last output:\n" + tail
	}
	return text
}
