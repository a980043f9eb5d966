package inference

import (
	"strings"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
)

// Listed gives the models that the caller may ask for, and when each was made, to tell.
func (s *Service) Listed(c Call, tell func([]runs.ServedModel) error) error {
	done, err := s.Core.AwaitList(c.Request.Context(), c.Owner)
	if err != nil {
		return err
	}
	defer done()
	served, err := s.Core.ServedModels(c.Request.Context(), c.Owner)
	if err != nil {
		return err
	}
	for i := range served {
		served[i].CreatedAt = s.created(served[i])
	}
	return tell(served)
}

// Described is what a name means that a caller may ask for. Names that are not listed, such as NAME:latest and RUN, are described by what they mean.
func (s *Service) Described(c Call, id string) (runs.ServedModel, error) {
	target, m, err := s.Model(c, id)
	if err != nil {
		return runs.ServedModel{}, err
	}
	described, listed := s.Core.ServedModel(c.Owner, target)
	if !listed { // a published checkpoint of somebody else
		described = runs.ServedModel{BaseModel: m.Name, RunID: target.RunID}
	}
	described.ID, described.CreatedAt = id, s.created(described)
	return described, nil
}

// ModelInPath is the name of a model that a path ends with, behind /models/: with every escape undone, and a plus left a plus.
func (c Call) ModelInPath() string {
	_, id, _ := strings.Cut(c.Request.URL.Path, "/models/")
	return id
}

// created is when a model was made: a base model with its files.
func (s *Service) created(m runs.ServedModel) time.Time {
	if base := s.Named(m.BaseModel); m.CreatedAt.IsZero() && base != nil {
		return base.Created
	}
	return m.CreatedAt
}
