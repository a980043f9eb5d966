package model

import (
	"fmt"
	"slices"
)

// ExpertSources are the matrices of a layer's experts: of each its gate and up (width × hidden) and its down (hidden × width).
type ExpertSources struct{ Gate, Up, Down []Source }

// ExpertOptions are where families differ in how their files hold experts.
type ExpertOptions struct {
	Transposed  bool // fused tensors may be experts × in × out, but for those that are quantized
	Interleaved bool // rows of gate and up take turns in the fused tensor
}

// Experts finds the experts of a layer, NAME being that of their module ("model.layers.0.mlp.experts"), in any of the forms that files have them in: one by one (NAME.3.gate_proj.weight), or fused (NAME.gate_up_proj, of each
// expert the rows of its gate and then those of its up, and NAME.down_proj), the latter also as MXFP4.
func (l *Loader) Experts(name string, width int, o ExpertOptions) (ExpertSources, error) {
	experts, hidden := l.Config.MoE.Experts, l.Config.HiddenSize
	var s ExpertSources
	const blocks = "_blocks"
	if !slices.ContainsFunc([]string{".gate_up_proj", ".gate_up_proj" + blocks, ".down_proj", ".down_proj" + blocks}, func(s string) bool { return l.Has(name + s) }) {
		for e := range experts {
			for _, m := range []struct {
				to      *[]Source
				name    string
				out, in int
			}{{&s.Gate, "gate_proj", width, hidden}, {&s.Up, "up_proj", width, hidden}, {&s.Down, "down_proj", hidden, width}} {
				w, err := l.Weight(fmt.Sprintf("%s.%d.%s", name, e, m.name), m.out, m.in)
				if err != nil {
					return s, err
				}
				*m.to = append(*m.to, w)
			}
		}
		return s, nil
	}
	o.Transposed = o.Transposed && l.transposed(name, width)
	both, err := l.fused(name+".gate_up_proj", experts, 2*width, hidden, o)
	if err != nil {
		return s, err
	}
	if l.measures() { // their sizes are equal
		both = both[:1]
	}
	var even, odd []int
	if o.Interleaved {
		for i := range width {
			even, odd = append(even, 2*i), append(odd, 2*i+1)
		}
	}
	for _, b := range both {
		gate, up := b.Slice(0, width), b.Slice(width, 2*width)
		if o.Interleaved {
			gate, up = b.Select(even), b.Select(odd)
		}
		s.Gate, s.Up = append(s.Gate, gate), append(s.Up, up)
	}
	if l.measures() {
		s.Gate, s.Up = slices.Repeat(s.Gate, experts), slices.Repeat(s.Up, experts)
	}
	s.Down, err = l.fused(name+".down_proj", experts, hidden, width, o)
	return s, err
}

// fused gives the matrices of a fused tensor.
func (l *Loader) fused(name string, n, out, in int, o ExpertOptions) ([]Source, error) {
	if l.Has(name + "_blocks") {
		return l.MXFP4(name, n, out, in)
	}
	if o.Transposed {
		return l.TransposedMatrices(name, n, out, in)
	}
	return l.Matrices(name, n, out, in)
}

// transposed tells whether the fused tensors of a layer, of a family in which they may be, are transposed: unless their shapes show that they are not. One of the two always shows it.
func (l *Loader) transposed(name string, width int) bool {
	hidden := l.Config.HiddenSize
	tell, shape := name+".down_proj", []int{l.Config.MoE.Experts, hidden, width}
	if width == hidden {
		tell, shape[1] = name+".gate_up_proj", 2*width
	}
	t, ok := l.files.Tensor(tell)
	return !ok || !slices.Equal(t.Shape, shape)
}

// Slice has rows [from, to) of gate and up of every expert. It is what a rank has whose part of the width that is; of Down it has those columns.
func (s ExpertSources) Slice(from, to int) ExpertSources {
	for _, m := range []*[]Source{&s.Gate, &s.Up} {
		var cut []Source
		for _, w := range *m {
			cut = append(cut, w.Slice(from, to))
		}
		*m = cut
	}
	return s
}
