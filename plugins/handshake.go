package plugins

import (
	"context"
	"errors"
	"os/exec"
	"strings"

	goplugin "github.com/hashicorp/go-plugin"
	"github.com/tinsmith/tinsmith/plugins/backendpb"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/propagation"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
)

// dispenseName is the name under which a plugin process offers its backend.
const dispenseName = "backend"

// Environment variables with which a plugin process is started, besides go-plugin's own.
const (
	// EnvLifeline holds the number of an inherited descriptor: the read end of a pipe whose write end only the gateway has. The plugin exits at its end of file.
	EnvLifeline = "TINSMITH_PLUGIN_LIFELINE_FD"
	// EnvLock holds the number of an inherited descriptor of a lock file that the gateway has locked with flock. The plugin keeps it open, so the lock lives as long as it does.
	EnvLock = "TINSMITH_PLUGIN_LOCK_FD"
	// EnvProgressTimeout holds a duration as time.ParseDuration reads it: a plugin that has work and finishes no step of it for so long is killed. One that can tell what it waits for ends itself before, with Exit.
	EnvProgressTimeout = "TINSMITH_PLUGIN_PROGRESS_TIMEOUT"
	// EnvSocketDir is go-plugin's name for the directory of the unix socket; the gateway makes one for each start.
	EnvSocketDir = goplugin.EnvUnixSocketDir
)

// Handshake is what both ends must agree on. ProtocolVersion rises when backend.proto or a limit beside it changes in a way that an older end would misread or refuse.
var Handshake = goplugin.HandshakeConfig{
	ProtocolVersion:  6,
	MagicCookieKey:   "TINSMITH_PLUGIN",
	MagicCookieValue: "b2f6d1f09c6e4d0a8f3c51d27a1f4f0e",
}

// connector joins the contract to go-plugin.
type connector struct {
	goplugin.NetRPCUnsupportedPlugin
	backend Backend // in the plugin process only
}

// GRPCServer implements go-plugin's GRPCPlugin.
func (c *connector) GRPCServer(_ *goplugin.GRPCBroker, s *grpc.Server) error {
	if c.backend == nil {
		return errors.New("no backend to serve")
	}
	Register(s, c.backend)
	return nil
}

// GRPCClient implements go-plugin's GRPCPlugin. ctx ends when the process does.
func (c *connector) GRPCClient(ctx context.Context, _ *goplugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return NewClient(conn, ctx.Done()), nil
}

// ClientConfig is go-plugin's configuration for starting one process: mutual TLS with throw-away keys, the transport's limits, traces, and nothing of this
// process's environment but what cmd.Env holds. cmd and the configuration are for one start. Where cmd is nil the caller sets RunnerFunc.
func ClientConfig(cmd *exec.Cmd) *goplugin.ClientConfig {
	return &goplugin.ClientConfig{
		HandshakeConfig:  Handshake,
		Plugins:          goplugin.PluginSet{dispenseName: &connector{}},
		Cmd:              cmd,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		GRPCDialOptions:  DialOptions(),
	}
}

// Dispense connects to a started process.
func Dispense(c *goplugin.Client) (*Client, error) {
	protocol, err := c.Client()
	if err != nil {
		return nil, err
	}
	raw, err := protocol.Dispense(dispenseName)
	if err != nil {
		return nil, err
	}
	return raw.(*Client), nil
}

// Flow-control windows: large enough that a request of several megabytes is not cut into round trips. Answers need no large window, as gRPC opens it for
// a message whose length it has read; a small one bounds what is kept of a stream of tokens that nobody reads, which the backend then stops filling. The
// connection's window is given back when something arrives, not when it is read, so no stream holds up another one.
const (
	requestWindow    = 4 << 20
	answerWindow     = 64 << 10
	connectionWindow = 32 << 20
)

// ServerOptions are the gRPC server's options of a plugin process.
func ServerOptions() []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessageBytes),
		grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.InitialWindowSize(requestWindow),
		grpc.InitialConnWindowSize(connectionWindow),
	}
	if tracesExported() {
		options = append(options, grpc.StatsHandler(otelgrpc.NewServerHandler(traceOptions()...)))
	}
	return options
}

// DialOptions are the gRPC client's options of the gateway.
func DialOptions() []grpc.DialOption {
	options := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithInitialWindowSize(answerWindow),
		grpc.WithInitialConnWindowSize(connectionWindow),
	}
	if tracesExported() {
		options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(traceOptions()...)))
	}
	return append(options, measureCalls()...)
}

// traceOptions carry a trace across the border for the contract's calls, but not for Status, whose one stream lasts as long as the process, nor for go-plugin's own. A handler costs
// every call a third of what the call itself does, so there is none where nobody takes the spans; calls are measured without it.
func traceOptions() []otelgrpc.Option {
	return []otelgrpc.Option{
		otelgrpc.WithMeterProvider(noop.NewMeterProvider()),
		otelgrpc.WithPropagators(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{})),
		otelgrpc.WithFilter(func(i *stats.RPCTagInfo) bool {
			return strings.HasPrefix(i.FullMethodName, "/"+backendpb.Backend_ServiceDesc.ServiceName+"/") && i.FullMethodName != backendpb.Backend_Status_FullMethodName
		}),
	}
}
