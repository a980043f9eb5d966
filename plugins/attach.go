package plugins

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
)

// AttachRequest says which backend a gateway wants to use, and as whom.
type AttachRequest struct {
	Address string // HOST:PORT
	TLS     TLSFiles
	Gateway string // id of the gateway, for messages; 1 to 200 bytes
	Number  uint64 // of the lease, at least 1: above all numbers that this or any other gateway of the same backend has used
	Plugin  string // what the backend must be; "": whatever it is
	Model   string // directory on the backend's machine; "": the only one that it may load
	// ModelFiles are SHA-256 of the gateway's files of the model, by name: what the backend's directory has under these names must be the same.
	ModelFiles map[string][]byte
}

// Attachment is the use of a backend on another machine, from the grant of a lease to its end. Its methods may be called concurrently.
type Attachment struct {
	request AttachRequest
	backend *crossing
	process string // of the backend
	bootID  string

	stop   context.CancelFunc // ends the stream that holds the lease
	lost   chan struct{}      // closed with the lease
	leaves chan struct{}      // closed when the backend says that it is to end
	closed chan struct{}      // closed when everything of it has ended

	mu     sync.Mutex
	reason string
	told   bool // the backend itself said why it ended, or this side ended it
}

const (
	probeTimeout   = 2 * time.Second // how long a lost backend's process is asked whether it lives
	restartTimeout = 3 * time.Second // how long the next process is waited for, which knows how the last one ended
	restartPoll    = 50 * time.Millisecond
)

// Attach takes the lease of a backend and holds it until it is lost or Close. ctx is for the attaching only. An error of the backend's is a *Error: KindUnavailable if it may succeed later, as with a higher number; KindInvalid, with a
// field such as "config.model", if not.
func Attach(ctx context.Context, r AttachRequest) (*Attachment, error) {
	a := &Attachment{request: r, lost: make(chan struct{}), leaves: make(chan struct{}), closed: make(chan struct{})}
	control, err := a.dial(false)
	if err != nil {
		return nil, err
	}
	files, err := a.dial(true)
	if err != nil {
		_ = control.Close()
		return nil, err
	}
	streamCtx, stop := context.WithCancel(context.Background())
	a.stop = stop
	giveUp := context.AfterFunc(ctx, stop)
	stream, grant, err := a.claim(streamCtx, backendpb.NewRemoteClient(control))
	if !giveUp() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		stop()
		_, _ = control.Close(), files.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("attach to %s: %w", r.Address, err)
	}
	a.process, a.bootID = grant.GetProcess(), grant.GetBootId()
	client := NewClient(control, a.lost)
	client.ExplainLoss(a.Reason)
	a.backend = &crossing{client, backendpb.NewRemoteClient(files)}
	go func() {
		defer close(a.closed)
		a.hold(stream, time.Duration(grant.GetLeaseNanos()))
		stop()
		_, _ = control.Close(), files.Close()
	}()
	return a, nil
}

// dial prepares one connection, which is made with its first call and never again: a call must not come by another way than the lease.
func (a *Attachment) dial(files bool) (*grpc.ClientConn, error) {
	options := append(DialOptions(), grpc.WithIdleTimeout(0), grpc.WithStatsHandler(&connectionEnd{a.broke}), grpc.WithContextDialer(dialOnce()),
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			var trailer metadata.MD
			err := invoke(leased(ctx, a.request.Number), method, req, reply, cc, append(opts, grpc.Trailer(&trailer))...)
			a.heard(err, trailer)
			return err
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := open(leased(ctx, a.request.Number), desc, cc, method, opts...)
			if err != nil {
				return nil, err
			}
			return &heldStream{s, a}, nil
		}))
	if files {
		options = append(options, grpc.WithInitialWindowSize(requestWindow)) // a checkpoint's files are long, and read as they come
	}
	secure, err := a.request.credentials()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient("passthrough:///"+a.request.Address, append(options, grpc.WithTransportCredentials(secure))...)
}

