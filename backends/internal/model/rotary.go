package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
)

// mostPositions bounds numbers of positions.
const mostPositions = 1 << 24

// ropeJSON are settings of rotary positions.
type ropeJSON struct {
	RopeTheta           *float64 `json:"rope_theta"`
	RopeType            *string  `json:"rope_type"`
	Type                *string  `json:"type"` // older name of rope_type
	Factor              *float64 `json:"factor"`
	LowFreqFactor       *float64 `json:"low_freq_factor"`
	HighFreqFactor      *float64 `json:"high_freq_factor"`
	OriginalMax         *int     `json:"original_max_position_embeddings"`
	PartialRotaryFactor *float64 `json:"partial_rotary_factor"`
	MRopeSection        []int    `json:"mrope_section"`
	BetaFast            *float64 `json:"beta_fast"`
	BetaSlow            *float64 `json:"beta_slow"`
	AttentionFactor     *float64 `json:"attention_factor"`
	MScale              *float64 `json:"mscale"`
	MScaleAllDim        *float64 `json:"mscale_all_dim"`
	Truncate            *bool    `json:"truncate"`

	ShortFactor []float64 `json:"short_factor"`
	LongFactor  []float64 `json:"long_factor"`

	object string // a key whose value is an object, as where each type of layer has settings of its own; "" = there is none
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *ropeJSON) UnmarshalJSON(b []byte) error {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if all[key][0] == '{' {
			*r = ropeJSON{object: key}
			return nil
		}
	}
	type settings ropeJSON
	return json.Unmarshal(b, (*settings)(r))
}

func (r *ropeJSON) empty() bool { return reflect.ValueOf(*r).IsZero() }

// rope reads the settings of rotary positions from wherever they are.
func (j *configJSON) rope(c *Config) error {
	r, where := j.RopeScaling, "rope_scaling"
	for name, r := range map[string]*ropeJSON{"rope_scaling": j.RopeScaling, "rope_parameters": j.RopeParameters} {
		if r != nil && r.object != "" {
			return fmt.Errorf("%s: %.40q is an object: only settings that are the same for all layers are supported", name, r.object)
		}
	}
	switch {
	case j.RopeParameters == nil && r == nil:
		r = &ropeJSON{}
	case r == nil || r.empty() && j.RopeParameters != nil:
		r, where = j.RopeParameters, "rope_parameters"
	case j.RopeParameters != nil && j.RopeParameters.RopeTheta != nil && r.RopeTheta == nil && j.RopeTheta == nil:
		// transformers takes rope_scaling in place of all of rope_parameters, and then its default.
		return fmt.Errorf("rope_scaling goes before rope_parameters and has no rope_theta: write it there")
	}
	theta := r.RopeTheta
	if theta == nil {
		theta = j.RopeTheta
	}
	c.Rope.Theta = 10000 // the default of transformers
	if theta != nil {
		c.Rope.Theta = *theta
	}
	// Also those that another one goes before: a file that says such a thing is not to be trusted.
	thetas := []*float64{&c.Rope.Theta, j.RopeTheta}
	for _, r := range []*ropeJSON{j.RopeScaling, j.RopeParameters} {
		if r != nil {
			thetas = append(thetas, r.RopeTheta)
		}
	}
	for _, theta := range thetas {
		if theta != nil && !(*theta > 1 && *theta < math.MaxFloat32) {
			return fmt.Errorf("rope_theta is %v, it must be above 1 and finite", *theta)
		}
	}
	if err := j.rotary(c, r); err != nil {
		return err
	}
	kind := r.RopeType
	if kind == nil {
		kind = r.Type
	}
	if err := r.mrope(c, where); err != nil {
		return err
	}
	if kind == nil || *kind == "default" {
		return nil
	}
	if outer := j.OriginalMax; outer != nil { // as transformers takes it when it computes frequencies that are stretched
		if r.OriginalMax != nil && *r.OriginalMax != *outer {
			return fmt.Errorf("original_max_position_embeddings is %d, and %d in %s: they must be equal", *outer, *r.OriginalMax, where)
		}
		r.OriginalMax = outer
	}
	if *kind == "yarn" {
		return j.yarn(c, r, where)
	}
	if *kind == "longrope" || *kind == "su" { // the older name
		return j.longRoPE(c, r, where)
	}
	if *kind != "llama3" {
		return fmt.Errorf("%s: rope_type is %.40q, only default, llama3, yarn and longrope are supported", where, *kind)
	}
	if r.OriginalMax == nil || *r.OriginalMax < 1 || *r.OriginalMax > mostPositions {
		return fmt.Errorf("%s: original_max_position_embeddings must be in 1 … %d", where, mostPositions)
	}
	s := &nn.Llama3Scaling{OriginalPositions: *r.OriginalMax}
	for _, f := range []struct {
		name  string
		value *float64
		to    *float64
	}{{"factor", r.Factor, &s.Factor}, {"low_freq_factor", r.LowFreqFactor, &s.LowFrequencyFactor}, {"high_freq_factor", r.HighFreqFactor, &s.HighFrequencyFactor}} {
		if f.value == nil || !(*f.value > 0 && *f.value < 1e6) {
			return fmt.Errorf("%s: %s must be above 0 and below 1000000", where, f.name)
		}
		*f.to = *f.value
	}
	if s.HighFrequencyFactor <= s.LowFrequencyFactor {
		return fmt.Errorf("%s: high_freq_factor %v is not above low_freq_factor %v", where, s.HighFrequencyFactor, s.LowFrequencyFactor)
	}
	c.Rope.Llama3 = s
	return nil
}

