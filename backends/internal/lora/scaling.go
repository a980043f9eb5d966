package lora

import "math"

// Scaling says by what B(Ax) is multiplied in each module of an adapter, in PEFT's terms: alpha over the rank or, rank-stabilised, over its root. The zero value is that of adapters made here, 32 over the rank.
// It is never multiplied into A or B: how far a step of Adam goes depends on it. It is immutable.
type Scaling struct {
	Alpha          float64            // 0 = 32
	RankStabilized bool               // over √rank
	Alphas         map[string]float64 // alpha of the modules that have one of their own, by full name
}

// Plain tells whether it is that of adapters made here.
func (s Scaling) Plain() bool {
	return (s.Alpha == 0 || s.Alpha == Alpha) && !s.RankStabilized && len(s.Alphas) == 0
}

// Common is alpha of the modules that have none of their own.
func (s Scaling) Common() float64 {
	if s.Alpha == 0 {
		return Alpha
	}
	return s.Alpha
}

// Factor is the factor of a module of an adapter of that rank.
func (s Scaling) Factor(module string, rank int) float64 {
	alpha, own := s.Alphas[module]
	if !own {
		alpha = s.Common()
	}
	if s.RankStabilized {
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}

// Scaled is the same layout with another scaling.
func (l *Layout) Scaled(s Scaling) *Layout {
	scaled := *l
	scaled.Scaling = s
	return &scaled
}

// Scale is the factor of module i.
func (l *Layout) Scale(i int) float32 {
	return float32(l.Scaling.Factor(l.Modules[i].Name, l.Rank))
}

// EffectiveAlpha is the alpha that over the rank is the factor of every module; 0 where modules differ.
func (l *Layout) EffectiveAlpha() float64 {
	alpha := 0.0
	for i, m := range l.Modules {
		if !l.Has(i) {
			continue
		}
		own := l.Scaling.Factor(m.Name, l.Rank) * float64(l.Rank)
		if alpha != 0 && own != alpha {
			return 0
		}
		alpha = own
	}
	return alpha
}
