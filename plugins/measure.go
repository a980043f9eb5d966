package plugins

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/semconv/v1.39.0/rpcconv"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// callMeter records how long the gateway's calls take, in the instrument of OpenTelemetry's conventions. The attributes of a method and an outcome are made once.
type callMeter struct {
	duration metric.Float64Histogram

	mu     sync.RWMutex
	series map[callSeries]metric.RecordOption
}

type callSeries struct {
	method string
	code   codes.Code
}

// codeNames are the names of gRPC's codes in the order of their numbers.
var codeNames = strings.Fields("OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED " +
	"FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED")

// measureCalls are the dial options that record every call.
func measureCalls() []grpc.DialOption {
	duration, err := rpcconv.NewClientCallDuration(otel.Meter("github.com/tinsmith/tinsmith/plugins"), metric.WithExplicitBucketBoundaries(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10))
	if err != nil {
		slog.Error("calls of backends are not measured", "error", err)
		return nil
	}
	m := &callMeter{duration: duration.Inst(), series: map[callSeries]metric.RecordOption{}}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(m.unary), grpc.WithChainStreamInterceptor(m.stream)}
}

func (m *callMeter) unary(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	begun := time.Now()
	err := invoke(ctx, method, request, answer, conn, opts...)
	m.record(ctx, method, begun, err)
	return err
}

func (m *callMeter) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	begun := time.Now()
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		m.record(ctx, method, begun, err)
		return nil, err
	}
	return &measuredStream{ClientStream: s, many: desc.ServerStreams, ended: func(err error) { m.record(ctx, method, begun, err) }}, nil
}

// measuredStream is recorded when its end is received. One that its caller leaves before is not.
type measuredStream struct {
	grpc.ClientStream
	many  bool // there are answers until io.EOF; else there is one
	ended func(error)
}

// RecvMsg implements grpc.ClientStream. It is not called concurrently.
func (s *measuredStream) RecvMsg(answer any) error {
	err := s.ClientStream.RecvMsg(answer)
	if s.ended != nil && (err != nil || !s.many) {
		if errors.Is(err, io.EOF) {
			s.ended(nil)
		} else {
			s.ended(err)
		}
		s.ended = nil
	}
	return err
}

func (m *callMeter) record(ctx context.Context, method string, begun time.Time, err error) {
	m.duration.Record(ctx, time.Since(begun).Seconds(), m.attributes(method, status.Code(err)))
}

func (m *callMeter) attributes(method string, code codes.Code) metric.RecordOption {
	if int(code) >= len(codeNames) {
		code = codes.Unknown
	}
	key := callSeries{method, code}
	m.mu.RLock()
	in, known := m.series[key]
	m.mu.RUnlock()
	if known {
		return in
	}
	in = metric.WithAttributeSet(attribute.NewSet(semconv.RPCMethod(strings.TrimPrefix(method, "/")), semconv.RPCResponseStatusCode(codeNames[code])))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.series[key] = in
	return in
}
