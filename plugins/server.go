package plugins

import (
	"context"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"google.golang.org/grpc"
)

// Register serves a backend on a gRPC server. Errors cross whole, as *Error.
func Register(s grpc.ServiceRegistrar, b Backend) {
	backendpb.RegisterBackendServer(s, &server{backend: b})
}

// server is the plugin's side of the transport: it decodes, calls the backend, encodes.
type server struct {
	backendpb.UnimplementedBackendServer
	backend Backend
}

func (s *server) Info(ctx context.Context, _ *backendpb.InfoRequest) (*backendpb.InfoResponse, error) {
	i, err := s.backend.Info(ctx)
	if err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.InfoResponse{Plugin: i.Plugin, Version: i.Version, BootId: i.BootID}, nil
}

func (s *server) Load(p *backendpb.LoadRequest, stream grpc.ServerStreamingServer[backendpb.LoadResponse]) error {
	var sendErr error
	req := LoadRequest{ModelDir: p.GetModelDir(), Name: p.GetName(), Config: p.GetConfig(), Scratch: p.GetScratch(), Reserve: p.GetReserve()}
	m, err := s.backend.Load(stream.Context(), req, func(lp LoadProgress) {
		if sendErr == nil {
			sendErr = stream.Send(&backendpb.LoadResponse{Event: &backendpb.LoadResponse_Progress{Progress: &backendpb.LoadProgress{Stage: lp.Stage, Done: lp.Done, Total: lp.Total}}})
		}
	})
	if err != nil {
		return toStatus(err)
	}
	return stream.Send(&backendpb.LoadResponse{Event: &backendpb.LoadResponse_Model{Model: modelToPB(&m)}})
}

