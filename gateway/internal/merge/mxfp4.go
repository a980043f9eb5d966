package merge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// A base whose experts are in MXFP4, which is how gpt-oss is published, is merged into what its files define in bfloat16: each element is its four bits' value times two to the power of its block's exponent, without any rounding.
// The result is as transformers saves such a model: experts × in × out, and a configuration without quantization.

const (
	quantizationKey = "quantization_config"
	blocksSuffix    = "_blocks"
	scalesSuffix    = "_scales"
	blockElements   = 32
)

// packed is a layer of all experts in MXFP4: blocks are experts × out × in/32 × 16 bytes of two elements each, the low four bits first; scales are experts × out × in/32.
type packed struct {
	blocks, scales   tensor
	experts, out, in int64
}

// unpack puts, in a base whose experts are in MXFP4, tensors of bfloat16 in the place of each pair of blocks and scales, and gives these by the names of those. Of other bases it gives none.
func unpack(config []byte, tensors map[string]tensor) (map[string]*packed, error) {
	var c struct {
		Architectures []string `json:"architectures"`
		Quantization  struct {
			Method string `json:"quant_method"`
		} `json:"quantization_config"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	if c.Quantization.Method != "mxfp4" || !slices.ContainsFunc(c.Architectures, func(name string) bool { return transposedExperts[name] }) {
		return nil, nil
	}
	all := map[string]*packed{}
	for name, blocks := range tensors {
		whole, ok := strings.CutSuffix(name, blocksSuffix)
		if !ok {
			continue
		}
		scales, ok := tensors[whole+scalesSuffix]
		if !ok {
			return nil, fmt.Errorf("tensor %.200q has no %.200q beside it", name, whole+scalesSuffix)
		}
		if b, s := blocks.shape, scales.shape; blocks.dtype != "U8" || scales.dtype != "U8" || len(b) != 4 || b[3] != blockElements/2 || !slices.Equal(b[:3], s) || slices.Min(b) < 1 || b[0] > mostExperts {
			return nil, fmt.Errorf("tensors %.200q and %.200q are %s of shape %v and %s of shape %v: not blocks of 16 bytes for each of 1 to %d experts, with a byte for each block", name, whole+scalesSuffix, blocks.dtype, b, scales.dtype, s, mostExperts)
		}
		if _, twice := tensors[whole]; twice {
			return nil, fmt.Errorf("tensor %.200q is there in MXFP4 and without", whole)
		}
		all[whole] = &packed{blocks: blocks, scales: scales, experts: blocks.shape[0], out: blocks.shape[1], in: blocks.shape[2] * blockElements}
	}
	for name, p := range all {
		delete(tensors, name+blocksSuffix)
		delete(tensors, name+scalesSuffix)
		tensors[name] = tensor{dtype: typeBFloat16, shape: []int64{p.experts, p.in, p.out}, file: p.blocks.file, size: 2 * p.experts * p.in * p.out}
	}
	for name, t := range tensors {
		if !isFloat(t.dtype) {
			return nil, fmt.Errorf("tensor %.200q is of type %s, and not blocks or scales of a layer of experts", name, t.dtype)
		}
	}
	if len(all) == 0 {
		return nil, errors.New("the configuration says that the base model is quantized, and it has no tensor in MXFP4")
	}
	return all, nil
}

// e2m1 are the values of numbers of four bits.
var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// unpacking reads the elements of a packed tensor as bfloat16, experts × in × out. It holds one expert's.
type unpacking struct {
	packed         *packed
	blocks, scales io.ReadCloser
	codes          []byte // of an expert
	exponents      []byte
	elements       []byte
	left           []byte // of elements
}

func (p *packed) open(ctx context.Context, s Source) (io.ReadCloser, error) {
	blocks, err := s.Open(ctx, p.blocks.file, p.blocks.offset, p.blocks.size)
	if err != nil {
		return nil, err
	}
	scales, err := s.Open(ctx, p.scales.file, p.scales.offset, p.scales.size)
	if err != nil {
		return nil, errors.Join(err, blocks.Close())
	}
	n := p.out * p.in
	return &unpacking{packed: p, blocks: blocks, scales: scales, codes: make([]byte, n/2), exponents: make([]byte, n/blockElements), elements: make([]byte, 2*n)}, nil
}

func (u *unpacking) Close() error { return errors.Join(u.blocks.Close(), u.scales.Close()) }

// Read implements io.Reader.
func (u *unpacking) Read(b []byte) (int, error) {
	if len(u.left) == 0 {
		if err := u.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, u.left)
	u.left = u.left[n:]
	return n, nil
}

// next makes the elements of the next expert.
func (u *unpacking) next() error {
	if _, err := io.ReadFull(u.blocks, u.codes); err != nil {
		return err
	}
	if _, err := io.ReadFull(u.scales, u.exponents); err != nil {
		return err
	}
	out, across := int(u.packed.out), int(u.packed.in/blockElements)
	for row := range out {
		for block := range across {
			at := row*across + block
			scale := float32(math.Ldexp(1, int(u.exponents[at])-127))
			if u.exponents[at] == math.MaxUint8 || math.IsInf(float64(6*scale), 0) {
				return fmt.Errorf("scale %d of an expert is %d, whose elements are not numbers", at, u.exponents[at])
			}
			var values [16]uint16
			for q, v := range e2m1 {
				values[q] = toBFloat16(v * scale)
			}
			for i, two := range u.codes[at*blockElements/2:][:blockElements/2] {
				column := block*blockElements + 2*i
				for k, v := range []uint16{values[two&15], values[two>>4]} {
					to := u.elements[2*((column+k)*out+row):]
					to[0], to[1] = byte(v), byte(v>>8)
				}
			}
		}
	}
	u.left = u.elements
	return nil
}

// source opens what a tensor is read from. What is unpacked goes into the base's hash before.
func (w *writer) source(ctx context.Context, t output) (io.ReadCloser, error) {
	base := w.plan.options.Base
	if t.packed == nil {
		return base.Open(ctx, t.from.file, t.from.offset, t.from.size)
	}
	if err := w.addToSum(ctx, t.place(), t.packed.blocks); err != nil {
		return nil, err
	}
	return t.packed.open(ctx, base)
}

// head begins a tensor of the base in its hash.
func (w *writer) head(name string, t tensor) {
	fmt.Fprintf(w.sum, "%q %s %v\n", name, t.dtype, t.shape)
}

// addToSum has the base's hash go over a tensor that is not written as it is.
func (w *writer) addToSum(ctx context.Context, name string, t tensor) error {
	source, err := w.plan.options.Base.Open(ctx, t.file, t.offset, t.size)
	if err != nil {
		return err
	}
	defer source.Close()
	w.head(name, t)
	for left := t.size; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(left, chunkElements)
		if _, err := io.CopyN(w.sum, source, n); err != nil {
			return err
		}
		left -= n
	}
	return nil
}
