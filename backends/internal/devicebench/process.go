package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// last is the time between asking a process to end, by a signal at which a Go program says where it stands, and ending it.
var last = 5 * time.Second // shorter in tests

// errTime is wrapped when a process was ended because its time was up.
var errTime = errors.New("not finished within")

// finish runs a command until limit has passed since begin. The command and its children are then ended; one that not even the kernel can end, as it may be with a device that hangs, is left behind. Output goes to out,
// which is not written to any more once finish has returned.
func finish(ctx context.Context, cmd *exec.Cmd, begin time.Time, limit time.Duration, out io.Writer) error {
	read, write := io.Pipe()
	cmd.Stdout, cmd.Stderr = write, write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = last
	if err := cmd.Start(); err != nil {
		return err
	}
	copied, ended := make(chan struct{}), make(chan error, 1)
	go func() { _, _ = io.Copy(out, read); close(copied) }()
	go func() { ended <- cmd.Wait(); write.Close() }()
	signal := func(s syscall.Signal) { _ = syscall.Kill(-cmd.Process.Pid, s) } // its group may be gone
	end := func(err error) error {
		signal(syscall.SIGQUIT)
		for range 2 {
			select {
			case <-ended:
				signal(syscall.SIGKILL) // children that are left
				<-copied
				return err
			case <-time.After(last):
				signal(syscall.SIGKILL)
			}
		}
		read.CloseWithError(err)
		<-copied
		return fmt.Errorf("%w; the process cannot be ended", err)
	}
	clock := time.NewTimer(time.Until(begin.Add(limit)))
	defer clock.Stop()
	select {
	case err := <-ended:
		signal(syscall.SIGKILL)
		<-copied
		return err
	case <-clock.C:
		return end(fmt.Errorf("%w %s", errTime, limit))
	case <-ctx.Done():
		return end(ctx.Err())
	}
}

// excerpt is what a report has of a long text: its beginning, where a Go program says what went wrong, and its end.
func excerpt(text string) string {
	const part = 1000
	if len(text) <= 2*part {
		return text
	}
	return text[:part] + " … " + text[len(text)-part:]
}
