package runs

import (
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/tinsmith/tinsmith/plugins"
)

// lossKeys are the loss inputs and settings of each loss. Bounds of settings are inclusive.
type lossKeys struct {
	inputs  []string // required, besides target_tokens; every loss takes weights as well, which are ones where they are left out
	config  map[string][2]float64
	sampled bool // needs provenance
}

var (
	clipBounds = map[string][2]float64{"clip_low_threshold": {0, math.MaxFloat32}, "clip_high_threshold": {0, math.MaxFloat32}}
	losses     = map[string]lossKeys{
		"cross_entropy":       {},
		"importance_sampling": {inputs: []string{"logprobs", "advantages"}},
		"ppo":                 {inputs: []string{"logprobs", "advantages"}, config: clipBounds},
		"cispo":               {inputs: []string{"logprobs", "advantages"}, config: clipBounds},
		"dro":                 {inputs: []string{"logprobs", "advantages"}, config: map[string][2]float64{"beta": {0, math.MaxFloat32}}},
		"gspo":                {inputs: []string{"logprobs", "advantages", "sequence_ratio_mask"}, config: clipBounds},
		"stable_reinforce":    {inputs: []string{"logprobs", "advantages"}, config: map[string][2]float64{"ratio_cap": {0, math.MaxFloat32}}, sampled: true},
	}
)

func lossNames() string {
	names := make([]string, 0, len(losses))
	for name := range losses {
		names = append(names, name)
	}
	sort.Strings(names)
	return strings.Join(names, ", ")
}

// checkLoss checks the name of a loss and its settings.
func checkLoss(name string, config map[string]float64, text map[string]string) (lossKeys, error) {
	keys, ok := losses[name]
	if !ok {
		if name == "custom" {
			return lossKeys{}, invalidf(`loss_fn "custom": losses that run in the server are not offered; forward_backward_custom runs them in the client`)
		}
		return lossKeys{}, invalidf("loss_fn %s: must be one of %s", quote(name), lossNames())
	}
	allowed := "it takes none"
	if len(keys.config) > 0 {
		var names []string
		for k := range keys.config {
			names = append(names, k)
		}
		sort.Strings(names)
		allowed = "it takes " + strings.Join(names, ", ")
	}
	for k := range text {
		if _, numeric := config[k]; !numeric {
			return lossKeys{}, invalidf("loss_fn_config[%s]: %s takes no textual setting; %s", quote(k), name, allowed)
		}
	}
	for k, v := range config {
		bounds, ok := keys.config[k]
		if !ok {
			return lossKeys{}, invalidf("loss_fn_config[%s]: not a setting of %s; %s", quote(k), name, allowed)
		}
		if math.IsNaN(v) || v < bounds[0] || v > bounds[1] {
			return lossKeys{}, invalidf("loss_fn_config[%s]: is %v, must be a finite number of at least %v", quote(k), v, bounds[0])
		}
	}
	if low, ok := config["clip_low_threshold"]; ok {
		if high, ok := config["clip_high_threshold"]; ok && low > high {
			return lossKeys{}, invalidf("loss_fn_config: clip_low_threshold %v is above clip_high_threshold %v", low, high)
		}
	}
	return keys, nil
}

// maxTargets bounds the targets of an operation, so that a request with weights, and an answer with two values for each of them, are no larger than the backend's messages may be.
const maxTargets = plugins.MaxBodyBytes / 8

// checkData translates a client's data into the backend's form and refuses what is wrong with them. vocab and limit are 0 while the backend is not known:
// it then checks them itself.
func checkData(op ForwardBackward, vocab, limit int) (forwardBackward, error) {
	keys, err := checkLoss(op.Loss, op.Config, op.ConfigText)
	if err != nil {
		return forwardBackward{}, err
	}
	if len(op.Data) == 0 {
		return forwardBackward{}, invalidf("data: must not be empty")
	}
	out := forwardBackward{
		ForwardBackwardRequest: plugins.ForwardBackwardRequest{Loss: op.Loss, LossConfig: op.Config, ForwardOnly: op.ForwardOnly, Data: make([]plugins.Datum, len(op.Data))},
		K:                      make([]int, len(op.Data)),
	}
	targets := 0
	for i, d := range op.Data {
		t := d.Inputs["target_tokens"]
		if targets += len(t.Ints) + len(t.Floats); targets > maxTargets {
			return forwardBackward{}, invalidf("data: has more than %d target_tokens in all; send fewer data at a time", maxTargets)
		}
		out.Data[i], out.K[i], err = checkDatum(i, d, op.Loss, keys, vocab, limit)
		if err != nil {
			return forwardBackward{}, err
		}
	}
	return out, nil
}

// reads tells whether a loss reads an input. What it does not read a client may send all the same, as the official service has it: data are often made once for several losses.
func (k lossKeys) reads(name string) bool {
	return name == "target_tokens" || name == "weights" || contains(k.inputs, name)
}

