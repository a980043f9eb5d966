package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/safetensors"
	"github.com/tinsmith/tinsmith/plugins"
)

// Files of adapters have the layers of experts in one of three forms: stacked, all experts' A or B in one tensor, as the Tinker service does and we do (….mlp.experts.w1); each expert's apart, as PEFT does for modules
// (….mlp.experts.3.gate_proj); or fused, as PEFT does for parameters, where gate and up are one module, and the experts' A and B one matrix each (….mlp.experts.base_layer and ….mlp.experts).
type expertForm uint8

const (
	stackedExperts expertForm = iota + 1
	apartExperts
	fusedExperts
	fusedWithShared    // and the shared expert's modules as parameters, which changes the configuration alone
	interleavedExperts // fused, with rows of gate and up that take turns
)

// fused tells whether all experts have one A and one B.
func (f expertForm) fused() bool {
	return f == fusedExperts || f == fusedWithShared || f == interleavedExperts
}

func (f expertForm) String() string {
	return [...]string{"none", "stacked (experts.w1)", "one by one (experts.0.gate_proj)", "fused (experts.base_layer)", "fused, with the shared expert", "fused, with rows that take turns"}[f]
}

// expertFile is where a file has the layer of all experts.
type expertFile struct {
	form  expertForm
	names map[string]string // of tensors: "A" and "B", or "A3"
}

func (x *expertFile) key(matrix string, expert int) string {
	if x.form == apartExperts {
		return matrix + strconv.Itoa(expert)
	}
	return matrix
}

var (
	apartName    = regexp.MustCompile(`^(.+\.experts)\.([0-9]{1,4})\.(gate_proj|up_proj|down_proj)$`)
	fusedName    = regexp.MustCompile(`^(.+\.experts)(\.base_layer)?$`)
	sharedWeight = regexp.MustCompile(`^(.*\.)?shared_expert\.(gate_proj|up_proj|down_proj)\.weight$`)
	apartKinds   = map[string]string{"gate_proj": lora.ExpertGate, "up_proj": lora.ExpertUp, "down_proj": lora.ExpertDown}
)

// maxComparisons bounds the time, see pattern.cost, in which names of experts are compared with keys of rank_pattern and alpha_pattern: keys for every layer of the largest models are compared.
const maxComparisons = 1 << 25

// expertFiles is what a file has of layers of experts, by the modules' names.
type expertFiles struct {
	modules  map[string]lora.Module // all layers of experts of the model
	found    map[string]*expertFile
	compared int
	turns    bool // rows of gate and up take turns where they are fused
}

func newExpertFiles(modules []lora.Module, form model.PEFTExperts) *expertFiles {
	x := &expertFiles{modules: map[string]lora.Module{}, found: map[string]*expertFile{}, turns: form == model.ExpertsInterleaved}
	for _, m := range modules {
		if m.Experts > 0 {
			x.modules[m.Name] = m
		}
	}
	return x
}

// take notes a tensor of a layer of experts, and tells whether it is one.
func (x *expertFiles) take(module, matrix, name string) (bool, error) {
	if _, ok := x.modules[module]; ok {
		return true, x.note(module, stackedExperts, matrix, 0, name)
	}
	if p := apartName.FindStringSubmatch(module); p != nil {
		stack := p[1] + "." + apartKinds[p[3]]
		expert, _ := strconv.Atoi(p[2]) // a number too large for an int is not written as what this gives
		m, ok := x.modules[stack]
		if !ok || p[2] != strconv.Itoa(expert) {
			return false, nil
		}
		if expert >= m.Experts {
			return true, plugins.Invalidf("path", "tensor %.200q is of expert %d: the model has %d", name, expert, m.Experts)
		}
		return true, x.note(stack, apartExperts, matrix, expert, name)
	}
	p := fusedName.FindStringSubmatch(module)
	if p == nil {
		return false, nil
	}
	kinds := []string{lora.ExpertDown}
	if p[2] != "" {
		kinds = []string{lora.ExpertGate, lora.ExpertUp}
	}
	for _, kind := range kinds {
		stack := p[1] + "." + kind
		if _, ok := x.modules[stack]; !ok {
			return false, nil
		}
		if err := x.note(stack, fusedExperts, matrix, 0, name); err != nil {
			return true, err
		}
	}
	return true, nil
}

