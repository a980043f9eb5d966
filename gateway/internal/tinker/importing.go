package tinker

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// importAdapter takes a PEFT adapter directory as a plain tar and makes a run with two checkpoints of it. The body is read as a stream, bounded by the core.
func (s *Service) importAdapter(c call) (any, error) {
	training, sampler, err := s.core.Import(c.Request.Context(), runs.Import{
		Owner: c.owner, BaseModel: c.Query("base_model"), Name: c.Query("name"), ProjectID: c.Query("project_id"), Source: c.Query("source"), Tar: c.Request.Body,
	})
	if err != nil {
		return nil, err
	}
	notices := training.Notices
	if notices == nil {
		notices = []string{}
	}
	return gin.H{"training_path": training.Path, "sampler_path": sampler.Path, "training_run_id": training.RunID, "lora_rank": training.LoRA.Rank, "notices": notices, "origin": training.Origin}, nil
}

// imports lists what the caller has imported, with where it came from.
func (s *Service) imports(c call) (any, error) {
	list, more, err := s.core.Imports(c, c.owner)
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(list))
	for i, cp := range list {
		out[i] = gin.H{"path": cp.Path, "run_id": cp.RunID, "base_model": cp.BaseModel, "rank": cp.LoRA.Rank, "created_at": cp.CreatedAt, "origin": cp.Origin}
	}
	return gin.H{"imports": out, "more": more}, nil
}
