package history

import (
	"fmt"
	"math"

	"github.com/tinsmith/tinsmith/gateway/internal/pack"
)

// EventKind says what an operation was.
type EventKind byte

// The kinds of event.
const (
	Pass    EventKind = 1 // a forward_backward that succeeded
	Forward EventKind = 2 // one without gradients
	Step    EventKind = 3 // an optim_step that succeeded
	Dropped EventKind = 4 // one that failed, and what was accumulated for it is gone
	Loaded  EventKind = 5 // other weights: what was accumulated is gone
)

// Event is what one finished operation of a run says. It is stored with the operation's result, so that the rows of a run can be made again from the results.
type Event struct {
	Kind       EventKind
	Cycle      int64   // clock cycle; 0 = not known
	Queued     int64   // nanoseconds from its acceptance to the beginning of that cycle
	Begin, End int64   // of the cycle, in Unix nanoseconds; 0 = not known
	Tokens     int64   // of a pass
	Loss       float64 // sum of a pass
	Weight     float64 // sum of its weights
	Policy     *Policy // of a pass with a loss that compares two policies

	Number       int64   // of a step
	LearningRate float64 // of a step, as the following; NaN = not known
	GradientNorm float64
	Norms        []Value // of the adapter: "adapter_norm" is all of it
	Entropies            // of tokens that were sampled of the run's weights since the step before, and of prompts
}

// Policy is how far the policy that is trained is from the one that sampled, over sampled tokens. With r the ratio of their probabilities, k1 is −log r and k3 is r − 1 − log r, whose means over tokens of the
// sampler estimate the divergence of the trained policy from it.
type Policy struct {
	Count     float64 // tokens
	Ratio     float64 // sum of the ratios that the loss uses
	Greatest  float64 // of them
	Clipped   float64 // tokens for which the loss's bound on the ratio takes effect
	Bounded   bool    // the loss has such a bound
	K1, K3    float64 // sums
	Advantage float64 // sum
	Surprisal float64 // sum of −log of the probabilities with which the tokens were sampled
}

// add brings two parts of one step together.
func (p *Policy) add(o *Policy) {
	p.Count += o.Count
	p.Ratio += o.Ratio
	p.Greatest = max(p.Greatest, o.Greatest)
	p.Clipped += o.Clipped
	p.Bounded = p.Bounded || o.Bounded
	p.K1 += o.K1
	p.K3 += o.K3
	p.Advantage += o.Advantage
	p.Surprisal += o.Surprisal
}

// The forms of an event: 1 has no entropies.
const (
	formEvent     = 2
	formNoEntropy = 1
)

// Encode writes the event.
func (x *Event) Encode() []byte {
	e := pack.Encoder{B: append(make([]byte, 0, 96), formEvent, byte(x.Kind))}
	x.write(&e)
	return e.B
}

func (x *Event) write(e *pack.Encoder) {
	for _, n := range []int64{x.Cycle, x.Queued, x.Begin, x.End - x.Begin} {
		e.Int(n)
	}
	switch x.Kind {
	case Pass, Forward:
		e.Int(x.Tokens)
		e.Float(x.Loss)
		e.Float(x.Weight)
		e.Bool(x.Policy != nil)
		if x.Policy != nil {
			p := x.Policy
			e.Bool(p.Bounded)
			for _, v := range []float64{p.Count, p.Ratio, p.Greatest, p.Clipped, p.K1, p.K3, p.Advantage, p.Surprisal} {
				e.Float(v)
			}
		}
	case Step:
		e.Int(x.Number)
		e.Float(x.LearningRate)
		e.Float(x.GradientNorm)
		e.Uint(uint64(len(x.Norms)))
		for _, v := range x.Norms {
			e.Text(v.Name)
			e.Float(v.Number)
		}
		x.Sampled.write(e)
		x.Prompt.write(e)
	}
}

// DecodeEvent reads an event. The bytes may be any.
func DecodeEvent(from []byte) (*Event, error) {
	d := pack.NewDecoder(from)
	form := d.Byte()
	if form != formEvent && form != formNoEntropy {
		return nil, fmt.Errorf("read an event of series: its form is not known")
	}
	x := &Event{Kind: EventKind(d.Byte())}
	if x.Kind < Pass || x.Kind > Loaded {
		return nil, fmt.Errorf("read an event of series: kind %d is not known", x.Kind)
	}
	x.read(d, form)
	if err := d.End(); err != nil {
		return nil, fmt.Errorf("read an event of series: %w", err)
	}
	return x, nil
}

func (x *Event) read(d *pack.Decoder, form byte) {
	x.Cycle, x.Queued, x.Begin = d.Int(), d.Int(), d.Int()
	x.End = x.Begin + d.Int()
	switch x.Kind {
	case Pass, Forward:
		x.Tokens, x.Loss, x.Weight = d.Int(), d.Float(), d.Float()
		if d.Bool() {
			x.Policy = &Policy{Bounded: d.Bool(), Count: d.Float(), Ratio: d.Float(), Greatest: d.Float(), Clipped: d.Float(), K1: d.Float(), K3: d.Float(), Advantage: d.Float()}
			if form != formNoEntropy {
				x.Policy.Surprisal = d.Float()
			} else {
				x.Policy.Surprisal = Unknown
			}
		}
	case Step:
		x.Number, x.LearningRate, x.GradientNorm = d.Int(), d.Float(), d.Float()
		n := d.Count()
		if n > MaxNames {
			d.Fail()
			return
		}
		for range n {
			x.Norms = append(x.Norms, Value{d.Text(), d.Float()})
		}
		if form == formNoEntropy {
			return
		}
		x.Sampled.read(d)
		x.Prompt.read(d)
	}
}

// Unknown stands for a number of an event that nobody has said.
var Unknown = math.NaN()