func (x *expertFiles) note(module string, form expertForm, matrix string, expert int, name string) error {
	f := x.found[module]
	if f == nil {
		f = &expertFile{form: form, names: map[string]string{}}
		x.found[module] = f
	}
	if f.form != form {
		return plugins.Invalidf("path", "tensor %.200q: %s is there %v already, and this is %v", name, module, f.form, form)
	}
	key := f.key(matrix, expert)
	if other, twice := f.names[key]; twice {
		return plugins.Invalidf("path", "tensors %.200q and %.200q are the same", other, name)
	}
	f.names[key] = name
	return nil
}

// scaling gives the rank and alpha that a configuration has for a layer of experts, as the file has it.
func (x *expertFiles) scaling(c *foreignConfig, m lora.Module) (rank int, alpha float64, err error) {
	of := func(name string) (int, float64) {
		return int(c.ranks.of(name, float64(c.rank))), c.alphas.of(name, c.alpha)
	}
	switch x.found[m.Name].form {
	case fusedExperts:
		rank, alpha = of(fusedParameter(m))
	case apartExperts:
		if x.compared += m.Experts * (c.ranks.cost() + c.alphas.cost()); x.compared > maxComparisons {
			return 0, 0, plugins.Invalidf("path", "%s: rank_pattern and alpha_pattern have %d keys, too many to be compared with the names of all experts", plugins.AdapterConfigFile, len(c.ranks)+len(c.alphas))
		}
		rank, alpha = of(m.OfExpert(0))
		for e := range m.Experts {
			if r, a := of(m.OfExpert(e)); r != rank || a != alpha {
				return 0, 0, plugins.Invalidf("path", "%s: rank %d and lora_alpha %v of %s, %d and %v of %s: all experts of a layer must have the same", plugins.AdapterConfigFile, rank, alpha, m.OfExpert(0), r, a, m.OfExpert(e))
			}
		}
	default:
		rank, alpha = of(m.Name)
	}
	return rank, alpha, nil
}

// fusedParameter is the name of the parameter that has the layer's weights in a model of transformers.
func fusedParameter(m lora.Module) string {
	parent := m.Name[:len(m.Name)-len(m.Kind())]
	if m.Kind() == lora.ExpertDown {
		return parent + "down_proj"
	}
	return parent + "gate_up_proj"
}

// factor is the A or the B of a layer of experts: matrices of rows × cols one behind another, one or one for each expert.
type factor struct {
	copies, rows, cols int
	values             []float32
}

// same tells whether all copies have the same bits.
func (f factor) same() bool {
	n := f.rows * f.cols
	for i := n; i < len(f.values); i++ {
		if math.Float32bits(f.values[i]) != math.Float32bits(f.values[i%n]) {
			return false
		}
	}
	return true
}

// zero tells whether all values are zero, as B's are before it is trained: that all experts have the same then says nothing.
func (f factor) zero() bool {
	return !slices.ContainsFunc(f.values, func(v float32) bool { return v != 0 })
}

// one keeps the first copy.
func (f factor) one() factor {
	f.copies, f.values = 1, f.values[:f.rows*f.cols]
	return f
}

// each has a copy for every expert.
func (f factor) each(experts int) factor {
	if f.copies == 1 {
		f.copies, f.values = experts, slices.Repeat(f.values, experts)
	}
	return f
}

