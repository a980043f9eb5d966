package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"github.com/tinsmith/tinsmith/plugins/transfer"
)

// leaseKey is the metadata of a call with the number of the lease that it is made under.
const leaseKey = "tinsmith-lease"

// leaseOver comes with the error of a call whose lease ended before it did: the error says why. So a gateway knows the reason however the news of it come.
var leaseOver = metadata.Pairs(leaseKey, "over")

// holder is who has taken a lease, as it is kept in the data directory: so that a number that was outrun stays refused when the process is another one.
type holder struct {
	Number  uint64 `json:"number"`
	Gateway string `json:"gateway"`
}

// leases gives the use of a backend to one gateway at a time: the one with the highest number. Its methods may be called concurrently.
type leases struct {
	file  string
	renew func(over *lease) error // makes everything new when a lease is over and its calls are cancelled; called by one goroutine at a time

	changing sync.Mutex // held while the lease goes from one to another; taken before mu

	mu      sync.Mutex
	highest holder
	current *lease        // nil: nobody's
	broken  error         // why nobody can have it any more
	stopped bool          // the process ends: there is nothing to make new
	free    chan struct{} // closed when the present lease is over and all is made new; nil without one

	leaving     chan struct{} // closed when the process is to end, once its gateway has left
	leavingOnce sync.Once

	finishing sync.WaitGroup // of leases that have ended
}

// lease is one gateway's use of the backend, from one attach to its end.
type lease struct {
	holder
	modelDir string
	ctx      context.Context // ends with it; its cause is a *Error
	end      context.CancelCauseFunc

	mu    sync.Mutex
	calls int
	idle  chan struct{} // closed when it has ended and no call runs
}

// openLeases reads who has had the backend of a data directory.
func openLeases(file string, renew func(over *lease) error) (*leases, error) {
	l := &leases{file: file, renew: renew, leaving: make(chan struct{})}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &l.highest)
	}
	if err != nil {
		return nil, fmt.Errorf("read who had the lease last: %s: %w", file, err)
	}
	return l, nil
}

// keep makes the highest number durable. mu is held.
func (l *leases) keep(h holder) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := transfer.WriteFile(l.file, text, 0o600); err != nil {
		return err
	}
	l.highest = h
	return nil
}

// take gives the backend to a gateway, with everything new. A former one that still has it loses it at once, and whatever it is doing with it ends. A number that is not above all that came before is refused.
func (l *leases) take(h holder, modelDir string) (*lease, error) {
	select {
	case <-l.leaving:
		return nil, unavailablef("lease %d is refused: the backend's process is about to end", h.Number)
	default:
	}
	l.mu.Lock()
	if h.Number <= l.highest.Number {
		defer l.mu.Unlock()
		return nil, unavailablef("lease %d is refused: the backend belongs to gateway %.100q with lease %d, and only a higher number takes it over", h.Number, l.highest.Gateway, l.highest.Number)
	}
	if err := l.keep(h); err != nil {
		defer l.mu.Unlock()
		return nil, fmt.Errorf("lease %d could not be made durable: %w", h.Number, err)
	}
	former := l.current
	l.mu.Unlock()
	if former != nil {
		l.finish(former, lostf("lease %d of gateway %.100q was taken over by gateway %.100q with lease %d", former.Number, former.Gateway, h.Gateway, h.Number))
	}
	l.changing.Lock()
	defer l.changing.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		return nil, unavailablef("lease %d is refused: the process ends: %v", h.Number, l.broken)
	}
	if l.highest.Number != h.Number {
		return nil, unavailablef("lease %d is refused: gateway %.100q has come with lease %d meanwhile", h.Number, l.highest.Gateway, l.highest.Number)
	}
	one := &lease{holder: h, modelDir: modelDir, idle: make(chan struct{})}
	one.ctx, one.end = context.WithCancelCause(context.Background())
	l.current, l.free = one, make(chan struct{})
	return one, nil
}

// finish ends a lease, for a reason, and returns when nothing is left of it. It may be called more than once, and the first reason counts.
func (l *leases) finish(one *lease, why error) {
	one.end(why)
	l.changing.Lock()
	defer l.changing.Unlock()
	l.mu.Lock()
	mine := l.current == one && !l.stopped
	l.mu.Unlock()
	if !mine {
		return
	}
	one.drained()
	err := l.renew(one)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = nil
	close(l.free)
	if err != nil {
		l.broken = err
	}
}