func (r *AttachRequest) credentials() (credentials.TransportCredentials, error) {
	if err := CheckAddress(r.Address, r.TLS.Used()); err != nil {
		return nil, Invalidf("config.address", "%v", err)
	}
	if !r.TLS.Used() {
		return insecure.NewCredentials(), nil
	}
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return nil, Invalidf("config.address", "%v", err)
	}
	config, err := r.TLS.Client(host)
	if err != nil {
		return nil, unavailablef("tls: %v", err) // files that are being renewed
	}
	return credentials.NewTLS(config), nil
}

// errDialed says that the one connection has been made.
var errDialed = errors.New("the connection was made once and is gone")

func dialOnce() func(context.Context, string) (net.Conn, error) {
	var dialed atomic.Bool
	return func(ctx context.Context, address string) (net.Conn, error) {
		if dialed.Swap(true) {
			return nil, errDialed
		}
		return (&net.Dialer{Timeout: handshakeTimeout}).DialContext(ctx, "tcp", address)
	}
}

// heldStream notes that it ended because the lease did, or with its connection: whoever reads it may hear of that first.
type heldStream struct {
	grpc.ClientStream
	a *Attachment
}

func (s *heldStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err == nil {
		return nil
	}
	s.a.heard(err, s.Trailer())
	if _, said := fromStatus(err); !said && status.Code(err) == codes.Unavailable {
		s.a.broke()
	}
	return err
}

// heard loses the lease if a call's error says that it is over.
func (a *Attachment) heard(err error, trailer metadata.MD) {
	if e, ok := fromStatus(err); err != nil && ok && len(trailer.Get(leaseKey)) > 0 {
		a.lose(e.Message, true)
	}
}

// connectionEnd tells of a connection's end.
type connectionEnd struct{ ended func() }

func (c *connectionEnd) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context {
	return ctx
}
func (c *connectionEnd) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (c *connectionEnd) HandleRPC(context.Context, stats.RPCStats)                       {}
func (c *connectionEnd) HandleConn(_ context.Context, s stats.ConnStats) {
	if _, ok := s.(*stats.ConnEnd); ok {
		c.ended()
	}
}

// broke is told that a connection has ended.
func (a *Attachment) broke() { a.lose("its connection broke", false) }

type attachStream = grpc.BidiStreamingClient[backendpb.AttachRequest, backendpb.AttachResponse]

func (a *Attachment) claim(ctx context.Context, rpc backendpb.RemoteClient) (attachStream, *backendpb.AttachResponse_Grant, error) {
	stream, err := rpc.Attach(ctx)
	if err != nil {
		return nil, nil, attachError(err)
	}
	claim := &backendpb.AttachRequest_Claim{
		ProtocolVersion: int64(Handshake.ProtocolVersion), Gateway: a.request.Gateway, Number: a.request.Number, Plugin: a.request.Plugin, ModelDir: a.request.Model,
	}
	for _, name := range slices.Sorted(maps.Keys(a.request.ModelFiles)) {
		claim.ModelFiles = append(claim.ModelFiles, &backendpb.ModelFile{Name: name, Sha256: a.request.ModelFiles[name]})
	}
	_ = stream.Send(&backendpb.AttachRequest{Claim: claim}) // Recv tells why not
	answer, err := stream.Recv()
	if err != nil {
		return nil, nil, attachError(err)
	}
	if answer.GetGrant().GetLeaseNanos() < int64(minExpiry) {
		return nil, nil, unavailablef("the backend answers without a lease")
	}
	return stream, answer.GetGrant(), nil
}

// attachError is a refusal of the backend's, or why there is no answer.
func attachError(err error) error {
	if e, ok := fromStatus(err); ok {
		return e
	}
	return unavailablef("no answer: %v", err)
}

