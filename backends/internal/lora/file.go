package lora

import (
	"fmt"
	"slices"

	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// FileLayout gives the layout of the adapter in a file: the modules that have tensors there, under either convention's names, and their rank. Every tensor must be an A or B of a module of
// the model, every module must have both, and all must have one rank.
func FileLayout(modules []Module, f *safetensors.File) (*Layout, error) {
	number := make(map[string]int, len(modules))
	for i, m := range modules {
		number[m.Name] = i
	}
	found := map[string]bool{}
	rank := 0
	for _, name := range f.Names() {
		module, matrix, ok := ParseTensorName(name)
		i, known := number[module]
		if !ok || !known {
			return nil, fmt.Errorf("tensor %.200q is no LoRA matrix of this model", name)
		}
		t, _ := f.Tensor(name)
		want, axis := modules[i].In, 0
		if matrix == "B" {
			want, axis = modules[i].Out, 1
		}
		if len(t.Shape) != 2 || t.Shape[1-axis] != want {
			return nil, fmt.Errorf("tensor %.200q has shape %v, the model needs %d along axis %d", name, t.Shape, want, 1-axis)
		}
		if rank == 0 {
			rank = t.Shape[axis]
		}
		if t.Shape[axis] != rank {
			return nil, fmt.Errorf("tensor %.200q has rank %d, others %d: one rank for all modules is supported", name, t.Shape[axis], rank)
		}
		if found[module+"."+matrix] {
			return nil, fmt.Errorf("module %.200q is there under two names", module)
		}
		found[module+"."+matrix] = true
	}
	for _, m := range modules {
		if found[m.Name+".A"] != found[m.Name+".B"] {
			return nil, fmt.Errorf("module %q has only one of lora_A and lora_B", m.Name)
		}
	}
	return NewLayout(modules, rank, func(m Module) bool { return found[m.Name+".A"] })
}

// Read fills all parameters from a file that has exactly the layout's tensors, with suffix behind each name (such as ".exp_avg"; "" for weights), of type F32, BF16 or F16.
func (p *Parameters) Read(f *safetensors.File, suffix string) error {
	inFile := map[string]safetensors.Tensor{} // by the name of the PEFT convention
	for _, name := range f.Names() {
		if len(name) < len(suffix) || name[len(name)-len(suffix):] != suffix {
			continue
		}
		if module, matrix, ok := ParseTensorName(name[:len(name)-len(suffix)]); ok {
			inFile[TensorName(module, matrix, PEFT)], _ = f.Tensor(name)
		}
	}
	count := 0
	if err := p.Each(func(name string, dst tensor.Tensor) error {
		count++
		t, ok := inFile[name]
		if !ok {
			return fmt.Errorf("tensor %q is missing", name+suffix)
		}
		if !slices.Equal(t.Shape, []int{dst.Rows, dst.Cols}) {
			return fmt.Errorf("tensor %q has shape %v, the adapter's is %v", t.Name, t.Shape, []int{dst.Rows, dst.Cols})
		}
		values, err := t.Float32s()
		if err != nil {
			return err
		}
		return p.device.Upload(dst, values)
	}); err != nil {
		return err
	}
	if len(inFile) != count {
		return fmt.Errorf("%d tensors of %d do not belong to the adapter", len(inFile)-count, len(inFile))
	}
	return nil
}

// Sources gives the tensors to be written to a file, named by a convention, with a suffix. They are read from the device when they are written; the parameters must live and not change until then.
func (p *Parameters) Sources(names Names, suffix string) []safetensors.Source {
	var sources []safetensors.Source
	for i, m := range p.Layout.Modules {
		if !p.Layout.Has(i) {
			continue
		}
		for matrix, t := range map[string]tensor.Tensor{"A": p.A(i), "B": p.B(i)} {
			sources = append(sources, safetensors.Float32Source(TensorName(m.Name, matrix, names)+suffix, []int{t.Rows, t.Cols}, func() ([]float32, error) {
				values := make([]float32, t.Rows*t.Cols)
				return values, p.device.Download(values, t)
			}))
		}
	}
	return sources
}

// ScaleB multiplies every B: how an adapter that was made with another alpha becomes one with ours (factor alpha / 32), exactly if the factor is a power of two.
func (p *Parameters) ScaleB(factor float32) error {
	for i := range p.Layout.Modules {
		if p.Layout.Has(i) {
			if err := p.device.Scale(p.B(i), factor, tensor.Float32); err != nil {
				return err
			}
		}
	}
	return nil
}
