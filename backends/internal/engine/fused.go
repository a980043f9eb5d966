package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// fusedModule is one that files for other programs have one LoRA on: the numbers of its parts, and the order of its rows.
type fusedModule struct {
	parts []int
	rows  []model.RowRange
}

// fusedModules are such modules by name, where an adapter has LoRA on all parts with one scale.
func (l *loaded) fusedModules(layout *lora.Layout) map[string]fusedModule {
	all := map[string]fusedModule{}
	for name, whole := range l.model.Wholes {
		var numbers []int
		for _, part := range whole.Parts {
			i := slices.IndexFunc(layout.Modules, func(m lora.Module) bool { return m.Name == part })
			if i < 0 || !layout.Has(i) || len(numbers) > 0 && layout.Scale(i) != layout.Scale(numbers[0]) {
				break
			}
			numbers = append(numbers, i)
		}
		if len(numbers) == len(whole.Parts) {
			all[name] = fusedModule{numbers, whole.Rows}
		}
	}
	return all
}

// mostFused is how many modules others may have as one: a rank that is the sum of theirs may be so many times the largest one.
const mostFused = 4

// fusedLoRA reads the LoRA of modules that other programs have as one (model.Wholes), and makes it that of the parts: each has the A of the whole, and its rows of B. Where the whole is what parts of their own were made to be, A one below
// another and B on a diagonal of blocks, each has its own again.
type fusedLoRA struct {
	loaded *loaded
	config *foreignConfig
	stored map[string]map[string]string // the file's name of "A" and "B" of a module that is fused
	values map[string][]float32         // of the parts, by PEFT name
}

// take notes a tensor of a file, and tells whether it is of a fused module.
func (u *fusedLoRA) take(module, matrix, name string) (bool, error) {
	if u.loaded.model.Wholes[module].Parts == nil {
		return false, nil
	}
	if u.stored[module] == nil {
		u.stored[module] = map[string]string{}
	}
	if other, twice := u.stored[module][matrix]; twice {
		return false, plugins.Invalidf("path", "tensors %.200q and %.200q are the same", other, name)
	}
	u.stored[module][matrix] = name
	return true, nil
}

// split reads what was taken, and gives the names of the parts; their ranks are in the configuration then, and their values here.
func (u *fusedLoRA) split(f *safetensors.File) ([]string, error) {
	var names []string
	for _, module := range sortedKeys(u.stored) {
		whole := u.loaded.model.Wholes[module]
		parts, err := u.loaded.modules(whole.Parts)
		if err != nil {
			return nil, err
		}
		own := u.config.of(module)
		if own.rank > u.config.maxRank*len(parts) {
			return nil, plugins.Invalidf("path", "%s: rank %d of %s is not allowed", plugins.AdapterConfigFile, own.rank, module)
		}
		out := 0
		for _, p := range parts {
			out += p.Out
			names = append(names, p.Name)
		}
		a, err := readTensor(f, plugins.AdapterWeightsFile, u.stored[module]["A"], lora.TensorName(module, "A", lora.PEFT), []int{own.rank, parts[0].In})
		if err != nil {
			return nil, err
		}
		b, err := readTensor(f, plugins.AdapterWeightsFile, u.stored[module]["B"], lora.TensorName(module, "B", lora.PEFT), []int{out, own.rank})
		if err != nil {
			return nil, err
		}
		ordered := make([]float32, 0, len(b)) // part by part
		for _, row := range whole.Order() {
			ordered = append(ordered, b[row*own.rank:(row+1)*own.rank]...)
		}
		u.part(module, parts, own, a, ordered)
	}
	return names, nil
}

// part gives each part its A and B, of which b has the parts' rows one below another.
func (u *fusedLoRA) part(module string, parts []lora.Module, own ownRank, a, b []float32) {
	in, n, each := parts[0].In, len(parts), own
	folded := own.rank == n*u.config.rank && isDiagonal(parts, own.rank, b)
	if folded {
		each.rank = own.rank / n
		each.alpha = evenPart(own.alpha, n) // smaller too, so that the scale stays
		if u.config.rankStabilized {
			each.alpha = own.alpha / math.Sqrt(float64(n))
		}
	} else {
		u.config.notices = append(u.config.notices, fmt.Sprintf("%s is trained as %d modules that have an A of their own when it is trained on here", module, n))
	}
	row := 0
	for k, p := range parts {
		from, ownA := 0, a
		if folded {
			from, ownA = k*each.rank, a[k*each.rank*in:(k+1)*each.rank*in]
		}
		ownB := make([]float32, 0, p.Out*each.rank)
		for range p.Out {
			ownB = append(ownB, b[row*own.rank+from:row*own.rank+from+each.rank]...)
			row++
		}
		u.values[lora.TensorName(p.Name, "A", lora.PEFT)], u.values[lora.TensorName(p.Name, "B", lora.PEFT)] = slices.Clone(ownA), ownB
		u.config.own[p.Name] = each
	}
}

// evenPart is the number that makes a sum when it is added n times, as alphas of parts are when they are written (peftConfig.fuse). A quotient is not always it: 0.1 + 0.1 + 0.1 over 3 is not 0.1. Of several
// it is the one with the fewest digits, so that every alpha that somebody wrote comes back.
func evenPart(sum float64, n int) float64 {
	const near = 2 // numbers on either side of the quotient
	quotient := sum / float64(n)
	part := quotient
	for range near {
		part = math.Nextafter(part, math.Inf(-1))
	}
	best, digits := quotient, math.MaxInt
	for range 2*near + 1 {
		whole := 0.0
		for range n {
			whole += part
		}
		if length := len(strconv.FormatFloat(part, 'g', -1, 64)); whole == sum && length < digits {
			best, digits = part, length
		}
		part = math.Nextafter(part, math.Inf(1))
	}
	return best
}

// isDiagonal tells whether B is zero but for a block of rank / parts columns for each part, one after another.
func isDiagonal(parts []lora.Module, rank int, b []float32) bool {
	each, row := rank/len(parts), 0
	for k, p := range parts {
		for range p.Out {
			for c, v := range b[row*rank : (row+1)*rank] {
				if v != 0 && c/each != k {
					return false
				}
			}
			row++
		}
	}
	return true
}

// modules finds modules of the model by name.
func (l *loaded) modules(names []string) ([]lora.Module, error) {
	var all []lora.Module
	for _, name := range names {
		i := slices.IndexFunc(l.model.Modules, func(m lora.Module) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("the model has no module %s", name)
		}
		all = append(all, l.model.Modules[i])
	}
	return all, nil
}
