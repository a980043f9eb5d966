package merge

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// fusedModules are modules that files of some models have as one matrix, whose rows are those of the parts, one below another. Adapters may have LoRA on the parts.
var fusedModules = map[string][]string{
	"qkv_proj":     {"q_proj", "k_proj", "v_proj"},
	"gate_up_proj": {"gate_proj", "up_proj"},
	"in_proj_qkv":  {"in_proj_q", "in_proj_k", "in_proj_v"},
}

// placed is the LoRA of the rows of a matrix from row from on.
type placed struct {
	*module
	from int64
}

// lorasOf finds the LoRA of a tensor of the base: that of its module, or those of the parts that are one matrix in it. The names of the modules that it is of are marked in used. The rows of a part are known only if the
// adapter has all parts.
func (a *adapter) lorasOf(name string, t tensor, nested bool, used map[string]bool) ([]placed, error) {
	whole, isWeight := strings.CutSuffix(inAdapter(nested, name), ".weight")
	if !isWeight {
		return nil, nil
	}
	at := strings.LastIndexByte(whole, '.') + 1
	parts := fusedModules[whole[at:]]
	var missing, found []string
	for _, part := range parts {
		if part = whole[:at] + part; a.modules[part] == nil {
			missing = append(missing, part)
		} else {
			found = append(found, part)
		}
	}
	if m := a.modules[whole]; m != nil {
		if len(found) > 0 {
			return nil, fmt.Errorf("the adapter has LoRA on %.200q and on %.200q, which is a part of it", whole, found[0])
		}
		used[whole] = true
		return []placed{{m, 0}}, fits(name, t, m.b.shape[0], m)
	}
	if len(found) == 0 {
		return nil, nil
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("the adapter has LoRA on %.200q, a part of the base model's tensor %.200q, and none on %.200q: parts are merged only all together; train them all, or take an adapter of %s", found[0], name, missing[0], whole[at:])
	}
	var all []placed
	rows := int64(0)
	for _, part := range found {
		m := a.modules[part]
		all = append(all, placed{m, rows})
		rows += m.b.shape[0]
		used[part] = true
	}
	for _, p := range all {
		if err := fits(name, t, rows, p.module); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// fits checks that a tensor is a matrix of so many rows, with the columns of a module's LoRA, and of a type that is computed with.
func fits(name string, t tensor, rows int64, m *module) error {
	if len(t.shape) != 2 || t.shape[1] < 1 || t.shape[0] != rows || t.shape[1] != m.a.shape[1] {
		return fmt.Errorf("tensor %.200q has shape %v, the adapter's LoRA is for [%d %d]", name, t.shape, rows, m.a.shape[1])
	}
	if !isFloat(t.dtype) {
		return fmt.Errorf("tensor %.200q is of type %s: only float32, bfloat16 and float16 can be merged into; use the model that is not quantized", name, t.dtype)
	}
	return nil
}

// rowsAdder gives what adds scale · B·A of a tensor's modules to its rows [from, from+n).
func (a *adapter) rowsAdder(ctx context.Context, modules []placed) (func(rows []float32, from, n int64) error, error) {
	var down [][]float32 // of each module its A
	for _, m := range modules {
		values, err := a.floats(ctx, m.a, 0, m.rank)
		if err != nil {
			return nil, err
		}
		down = append(down, values)
	}
	return func(rows []float32, from, n int64) error {
		for i, m := range modules {
			columns := m.a.shape[1]
			first, end := max(from, m.from), min(from+n, m.from+m.b.shape[0])
			if first >= end {
				continue
			}
			b, err := a.floats(ctx, m.b, first-m.from, end-first)
			if err != nil {
				return err
			}
			add(rows[(first-from)*columns:(end-from)*columns], down[i], b, int(m.rank), int(columns), float32(m.scale))
		}
		return nil
	}, nil
}

// checkUsed refuses an adapter with a module that is of no tensor of the base.
func (a *adapter) checkUsed(used map[string]bool, nested bool) error {
	names := a.names()
	i := slices.IndexFunc(names, func(name string) bool { return !used[name] })
	if i < 0 {
		return nil
	}
	return fmt.Errorf("the adapter has LoRA on %.200q, and the base model has no tensor %.200q", names[i], inFile(nested, names[i])+".weight")
}
