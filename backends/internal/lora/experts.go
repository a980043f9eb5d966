package lora

import (
	"fmt"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/nn"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// The kinds of the layers of experts, as the Tinker convention names them: y = w2·(silu(w1·x) ∘ w3·x). A module is one such layer of all experts, with a Module.Experts.
const (
	ExpertGate = "w1"
	ExpertUp   = "w3"
	ExpertDown = "w2"
)

// Copies are how many A and how many B a module has: of a layer of experts one that all of them share, or one for each.
func (m Module) Copies() (a, b int) { return max(m.CopiesA, 1), max(m.CopiesB, 1) }

// ExpertModule gives a layer of experts the copies that adapters made here have: of gate and up all experts share A, of down B.
func ExpertModule(name string, experts, out, in int) Module {
	m := Module{Name: name, Group: MLP, Out: out, In: in, Experts: experts, CopiesA: 1, CopiesB: experts}
	if m.Kind() == ExpertDown {
		m.CopiesA, m.CopiesB = experts, 1
	}
	return m
}

// WithCopies is the module with other copies: one A for each expert or, of the last layers, one B for each. Which other ones there are not, because their gradients would be no sums over tokens or over an expert's rows, is an error.
func (m Module) WithCopies(a, b int) (Module, error) {
	shared := ExpertModule(m.Name, m.Experts, m.Out, m.In)
	if m.Experts == 0 || (a != m.Experts && a != shared.CopiesA) || (b != m.Experts && b != shared.CopiesB) {
		return m, fmt.Errorf("%d A and %d B of %s, which has %d experts: each must be %d, or 1 for the A of w1 and w3 and the B of w2", a, b, m.Name, m.Experts, m.Experts)
	}
	m.CopiesA, m.CopiesB = a, b
	return m, nil
}

// Parameters is how many parameters LoRA of a rank has on the module.
func (m Module) Parameters(rank int) int {
	a, b := m.Copies()
	return a*rank*m.In + b*m.Out*rank
}

// MatrixBytes is the most memory that packed matrices of the module take on a device, of a part of it.
func (m Module) MatrixBytes(d tensor.DType, rank int, part Part) int {
	a, b := m.Copies()
	return tensor.MatrixBytes(d, tensor.StackRows(a, rank), part.InTo-part.InFrom) + tensor.MatrixBytes(d, tensor.StackRows(b, part.OutTo-part.OutFrom), rank)
}

// pair allocates the packed matrices of a module's part.
func (m Module) pair(device tensor.Device, d tensor.DType, rank int, scale float32, part Part) (pair nn.LoRA, err error) {
	a, b := m.Copies()
	pair = nn.LoRA{Scale: scale, ExpertsA: a, ExpertsB: b, Rank: rank, Out: part.OutTo - part.OutFrom}
	if pair.A, err = device.NewMatrix(d, tensor.StackRows(a, rank), part.InTo-part.InFrom); err != nil {
		return pair, err
	}
	pair.B, err = device.NewMatrix(d, tensor.StackRows(b, pair.Out), rank)
	return pair, err
}

// sources appends what the matrices of a pair are packed from.
func (p Part) sources(list []tensor.MatrixSource, pair nn.LoRA, all *Parameters, module int) []tensor.MatrixSource {
	rank := all.Layout.Rank
	a, b := tensor.NewStack(pair.A, pair.ExpertsA, rank), tensor.NewStack(pair.B, pair.ExpertsB, pair.Out)
	for e := range pair.ExpertsA {
		list = append(list, tensor.MatrixSource{Matrix: a.Of(e), Src: all.A(module).Slice(e*rank, (e+1)*rank).Columns(p.InFrom, p.InTo)})
	}
	for e, src := range p.b(all, module) {
		list = append(list, tensor.MatrixSource{Matrix: b.Of(e), Src: src})
	}
	return list
}

// expertKinds are the names that Hugging Face checkpoints have for the layers of one expert.
var expertKinds = map[string]string{ExpertGate: "gate_proj", ExpertUp: "up_proj", ExpertDown: "down_proj"}

// OfExpert is the name that a layer of experts has in files that name each expert's apart: of "…mlp.experts.w1" and 3 it is "…mlp.experts.3.gate_proj".
func (m Module) OfExpert(expert int) string {
	kind := m.Kind()
	return fmt.Sprintf("%s%d.%s", strings.TrimSuffix(m.Name, kind), expert, expertKinds[kind])
}
