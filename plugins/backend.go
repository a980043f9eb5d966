// Package plugins is the contract between the gateway and a compute backend, and the transport that carries it between the two processes
// (hashicorp/go-plugin: gRPC over a unix socket). A backend holds one base model and any number of LoRA adapters on it; it knows tokens and
// floats, and of tokens the bytes that they stand for (SetVocabulary), for the sake of constraints. It knows no HTTP, no user and no session, and what bytes mean: tokenizer, chat template, stop strings, schemas,
// ownership and durable state are the gateway's. This package imports neither side, no GPU code and no HTTP code; interface Backend below is the whole contract, and package
// plugintest checks that an implementation keeps it.
//
// # Order
//
// Operations on one adapter that read or change its training state (ForwardBackward, OptimStep, Pin, SaveAdapter, LoadAdapter) carry a
// position: 1, 2, 3, … without gaps, counted by the gateway from the adapter's creation (which is position 0). The gateway sends ahead without waiting for
// answers (at most MaxAhead operations or MaxAheadBytes of payload per adapter), and concurrent gRPC calls overtake each other, so the backend holds
// an operation until all lower positions have been decided, and then runs it. An operation uses up its position whether it succeeds or fails, also when its request
// is invalid. A position that was accepted before is refused with ErrAlreadyApplied, one that is MaxAhead or more beyond the next with ErrCapacity, and nothing
// happens; nor are positions used up by what is refused with ErrUnavailable, or with ErrNotFound because there is no such adapter. Operations of different adapters have no order.
//
// # Failure
//
// A failed ForwardBackward adds nothing to the gradient. An OptimStep whose window (the ForwardBackward operations with gradients since the last OptimStep) has a failure
// and no success fails with that reason and changes nothing; with at least one success it runs. A window without any ForwardBackward is an
// AdamW step with zero gradient. A value that is not finite (gradient, clipped gradient, new weight) fails the operation, names the tensor, and leaves
// weights, moments and step count as they were; any OptimStep that reached its turn, failed or not, clears the accumulated gradient and begins a new window, with one exception:
// a backend makes room for a step from whatever it can give up, and where that is not enough the step fails with ErrCapacity (or ErrTooLarge, see below) and is as if it had not been sent. Gradient
// and window stay, and the next OptimStep applies all of it, with the bits that it would have had at once; ForwardBackward operations between the two add to it. (A window
// with a failure and no success ends even if the failure was for want of memory: it has no gradient to be kept.)
// What needs the disk of LoadRequest.Scratch to make room in memory, while that is full or cannot be written to, does not fail: it is not decided until the disk takes files again, and runs then, with the
// bits that it would have had at once. Status tells that work waits for that; other runs, and work that needs no such room, go on.
// What takes more memory than the backend can ever have as it is configured fails with ErrTooLarge, at once, whatever else is in memory; the message has what it takes, the limit, and the setting that would have to be
// raised. It may succeed after Configure. ErrCapacity is for what there may be room for later.
// After a failed LoadAdapter with a position the adapter is as it was, but every later operation with a position fails with that reason until
// a load succeeds: nobody trains on without noticing what was to be loaded. One operation's failure never touches another adapter.
//
// # Versions
//
// Weights, Adam's moments and the step count of an adapter are immutable per version. A new adapter has version 0 (one that is loaded the number that the request names); each successful OptimStep or LoadAdapter
// creates the next one and makes it the latest in one step. A sampling request fixes its version when it starts and keeps it. Versions that are
// neither latest, nor pinned, nor in use are freed.
//
// # Determinism
//
// For one arithmetic (ModelInfo.Arithmetic) results are equal bit for bit whatever else runs at the same time, however work was cut, and on
// any number of threads: log-probabilities of ForwardBackward and of Sample for the same adapter version and tokens, gradients, weights, and
// sampled tokens of a request with the same seed.
package plugins

import (
	"context"
	"encoding/json"
	"time"
)