// hold renews the lease until it is lost.
func (a *Attachment) hold(stream attachStream, expiry time.Duration) {
	answers := make(chan error)
	go func() { // ends with the stream, or with the lease
		for told := false; ; {
			answer, err := stream.Recv()
			if answer.GetLeaving() && !told {
				told = true
				close(a.leaves)
			}
			select {
			case answers <- err:
			case <-a.lost:
				return
			}
			if err != nil {
				return
			}
		}
	}()
	renew := time.NewTicker(expiry / 5)
	defer renew.Stop()
	silent := time.NewTimer(expiry * 2 / 3)
	defer silent.Stop()
	for {
		select {
		case <-a.lost:
			return
		case <-renew.C:
			_ = stream.Send(&backendpb.AttachRequest{}) // Recv tells of its end
		case err := <-answers:
			if e, ok := fromStatus(err); err != nil && ok {
				a.lose(e.Message, true)
			} else if err != nil {
				a.lose("its connection broke", false)
			}
			silent.Reset(expiry * 2 / 3)
		case <-silent.C:
			a.lose(fmt.Sprintf("it did not answer for %v", expiry*2/3), false)
		}
	}
}

// lose ends the attachment, for a reason; the first one counts.
func (a *Attachment) lose(reason string, told bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reason != "" {
		return
	}
	a.reason, a.told = reason, told
	close(a.lost)
}

// Backend is the backend. Its checkpoints are on this machine: those that it saves come here, and those that it loads are brought to it. When the lease is lost its calls fail with ErrBackendLost.
func (a *Attachment) Backend() Backend { return a.backend }

// Done is closed when the lease is lost.
func (a *Attachment) Done() <-chan struct{} { return a.lost }

// Leaving is closed when the backend's process has been asked to end. It waits a while for its gateway to take elsewhere what it has, and to give the lease back.
func (a *Attachment) Leaving() <-chan struct{} { return a.leaves }

// Reason says why the lease was lost; "" while it is held.
func (a *Attachment) Reason() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reason
}

// Lose gives the lease back, for a reason that the errors of calls have, and returns at once.
func (a *Attachment) Lose(reason string) { a.lose(reason, true) }

// Close gives the lease back and returns when nothing is left of it on this side.
func (a *Attachment) Close() {
	a.Lose("the gateway has ended it")
	<-a.closed
}

// Crashed tells, once the lease is lost, whether the backend's process has crashed: it said nothing and is not there any more, and the next one, if it comes soon, does not say that somebody else ended it. It takes some seconds at most.
// One that cannot be reached does not count: nobody knows.
func (a *Attachment) Crashed(ctx context.Context) bool {
	a.mu.Lock()
	told := a.told
	a.mu.Unlock()
	if told {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, restartTimeout)
	defer cancel()
	for {
		hello, refused := a.hello(ctx)
		switch {
		case hello != nil:
			return hello.GetProcess() != a.process && !slices.Contains(hello.GetEndedOutside(), a.process)
		case !refused:
			return false
		}
		select { // its platform may start the next one
		case <-ctx.Done():
			return true
		case <-time.After(restartPoll):
		}
	}
}

// hello asks who is there, by a connection of its own; nil: nobody answers, and whether the machine says that nobody listens.
func (a *Attachment) hello(ctx context.Context) (answer *backendpb.HelloResponse, refused bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	secure, err := a.request.credentials()
	if err != nil {
		return nil, false
	}
	var nobody atomic.Bool
	dial := dialOnce()
	conn, err := grpc.NewClient("passthrough:///"+a.request.Address, grpc.WithTransportCredentials(secure), grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c, err := dial(ctx, address)
		if errors.Is(err, syscall.ECONNREFUSED) {
			nobody.Store(true)
		}
		return c, err
	}))
	if err != nil {
		return nil, false
	}
	defer conn.Close()
	if answer, err = backendpb.NewRemoteClient(conn).Hello(ctx, &backendpb.HelloRequest{}); err != nil {
		return nil, nobody.Load()
	}
	return answer, false
}
