package tinker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/keys"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/tinker/wire"
)

// optimizerConfig is the optimizer family of a model; absent means adamw.
type optimizerConfig struct {
	Type string `json:"type"`
}

func (o *optimizerConfig) name() string {
	if o == nil {
		return ""
	}
	return o.Type
}

// loadHold is how long models are waited for that are being loaded, before they are listed without what is known of loaded ones only.
const loadHold = 10 * time.Second

// capabilities lists the models that are served. One that cannot be is left out.
func (s *Service) capabilities(c call) (any, error) {
	ctx, cancel := context.WithTimeout(c, loadHold)
	defer cancel()
	models := []gin.H{}
	for _, m := range s.core.Models() {
		info, err := s.core.ModelInfo(ctx, m.Name) // one after the other: all are being loaded already
		var length any
		switch {
		case err == nil:
			length = info.MaxContextLength
		case runs.KindOf(err) == runs.KindFailed:
			continue
		case c.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
		for _, name := range append([]string{m.Name}, m.Aliases...) {
			models = append(models, gin.H{"model_name": name, "max_context_length": length, "trainable": true, "sampleable": true})
		}
	}
	return gin.H{"supported_models": models}, nil
}

func (s *Service) createModel(c call) (any, error) {
	var in struct {
		SessionID    string           `json:"session_id"`
		ModelSeqID   *int64           `json:"model_seq_id"`
		BaseModel    string           `json:"base_model"`
		UserMetadata json.RawMessage  `json:"user_metadata"`
		Optimizer    *optimizerConfig `json:"optimizer_config"`
		LoRA         *struct {
			Rank         *int            `json:"rank"`
			Seed         json.RawMessage `json:"seed"`
			TrainUnembed *bool           `json:"train_unembed"`
			TrainMLP     *bool           `json:"train_mlp"`
			TrainAttn    *bool           `json:"train_attn"`
		} `json:"lora_config"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.SessionID == "" {
		return nil, badRequestf("session_id: is required; SDKs older than 0.3.0 do not send it and are too old")
	}
	if in.ModelSeqID == nil {
		return nil, badRequestf("model_seq_id: is required")
	}
	if in.BaseModel == "" {
		return nil, badRequestf("base_model: base_model is required")
	}
	if in.LoRA == nil {
		return nil, badRequestf("lora_config: is required: only LoRA adapters can be trained")
	}
	config := runs.LoRAConfig{Rank: 32, TrainUnembed: isTrue(in.LoRA.TrainUnembed), TrainMLP: isTrue(in.LoRA.TrainMLP), TrainAttn: isTrue(in.LoRA.TrainAttn)}
	if in.LoRA.Rank != nil {
		config.Rank = *in.LoRA.Rank
	}
	var err error
	if config.Seed, err = wire.ParseSeed("lora_config.seed", in.LoRA.Seed); err != nil {
		return nil, err
	}
	submitted, err := s.core.CreateRun(c, runs.NewRun{
		Owner: c.owner, SessionID: in.SessionID, ModelSeq: *in.ModelSeqID, BaseModel: in.BaseModel, LoRA: config, UserMetadata: in.UserMetadata, Optimizer: in.Optimizer.name(),
	})
	return accepted(submitted, err)
}

// isTrue reads a train_* flag; absent means true.
func isTrue(flag *bool) bool { return flag == nil || *flag }

// accepted is the answer to every submitted operation of a run.
func accepted(submitted runs.Submitted, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return struct {
		ModelID   string `json:"model_id"`
		RequestID string `json:"request_id"`
	}{submitted.RunID, submitted.RequestID}, nil
}

func (s *Service) getInfo(c call) (any, error) {
	var in struct {
		ModelID string `json:"model_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	run, err := s.core.Run(c, c.owner, in.ModelID, runs.ScopeOwned)
	if err != nil {
		return nil, err
	}
	if !run.Live && !run.Corrupted {
		return nil, notFoundf("model_id: %q is not loaded any more", in.ModelID)
	}
	tokenizer := run.TokenizerID
	if tokenizer == "" {
		tokenizer = run.BaseModel
	}
	return gin.H{
		"type": "get_info", "model_id": run.ID, "model_name": run.BaseModel, "is_lora": true, "lora_rank": run.LoRA.Rank,
		"model_data":       gin.H{"arch": run.Architecture, "model_name": run.BaseModel, "tokenizer_id": tokenizer},
		"optimizer_config": gin.H{"type": run.Optimizer},
	}, nil
}

func (s *Service) unloadModel(c call) (any, error) {
	var in struct {
		ModelID string `json:"model_id"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	submitted, err := s.core.UnloadRun(c, c.owner, in.ModelID)
	return accepted(submitted, err)
}

// runStatuses lists the runs that are live, and with state=all those that have ended too.
func (s *Service) runStatuses(c call) (any, error) {
	switch state := c.Query("state"); state {
	case "", "live":
	case "all":
		return s.overviews(c)
	default:
		return nil, badRequestf("state: %.40q is not one of live, all", state)
	}
	statuses, err := s.core.RunStatuses(c, c.owner)
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(statuses))
	for i, r := range statuses {
		out[i] = gin.H{
			"rebuilding": rebuildingOf(c, r.Rebuilding),
			"run_id":     r.ID, "session_id": r.SessionID, "base_model": r.BaseModel, "rank": r.LoRA.Rank, "live": r.Live, "corrupted": r.Corrupted, "corrupted_reason": keys.TellFault(c.Request.Context(), r.CorruptedReason), "inexact": r.Inexact, "backend": r.Backend, "moves": r.Moves,
			"unread_inputs": r.UnreadInputs, "user_metadata": r.UserMetadata, "began": r.Began,
			"step": r.Step, "version": r.Version, "queued": r.Queued, "trained_tokens": r.TrainedTokens, "tokens_per_second": r.TokensPerSecond,
			"last_loss": finite(r.LastLoss), "grad_norm": finite(r.GradientNorm), "adapter_norm": finite(r.AdapterNorm), "last_request_time": r.LastRequest,
		}
		addNaming(out[i], r.Naming)
	}
	return gin.H{"runs": out}, nil
}

func (s *Service) createCustomLoss(call) (any, error) {
	return nil, badRequestf("create_custom_loss: losses that run on the server are not supported; with custom_loss_server_side false, as this server says in client/config, the SDK runs them in the client")
}

// urns name users in answers as they do in tokens.
const urnPrefix = "tml:user:"

func urnOfOwner(owner string) string { return urnPrefix + owner }

func ownerOfURN(urn string) string {
	if len(urn) > len(urnPrefix) && urn[:len(urnPrefix)] == urnPrefix {
		return urn[len(urnPrefix):]
	}
	return fmt.Sprintf("no owner %q", urn) // matches nobody
}
