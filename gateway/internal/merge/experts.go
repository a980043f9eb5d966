package merge

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// expertKinds are the layers of experts in the Tinker convention, whose tensors have those of all experts, and the names that one expert's have in a model of Hugging Face.
var expertKinds = map[string]string{"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}

// expertName is the name of a layer of all experts: what comes before the kind, and the kind.
var expertName = regexp.MustCompile(`^(.+\.experts\.)(w[123])$`)

// mostExperts bounds the experts of a layer.
const mostExperts = 1 << 12

// stack is the LoRA of a layer of experts, of one expert in the place of all or of each.
type stack struct{ a, b tensor }

// takeStack notes a tensor of a layer of experts.
func (a *adapter) takeStack(name, matrix string, t tensor) error {
	if len(t.shape) != 3 || t.shape[0] < 1 || t.shape[0] > mostExperts || !isFloat(t.dtype) {
		return fmt.Errorf("is %s of shape %v, not a matrix of float32, bfloat16 or float16 for each of 1 to %d experts, or one for all", t.dtype, t.shape, mostExperts)
	}
	s := a.stacks[name]
	if s == nil {
		s = &stack{}
		a.stacks[name] = s
	}
	place := &s.a
	if matrix == "B" {
		place = &s.b
	}
	if place.file != "" {
		return errors.New("is there twice")
	}
	*place = t
	return nil
}

// expand makes the modules of each expert of what layers of experts have.
func (a *adapter) expand() error {
	for name, s := range a.stacks {
		p := expertName.FindStringSubmatch(name)
		if s.a.file == "" || s.b.file == "" {
			return fmt.Errorf("module %.200q has A of shape %v and B of shape %v, which do not fit", name, s.a.shape, s.b.shape)
		}
		experts := max(s.a.shape[0], s.b.shape[0])
		for _, t := range []tensor{s.a, s.b} {
			if n := t.shape[0]; n != 1 && n != experts {
				return fmt.Errorf("module %.200q has A of shape %v and B of shape %v: each must be of %d experts, or of one for all", name, s.a.shape, s.b.shape, experts)
			}
		}
		for e := range experts {
			own := fmt.Sprintf("%s%d.%s", p[1], e, expertKinds[p[2]])
			if a.modules[own] != nil {
				return fmt.Errorf("module %.200q is there alone and with all experts", own)
			}
			a.modules[own] = &module{a: s.a.of(e), b: s.b.of(e), stacked: name}
		}
	}
	return nil
}

// of is the matrix of an expert.
func (t tensor) of(expert int64) tensor {
	each := t.size / t.shape[0]
	return tensor{t.dtype, t.shape[1:], t.file, t.offset + min(expert, t.shape[0]-1)*each, each}
}

// expertTensors are the tensors of a base that have a layer of all experts, by the ends of their names, and the modules of each expert that they have.
var expertTensors = map[string][]string{".experts.gate_up_proj": {"gate_proj", "up_proj"}, ".experts.down_proj": {"down_proj"}}

// lorasOfExperts finds the LoRA of a tensor that has a layer of all experts (experts × out × in, with the rows of each gate before those of its up; or experts × in × out); ok is false of another tensor.
func (a *adapter) lorasOfExperts(name string, t tensor, layout layout, used map[string]bool) (all []placed, ok bool, err error) {
	whole := inAdapter(layout.nested, name)
	at := strings.LastIndex(whole, ".experts.")
	if at < 0 || expertTensors[whole[at:]] == nil {
		return nil, false, nil
	}
	kinds, prefix := expertTensors[whole[at:]], whole[:at]+".experts."
	if len(t.shape) != 3 || slices.Min(t.shape) < 1 || t.shape[0] > mostExperts {
		return nil, true, fmt.Errorf("tensor %.200q has shape %v, not that of a matrix for each of 1 to %d experts", name, t.shape, mostExperts)
	}
	matrix, transposed := tensor{t.dtype, t.shape[1:], t.file, t.offset, t.size}, false
	if layout.transposed && a.transposed(prefix, name[:strings.LastIndexByte(name, '.')+1], layout.tensors) {
		matrix.shape, transposed = []int64{t.shape[2], t.shape[1]}, true
	}
	turns := layout.turns && len(kinds) > 1
	if turns && !transposed {
		return nil, true, fmt.Errorf("tensor %.200q has shape %v: of this architecture only experts × in × out are merged into", name, t.shape)
	}
	rows := matrix.shape[0] / int64(len(kinds)) // of a module
	for e := range t.shape[0] {
		for k, kind := range kinds {
			part := fmt.Sprintf("%s%d.%s", prefix, e, kind)
			m := a.modules[part]
			if m == nil {
				continue
			}
			used[part] = true
			if m.b.shape[0] != rows {
				return nil, true, fmt.Errorf("tensor %.200q has shape %v, the adapter's LoRA of %.200q is for [%d %d]", name, t.shape, part, m.b.shape[0], m.a.shape[1])
			}
			if err := fits(name, matrix, matrix.shape[0], m); err != nil {
				return nil, true, err
			}
			switch {
			case turns:
				all = append(all, placed{module: m, from: e * t.shape[1], rows: t.shape[1], column: int64(k), apart: int64(len(kinds)), transposed: true})
			case transposed:
				all = append(all, placed{module: m, from: e * t.shape[1], rows: t.shape[1], column: int64(k) * rows, transposed: true})
			default:
				all = append(all, placed{module: m, from: e*t.shape[1] + int64(k)*rows, rows: rows})
			}
		}
	}
	return all, true, nil
}

// transposed tells whether the tensors of a layer of all experts, of a base in which they may be, are transposed: unless their shapes show that they are not. One of the two always shows it. Modules of the layer have the names
// beginning with prefix, and its tensors have files'.
func (a *adapter) transposed(prefix, file string, tensors map[string]tensor) bool {
	var width, hidden int64
	if m := a.modules[prefix+"0.gate_proj"]; m != nil {
		width, hidden = m.b.shape[0], m.a.shape[1]
	} else if m := a.modules[prefix+"0.down_proj"]; m != nil {
		width, hidden = m.a.shape[1], m.b.shape[0]
	}
	tell, shape := tensors[file+"down_proj"], []int64{hidden, width}
	if width == hidden {
		tell, shape = tensors[file+"gate_up_proj"], []int64{2 * width, hidden}
	}
	return len(tell.shape) != 3 || !slices.Equal(tell.shape[1:], shape)
}
