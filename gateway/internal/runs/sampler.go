package runs

import (
	"context"
	"time"
)

// NewSampler asks for a sampling session. ModelPath decides if both are given.
type NewSampler struct {
	Owner       string
	AccessOwner string // as in NewRunFromCheckpoint
	SessionID   string
	Seq         int64  // one counter per session, shared with unnamed saves
	BaseModel   string // a served name or alias
	ModelPath   string // tinker://RUN/sampler_weights/NAME
}

// SamplerInfo describes a sampling session.
type SamplerInfo struct {
	ID          string
	SessionID   string
	BaseModel   string // the name the client used, from which it finds the tokenizer
	ServedModel string
	ModelPath   string // "" for the base model and for unnamed saves
	RunID       string // whose weights; "" for the base model
	CreatedAt   time.Time
}

// CreateSampler makes a sampling session. KindForbidden: no such session; KindNotFound: no such checkpoint; KindInvalid: not a sampler path.
func (c *Core) CreateSampler(ctx context.Context, req NewSampler) (SamplerInfo, error) {
	return SamplerInfo{}, errNotYet
}

// Sampler describes a sampling session.
func (c *Core) Sampler(ctx context.Context, owner, id string) (SamplerInfo, error) {
	return SamplerInfo{}, errNotYet
}

// JoinSampler gives a further client of a sampling session its number: 1, 2, 3, …; the same idempotency key gives the same number.
func (c *Core) JoinSampler(ctx context.Context, owner, id, idempotencyKey string) (int64, error) {
	return 0, errNotYet
}