// padded has copies of rows × cols, of which those of f are the first ones; the others are zero.
func (f factor) padded(rows, cols int) []float32 {
	if rows == f.rows && cols == f.cols {
		return f.values
	}
	all := make([]float32, 0, f.copies*rows*cols)
	for e := range f.copies {
		all = append(all, padded(f.values[e*f.rows*f.cols:(e+1)*f.rows*f.cols], []int{f.rows, f.cols}, []int{rows, cols})...)
	}
	return all
}

// expertPair is what a file has for one layer of experts.
type expertPair struct {
	a, b  factor
	rank  int
	alpha float64
}

// read reads the layers of experts that a file has, and brings them to the copies that layouts have: those that all experts share where the file, which may say it for each expert, has the same for all of them in every layer, as in
// what was exported here; else one for each. Where all of what is the same is zero, as in an adapter of PEFT that was not trained yet and has the last layers only, that is no sign of it.
func (x *expertFiles) read(f *safetensors.File, c *foreignConfig) (map[string]expertPair, error) {
	pairs := map[string]expertPair{}
	shared, sign := true, false
	for _, name := range sortedKeys(x.found) {
		m, file := x.modules[name], x.found[name]
		p, err := x.pair(f, c, m, file)
		if err != nil {
			return nil, err
		}
		if m.Kind() == lora.ExpertDown {
			p.a = p.a.each(m.Experts)
			shared, sign = shared && p.b.same(), sign || !p.b.zero()
		} else {
			p.b = p.b.each(m.Experts)
			shared, sign = shared && p.a.same(), sign || !p.a.zero()
		}
		pairs[name] = p
	}
	if !shared || !sign {
		return pairs, nil
	}
	for name, p := range pairs {
		if x.modules[name].Kind() == lora.ExpertDown {
			p.b = p.b.one()
		} else {
			p.a = p.a.one()
		}
		pairs[name] = p
	}
	return pairs, nil
}

// pair reads one layer.
func (x *expertFiles) pair(f *safetensors.File, c *foreignConfig, m lora.Module, file *expertFile) (p expertPair, err error) {
	if p.rank, p.alpha, err = x.scaling(c, m); err != nil {
		return p, err
	}
	switch file.form {
	case fusedExperts:
		err = x.readFused(f, c, m, file, &p)
		return p, err
	case apartExperts:
		for _, k := range []struct {
			to         *factor
			matrix     string
			rows, cols int
		}{{&p.a, "A", p.rank, m.In}, {&p.b, "B", m.Out, p.rank}} {
			*k.to = factor{copies: m.Experts, rows: k.rows, cols: k.cols}
			for e := range m.Experts {
				key := file.key(k.matrix, e)
				values, err := readTensor(f, plugins.AdapterWeightsFile, file.names[key], lora.TensorName(m.OfExpert(e), k.matrix, lora.PEFT), []int{k.rows, k.cols})
				if err != nil {
					return p, err
				}
				k.to.values = append(k.to.values, values...)
			}
		}
		return p, nil
	}
	if p.a, err = readStack(f, m, file, "A", p.rank, m.In); err != nil {
		return p, err
	}
	if p.b, err = readStack(f, m, file, "B", m.Out, p.rank); err != nil {
		return p, err
	}
	if p.a.copies == 1 && p.b.copies == 1 && m.Experts > 1 {
		return p, plugins.Invalidf("path", "tensors %.200q and %.200q have one expert: one of them must have %d", file.names["A"], file.names["B"], m.Experts)
	}
	return p, nil
}

// readStack reads a stacked A or B, of one expert or of all.
func readStack(f *safetensors.File, m lora.Module, file *expertFile, matrix string, rows, cols int) (factor, error) {
	t, ok := f.Tensor(file.names[matrix])
	copies := m.Experts
	if ok && len(t.Shape) == 3 && t.Shape[0] == 1 {
		copies = 1
	}
	values, err := readTensor(f, plugins.AdapterWeightsFile, file.names[matrix], lora.TensorName(m.Name, matrix, lora.PEFT), []int{copies, rows, cols})
	return factor{copies, rows, cols, values}, err
}

