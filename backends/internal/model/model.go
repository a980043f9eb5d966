// Package model has decoder language models: reading a Hugging Face model directory onto a device, and running packed batches of sequences through it, forward
// for sampling and forward and backward for training LoRA adapters. Architectures register by their Hugging Face name (see Registry); each has a package of its own below this one.
// The package knows no run, no request, no sampling and no optimizer.
//
// Bits: a sequence's log-probabilities and gradients are the same whatever else is in the batch, however it was cut, whether it went through at once or token by token over its
// pages, and on any number of threads.
package model

import (
	"errors"
	"fmt"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// ErrNotImplemented is gone when the decoder lands.
var ErrNotImplemented = errors.New("model: decoder not landed yet")

// Model is a loaded base model. It is immutable; its passes run on its device, so they may be called from one goroutine at a time (see Workspace for passes inside passes).
type Model struct {
	Config  *Config
	DType   tensor.DType
	Hash    string        // SHA-256 over config.json and the names, types, shapes and bytes of all tensors, hex
	Modules []lora.Module // what LoRA can be put on, by module number
	Device  tensor.Device
}

// Config is what config.json says, checked.
type Config struct {
	Architecture          string
	Layers                int
	HiddenSize            int
	IntermediateSize      int
	Heads, KVHeads        int
	HeadDim               int
	VocabSize             int
	MaxPositionEmbeddings int
	RMSNormEps            float32
	TieWordEmbeddings     bool
}

// Sequence is one sequence's part of a batch: Tokens stand at positions First … First+len(Tokens)-1, and everything before First has been written to the pages. Pages[i] holds
// positions [64i, 64i+64) and there are enough for all; pages must be zero beyond what was written (tensor.Pages.Zero before a page is used again). Two sequences may share pages
// that lie wholly before both their First.
type Sequence struct {
	Adapter *lora.Weights // nil = the base model
	Tokens  []int32
	First   int
	Pages   []int32
}

// Layout gives the shape of an adapter on this model: rank and which groups of modules are trained.
func (m *Model) Layout(rank int, attention, mlp, unembed bool) (*lora.Layout, error) {
	return lora.NewLayout(m.Modules, rank, func(module lora.Module) bool {
		switch module.Group {
		case lora.Attention:
			return attention
		case lora.MLP:
			return mlp
		case lora.Unembed:
			return unembed
		}
		return false
	})
}

// NewPages allocates pages of keys and values for this model, all its layers, in its type.
func (m *Model) NewPages(count int) (tensor.Pages, error) {
	return m.Device.NewPages(m.DType, m.Config.Layers, count, m.Config.KVHeads, m.Config.HeadDim)
}

// Workspace is the memory of one pass at a time: scratch, and activations between forward and backward. It grows to the largest pass and is used again. A Yield hook may run a pass
// on another workspace (a sampler's between the layers of a trainer's).
type Workspace struct {
	temp, keep *nn.Arena
}

// NewWorkspace makes an empty workspace.
func (m *Model) NewWorkspace() *Workspace {
	return &Workspace{temp: nn.NewArena(m.Device), keep: nn.NewArena(m.Device)}
}

// Bytes is the device memory held; Free gives it back (the workspace can be used again).
func (w *Workspace) Bytes() int64 { return w.temp.Bytes() + w.keep.Bytes() }

// Free gives all memory back.
func (w *Workspace) Free() { w.temp.Free(); w.keep.Free() }

// Scratch hands out a float32 tensor of undefined content that lives until the visit, or the pass, returns.
func (w *Workspace) Scratch(rows, cols int) (tensor.Tensor, error) { return w.temp.Get(rows, cols) }

// Batch is what Forward runs: sequences, those of one adapter side by side (other orders are right but slower), and the pages they use.
type Batch struct {
	Sequences []Sequence
	Pages     tensor.Pages
	// Yield, when not nil, is called between the parts of a pass, at least once per layer and once per chunk of logits, with nothing running on the device. Its error ends the pass and is returned.
	Yield func() error
}

// Hidden is the result of Forward: rows of the final norm. It lives in the workspace, until its next pass.
type Hidden struct {
	Rows     tensor.Tensor // len(rows) × hidden
	segments []nn.Segment
}

// Forward runs the batch, writes keys and values to its pages, and gives the final hidden state of the selected rows, which ascend and count through the tokens of all sequences
// in order.
func (m *Model) Forward(w *Workspace, b Batch, rows []int32) (Hidden, error) {
	return Hidden{}, fmt.Errorf("forward: %w", ErrNotImplemented)
}

// Logits runs the output head over the rows of h in chunks of at most 64 MiB. visit gets the logits of rows [first, first+logits.Rows), each row VocabSize wide; it may
// overwrite them, and they are gone when it returns.
func (m *Model) Logits(w *Workspace, h Hidden, yield func() error, visit func(first int, logits tensor.Tensor) error) error {
	return fmt.Errorf("logits: %w", ErrNotImplemented)
}

// Example is one training sequence of N tokens. First is 0, and its pages are its own.
type Example struct {
	Sequence
	Targets []int32 // N×K, row-major
	K       int
	Loss    loss.Loss
	Inputs  loss.Inputs
	// Gradient is where the gradient of the summed loss by the adapter's parameters is added: nil = forward only. Examples that share it form one chain in their order; they lie side by side.
	Gradient *lora.Gradient
}

// TrainOptions are settings of a training pass that do not change its results.
type TrainOptions struct {
	// Recompute keeps only the residual stream between layers and runs each layer's forward pass again before its backward pass: less memory, about a third more work.
	Recompute bool
	Yield     func() error // as in Batch
}

// Outcome is the result for one example.
type Outcome struct {
	Logprobs []float32 // N×K
	Loss     float64   // summed over the example
	Err      error     // the loss is not finite: this example's gradient is not to be used
}

// Train runs the examples forward and, where there are gradients, backward. Outcomes are in the order of the examples. An error is about the whole pass: gradients are then undefined.
func (m *Model) Train(w *Workspace, pages tensor.Pages, examples []Example, o TrainOptions) ([]Outcome, error) {
	return nil, fmt.Errorf("train: %w", ErrNotImplemented)
}

// Logprobs gives, for rows of logits, the log-probability of targets (rows × k, row-major): the same function for sampler and trainer.
func (m *Model) Logprobs(w *Workspace, logits tensor.Tensor, targets []int32, k int) ([]float32, error) {
	return nil, fmt.Errorf("log-probabilities: %w", ErrNotImplemented)
}

// ActivationBytes estimates the workspace of a training pass over that many tokens, for choosing the size of passes.
func (m *Model) ActivationBytes(tokens int, recompute bool) int64 { return 0 }

// Free gives the weights back to the device.
func (m *Model) Free() {}
