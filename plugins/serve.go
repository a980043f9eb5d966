package plugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
)

// Serve is the main function of a plugin program: it serves b to the gateway that started this process, until the gateway ends it or is itself gone. It
// takes over the process: standard output, signals, the default slog logger (JSON lines on standard error, which the gateway forwards). Programs log
// with slog: after the handshake go-plugin makes the variable os.Stderr a pipe whose last words a crash would swallow.
// It returns after an orderly end, and exits with status 1 when the process was not started by a gateway.
//
// Files that the process makes from then on are for its user only: adapters and what they were trained on are tenants'.
//
// Signals that ask for an end (SIGTERM to a whole service, ctrl-C in a terminal) are ignored here: the gateway gets them too, notes what is not finished, and
// then ends this process.
//
// A process that was started with the one argument `check-config` only checks a configuration, see ConfigChecker, and with `plan-memory` only plans memory, see Planner, for whoever started it. One that was started
// with the argument `serve` serves gateways on other machines, see listen.go.
func Serve(b Backend) {
	unix.Umask(0o077)
	if question() != "" {
		if err := serveQuestion(b, os.Stdin, os.Stdout); err != nil {
			fail(err)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == serveArgument {
		if err := serveGateways(b, os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
	// Whatever prints to standard output from now on, such as a C library, must not spoil go-plugin's handshake line: it goes to standard error.
	handshake, err := moveStdout()
	if err != nil {
		fail(err)
	}
	stderr := os.Stderr // go-plugin replaces the variable with a pipe into a gRPC stream; logs and panics shall reach the descriptor itself
	slog.SetDefault(slog.New(slog.NewJSONHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if os.Getenv(Handshake.MagicCookieKey) != Handshake.MagicCookieValue {
		fail(errors.New("this program is a backend plugin: tinsmith starts it, it does nothing by itself"))
	}
	lifeline, err := inherited(EnvLifeline)
	if err != nil {
		fail(err)
	}
	if _, err := inherited(EnvLock); err != nil {
		fail(err)
	}
	go exitAtEnd(lifeline)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for s := range signals {
			slog.Debug("signal ignored, the gateway ends this process", "signal", s.String())
		}
	}()
	info, err := b.Info(context.Background())
	if err != nil {
		fail(fmt.Errorf("info: %w", err))
	}
	flush, err := exportTraces(context.Background(), info)
	if err != nil {
		fail(fmt.Errorf("export traces: %w", err))
	}
	os.Stdout = handshake
	goplugin.Serve(&goplugin.ServeConfig{
		HandshakeConfig: Handshake,
		Plugins:         goplugin.PluginSet{dispenseName: &connector{backend: b}},
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, ServerOptions()...)...)
		},
		Logger: hclog.New(&hclog.LoggerOptions{Output: stderr, Level: hclog.Warn}),
	})
	flush()
	removeSockets()
}

// moveStdout points descriptor 1 at standard error and gives back what it was.
func moveStdout() (*os.File, error) {
	fd, err := unix.FcntlInt(1, unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, fmt.Errorf("duplicate standard output: %w", err)
	}
	if err := unix.Dup3(2, 1, 0); err != nil {
		return nil, fmt.Errorf("point standard output at standard error: %w", err)
	}
	os.Stdout = os.Stderr
	return os.NewFile(uintptr(fd), "handshake"), nil
}

// inheritedFiles keeps what was inherited reachable: a collected os.File closes its descriptor, and with it the lock.
var inheritedFiles []*os.File

func inherited(env string) (*os.File, error) {
	fd, err := strconv.Atoi(os.Getenv(env))
	if err != nil || fd < 3 {
		return nil, fmt.Errorf("environment variable %s=%q does not hold the number of an inherited descriptor", env, os.Getenv(env))
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("descriptor %d of environment variable %s: %w", fd, env, err)
	}
	f := os.NewFile(uintptr(fd), env)
	inheritedFiles = append(inheritedFiles, f)
	return f, nil
}

// exitAtEnd waits for the end of the pipe that the gateway holds and ends the process at once: nobody is left who could use a result. Files are written
// whole or not at all, so nothing is half-done.
func exitAtEnd(lifeline io.Reader) {
	_, _ = io.Copy(io.Discard, lifeline)
	removeSockets()
	os.Exit(0)
}

// removeSockets removes the socket that a killed go-plugin leaves behind, and its directory if that is then empty.
func removeSockets() {
	dir := os.Getenv(EnvSocketDir)
	if dir == "" {
		return
	}
	sockets, _ := filepath.Glob(filepath.Join(dir, "plugin*"))
	for _, s := range sockets {
		if i, err := os.Lstat(s); err == nil && i.Mode().Type() == os.ModeSocket {
			_ = os.Remove(s)
		}
	}
	_ = os.Remove(dir)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