// readFused reads a layer out of what PEFT has for a fused parameter: row e·rank+i of A and column i·experts+e of B are expert e's i-th. Where gate and up have their own halves of the rank, with zeros for the other's, each gets its half.
func (x *expertFiles) readFused(f *safetensors.File, c *foreignConfig, m lora.Module, file *expertFile, p *expertPair) error {
	name := func(matrix string) string { return file.names[matrix] }
	rows := fusedRows{m.Out, 0, 1}
	out := m.Out
	if m.Kind() != lora.ExpertDown {
		out *= 2
		rows = x.rowsOf(m, m.Kind())
	}
	a, err := readTensor(f, plugins.AdapterWeightsFile, name("A"), fusedParameter(m)+" lora_A", []int{m.Experts * p.rank, m.In})
	if err != nil {
		return err
	}
	b, err := readTensor(f, plugins.AdapterWeightsFile, name("B"), fusedParameter(m)+" lora_B", []int{out, p.rank * m.Experts})
	if err != nil {
		return err
	}
	rank, from := p.rank, 0 // of these the layer has rank, from this one on
	if m.Kind() != lora.ExpertDown && rank%2 == 0 && x.apartHalves(b, m, rank) {
		rank /= 2
		if c.rankStabilized { // so that the factor stays
			p.alpha /= math.Sqrt2
		} else {
			p.alpha /= 2
		}
		if m.Kind() == lora.ExpertUp {
			from = rank
		}
	}
	p.a, p.b = factor{copies: m.Experts, rows: rank, cols: m.In}, factor{copies: m.Experts, rows: m.Out, cols: rank}
	for e := range m.Experts {
		p.a.values = append(p.a.values, a[(e*p.rank+from)*m.In:(e*p.rank+from+rank)*m.In]...)
		for o := range rows.n {
			for i := from; i < from+rank; i++ {
				p.b.values = append(p.b.values, b[rows.at(o)*p.rank*m.Experts+i*m.Experts+e])
			}
		}
	}
	p.rank = rank
	return nil
}

// fusedRows are the n rows of a layer in a fused parameter.
type fusedRows struct{ n, first, step int }

func (r fusedRows) at(i int) int { return r.first + i*r.step }

// rowsOf are those of gate or up: one behind the other, or in turns.
func (x *expertFiles) rowsOf(m lora.Module, kind string) fusedRows {
	r := fusedRows{m.Out, 0, 1}
	if x.turns {
		r.step = 2
	}
	if kind == lora.ExpertUp {
		r.first = m.Out
		if x.turns {
			r.first = 1
		}
	}
	return r
}

// apartHalves tells whether gate's rows of a fused B are zero in the second half of the rank, and up's in the first.
func (x *expertFiles) apartHalves(b []float32, m lora.Module, rank int) bool {
	half := rank / 2 * m.Experts
	for kind, from := range map[string]int{lora.ExpertGate: half, lora.ExpertUp: 0} {
		rows := x.rowsOf(m, kind)
		for o := range rows.n {
			own := b[rows.at(o)*2*half+from:][:half]
			if slices.ContainsFunc(own, func(v float32) bool { return v != 0 }) {
				return false
			}
		}
	}
	return true
}

// withCopies gives modules with the copies that a file's pairs have.
func withCopies(modules []lora.Module, pairs map[string]expertPair) ([]lora.Module, error) {
	if len(pairs) == 0 {
		return modules, nil
	}
	own := slices.Clone(modules)
	for i, m := range own {
		p, ok := pairs[m.Name]
		if !ok {
			continue
		}
		var err error
		if own[i], err = m.WithCopies(p.a.copies, p.b.copies); err != nil {
			return nil, plugins.Invalidf("path", "%v", err)
		}
	}
	return own, nil
}

