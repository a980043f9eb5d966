package plugins

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) {
	if os.Getenv("PLUGINS_TEST_SERVE") != "" {
		if os.Getenv("PLUGINS_TEST_EXIT") != "" {
			go exitSoon()
		}
		Serve(&answers{})
		return
	}
	goleak.VerifyTestMain(m)
}

// answers is a backend that answers from functions; what has none is not called.
type answers struct {
	Backend
	forwardBackward func(context.Context, ForwardBackwardRequest) (ForwardBackwardResult, error)
	sample          func(context.Context, SampleRequest, func(SampleEvent) error) error
	deleteAdapter   func(context.Context) error
}

func (a *answers) Info(context.Context) (Info, error) {
	return Info{Plugin: "answers", Version: "1", BootID: "boot"}, nil
}

// Load takes until its caller leaves.
func (a *answers) Load(ctx context.Context, _ LoadRequest, progress func(LoadProgress)) (ModelInfo, error) {
	progress(LoadProgress{})
	<-ctx.Done()
	return ModelInfo{}, ctx.Err()
}

func (a *answers) ForwardBackward(ctx context.Context, r ForwardBackwardRequest) (ForwardBackwardResult, error) {
	return a.forwardBackward(ctx, r)
}

func (a *answers) Sample(ctx context.Context, r SampleRequest, emit func(SampleEvent) error) error {
	return a.sample(ctx, r, emit)
}

func (a *answers) DeleteAdapter(ctx context.Context, _ string) error { return a.deleteAdapter(ctx) }

// connect serves b to a client. stop ends the server as a crash would and closes done.
func connect(t *testing.T, b Backend) (c *Client, stop func()) {
	t.Helper()
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(ServerOptions()...)
	Register(server, b)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	options := append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return listener.Dial() }))
	conn, err := grpc.NewClient("passthrough:///backend", options...)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			server.Stop()
			<-served
			close(done)
		}
	}
	t.Cleanup(func() {
		_ = conn.Close()
		stop()
	})
	return NewClient(conn, done), stop
}

func TestErrorsCrossWhole(t *testing.T) {
	var failure error
	c, _ := connect(t, &answers{deleteAdapter: func(context.Context) error { return failure }})
	for _, tt := range []struct {
		name string
		err  error
		want Error
	}{
		{"internal", &Error{Kind: KindInternal, Message: "a message"}, Error{Kind: KindInternal, Message: "a message"}},
		{"invalid with field", Invalidf("data[3].weights", "%d is not allowed", 5), Error{Kind: KindInvalid, Field: "data[3].weights", Message: "5 is not allowed"}},
		{"not found", &Error{Kind: KindNotFound, Message: "x"}, Error{Kind: KindNotFound, Message: "x"}},
		{"already applied", ErrAlreadyApplied, *ErrAlreadyApplied},
		{"capacity", &Error{Kind: KindCapacity, Message: "x"}, Error{Kind: KindCapacity, Message: "x"}},
		{"unavailable", &Error{Kind: KindUnavailable, Message: "loading"}, Error{Kind: KindUnavailable, Message: "loading"}},
		{"not finite", &Error{Kind: KindNotFinite, Field: "layers.0", Message: "x"}, Error{Kind: KindNotFinite, Field: "layers.0", Message: "x"}},
		{"cancelled", &Error{Kind: KindCancelled, Message: "x"}, Error{Kind: KindCancelled, Message: "x"}},
		{"too large", &Error{Kind: KindTooLarge, Message: "x"}, Error{Kind: KindTooLarge, Message: "x"}},
		{"wrapped", fmt.Errorf("step: %w", &Error{Kind: KindNotFound, Message: "x"}), Error{Kind: KindNotFound, Message: "x"}},
		{"foreign", errors.New("disk full"), Error{Kind: KindInternal, Message: "disk full"}},
		{"kind out of range", &Error{Kind: 99, Message: "x"}, Error{Kind: KindInternal, Message: "x"}},
		{"not UTF-8", &Error{Kind: KindInvalid, Message: "a\xffb"}, Error{Kind: KindInvalid, Message: "a\uFFFDb"}},
		{"long", &Error{Kind: KindInvalid, Message: strings.Repeat("x", 1<<20)}, Error{Kind: KindInvalid, Message: strings.Repeat("x", maxErrorBytes) + " (cut)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			failure = tt.err
			err := c.DeleteAdapter(t.Context(), "a")
			var e *Error
			if !errors.As(err, &e) || *e != tt.want {
				t.Errorf("got %.200v, want %.200v", err, &tt.want)
			}
			if tt.want.Kind != KindInternal && !errors.Is(err, sentinel(tt.want.Kind)) {
				t.Errorf("errors.Is does not find kind %s in %v", tt.want.Kind, err)
			}
		})
	}
}