// leave tells the gateway that the process is to end, takes no other one, and returns when the gateway has left, or ctx ends.
func (l *leases) leave(ctx context.Context) {
	l.leavingOnce.Do(func() { close(l.leaving) })
	l.mu.Lock()
	current, free := l.current, l.free
	l.mu.Unlock()
	if current == nil {
		return
	}
	select {
	case <-free:
	case <-ctx.Done():
	}
}

// drained closes idle when no call runs.
func (o *lease) drained() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.calls == 0 {
		o.close()
	}
}

// close closes idle, once. mu is held.
func (o *lease) close() {
	select {
	case <-o.idle:
	default:
		close(o.idle)
	}
}

// enter begins a call under the lease whose number ctx carries. The context that comes back ends with the lease too; leave must be called, and says why the call counts for nothing if the lease is no longer the one.
func (l *leases) enter(ctx context.Context) (in context.Context, one *lease, leave func() error, err error) {
	given := metadata.ValueFromIncomingContext(ctx, leaseKey)
	if len(given) != 1 {
		return nil, nil, nil, unavailablef("the call names %d leases and not one", len(given))
	}
	number, err := strconv.ParseUint(given[0], 10, 64)
	if err != nil {
		return nil, nil, nil, unavailablef("the call's lease %.40q is no number", given[0])
	}
	l.mu.Lock()
	one, highest := l.current, l.highest
	l.mu.Unlock()
	if one == nil || one.Number != number {
		return nil, nil, nil, lostf("lease %d is over: gateway %.100q has come with lease %d", number, highest.Gateway, highest.Number)
	}
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.ctx.Err() != nil {
		return nil, nil, nil, context.Cause(one.ctx)
	}
	one.calls++
	in, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(one.ctx, func() { cancel(context.Cause(one.ctx)) })
	return in, one, func() error {
		stop()
		cancel(nil)
		one.mu.Lock()
		defer one.mu.Unlock()
		one.calls--
		if one.ctx.Err() == nil {
			return nil
		}
		if one.calls == 0 {
			one.close()
		}
		return context.Cause(one.ctx)
	}, nil
}

// stop ends the present lease without making anything new: the process ends.
func (l *leases) stop(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped, l.broken = true, why
	if l.current != nil {
		l.current.end(why)
	}
}

// leaseOf is the lease that a call was let in under.
type leaseContext struct{}

func leaseOf(ctx context.Context) *lease {
	one, _ := ctx.Value(leaseContext{}).(*lease)
	return one
}

// unleased are the calls that need no lease, one of them because it takes it.
func unleased(method string) bool {
	return method == backendpb.Remote_Hello_FullMethodName || method == backendpb.Remote_Attach_FullMethodName
}

// unary lets in who has the lease. What a call gives that outlived it is refused.
func (l *leases) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if unleased(info.FullMethod) {
		return handler(ctx, req)
	}
	in, one, leave, err := l.enter(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	answer, err := handler(context.WithValue(in, leaseContext{}, one), req)
	if over := leave(); over != nil {
		_ = grpc.SetTrailer(ctx, leaseOver) // without it the gateway hears of it by the stream that holds the lease
		return nil, toStatus(over)
	}
	return answer, err
}

// stream is unary for streams.
func (l *leases) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if unleased(info.FullMethod) {
		return handler(srv, s)
	}
	in, one, leave, err := l.enter(s.Context())
	if err != nil {
		return toStatus(err)
	}
	err = handler(srv, &leasedStream{s, context.WithValue(in, leaseContext{}, one), one})
	if over := leave(); over != nil {
		s.SetTrailer(leaseOver)
		return toStatus(over)
	}
	return err
}

// leasedStream says nothing more once its lease is over.
type leasedStream struct {
	grpc.ServerStream
	ctx   context.Context
	lease *lease
}

func (s *leasedStream) Context() context.Context { return s.ctx }

func (s *leasedStream) SendMsg(m any) error {
	if s.lease.ctx.Err() != nil {
		return toStatus(context.Cause(s.lease.ctx))
	}
	return s.ServerStream.SendMsg(m)
}

func unavailablef(format string, args ...any) *Error {
	return &Error{Kind: KindUnavailable, Message: fmt.Sprintf(format, args...)}
}

func lostf(format string, args ...any) *Error {
	return &Error{Kind: KindBackendLost, Message: fmt.Sprintf(format, args...)}
}
