package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Features are what a family has, beyond a plain transformer, where a configuration asks for it.
type Features struct {
	PartialRotary   bool
	StillLayers     bool
	Experts         bool
	SharedExpert    bool
	LinearAttention bool
	Window          bool // layers of sliding attention
	AttentionBias   bool
	LongRoPE        bool
}

// Require refuses a configuration that lacks one of keys, for which the family has no default, or another one than other families.
func (c *Config) Require(keys ...string) error {
	for _, k := range keys {
		if !c.given[k] {
			return fmt.Errorf("%s is missing", k)
		}
	}
	return nil
}

// CheckPlain refuses what no family of plain transformers here has.
func CheckPlain(c *Config) error { return c.Check(Features{}) }

// Check refuses, by the name of its key, what the configuration asks for and a family with these features does not have.
func (c *Config) Check(f Features) error {
	switch {
	case c.AttentionBias && !f.AttentionBias:
		return fmt.Errorf("attention_bias is true, only false is supported for %s", c.Architecture)
	case c.MLPBias:
		return fmt.Errorf("mlp_bias is true, only false is supported for %s", c.Architecture)
	case c.SlidingWindow && !f.Window:
		return fmt.Errorf("a sliding window is in use (use_sliding_window or layer_types), only full attention is supported for %s", c.Architecture)
	case c.RotaryDim != c.HeadDim && !f.PartialRotary:
		return fmt.Errorf("partial_rotary_factor makes positions turn %d of head_dim %d elements, only 1 is supported for %s", c.RotaryDim, c.HeadDim, c.Architecture)
	case c.Rope.LongRoPE != nil && !f.LongRoPE:
		return fmt.Errorf("rope_type is longrope, only default, llama3 and yarn are supported for %s", c.Architecture)
	case c.StillLayers != nil && !f.StillLayers:
		return fmt.Errorf("no_rope_layers or no_rope_layer_interval is set, which %s does not have", c.Architecture)
	case c.MoE != nil && !f.Experts:
		return fmt.Errorf("num_experts is %d, but %s has no experts", c.MoE.Experts, c.Architecture)
	case c.DeltaNet != nil && !f.LinearAttention:
		return fmt.Errorf("linear_num_key_heads is %d, but %s has no linear attention", c.DeltaNet.KeyHeads, c.Architecture)
	case c.DeltaNet == nil && f.LinearAttention:
		return errors.New("linear_num_key_heads is missing")
	}
	for i, t := range c.LayerTypes {
		if t != FullAttention && !(t == LinearAttention && f.LinearAttention) && !(t == SlidingAttention && f.Window) {
			return fmt.Errorf("layer_types[%d] is %q, only %s is supported for %s", i, t, FullAttention, c.Architecture)
		}
	}
	if f.Window {
		if err := c.checkSliding(); err != nil {
			return err
		}
	}
	return c.checkExperts(f)
}

// checkSliding checks the window of layers of sliding attention.
func (c *Config) checkSliding() error {
	switch {
	case !slices.Contains(c.LayerTypes, SlidingAttention):
	case c.Window < 1:
		return fmt.Errorf("sliding_window is missing or 0, but layer_types has %s", SlidingAttention)
	case c.attentionWindow() > tensor.MaxWindow:
		return fmt.Errorf("sliding_window is %d, at most %d is supported", c.Window, tensor.MaxWindow)
	}
	return nil
}

func (c *Config) checkExperts(f Features) error {
	switch {
	case !f.Experts:
		return nil
	case c.MoE == nil:
		return errors.New("num_experts is missing")
	case c.MoE.Width == 0:
		return errors.New("moe_intermediate_size is missing")
	case c.MoE.Shared != 0 && !f.SharedExpert:
		return fmt.Errorf("shared_expert_intermediate_size is %d, but %s has no shared expert", c.MoE.Shared, c.Architecture)
	case c.MoE.Shared == 0 && f.SharedExpert:
		return errors.New("shared_expert_intermediate_size is missing")
	}
	return nil
}