func TestContextErrors(t *testing.T) {
	c, _ := connect(t, &answers{deleteAdapter: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.DeleteAdapter(ctx, "a"); !errors.Is(err, ErrCancelled) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := c.DeleteAdapter(ctx, "a"); !errors.Is(err, ErrCancelled) || !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
}

func TestLostBackend(t *testing.T) {
	begun := make(chan struct{})
	c, stop := connect(t, &answers{deleteAdapter: func(ctx context.Context) error { close(begun); <-ctx.Done(); return ctx.Err() }})
	c.ExplainLoss(func() string { return "exit status 7" })
	result := make(chan error, 1)
	go func() { result <- c.DeleteAdapter(context.Background(), "a") }()
	<-begun
	stop()
	if err := <-result; !errors.Is(err, ErrBackendLost) || !strings.Contains(err.Error(), "during delete adapter: exit status 7") {
		t.Errorf("the call in flight: %v", err)
	}
	if _, err := c.Info(t.Context()); !errors.Is(err, ErrBackendLost) {
		t.Errorf("a later call: %v", err)
	}
}

// TestLargePayload sends as much as the HTTP side may accept, and more than the transport takes.
func TestLargePayload(t *testing.T) {
	c, _ := connect(t, &answers{forwardBackward: func(_ context.Context, r ForwardBackwardRequest) (ForwardBackwardResult, error) {
		d := r.Data[0]
		return ForwardBackwardResult{Logprobs: [][]float32{d.Weights}, Metrics: map[string]float64{"last": float64(d.Tokens[len(d.Tokens)-1])}}, nil
	}})
	const n = MaxBodyBytes / 12 // tokens, targets and weights of four bytes each
	d := Datum{Tokens: make([]int32, n), Targets: make([]int32, n), K: 1, Weights: make([]float32, n)}
	d.Tokens[n-1], d.Weights[n-1] = 77, float32(math.Inf(-1))
	res, err := c.ForwardBackward(t.Context(), ForwardBackwardRequest{Adapter: "a", Position: 1, Data: []Datum{d}})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Logprobs[0]) != n || res.Logprobs[0][n-1] != d.Weights[n-1] || res.Metrics["last"] != 77 {
		t.Errorf("%d values came back, the last %v", len(res.Logprobs[0]), res.Logprobs[0][n-1])
	}
	_, err = c.ForwardBackward(t.Context(), ForwardBackwardRequest{Adapter: "a", Position: 1, Data: []Datum{d, d}})
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "at most 83886080 are allowed") {
		t.Errorf("a request over the limit: %v", err)
	}
}

func TestEmitErrorEndsTheStream(t *testing.T) {
	ended := make(chan error, 1)
	c, _ := connect(t, &answers{sample: func(ctx context.Context, _ SampleRequest, emit func(SampleEvent) error) error {
		for i := 0; ; i++ {
			if err := emit(SampleEvent{Tokens: &SampledTokens{Tokens: []int32{int32(i)}, Logprobs: []float32{0}}}); err != nil {
				ended <- err
				return err
			}
			if ctx.Err() != nil {
				ended <- ctx.Err()
				return ctx.Err()
			}
		}
	}})
	stop := errors.New("enough")
	if err := c.Sample(t.Context(), SampleRequest{ID: "s"}, func(SampleEvent) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Sample says %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the backend was not told")
	}
}

