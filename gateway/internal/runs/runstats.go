package runs

import (
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// runStats is how the training goes: the newest operations' figures. Results that become durable together may arrive here in any order.
type runStats struct {
	step, version        int64
	loss, gradient, norm float64
	passSeq, weightsSeq  int64     // the operations that loss, and step, version, gradient and norm are of
	weightsAt            time.Time // when the newest version was made
	tokens               int64
	recent               []tokenCount // of the last minute
}

type tokenCount struct {
	at     time.Time
	tokens int64
}

// hold notes which weights the run has since the operation seq, whatever it had before.
func (s *runStats) hold(seq, step, version int64, at time.Time) {
	s.weightsSeq, s.step, s.version, s.weightsAt = seq, step, version, at
}

// loaded notes weights from a checkpoint, unless later ones are known.
func (s *runStats) loaded(seq, step, version int64, at time.Time) {
	if seq >= s.weightsSeq {
		s.hold(seq, step, version, at)
	}
}

// passed notes the loss of a pass, unless a later one's is known.
func (s *runStats) passed(seq int64, metrics map[string]float64) {
	if loss, ok := metrics["loss:sum"]; ok && seq >= s.passSeq {
		s.passSeq, s.loss = seq, loss
	}
}

// stepped notes what a step did, unless later weights are known.
func (s *runStats) stepped(seq int64, got plugins.OptimStepResult, at time.Time) {
	if seq < s.weightsSeq {
		return
	}
	s.hold(seq, got.Step, got.Version, at)
	if v, ok := got.Metrics["grad_norm"]; ok {
		s.gradient = v
	}
	if v, ok := got.Metrics["adapter_norm"]; ok {
		s.norm = v
	}
}

// count notes trained tokens. Those of small operations that follow each other closely count as one.
func (s *runStats) count(now time.Time, tokens int64) {
	s.tokens += tokens
	if n := len(s.recent); n > 0 && now.Sub(s.recent[n-1].at) < time.Second/4 {
		s.recent[n-1].tokens += tokens
	} else {
		s.recent = append(s.recent, tokenCount{now, tokens})
	}
	for len(s.recent) > 0 && now.Sub(s.recent[0].at) > time.Minute {
		s.recent = s.recent[1:]
	}
}

// rate is trained tokens per second over the last minute, or since its first work in that minute.
func (s *runStats) rate(now time.Time) float64 {
	var sum int64
	var first time.Time
	for _, x := range s.recent {
		if now.Sub(x.at) <= time.Minute {
			if first.IsZero() {
				first = x.at
			}
			sum += x.tokens
		}
	}
	if sum == 0 {
		return 0
	}
	return float64(sum) / max(now.Sub(first).Seconds(), 1)
}
