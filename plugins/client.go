package plugins

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// exitWait is how long a call whose connection broke waits to learn that the process is gone, so that its error can say so.
const exitWait = 10 * time.Second

// Client is the gateway's side of the transport: a Backend in another process. Its methods may be called concurrently.
type Client struct {
	rpc     backendpb.BackendClient
	done    <-chan struct{}
	explain func() string
}

var _ Backend = (*Client)(nil)

// NewClient makes a client on a connection. done is closed when the process at the other end is gone; nil where that is never known.
func NewClient(conn grpc.ClientConnInterface, done <-chan struct{}) *Client {
	return &Client{rpc: backendpb.NewBackendClient(conn), done: done}
}

// ExplainLoss sets what tells more about a lost process, such as its exit status and last words: it becomes part of each ErrBackendLost. To be called before any other method.
func (c *Client) ExplainLoss(explain func() string) { c.explain = explain }

// Done is closed when the process is gone; nil where that is never known.
func (c *Client) Done() <-chan struct{} { return c.done }

// failure turns the error of a call into the contract's. ctx is the caller's.
func (c *Client) failure(ctx context.Context, operation string, err error) error {
	e, ok := fromStatus(err)
	if code := status.Code(err); code == codes.DeadlineExceeded || code == codes.Canceled {
		awaitDeadline(ctx)
	}
	switch {
	case ok && e.Kind == KindCancelled && ctx.Err() != nil:
		e.cause = ctx.Err()
		return e
	case ok:
		return e
	case ctx.Err() != nil:
		return Cancelled(ctx.Err())
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled:
		// gRPC itself says so: the connection broke, and with it the certainty whether the operation ran. Nearly always because the process is gone;
		// if it is not, it has lost its Status stream with the same connection, and its supervisor ends it.
		timer := time.NewTimer(exitWait)
		defer timer.Stop()
		select {
		case <-c.done:
		case <-timer.C:
		case <-ctx.Done():
		}
		e := &Error{Kind: KindBackendLost, Message: "the backend process was lost during " + operation}
		if c.explain != nil {
			e.Message += ": " + c.explain()
		}
		return e
	case codes.Unimplemented: // a plugin in another language may leave out what it must not be asked for
		return &Error{Kind: KindInvalid, Message: operation + ": the backend does not have it"}
	case codes.ResourceExhausted:
		return &Error{Kind: KindInvalid, Message: fmt.Sprintf("%s: message over the limit of %d bytes: %s", operation, MaxMessageBytes, status.Convert(err).Message())}
	}
	return fmt.Errorf("%s: %w", operation, err)
}

// awaitDeadline waits for a deadline that is about to pass: the other process has the same one and may see it earlier.
func awaitDeadline(ctx context.Context) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < time.Second {
		<-ctx.Done()
	}
}

func checkSize(field string, m proto.Message) error {
	if n := proto.Size(m); n > MaxMessageBytes {
		return Invalidf(field, "the request has %d bytes, at most %d are allowed", n, MaxMessageBytes)
	}
	return nil
}

// Info implements Backend.
func (c *Client) Info(ctx context.Context) (Info, error) {
	p, err := c.rpc.Info(ctx, &backendpb.InfoRequest{})
	if err != nil {
		return Info{}, c.failure(ctx, "info", err)
	}
	return Info{Plugin: p.GetPlugin(), Version: p.GetVersion(), BootID: p.GetBootId()}, nil
}

// Load implements Backend.
func (c *Client) Load(ctx context.Context, req LoadRequest, progress func(LoadProgress)) (ModelInfo, error) {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Load(streamCtx, &backendpb.LoadRequest{ModelDir: req.ModelDir, Name: req.Name, Config: req.Config, Scratch: req.Scratch, Reserve: req.Reserve})
	if err != nil {
		return ModelInfo{}, c.failure(ctx, "load", err)
	}
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return ModelInfo{}, errors.New("load: the backend ended the answer without a model")
		}
		if err != nil {
			return ModelInfo{}, c.failure(ctx, "load", err)
		}
		switch e := p.GetEvent().(type) {
		case *backendpb.LoadResponse_Progress:
			progress(LoadProgress{Stage: e.Progress.GetStage(), Done: e.Progress.GetDone(), Total: e.Progress.GetTotal()})
		case *backendpb.LoadResponse_Model:
			m, err := modelFromPB(e.Model)
			if err != nil {
				return ModelInfo{}, fmt.Errorf("load: %w", err)
			}
			return m, nil
		}
	}
}

