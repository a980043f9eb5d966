package engine

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/plugins"
)

// peftConfig is what Hugging Face PEFT needs of adapter_config.json.
type peftConfig struct {
	Type          string             `json:"peft_type"`
	Task          string             `json:"task_type"`
	BaseModel     string             `json:"base_model_name_or_path"`
	Rank          int                `json:"r"`
	Alpha         float64            `json:"lora_alpha,omitempty"`
	Alphas        map[string]float64 `json:"alpha_pattern,omitempty"`
	Ranks         map[string]int     `json:"rank_pattern,omitempty"`
	Dropout       float64            `json:"lora_dropout"`
	Bias          string             `json:"bias"`
	TargetModules []string           `json:"target_modules"`
	Parameters    []string           `json:"target_parameters,omitempty"`
	InferenceMode bool               `json:"inference_mode"`
}

// encodePEFT writes the configuration of an adapter that is here. PEFT reads the keys of alpha_pattern as regular expressions, and a module's full name matches no other module. Where modules differ there is no lora_alpha,
// which PEFT then does not need: programs that know no alpha_pattern (vLLM, the Tinker cookbook) would take it for all modules, and so they refuse the file.
// Modules that are fused have the ranks and alphas of their parts added up, which leaves the scale. form is that of the layers of experts.
func encodePEFT(baseModel string, layout *lora.Layout, fused map[string]fusedModule, names lora.Names, form expertForm) ([]byte, error) {
	alphas := layout.Scaling.Alphas
	if form == apartExperts && len(alphas) > 0 {
		alphas = maps.Clone(alphas)
		for _, m := range layout.Modules {
			if alpha, ok := alphas[m.Name]; ok && m.Experts > 0 {
				delete(alphas, m.Name)
				alphas[apartPattern(m)] = alpha
			}
		}
	}
	c := peftConfig{
		Type: "LORA", Task: "CAUSAL_LM", BaseModel: baseModel, Rank: layout.Rank, Alpha: layout.Alpha(), Alphas: alphas, Bias: "none",
		TargetModules: kinds(layout, form), InferenceMode: true,
	}
	if len(fused) > 0 || form.fused() {
		c.fuse(layout, fused, form)
	}
	if names == lora.NestedPEFT {
		c.Ranks, c.Alphas = nestedKeys(c.Ranks), nestedKeys(c.Alphas)
	}
	return json.MarshalIndent(c, "", "  ")
}

// nestedKeys renames full names of modules of a text model that is among others.
func nestedKeys[V any](m map[string]V) map[string]V {
	renamed := make(map[string]V, len(m))
	for name, v := range m {
		renamed[lora.Nested(name)] = v
	}
	return renamed
}

// fuse puts modules that are fused in the place of their parts, and parameters of experts, which are fused, in that of layers of experts. Then alpha_pattern names every module.
func (c *peftConfig) fuse(layout *lora.Layout, fused map[string]fusedModule, form expertForm) {
	c.Ranks, c.Alphas, c.TargetModules = map[string]int{}, map[string]float64{}, nil
	within := map[int]bool{}
	name := func(m lora.Module, parts []int) {
		alpha := 0.0
		for _, i := range parts {
			within[i] = true
			alpha += layout.AlphaOf(i)
		}
		c.Alphas[m.Name] = alpha
		if len(parts) > 1 {
			c.Ranks[m.Name] = len(parts) * layout.Rank
		}
		c.addTarget(m.Kind())
	}
	for _, n := range sortedKeys(fused) {
		name(lora.Module{Name: n}, fused[n].parts)
	}
	for i, m := range layout.Modules {
		switch {
		case !layout.Has(i) || within[i]:
		case m.Experts > 0 && form.fused():
			p := fusedParameter(m) // gate and up are one, of twice the rank
			c.Alphas[p] += layout.AlphaOf(i)
			if m.Kind() != lora.ExpertDown {
				c.Ranks[p] += layout.Rank
			}
			c.addParameter(p)
		case m.Experts > 0 && form == apartExperts:
			c.Alphas[apartPattern(m)] = layout.AlphaOf(i)
			c.addTarget(lastPart(m.OfExpert(0)))
		case form == fusedWithShared && sharedWeight.MatchString(m.Name+".weight"):
			weight := m.Name + ".weight"
			c.Alphas[m.Name], c.Alphas[weight] = layout.AlphaOf(i), layout.AlphaOf(i) // as a module, and as a parameter
			c.addParameter(weight)
		default:
			name(m, []int{i})
		}
	}
}

func (c *peftConfig) addTarget(kind string) {
	if !slices.Contains(c.TargetModules, kind) {
		c.TargetModules = append(c.TargetModules, kind)
	}
}

// addParameter has LoRA on parameters of that name in every layer.
func (c *peftConfig) addParameter(name string) {
	if short := name[strings.LastIndex(name, "mlp."):]; !slices.Contains(c.Parameters, short) {
		c.Parameters = append(c.Parameters, short)
	}
}

