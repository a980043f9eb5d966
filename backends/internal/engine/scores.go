package engine

import (
	"math"

	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// unscored marks a cell of a matrix of likeliest tokens that holds none.
const unscored = -99999

// scores collects what was asked about a prompt. It is filled while the request's first sequence goes through its prompt.
type scores struct {
	request *plugins.SampleRequest
	result  plugins.PromptScores
	any     bool // something was asked: the prompt is computed as a whole, nothing is taken from the prefix cache
}

// newScores has everything marked as not scored.
func newScores(q *plugins.SampleRequest) *scores {
	s := &scores{request: q}
	p := len(q.Prompt)
	r := &s.result
	if q.PromptLogprobs {
		r.Logprobs = make([]float32, p)
		for i := range r.Logprobs {
			r.Logprobs[i] = float32(math.NaN())
		}
	}
	if k := q.TopKPromptLogprobs; k > 0 {
		r.Top = plugins.TopLogprobs{K: k, IDs: make([]int32, p*k), Logprobs: make([]float32, p*k)}
		for i := range r.Top.Logprobs {
			r.Top.Logprobs[i] = unscored
		}
	}
	if q.TargetPromptK > 0 {
		r.Targets = make([]float32, (p-1)*q.TargetPromptK)
	}
	if k := q.PromptAlternatives; k > 0 {
		r.AltTokens, r.AltLogprobs = make([]int32, (p-1)*k), make([]float32, (p-1)*k)
	}
	for i := 1; i < p && !s.any; i++ {
		s.any = s.wants(i)
	}
	return s
}

// own tells whether the log-probability of the prompt's own token, or the likeliest ones, were asked at a position.
func (s *scores) own(position int) bool {
	q := s.request
	return (q.PromptLogprobs || q.TopKPromptLogprobs > 0) && (q.PromptLogprobsLastN == 0 || position >= len(q.Prompt)-q.PromptLogprobsLastN)
}

// wants tells whether anything was asked about the token at a position after the first.
func (s *scores) wants(position int) bool {
	if s == nil {
		return false
	}
	if s.own(position) || s.request.PromptAlternatives > 0 {
		return true
	}
	k := s.request.TargetPromptK
	for i := (position - 1) * k; i < position*k; i++ {
		if s.request.TargetPromptTokens[i] >= 0 {
			return true
		}
	}
	return false
}

// fill scores consecutive rows of logits, which stand at the positions before those that they score: row i is about the token at position first+i. The logits are overwritten. All ranks do the same; rank 0 books it.
func (s *scores) fill(p *samplingRank, logits tensor.Tensor, first int) error {
	q, r := s.request, &s.result
	rows, top, width := logits.Rows, q.TopKPromptLogprobs, p.model.Config.VocabSize
	var host []float32
	if top > 0 || (q.PromptAlternatives > 0 && q.Temperature != 1) {
		var err error
		if host, err = p.download(plainLogits, logits); err != nil {
			return err
		}
	}
	// One matrix of targets for all: the token itself, the likeliest, and those asked by name.
	k := 1 + top + q.TargetPromptK
	if err := p.choose(rows*k, func(scratch *sample.Scratch, targets []int32, i int) {
		row := targets[i*k : (i+1)*k]
		row[0] = q.Prompt[first+i]
		if top > 0 && s.own(first+i) {
			copy(row[1:], sample.Top(scratch, host[i*width:(i+1)*width], top))
		}
		for j := range q.TargetPromptK {
			row[1+top+j] = max(0, q.TargetPromptTokens[(first+i-1)*q.TargetPromptK+j])
		}
	}, rows); err != nil {
		return err
	}
	targets := p.targets
	values, _, err := p.model.Logprobs(p.workspace, logits, targets, k)
	if err != nil {
		return err
	}
	if err := checkLogprobs(values); err != nil {
		return err
	}
	if p.rank == 0 {
		for i := range rows {
			position, row := first+i, values[i*k:(i+1)*k]
			if s.own(position) {
				if r.Logprobs != nil {
					r.Logprobs[position] = row[0]
				}
				copy(r.Top.IDs[position*top:], targets[i*k+1:i*k+1+top])
				copy(r.Top.Logprobs[position*top:], row[1:1+top])
			}
			for j := range q.TargetPromptK {
				if at := (position-1)*q.TargetPromptK + j; q.TargetPromptTokens[at] >= 0 {
					r.Targets[at] = row[1+top+j]
				}
			}
		}
	}
	if q.PromptAlternatives > 0 {
		return s.alternatives(p, logits, host, first)
	}
	return nil
}

// alternatives draws tokens at the positions of fill, as samples are drawn: at the request's temperature, from what top-k, top-p and min-p leave. Their log-probabilities are, like all scores of the prompt, those of
// temperature 1. host holds the logits unless the temperature is 1.
func (s *scores) alternatives(p *samplingRank, logits tensor.Tensor, host []float32, first int) error {
	q, rows, width, k := s.request, logits.Rows, p.model.Config.VocabSize, s.request.PromptAlternatives
	settings := sample.Settings{Temperature: q.Temperature, TopK: q.TopK, TopP: q.TopP, MinP: q.MinP, RepetitionPenalty: 1}
	var sums []float32 // log-sum-exps at temperature 1
	if q.Temperature != 1 {
		var err error
		if _, sums, err = p.model.Logprobs(p.workspace, logits, nil, 0); err != nil {
			return err
		}
	}
	var probs, scaled []float32 // of the distribution that is drawn from
	if q.Temperature != 0 {
		if q.Temperature != 1 {
			if err := p.model.Device.Scale(logits, settings.Scale(), tensor.Float32); err != nil {
				return err
			}
		}
		lse, err := p.logSumExp(logits)
		if err != nil {
			return err
		}
		if probs, err = p.softmax(logits, lse); err != nil {
			return err
		}
		if settings.Truncates() {
			if scaled, err = p.download(scaledLogits, logits); err != nil {
				return err
			}
		}
	}
	if err := p.choose(rows*k, func(scratch *sample.Scratch, drawn []int32, i int) {
		if q.Temperature == 0 {
			best := sample.Top(scratch, host[i*width:(i+1)*width], 1)[0]
			for j := range k {
				drawn[i*k+j] = best
			}
			return
		}
		var row []float32
		if scaled != nil {
			row = scaled[i*width : (i+1)*width]
		}
		for j := range k {
			drawn[i*k+j] = settings.Draw(scratch, row, probs[i*width:(i+1)*width], nil, sample.UniformAlternative(q.Seed, j, first+i))
		}
	}, rows); err != nil {
		return err
	}
	drawn := p.targets
	values := make([]float32, len(drawn))
	if q.Temperature == 1 {
		scored, _, err := p.model.Logprobs(p.workspace, logits, drawn, k)
		if err != nil {
			return err
		}
		copy(values, scored)
	} else { // logits may be scaled by now
		for i := range values {
			values[i] = host[i/k*width+int(drawn[i])] - sums[i/k]
		}
	}
	if p.rank == 0 {
		copy(s.result.AltTokens[(first-1)*k:], drawn)
		copy(s.result.AltLogprobs[(first-1)*k:], values)
	}
	return checkLogprobs(values)
}

// checkLogprobs refuses values that are not finite: the weights or the activations have overflowed.
func checkLogprobs(values []float32) error {
	for _, v := range values {
		if !finite(float64(v)) {
			return &plugins.Error{Kind: plugins.KindNotFinite, Field: "logits", Message: "a log-probability is not finite: the model's activations have left the range of its type"}
		}
	}
	return nil
}
