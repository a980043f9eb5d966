package loss

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// AppendTerms adds the terms of rows positions of a datum from position first on, with k targets each, to terms: a device that differentiates them itself gets the derivatives that Rows gives, but 0 for one that is not finite. row is that of
// the first position's logits.
func (l Loss) AppendTerms(terms []tensor.LossTerm, in Inputs, first, rows, k, row int, datumRatio float64) []tensor.LossTerm {
	for j := range rows * k {
		e := l.elementAt(in, first, k, j, datumRatio)
		t := l.form.term(l, e)
		t.Recorded, t.Row = float32(e.q), int32(row+j/k)
		terms = append(terms, t)
	}
	return terms
}

func crossEntropyTerm(_ Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossLinear, Weight: float32(e.weight)}
}

func importanceSamplingTerm(_ Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossRatio, Weight: float32(e.advantage), High: math.Inf(1)}
}

func ppoTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossClipped, Weight: float32(e.advantage), Low: l.low, High: l.high}
}

// gspoTerm has no ratio of its own: the datum's is known.
func gspoTerm(l Loss, e element) tensor.LossTerm {
	_, derivative := gspo(l, e)
	return tensor.LossTerm{Form: tensor.LossLinear, Weight: float32(-derivative)}
}

func cispoTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossRatio, Weight: float32(e.advantage), Low: l.low, High: l.high}
}

func droTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossQuadratic, Weight: float32(e.advantage), Beta: l.beta}
}

func stableReinforceTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossRatio, Weight: float32(e.advantage), High: l.ratioCap}
}
