package plugins

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
)

// A plugin program that is started as
//
//	NAME serve --listen HOST:PORT --tls-cert F --tls-key F --client-ca F --data DIR [--model DIR]…
//
// serves its backend to a gateway on another machine: the contract, and beside it backendpb.Remote. Whoever restarts programs on that machine restarts it: it ends itself with ExitAgain when nothing but another process helps.
//
// # The lease
//
// One gateway uses the backend at a time, under a lease with a number that the gateway gives (Attach). A higher number takes the backend over, also from a gateway that is alive; a lower or equal one is refused, also by the next process
// with the same data directory. Each call carries the number. A call under another number than the holder's is refused, and one that is running when its lease ends is cancelled and gives nothing, so that a gateway that was
// replaced can do nothing more. A lease ends with the stream that holds it, or when it was not renewed for a while.
//
// # Between two leases
//
// The model stays in memory and everything else is made new: calls are cancelled, all adapters deleted, files of checkpoints removed. The boot id is another one, which tells the gateway that it has to rebuild its runs. Results are those of
// a new process; only numbers of clock cycles, the counters of Status and kept beginnings of prompts of the base model go on. A backend that still has or does something after a minute, one whose load was cut off or failed, and one that is to have another model or a configuration that it
// cannot change to, ends its process.

// serveArgument has a program serve gateways on other machines.
const serveArgument = "serve"

// ExitAgain is the exit status of a program that wants to be started again.
const ExitAgain = 3

const (
	defaultExpiry    = 15 * time.Second
	defaultPatience  = time.Minute
	minExpiry        = time.Second
	defaultKeepMiB   = 4096
	handshakeTimeout = 10 * time.Second
	keepaliveTime    = 5 * time.Second
	stopTimeout      = 5 * time.Second
)

// ListenOptions say how a backend is served to other machines.
type ListenOptions struct {
	Listen string // HOST:PORT; port 0 takes a free one
	TLS    TLSFiles
	Data   string        // a directory of this process's own, which is made
	Models []string      // clean absolute paths of directories that may be loaded; none: any
	Expiry time.Duration // of a lease that is not renewed; 0: 15 s
	Keep   int64         // bytes of files of checkpoints that are kept, so that they need not be brought again
	Drain  time.Duration // how long a program that is asked to end waits for its gateway to take elsewhere what it has; 0: not at all
	// Patience is how long the backend may take to be rid of what an ended lease was doing; 0: 1 minute. One that is not by then ends its process.
	Patience time.Duration
	// Exit is called, once or more, when the process is of no more use. It must not return before nothing can be served any more; in a program it ends the process.
	Exit func(error)
}

// Listener serves one backend to gateways on other machines.
type Listener struct {
	listener net.Listener
	server   *grpc.Server
	leases   *leases
	lock     *os.File
	host     *hosted
}

