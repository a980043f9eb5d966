package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Quantization is how a model's files hold the weights that are not plain floating-point numbers. Such files define a model in bfloat16: an element is the product of what is stored and its scale, in float32, rounded once.
type Quantization struct {
	method string
	block  [2]int      // of method fp8: rows and columns that have one scale
	bits   int         // of an element, of methods of integers
	group  int         // of these: columns that have one scale; 0 = all of a row
	whole  moduleNames // modules that are not quantized

	lessOne bool // zero points are stored less one
}

// The methods, as quantization_config names them.
const (
	fp8Method    = "fp8"
	mxfp4Method  = "mxfp4"
	packedMethod = "compressed-tensors"
)

// otherMethods are those that are known and not read, and what to do.
var otherMethods = map[string]string{
	"bitsandbytes": "take the model that is not quantized, from which it was made",
	"gguf":         "take the model's original directory",
}

// integers is how the names of tensors of packed integers end; "" where there are none.
func (q *Quantization) integers() string {
	switch q.method {
	case packedMethod:
		return ".weight_packed"
	case gptqMethod, awqMethod:
		return ".qweight"
	}
	return ""
}

// quantizationJSON is the quantization_config of all methods.
type quantizationJSON struct {
	Method     string   `json:"quant_method"`
	Whole      []string `json:"modules_to_not_convert"`
	Ignored    []string `json:"ignore"` // of compressed-tensors
	BlockSize  []int    `json:"weight_block_size"`
	Format     *string  `json:"fmt"`
	Activation *string  `json:"activation_scheme"`

	Packing  *string                    `json:"format"`
	Groups   map[string]json.RawMessage `json:"config_groups"`
	Sparsity *struct {
		Format *string `json:"format"`
	} `json:"sparsity_config"`
	Transform json.RawMessage `json:"transform_config"`
	Cache     json.RawMessage `json:"kv_cache_scheme"`

	Bits             int     `json:"bits"` // of GPTQ and AWQ, as what follows
	GroupSize        *int    `json:"group_size"`
	CheckpointFormat *string `json:"checkpoint_format"`
	PackType         *string `json:"pack_dtype"`
	Marlin           bool    `json:"is_marlin_format"`
	Version          *string `json:"version"`
}

// groupJSON is one of the config_groups of compressed-tensors.
type groupJSON struct {
	Inputs  json.RawMessage `json:"input_activations"`
	Outputs json.RawMessage `json:"output_activations"`
	Format  *string         `json:"format"`
	Weights *struct {
		Bits      int             `json:"num_bits"`
		Type      string          `json:"type"`
		Symmetric *bool           `json:"symmetric"`
		Strategy  string          `json:"strategy"`
		GroupSize *int            `json:"group_size"`
		Order     json.RawMessage `json:"actorder"`
	} `json:"weights"`
}

// quantization reads how weights are stored, nil if they are plain.
func (j *configJSON) quantization() (*Quantization, error) {
	raw := j.QuantizationConfig
	switch {
	case !absent(raw) && !absent(j.CompressionConfig):
		return nil, errors.New("quantization_config and compression_config are both there: only one of them may be")
	case absent(raw) && absent(j.CompressionConfig):
		return nil, nil
	case absent(raw):
		raw = j.CompressionConfig
	}
	var q quantizationJSON
	if err := json.Unmarshal(raw, &q); err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	whole, err := newModuleNames(slices.Concat(q.Whole, q.Ignored))
	if err != nil {
		return nil, fmt.Errorf("quantization_config: modules_to_not_convert and ignore: %w", err)
	}
	out := &Quantization{method: q.Method, whole: whole}
	switch q.Method {
	case fp8Method:
		err = q.fp8(out)
	case mxfp4Method:
	case packedMethod:
		err = q.packed(out)
	case gptqMethod:
		err = q.gptq(out)
	case awqMethod:
		err = q.awq(out)
	default:
		advice, ok := otherMethods[q.Method]
		if !ok {
			advice = "take the model that is not quantized"
		}
		err = fmt.Errorf("quant_method is %.40q: quantized weights are read of the methods %s, %s, %s, %s and %s only; %s", q.Method, awqMethod, packedMethod, fp8Method, gptqMethod, mxfp4Method, advice)
	}
	if err != nil {
		return nil, fmt.Errorf("quantization_config: %w", err)
	}
	return out, nil
}

