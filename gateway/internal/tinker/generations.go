package tinker

import (
	"regexp"
	"strconv"
)

// What differs between the releases of the SDK, from 0.3.0 on, and how it is told which one asks. docs/sdk-releases.md has the same table for people.
//
//	release           what it does that the newest does not                             told by
//	0.3.0             lists the checkpoints of a run at /models/RUN/checkpoints         the path
//	0.3.0 to 0.5.1    load_weights has no field "optimizer": load_state loads that too  version: loadsOptimizer
//	0.3.0 to 0.16.1   fields that have their default are left out, a chunk's type too   nothing: absent is the default
//	0.3.0 to 0.18.2   passes are JSON, and so are the results of passes and samples     Content-Type and Accept
//	0.3.0 to 0.16.1   does not ask for client/config                                    nothing: it needs none of it
//	0.3.0 to 0.22.1   wants a redirect to an archive, not its address in JSON           Accept: application/gzip
//	0.19.0 to 0.22.2  forward is JSON, forward_backward protobuf (client/config)        Content-Type
//	0.3.0 to 0.27.2   fails on a list that has an "external" checkpoint                 version: externalCheckpoints
//
// Releases before 0.3.0 have no sessions and are not served.

// generation says how one version of the SDK differs from the newest where nothing in its requests says so. This table is the only place that knows versions.
type generation struct {
	// externalCheckpoints: lists may hold checkpoints of type "external"; older clients fail on the whole list.
	externalCheckpoints bool
	// loadsOptimizer: load_weights without the field "optimizer" loads the optimizer's state, as load_state was documented then.
	loadsOptimizer bool
}

// since gives the first version (of 0.x) that has a feature; the rows hold from that version on.
var generations = []struct {
	since int
	generation
}{
	{28, generation{externalCheckpoints: true}},
	{6, generation{}},
	{0, generation{loadsOptimizer: true}},
}

var sdkVersion = regexp.MustCompile(`^AsyncTinker/Python (\d{1,6})\.(\d{1,6})\.`)

// generationOf reads the version from the User-Agent. A client that is not the SDK gets the newest form.
func generationOf(c call) generation {
	m := sdkVersion.FindStringSubmatch(c.Request.UserAgent())
	if m == nil || m[1] != "0" {
		return generations[0].generation
	}
	minor, _ := strconv.Atoi(m[2]) // digits, by the expression
	for _, g := range generations {
		if minor >= g.since {
			return g.generation
		}
	}
	return generation{}
}

// clientConfig is the answer of client/config. It serves all versions alike: each reads the fields that it knows.
type clientConfigAnswer struct {
	PJWTAuthEnabled               bool `json:"pjwt_auth_enabled"`              // keys are exchanged for tokens, so that whoami() works
	ParallelFwdBwdChunks          bool `json:"parallel_fwdbwd_chunks"`         // false: an arriving number means that every lower one has arrived or never will
	ProtoCompressFwdBwd           bool `json:"proto_compress_fwdbwd"`          // zstd bodies: a third of the bytes for a little CPU, which pays off over a network only
	ProtoWriteFwdBwd              bool `json:"proto_write_fwdbwd"`             // 0.24: protobuf bodies
	FwdViaFwdBwd                  bool `json:"fwd_via_fwdbwd"`                 // 0.24: no /forward
	UsePyqwestTransport           bool `json:"use_pyqwest_transport"`          // the SDK's own default; its other transport loses answers for 45 s
	CreateModelViaLoadWeights     bool `json:"create_model_via_load_weights"`  // 0.24.1 to 0.36: one path for all versions
	SampleUseRetrieveFutures      bool `json:"sample_use_retrieve_futures"`    // one poll per sampling session
	SampleJoinSamplingSession     bool `json:"sample_join_sampling_session"`   // unpickled clients get distinct numbers
	SampleMaxConcurrentRequests   int  `json:"sample_max_concurrent_requests"` // per sampling client
	CustomLossServerSide          bool `json:"custom_loss_server_side"`        // false: the SDK runs custom losses itself
	FwdBwdMaxChunkLen             int  `json:"fwdbwd_max_chunk_len"`           // datums per chunk
	FwdBwdMaxChunkBytesCount      int  `json:"fwdbwd_max_chunk_bytes_count"`   // bytes per chunk
	BillingExceptionMaxPauseInSec int  `json:"billing_exception_max_pause_duration_sec"`
}

func (s *Service) clientConfig(c call) (any, error) {
	inFlight := s.opts.MaxPerClient
	if own := s.core.Use(c.owner).Limits.Samples; own > 0 { // with more it would only be refused
		inFlight = min(inFlight, own)
	}
	return clientConfigAnswer{
		PJWTAuthEnabled: true, ProtoWriteFwdBwd: true, FwdViaFwdBwd: true, UsePyqwestTransport: true, CreateModelViaLoadWeights: true,
		SampleUseRetrieveFutures: true, SampleJoinSamplingSession: true, SampleMaxConcurrentRequests: inFlight,
		FwdBwdMaxChunkLen: 1024, FwdBwdMaxChunkBytesCount: 5_000_000, BillingExceptionMaxPauseInSec: 3600,
	}, nil
}

// dynamicConfigAnswer is read at the start and every few minutes, by 0.25 and newer.
type dynamicConfigAnswer struct {
	RefreshIntervalSec       int  `json:"refresh_interval_sec"`
	SampleCancelEnabled      bool `json:"sample_cancel_enabled"`
	SampleCancelMaxBatchSize int  `json:"sample_cancel_max_batch_size"`
}

func (s *Service) dynamicConfig(call) (any, error) {
	return dynamicConfigAnswer{RefreshIntervalSec: 300, SampleCancelEnabled: true, SampleCancelMaxBatchSize: 64}, nil
}
