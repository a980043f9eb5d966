package model

import "fmt"

// Windows are the layers that attend to the last sliding_window positions only, as a family's class in transformers has them.
type Windows uint8

const (
	TypedWindows Windows = iota // those that layer_types says; use_sliding_window is no key of the family
	EveryWindow                 // all, where sliding_window has a value
	UsedWindows                 // all, where use_sliding_window is true too
	UpperWindows                // with use_sliding_window, those that layer_types says or, without that key, those from number max_window_layers on
	StillWindows                // with use_sliding_window, those that layer_types says or, without that key, those in which positions turn nothing
)

// defaultWindowLayers is max_window_layers where config.json does not have it.
const defaultWindowLayers = 28

// windows makes the types of layers what sliding_window makes of them.
func (j *configJSON) windows(c *Config) error {
	if j.windowed == TypedWindows {
		return nil
	}
	used := j.SlidingWindow != nil && (j.UseSlidingWindow || j.windowed == EveryWindow)
	if used && c.Window < 1 {
		return fmt.Errorf("sliding_window is %d, it must be at least 1", c.Window)
	}
	upper, typed := defaultWindowLayers, len(j.LayerTypes) != 0
	if j.MaxWindowLayers != nil {
		upper = *j.MaxWindowLayers
	}
	if upper < 0 {
		return fmt.Errorf("max_window_layers is %d, it must be at least 0", upper)
	}
	c.SlidingWindow = false
	for i, kind := range c.LayerTypes {
		if kind == LinearAttention {
			continue
		}
		sliding := used
		switch {
		case j.windowed == EveryWindow || j.windowed == UsedWindows:
			if typed && used && kind == FullAttention && c.attentionWindow() != 0 {
				return fmt.Errorf("layer_types[%d] is %s, but sliding_window is %d, for all layers of %s: leave one of them out", i, kind, c.Window, c.Architecture)
			}
		case typed:
			sliding = kind == SlidingAttention
		case j.windowed == UpperWindows:
			sliding = used && i >= upper
		default:
			sliding = used && c.StillLayers != nil && c.StillLayers[i]
		}
		if kind == SlidingAttention && !used {
			return fmt.Errorf("layer_types[%d] is %s, but use_sliding_window is not true, or sliding_window null", i, kind)
		}
		c.LayerTypes[i] = FullAttention
		if sliding && c.attentionWindow() != 0 {
			c.LayerTypes[i], c.SlidingWindow = SlidingAttention, true
		}
	}
	return nil
}

// attentionWindow is the window of layers of sliding attention, 0 where it has all positions that there are.
func (c *Config) attentionWindow() int {
	if c.Window >= c.MaxPositionEmbeddings {
		return 0
	}
	return c.Window
}