// Limits of the transport and of sending ahead. They are stated once, here.
const (
	// MaxBodyBytes bounds an HTTP request body, and separately its decompressed form.
	MaxBodyBytes = 64 << 20
	// MaxMessageBytes bounds one gRPC message in both directions; larger than MaxBodyBytes because a decoded request may grow a little.
	MaxMessageBytes = 80 << 20
	// MaxAhead is the number of undecided operations per adapter that the gateway may have sent: so many that small ones too fill the adapter's share of a clock cycle, which is counted in tokens.
	MaxAhead = 256
	// MaxAheadBytes is the payload of undecided operations per adapter that the gateway may have sent. One larger operation may be sent alone.
	MaxAheadBytes = 64 << 20
)

// LatestVersion asks for the newest completed version of an adapter at the moment the request starts.
const LatestVersion int64 = -1

// Backend is one loaded (or loadable) base model with its adapters. All methods may be called concurrently. Cancelling ctx gives up waiting for an
// operation with a position but does not undo it: only Sample stops its work when ctx ends. Errors are *Error values, or satisfy errors.Is with the sentinels of errors.go.
// Slices and maps in requests must not be changed after the call began (an operation may outlive its call); those in results belong to the caller.
//
// The Validate methods of the requests say what is KindInvalid apart from the state of an adapter; a backend calls them.
type Backend interface {
	// Info tells what this process is. It answers at once, before Load too.
	Info(ctx context.Context) (Info, error)
	// Load reads the base model. progress is called in order, from one goroutine, and is never called after Load returned. Load is
	// called once per process; a second call fails with KindInvalid.
	Load(ctx context.Context, req LoadRequest, progress func(LoadProgress)) (ModelInfo, error)
	// Status, also before Load, calls report at once and then about once a second until ctx ends (returns ctx's error) or the backend goes away.
	Status(ctx context.Context, report func(Status)) error

	// CreateAdapter makes an adapter with fresh weights: A uniform in ±1/√in drawn by Philox from the seed, B zero. KindInvalid if the id is
	// taken with another configuration; the same call repeated is answered as the first was.
	CreateAdapter(ctx context.Context, req CreateAdapterRequest) (AdapterInfo, error)
	// DeleteAdapter frees the adapter with its versions and pins. Operations that are still queued fail; sampling in flight on it is ended with KindNotFound, and so is its making, if that waits.
	// Deleting an adapter that does not exist succeeds.
	DeleteAdapter(ctx context.Context, adapter string) error
	// ForwardBackward runs the model over the data and returns target log-probabilities; unless ForwardOnly, it adds the gradient of the
	// summed loss to the adapter's accumulator (in order of position).
	ForwardBackward(ctx context.Context, req ForwardBackwardRequest) (ForwardBackwardResult, error)
	// OptimStep applies AdamW to the accumulated gradient, clears it, and publishes the next version. One that fails with KindCapacity or KindTooLarge has used up its position, but leaves the gradient to the next one.
	OptimStep(ctx context.Context, req OptimStepRequest) (OptimStepResult, error)

	// Pin keeps the version that is the latest at the request's position until Unpin, with its moments unless the pin is for the weights only. Pins are counted by their name; the same Pin repeated is one pin.
	Pin(ctx context.Context, req PinRequest) (PinResult, error)
	// Unpin releases a pin. Releasing one that does not exist succeeds.
	Unpin(ctx context.Context, req UnpinRequest) error
	// Sample generates tokens and scores the prompt. emit is called in order from one goroutine; if it returns an error the request is cancelled
	// and that error returned. While it does not return, no other request waits for it, and the tokens kept for it are bounded. Sample returns nil after
	// every sequence has finished, or ended by Cancel.
	Sample(ctx context.Context, req SampleRequest, emit func(SampleEvent) error) error
	// Cancel ends one sequence of a running Sample request (sequence ≥ 0) or the whole request (sequence < 0) and frees its pages. Its stream gets a Finished
	// event with StopCancelled for each ended sequence. Unknown ids succeed.
	Cancel(ctx context.Context, req CancelRequest) error

	// SaveAdapter writes a checkpoint directory (see Checkpoint files in checkpoint.go), whole or not at all: to a temporary name beside Path, synced, renamed.
	SaveAdapter(ctx context.Context, req SaveAdapterRequest) (SaveAdapterResult, error)
	// LoadAdapter reads a checkpoint directory, verifies its checksums, shapes and base model, and makes it the adapter's newest version. The accumulated gradient and the window
	// become those of the checkpoint with ScopeAccumulator, else empty. Scopes below the checkpoint's own are allowed: without ScopeOptimizer moments and step count start at zero.
	// A KindInvalid with the field "path" is about the files; a whole checkpoint that is none for this adapter or model has "lora_config", "base_model" or "scope".
	// The adapter gets the scale of the files, whatever it had before. A foreign adapter's rank may become the next power of two, with rows of A and columns of B that are zero and stay so.
	// With Position 0 it creates the adapter from the checkpoint's own configuration, its first version being number req.Version; the same call repeated is answered as the first was. With a position a Version that is not
	// above the latest one is KindInvalid.
	LoadAdapter(ctx context.Context, req LoadAdapterRequest) (AdapterInfo, error)

	// Configure changes settings while the backend runs, after Load. The request has the whole `backend:` section as Load had it: what has changed in it takes effect before the next training pass, or, if anything
	// is invalid or cannot be changed without a restart, nothing does, with KindInvalid that names the key. No result changes by it.
	Configure(ctx context.Context, req ConfigureRequest) (ConfigureResult, error)

	// SetVocabulary tells what tokens stand for, once, after Load. Before it a constraint with a grammar or a rule about thinking is KindInvalid with the field "constraint". The same call repeated succeeds; another vocabulary is KindInvalid.
	// A backend that constrains nothing answers this with KindInvalid, and every SampleRequest.Constraint with KindInvalid, field "constraint".
	SetVocabulary(ctx context.Context, v Vocabulary) error
}

