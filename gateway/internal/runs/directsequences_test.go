package runs

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/store"
	"github.com/tinsmith/tinsmith/plugins"
)

// TestProvenanceOfDirectSequences: what was sampled directly is trained on with the recorded log-probabilities by its owner, also after a restart, for as long as samples are kept.
func TestProvenanceOfDirectSequences(t *testing.T) {
	w, clock := clocked(t, nil)
	ctx := t.Context()
	sampled := SampledSequence{Tokens: []int32{5, 6, 7}, Logprobs: []float32{-1, -2, -0.5}}
	id, err := w.KeepSequence(ctx, owner, sampled)
	w.ok(err)
	foreign, err := w.KeepSequence(ctx, other, sampled)
	w.ok(err)
	var seen plugins.ForwardBackwardRequest
	w.mu.Lock()
	w.wrap = func(b plugins.Backend) plugins.Backend { return watchPass{b, &seen} }
	w.mu.Unlock()
	w.restart()
	op := func(spans ...Span) ForwardBackward {
		return ForwardBackward{Operation: at(w.newRun(w.session(), 0), 1), Loss: "stable_reinforce", Config: map[string]float64{"ratio_cap": 3}, Data: []Datum{{
			Tokens: []int32{3, 4, 5, 6}, Inputs: map[string]Tensor{"target_tokens": {Ints: []int64{4, 5, 6, 7}}, "logprobs": {Floats: make([]float32, 4)}, "advantages": {Floats: []float32{0, 1, 1, 1}}},
			LossSpans: spans,
		}}}
	}
	read := Span{SequenceID: id, Offset: 1, Length: 1}
	w.good(w.ForwardBackward(ctx, op(read, Span{Sampled: true, SequenceID: id, Length: 1}, Span{Sampled: true, SequenceID: id, Offset: 1, Length: 2})))
	if got, want := seen.Data[0].Logprobs, append([]float32{0}, sampled.Logprobs...); !slices.Equal(got, want) {
		t.Errorf("the backend got %v, want %v", got, want)
	}
	for _, c := range []struct {
		name, words string
		span        Span
	}{
		{"of another owner", "no sequence", Span{Sampled: true, SequenceID: foreign, Length: 3}},
		{"unknown", "no sequence", Span{Sampled: true, SequenceID: directPrefix + "x", Length: 3}},
		{"with an index", "no sequence", Span{Sampled: true, SequenceID: id + ":0", Length: 3}},
		{"other tokens", "has target token 5", Span{Sampled: true, SequenceID: id, Offset: 1, Length: 3}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "other tokens" {
				c.span.Length = 2
				w.bad(w.ForwardBackward(ctx, op(read, c.span, Span{Sampled: true, SequenceID: id, Offset: 2, Length: 1})))(t, c.words)
				return
			}
			w.bad(w.ForwardBackward(ctx, op(read, c.span)))(t, c.words)
		})
	}
	clock.add(w.cfg.SamplesKept)
	w.bad(w.ForwardBackward(ctx, op(read, Span{Sampled: true, SequenceID: id, Length: 3})))(t, "no sequence")
	w.quiet()
	if n := w.records()[inSequences]; n != 0 {
		t.Errorf("%d sequences are left", n)
	}
}

// TestDirectSequencesAreBounded: of an owner who has too many bytes the oldest go.
func TestDirectSequencesAreBounded(t *testing.T) {
	const most = 10
	w, clock := clocked(t, func(w *world) { w.config.MaxSequenceBytes = most * (1000 + shelvedBytes) })
	ctx := t.Context()
	var ids []string
	for range 3 * most {
		clock.add(time.Second)
		id, err := w.KeepSequence(ctx, owner, SampledSequence{Tokens: make([]int32, 200), Logprobs: make([]float32, 200)})
		w.ok(err)
		ids = append(ids, id)
	}
	last, first := ids[len(ids)-1], ids[0]
	if _, err := w.directSequence(ctx, owner, last); err != nil {
		t.Error(err)
	}
	_, err := w.directSequence(ctx, owner, first)
	w.refused(err, KindInvalid, first)
	rec, err := w.store.Get(ctx, inSequenceBytes, w.directSequences().count(owner, 0).Key)
	if errors.Is(err, store.ErrNotFound) || rec.Count > w.cfg.MaxSequenceBytes || rec.Count < w.cfg.MaxSequenceBytes/2 {
		t.Errorf("%d bytes are counted of %d, %v", rec.Count, w.cfg.MaxSequenceBytes, err)
	}
}
