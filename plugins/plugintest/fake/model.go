package fake

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"math"

	"github.com/tinsmith/tinsmith/plugins/simple"
)

// decay is how much of the state of one position reaches the next.
const decay = 0.5

// model is the frozen base: a language model small enough to be read in one look. For the tokens t₀ … tᵢ with embeddings E, tanh by element:
//
//	s  = E[tᵢ] + decay·(s of position i−1)     the whole prefix, older tokens weigh less
//	h₁ = s + O·s                               O: "o_proj", the attention part
//	h₂ = h₁ + D·tanh(h₁)                       D: "down_proj", the MLP part
//	logits = U·h₂                              U: "lm_head"
//
// O, D and U carry LoRA. Everything is computed in float64, one sum after the other, from float32 weights.
type model struct {
	vocab, hidden int
	embedding     []float32 // vocab × hidden
	modules       [3]linear
	hash          string
}

// linear is one frozen matrix of the base.
type linear struct {
	simple.Module
	weight []float32 // out × in
}

const (
	moduleO = iota
	moduleD
	moduleU
)

func newModel(c *Config) *model {
	v, h := c.VocabSize, c.HiddenSize
	m := &model{vocab: v, hidden: h, embedding: make([]float32, v*h)}
	m.modules = [3]linear{
		{Module: simple.Module{Path: "model.layers.0.self_attn.o_proj", Group: simple.Attention, Out: h, In: h}},
		{Module: simple.Module{Path: "model.layers.0.mlp.down_proj", Group: simple.MLP, Out: h, In: h}},
		{Module: simple.Module{Path: "lm_head", Group: simple.Unembed, Out: v, In: h}},
	}
	fillUniform(m.embedding, c.Seed, "embed_tokens", 1.5)
	for i := range m.modules {
		l := &m.modules[i]
		l.weight = make([]float32, l.Out*l.In)
		fillUniform(l.weight, c.Seed, "base_model.model."+l.Path, 2/math.Sqrt(float64(l.In)))
	}
	identity, _ := json.Marshal([]any{"fake", 1, v, h, c.Seed}) // the weights follow from these
	sum := sha256.Sum256(identity)
	m.hash = hex.EncodeToString(sum[:])
	return m
}

// fillUniform fills a tensor from ±bound: key (seed, hash of the name), counter the element's index.
func fillUniform(to []float32, seed uint64, name string, bound float64) {
	f := fnv.New64a()
	_, _ = f.Write([]byte(name))
	n := f.Sum64()
	for i := range to {
		to[i] = float32((2*simple.Uniform(seed, uint32(i), uint32(uint64(i)>>32), uint32(n), uint32(n>>32)) - 1) * bound)
	}
}

func (m *model) parameters() int64 {
	n := len(m.embedding)
	for i := range m.modules {
		n += len(m.modules[i].weight)
	}
	return int64(n)
}

// activations are what one position computed, kept for the backward pass.
type activations struct {
	s, h1, g, h2 []float64
	u            [3][]float64 // A·x of each module
	logits       []float64
}

func (m *model) newActivations() *activations {
	return &activations{
		s: make([]float64, m.hidden), h1: make([]float64, m.hidden), g: make([]float64, m.hidden), h2: make([]float64, m.hidden), logits: make([]float64, m.vocab),
	}
}

// advance moves the state over one token.
func (m *model) advance(state []float64, token int32) {
	e := m.embedding[int(token)*m.hidden:][:m.hidden]
	for i := range state {
		state[i] = float64(e[i]) + float64(decay*state[i])
	}
}

// forward computes the logits of the next token from the state; w may be nil (the base model). Trainer and sampler call it, so their log-probabilities are equal.
func (m *model) forward(w *simple.Weights, state []float64, a *activations) {
	copy(a.s, state)
	m.apply(w, moduleO, a.s, a.h1, a)
	for i, v := range a.s {
		a.h1[i] += v
		a.g[i] = math.Tanh(a.h1[i])
	}
	m.apply(w, moduleD, a.g, a.h2, a)
	for i, v := range a.h1 {
		a.h2[i] += v
	}
	m.apply(w, moduleU, a.h2, a.logits, a)
}

// apply computes y = W·x + (alpha / rank)·B·(A·x).
func (m *model) apply(w *simple.Weights, module int, x, y []float64, a *activations) {
	l := &m.modules[module]
	for o := range y {
		y[o] = dot(l.weight[o*l.In:][:l.In], x)
	}
	if w == nil || w.Layout.Pairs[module].A == nil {
		return
	}
	pair, r, scale := w.Layout.Pairs[module], w.Layout.Rank, w.Layout.Scale()
	if len(a.u[module]) != r {
		a.u[module] = make([]float64, r)
	}
	A, B := w.Of(pair.A), w.Of(pair.B)
	for k := range r {
		a.u[module][k] = dot(A[k*l.In:][:l.In], x)
	}
	for o := range y {
		y[o] += float64(scale * dot(B[o*r:][:r], a.u[module]))
	}
}

func dot(w []float32, x []float64) float64 {
	sum := 0.0
	for i, v := range w {
		sum += float64(float64(v) * x[i])
	}
	return sum
}

// backward adds the gradient of one position to grad, from the gradient of its logits.
func (m *model) backward(w *simple.Weights, a *activations, dLogits, grad []float64) {
	dh2 := make([]float64, m.hidden)
	m.applyBackward(w, moduleU, a.h2, dLogits, dh2, a, grad)
	dg := make([]float64, m.hidden)
	m.applyBackward(w, moduleD, a.g, dh2, dg, a, grad)
	dh1 := make([]float64, m.hidden)
	for i := range dh1 {
		dh1[i] = dh2[i] + float64(dg[i]*(1-float64(a.g[i]*a.g[i])))
	}
	m.applyBackward(w, moduleO, a.s, dh1, nil, a, grad)
}

// applyBackward adds to dx (unless nil) and to the module's part of grad.
func (m *model) applyBackward(w *simple.Weights, module int, x, dy, dx []float64, a *activations, grad []float64) {
	l := &m.modules[module]
	if dx != nil {
		for o, d := range dy {
			for i, x := range l.weight[o*l.In:][:l.In] {
				dx[i] += float64(d * float64(x))
			}
		}
	}
	pair, r, scale := w.Layout.Pairs[module], w.Layout.Rank, w.Layout.Scale()
	if pair.A == nil {
		return
	}
	A, B := w.Of(pair.A), w.Of(pair.B)
	dA, dB := grad[pair.A.Offset:][:pair.A.Size()], grad[pair.B.Offset:][:pair.B.Size()]
	du := make([]float64, r)
	for o, d := range dy {
		for k := range r {
			dB[o*r+k] += float64(scale * float64(d*a.u[module][k]))
			du[k] += float64(scale * float64(d*float64(B[o*r+k])))
		}
	}
	for k, d := range du {
		for i := range l.In {
			dA[k*l.In+i] += float64(d * x[i])
			if dx != nil {
				dx[i] += float64(d * float64(A[k*l.In+i]))
			}
		}
	}
}