// Info identifies a backend process.
type Info struct {
	Plugin  string // name of the plugin: "single", "fake", …
	Version string // version of the program
	BootID  string // random per process start: a changed boot id means that all adapters are gone
}

// LoadRequest names the base model.
type LoadRequest struct {
	ModelDir string          // a Hugging Face model directory on this machine
	Name     string          // the name clients use; only for messages and checkpoint metadata
	Config   json.RawMessage // the model's `backend:` section as JSON; the backend validates it strictly
	Scratch  string          // a directory the backend may use for spilled state; emptied at start
	Reserve  int64           // bytes of that directory's file system that the backend leaves free
}

// ConfigureRequest is a changed configuration.
type ConfigureRequest struct {
	Config json.RawMessage // the model's `backend:` section as JSON, in full
}

// ConfigureResult names the keys that have changed, in alphabetical order.
type ConfigureResult struct{ Changed []string }

// LoadProgress is one step of loading. Silence for long counts as a process that hangs, which is ended: a step that takes long is reported again while it goes on, but no longer than it can take.
type LoadProgress struct {
	Stage       string // StageOpen, "map", "pack", "ready"
	Done, Total int64  // bytes of weights
}

// StageOpen is the stage in which devices are opened, and what computes on them is compiled and checked: reported every few seconds, without Done and Total.
const StageOpen = "open"

// ModelInfo describes the loaded model.
type ModelInfo struct {
	Architecture     string // Hugging Face architecture name, such as "Qwen3ForCausalLM"
	Parameters       int64
	Layers           int
	HiddenSize       int
	VocabSize        int    // rows of the embedding: valid token ids are 0 … VocabSize-1
	MaxContextLength int    // prompt plus generated tokens
	DType            string // "float32" or "bfloat16": weights and matrix products
	Device           string // "cpu", "cuda:0", …
	Arithmetic       string // identity of the arithmetic: equal strings mean equal bits
	Products         string // for people to read: by which of several ways with the same bits the devices multiply, and why not by others; "" if there is nothing to choose
	ModelHash        string // SHA-256 over the weight files' tensor data and config, hex
	MaxRank          int
	TiedHead         bool          // the output head is the embedding's matrix
	Memory           []MemoryShare // how the backend shares its memory out, the limit first; empty if it keeps no plan
}

