package anthropic

import (
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// modelObject is a model that one may ask.
type modelObject struct {
	Type        string `json:"type"`
	ID          string `json:"id"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
	Lifecycle   string `json:"lifecycle"`
}

func newModelObject(m runs.ServedModel) modelObject {
	return modelObject{"model", m.ID, m.ID, m.CreatedAt.UTC().Format(time.RFC3339), "active"}
}

// modelList is all of them in one page.
type modelList struct {
	Data    []modelObject `json:"data"`
	HasMore bool          `json:"has_more"`
	FirstID *string       `json:"first_id"`
	LastID  *string       `json:"last_id"`
}

// ListModels answers with the models that the caller may ask.
func (s *Service) ListModels() gin.HandlerFunc {
	return s.handler(func(c inference.Call) error {
		return s.Listed(c, func(served []runs.ServedModel) error {
			out := modelList{Data: make([]modelObject, len(served))}
			for i, m := range served {
				out.Data[i] = newModelObject(m)
			}
			if n := len(served); n > 0 {
				out.FirstID, out.LastID = &served[0].ID, &served[n-1].ID
			}
			return c.Send(http.StatusOK, out)
		})
	})
}

// GetModel answers with one.
func (s *Service) GetModel() gin.HandlerFunc {
	return s.handler(func(c inference.Call) error {
		described, err := s.Described(c, c.ModelInPath())
		if err != nil {
			return err
		}
		return c.Send(http.StatusOK, newModelObject(described))
	})
}
