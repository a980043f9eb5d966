package plugintest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
)

// samplerIsTrainer demands equal bits of the sampler's log-probabilities and those of a forward pass over prompt and tokens.
func (s *suite) samplerIsTrainer() {
	r := s.create("a", allModules)
	r.train(2, s.datum(1, 8))
	for _, temperature := range []float64{1, 0} { // greedy has those of temperature 1
		req := s.request("a", 2, 8)
		req.Temperature, req.PromptLogprobs = temperature, true
		out := s.sample(req)
		for i, tokens := range out.tokens {
			all := append(slices.Clone(req.Prompt), tokens...)
			d := plugins.Datum{Tokens: all[:len(all)-1], Targets: all[1:], K: 1, Weights: make([]float32, len(all)-1)}
			want := r.forward(d).Logprobs[0]
			n := len(req.Prompt) - 1
			s.sameBits(fmt.Sprintf("temperature %v: tokens of sequence %d", temperature, i), out.logprobs[i], want[n:])
			s.sameBits(fmt.Sprintf("temperature %v: prompt", temperature), out.prompt.Logprobs[1:], want[:n])
		}
	}
	base, fresh := s.request("", 1, 4), s.request("b", 1, 4)
	s.create("b", allModules)
	s.sameBits("the base model and an adapter with B = 0", s.sample(base).logprobs[0], s.sample(fresh).logprobs[0])
}

func (s *suite) promptScores() {
	r := s.create("a", allModules)
	r.train(1, s.datum(1, 8))
	req := s.request("a", 1, 0)
	p := len(req.Prompt)
	plain := s.sample(req)
	if plain.prompt.Logprobs != nil || plain.prompt.Top.K != 0 || plain.prompt.Targets != nil || plain.prompt.AltTokens != nil || plain.reasons[0] != plugins.StopLength || len(plain.tokens[0]) != 0 {
		s.Errorf("nothing was asked, the answer is %+v, %+v", plain.prompt, plain)
	}
	req = s.request("a", 1, 0)
	const k = 3
	req.PromptLogprobs, req.TopKPromptLogprobs, req.TargetPromptK, req.PromptAlternatives = true, k, 2, 2
	req.Temperature = 0.8 // of the draws; scores of the prompt are those of temperature 1
	for i := range p - 1 {
		req.TargetPromptTokens = append(req.TargetPromptTokens, req.Prompt[i+1], -1)
	}
	out := s.sample(req).prompt
	if len(out.Logprobs) != p || !math.IsNaN(float64(out.Logprobs[0])) {
		s.Fatalf("prompt log-probabilities %v", out.Logprobs)
	}
	if out.Top.K != k || len(out.Top.IDs) != p*k || len(out.Top.Logprobs) != p*k || len(out.Targets) != (p-1)*2 || len(out.AltTokens) != (p-1)*2 || len(out.AltLogprobs) != (p-1)*2 {
		s.Fatalf("shapes of %+v", out)
	}
	for i := range p - 1 {
		lp := out.Logprobs[i+1]
		if out.Targets[2*i] != lp || out.Targets[2*i+1] != 0 {
			s.Errorf("position %d: targets %v, want %v and 0", i+1, out.Targets[2*i:][:2], lp)
		}
		ids, top := out.Top.IDs[(i+1)*k:][:k], out.Top.Logprobs[(i+1)*k:][:k]
		if !slices.IsSortedFunc(top, func(a, b float32) int { return int(math.Copysign(1, float64(b-a))) }) && top[0] < top[k-1] {
			s.Errorf("position %d: the likeliest are not in descending order: %v", i+1, top)
		}
		if at := slices.Index(ids, req.Prompt[i+1]); (at >= 0 && top[at] != lp) || (at < 0 && lp > top[k-1]) {
			s.Errorf("position %d: token %d has %v, the likeliest are %v with %v", i+1, req.Prompt[i+1], lp, ids, top)
		}
		for j, t := range out.AltTokens[2*i:][:2] {
			if at := slices.Index(ids, t); at >= 0 && out.AltLogprobs[2*i+j] != top[at] {
				s.Errorf("position %d: alternative %d has %v, want %v", i+1, t, out.AltLogprobs[2*i+j], top[at])
			}
		}
	}
	for j := range k {
		if out.Top.IDs[j] != 0 || out.Top.Logprobs[j] != -99999 {
			s.Errorf("the first row of the likeliest is %v, %v", out.Top.IDs[:k], out.Top.Logprobs[:k])
		}
	}
	for name, cut := range map[string]func(q *plugins.SampleRequest){
		"top-k of 1":        func(q *plugins.SampleRequest) { q.TopK = 1 },
		"hardly any top-p":  func(q *plugins.SampleRequest) { q.TopP = 1e-9 },
		"min-p of nearly 1": func(q *plugins.SampleRequest) { q.MinP = 0.999999999 },
		"temperature 0":     func(q *plugins.SampleRequest) { q.Temperature = 0 },
	} {
		only := req
		only.ID = s.request("a", 1, 1).ID
		cut(&only)
		for i, lp := range s.sample(only).prompt.AltLogprobs {
			if best := out.Top.Logprobs[(i/2+1)*k]; lp != best {
				s.Errorf("%s: alternative %d at position %d has log-probability %v, the likeliest token %v", name, i%2, i/2+1, lp, best)
			}
		}
	}
	last := req
	last.ID, last.PromptLogprobsLastN = s.request("a", 1, 1).ID, 2
	cut := s.sample(last).prompt
	for i := range p {
		scored := i >= p-2
		if math.IsNaN(float64(cut.Logprobs[i])) == scored || (scored && cut.Logprobs[i] != out.Logprobs[i]) {
			s.Errorf("of the last two only: position %d has %v, of all %v", i, cut.Logprobs[i], out.Logprobs[i])
		}
		if want := out.Top.Logprobs[i*k]; (scored && cut.Top.Logprobs[i*k] != want) || (!scored && cut.Top.Logprobs[i*k] != -99999) {
			s.Errorf("of the last two only: position %d has likeliest %v, of all %v", i, cut.Top.Logprobs[i*k], want)
		}
	}
}

