package model

import "fmt"

// layers reads the type of each layer, and where positions turn nothing.
func (j *configJSON) layers(c *Config) error {
	if len(j.LayerTypes) != 0 && len(j.LayerTypes) != c.Layers {
		return fmt.Errorf("layer_types has %d entries for %d layers", len(j.LayerTypes), c.Layers)
	}
	if j.SlidingWindow != nil && *j.SlidingWindow < 0 {
		return fmt.Errorf("sliding_window is %d, it must be at least 0", *j.SlidingWindow)
	}
	if j.SlidingWindow != nil {
		c.Window = *j.SlidingWindow
	}
	interval := 0 // of layers of full attention among those of linear attention
	if j.FullAttentionInterval != nil {
		if err := (size{"full_attention_interval", j.FullAttentionInterval, c.Layers + 1<<10, &interval}).read(); err != nil {
			return err
		}
	} else if j.hasDeltaNet() {
		interval = 4 // the default of transformers
	}
	for i := range c.Layers {
		kind := FullAttention
		switch {
		case len(j.LayerTypes) != 0:
			kind = j.LayerTypes[i]
		case interval != 0 && (i+1)%interval != 0:
			kind = LinearAttention
		}
		switch kind {
		case FullAttention, LinearAttention:
		case SlidingAttention:
			c.SlidingWindow = true
		default:
			return fmt.Errorf("layer_types[%d] is %.40q, only %s, %s and %s are known", i, kind, FullAttention, SlidingAttention, LinearAttention)
		}
		c.LayerTypes = append(c.LayerTypes, kind)
	}
	if err := j.still(c); err != nil {
		return err
	}
	return j.windows(c)
}

// still reads the layers in which positions turn nothing.
func (j *configJSON) still(c *Config) error {
	if j.NoRopeLayers == nil && j.NoRopeInterval == nil {
		return nil
	}
	interval := 0
	if j.NoRopeInterval != nil {
		if err := (size{"no_rope_layer_interval", j.NoRopeInterval, 1 << 10, &interval}).read(); err != nil {
			return err
		}
	}
	if n := len(j.NoRopeLayers); j.NoRopeLayers != nil && n != c.Layers {
		return fmt.Errorf("no_rope_layers has %d entries for %d layers", n, c.Layers)
	}
	for i := range c.Layers {
		still := interval != 0 && (i+1)%interval == 0
		if j.NoRopeLayers != nil {
			turned := j.NoRopeLayers[i]
			if turned != 0 && turned != 1 {
				return fmt.Errorf("no_rope_layers[%d] is %d, it must be 0 or 1", i, turned)
			}
			still = turned == 0
		}
		c.StillLayers = append(c.StillLayers, still)
	}
	return nil
}