func (q *quantizationJSON) fp8(out *Quantization) error {
	if q.Format != nil && *q.Format != "e4m3" {
		return fmt.Errorf("fmt is %.40q, only e4m3 is supported", *q.Format)
	}
	if q.Activation != nil && *q.Activation != "dynamic" {
		return fmt.Errorf("activation_scheme is %.40q, only dynamic is supported", *q.Activation)
	}
	if len(q.BlockSize) != 2 {
		return errors.New("weight_block_size must be two numbers: only weights with a scale for each block are supported")
	}
	for i, n := range q.BlockSize {
		if n < 1 || n > mostWidth {
			return fmt.Errorf("weight_block_size[%d] is %d, it must be in 1 … %d", i, n, mostWidth)
		}
		out.block[i] = n
	}
	return nil
}

func (q *quantizationJSON) packed(out *Quantization) error {
	if q.Sparsity != nil && q.Sparsity.Format != nil && *q.Sparsity.Format != "dense" {
		return fmt.Errorf("sparsity_config: format is %.40q, only dense is supported", *q.Sparsity.Format)
	}
	if t := strings.Join(strings.Fields(string(q.Transform)), ""); !absent(q.Transform) && t != "{}" && t != `{"config_groups":{}}` {
		return errors.New("transform_config is set: weights that are transformed are not supported")
	}
	if !absent(q.Cache) {
		return errors.New("kv_cache_scheme is set: only keys and values that are not quantized are supported; take a model of which the weights alone are")
	}
	if len(q.Groups) != 1 {
		return fmt.Errorf("config_groups has %d groups, only one is supported", len(q.Groups))
	}
	for name, raw := range q.Groups {
		var g groupJSON
		if err := json.Unmarshal(raw, &g); err != nil {
			return fmt.Errorf("config_groups[%.40q]: %w", name, err)
		}
		if g.Format == nil {
			g.Format = q.Packing
		}
		if err := g.read(out); err != nil {
			return fmt.Errorf("config_groups[%.40q]: %w", name, err)
		}
	}
	return nil
}

func (g *groupJSON) read(out *Quantization) error {
	const format = "pack-quantized"
	if g.Format == nil || *g.Format != format {
		text := "missing"
		if g.Format != nil {
			text = fmt.Sprintf("%.40q", *g.Format)
		}
		return fmt.Errorf("format is %s, only %s is supported", text, format)
	}
	for name, raw := range map[string]json.RawMessage{"input_activations": g.Inputs, "output_activations": g.Outputs} {
		if !absent(raw) {
			return fmt.Errorf("%s is set: only activations that are not quantized are supported; take a model of which the weights alone are", name)
		}
	}
	w := g.Weights
	switch {
	case w == nil:
		return errors.New("weights is missing")
	case w.Type != "int" || w.Bits != 4 && w.Bits != 8:
		return fmt.Errorf("weights are %.40q of %d bits, only int of 4 and 8 bits are supported", w.Type, w.Bits)
	case w.Symmetric != nil && !*w.Symmetric:
		return errors.New("weights: symmetric is false, only true is supported")
	case !absent(w.Order) && !slices.Contains([]string{"false", `"static"`, `"weight"`}, string(w.Order)):
		return fmt.Errorf("weights: actorder is %.40s, only static is supported: other orders change which scale a column has", w.Order)
	}
	out.bits = w.Bits
	switch w.Strategy {
	case "channel":
	case "group":
		if w.GroupSize == nil || *w.GroupSize < 1 || *w.GroupSize > mostWidth {
			return fmt.Errorf("weights: group_size must be in 1 … %d", mostWidth)
		}
		out.group = *w.GroupSize
	default:
		return fmt.Errorf("weights: strategy is %.40q, only group and channel are supported", w.Strategy)
	}
	return nil
}
