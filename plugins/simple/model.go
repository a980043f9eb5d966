package simple

import (
	"context"
	"encoding/json"

	"github.com/tinsmith/tinsmith/plugins"
)

// Model is a base model with modules that can carry LoRA. What it computes of a sequence depends on nothing but the sequence and the weights. All methods may be called concurrently.
type Model interface {
	// Modules gives the matrices that can carry LoRA, always the same.
	Modules() []Module
	// Fill draws the initial values of an A uniformly in ±bound from a seed and the tensor's name in a PEFT file.
	Fill(values []float32, seed uint64, name string, bound float64)
	// Forward runs one sequence with an adapter's weights, nil for the base model. With gradient it keeps what Pass.Backward needs. The caller closes the pass.
	Forward(ctx context.Context, w *Weights, tokens []int32, gradient bool) (Pass, error)
	// Prefill runs a prompt for sampling. The caller closes what it gets.
	Prefill(ctx context.Context, w *Weights, prompt []int32) (Prefix, error)
	// Immediate tells whether the rows of Sequence have the bits of those that Pass has for the same tokens. Where they have not, log-probabilities of what was drawn come from a pass over
	// prompt and answer: sequences are drawn one after the other, and the tokens of each are sent when it has ended.
	Immediate() bool
	// Forget says that weights will not be used any more. It does not wait for anything.
	Forget(w *Weights)
}

// Pass is the outcome of one sequence. It is used by one goroutine.
type Pass interface {
	// Logprobs gives the log-probabilities of k targets per position.
	Logprobs(ctx context.Context, targets []int32, k int) ([]float64, error)
	// Rows calls each with the logits of positions from … to-1, in order, and the logarithm of the sum of their exponentials. The row may be changed, and is gone after the call.
	Rows(ctx context.Context, from, to int, each func(i int, logits []float64, logSumExp float64) error) error
	// Backward adds to sum, which is in the order of the weights' layout, the gradient of Σ coefficient · log-probability over the targets that Logprobs was asked for. Once, and only of a pass with gradient.
	Backward(ctx context.Context, coefficients, sum []float64) error
	Close()
}

// Prefix is a prompt that was run. It is used by one goroutine.
type Prefix interface {
	// Continue begins a continuation, which goes on when the prefix is closed. The caller closes it.
	Continue(ctx context.Context) (Sequence, error)
	Close()
}

// Sequence is one continuation of a prompt. It is used by one goroutine.
type Sequence interface {
	// Next writes the logits of the token after those that there are.
	Next(ctx context.Context, logits []float64) error
	// Append adds a token.
	Append(token int32)
	Close()
}

// Group says which switch of plugins.AdapterConfig a module follows.
type Group string

// The groups.
const (
	Attention Group = "attention"
	MLP       Group = "mlp"
	Unembed   Group = "unembed"
)

// Module is one matrix of the base, y = W·x, or one stack of an expert's. It carries LoRA in the official layout: experts share the factor that has one copy.
type Module struct {
	Path    string `json:"path"` // its name in a checkpoint, without PEFT's prefix: "model.layers.0.self_attn.o_proj"
	Group   Group  `json:"group"`
	In      int    `json:"in"`
	Out     int    `json:"out"`
	CopiesA int    `json:"copies_a,omitempty"` // of A: 0 is a matrix without experts
	CopiesB int    `json:"copies_b,omitempty"` // of B, likewise
}

// Options make a backend of a model.
type Options struct {
	Plugin, Version string
	Topology        string // what checkpoints say of plugin and device
	// Open reads and checks a configuration and opens the model. It is called once, and calls Before itself, if anything is to come before it.
	Open func(ctx context.Context, req plugins.LoadRequest, progress func(plugins.LoadProgress)) (Opened, error)
	// Configure tells, after Open, why a configuration is not the one that was opened; the error is KindInvalid.
	Configure func(section json.RawMessage) error
	// Before, unless nil, is called before an operation runs, and may delay it or have it fail.
	Before func(ctx context.Context, o Operation) error
	// Say gives the tokens of a sequence in place of drawn ones, and its first stop token after them; nil, or nothing from it, leaves the draw.
	Say func(req *plugins.SampleRequest, sequence int) []int32
}

// Opened is a loaded model.
type Opened struct {
	Model Model
	Info  plugins.ModelInfo
	// WeightBytes is the memory of the base.
	WeightBytes int64
}

// Operation tells Options.Before what is about to run.
type Operation struct {
	Name   string // "load", "create_adapter", "forward_backward", "optim_step", "pin", "sample", "token", "save_adapter", "load_adapter"
	Tokens [][]int32
	Rate   float64 // of "optim_step"
	// Content is set where an operation that was told of is told of again with what is in it, its tokens or its learning rate.
	Content bool
}