// foreignConfig is what a PEFT configuration says about an adapter's arithmetic.
type foreignConfig struct {
	rank           int
	alpha          float64 // 0 = of each module by alphas
	rankStabilized bool
	ranks, alphas  pattern            // of modules that have their own
	own            map[string]ownRank // of modules by name, before all that
	notices        []string           // what PEFT would do in training and is not done here
	maxRank        int
}

// Bounds of lora_alpha: far outside of what is used, and inside the range of float32.
const (
	minAlpha = 1e-6
	maxAlpha = 1e12
)

// peftRefused are options that change an adapter's arithmetic in ways that this engine does not have, each with the values that leave it as it is.
var peftRefused = map[string][]string{
	"use_dora": {"false"}, "lora_bias": {"false"}, "bias": {`"none"`}, "modules_to_save": {"[]"},
	"fan_in_fan_out": {"false"}, "layer_replication": {"[]"}, "trainable_token_indices": {"[]"}, "use_qalora": {"false"}, "alora_invocation_tokens": {"[]"},
	"target_parameters": {"[]"}, "megatron_config": {}, "arrow_config": {}, "use_bdlora": {"false"}, "kasa_config": {}, "monteclora_config": {},
}

// peftHarmless are further options by which PEFT has variants of LoRA, and which leave what an adapter computes as it is, whatever their value: settings of a method that init_lora_weights names, for instance.
var peftHarmless = []string{"use_rslora", "loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config", "velora_config"}

// decodePEFT reads the configuration of an adapter of any origin, and refuses by name what is not plain LoRA on the base model as it is.
func decodePEFT(text []byte, maxRank int) (*foreignConfig, error) {
	refuse := func(format string, args ...any) (*foreignConfig, error) {
		return nil, plugins.Invalidf("path", plugins.AdapterConfigFile+": "+format, args...)
	}
	var options map[string]json.RawMessage
	if err := json.Unmarshal(text, &options); err != nil {
		return refuse("%v", err)
	}
	var c struct {
		Type           string          `json:"peft_type"`
		Rank           int             `json:"r"`
		Alpha          *float64        `json:"lora_alpha"`
		RankStabilized bool            `json:"use_rslora"`
		Ranks          json.RawMessage `json:"rank_pattern"`
		Alphas         json.RawMessage `json:"alpha_pattern"`
		Dropout        float64         `json:"lora_dropout"`
		Velora         json.RawMessage `json:"velora_config"`
		Initialization json.RawMessage `json:"init_lora_weights"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return refuse("%v", err)
	}
	if c.Type != "LORA" {
		return refuse("peft_type %.50q is not supported: LORA", c.Type)
	}
	if c.Rank < 1 || c.Rank > maxRank {
		return refuse("r %d is not allowed: 1 to %d", c.Rank, maxRank)
	}
	alpha := 0.0
	if c.Alpha != nil {
		if alpha = *c.Alpha; !(alpha >= minAlpha && alpha <= maxAlpha) {
			return refuse("lora_alpha %v is not allowed: %v to %v", alpha, minAlpha, maxAlpha)
		}
	}
	for _, name := range sortedKeys(options) {
		value := strings.Join(strings.Fields(string(options[name])), "")
		if slices.Contains([]string{"", "null"}, value) {
			continue
		}
		if name == "target_parameters" && fusedTargets(options[name]) {
			continue
		}
		allowed, known := peftRefused[name]
		if !known { // PEFT names the options of its variants so: one that came later may change the arithmetic
			if slices.Contains(peftHarmless, name) || !strings.HasPrefix(name, "use_") && !strings.HasSuffix(name, "_config") {
				continue
			}
			allowed = []string{"false", "{}", "[]"}
		}
		if !slices.Contains(allowed, value) {
			return refuse("%.100s %.100s is not supported: plain LoRA only", name, value)
		}
	}
	f := &foreignConfig{rank: c.Rank, alpha: alpha, rankStabilized: c.RankStabilized, maxRank: maxRank, own: map[string]ownRank{}}
	var err error
	if f.ranks, err = parsePattern("rank_pattern", c.Ranks, func(v float64) bool { return v == math.Trunc(v) && v >= 1 && v <= float64(mostFused*maxRank) }, fmt.Sprintf("1 to %d", maxRank)); err != nil {
		return nil, err
	}
	if f.alphas, err = parsePattern("alpha_pattern", c.Alphas, func(v float64) bool { return v >= minAlpha && v <= maxAlpha }, fmt.Sprintf("%v to %v", minAlpha, maxAlpha)); err != nil {
		return nil, err
	}
	if f.notices, err = checkInitialization(c.Initialization); err != nil {
		return nil, err
	}
	if c.Dropout != 0 {
		f.notices = append(f.notices, fmt.Sprintf("lora_dropout %v is not applied when it is trained on here", c.Dropout))
	}
	if v := strings.TrimSpace(string(c.Velora)); v != "" && v != "null" {
		f.notices = append(f.notices, "velora_config is not applied when it is trained on here: gradients are exact")
	}
	return f, nil
}

// Values of init_lora_weights that take A and B out of the base model's weights, so that these have to be changed by the same when the adapter is loaded: the base that is served, which is as it was, is not theirs.
// PEFT takes a name with anything behind it ("pissa_niter_16").
var (
	takenFromBase = []string{"pissa", "corda", "olora", "lora_ga"}
	onOwnBase     = []string{"true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}
)

// checkInitialization refuses adapters whose A and B belong to a changed base model, and says what training on would lose.
func checkInitialization(raw json.RawMessage) (notices []string, err error) {
	value := strings.ToLower(strings.TrimSpace(string(raw)))
	if value == "" || value == "null" || slices.Contains(onOwnBase, value) {
		return nil, nil
	}
	refuse := func(format string, args ...any) ([]string, error) {
		return nil, plugins.Invalidf("path", plugins.AdapterConfigFile+": init_lora_weights "+format, append([]any{raw}, args...)...)
	}
	for _, method := range takenFromBase {
		if strings.HasPrefix(value, `"`+method) {
			return refuse("%.100s is not supported: its A and B belong to a base model whose weights were changed by the same method. " +
				"Convert it with PEFT: save the adapter as it was before training, then save the trained one with model.save_pretrained(DIR, path_initial_model_for_weight_conversion=INITIAL_DIR)")
		}
	}
	switch value {
	case `"loftq"`:
		return refuse("%.100s is not supported: its A and B belong to a base model whose weights were quantized by the same method. Merge it into that model with PEFT, and serve the merged model")
	case `"mica"`:
		return []string{`B is trained too when it is trained on here: with init_lora_weights "mica" PEFT would keep it as it is`}, nil
	}
	return refuse("%.100s is not known: true, false, gaussian, eva, orthogonal, mica")
}

