package loss

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// AppendTerms adds the terms of rows positions of a datum from position first on, with k targets each, to terms: a device that differentiates them itself gets the derivatives that Rows gives, but 0 for one that is not finite. row is that of
// the first position's logits, datum that of the datum's ratio among those of the device.
func (l Loss) AppendTerms(terms []tensor.LossTerm, in Inputs, first, rows, k, row int, datum int32) []tensor.LossTerm {
	for j := range rows * k {
		e := l.elementAt(in, first, k, j, 0)
		t := l.form.term(l, e)
		t.Recorded, t.Row, t.Datum = float32(e.q), int32(row+j/k), datum
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

func gspoTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossDatum, Weight: float32(e.advantage), Low: l.low, High: l.high}
}

// AppendRatioPositions adds the positions that count in the datum's ratio to positions: a device that computes it itself gets what DatumRatio gives. column is that of the first position's log-probability.
func (l Loss) AppendRatioPositions(positions []tensor.RatioPosition, in Inputs, column int) []tensor.RatioPosition {
	for i, m := range in.SequenceRatioMask {
		if m != 0 {
			positions = append(positions, tensor.RatioPosition{Column: int32(column + i), Recorded: in.Logprobs[i]})
		}
	}
	return positions
}

func cispoTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossRatio, Weight: float32(e.advantage), Low: l.low, High: l.high}
}

func droTerm(_ Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossQuadratic, Weight: float32(e.advantage), Beta: e.beta}
}

func stableReinforceTerm(l Loss, e element) tensor.LossTerm {
	return tensor.LossTerm{Form: tensor.LossRatio, Weight: float32(e.advantage), High: l.ratioCap}
}