// MemoryShare is one line of a backend's plan of memory, for people to read.
type MemoryShare struct {
	Name   string // "limit", "weights", "adapters", …
	Bytes  int64  // 0 = not known, or no limit
	Detail string // what it is enough for
}

// Status is a snapshot of counters (monotone since process start) and gauges.
type Status struct {
	Time            time.Time
	BootID          string
	Adapters        int   // live adapters
	Versions        int   // live adapter versions
	QueuedTraining  int   // undecided operations with a position
	RunningSamples  int   // sequences being decoded
	WaitingSamples  int   // sequences waiting for a place
	Cycles          int64 // clock cycles done
	CycleSeconds    float64
	CyclePasses     int64   // operations with data that were in clock cycles
	CycleSteps      int64   // optimizer steps that were in clock cycles
	SamplingTurns   int64   // how often the sampler had the device
	SamplingSeconds float64 // and how long in all
	TrainedTokens   int64
	SampledTokens   int64
	PrefillTokens   int64
	KVPages         int
	KVPagesFree     int
	AdapterBytes    int64 // memory of adapters: weights, optimizer states, gradients
	SpilledBytes    int64 // of adapters that are in files for want of memory
	MemoryBytes     int64 // everything: weights, keys and values, the sampler's share, adapters, training passes
	MemoryLimit     int64 // of that; 0 = not known
	WeightBytes     int64
	LastProgressAge time.Duration // time since any device step finished while work was waiting that can go on; 0 when idle
	NoRoom          string        // why accepted work waits for the disk of LoadRequest.Scratch; "" if it does not
}

// AdapterConfig is the shape of a LoRA adapter. y = Wx + s · B(Ax), where s is 32 / Rank for adapters made by CreateAdapter. One that is loaded keeps the scale that its files state
// (lora_alpha, use_rslora, alpha_pattern), in everything that is made of it: training, sampling, and the checkpoints that are saved of it. It is not multiplied into B.
type AdapterConfig struct {
	Rank           int      // 1 … MaxRank; a power of two for adapters made by CreateAdapter
	Seed           uint64   // of the initial A
	TrainAttention bool     // q, k, v, o projections
	TrainMLP       bool     // gate, up, down projections
	TrainUnembed   bool     // output head
	Modules        []string // exactly which modules carry LoRA ("q_proj", …, "lm_head"); filled in answers, optional in LoadAdapter's answer only
	Alpha          float64  // s · Rank, 0 where modules differ; filled in answers, must not be set when an adapter is created
}

// CreateAdapterRequest makes a fresh adapter.
type CreateAdapterRequest struct {
	Adapter string // id chosen by the gateway, at most 200 bytes
	Config  AdapterConfig
}

// AdapterInfo answers CreateAdapter and LoadAdapter.
type AdapterInfo struct {
	Config  AdapterConfig
	Version int64
	Step    int64 // optimizer steps done (0 when only weights were loaded)
	Bytes   int64 // memory held by this version
	// Notices say, of an adapter that was loaded from files of another program, what that program would do differently when it is trained on; a sentence without its end each.
	Notices []string
}

// Datum is one training sequence of N tokens with its loss inputs. Position i of Tokens predicts Targets[i]; nothing is shifted.
type Datum struct {
	Tokens  []int32 // N, each in 0 … VocabSize-1
	Targets []int32 // N×K, row-major
	K       int     // targets per position; 1 except for cross_entropy with two-dimensional targets
	// Loss inputs, nil when the loss does not use them. Weights is N×K, the others N.
	Weights           []float32 // nil = ones, but for cross_entropy, which needs them
	Logprobs          []float32 // sampling log-probabilities q
	Advantages        []float32
	SequenceRatioMask []float32 // gspo
}

// ForwardBackwardRequest is one operation (one chunk of a client's call).
type ForwardBackwardRequest struct {
	Adapter     string
	Position    int64
	Data        []Datum
	Loss        string             // one of LossNames; LossSpec has the formulas
	LossConfig  map[string]float64 // keys of that loss only; unknown keys are KindInvalid
	ForwardOnly bool
	Share       Share
}