// expertForm is the form that a file of an adapter has layers of experts in that PEFT reads, if there are any with LoRA; an error if PEFT cannot have the adapter.
//
// PEFT 0.21.2 reads adapters on models in which only some layers have experts without the tensors of the others, in any form; other forms than model.PEFTExperts says it reads without those of experts, or of a shared one. All that it
// does without a word.
func (l *loaded) expertForm(layout *lora.Layout) (expertForm, error) {
	const layers, mlp = ".layers.", ".mlp."
	experts, dense := map[string]string{}, ""
	for i, m := range layout.Modules {
		if m.Experts > 0 && layout.Has(i) {
			experts[m.Name[:strings.Index(m.Name, mlp)]] = m.Name
		}
	}
	if len(experts) == 0 {
		return stackedExperts, nil
	}
	for i, m := range layout.Modules {
		if at := strings.Index(m.Name, mlp); layout.Has(i) && strings.Contains(m.Name, layers) && at > 0 && experts[m.Name[:at]] == "" {
			dense = m.Name
		}
	}
	if dense != "" {
		return 0, plugins.Invalidf("export_names", "%s is not allowed for this adapter: %s has no experts and other layers have, and PEFT reads an adapter on both wrong, without an error; use %s", plugins.ExportPEFT, dense, plugins.ExportTinker)
	}
	switch l.model.PEFTExperts {
	case model.ExpertsFused:
		return fusedExperts, checkFused(layout)
	case model.ExpertsInterleaved:
		return interleavedExperts, checkFused(layout)
	case model.ExpertsAndSharedOnesFused:
		return fusedWithShared, checkFused(layout)
	}
	return apartExperts, nil
}

// checkFused refuses an adapter whose experts' gates and ups cannot be one LoRA.
func checkFused(layout *lora.Layout) error {
	for i, m := range layout.Modules {
		if !layout.Has(i) || m.Experts == 0 || m.Kind() == lora.ExpertDown {
			continue
		}
		other := lora.ExpertGate
		if m.Kind() == lora.ExpertGate {
			other = lora.ExpertUp
		}
		name := strings.TrimSuffix(m.Name, m.Kind()) + other
		j := slices.IndexFunc(layout.Modules, func(m lora.Module) bool { return m.Name == name })
		if !layout.Has(j) || layout.AlphaOf(i) != layout.AlphaOf(j) {
			return plugins.Invalidf("export_names", "%s is not allowed for this adapter: %s and %s are one parameter there, and do not have LoRA of one alpha; use %s", plugins.ExportPEFT, m.Name, name, plugins.ExportTinker)
		}
	}
	return nil
}

// fusedTargets tells whether PEFT's target_parameters names parameters of experts, and weights of a shared one, only.
func fusedTargets(raw json.RawMessage) bool {
	var names []string
	if json.Unmarshal(raw, &names) != nil {
		return false
	}
	for _, n := range names {
		if sharedWeight.MatchString(n) {
			continue
		}
		if n != "experts.gate_up_proj" && n != "experts.down_proj" && !strings.HasSuffix(n, ".experts.gate_up_proj") && !strings.HasSuffix(n, ".experts.down_proj") {
			return false
		}
	}
	return true
}

// kinds lists the last parts of the names that the modules with LoRA have in a file.
func kinds(layout *lora.Layout, form expertForm) []string {
	all := layout.Kinds()
	if form != apartExperts {
		return all
	}
	of := map[string]string{} // w1 → gate_proj
	for name, kind := range apartKinds {
		of[kind] = name
	}
	var names []string
	for _, k := range all {
		if name, ok := of[k]; ok {
			k = name
		}
		if !slices.Contains(names, k) {
			names = append(names, k)
		}
	}
	return names
}

// apartPattern is the key of an alpha_pattern for all experts of a layer, one by one.
func apartPattern(m lora.Module) string {
	parent := m.Name[:len(m.Name)-len(m.Kind())]
	return fmt.Sprintf("%s[0-9]+.%s", parent, lastPart(m.OfExpert(0)))
}

func lastPart(name string) string { return lora.Module{Name: name}.Kind() }
