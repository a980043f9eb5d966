package model

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// longRoPE reads the settings of LongRoPE.
func (j *configJSON) longRoPE(c *Config, r *ropeJSON, where string) error {
	const most = 1e6
	l := &nn.LongRoPE{Short: r.ShortFactor, Long: r.LongFactor}
	if err := (size{where + ": original_max_position_embeddings", r.OriginalMax, mostPositions, &l.OriginalPositions}).read(); err != nil {
		return err
	}
	for _, list := range []struct {
		name    string
		factors []float64
	}{{"short_factor", l.Short}, {"long_factor", l.Long}} {
		if len(list.factors) != c.RotaryDim/2 {
			return fmt.Errorf("%s: %s has %d entries, it must have %d, one for each two elements that positions turn", where, list.name, len(list.factors), c.RotaryDim/2)
		}
		for i, f := range list.factors {
			if !(f > 0 && f < most) {
				return fmt.Errorf("%s: %s[%d] is %v, it must be above 0 and below %v", where, list.name, i, f, float64(most))
			}
		}
	}
	stretch := float64(c.MaxPositionEmbeddings) / float64(l.OriginalPositions)
	for _, f := range []struct {
		name  string
		value *float64
		to    *float64
	}{{"factor", r.Factor, &stretch}, {"attention_factor", r.AttentionFactor, &l.AttentionFactor}} {
		if f.value == nil {
			continue
		}
		if !(*f.value > 0 && *f.value < most) {
			return fmt.Errorf("%s: %s is %v, it must be above 0 and below %v", where, f.name, *f.value, float64(most))
		}
		*f.to = *f.value
	}
	switch {
	case r.AttentionFactor != nil:
	case stretch <= 1:
		l.AttentionFactor = 1
	case l.OriginalPositions == 1:
		return fmt.Errorf("%s: original_max_position_embeddings is 1, from which no attention_factor follows", where)
	default:
		l.AttentionFactor = math.Sqrt(1 + math.Log(stretch)/math.Log(float64(l.OriginalPositions)))
	}
	c.Rope.LongRoPE = l
	return nil
}

// LongFactors tells whether positions turn by the factors of long contexts, for all sequences; ok is false where the model does not tell long contexts from others.
func (m *Model) LongFactors() (long, ok bool) {
	l := m.Config.Rope.LongRoPE
	return l != nil && l.Stretches(m.MaxContext), l != nil
}
