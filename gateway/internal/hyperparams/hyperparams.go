// Package hyperparams gives a rank and a learning rate to begin with, by the published rule for LoRA: what tinker-cookbook's hyperparam_utils says of the models that it knows, and the same formulas, over config.json, for
// others. It knows no server.
//
// Sources: John Schulman and Thinking Machines Lab, "LoRA Without Regret" (2025), https://thinkingmachines.ai/blog/lora: LoRA wants ten times the learning rate of full fine-tuning, whatever the rank is, and learns as well
// while its parameters hold what the dataset has to teach. Tinker's LoRA primer: parameters at least as many as the tokens that are trained on. tinker-cookbook, hyperparam_utils.get_lr: the exponents of the width.
package hyperparams

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// The formula of the learning rate: fullRate · loraFactor · (referenceWidth / hidden size)^exponent.
const (
	fullRate       = 5e-5 // of full fine-tuning
	loraFactor     = 10.0
	referenceWidth = 2000
)

// exponents of the width, by family.
const (
	llamaExponent = 0.781
	qwenExponent  = 0.0775
)

// Ranks: what is enough for small datasets and for reinforcement learning, and the most that a server takes.
const (
	DefaultRank = 32
	MaxRank     = 512
)

// Source says where the rules are from.
const Source = `"LoRA Without Regret", https://thinkingmachines.ai/blog/lora; tinker-cookbook 0.6.1, hyperparam_utils`

// Parameters are those of an adapter of rank 1, by what is trained.
type Parameters struct {
	MLP     int64 `json:"mlp"`
	Attn    int64 `json:"attn"`
	Unembed int64 `json:"unembed"`
}

func (p *Parameters) sum() int64 { return p.MLP + p.Attn + p.Unembed }

// Advice is what is said of a model.
type Advice struct {
	Model        string  `json:"model"`
	HiddenSize   int64   `json:"hidden_size"`
	LearningRate float64 `json:"learning_rate"`
	// Calibrated says whether the formula was fitted to the family. If not, LearningRate is only LoRA's factor, without a correction for the width.
	Calibrated bool `json:"calibrated"`
	Rank       int  `json:"rank"`
	// ParametersPerRank is null where it is not known, and so is what follows from it.
	ParametersPerRank *Parameters `json:"parameters_per_rank"`
	Parameters        *int64      `json:"parameters"`
	DatasetTokens     int64       `json:"dataset_tokens,omitempty"`
	// Enough says whether an adapter of that rank holds the dataset, where its size was given.
	Enough *bool    `json:"enough,omitempty"`
	Notes  []string `json:"notes"`
	Source string   `json:"source"`
}

//go:embed cookbook.json
var cookbookText []byte

type entry struct {
	HiddenSize        int64       `json:"hidden_size"`
	LearningRate      *float64    `json:"learning_rate"`
	ParametersPerRank *Parameters `json:"parameters_per_rank"`
}

// cookbook is what the cookbook knows, by name.
var cookbook = func() map[string]entry {
	var file struct{ Models map[string]entry }
	if err := json.Unmarshal(cookbookText, &file); err != nil {
		panic(err) // it is compiled in, and tested
	}
	return file.Models
}()

// Known gives the advice for a name of the cookbook's list, with or without the ending that the Tinker service puts behind a colon.
func Known(name string, datasetTokens int64) (*Advice, bool) {
	base, _, _ := strings.Cut(name, ":")
	e, ok := cookbook[base]
	if !ok {
		return nil, false
	}
	a := &Advice{Model: name, HiddenSize: e.HiddenSize, ParametersPerRank: e.ParametersPerRank, Calibrated: e.LearningRate != nil}
	if e.LearningRate != nil {
		a.LearningRate = *e.LearningRate
	}
	a.finish(datasetTokens)
	return a, true
}

// Of gives the advice for a model by its config.json.
func Of(name string, config []byte, datasetTokens int64) (*Advice, error) {
	s, err := readShape(config)
	if err != nil {
		return nil, err
	}
	a := &Advice{Model: name, HiddenSize: s.Hidden, ParametersPerRank: s.parameters()}
	family := strings.ToLower(s.ModelType)
	switch {
	case strings.HasPrefix(family, "llama"):
		a.LearningRate, a.Calibrated = scaled(s.Hidden, llamaExponent), true
		a.Notes = append(a.Notes, "the exponent of the width was fitted to Llama 3; this model has its architecture")
	case strings.HasPrefix(family, "qwen"):
		a.LearningRate, a.Calibrated = scaled(s.Hidden, qwenExponent), true
	}
	if s.Hidden < 1024 {
		a.Notes = append(a.Notes, fmt.Sprintf("hidden size %d is outside of what the rule was fitted to (2048 to 8192); small models often want a larger learning rate", s.Hidden))
	}
	a.finish(datasetTokens)
	return a, nil
}

func scaled(hidden int64, exponent float64) float64 {
	return fullRate * loraFactor * math.Pow(referenceWidth/float64(hidden), exponent)
}

// finish adds what follows from the rest.
func (a *Advice) finish(datasetTokens int64) {
	a.Source, a.Rank, a.DatasetTokens = Source, DefaultRank, datasetTokens
	if !a.Calibrated {
		a.LearningRate = fullRate * loraFactor
		a.Notes = append(a.Notes, "the cookbook has no learning rate for this family: this is ten times that of full fine-tuning, without a correction for the width; try a third and three times of it too")
	}
	if a.ParametersPerRank == nil {
		a.Notes = append(a.Notes, "how many parameters an adapter has is not known for this architecture, so the rank is the default")
		return
	}
	perRank := a.ParametersPerRank.sum()
	for a.Rank < MaxRank && int64(a.Rank)*perRank < datasetTokens {
		a.Rank *= 2
	}
	all := int64(a.Rank) * perRank
	a.Parameters = &all
	if datasetTokens > 0 {
		enough := all >= datasetTokens
		a.Enough = &enough
		if !enough {
			a.Notes = append(a.Notes, fmt.Sprintf("the dataset has more tokens than an adapter of the largest rank has parameters (%d): LoRA will learn it less well than full fine-tuning", all))
		}
	}
}
