package tinker

import (
	"encoding/json"
	"math"

	"github.com/gin-gonic/gin"

	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// adamParams are the optimizer settings; absent fields have the SDK's defaults.
type adamParams struct {
	LearningRate setting `json:"learning_rate"`
	Beta1        setting `json:"beta1"`
	Beta2        setting `json:"beta2"`
	Eps          setting `json:"eps"`
	WeightDecay  setting `json:"weight_decay"`
	GradClipNorm setting `json:"grad_clip_norm"`
}

func (p adamParams) adam() plugins.AdamParams {
	return plugins.AdamParams{
		LearningRate: p.LearningRate.or(1e-4), Beta1: p.Beta1.or(0.9), Beta2: p.Beta2.or(0.95), Eps: p.Eps.or(1e-12),
		WeightDecay: p.WeightDecay.or(0), GradClipNorm: p.GradClipNorm.or(0),
	}
}

// setting is a JSON number that may be absent. JSON has no NaN and no infinity: the SDK writes null for them, which must not become a default.
type setting struct {
	given bool
	value float64
}

// UnmarshalJSON reads null as NaN, which is refused under the field's name where the values are checked.
func (n *setting) UnmarshalJSON(text []byte) error {
	n.given = true
	if string(text) == "null" {
		n.value = math.NaN()
		return nil
	}
	return json.Unmarshal(text, &n.value)
}

func (n setting) or(absent float64) float64 {
	if !n.given {
		return absent
	}
	return n.value
}

func (s *Service) optimStep(c call) (any, error) {
	var in struct {
		ModelID         string          `json:"model_id"`
		SeqID           *int64          `json:"seq_id"`
		AdamParams      *adamParams     `json:"adam_params"`
		OptimizerParams json.RawMessage `json:"optimizer_params"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	op := runs.OptimStep{Operation: c.operation(in.ModelID, in.SeqID)}
	switch {
	case in.AdamParams != nil:
		op.Adam = in.AdamParams.adam()
	case len(in.OptimizerParams) > 0 && string(in.OptimizerParams) != "null":
		var family struct {
			Type string `json:"type"`
			adamParams
		}
		if err := json.Unmarshal(in.OptimizerParams, &family); err != nil {
			return nil, s.refused(c, op.Operation, badRequestf("optimizer_params: %v", err))
		}
		if family.Type != "adamw" {
			return nil, s.refused(c, op.Operation, badRequestf("optimizer_params.type: %.40q is not supported; allowed is adamw", family.Type))
		}
		op.Adam = family.adam()
	default:
		return nil, s.refused(c, op.Operation, badRequestf("adam_params: is required"))
	}
	submitted, err := s.core.OptimStep(c, op)
	return accepted(submitted, err)
}

// operation names an operation of a run. Without a number it is the next one.
func (c call) operation(runID string, seq *int64) runs.Operation {
	op := runs.Operation{Owner: c.owner, RunID: runID, Unnumbered: seq == nil}
	if seq != nil {
		op.Seq = *seq
	}
	return op
}

// refused tells the core that this number will not come, so that it is not waited for, and passes the error on.
func (s *Service) refused(c call, op runs.Operation, err error) error {
	s.core.NoteRefused(c.owner, op.RunID, op.Seq)
	return err
}

// finite keeps NaN and infinity out of JSON: they become null.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// finiteMetrics leaves out what JSON cannot say.
func finiteMetrics(metrics map[string]float64) gin.H {
	out := gin.H{}
	for name, v := range metrics {
		if f := finite(v); f != nil {
			out[name] = v
		}
	}
	return out
}