// ownRank is the rank and the alpha of a module.
type ownRank struct {
	rank  int
	alpha float64
}

// of gives those of the module of a name.
func (f *foreignConfig) of(name string) ownRank {
	if own, ok := f.own[name]; ok {
		return own
	}
	return ownRank{int(f.ranks.of(name, float64(f.rank))), f.alphas.of(name, f.alpha)}
}

// fit gives the layout of an adapter that has the modules of a model that include names, and the rank that each has in the files. A foreign adapter's own rank is the next power of two of the largest one, because only such
// a one can be trained on by every client: where a module's rank is smaller A and B are filled up with zeros, which change nothing, in training neither.
func (f *foreignConfig) fit(modules []lora.Module, include func(lora.Module) bool, keepRank bool) (layout *lora.Layout, ranks []int, err error) {
	ranks, alphas := make([]int, len(modules)), make([]float64, len(modules))
	largest := 0
	for i, m := range modules {
		if include(m) {
			own := f.of(m.Name)
			ranks[i], alphas[i] = own.rank, own.alpha
			largest = max(largest, ranks[i])
		}
	}
	rank := largest
	if !keepRank {
		for rank = 1; rank < largest; rank *= 2 {
		}
	}
	if rank > f.maxRank {
		return nil, nil, plugins.Invalidf("path", "%s: rank %d is not allowed: 1 to %d, as a power of two", plugins.AdapterConfigFile, largest, f.maxRank)
	}
	if layout, err = lora.NewLayout(modules, rank, include); err != nil {
		return nil, nil, plugins.Invalidf("path", "%v", err)
	}
	s := lora.Scaling{Alphas: map[string]float64{}}
	for i, m := range modules {
		if ranks[i] == 0 {
			continue
		}
		// The factor stays, as alpha over the rank: powers of two change no digit of it. What is exported of it so needs no use_rslora, which some programs do not know.
		alpha := alphas[i]
		if f.rankStabilized {
			alpha = alpha / math.Sqrt(float64(ranks[i])) * float64(rank)
		} else if ranks[i] != rank {
			alpha = alpha / float64(ranks[i]) * float64(rank)
		}
		if !(alpha >= minAlpha && alpha <= maxAlpha) {
			return nil, nil, plugins.Invalidf("path", "%s: lora_alpha %v of %s is not allowed: %v to %v", plugins.AdapterConfigFile, alpha, m.Name, minAlpha, maxAlpha)
		}
		s.Alpha, s.Alphas[m.Name] = alpha, alpha
	}
	differs := false
	for _, alpha := range s.Alphas {
		differs = differs || alpha != s.Alpha
	}
	if differs {
		s.Alpha = 0
	} else {
		s.Alphas = nil
	}
	return layout.Scaled(s), ranks, nil
}