// TestTraceCrosses wants the span of the plugin's side in the trace of the caller.
func TestTraceCrosses(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1") // nothing is sent there: the test has a provider of its own
	spans := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(before)
	var c *Client
	finish := make(chan struct{})
	c, _ = connect(t, &answers{deleteAdapter: func(ctx context.Context) error { close(finish); return nil }})
	ctx, span := provider.Tracer("test").Start(t.Context(), "request")
	if err := c.DeleteAdapter(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	<-finish
	span.End()
	kinds := map[string]bool{}
	for _, s := range spans.Started() {
		if s.SpanContext().TraceID() == span.SpanContext().TraceID() {
			kinds[s.SpanKind().String()] = true
		}
	}
	if !kinds["client"] || !kinds["server"] {
		t.Errorf("kinds of span in the caller's trace: %v, want client and server", kinds)
	}
}

// TestServeRefuses starts a plugin without a gateway.
func TestServeRefuses(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name        string
		environment []string
		want        string
	}{
		{"by hand", nil, "tinsmith starts it"},
		{"no lifeline", []string{Handshake.MagicCookieKey + "=" + Handshake.MagicCookieValue}, EnvLifeline},
		{"a lifeline that is not open", []string{Handshake.MagicCookieKey + "=" + Handshake.MagicCookieValue, EnvLifeline + "=99"}, "bad file descriptor"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), program)
			cmd.Env = append(tt.environment, "PLUGINS_TEST_SERVE=1")
			var out, errs strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &errs
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs.String(), tt.want) || out.String() != "" {
				t.Errorf("%v; standard error %q, standard output %q; want status 1 and %q", err, errs.String(), out.String(), tt.want)
			}
		})
	}
}