func (s *suite) seeds() {
	r := s.create("a", allModules)
	r.train(1, s.datum(1, 8))
	req := s.request("a", 4, 8)
	req.TopKSampledLogprobs = 2
	want := s.sample(req)
	if slices.Equal(want.tokens[0], want.tokens[1]) && slices.Equal(want.tokens[1], want.tokens[2]) && slices.Equal(want.tokens[2], want.tokens[3]) {
		s.Errorf("the four samples are all %v", want.tokens[0])
	}
	for i, top := range want.top {
		if top.K != 2 || len(top.IDs) != 16 || len(top.Logprobs) != 16 {
			s.Errorf("sequence %d: the likeliest have shape %d, %d, %d", i, top.K, len(top.IDs), len(top.Logprobs))
		}
		for j := range want.tokens[i] {
			if lp := want.logprobs[i][j]; lp > top.Logprobs[2*j] || (want.tokens[i][j] == top.IDs[2*j] && lp != top.Logprobs[2*j]) {
				s.Errorf("sequence %d, token %d has %v, the likeliest %v", i, j, lp, top.Logprobs[2*j])
			}
		}
	}
	whole := req
	whole.ID, whole.AtEnd = s.request("a", 1, 1).ID, true
	for i, got := range s.sample(whole).logprobs {
		s.sameBits(fmt.Sprintf("sequence %d, sent at its end", i), got, want.logprobs[i])
	}
	other := req
	other.ID, other.Seed = s.request("a", 1, 1).ID, req.Seed+1
	for i, tokens := range s.sample(other).tokens {
		for j := range want.tokens {
			if slices.Equal(tokens, want.tokens[j]) {
				s.Errorf("seed + 1, sequence %d repeats sequence %d of seed", i, j)
			}
		}
	}
	var wg sync.WaitGroup
	for i := range 6 { // the same among others, that differ in every way
		noise := s.request([]string{"a", ""}[i%2], 1+i%3, 3+i)
		noise.Seed, noise.Temperature, noise.TopK = uint64(i), float64(i)/2, i
		same := req
		same.ID = s.request("a", 1, 1).ID
		wg.Go(func() {
			if _, err := s.trySample(noise, nil); err != nil {
				s.Error(err)
			}
		})
		wg.Go(func() {
			got, err := s.trySample(same, nil)
			if err != nil {
				s.Error(err)
				return
			}
			for j := range want.tokens {
				if !slices.Equal(got.tokens[j], want.tokens[j]) {
					s.Errorf("among others sequence %d is %v, alone %v", j, got.tokens[j], want.tokens[j])
				}
				s.sameBits("among others and alone", got.logprobs[j], want.logprobs[j])
			}
		})
	}
	wg.Wait()
	single := req
	single.ID, single.NumSamples = s.request("a", 1, 1).ID, 1
	if got := s.sample(single).tokens[0]; !slices.Equal(got, want.tokens[0]) {
		s.Errorf("one sample of the seed is %v, the first of four is %v", got, want.tokens[0])
	}
}

