package tinker

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire"
)

func (s *Service) createSamplingSession(c call) (any, error) {
	var in struct {
		SessionID string `json:"session_id"`
		Seq       *int64 `json:"sampling_session_seq_id"`
		BaseModel string `json:"base_model"`
		ModelPath string `json:"model_path"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.BaseModel == "" && in.ModelPath == "" {
		return nil, badRequestf("base_model: either base_model or model_path is required")
	}
	if in.Seq == nil {
		return nil, badRequestf("sampling_session_seq_id: is required")
	}
	sampler, err := s.core.CreateSampler(c, runs.NewSampler{Owner: c.owner, SessionID: in.SessionID, Seq: *in.Seq, BaseModel: in.BaseModel, ModelPath: in.ModelPath})
	if err != nil {
		return nil, err
	}
	return gin.H{"sampling_session_id": sampler.ID, "type": "create_sampling_session"}, nil
}

func (s *Service) joinSamplingSession(c call) (any, error) {
	var in struct {
		ID string `json:"sampling_session_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	n, err := s.core.JoinSampler(c, c.owner, in.ID, idempotencyKey(c))
	if err != nil {
		return nil, err
	}
	return gin.H{"client_counter": n, "type": "join_sampling_session"}, nil
}

func (s *Service) getSampler(c call) (any, error) {
	sampler, err := s.core.Sampler(c, c.owner, c.Param("sampler"))
	if err != nil {
		return nil, err
	}
	out := gin.H{"sampler_id": sampler.ID, "base_model": sampler.BaseModel}
	if sampler.ModelPath != "" {
		out["model_path"] = sampler.ModelPath
	}
	return out, nil
}

func (s *Service) sample(c call) (any, error) {
	var in wire.SampleRequest
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	req, err := in.Sample()
	if err != nil {
		return nil, err
	}
	req.Owner = c.owner
	submitted, err := s.core.Sample(c, req)
	if err != nil {
		return nil, err
	}
	return gin.H{"request_id": submitted.RequestID, "sample_sequence_ids": list(submitted.SequenceIDs)}, nil
}