// Share says for whom work is done, so that it can be shared fairly: training between runs in proportion to their weights, and sampling between keys in
// proportion to theirs. Places in the decoding batch, tokens of prompts and the room for sequences that wait are shared in every step: a key that has
// less than its part gets it at the next one, also where all places are taken by sequences that go on for long. Those have to wait then; what they give
// does not depend on it.
type Share struct {
	Key    string  // of whom, at most 200 bytes; "" is one of its own
	Weight float64 // above 0; 0 means 1
}

// Execution says in which clock cycle a backend has run an operation, and when. The zero value says nothing.
type Execution struct {
	Cycle      int64 // number, from 1 in each process
	Begin, End time.Time
	// SamplingTurns is how often the sampler had the device between Begin and End, and Sampling how long in all.
	SamplingTurns int
	Sampling      time.Duration
}

// ForwardBackwardResult has one entry per datum, in order.
type ForwardBackwardResult struct {
	Logprobs [][]float32        // datum → N×K target log-probabilities at temperature 1, before any update
	Terms    [][]float32        // datum → N×K, what each target adds to "loss:sum", rounded to float32
	Metrics  map[string]float64 // names "name:reduction" with exactly one colon; "loss:sum" always, "clock_cycle:unique"
	// Execution has the cycle as well, and when it was.
	Execution Execution
}

// AdamParams are the settings of one step; see package optim for the formula.
type AdamParams struct {
	LearningRate, Beta1, Beta2, Eps, WeightDecay float64
	GradClipNorm                                 float64 // 0 = off
}

// OptimStepRequest is one optimizer step.
type OptimStepRequest struct {
	Adapter  string
	Position int64
	Adam     AdamParams
}

// AdapterNormOf is the name of the metric that has the norm of the adapter's modules of one kind, which is the last part of their names: "q_proj", "lm_head". Their squares add up to that of "adapter_norm", but for rounding.
func AdapterNormOf(kind string) string { return "adapter_norm/" + kind }

// OptimStepResult tells the new version.
type OptimStepResult struct {
	Version int64
	Step    int64
	// Metrics are "grad_norm" (before clipping), "adapter_norm", for each kind of module that carries LoRA its AdapterNormOf, "learning_rate" and "clock_cycle"; all finite. Norms are of all parameters together: the
	// root of the sum of their squares, which for the adapter are those of A and B of the new version.
	Metrics map[string]float64
	// Execution has the cycle as well, and when it was.
	Execution Execution
}

// PinRequest keeps the version that is the latest at Position.
type PinRequest struct {
	Adapter  string
	Position int64  // 0: outside the order, pins the latest version now
	Name     string // chosen by the gateway, unique per adapter
	// WeightsOnly keeps the version only to be sampled and saved with ScopeWeights: the backend may forget its moments as soon as it is no longer the latest.
	WeightsOnly bool
}

// PinResult names the pinned version.
type PinResult struct{ Version int64 }

// UnpinRequest releases a pin.
type UnpinRequest struct{ Adapter, Name string }

