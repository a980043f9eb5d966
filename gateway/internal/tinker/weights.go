package tinker

import (
	"encoding/json"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// saveRequest has the fields of all three kinds of save.
type saveRequest struct {
	ModelID              string            `json:"model_id"`
	Path                 *string           `json:"path"` // a name, not a path
	SeqID                *int64            `json:"seq_id"`
	SamplingSessionSeqID *int64            `json:"sampling_session_seq_id"`
	TTLSeconds           *int64            `json:"ttl_seconds"`
	Overwrite            bool              `json:"overwrite"`
	UserMetadata         map[string]string `json:"user_metadata"`
	Kind                 string            `json:"kind"`
	AgeRecipients        []string          `json:"age_encryption_recipients"`
}

func (r *saveRequest) operation(c call) runs.Operation {
	return c.operation(r.ModelID, r.SeqID)
}

// decodeNamed reads a save that needs a name.
func (s *Service) decodeNamed(c call) (*saveRequest, error) {
	var in saveRequest
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.Path == nil {
		return nil, s.refused(c, in.operation(c), badRequestf("path: is required: the checkpoint's name"))
	}
	return &in, nil
}

func (s *Service) saveWeights(c call) (any, error) {
	in, err := s.decodeNamed(c)
	if err != nil {
		return nil, err
	}
	return accepted(s.core.SaveWeights(c, runs.SaveWeights{Operation: in.operation(c), Name: *in.Path, TTLSeconds: in.TTLSeconds, Overwrite: in.Overwrite, UserMetadata: in.UserMetadata}))
}

func (s *Service) saveWeightsExternal(c call) (any, error) {
	in, err := s.decodeNamed(c)
	if err != nil {
		return nil, err
	}
	return accepted(s.core.SaveWeightsExternal(c, runs.SaveWeightsExternal{
		Operation: in.operation(c), Name: *in.Path, TTLSeconds: in.TTLSeconds, UserMetadata: in.UserMetadata, AgeRecipients: in.AgeRecipients,
	}))
}

// saveWeightsForSampler has two forms: with a path a checkpoint is made, with a number of a sampling session an unnamed snapshot.
func (s *Service) saveWeightsForSampler(c call) (any, error) {
	var in saveRequest
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	op := runs.SaveWeightsForSampler{Operation: in.operation(c), TTLSeconds: in.TTLSeconds, UserMetadata: in.UserMetadata, Kind: in.Kind}
	switch {
	case in.Path != nil && *in.Path == "":
		return nil, s.refused(c, op.Operation, badRequestf("path: a checkpoint name must not be empty"))
	case in.Path != nil:
		op.Name = *in.Path
	case in.SamplingSessionSeqID != nil:
		op.SamplerSeq = *in.SamplingSessionSeqID
	default:
		return nil, s.refused(c, op.Operation, badRequestf("path: either path or sampling_session_seq_id is required"))
	}
	return accepted(s.core.SaveWeightsForSampler(c, op))
}

// loadWeights loads into a model, or makes a model from a checkpoint when it names a session.
func (s *Service) loadWeights(c call) (any, error) {
	var in struct {
		ModelID      string           `json:"model_id"`
		SeqID        *int64           `json:"seq_id"`
		SessionID    string           `json:"session_id"`
		ModelSeqID   *int64           `json:"model_seq_id"`
		BaseModel    string           `json:"base_model"`
		UserMetadata json.RawMessage  `json:"user_metadata"`
		Optimizer    *optimizerConfig `json:"optimizer_config"`
		Path         string           `json:"path"`
		WithState    *bool            `json:"optimizer"`
		AccessToken  string           `json:"weights_access_token"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	withState := generationOf(c).loadsOptimizer
	if in.WithState != nil {
		withState = *in.WithState
	}
	op := c.operation(in.ModelID, in.SeqID)
	access, err := s.accessOwner(in.AccessToken)
	if err != nil {
		return nil, s.refused(c, op, err)
	}
	if in.ModelID != "" {
		return accepted(s.core.LoadWeights(c, runs.LoadWeights{Operation: op, AccessOwner: access, Path: in.Path, WithOptimizer: withState}))
	}
	if in.SessionID == "" || in.ModelSeqID == nil {
		return nil, badRequestf("model_id: either model_id, or session_id and model_seq_id are required")
	}
	return accepted(s.core.CreateRunFromCheckpoint(c, runs.NewRunFromCheckpoint{
		Owner: c.owner, AccessOwner: access, SessionID: in.SessionID, ModelSeq: *in.ModelSeqID, Path: in.Path, WithOptimizer: withState,
		BaseModel: in.BaseModel, UserMetadata: in.UserMetadata, Optimizer: in.Optimizer.name(),
	}))
}

func (s *Service) weightsInfo(c call) (any, error) {
	var in struct {
		Path string `json:"tinker_path"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	info, err := s.core.WeightsInfo(c, c.owner, "", in.Path)
	if err != nil {
		return nil, err
	}
	return gin.H{
		"base_model": info.BaseModel, "is_lora": true, "lora_rank": info.LoRA.Rank, "train_unembed": info.LoRA.TrainUnembed, "train_mlp": info.LoRA.TrainMLP,
		"train_attn": info.LoRA.TrainAttn, "optimizer_config": gin.H{"type": "adamw"},
	}, nil
}

func (s *Service) copyWeights(c call) (any, error) {
	var in struct {
		Source      string `json:"source_path"`
		ProjectID   string `json:"destination_project_id"`
		SessionID   string `json:"session_id"`
		ModelSeqID  int64  `json:"model_seq_id"`
		TTLSeconds  *int64 `json:"ttl_seconds"`
		AccessToken string `json:"weights_access_token"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if token := c.GetHeader("X-Tinker-Weights-Access-Token"); token != "" {
		in.AccessToken = token
	}
	access, err := s.accessOwner(in.AccessToken)
	if err != nil {
		return nil, err
	}
	copied, err := s.core.CopyCheckpoint(c, runs.CopyCheckpoint{
		Owner: c.owner, AccessOwner: access, Source: in.Source, ProjectID: in.ProjectID, SessionID: in.SessionID, ModelSeq: in.ModelSeqID, TTLSeconds: in.TTLSeconds, IdempotencyKey: idempotencyKey(c),
	})
	if err != nil {
		return nil, err
	}
	return gin.H{"tinker_path": copied.Path}, nil
}
