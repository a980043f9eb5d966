package plugins

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Planner is a Backend that can tell, before anything is loaded, what memory a model will take, on devices that need not be there. What the error is about is KindInvalid with a field, or KindNotFound; a model that does not fit is no
// error but an answer.
type Planner interface {
	PlanMemory(ctx context.Context, req PlanRequest) (Plan, error)
}

// PlanRequest asks for a plan of memory. Where a field is zero the section says.
type PlanRequest struct {
	ModelDir string          `json:"model_dir"` // a Hugging Face model directory, of which config.json is enough
	Config   json.RawMessage `json:"config"`    // the model's `backend:` section as JSON, which may be empty
	Device   string          `json:"device"`    // the kind of devices: "cpu", "cuda"
	Devices  int             `json:"devices"`   // how many
	// Memory is bytes of each device; of processors, of the memory that they share. 0: what the section allows or, of processors, what is free on this machine.
	Memory  int64  `json:"memory_bytes"`
	Rank    int    `json:"rank"`    // of adapters
	Context int    `json:"context"` // tokens of the longest sequence
	DType   string `json:"dtype"`   // of weights and products, as the section has it
}

// Plan is what a model takes. All sizes are bytes, of all devices together unless it is said otherwise.
type Plan struct {
	Model      PlannedModel       `json:"model"`
	Adapter    PlannedAdapter     `json:"adapter"`
	Passes     []PlannedPass      `json:"training_passes"` // of the whole model on one device, in the order of their tokens
	Machine    PlannedMachine     `json:"machine"`
	Placements []PlannedPlacement `json:"placements"`
	Advice     []string           `json:"advice"` // sentences: what does not fit, and what would
	Notes      []string           `json:"notes"`  // sentences: what else is to be known
}

// PlannedModel is the base model, whole.
type PlannedModel struct {
	Architecture     string `json:"architecture"`
	Source           string `json:"source"` // where its sizes are known from
	Parameters       int64  `json:"parameters"`
	Layers           int    `json:"layers"`
	HiddenSize       int    `json:"hidden_size"`
	VocabSize        int    `json:"vocab_size"`
	MaxContextLength int    `json:"max_context_length"` // that the model allows
	DType            string `json:"dtype"`
	WeightBytes      int64  `json:"weight_bytes"`
	TokenBytes       int64  `json:"kv_cache_bytes_per_token"` // keys and values of one token
	StateBytes       int64  `json:"state_bytes_per_sequence"` // what recurrent layers keep of a sequence; 0: there are none
}

// PlannedAdapter is one adapter of a rank, on all that LoRA can be on, of the whole model on one device.
type PlannedAdapter struct {
	Rank          int   `json:"rank"`
	Parameters    int64 `json:"parameters"`
	WeightBytes   int64 `json:"weight_bytes"` // as they are trained, and as products read them
	GradientBytes int64 `json:"gradient_bytes"`
	MomentBytes   int64 `json:"moment_bytes"` // of Adam
	StepBytes     int64 `json:"step_bytes"`   // the most at once: an optimizer step has weights and moments twice
}

// PlannedPass is a training pass over so many tokens, with an adapter of the rank.
type PlannedPass struct {
	Tokens          int   `json:"tokens"`
	KeptBytes       int64 `json:"kept_bytes"`       // with the activations of all layers
	RecomputedBytes int64 `json:"recomputed_bytes"` // with those of a layer at a time, which are computed again
}

// PlannedMachine is the devices that placements are on.
type PlannedMachine struct {
	Device      string `json:"device"`
	Devices     int    `json:"devices"`
	MemoryBytes int64  `json:"memory_bytes"` // of each; of processors, that which they share; 0: not known
	Source      string `json:"memory_from"`  // who says so
}

// What a placement is good for.
const (
	FitsTraining = "training" // an adapter is trained and sampled
	FitsSampling = "sampling" // it is sampled; none of the rank can be trained
	FitsNothing  = "nothing"
)