func (s *suite) greedyAndFilters() {
	greedy := s.request("", 1, 6)
	greedy.Temperature, greedy.TopKSampledLogprobs = 0, 1
	want := s.sample(greedy)
	if !slices.Equal(want.tokens[0], want.top[0].IDs) {
		s.Errorf("greedy tokens %v, likeliest %v", want.tokens[0], want.top[0].IDs)
	}
	for name, change := range map[string]func(*plugins.SampleRequest){
		"top-k 1":             func(r *plugins.SampleRequest) { r.TopK = 1 },
		"tiny top-p":          func(r *plugins.SampleRequest) { r.TopP = 1e-9 },
		"min-p 1":             func(r *plugins.SampleRequest) { r.MinP = 1 },
		"tiny temperature":    func(r *plugins.SampleRequest) { r.Temperature = 1e-4 },
		"greedy, another one": func(r *plugins.SampleRequest) { r.Temperature, r.Seed = 0, 99 },
	} {
		req := s.request("", 1, 6)
		change(&req)
		if got := s.sample(req); !slices.Equal(got.tokens[0], want.tokens[0]) {
			s.Errorf("%s: tokens %v, greedy %v", name, got.tokens[0], want.tokens[0])
		}
	}
	filtered := s.request("", 8, 4)
	filtered.TopK, filtered.TopKSampledLogprobs = 3, 3
	out := s.sample(filtered)
	for i := range out.tokens {
		for j, t := range out.tokens[i] {
			if !slices.Contains(out.top[i].IDs[3*j:][:3], t) {
				s.Errorf("top-k 3: drew %d, the likeliest are %v", t, out.top[i].IDs[3*j:][:3])
			}
		}
	}
	// Log-probabilities are those before the filters, of the scaled distribution.
	hot := s.request("", 1, 1)
	hot.Temperature, hot.TopKSampledLogprobs = 2, min(s.model.VocabSize, plugins.MaxTopLogprobs)
	if s.model.VocabSize <= plugins.MaxTopLogprobs {
		for _, k := range []int{0, 2} {
			req := hot
			req.ID, req.TopK = s.request("", 1, 1).ID, k
			sum := 0.0
			for _, lp := range s.sample(req).top[0].Logprobs {
				sum += math.Exp(float64(lp))
			}
			if math.Abs(sum-1) > 1e-4 {
				s.Errorf("top-k %d: the probabilities of all tokens sum to %v", k, sum)
			}
		}
	}
}

func (s *suite) stopTokens() {
	req := s.request("", 1, 8)
	req.Temperature = 0
	free := s.sample(req)
	if free.reasons[0] != plugins.StopLength || len(free.tokens[0]) != 8 {
		s.Errorf("no stop token: %d tokens, reason %d", len(free.tokens[0]), free.reasons[0])
	}
	stop := free.tokens[0][2]
	at := slices.Index(free.tokens[0], stop)
	req.ID, req.StopTokens = s.request("", 1, 1).ID, []int32{stop}
	out := s.sample(req)
	if out.reasons[0] != plugins.StopToken || !slices.Equal(out.tokens[0], free.tokens[0][:at+1]) {
		s.Errorf("stop token %d: tokens %v, reason %d; without it %v", stop, out.tokens[0], out.reasons[0], free.tokens[0])
	}
	req.ID, req.MinTokens = s.request("", 1, 1).ID, at+2
	if out := s.sample(req); len(out.tokens[0]) < at+2 || slices.Contains(out.tokens[0][:at+1], stop) {
		s.Errorf("at least %d tokens: got %v with stop token %d", at+2, out.tokens[0], stop)
	}
	full := s.request("", 1, s.model.MaxContextLength-6)
	if len(full.Prompt) == 6 && s.model.MaxContextLength <= 256 {
		if out := s.sample(full); out.reasons[0] != plugins.StopLength || len(out.tokens[0]) != full.MaxTokens {
			s.Errorf("up to the context: %d tokens, reason %d", len(out.tokens[0]), out.reasons[0])
		}
	}
}