func TestRequestsCrossUnchanged(t *testing.T) {
	fb := ForwardBackwardRequest{
		Adapter: "a", Position: 1 << 40, Loss: "ppo", LossConfig: map[string]float64{"k": 0.25}, ForwardOnly: true, Share: Share{Key: "ann", Weight: 2.5},
		Data: []Datum{{Tokens: []int32{1, -2}, Targets: []int32{3}, K: 2, Weights: []float32{0.5}, Logprobs: []float32{-1}, Advantages: []float32{2}, SequenceRatioMask: []float32{1}}, {}},
	}
	everyFieldIsSet(t, fb)
	if got, err := forwardBackwardFromPB(forwardBackwardToPB(&fb)); err != nil || !reflect.DeepEqual(got, fb) {
		t.Errorf("forward_backward %+v, %v; want %+v", got, err, fb)
	}
	sample := SampleRequest{
		ID: "i", Adapter: "a", Version: LatestVersion, Prompt: []int32{1, 2}, NumSamples: 3, MaxTokens: 4, Temperature: 0.5, TopK: -1, TopP: 0.9, MinP: 0.1, Seed: math.MaxUint64,
		StopTokens: []int32{5}, MinTokens: 6, FrequencyPenalty: 0.1, PresencePenalty: -0.1, RepetitionPenalty: 1.5, LogitBias: map[int32]float64{7: -8}, TopKSampledLogprobs: 9,
		PromptLogprobs: true, PromptLogprobsLastN: 10, TopKPromptLogprobs: 11, TargetPromptTokens: []int32{-1}, TargetPromptK: 1, PromptAlternatives: 12, AtEnd: true, Share: Share{Key: "ann", Weight: 2.5},
		PrefixScope: "bob", Constraint: &Constraint{Grammar: []byte{1, 2}, Think: &ThinkRule{Open: []int32{3}, Close: []int32{4}, Forced: []int32{5, 6}, Budget: 7, Inside: true, Without: []int32{9}}, Excluded: []int32{8}},
	}
	everyFieldIsSet(t, sample)
	everyFieldIsSet(t, *sample.Constraint)
	everyFieldIsSet(t, *sample.Constraint.Think)
	if got, err := sampleFromPB(sampleToPB(&sample)); err != nil || !reflect.DeepEqual(got, sample) {
		t.Errorf("sample %+v, %v; want %+v", got, err, sample)
	}
	vocabulary := Vocabulary{Tokens: [][]byte{[]byte("a"), {}, {0xff, 0}, []byte("<end>")}, Special: []bool{false, false, true, true}, Ends: []int32{3}}
	everyFieldIsSet(t, vocabulary)
	if got, err := vocabularyFromPB(vocabularyToPB(&vocabulary)); err != nil || !reflect.DeepEqual(got, vocabulary) {
		t.Errorf("vocabulary %+v, %v; want %+v", got, err, vocabulary)
	}
	for name, p := range map[string]*backendpb.SetVocabularyRequest{
		"half a length":       {Text: []byte("a"), Lengths: []byte{1, 0}, Special: []byte{0}},
		"a length below 0":    {Text: []byte("a"), Lengths: packInts([]int32{-1}), Special: []byte{0}},
		"a length too large":  {Text: []byte("a"), Lengths: packInts([]int32{2}), Special: []byte{0}},
		"bytes left over":     {Text: []byte("ab"), Lengths: packInts([]int32{1}), Special: []byte{0}},
		"too few flags":       {Text: []byte("a"), Lengths: packInts([]int32{1})},
		"a quarter of an end": {Text: []byte("a"), Lengths: packInts([]int32{1}), Special: []byte{0}, Ends: []byte{1}},
	} {
		if _, err := vocabularyFromPB(p); KindOf(err) != KindInvalid {
			t.Errorf("vocabulary with %s: %v, want it refused", name, err)
		}
	}
	status := Status{
		Time: time.Unix(1, 2), BootID: "b", Adapters: 1, Versions: 2, QueuedTraining: 3, RunningSamples: 4, WaitingSamples: 5, Cycles: 6, CycleSeconds: 7.5, TrainedTokens: 8,
		SampledTokens: 9, PrefillTokens: 10, KVPages: 11, KVPagesFree: 12, AdapterBytes: 13, SpilledBytes: 16, MemoryBytes: 17, MemoryLimit: 18, WeightBytes: 14, LastProgressAge: 15,
		CyclePasses: 17, CycleSteps: 18, SamplingTurns: 19, SamplingSeconds: 20.5, NoRoom: "c",
	}
	everyFieldIsSet(t, status)
	if got, err := statusFromPB(statusToPB(&status)); err != nil || !reflect.DeepEqual(got, status) {
		t.Errorf("status %+v, %v; want %+v", got, err, status)
	}
	execution := Execution{Cycle: 1, Begin: time.Unix(2, 3), End: time.Unix(4, 5), SamplingTurns: 6, Sampling: 7}
	everyFieldIsSet(t, execution)
	for _, x := range []Execution{execution, {}} {
		if got := executionFromPB(executionToPB(x)); got != x {
			t.Errorf("execution %+v, want %+v", got, x)
		}
	}
	model := ModelInfo{
		Architecture: "A", Parameters: 1, Layers: 2, HiddenSize: 3, VocabSize: 4, MaxContextLength: 5, DType: "d", Device: "e", Arithmetic: "f", ModelHash: "g", MaxRank: 6, TiedHead: true, Products: "j",
		Memory: []MemoryShare{{Name: "h", Bytes: 7, Detail: "i"}},
	}
	everyFieldIsSet(t, model)
	if got, err := modelFromPB(modelToPB(&model)); err != nil || !reflect.DeepEqual(got, model) {
		t.Errorf("model %+v, %v; want %+v", got, err, model)
	}
	info := AdapterInfo{Config: AdapterConfig{Rank: 1, Seed: 2, TrainAttention: true, TrainMLP: true, TrainUnembed: true, Modules: []string{"m"}, Alpha: 1.5}, Version: 3, Step: 4, Bytes: 5, Notices: []string{"n"}}
	everyFieldIsSet(t, info)
	everyFieldIsSet(t, info.Config)
	if got, err := adapterInfoFromPB(adapterInfoToPB(&info)); err != nil || !reflect.DeepEqual(got, info) {
		t.Errorf("adapter %+v, %v; want %+v", got, err, info)
	}
	top := TopLogprobs{K: 1, IDs: []int32{1}, Logprobs: []float32{-1}}
	for _, e := range []SampleEvent{
		{Prompt: &PromptScores{Version: 1, CachedTokens: 2, Logprobs: []float32{-3}, Top: top, Targets: []float32{4}, AltTokens: []int32{5}, AltLogprobs: []float32{6}}},
		{Tokens: &SampledTokens{Sequence: 1, Tokens: []int32{2}, Logprobs: []float32{3}, Top: top, ConstraintLogprobs: []float32{-4}}},
		{Finished: &SequenceFinished{Sequence: 1, Reason: StopToken}},
		{Finished: &SequenceFinished{Sequence: 2, Reason: StopCancelled}},
		{Finished: &SequenceFinished{Sequence: 2, Reason: StopComplete}},
	} {
		if got, err := eventFromPB(eventToPB(&e)); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("event %+v, %v; want %+v", got, err, e)
		}
	}
	for s := ScopeWeights; s <= ScopeAccumulator; s++ {
		if got := scopeFromPB(scopeToPB(s)); got != s {
			t.Errorf("scope %d came back as %d", s, got)
		}
	}
	if checkScope(scopeFromPB(backendpb.Scope_SCOPE_UNSPECIFIED)) == nil {
		t.Error("a missing scope is taken for one")
	}
}

