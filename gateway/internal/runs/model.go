package runs

import (
	"context"
	"encoding/json"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// Target is what a model name of an OpenAI client means for a caller.
type Target struct {
	Name        string // as asked
	ServedModel string // the base model's configured name
	RunID       string // "" for the base model
	Path        string // "" unless a saved checkpoint

	core   *Core
	source source
}

// source is where weights come from; its parts arrive with the sampling code.
type source struct{}

// ServedModel is one entry of the list of models.
type ServedModel struct {
	ID           string // what a client asks for
	BaseModel    string // configured name; equal to ID for a base model
	Alias        bool   // another name of BaseModel
	RunID        string
	SessionID    string
	Owner        string
	UserMetadata json.RawMessage
	CreatedAt    time.Time // of a live adapter: when its newest weights were made
}

// Models gives the configured models in their order.
func (c *Core) Models() []Model { return nil }

// ModelByName finds a configured model by name or alias.
func (c *Core) ModelByName(name string) (Model, bool) { return Model{}, false }

// ModelInfo says what the backend of a model loaded, waiting until it is ready.
func (c *Core) ModelInfo(ctx context.Context, name string) (plugins.ModelInfo, error) {
	return plugins.ModelInfo{}, errNotYet
}

// Resolve finds what a name means: a base model or alias (with ChatLatest the caller's newest adapter on it, if there is one), "NAME:latest" the caller's newest adapter on it,
// "RUN" and "tinker://RUN" the newest version of a live run, "tinker://RUN/sampler_weights/NAME" a checkpoint, "NAME;PATH" the same. KindNotFound otherwise.
func (c *Core) Resolve(ctx context.Context, owner, name string) (Target, error) {
	return Target{}, errNotYet
}

// ServedModels lists what the caller can name: base models, aliases, live runs, sampler checkpoints.
func (c *Core) ServedModels(ctx context.Context, owner string) ([]ServedModel, error) {
	return nil, errNotYet
}