// Status implements Backend. When the backend goes away it returns ErrBackendLost.
func (c *Client) Status(ctx context.Context, report func(Status)) error {
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Status(streamCtx, &backendpb.StatusRequest{})
	if err != nil {
		return c.statusEnd(ctx, err)
	}
	for {
		p, err := stream.Recv()
		if err != nil {
			return c.statusEnd(ctx, err)
		}
		s, err := statusFromPB(p)
		if err != nil {
			return fmt.Errorf("status: %w", err)
		}
		report(s)
	}
}

// statusEnd does not wait for the process's exit: the end of this stream is how its supervisor learns that it has to look.
func (c *Client) statusEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if e, ok := fromStatus(err); ok {
		return e
	}
	return &Error{Kind: KindBackendLost, Message: "the backend's status stream ended"}
}

// CreateAdapter implements Backend.
func (c *Client) CreateAdapter(ctx context.Context, req CreateAdapterRequest) (AdapterInfo, error) {
	p, err := c.rpc.CreateAdapter(ctx, &backendpb.CreateAdapterRequest{Adapter: req.Adapter, Config: configToPB(&req.Config)})
	if err != nil {
		return AdapterInfo{}, c.failure(ctx, "create adapter", err)
	}
	return adapterInfoFromPB(p)
}

// DeleteAdapter implements Backend.
func (c *Client) DeleteAdapter(ctx context.Context, adapter string) error {
	if _, err := c.rpc.DeleteAdapter(ctx, &backendpb.DeleteAdapterRequest{Adapter: adapter}); err != nil {
		return c.failure(ctx, "delete adapter", err)
	}
	return nil
}

// ForwardBackward implements Backend.
func (c *Client) ForwardBackward(ctx context.Context, req ForwardBackwardRequest) (ForwardBackwardResult, error) {
	m := forwardBackwardToPB(&req)
	if err := checkSize("data", m); err != nil {
		return ForwardBackwardResult{}, err
	}
	p, err := c.rpc.ForwardBackward(ctx, m)
	if err != nil {
		return ForwardBackwardResult{}, c.failure(ctx, "forward_backward", err)
	}
	res := ForwardBackwardResult{
		Logprobs: make([][]float32, len(p.GetLogprobs())), Terms: make([][]float32, len(p.GetTerms())), Metrics: p.GetMetrics(), Execution: executionFromPB(p.GetExecution()),
	}
	for i, b := range p.GetLogprobs() {
		if res.Logprobs[i], err = unpackFloats("logprobs", b); err != nil {
			return ForwardBackwardResult{}, fmt.Errorf("forward_backward: %w", err)
		}
	}
	for i, b := range p.GetTerms() {
		if res.Terms[i], err = unpackFloats("terms", b); err != nil {
			return ForwardBackwardResult{}, fmt.Errorf("forward_backward: %w", err)
		}
	}
	return res, nil
}

// OptimStep implements Backend.
func (c *Client) OptimStep(ctx context.Context, req OptimStepRequest) (OptimStepResult, error) {
	a := &req.Adam
	p, err := c.rpc.OptimStep(ctx, &backendpb.OptimStepRequest{
		Adapter: req.Adapter, Position: req.Position, LearningRate: a.LearningRate, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay, GradClipNorm: a.GradClipNorm,
	})
	if err != nil {
		return OptimStepResult{}, c.failure(ctx, "optim_step", err)
	}
	return OptimStepResult{Version: p.GetVersion(), Step: p.GetStep(), Metrics: p.GetMetrics(), Execution: executionFromPB(p.GetExecution())}, nil
}

