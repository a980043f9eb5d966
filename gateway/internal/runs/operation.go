package runs

import (
	"context"

	"github.com/tinsmith/tinsmith/plugins"
)

// Tensor is a dense loss input. Exactly one of Floats and Ints is not nil unless it is empty.
type Tensor struct {
	Shape  []int // nil = one dimension
	Floats []float32
	Ints   []int64
}

// Span says where consecutive positions of a datum come from.
type Span struct {
	Sampled    bool   // from the sampled tokens of the sequence; else from its prompt
	SequenceID string // as given by Sample
	Offset     int64
	Length     int64
}

// Datum is one training sequence as a client sends it. Inputs go by their public names: target_tokens, weights, logprobs, advantages, sequence_ratio_mask.
type Datum struct {
	Tokens     []int32
	Inputs     map[string]Tensor
	InputSpans []Span // tile Tokens; nil = no provenance
	LossSpans  []Span // tile the rows of target_tokens
}

// Operation is what all operations of a run have in common.
type Operation struct {
	Owner string
	RunID string
	Seq   int64 // 1, 2, 3, … within the run; KindInvalid outside 1 … 2^31-1
	// Refusal is a defect that the front end found in a well-formed request (an image chunk, a tensor whose bytes do not fit its shape): the operation takes its place in
	// the order and its future fails with this text, category user. "" = none.
	Refusal string
}

// ForwardBackward is one chunk of a client's call.
type ForwardBackward struct {
	Operation
	Data        []Datum
	Loss        string
	Config      map[string]float64 // numeric loss settings
	ConfigText  map[string]string  // textual ones; no loss that we have takes any
	ForwardOnly bool
}

// OptimStep is one optimizer step.
type OptimStep struct {
	Operation
	Adam plugins.AdamParams
}

// SaveWeights saves weights and optimizer state as tinker://RUN/weights/NAME.
type SaveWeights struct {
	Operation
	Name         string
	TTLSeconds   *int64
	Overwrite    bool
	UserMetadata map[string]string
}

// SaveWeightsForSampler saves weights for sampling. With a Name it makes a checkpoint tinker://RUN/sampler_weights/NAME; without, a sampling session over
// the weights as they are at its place in the order, which lives as long as the session.
type SaveWeightsForSampler struct {
	Operation
	Name         string
	SamplerSeq   int64 // used when Name is ""
	TTLSeconds   *int64
	UserMetadata map[string]string
	Kind         string // "" or "snapshot"; "inflight" is refused
}

// SaveWeightsExternal exports the adapter as tinker://RUN/external_weights/NAME.
type SaveWeightsExternal struct {
	Operation
	Name          string
	TTLSeconds    *int64
	UserMetadata  map[string]string
	AgeRecipients []string // encryption is not offered: not empty is refused
}

// LoadWeights loads a training checkpoint into a run, clearing its accumulated gradient. It is allowed only as the run's first operation (Seq 1).
type LoadWeights struct {
	Operation
	AccessOwner   string // as in NewRunFromCheckpoint
	Path          string
	WithOptimizer bool
}

// ForwardBackward submits; the outcome has a plugins.ForwardBackwardResult and the shapes of its outputs. The data are only read during the call.
func (c *Core) ForwardBackward(ctx context.Context, op ForwardBackward) (Submitted, error) {
	return Submitted{}, errNotYet
}

// OptimStep submits; the outcome has a plugins.OptimStepResult.
func (c *Core) OptimStep(ctx context.Context, op OptimStep) (Submitted, error) {
	return Submitted{}, errNotYet
}

// SaveWeights submits; the outcome has a SavedWeights.
func (c *Core) SaveWeights(ctx context.Context, op SaveWeights) (Submitted, error) {
	return Submitted{}, errNotYet
}

// SaveWeightsForSampler submits; the outcome has a SavedWeights (with a Name) or a SavedSampler.
func (c *Core) SaveWeightsForSampler(ctx context.Context, op SaveWeightsForSampler) (Submitted, error) {
	return Submitted{}, errNotYet
}

// SaveWeightsExternal submits; the outcome has a SavedWeights.
func (c *Core) SaveWeightsExternal(ctx context.Context, op SaveWeightsExternal) (Submitted, error) {
	return Submitted{}, errNotYet
}

// LoadWeights submits; the outcome has a LoadedWeights.
func (c *Core) LoadWeights(ctx context.Context, op LoadWeights) (Submitted, error) {
	return Submitted{}, errNotYet
}

// NoteRefused says that the front end refused an operation with this number (a 4xx), so that it is not waited for. Unknown runs and used numbers are ignored.
// Operations refused by a method of this package need no note.
func (c *Core) NoteRefused(owner, runID string, seq int64) {}