// hasTheta tells whether rope_theta is anywhere.
func (j *configJSON) hasTheta() bool {
	for _, r := range []*ropeJSON{j.RopeScaling, j.RopeParameters} {
		if r != nil && r.RopeTheta != nil {
			return true
		}
	}
	return j.RopeTheta != nil
}

// rotary reads how many elements of a head positions turn.
func (j *configJSON) rotary(c *Config, r *ropeJSON) error {
	c.RotaryDim = c.HeadDim
	factor, outer := r.PartialRotaryFactor, j.PartialRotaryFactor
	switch {
	case factor == nil:
		factor = outer
	case outer != nil && *outer != *factor && *outer != j.familyRotaryFactor: // transformers writes the family's beside any other, which it reads
		return fmt.Errorf("partial_rotary_factor is %v, and %v among the settings of rotary positions: they must be equal", *outer, *factor)
	}
	if factor == nil {
		factor = j.defaultRotaryFactor
	}
	if factor == nil {
		return nil
	}
	if !(*factor > 0 && *factor <= 1) {
		return fmt.Errorf("partial_rotary_factor is %v, it must be above 0 and at most 1", *factor)
	}
	c.RotaryDim = int(float64(c.HeadDim) * *factor) // as transformers rounds
	if c.RotaryDim < 2 || c.RotaryDim%2 != 0 {
		return fmt.Errorf("partial_rotary_factor %v makes positions turn %d of head_dim %d elements: it must be an even number above 0", *factor, c.RotaryDim, c.HeadDim)
	}
	return nil
}

// mrope checks the parts of the frequencies that go with time, height and width of an image. Text has the same position in all three, so for it they are one.
func (r *ropeJSON) mrope(c *Config, where string) error {
	if r.MRopeSection == nil {
		return nil
	}
	sum := 0
	for i, n := range r.MRopeSection {
		if n < 0 || n > mostHeads || i == 3 {
			return fmt.Errorf("%s: mrope_section is %v, it must be three numbers in 0 … %d", where, r.MRopeSection[:min(len(r.MRopeSection), 8)], mostHeads)
		}
		sum += n
	}
	if sum != c.RotaryDim/2 {
		return fmt.Errorf("%s: mrope_section %v adds up to %d, it must be %d, half of the elements that positions turn", where, r.MRopeSection, sum, c.RotaryDim/2)
	}
	return nil
}

// yarn reads the settings of YaRN.
func (j *configJSON) yarn(c *Config, r *ropeJSON, where string) error {
	y := &nn.YaRN{BetaFast: 32, BetaSlow: 1, OriginalPositions: c.MaxPositionEmbeddings, Truncate: true}
	if r.Truncate != nil {
		y.Truncate = *r.Truncate
	}
	if r.OriginalMax != nil {
		if err := (size{where + ": original_max_position_embeddings", r.OriginalMax, mostPositions, &y.OriginalPositions}).read(); err != nil {
			return err
		}
	}
	if r.Factor == nil && r.OriginalMax == nil {
		return fmt.Errorf("%s: factor is missing, and original_max_position_embeddings, from which it would follow", where)
	}
	if r.Factor == nil { // as transformers does
		stretch := float64(c.MaxPositionEmbeddings) / float64(y.OriginalPositions)
		r.Factor = &stretch
	}
	const most = 1e6
	for _, f := range []struct {
		name  string
		value *float64
		to    *float64
	}{
		{"factor", r.Factor, &y.Factor},
		{"beta_fast", r.BetaFast, &y.BetaFast},
		{"beta_slow", r.BetaSlow, &y.BetaSlow},
		{"attention_factor", r.AttentionFactor, &y.AttentionFactor},
		{"mscale", r.MScale, &y.MScale},
		{"mscale_all_dim", r.MScaleAllDim, &y.MScaleAllDim},
	} {
		if f.value == nil {
			continue
		}
		if !(*f.value > 0 && *f.value < most) {
			return fmt.Errorf("%s: %s is %v, it must be above 0 and below %v", where, f.name, *f.value, float64(most))
		}
		*f.to = *f.value
	}
	if y.Factor < 1 {
		return fmt.Errorf("%s: factor is %v, it must be at least 1", where, y.Factor)
	}
	if y.BetaFast < y.BetaSlow {
		return fmt.Errorf("%s: beta_fast %v is below beta_slow %v", where, y.BetaFast, y.BetaSlow)
	}
	c.Rope.YaRN = y
	return nil
}