// Pin implements Backend.
func (c *Client) Pin(ctx context.Context, req PinRequest) (PinResult, error) {
	p, err := c.rpc.Pin(ctx, &backendpb.PinRequest{Adapter: req.Adapter, Position: req.Position, Name: req.Name, WeightsOnly: req.WeightsOnly})
	if err != nil {
		return PinResult{}, c.failure(ctx, "pin", err)
	}
	return PinResult{Version: p.GetVersion()}, nil
}

// Unpin implements Backend.
func (c *Client) Unpin(ctx context.Context, req UnpinRequest) error {
	if _, err := c.rpc.Unpin(ctx, &backendpb.UnpinRequest{Adapter: req.Adapter, Name: req.Name}); err != nil {
		return c.failure(ctx, "unpin", err)
	}
	return nil
}

// Sample implements Backend.
func (c *Client) Sample(ctx context.Context, req SampleRequest, emit func(SampleEvent) error) error {
	m := sampleToPB(&req)
	if err := checkSize("prompt", m); err != nil {
		return err
	}
	streamCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.rpc.Sample(streamCtx, m)
	if err != nil {
		return c.failure(ctx, "sample", err)
	}
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return c.failure(ctx, "sample", err)
		}
		e, err := eventFromPB(p)
		if err != nil {
			return fmt.Errorf("sample: %w", err)
		}
		if err := emit(e); err != nil {
			return err
		}
	}
}

// Cancel implements Backend.
func (c *Client) Cancel(ctx context.Context, req CancelRequest) error {
	if _, err := c.rpc.Cancel(ctx, &backendpb.CancelRequest{Id: req.ID, Sequence: int64(req.Sequence)}); err != nil {
		return c.failure(ctx, "cancel", err)
	}
	return nil
}

// SaveAdapter implements Backend.
func (c *Client) SaveAdapter(ctx context.Context, req SaveAdapterRequest) (SaveAdapterResult, error) {
	p, err := c.rpc.SaveAdapter(ctx, &backendpb.SaveAdapterRequest{
		Adapter: req.Adapter, Position: req.Position, Version: req.Version, Scope: scopeToPB(req.Scope), Path: req.Path, ExportNames: req.ExportNames,
		StackedExperts: req.StackedExperts, Metadata: req.Metadata,
	})
	if err != nil {
		return SaveAdapterResult{}, c.failure(ctx, "save adapter", err)
	}
	return SaveAdapterResult{Bytes: p.GetBytes(), Version: p.GetVersion(), Step: p.GetStep()}, nil
}

// LoadAdapter implements Backend.
func (c *Client) LoadAdapter(ctx context.Context, req LoadAdapterRequest) (AdapterInfo, error) {
	p, err := c.rpc.LoadAdapter(ctx, &backendpb.LoadAdapterRequest{Adapter: req.Adapter, Position: req.Position, Path: req.Path, Scope: scopeToPB(req.Scope), Frozen: req.Frozen, Version: req.Version})
	if err != nil {
		return AdapterInfo{}, c.failure(ctx, "load adapter", err)
	}
	return adapterInfoFromPB(p)
}

// Configure implements Backend.
func (c *Client) Configure(ctx context.Context, req ConfigureRequest) (ConfigureResult, error) {
	p, err := c.rpc.Configure(ctx, &backendpb.ConfigureRequest{Config: req.Config})
	if err != nil {
		return ConfigureResult{}, c.failure(ctx, "configure", err)
	}
	return ConfigureResult{Changed: p.GetChanged()}, nil
}

// SetVocabulary implements Backend.
func (c *Client) SetVocabulary(ctx context.Context, v Vocabulary) error {
	if err := v.checkSpecial(); err != nil { // what crosses cannot say it
		return err
	}
	m := vocabularyToPB(&v)
	if err := checkSize("vocabulary", m); err != nil {
		return err
	}
	if _, err := c.rpc.SetVocabulary(ctx, m); err != nil {
		return c.failure(ctx, "set vocabulary", err)
	}
	return nil
}