// checkDatum does it for one datum. Inputs that the loss does not read are not looked at.
func checkDatum(i int, d Datum, loss string, keys lossKeys, vocab, limit int) (plugins.Datum, int, error) {
	bad := func(field, format string, args ...any) (plugins.Datum, int, error) {
		e := invalidf(format, args...)
		e.Message = "data[" + itoa(i) + "]." + field + ": " + e.Message
		return plugins.Datum{}, 0, e
	}
	n := len(d.Tokens)
	if n == 0 {
		return bad("model_input", "must have at least one token")
	}
	if limit > 0 && n > limit {
		return bad("model_input", "has %d tokens, the model's context holds %d", n, limit)
	}
	for at, t := range d.Tokens {
		if t < 0 || vocab > 0 && int(t) >= vocab {
			return bad("model_input", "token %d is %d, must be in 0 … %s", at, t, topToken(vocab))
		}
	}
	out := plugins.Datum{Tokens: d.Tokens, K: 1}
	target, ok := d.Inputs["target_tokens"]
	if !ok {
		return bad("loss_fn_inputs", "target_tokens is missing")
	}
	shape, err := shapeOf(target)
	if err != nil {
		return bad("target_tokens", "%s", err)
	}
	twoDimensional := 0
	switch {
	case len(shape) == 1 && shape[0] == n:
	case len(shape) == 2 && shape[0] == n && shape[1] > 0 && loss == "cross_entropy":
		out.K, twoDimensional = shape[1], shape[1]
	case len(shape) == 2 && loss != "cross_entropy":
		return bad("target_tokens", "has shape %v; only cross_entropy takes two dimensions", shape)
	default:
		return bad("target_tokens", "has shape %v, its first dimension must be the %d positions of the input", shape, n)
	}
	if target.Floats != nil {
		return bad("target_tokens", "must be integers")
	}
	out.Targets = make([]int32, len(target.Ints))
	for at, t := range target.Ints {
		if t < 0 || t > math.MaxInt32 || vocab > 0 && t >= int64(vocab) {
			return bad("target_tokens", "element %d is %d, must be in 0 … %s", at, t, topToken(vocab))
		}
		out.Targets[at] = int32(t)
	}
	for name, tensor := range d.Inputs {
		if name == "target_tokens" || !keys.reads(name) {
			continue
		}
		var into *[]float32
		switch name {
		case "weights":
			into = &out.Weights
		case "logprobs":
			into = &out.Logprobs
		case "advantages":
			into = &out.Advantages
		case "sequence_ratio_mask":
			into = &out.SequenceRatioMask
		}
		got, err := shapeOf(tensor)
		if err != nil {
			return bad(name, "%s", err)
		}
		if !equalShape(got, shape) {
			return bad(name, "has shape %v, must have that of target_tokens, %v", got, shape)
		}
		values, at := floatsOf(tensor)
		if at >= 0 {
			return bad(name, "element %d is not finite (NonFiniteInTensor)", at)
		}
		*into = values
	}
	if loss == "cross_entropy" {
		if _, given := d.Inputs["weights"]; !given {
			out.Weights = slices.Repeat([]float32{1}, len(out.Targets))
		}
	} else if allOnes(out.Weights) {
		out.Weights = nil // it is the same, and less to keep and to send
	} else if at := slices.IndexFunc(out.Weights, func(w float32) bool { return w < 0 }); at >= 0 && clips(loss) {
		return bad("weights", "element %d is %v, must be at least 0 with %s: what is clipped is not defined for a negative weight", at, out.Weights[at], loss)
	}
	for _, name := range keys.inputs {
		if _, ok := d.Inputs[name]; !ok {
			return bad("loss_fn_inputs", "%s is missing; %s needs target_tokens, %s", name, loss, strings.Join(keys.inputs, ", "))
		}
	}
	return out, twoDimensional, nil
}

func topToken(vocab int) string {
	if vocab == 0 {
		return "the size of the vocabulary - 1"
	}
	return itoa(vocab - 1)
}

// shapeOf gives the shape of a tensor after checking it against the number of elements.
func shapeOf(t Tensor) ([]int, error) {
	count := len(t.Floats) + len(t.Ints)
	if t.Floats != nil && t.Ints != nil {
		return nil, invalidf("has values of two types")
	}
	if t.Shape == nil {
		return []int{count}, nil
	}
	size := 1
	for _, dim := range t.Shape {
		if dim < 0 || dim > 0 && size > math.MaxInt32/dim {
			return nil, invalidf("has shape %v, which is not possible", t.Shape)
		}
		size *= dim
	}
	if size != count {
		return nil, invalidf("has %d elements, its shape %v asks for %d", count, t.Shape, size)
	}
	return t.Shape, nil
}

// clips tells whether a loss takes the smaller one of two products: which one that is would turn round with a negative weight.
func clips(loss string) bool {
	spec, _ := plugins.LookupLoss(loss)
	return spec.Clips
}

func allOnes(values []float32) bool {
	return !slices.ContainsFunc(values, func(v float32) bool { return v != 1 })
}

// floatsOf converts to float32; at is the first element that is not finite then, or -1.
func floatsOf(t Tensor) (values []float32, at int) {
	values = t.Floats
	if t.Floats == nil {
		values = make([]float32, len(t.Ints))
		for i, v := range t.Ints {
			values[i] = float32(v)
		}
	}
	for i, v := range values {
		if v-v != 0 {
			return nil, i
		}
	}
	return values, -1
}

func equalShape(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// checkAdam refuses settings with which no step is defined.
func checkAdam(a plugins.AdamParams) error {
	for _, p := range []struct {
		name       string
		value, top float64
		open       bool // the top itself is not allowed
	}{
		{"learning_rate", a.LearningRate, math.MaxFloat32, false}, {"beta1", a.Beta1, 1, true}, {"beta2", a.Beta2, 1, true}, {"eps", a.Eps, math.MaxFloat32, false},
		{"weight_decay", a.WeightDecay, math.MaxFloat32, false}, {"grad_clip_norm", a.GradClipNorm, math.MaxFloat32, false},
	} {
		if math.IsNaN(p.value) || p.value < 0 || p.value > p.top || p.open && p.value == p.top {
			if p.top == 1 {
				return invalidf("adam_params.%s: is %v, must be at least 0 and below 1", p.name, p.value)
			}
			return invalidf("adam_params.%s: is %v, must be a finite number of at least 0", p.name, p.value)
		}
	}
	return nil
}