// Listen prepares to serve a backend that has not been loaded. Nobody else may use it.
func Listen(b Backend, o ListenOptions) (_ *Listener, err error) {
	if err := CheckAddress(o.Listen, o.TLS.Used()); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if o.Expiry == 0 {
		o.Expiry = defaultExpiry
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Expiry < minExpiry {
		return nil, fmt.Errorf("lease: %v is not allowed: at least %v", o.Expiry, minExpiry)
	}
	if o.Keep < 0 {
		return nil, fmt.Errorf("keep: %d is not allowed: at least 0", o.Keep)
	}
	for _, dir := range o.Models {
		if !filepath.IsAbs(dir) || filepath.Clean(dir) != dir {
			return nil, fmt.Errorf("model: %q is not a clean absolute path", dir)
		}
	}
	l := &Listener{}
	defer func() {
		if err != nil {
			l.release()
		}
	}()
	data, err := filepath.Abs(o.Data)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	if err := l.takeData(data); err != nil {
		return nil, err
	}
	life, err := beginLife(data, randomID())
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	files, err := openHostedFiles(data, o.Keep)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	l.host = newHosted(b, files, o.Exit, o.Patience)
	if l.leases, err = openLeases(filepath.Join(data, "lease.json"), l.host.renew); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	// A gateway that is not there any more must not hold up calls that wait for it to read or to send.
	asked := min(o.Expiry/3, keepaliveTime)
	options := append(ServerOptions(), grpc.ConnectionTimeout(handshakeTimeout), grpc.KeepaliveParams(keepalive.ServerParameters{Time: asked, Timeout: asked}),
		grpc.ChainUnaryInterceptor(l.leases.unary), grpc.ChainStreamInterceptor(l.leases.stream))
	if o.TLS.Used() {
		config, err := o.TLS.server()
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	if l.listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", o.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l.server = grpc.NewServer(options...)
	Register(l.server, l.host)
	backendpb.RegisterRemoteServer(l.server, &remote{host: l.host, leases: l.leases, files: files, life: life, expiry: o.Expiry, models: o.Models})
	return l, nil
}

// takeData makes the data directory and locks it.
func (l *Listener) takeData(dir string) error {
	if dir == "" {
		return errors.New("data: a directory is required")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	var err error
	if l.lock, err = os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if err := unix.Flock(int(l.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("data: %s is another process's: %w", dir, err)
	}
	return nil
}

func (l *Listener) release() {
	if l.listener != nil {
		_ = l.listener.Close()
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
}

// Address is where it listens.
func (l *Listener) Address() string { return l.listener.Addr().String() }

// Serve serves until Stop.
func (l *Listener) Serve() error {
	defer l.release()
	err := l.server.Serve(l.listener)
	if errors.Is(err, grpc.ErrServerStopped) { // before it began
		err = nil
	}
	l.leases.finishing.Wait()
	return err
}

// Leave tells the gateway that the process is to end, and returns when it has taken elsewhere what it has and given the lease back, or ctx ends. No other gateway gets the backend any more. Stop comes next.
func (l *Listener) Leave(ctx context.Context) { l.leases.leave(ctx) }

// Stop ends the lease, tells its gateway why, and ends Serve.
func (l *Listener) Stop(why string) {
	l.leases.stop(&Error{Kind: KindUnavailable, Message: why})
	cut := time.AfterFunc(stopTimeout, l.server.Stop)
	defer cut.Stop()
	l.server.GracefulStop()
}

// ListenArguments reads the arguments of a program behind `serve`; what it says of them goes to out. Names of models that are downloaded are as they were given.
func ListenArguments(arguments []string, out io.Writer) (ListenOptions, error) {
	var o ListenOptions
	flags := flag.NewFlagSet(serveArgument, flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.Listen, "listen", "", "`HOST:PORT` to listen on; without TLS on this machine only")
	flags.StringVar(&o.TLS.Cert, "tls-cert", "", "`file` in PEM with this program's certificate, and those between it and its authority")
	flags.StringVar(&o.TLS.Key, "tls-key", "", "`file` in PEM with its private key")
	flags.StringVar(&o.TLS.CA, "client-ca", "", "`file` in PEM with the authority of gateways' certificates")
	flags.StringVar(&o.Data, "data", "", "`folder` of this program's own, for checkpoints on their way and spilled state")
	flags.DurationVar(&o.Expiry, "lease", defaultExpiry, "`time` after which a gateway that says nothing has lost the backend")
	flags.DurationVar(&o.Drain, "drain", 0, "`time` that the gateway has, once this program is asked to end, to move what is here to other backends")
	keep := flags.Int64("keep-mib", defaultKeepMiB, "`MiB` of checkpoints' files that are kept, so that they need not be sent again")
	flags.Func("model", "`folder` of a model that gateways may load, or hf://org/name[@revision], which is downloaded first; may be given more than once; without it they may load any", func(dir string) error {
		if strings.HasPrefix(dir, hubScheme) {
			o.Models = append(o.Models, dir)
			return nil
		}
		abs, err := filepath.Abs(dir)
		o.Models = append(o.Models, abs)
		return err
	})
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	var missing []string
	for _, f := range []struct{ name, value string }{{"--listen", o.Listen}, {"--data", o.Data}} {
		if f.value == "" {
			missing = append(missing, f.name)
		}
	}
	if o.TLS.Used() {
		for _, f := range []struct{ name, value string }{{"--tls-cert", o.TLS.Cert}, {"--tls-key", o.TLS.Key}, {"--client-ca", o.TLS.CA}} {
			if f.value == "" {
				missing = append(missing, f.name)
			}
		}
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case len(missing) > 0:
		return o, fmt.Errorf("missing: %s", strings.Join(missing, ", "))
	case o.Drain < 0:
		return o, fmt.Errorf("--drain: %v is not allowed: at least 0", o.Drain)
	case *keep < 0 || *keep > 1<<30:
		return o, fmt.Errorf("--keep-mib: %d is not allowed: 0 to %d", *keep, 1<<30)
	}
	o.Keep = *keep << 20
	return o, nil
}

// serveGateways is the main function of a program that serves gateways on other machines. Nothing keeps it but whoever started it.
func serveGateways(b Backend, arguments []string) error {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo})))
	o, err := ListenArguments(arguments, os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := fetchModels(o.Models); err != nil {
		return err
	}
	info, err := b.Info(context.Background())
	if err != nil {
		return fmt.Errorf("info: %w", err)
	}
	flush, err := exportTraces(context.Background(), info)
	if err != nil {
		return fmt.Errorf("export traces: %w", err)
	}
	defer flush()
	o.Exit = func(why error) {
		slog.Error(ExitMessage, "error", why)
		if !errors.As(why, new(anew)) {
			noteFault(why)
		}
		os.Exit(ExitAgain)
	}
	l, err := Listen(b, o)
	if err != nil {
		return err
	}
	if err := noteFaults(o.Data); err != nil {
		return fmt.Errorf("data: %w", err)
	}
	slog.Info("the backend listens", "plugin", info.Plugin, "address", l.Address(), "tls", o.TLS.Used(), "models", o.Models)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		s := <-signals
		if o.Drain > 0 {
			slog.Info("the backend waits for its gateway to take elsewhere what it has", "signal", s.String(), "at_most", o.Drain)
			ctx, cancel := context.WithTimeout(context.Background(), o.Drain)
			go func() { // whoever asks again does not want to wait
				defer cancel()
				select {
				case <-signals:
				case <-ctx.Done():
				}
			}()
			l.Leave(ctx)
			cancel()
		}
		slog.Info("the backend stops", "signal", s.String())
		l.Stop("the backend's process was asked to end")
	}()
	if err := l.Serve(); err != nil {
		return err
	}
	<-stopped
	return nil
}
