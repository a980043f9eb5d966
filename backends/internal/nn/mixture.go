package nn

import (
	"errors"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// Mixture is the feed-forward layer of which every token takes a few experts: each is a gated MLP, and what they give is added, weighted by the router's probabilities. See tensor.ExpertDevice for the choice.
//
// LoRA of an expert layer has an A or a B that all experts share, or one for each. The adapters of one batch may differ in that.
//
// Where a model is cut over ranks, each has an equal part of the width of every expert: rows of gate and up with their biases, and columns of down, whose biases every rank has whole. The router is whole on every rank, which read the
// same rows, so all choose the same experts with the same probabilities. What is summed over the width is summed over Segments, and whole, in every row, before biases of down are added and then the rows of a token: then it is the same
// on all ranks, and so is all that follows.
type Mixture struct {
	Router         tensor.Matrix // experts × hidden
	RouterBias     tensor.Tensor // 1 × experts; no buffer = none
	Gate, Up, Down ExpertLinear
	Experts, Slots int          // of these each token takes so many
	Normalise      bool         // the probabilities of those that a token takes add up to one
	Clamp          tensor.Clamp // of the gated product, see tensor.SinkDevice; a Limit of 0 = it is not clamped
	// Segments are those of an expert's width, as far as it is here; see Linear.
	Segments tensor.Segments
}

// ExpertLinear is a linear layer of every expert, all of one shape.
type ExpertLinear struct {
	Weight tensor.Matrix // the experts' one below the other, from multiples of tensor.StackPitch(Out) on
	Out    int
	Module int           // the module number of its LoRA
	Bias   tensor.Tensor // experts × Out; no buffer = none
}

func (l *ExpertLinear) stack() tensor.Stack {
	return tensor.Stack{Matrix: l.Weight, Out: l.Out, Pitch: tensor.StackPitch(l.Out)}
}

// mixtureActivations is what backward needs, of some tokens at a time.
type mixtureActivations struct {
	chunks []mixtureChunk
}

// NewActivations implements Sublayer.
func (*Mixture) NewActivations() Activations { return &mixtureActivations{} }

// WithWeights implements Sublayer.
func (m *Mixture) WithWeights(weight func(tensor.Matrix) tensor.Matrix) Sublayer {
	other := *m
	for _, w := range []*tensor.Matrix{&other.Router, &other.Gate.Weight, &other.Up.Weight, &other.Down.Weight} {
		*w = weight(*w)
	}
	return &other
}

// rounds implements Sublayer.
func (m *Mixture) rounds(p *Pass) bool { return p.roundRows(m.linears()...) }

// mixtureChunk is the tokens [from, to) of a pass. gate and up, a row for each slot, may be rounded, see Pass.keptType.
type mixtureChunk struct {
	from, to          int
	logits, choice, p tensor.Tensor
	table             tensor.Table
	gate, up          tensor.Tensor
	ga, ua, da        innerActivations
	segments          []Segment       // of the tokens, counted from the first one
	gradients         []GradientRange // the same
}

// innerActivations keeps the inner vectors scale·(A·x), rounded as the product with B sees them: of tokens for adapters whose A is one for all experts (whose B is, behind the mixture), of rows for the others.
type innerActivations struct{ tokens, rows tensor.Tensor }

// mixtureTokens is how many tokens go through a mixture at once at most: what is needed for the time being has a row for each slot.
const mixtureTokens = 2048

// reserve cuts the tokens into chunks and gets what is kept of them.
func (m *Mixture) reserve(p *Pass, rows int, a *mixtureActivations) error {
	a.chunks = a.chunks[:0]
	for from := 0; from < rows; from += mixtureTokens {
		if len(a.chunks) < cap(a.chunks) {
			a.chunks = a.chunks[:len(a.chunks)+1]
		} else {
			a.chunks = append(a.chunks, mixtureChunk{})
		}
		c := &a.chunks[len(a.chunks)-1]
		c.cut(p, from, min(from+mixtureTokens, rows))
		if err := m.reserveChunk(p, c); err != nil {
			return err
		}
	}
	return nil
}

// cut makes the chunk one of tokens [from, to).
func (c *mixtureChunk) cut(p *Pass, from, to int) {
	c.from, c.to, c.segments, c.gradients = from, to, c.segments[:0], c.gradients[:0]
	for _, s := range p.Segments {
		if a, b := max(s.From, from), min(s.To, to); a < b {
			c.segments = append(c.segments, Segment{From: a - from, To: b - from, Modules: s.Modules})
		}
	}
	for _, g := range p.Gradients {
		if a, b := max(g.From, from), min(g.To, to); a < b {
			c.gradients = append(c.gradients, GradientRange{From: a - from, To: b - from, Modules: g.Modules})
		}
	}
}

func (m *Mixture) reserveChunk(p *Pass, c *mixtureChunk) error {
	tokens := c.to - c.from
	c.table = tensor.Table{Tokens: tokens, Slots: m.Slots, Experts: m.Experts}
	words := tensor.TableWords(tokens, m.Slots, m.Experts)
	if err := p.get(tokens, slot{&c.logits, p.Keep, m.Experts}, slot{&c.choice, p.Keep, m.Slots}, slot{&c.p, p.Keep, m.Slots}); err != nil {
		return err
	}
	if err := p.get(1, slot{&c.table.Words, p.Keep, words}); err != nil {
		return err
	}
	for _, t := range []*tensor.Tensor{&c.gate, &c.up} {
		var err error
		if *t, err = p.Keep.GetAs(p.keptType(m.linears()...), c.table.Rows(), m.Gate.Out); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		module int
		down   bool
		inner  *innerActivations
	}{{m.Gate.Module, false, &c.ga}, {m.Up.Module, false, &c.ua}, {m.Down.Module, true, &c.da}} {
		*l.inner = innerActivations{}
		rank, tokenwise, rowwise := c.adapted(l.module, l.down)
		if tokenwise {
			if err := p.get(tokens, slot{&l.inner.tokens, p.Keep, rank}); err != nil {
				return err
			}
		}
		if rowwise {
			if err := p.get(c.table.Rows(), slot{&l.inner.rows, p.Keep, rank}); err != nil {
				return err
			}
		}
	}
	return nil
}

// linears are the layers that read what the mixture does, as if there were one expert.
func (m *Mixture) linears() []*Linear {
	return []*Linear{{Weight: m.Gate.Weight, Module: m.Gate.Module}, {Weight: m.Up.Weight, Module: m.Up.Module}}
}

// tokenwise tells whether inner vectors of an adapter are one for each token: gate's and up's where all experts have one A, down's where they have one B, so that the slots can be added before it.
func (l LoRA) tokenwise(down bool) bool {
	if down {
		return l.ExpertsB == 1
	}
	return l.ExpertsA == 1
}

// adapted gives the largest rank of a module in the chunk, 0 if it has no LoRA, and whether there are inner vectors of tokens and of rows.
func (c *mixtureChunk) adapted(module int, down bool) (rank int, tokenwise, rowwise bool) {
	for _, s := range c.segments {
		if l := s.lora(module); l.A != nil {
			rank = max(rank, l.rank())
			if l.tokenwise(down) {
				tokenwise = true
			} else {
				rowwise = true
			}
		}
	}
	return
}

// Forward implements Sublayer.
func (m *Mixture) Forward(p *Pass, out, h tensor.Tensor, activations Activations) error {
	a := activations.(*mixtureActivations)
	if err := m.reserve(p, h.Rows, a); err != nil {
		return err
	}
	for i := range a.chunks {
		c := &a.chunks[i]
		to := out
		if out.Buffer != nil {
			to = out.Slice(c.from, c.to)
		}
		if err := m.forward(p, to, h.Slice(c.from, c.to), c); err != nil {
			return err
		}
	}
	return nil
}

func (m *Mixture) forward(p *Pass, out, h tensor.Tensor, c *mixtureChunk) error {
	mark := p.Temp.Mark()
	if err := p.matMul(c.logits, h, m.Router, tensor.Segments{}); err != nil {
		return err
	}
	if m.RouterBias.Buffer != nil {
		if err := p.Device.AddRow(c.logits, m.RouterBias); err != nil {
			return err
		}
	}
	if err := p.Device.Route(c.choice, c.p, c.logits, m.Normalise); err != nil {
		return err
	}
	if err := p.Device.Dispatch(c.table, c.choice); err != nil {
		return err
	}
	if p.Loads != nil {
		if err := p.Loads(c.from, c.choice); err != nil {
			return err
		}
	}
	gate, err := p.unrounded(c.gate)
	if err != nil {
		return err
	}
	up, err := p.unrounded(c.up)
	if err != nil {
		return err
	}
	hidden, err := p.Temp.GetAs(p.rowType(&Linear{Weight: m.Down.Weight, Module: m.Down.Module}), gate.Rows, gate.Cols)
	if err != nil {
		return err
	}
	whole := []tensor.RoutedGroup{{To: c.table.Tokens, Stack: m.Gate.stack()}}
	if err := p.routed(c.table, tensor.RoutedProduct{Y: gate, X: h, Gathered: true, Groups: whole},
		tensor.RoutedProduct{Y: up, X: h, Gathered: true, Groups: []tensor.RoutedGroup{{To: c.table.Tokens, Stack: m.Up.stack()}}}); err != nil {
		return err
	}
	if err := c.adapt(p, m.Gate.Module, gate, h, &c.ga); err != nil {
		return err
	}
	if err := c.adapt(p, m.Up.Module, up, h, &c.ua); err != nil {
		return err
	}
	if err := errors.Join(m.Gate.addBias(p, gate, c), m.Up.addBias(p, up, c)); err != nil {
		return err
	}
	if err := m.gatedKeep(p, hidden, c.gate, c.up, gate, up); err != nil {
		return err
	}
	if err := m.down(p, out, hidden, c); err != nil {
		return err
	}
	return p.Temp.Release(mark)
}

// adapt adds to y, a row for each slot, what the LoRA of gate or up gives for the tokens h.
func (c *mixtureChunk) adapt(p *Pass, module int, y, h tensor.Tensor, inner *innerActivations) error {
	if inner.tokens.Buffer != nil {
		if err := p.matMulGroups(inner.tokens, h, c.tokenGroups(module, false, shrink), false, tensor.Segments{}); err != nil {
			return err
		}
		if err := p.routed(c.table, tensor.RoutedProduct{Y: y, X: inner.tokens, Gathered: true, Accumulate: true, Groups: c.routedGroups(module, false, true, expand)}); err != nil {
			return err
		}
	}
	if inner.rows.Buffer == nil {
		return nil
	}
	if err := p.routed(c.table, tensor.RoutedProduct{Y: inner.rows, X: h, Gathered: true, Groups: c.routedGroups(module, false, false, shrink)}); err != nil {
		return err
	}
	return p.routed(c.table, tensor.RoutedProduct{Y: y, X: inner.rows, Accumulate: true, Groups: c.routedGroups(module, false, false, expand)})
}

// down is what comes behind the gated product of the experts: their last layers, the sum over slots, and what the LoRA of all experts adds to that.
func (m *Mixture) down(p *Pass, out, hidden tensor.Tensor, c *mixtureChunk) error {
	module, inner := m.Down.Module, &c.da
	var rows, shrunk tensor.Tensor
	var sums []tensor.Tensor // over the width: whole behind the meeting of the ranks
	if inner.rows.Buffer != nil {
		if err := p.routed(c.table, tensor.RoutedProduct{Y: inner.rows, X: hidden, Groups: p.unfinished(c.routedGroups(module, true, false, shrink)), Segments: m.Segments}); err != nil {
			return err
		}
		sums = append(sums, inner.rows)
	}
	if inner.tokens.Buffer != nil {
		if err := p.get(hidden.Rows, slot{&shrunk, p.Temp, inner.tokens.Cols}); err != nil {
			return err
		}
		if err := p.routed(c.table, tensor.RoutedProduct{Y: shrunk, X: hidden, Groups: unscaled(c.routedGroups(module, true, true, shrink)), Segments: m.Segments}); err != nil {
			return err
		}
		sums = append(sums, shrunk)
	}
	if out.Buffer != nil {
		if err := p.get(hidden.Rows, slot{&rows, p.Temp, out.Cols}); err != nil {
			return err
		}
		if err := p.routed(c.table, tensor.RoutedProduct{Y: rows, X: hidden, Groups: []tensor.RoutedGroup{{To: c.table.Tokens, Stack: m.Down.stack()}}, Segments: m.Segments}); err != nil {
			return err
		}
		sums = append(sums, rows)
	}
	if err := p.reduce(sums...); err != nil {
		return err
	}
	if inner.rows.Buffer != nil {
		if err := c.finish(p, module, true, inner.rows, shrink); err != nil {
			return err
		}
	}
	if inner.tokens.Buffer != nil {
		if err := p.Device.Combine(inner.tokens, shrunk, c.p, c.table, false); err != nil {
			return err
		}
		if err := c.scaleTokens(p, module, true, inner.tokens, shrink); err != nil {
			return err
		}
	}
	if out.Buffer == nil {
		return nil
	}
	if inner.rows.Buffer != nil {
		if err := p.routed(c.table, tensor.RoutedProduct{Y: rows, X: inner.rows, Accumulate: true, Groups: c.routedGroups(module, true, false, expand)}); err != nil {
			return err
		}
	}
	if err := m.Down.addBias(p, rows, c); err != nil {
		return err
	}
	if err := p.Device.Combine(out, rows, c.p, c.table, false); err != nil {
		return err
	}
	if inner.tokens.Buffer == nil {
		return nil
	}
	return p.matMulGroups(out, inner.tokens, c.tokenGroups(module, true, expand), true, tensor.Segments{})
}