// PlannedPlacement is a way to put the model on the devices.
type PlannedPlacement struct {
	Name   string          `json:"name"`
	Plugin string          `json:"plugin"`
	Config json.RawMessage `json:"config"`           // what the section needs for it
	Fits   string          `json:"fits"`             // what it is good for, as far as memory goes
	Reason string          `json:"reason,omitempty"` // why it does not fit, or cannot be

	Devices       []PlannedDevice `json:"memories"`       // one for each memory that there is; none if that is not known
	Context       int             `json:"context"`        // tokens of the longest sequence
	CacheTokens   int             `json:"cache_tokens"`   // of each copy
	Sequences     int             `json:"sequences"`      // of each copy, that are sampled at once
	BatchTokens   int             `json:"batch_tokens"`   // of a training pass over several sequences
	Recompute     bool            `json:"recompute"`      // such passes compute activations again
	KeptDatum     int             `json:"kept_datum"`     // tokens of the longest datum that trains with its activations kept
	LongestDatum  int             `json:"longest_datum"`  // and where they may be computed again
	Adapters      int64           `json:"adapters"`       // of the rank, with their moments, in memory at once
	TrainingBytes int64           `json:"training_bytes"` // of training passes, all together
	AdapterBytes  int64           `json:"adapter_bytes"`  // of adapters, all together
}

// PlannedDevice is how the memory of a device is shared out; what is left goes to training passes and adapters.
type PlannedDevice struct {
	Name         string `json:"name"`
	LimitBytes   int64  `json:"limit_bytes"`
	WeightBytes  int64  `json:"weight_bytes"`
	SamplerBytes int64  `json:"sampler_bytes"` // its scratch memory, and states of sequences
	CacheBytes   int64  `json:"cache_bytes"`   // keys and values, and snapshots of states
	OtherBytes   int64  `json:"other_bytes"`   // recorded steps, and what ranks exchange through
	LeftBytes    int64  `json:"left_bytes"`
}

// planVersion is that of question and answer. A plugin does not answer another one.
const planVersion = 1

// maxPlan bounds a question and an answer.
const maxPlan = 4 << 20

type planQuestion struct {
	Version int `json:"version"`
	PlanRequest
}

// planAnswer is a plan, or what is wrong with the request.
type planAnswer struct {
	Version int    `json:"version"`
	Kind    string `json:"kind,omitempty"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message,omitempty"`
	Plan    *Plan  `json:"plan,omitempty"`
}

// ErrUnplanned says that a plugin cannot tell what memory a model takes.
var ErrUnplanned = errors.New("the plugin plans no memory before it loads")

// servePlan answers a program that asks for a plan.
func servePlan(ctx context.Context, b Backend, in io.Reader, out io.Writer) error {
	planner, ok := b.(Planner)
	if !ok {
		return ErrUnplanned
	}
	raw, err := io.ReadAll(io.LimitReader(in, maxPlan))
	if err != nil {
		return fmt.Errorf("read the question: %w", err)
	}
	var q planQuestion
	if err := json.Unmarshal(raw, &q); err != nil {
		return fmt.Errorf("read the question: %w", err)
	}
	if q.Version != planVersion {
		return fmt.Errorf("the question has version %d, this program answers %d", q.Version, planVersion)
	}
	answer := planAnswer{Version: planVersion}
	switch plan, err := planner.PlanMemory(ctx, q.PlanRequest); {
	case err == nil:
		answer.Plan = &plan
	default:
		answer.Message = err.Error()
		var e *Error
		if errors.As(err, &e) {
			answer.Kind, answer.Field, answer.Message = e.Kind.String(), e.Field, e.Message
		}
	}
	return json.NewEncoder(out).Encode(answer)
}

// PlanMemory has a plugin program plan, with an environment. The error is ErrUnplanned if this one cannot.
func PlanMemory(ctx context.Context, program string, environment []string, req PlanRequest) (Plan, error) {
	if len(req.Config) == 0 {
		req.Config = json.RawMessage("null")
	}
	question, err := json.Marshal(planQuestion{planVersion, req})
	if err != nil {
		return Plan{}, fmt.Errorf("plan memory: %w", err)
	}
	raw, err := ask(ctx, program, planArgument, environment, question, maxPlan)
	switch {
	case errors.Is(err, errNoAnswer):
		return Plan{}, ErrUnplanned
	case err != nil:
		return Plan{}, fmt.Errorf("plan memory: %w", err)
	}
	var answer planAnswer
	if err := json.Unmarshal(raw, &answer); err != nil || answer.Version != planVersion || answer.Plan == nil && answer.Message == "" {
		return Plan{}, ErrUnplanned
	}
	if answer.Plan == nil {
		kind, ok := ParseKind(answer.Kind)
		if !ok {
			kind = KindInternal
		}
		return Plan{}, &Error{Kind: kind, Field: answer.Field, Message: answer.Message}
	}
	return *answer.Plan, nil
}
