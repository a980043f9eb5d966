package openai

import (
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// modelObject is one entry of /models; adapters tell where they come from.
func (s *Service) modelObject(m runs.ServedModel) gin.H {
	created := m.CreatedAt
	if base := s.Named(m.BaseModel); created.IsZero() && base != nil {
		created = base.Created
	}
	out := gin.H{"id": m.ID, "object": "model", "created": created.Unix(), "owned_by": "tinsmith"}
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

func (s *Service) listModels(c inference.Call) error {
	done, err := s.Core.AwaitList(c.Request.Context(), c.Owner)
	if err != nil {
		return err
	}
	defer done()
	served, err := s.Core.ServedModels(c.Request.Context(), c.Owner)
	if err != nil {
		return err
	}
	data := make([]gin.H, len(served))
	for i, m := range served {
		data[i] = s.modelObject(m)
	}
	return c.Send(http.StatusOK, gin.H{"object": "list", "data": data})
}

// getModel describes one name. Names that are not listed, such as NAME:latest and RUN, are described by what they mean.
func (s *Service) getModel(c inference.Call) error {
	_, id, _ := strings.Cut(c.Request.URL.Path, "/models/") // with every escape undone, and a plus left a plus
	target, m, err := s.Model(c, id)
	if err != nil {
		return err
	}
	described, listed := s.Core.ServedModel(c.Owner, target)
	if !listed { // a published checkpoint of somebody else
		described = runs.ServedModel{BaseModel: m.Name, RunID: target.RunID}
	}
	described.ID = id
	return c.Send(http.StatusOK, s.modelObject(described))
}