// SampleRequest asks for NumSamples continuations of one prompt and, optionally, scores of the prompt. Unless said otherwise log-probabilities are those of the
// distribution after penalties, bias and temperature and before top-k, top-p and min-p; at temperature 0 (greedy) those of temperature 1. Scores of the prompt
// (Logprobs, Top, Targets, AltLogprobs of PromptScores) are always of temperature 1 without penalties or bias. TopK, TopP and MinP apply in this order, each to what the former left.
type SampleRequest struct {
	ID         string  // chosen by the gateway, unique while it runs; for Cancel
	Adapter    string  // "" = the base model
	Version    int64   // or LatestVersion
	Prompt     []int32 // 1 … MaxContextLength tokens
	NumSamples int
	MaxTokens  int // per sequence, 0 = only score the prompt; Prompt + MaxTokens must fit MaxContextLength

	Temperature float64 // 0 = greedy
	TopK        int     // ≤ 0 = off
	TopP        float64 // 1 = off
	MinP        float64 // 0 = off
	Seed        uint64  // sample i draws the token at position p (counted from the prompt's start) from Philox(Seed, i, p)
	StopTokens  []int32 // ends a sequence; the stop token is emitted
	MinTokens   int     // stop tokens cannot be drawn before that many tokens; log-probabilities are not changed by that

	FrequencyPenalty, PresencePenalty float64           // OpenAI's, over generated tokens
	RepetitionPenalty                 float64           // > 0; 1 = off; over prompt and generated tokens
	LogitBias                         map[int32]float64 // added to logits

	TopKSampledLogprobs int // per generated token the k likeliest
	PromptLogprobs      bool
	PromptLogprobsLastN int // 0 = all; else only the last n prompt tokens are scored (also for TopKPromptLogprobs)
	TopKPromptLogprobs  int
	TargetPromptTokens  []int32 // (P-1)×TargetPromptK, row-major; row i is scored at prompt position i+1; -1 = not asked
	TargetPromptK       int
	Constraint          *Constraint // what may be drawn; nil = everything
	AtEnd               bool        // nobody reads a sequence's tokens before its end, so they may be sent many at once
	PromptAlternatives  int         // k independent draws at Temperature, with TopK, TopP and MinP, at every prompt position after the first

	Share Share // of places in the decoding batch and of the sampler's time
	// PrefixScope bounds what is taken from other requests' prompts: keys and values are shared only between requests of the same scope, so that neither
	// CachedTokens nor the time tells of others'. At most 200 bytes; "" is one of its own.
	PrefixScope string
}

// Vocabulary says what tokens stand for. Tokens beyond its end, up to ModelInfo.VocabSize, stand for nothing, as those without bytes do: no grammar allows them.
type Vocabulary struct {
	Tokens  [][]byte // what each token adds to a text, at most MaxTokenBytes
	Special []bool   // as many: a token that stands for itself (a mark of turns, a tag), never for its bytes as part of a text
	Ends    []int32  // tokens that end an answer; a grammar allows them where a text of it may end, and nowhere else
}

// Constraint says which tokens a sequence may draw. What it forbids is taken away after penalties, bias and temperature and before top-k, top-p and min-p, which apply to what is left; at temperature 0 it is the likeliest of what is
// left, and so it is where the probabilities of all that is left round to zero. No log-probability is changed by it but SampledTokens.ConstraintLogprobs: Logprobs and Top are those of the whole distribution, and Top may have
// tokens that are forbidden. Draws of PromptAlternatives are not constrained.
//
// Which tokens are allowed follows from the constraint and the sequence's tokens alone. If none is, or the grammar takes more than its limits somewhere in the middle of a text, the request fails with KindInvalid, field "constraint", and
// nobody else's does.
type Constraint struct {
	// Grammar is what the sequence's text, without end tokens, must be, in the form that grammar.Encode gives; empty: anything. At most MaxGrammarBytes. Under a grammar end tokens (Vocabulary.Ends) are allowed exactly where a
	// text of it may end, and so are StopTokens, beside where the grammar has their text; an end token ends the sequence as a stop token does (StopToken), also if it is none of StopTokens. Where the text is complete and nothing
	// can follow, the sequence ends by itself, and no token is added (StopComplete). MinTokens must be 0.
	Grammar []byte
	// Think, unless nil, says where Grammar begins.
	Think *ThinkRule
	// Excluded may never be drawn, whatever the grammar says. In ascending order, none twice.
	Excluded []int32
}

// ThinkRule lets a sequence think before its answer: the grammar begins behind the thinking. Inside it all tokens that stand for something are allowed but end tokens, up to the first Close; behind that a text of at most two newlines and
// Constraint.Grammar, or anything if there is no grammar. The lists hold at most MaxThinkTokens.
type ThinkRule struct {
	// Open begins the thinking if it is what the sequence begins with; otherwise there is none. Not used with Inside.
	Open []int32
	// Close ends it. At least one token.
	Close []int32
	// Forced is drawn, token by token, once Budget tokens have been thought, those of Open not counted, unless they end with Close. Close must be in it, and what stands behind that must be how a text behind Close may begin. Empty: thinking has no end but Close. These are tokens as all others, with the
	// model's own log-probabilities.
	Forced []int32
	Budget int // at least 0; 0 without Forced
	// Inside: the sequence begins in its thinking, as the prompt ends with Open.
	Inside bool
	// Without are tokens that thinking may not have, beside end tokens; Forced may.
	Without []int32
}

