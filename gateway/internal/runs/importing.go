package runs

import (
	"context"
	"io"
)

// Import is a PEFT adapter directory that becomes a run with a training and a sampler checkpoint of one name.
type Import struct {
	Owner     string
	BaseModel string // a served name or alias
	Name      string // of the checkpoints
	ProjectID string
	MaxBytes  int64     // of all files; 0 = 16 GiB
	Tar       io.Reader // the directory's files in the root of a plain tar
}

// Import checks the files by loading them into the model's backend (shapes, base model, checksums) and returns the two checkpoints.
func (c *Core) Import(ctx context.Context, req Import) (training, sampler CheckpointInfo, err error) {
	return CheckpointInfo{}, CheckpointInfo{}, errNotYet
}
