package inference

import (
	"encoding/json"
	"fmt"
)

// Datum is an answer as training data: what forward_backward takes as JSON. Inputs are all tokens but the last and targets all but the first, as the trainer reads them.
type Datum struct {
	ModelInput struct {
		Chunks []EncodedText `json:"chunks"`
	} `json:"model_input"`
	LossInputs map[string]any `json:"loss_fn_inputs"`
}

// EncodedText is a chunk of tokens.
type EncodedText struct {
	Type   string  `json:"type"`
	Tokens []int32 `json:"tokens"`
}

// Tensor is a list of numbers in the form of the trainer's requests.
type Tensor[T int32 | float32] struct {
	Data  []T    `json:"data"`
	DType string `json:"dtype"`
	Shape []int  `json:"shape"`
}

func integers(data []int32) Tensor[int32] { return Tensor[int32]{data, "int64", []int{len(data)}} }

func floats(data []float32) Tensor[float32] {
	return Tensor[float32]{data, "float32", []int{len(data)}}
}

// DatumLosses are the losses for which an answer is made a Datum. The first is also what true means; its inputs are right for ppo, cispo and dro too.
var DatumLosses = []string{"importance_sampling", "cross_entropy", "gspo"}

// DatumLoss reads return_datum: true, false, or the name of a loss. "" is none.
func DatumLoss(field string, raw json.RawMessage) (string, error) {
	switch {
	case !Given(raw) || string(raw) == "false":
		return "", nil
	case string(raw) == "true":
		return DatumLosses[0], nil
	}
	name, err := StringOf(raw)
	if err == nil {
		switch name {
		case "importance_sampling", "cross_entropy", "gspo":
			return name, nil
		case "ppo", "cispo", "dro", "stable_reinforce":
			return DatumLosses[0], nil
		}
	}
	return "", Invalid(field, "%.40s is not true, false or one of importance_sampling, ppo, cispo, dro, stable_reinforce, gspo, cross_entropy", raw)
}

// Span is a stretch of a sequence of tokens: those that the model has sampled, with their log-probabilities, or those that it has read, which have none.
type Span struct {
	Tokens   []int32
	Logprobs []float32 // nil for what was read
}

// NewDatum makes a Datum of a sequence. Positions that were read have no weight: 0 in advantages and weights; those that were sampled have 1, which the client multiplies by its advantage.
func NewDatum(loss string, spans []Span) (*Datum, error) {
	var tokens []int32
	var logprobs, sampled []float32
	for _, s := range spans {
		if s.Logprobs != nil && len(s.Logprobs) != len(s.Tokens) {
			return nil, fmt.Errorf("make a datum: %d log-probabilities of %d tokens", len(s.Logprobs), len(s.Tokens))
		}
		tokens = append(tokens, s.Tokens...)
		for i := range s.Tokens {
			if s.Logprobs == nil {
				logprobs, sampled = append(logprobs, 0), append(sampled, 0)
			} else {
				logprobs, sampled = append(logprobs, s.Logprobs[i]), append(sampled, 1)
			}
		}
	}
	if len(tokens) < 2 {
		return nil, fmt.Errorf("make a datum: %d tokens are fewer than 2", len(tokens))
	}
	out := &Datum{}
	out.ModelInput.Chunks = []EncodedText{{"encoded_text", tokens[:len(tokens)-1]}}
	out.LossInputs = map[string]any{"target_tokens": integers(tokens[1:])}
	switch loss {
	case "cross_entropy":
		out.LossInputs["weights"] = floats(sampled[1:])
	case "gspo":
		out.LossInputs["sequence_ratio_mask"] = floats(sampled[1:])
		fallthrough
	default:
		out.LossInputs["logprobs"], out.LossInputs["advantages"] = floats(logprobs[1:]), floats(sampled[1:])
	}
	return out, nil
}
