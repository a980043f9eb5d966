package tinker

import (
	"encoding/json"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

func (s *Service) listRuns(c call) (any, error) {
	p, err := page(c, 20)
	if err != nil {
		return nil, err
	}
	sc, err := scope(c)
	if err != nil {
		return nil, err
	}
	found, total, err := s.core.Runs(c, c.owner, runs.RunQuery{Scope: sc, ProjectID: c.Query("project_id"), Page: p})
	if err != nil {
		return nil, err
	}
	g := generationOf(c)
	out := make([]gin.H, len(found))
	for i, r := range found {
		out[i] = trainingRun(r, g)
	}
	return gin.H{"training_runs": out, "cursor": cursor{p.Offset, p.Limit, total}}, nil
}

func (s *Service) getRun(c call) (any, error) {
	sc, err := scope(c)
	if err != nil {
		return nil, err
	}
	if c.Query("access_scope") == "" { // as every other call that names a run or a checkpoint
		sc = runs.ScopeAccessible
	}
	run, err := s.core.Run(c, c.owner, c.Param("run"), sc)
	if err != nil {
		return nil, err
	}
	return trainingRun(run, generationOf(c)), nil
}

func trainingRun(r runs.RunInfo, g generation) gin.H {
	out := gin.H{
		"training_run_id": r.ID, "base_model": r.BaseModel, "model_owner": r.Owner, "is_lora": true, "corrupted": r.Corrupted, "lora_rank": r.LoRA.Rank,
		"last_request_time": r.LastRequest, "user_metadata": texts(r.UserMetadata),
	}
	if r.LastCheckpoint != nil {
		out["last_checkpoint"] = checkpoint(*r.LastCheckpoint)
	}
	if r.LastSampler != nil {
		out["last_sampler_checkpoint"] = checkpoint(*r.LastSampler)
	}
	return out
}

// texts turns metadata of any JSON values into strings: strings as they are, everything else as its JSON.
func texts(metadata json.RawMessage) map[string]string {
	var values map[string]json.RawMessage
	if json.Unmarshal(metadata, &values) != nil {
		return nil
	}
	out := make(map[string]string, len(values))
	for k, raw := range values {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		out[k] = text
	}
	return out
}
