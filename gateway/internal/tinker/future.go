package tinker

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire"
)

// retrieveFuture holds the poll until the result is there. 408 makes the client poll again; it tells its user only about a pause, and of that not more than once a minute.
func (s *Service) retrieveFuture(c call) (any, error) {
	var in struct {
		RequestID string `json:"request_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	outcome, err := s.core.Wait(c.Request.Context(), c.owner, in.RequestID, hold)
	if errors.Is(err, runs.ErrPending) {
		paused := s.core.Paused(in.RequestID)
		paused.Reason = keys.TellFault(c.Request.Context(), paused.Reason)
		return status{http.StatusRequestTimeout, tryAgain(in.RequestID, paused)}, nil
	}
	if err != nil {
		return nil, err
	}
	if f := outcome.Failure; f != nil {
		return gin.H{"error": tellFailure(c, f.Category, f.Message), "category": f.Category}, nil
	}
	return answerOutcome(c, outcome)
}

// answerOutcome has memory for an answer before it is made: a result may be large, and as many polls ask for it as a client likes.
func answerOutcome(c call, o *runs.Outcome) (any, error) {
	asProtobuf := accepts(c, protobufType)
	if err := c.claim.TakeAnswer(outcomeBytes(o, asProtobuf)); err != nil {
		return nil, err
	}
	return encodeOutcome(o, asProtobuf)
}

// tryAgain is the answer about a future that is not finished.
func tryAgain(id string, p runs.Pause) gin.H {
	body := gin.H{"type": "try_again", "request_id": id, "queue_state": "active"}
	switch {
	case p.Limited:
		body["queue_state"], body["queue_state_reason"] = "paused_rate_limit", p.Reason
	case p.Reason != "":
		body["queue_state"], body["queue_state_reason"] = "paused_capacity", p.Reason
	}
	return body
}

// outcomeBytes is about what encodeOutcome takes.
func outcomeBytes(o *runs.Outcome, asProtobuf bool) int64 {
	switch {
	case o.ForwardBackward != nil:
		return wire.OutputBytes(o.ForwardBackward, asProtobuf)
	case o.Sample != nil:
		return wire.SampleBytes(o.Sample, asProtobuf)
	}
	return 0
}

// encodeOutcome gives the form that the SDK expects for the result of each kind of operation: for passes and samples protobuf, if it takes that, and JSON for the rest.
func encodeOutcome(o *runs.Outcome, asProtobuf bool) (any, error) {
	switch {
	case o.ForwardBackward != nil && !asProtobuf:
		b, err := wire.EncodeForwardBackwardOutputJSON(o.ForwardBackward)
		return encodedJSON(b), err
	case o.Sample != nil && !asProtobuf:
		return encodedJSON(wire.EncodeSampleResponseJSON(o.Sample)), nil
	case o.ForwardBackward != nil:
		b, err := wire.EncodeForwardBackwardOutput(o.ForwardBackward)
		return protobuf(b), err
	case o.Sample != nil:
		b, err := wire.EncodeSampleResponse(o.Sample)
		return protobuf(b), err
	case o.CreatedRun != nil:
		return gin.H{"model_id": o.CreatedRun.RunID, "type": "create_model"}, nil
	case o.UnloadedRun != nil:
		return gin.H{"model_id": o.UnloadedRun.RunID, "type": "unload_model"}, nil
	case o.OptimStep != nil:
		return gin.H{"metrics": finiteMetrics(o.OptimStep.Metrics), "type": "optim_step"}, nil
	case o.Saved != nil && o.Kind == runs.OpSaveWeightsExternal:
		return gin.H{"path": o.Saved.Path, "size_bytes": o.Saved.Size, "type": string(o.Kind)}, nil
	case o.Saved != nil:
		return gin.H{"path": o.Saved.Path, "type": string(o.Kind)}, nil
	case o.SavedSampler != nil:
		return gin.H{"sampling_session_id": o.SavedSampler.SamplerID, "type": "save_weights_for_sampler"}, nil
	case o.Loaded != nil:
		return gin.H{"path": o.Loaded.Path, "model_id": o.Loaded.RunID, "type": "load_weights"}, nil
	}
	return nil, fmt.Errorf("encode outcome of %s: kind %q has no result", o.RequestID, o.Kind)
}

// retrieveFutures is one poll for all samples of a client.
func (s *Service) retrieveFutures(c call) (any, error) {
	var in struct {
		Target struct {
			Type            string `json:"type"`
			SamplingSession string `json:"sampling_session_id"`
			Clone           int64  `json:"cloned_sampler_id"`
		} `json:"target"`
		PrevCursor int64    `json:"prev_cursor"`
		Timeout    *float64 `json:"timeout"`
		// Results are kept until the session ends, so nothing is dropped for being read.
		Retrieved []string `json:"retrieved_request_ids"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.Target.Type != "sampling_session" {
		return nil, badRequestf("target.type: %.40q is not sampling_session", in.Target.Type)
	}
	wait := hold
	if in.Timeout != nil {
		if !(*in.Timeout >= 0) {
			return nil, badRequestf("timeout: %v is negative", *in.Timeout)
		}
		wait = time.Duration(min(*in.Timeout, hold.Seconds()) * float64(time.Second))
	}
	done, next, err := s.core.Completions(c.Request.Context(), runs.CompletionQuery{Owner: c.owner, SamplerID: in.Target.SamplingSession, Clone: in.Target.Clone, Cursor: in.PrevCursor, Hold: wait})
	if err != nil {
		return nil, err
	}
	completions := make([]gin.H, len(done))
	for i, d := range done {
		completions[i] = gin.H{"state": "failed", "request_id": d.RequestID}
		if !d.Failed {
			completions[i] = gin.H{"state": "finished", "request_id": d.RequestID, "response_payload_uncompressed_size": d.Size}
		}
	}
	return gin.H{"completions": completions, "cursor": next}, nil
}

func (s *Service) cancelFuture(c call) (any, error) {
	var in struct {
		RequestID string `json:"request_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	return nil, s.core.CancelFuture(c, c.owner, in.RequestID)
}