// TopLogprobs is a rows×K matrix of the likeliest tokens, descending; ties by lower id first.
type TopLogprobs struct {
	K        int
	IDs      []int32
	Logprobs []float32
}

// StopReason tells why a sequence ended.
type StopReason int

// The reasons for the end of a sequence.
const (
	StopToken     StopReason = iota // a stop token was drawn
	StopLength                      // MaxTokens or the context limit
	StopCancelled                   // Cancel
	StopComplete                    // the text is complete under Constraint.Grammar, and nothing can follow
)

// SampleEvent is one message of a Sample stream; exactly one field is set.
type SampleEvent struct {
	Prompt   *PromptScores
	Tokens   *SampledTokens
	Finished *SequenceFinished
}

// PromptScores arrives once, before any token, also when nothing was asked.
type PromptScores struct {
	Version      int64       // the adapter version that the request runs on
	CachedTokens int         // prompt tokens taken from the prefix cache, see SampleRequest.PrefixScope
	Logprobs     []float32   // P values, NaN where not scored (position 0 always); nil unless PromptLogprobs
	Top          TopLogprobs // P rows, row 0 and unscored rows hold id 0 and -99999
	Targets      []float32   // (P-1)×K, 0 where not asked
	AltTokens    []int32     // (P-1)×PromptAlternatives
	AltLogprobs  []float32
}

// SampledTokens is the next piece of one sequence.
type SampledTokens struct {
	Sequence int // 0 … NumSamples-1
	Tokens   []int32
	Logprobs []float32
	Top      TopLogprobs // len(Tokens) rows
	// ConstraintLogprobs has, per token, the logarithm of the probability of all that the constraint allowed together, at the request's temperature (at 0 at temperature 1) and before top-k, top-p and min-p: without these the
	// token was drawn with the log-probability Logprobs − ConstraintLogprobs. 0 where nothing was forbidden. nil without SampleRequest.Constraint.
	ConstraintLogprobs []float32
}

// SequenceFinished ends one sequence.
type SequenceFinished struct {
	Sequence int
	Reason   StopReason
}

// CancelRequest names what to end.
type CancelRequest struct {
	ID       string
	Sequence int // < 0: all
}

// Scope says how much of an adapter a checkpoint holds.
type Scope int

// The scopes, each including the former.
const (
	ScopeWeights     Scope = iota // A and B
	ScopeOptimizer                // and Adam's moments and step count
	ScopeAccumulator              // and the accumulated gradient
)

// SaveAdapterRequest writes a checkpoint.
type SaveAdapterRequest struct {
	Adapter     string
	Position    int64 // 0: outside the order, saves Version
	Version     int64 // used with Position 0; may be LatestVersion. Scopes beyond weights need a version whose moments are live
	Scope       Scope
	Path        string // absolute; must not exist
	ExportNames string // "peft" or "tinker": the name of the output head's tensors, and with "peft" the modules that PEFT has; "": the names of peft, and the modules that there are
	// StackedExperts says that layers of experts stay stacked, as they are kept, whatever ExportNames is.
	StackedExperts bool
	// Metadata is stored in the checkpoint and returned unread by whoever loads it.
	Metadata map[string]string
}

// SaveAdapterResult describes what was written.
type SaveAdapterResult struct {
	Bytes   int64
	Version int64
	Step    int64
}

// LoadAdapterRequest reads a checkpoint, or a PEFT adapter directory of any origin (Scope weights only).
type LoadAdapterRequest struct {
	Adapter  string
	Position int64 // 0 creates the adapter
	Path     string
	Scope    Scope // ScopeOptimizer needs a checkpoint that has it
	Frozen   bool  // only to be sampled: no optimizer state is kept, training operations are refused
	Version  int64 // the number that the loaded version gets, from which later ones count on; for a run that is rebuilt, so that its versions keep their numbers. With a position 0 means the next one
}