func (s *suite) penaltiesAndBias() {
	first := func(change func(*plugins.SampleRequest)) (int32, float32) {
		s.Helper()
		req := s.request("", 1, 1)
		req.Temperature = 0
		change(&req)
		out := s.sample(req)
		return out.tokens[0][0], out.logprobs[0][0]
	}
	plain, _ := first(func(*plugins.SampleRequest) {})
	other := (plain + 1) % int32(s.model.VocabSize)
	if t, lp := first(func(r *plugins.SampleRequest) { r.LogitBias = map[int32]float64{other: 1000} }); t != other || lp < -1e-3 {
		s.Errorf("bias 1000 on %d: drew %d with %v, want a log-probability near 0", other, t, lp)
	}
	if t, _ := first(func(r *plugins.SampleRequest) { r.LogitBias = map[int32]float64{plain: -1000} }); t == plain {
		s.Errorf("bias -1000 on %d, and it was drawn", plain)
	}
	logprobOf := func(token int32, change func(*plugins.SampleRequest)) float64 {
		s.Helper()
		req := s.request("", 1, 2)
		req.Temperature, req.LogitBias = 0, map[int32]float64{token: 30} // drawn first, then penalised
		change(&req)
		out := s.sample(req)
		if out.tokens[0][0] != token {
			s.Fatalf("bias 30 on %d, drew %d", token, out.tokens[0][0])
		}
		if out.tokens[0][1] != token {
			return math.Inf(-1)
		}
		return float64(out.logprobs[0][1])
	}
	free := logprobOf(plain, func(*plugins.SampleRequest) {})
	for name, change := range map[string]func(*plugins.SampleRequest){
		"frequency penalty":  func(r *plugins.SampleRequest) { r.FrequencyPenalty = 2 },
		"presence penalty":   func(r *plugins.SampleRequest) { r.PresencePenalty = 2 },
		"repetition penalty": func(r *plugins.SampleRequest) { r.RepetitionPenalty = 4 },
	} {
		unbiased := func(c func(*plugins.SampleRequest)) *sampled {
			req := s.request("", 1, 12)
			req.Temperature = 0
			c(&req)
			return s.sample(req)
		}
		without, with := unbiased(func(*plugins.SampleRequest) {}), unbiased(change)
		repeats := func(tokens []int32) int {
			return len(tokens) - len(slices.Compact(slices.Sorted(slices.Values(tokens))))
		}
		if repeats(with.tokens[0]) > repeats(without.tokens[0]) {
			s.Errorf("%s: %d repeated tokens, without it %d", name, repeats(with.tokens[0]), repeats(without.tokens[0]))
		}
		if got := logprobOf(plain, change); got > free {
			s.Errorf("%s: a repeated token has log-probability %v, without it %v", name, got, free)
		}
	}
}

func (s *suite) cancel() {
	s.create("a", allModules)
	long := min(s.model.MaxContextLength-8, 200)
	req := s.request("a", 3, long)
	second := 0
	out, err := s.trySample(req, func(e plugins.SampleEvent) error {
		if e.Tokens != nil && e.Tokens.Sequence == 1 {
			if second++; second == 2 {
				if err := s.b.Cancel(s.Context(), plugins.CancelRequest{ID: req.ID, Sequence: 1}); err != nil {
					s.Error(err)
				}
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	for i, reason := range out.reasons {
		if i == 1 && !(reason == plugins.StopCancelled || len(out.tokens[i]) == long) {
			s.Errorf("the cancelled sequence ended with reason %d after %d of %d tokens", reason, len(out.tokens[i]), long)
		}
		if i != 1 && (reason != plugins.StopLength || len(out.tokens[i]) != long) {
			s.Errorf("sequence %d ended with reason %d after %d of %d tokens", i, reason, len(out.tokens[i]), long)
		}
	}
	req = s.request("a", 2, long)
	_, err = s.trySample(req, func(e plugins.SampleEvent) error {
		if e.Prompt != nil {
			return s.b.Cancel(s.Context(), plugins.CancelRequest{ID: req.ID, Sequence: -1})
		}
		return nil
	})
	if err != nil {
		s.Errorf("a request that was cancelled as a whole: %v, want no error", err)
	}
	if err := s.b.Cancel(s.Context(), plugins.CancelRequest{ID: "never seen", Sequence: -1}); err != nil {
		s.Errorf("cancel of an unknown id: %v", err)
	}
	req = s.request("a", 1, long)
	_, err = s.trySample(req, func(e plugins.SampleEvent) error {
		if e.Prompt != nil {
			if err := s.b.DeleteAdapter(s.Context(), "a"); err != nil {
				s.Error(err)
			}
		}
		return nil
	})
	if err != nil { // all of it may have been generated before the deletion came
		s.wantKind("a sample whose adapter was deleted", err, plugins.KindNotFound)
	}
}

func (s *suite) emitError() {
	stop := errors.New("enough")
	events := 0
	_, err := s.trySample(s.request("", 2, 10), func(e plugins.SampleEvent) error {
		if events++; events == 3 {
			return stop
		}
		if events > 3 {
			s.Error("emit was called after it had failed")
		}
		return nil
	})
	if !errors.Is(err, stop) {
		s.Errorf("Sample says %v, want what emit said", err)
	}
	s.sample(s.request("", 1, 2))
}
