package lora

// Scaling says by what B(Ax) is multiplied in each module of an adapter, in PEFT's terms: alpha over the rank. The zero value is that of adapters made here, 32 over the rank.
// It is never multiplied into A or B: how far a step of Adam goes depends on it. It is immutable.
type Scaling struct {
	Alpha  float64            // of all modules; 0 = 32
	Alphas map[string]float64 // where they differ: of every module that carries LoRA, by full name; Alpha then says nothing
}

// Plain tells whether it is that of adapters made here.
func (s Scaling) Plain() bool { return len(s.Alphas) == 0 && s.of("") == Alpha }

// of is alpha of a module.
func (s Scaling) of(module string) float64 {
	switch {
	case len(s.Alphas) > 0:
		return s.Alphas[module]
	case s.Alpha == 0:
		return Alpha
	}
	return s.Alpha
}

// Scaled is the same layout with another scaling.
func (l *Layout) Scaled(s Scaling) *Layout {
	scaled := *l
	scaled.Scaling = s
	return &scaled
}

// Scale is what B(Ax) of module i is multiplied by.
func (l *Layout) Scale(i int) float32 {
	return float32(l.AlphaOf(i) / float64(l.Rank))
}

// Alpha is that of all modules; 0 where they differ.
func (l *Layout) Alpha() float64 {
	if len(l.Scaling.Alphas) > 0 {
		return 0
	}
	return l.Scaling.of("")
}

// AlphaOf is that of module i.
func (l *Layout) AlphaOf(i int) float64 { return l.Scaling.of(l.Modules[i].Name) }
