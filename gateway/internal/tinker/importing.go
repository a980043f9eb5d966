package tinker

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// importAdapter takes a PEFT adapter directory as a plain tar and makes a run with two checkpoints of it. The body is read as a stream, bounded by the core.
func (s *Service) importAdapter(c call) (any, error) {
	training, sampler, err := s.core.Import(c.Request.Context(), runs.Import{
		Owner: c.owner, BaseModel: c.Query("base_model"), Name: c.Query("name"), ProjectID: c.Query("project_id"), Tar: c.Request.Body,
	})
	if err != nil {
		return nil, err
	}
	notices := training.Notices
	if notices == nil {
		notices = []string{}
	}
	return gin.H{"training_path": training.Path, "sampler_path": sampler.Path, "training_run_id": training.RunID, "lora_rank": training.LoRA.Rank, "notices": notices}, nil
}
