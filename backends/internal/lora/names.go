package lora

import (
	"errors"
	"math"
	"strings"
)

// ErrNotFinite says that a tensor has a value that is not finite.
var ErrNotFinite = errors.New("value is not finite")

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// Names is a convention for the tensor names of adapter files. The two differ in the output head.
type Names string

// The conventions.
const (
	PEFT   Names = "peft"   // base_model.model.lm_head.lora_A.weight
	Tinker Names = "tinker" // base_model.model.model.unembed_tokens.lora_A.weight
	// NestedPEFT is PEFT's where it adapts the class of a model that has other parts beside the text model: base_model.model.model.language_model.layers…
	NestedPEFT Names = "nested-peft"
)

const (
	namePrefix = "base_model.model."
	headName   = "lm_head"
	// tinkerHead is the head's name in the Tinker convention.
	tinkerHead = "model.unembed_tokens"
	textPrefix = "model."
)

// NestedPrefix is how modules' names begin, in place of "model.", in a model that has other parts beside the text model.
const NestedPrefix = "model.language_model."

// Nested is the name of a module in the class of a model that has other parts beside the text model.
func Nested(module string) string {
	if rest, ok := strings.CutPrefix(module, textPrefix); ok {
		return NestedPrefix + rest
	}
	return module
}

// TensorName gives the name of matrix "A" or "B" of a module in a file.
func TensorName(module, matrix string, names Names) string {
	if names == Tinker && module == headName {
		module = tinkerHead
	}
	if names == NestedPEFT {
		module = Nested(module)
	}
	return namePrefix + module + ".lora_" + matrix + ".weight"
}

// ParseTensorName reads a name of either convention (and the head as model.lm_head, which occurs too): the module's name and "A" or "B".
func ParseTensorName(name string) (module, matrix string, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return "", "", false
	}
	rest, ok = strings.CutSuffix(rest, ".weight")
	if !ok {
		return "", "", false
	}
	module, matrix, ok = strings.Cut(rest, ".lora_")
	if !ok || module == "" || (matrix != "A" && matrix != "B") {
		return "", "", false
	}
	if rest, ok := strings.CutPrefix(module, NestedPrefix); ok { // as the class names it that has other parts too
		module = textPrefix + rest
	}
	if module == tinkerHead || module == "model."+headName {
		module = headName
	}
	return module, matrix, true
}

// ParseBaseCopy reads the name under which PEFT saves a weight of the base model in an adapter's file, beside LoRA or alone: the module's name, and the weight's in the model's files.
func ParseBaseCopy(name string) (module, weight string, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	if !ok {
		return "", "", false
	}
	at := strings.LastIndexByte(rest, '.')
	if at < 1 || (rest[at:] != ".weight" && rest[at:] != ".bias") {
		return "", "", false
	}
	module = strings.TrimSuffix(rest[:at], ".base_layer")
	return module, module + rest[at:], true
}