// everyFieldIsSet makes that a field which is added later cannot be forgotten in the conversions.
func everyFieldIsSet(t *testing.T, v any) {
	t.Helper()
	r := reflect.ValueOf(v)
	for i := range r.NumField() {
		if r.Field(i).IsZero() {
			t.Errorf("%T.%s is not set by the test", v, r.Type().Field(i).Name)
		}
	}
}

func TestPackedFloatsKeepTheirBits(t *testing.T) {
	v := []float32{0, float32(math.Copysign(0, -1)), math.Float32frombits(0x7fc00001), float32(math.Inf(1)), math.SmallestNonzeroFloat32}
	got, err := unpackFloats("x", packFloats(v))
	if err != nil || !slices.EqualFunc(got, v, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
		t.Errorf("%v, %v; want %v", got, err, v)
	}
}

// The fuzz targets give the decoders every message that protobuf accepts, and then the checks what the decoders accept: nothing may panic.

func FuzzForwardBackward(f *testing.F) {
	f.Add(marshal(f, forwardBackwardToPB(&ForwardBackwardRequest{
		Adapter: "a", Position: 1, Loss: "gspo", LossConfig: map[string]float64{ClipLow: math.NaN()},
		Data: []Datum{{Tokens: []int32{1}, Targets: []int32{2}, K: 1, Logprobs: []float32{0}, Advantages: []float32{1}, SequenceRatioMask: []float32{1}}},
	})))
	f.Add(marshal(f, &backendpb.ForwardBackwardRequest{Loss: "cross_entropy", Data: []*backendpb.Datum{{K: math.MaxInt64}, {Tokens: []byte{1, 2, 3}}, {K: math.MaxInt32, Tokens: make([]byte, 8), Targets: make([]byte, 8)}}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p backendpb.ForwardBackwardRequest
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		r, err := forwardBackwardFromPB(&p)
		if err != nil {
			mustBeInvalid(t, err)
			return
		}
		if err := r.Validate(&ModelInfo{VocabSize: 8, MaxContextLength: 16, MaxRank: 8}); err != nil {
			mustBeInvalid(t, err)
		}
	})
}

func FuzzSample(f *testing.F) {
	f.Add(marshal(f, sampleToPB(&SampleRequest{ID: "i", Prompt: []int32{1, 2}, NumSamples: 1, MaxTokens: 2, TopP: 1, RepetitionPenalty: 1, TargetPromptK: 1, TargetPromptTokens: []int32{-1}})))
	f.Add(marshal(f, &backendpb.SampleRequest{Id: "i", Prompt: make([]byte, 4), NumSamples: 1, TopP: 1, RepetitionPenalty: 1, TargetPromptK: math.MaxInt32, PromptAlternatives: -1, MaxTokens: math.MaxInt64}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p backendpb.SampleRequest
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		r, err := sampleFromPB(&p)
		if err != nil {
			mustBeInvalid(t, err)
			return
		}
		if err := r.Validate(&ModelInfo{VocabSize: 8, MaxContextLength: 16, MaxRank: 8}); err != nil {
			mustBeInvalid(t, err)
		}
	})
}

func FuzzSampleEvent(f *testing.F) {
	f.Add(marshal(f, eventToPB(&SampleEvent{Tokens: &SampledTokens{Sequence: 1, Tokens: []int32{1}, Logprobs: []float32{-1}}})))
	f.Add(marshal(f, &backendpb.SampleEvent{Event: &backendpb.SampleEvent_Prompt{Prompt: &backendpb.PromptScores{Logprobs: []byte{1}, CachedTokens: math.MinInt64}}}))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p backendpb.SampleEvent
		if proto.Unmarshal(raw, &p) != nil {
			return
		}
		e, err := eventFromPB(&p)
		if err != nil {
			mustBeInvalid(t, err)
			return
		}
		if (e.Prompt != nil) == (e.Tokens != nil) && (e.Finished == nil) {
			t.Errorf("an accepted event without content: %+v", e)
		}
	})
}

func mustBeInvalid(t *testing.T, err error) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Kind != KindInvalid || e.Field == "" {
		t.Errorf("refused with %v, want an invalid field", err)
	}
}

func marshal(f *testing.F, m proto.Message) []byte {
	f.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		f.Fatal(err)
	}
	return raw
}