func (s *server) Status(_ *backendpb.StatusRequest, stream grpc.ServerStreamingServer[backendpb.StatusResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	return toStatus(s.backend.Status(ctx, func(st Status) {
		if stream.Send(statusToPB(&st)) != nil {
			cancel()
		}
	}))
}

func (s *server) CreateAdapter(ctx context.Context, p *backendpb.CreateAdapterRequest) (*backendpb.AdapterInfo, error) {
	c, err := configFromPB(p.GetConfig())
	if err != nil {
		return nil, toStatus(err)
	}
	info, err := s.backend.CreateAdapter(ctx, CreateAdapterRequest{Adapter: p.GetAdapter(), Config: c})
	if err != nil {
		return nil, toStatus(err)
	}
	return adapterInfoToPB(&info), nil
}

func (s *server) DeleteAdapter(ctx context.Context, p *backendpb.DeleteAdapterRequest) (*backendpb.DeleteAdapterResponse, error) {
	if err := s.backend.DeleteAdapter(ctx, p.GetAdapter()); err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.DeleteAdapterResponse{}, nil
}

func (s *server) ForwardBackward(ctx context.Context, p *backendpb.ForwardBackwardRequest) (*backendpb.ForwardBackwardResponse, error) {
	req, err := forwardBackwardFromPB(p)
	if err != nil {
		return nil, toStatus(err)
	}
	res, err := s.backend.ForwardBackward(ctx, req)
	if err != nil {
		return nil, toStatus(err)
	}
	out := &backendpb.ForwardBackwardResponse{
		Logprobs: make([][]byte, len(res.Logprobs)), Terms: make([][]byte, len(res.Terms)), Metrics: res.Metrics, Execution: executionToPB(res.Execution),
	}
	for i, v := range res.Logprobs {
		out.Logprobs[i] = packFloats(v)
	}
	for i, v := range res.Terms {
		out.Terms[i] = packFloats(v)
	}
	return out, nil
}

func (s *server) OptimStep(ctx context.Context, p *backendpb.OptimStepRequest) (*backendpb.OptimStepResponse, error) {
	res, err := s.backend.OptimStep(ctx, OptimStepRequest{Adapter: p.GetAdapter(), Position: p.GetPosition(), Adam: AdamParams{
		LearningRate: p.GetLearningRate(), Beta1: p.GetBeta1(), Beta2: p.GetBeta2(), Eps: p.GetEps(), WeightDecay: p.GetWeightDecay(), GradClipNorm: p.GetGradClipNorm(),
	}})
	if err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.OptimStepResponse{Version: res.Version, Step: res.Step, Metrics: res.Metrics, Execution: executionToPB(res.Execution)}, nil
}

func (s *server) Pin(ctx context.Context, p *backendpb.PinRequest) (*backendpb.PinResponse, error) {
	res, err := s.backend.Pin(ctx, PinRequest{Adapter: p.GetAdapter(), Position: p.GetPosition(), Name: p.GetName(), WeightsOnly: p.GetWeightsOnly()})
	if err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.PinResponse{Version: res.Version}, nil
}

func (s *server) Unpin(ctx context.Context, p *backendpb.UnpinRequest) (*backendpb.UnpinResponse, error) {
	if err := s.backend.Unpin(ctx, UnpinRequest{Adapter: p.GetAdapter(), Name: p.GetName()}); err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.UnpinResponse{}, nil
}

func (s *server) Sample(p *backendpb.SampleRequest, stream grpc.ServerStreamingServer[backendpb.SampleEvent]) error {
	req, err := sampleFromPB(p)
	if err != nil {
		return toStatus(err)
	}
	return toStatus(s.backend.Sample(stream.Context(), req, func(e SampleEvent) error { return stream.Send(eventToPB(&e)) }))
}

func (s *server) Cancel(ctx context.Context, p *backendpb.CancelRequest) (*backendpb.CancelResponse, error) {
	sequence, err := narrow("sequence", p.GetSequence())
	if err != nil {
		return nil, toStatus(err)
	}
	if err := s.backend.Cancel(ctx, CancelRequest{ID: p.GetId(), Sequence: sequence}); err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.CancelResponse{}, nil
}

func (s *server) SaveAdapter(ctx context.Context, p *backendpb.SaveAdapterRequest) (*backendpb.SaveAdapterResponse, error) {
	res, err := s.backend.SaveAdapter(ctx, SaveAdapterRequest{
		Adapter: p.GetAdapter(), Position: p.GetPosition(), Version: p.GetVersion(), Scope: scopeFromPB(p.GetScope()), Path: p.GetPath(),
		ExportNames: p.GetExportNames(), StackedExperts: p.GetStackedExperts(), Metadata: p.GetMetadata(),
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.SaveAdapterResponse{Bytes: res.Bytes, Version: res.Version, Step: res.Step}, nil
}

func (s *server) LoadAdapter(ctx context.Context, p *backendpb.LoadAdapterRequest) (*backendpb.AdapterInfo, error) {
	info, err := s.backend.LoadAdapter(ctx, LoadAdapterRequest{
		Adapter: p.GetAdapter(), Position: p.GetPosition(), Path: p.GetPath(), Scope: scopeFromPB(p.GetScope()), Frozen: p.GetFrozen(), Version: p.GetVersion(),
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return adapterInfoToPB(&info), nil
}

func (s *server) Configure(ctx context.Context, p *backendpb.ConfigureRequest) (*backendpb.ConfigureResponse, error) {
	res, err := s.backend.Configure(ctx, ConfigureRequest{Config: p.GetConfig()})
	if err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.ConfigureResponse{Changed: res.Changed}, nil
}

func (s *server) SetVocabulary(ctx context.Context, p *backendpb.SetVocabularyRequest) (*backendpb.SetVocabularyResponse, error) {
	v, err := vocabularyFromPB(p)
	if err != nil {
		return nil, toStatus(err)
	}
	if err := s.backend.SetVocabulary(ctx, v); err != nil {
		return nil, toStatus(err)
	}
	return &backendpb.SetVocabularyResponse{}, nil
}
