package tinker

import (
	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// checkpointTypes are the public names of the kinds.
var checkpointTypes = map[runs.CheckpointKind]string{runs.KindWeights: "training", runs.KindSampler: "sampler", runs.KindExternal: "external"}

func checkpoint(i runs.CheckpointInfo) gin.H {
	out := gin.H{
		"checkpoint_id": i.ID(), "checkpoint_type": checkpointTypes[i.Kind], "time": i.CreatedAt, "tinker_path": i.Path, "size_bytes": i.Size, "public": i.Public,
		"base_model": i.BaseModel,
	}
	if i.ExpiresAt != nil {
		out["expires_at"] = *i.ExpiresAt
	}
	if len(i.UserMetadata) > 0 {
		out["user_metadata"] = i.UserMetadata
	}
	return out
}

// path reads the checkpoint that a route names.
func path(c call) (string, error) {
	p, err := runs.ParseCheckpointID(c.Param("run"), c.Param("kind")+"/"+c.Param("name"))
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

// bareCheckpoint answers a checkpoint id without its kind.
func (s *Service) bareCheckpoint(c call) (any, error) {
	return nil, badRequestf("checkpoint_id: %.100q is not of the form weights/NAME, sampler_weights/NAME or external_weights/NAME", c.Param("kind"))
}

func (s *Service) listRunCheckpoints(c call) (any, error) {
	found, err := s.core.RunCheckpoints(c, c.owner, c.Param("run"))
	if err != nil {
		return nil, err
	}
	out := []gin.H{}
	for _, i := range found {
		if i.Kind != runs.KindExternal || generationOf(c).externalCheckpoints {
			out = append(out, checkpoint(i))
		}
	}
	return gin.H{"checkpoints": out}, nil
}

func (s *Service) listCheckpoints(c call) (any, error) {
	p, err := page(c, 100)
	if err != nil {
		return nil, err
	}
	kinds := []runs.CheckpointKind{runs.KindWeights, runs.KindSampler}
	if generationOf(c).externalCheckpoints {
		kinds = append(kinds, runs.KindExternal)
	}
	found, total, err := s.core.Checkpoints(c, c.owner, p, kinds)
	if err != nil {
		return nil, err
	}
	out := make([]gin.H, len(found))
	for i, f := range found {
		out[i] = checkpoint(f)
	}
	return gin.H{"checkpoints": out, "cursor": cursor{p.Offset, p.Limit, total}}, nil
}

func (s *Service) deleteCheckpoint(c call) (any, error) {
	p, err := path(c)
	if err != nil {
		return nil, err
	}
	return nil, s.core.DeleteCheckpoint(c, c.owner, p, idempotencyKey(c))
}

func (s *Service) publish(c call) (any, error)   { return s.setPublic(c, true) }
func (s *Service) unpublish(c call) (any, error) { return s.setPublic(c, false) }

func (s *Service) setPublic(c call, public bool) (any, error) {
	p, err := path(c)
	if err != nil {
		return nil, err
	}
	return nil, s.core.PublishCheckpoint(c, c.owner, p, public)
}

func (s *Service) setTTL(c call) (any, error) {
	p, err := path(c)
	if err != nil {
		return nil, err
	}
	var in struct {
		TTLSeconds *int64 `json:"ttl_seconds"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	return nil, s.core.SetCheckpointTTL(c, c.owner, p, in.TTLSeconds)
}
