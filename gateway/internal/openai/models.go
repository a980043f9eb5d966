package openai

import (
	"crypto/rand"
	"encoding/hex"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

func newID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

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
	if len(m.UserMetadata) > 0 {
		out["user_metadata"] = m.UserMetadata
	}
	return out
}

func (s *Service) listModels(c call) error {
	served, err := s.core.ServedModels(c.Request.Context(), c.owner)
	if err != nil {
		return err
	}
	data := make([]gin.H, len(served))
	for i, m := range served {
		data[i] = modelObject(m)
	}
	sendJSON(c.Context, 200, gin.H{"object": "list", "data": data})
	return nil
}

func (s *Service) getModel(c call) error {
	id := strings.TrimPrefix(c.Param("model"), "/")
	served, err := s.core.ServedModels(c.Request.Context(), c.owner)
	if err != nil {
		return err
	}
	for _, m := range served {
		if m.ID == id {
			sendJSON(c.Context, 200, modelObject(m))
			return nil
		}
	}
	// Names that are not listed, such as NAME:latest, still mean something.
	target, m, err := s.model(c, id)
	if err != nil {
		return err
	}
	sendJSON(c.Context, 200, gin.H{"id": id, "object": "model", "created": 0, "owned_by": "tinsmith", "base_model": m.Name, "training_run_id": target.RunID})
	return nil
}
