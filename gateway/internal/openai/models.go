package openai

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// modelObject is one entry of /models; adapters tell where they come from.
func modelObject(m runs.ServedModel) gin.H {
	out := gin.H{"id": m.ID, "object": "model", "created": m.CreatedAt.Unix(), "owned_by": "tinsmith"}
	if m.Owner != "" {
		out["owned_by"] = m.Owner
	}
	if m.ID != m.BaseModel {
		out["base_model"] = m.BaseModel
	}
	if m.RunID != "" {
		out["training_run_id"] = m.RunID
	}
	if m.SessionID != "" {
		out["session_id"] = m.SessionID
	}
	if m.Origin != nil {
		out["origin"] = m.Origin
	}
	if m.DisplayName != "" {
		out["display_name"] = m.DisplayName
	}
	if m.Recipe != "" {
		out["recipe"] = m.Recipe
	}
	if len(m.UserMetadata) > 0 {
		out["user_metadata"] = m.UserMetadata
	}
	return out
}

func (s *Service) listModels(c inference.Call) error {
	return s.Listed(c, func(served []runs.ServedModel) error {
		data := make([]gin.H, len(served))
		for i, m := range served {
			data[i] = modelObject(m)
		}
		return c.Send(http.StatusOK, gin.H{"object": "list", "data": data})
	})
}

// getModel describes one name.
func (s *Service) getModel(c inference.Call) error {
	described, err := s.Described(c, c.ModelInPath())
	if err != nil {
		return err
	}
	return c.Send(http.StatusOK, modelObject(described))
}
