package plugintest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
)

// Tokens of the vocabulary of these tests that have a role; the model has 16 at least.
const (
	openToken    = 12
	closeToken   = 13
	endToken     = 14
	emptyToken   = 15
	newlineToken = 10
)

// vocabulary gives tokens of the model a meaning, that of those beyond the first 16 made of letters. The last ones have none.
func (s *suite) vocabulary() plugins.Vocabulary {
	v := plugins.Vocabulary{Ends: []int32{endToken}}
	for _, t := range []string{"a", "b", "c", "0", "1", ",", "[", "]", `"`, "ab", "\n", "0,", "<think>", "</think>", "<end>", ""} {
		v.Tokens = append(v.Tokens, []byte(t))
	}
	for i := len(v.Tokens); i < s.model.VocabSize-2; i++ {
		v.Tokens = append(v.Tokens, fmt.Appendf(nil, "%c%c%d", 'a'+i%26, 'a'+i/26%26, i))
	}
	v.Special = make([]bool, len(v.Tokens))
	v.Special[openToken], v.Special[closeToken], v.Special[endToken] = true, true, true
	return v
}

func (s *suite) setVocabulary() {
	s.Helper()
	if err := s.b.SetVocabulary(s.Context(), s.vocabulary()); err != nil {
		s.Fatalf("set vocabulary: %v", err)
	}
}

// unmasked demands that the log-probabilities of a constrained answer at temperature 1 are those of a forward pass, which knows no constraint.
func (s *suite) unmasked(r *run, req plugins.SampleRequest, out *sampled) {
	s.Helper()
	for i, tokens := range out.tokens {
		if len(tokens) == 0 {
			continue
		}
		all := append(slices.Clone(req.Prompt), tokens...)
		d := plugins.Datum{Tokens: all[:len(all)-1], Targets: all[1:], K: 1, Weights: make([]float32, len(all)-1)}
		want := r.forward(d).Logprobs[0]
		s.sameBits(fmt.Sprintf("constrained sequence %d and the trainer", i), out.logprobs[i], want[len(req.Prompt)-1:])
	}
}

// sameSampled demands that two answers are equal to the bit.
func (s *suite) sameSampled(what string, got, want *sampled) {
	s.Helper()
	for i := range want.tokens {
		if !slices.Equal(got.tokens[i], want.tokens[i]) || got.reasons[i] != want.reasons[i] {
			s.Errorf("%s: sequence %d is %v, reason %d; want %v, reason %d", what, i, got.tokens[i], got.reasons[i], want.tokens[i], want.reasons[i])
		}
		s.sameBits(what, got.logprobs[i], want.logprobs[i])
		s.sameBits(what+": of the constraint", got.left[i], want.left[i])
	}
}

// beside repeats a request among others that differ in every way and demands the same bits.
func (s *suite) beside(adapter string, req plugins.SampleRequest, want *sampled) {
	s.Helper()
	var wg sync.WaitGroup
	for i := range 4 {
		noise := s.request([]string{adapter, ""}[i%2], 1+i%3, 3+i)
		noise.Seed, noise.Temperature, noise.TopK = uint64(i), float64(i)/2, i
		if i == 3 {
			noise.Constraint = &plugins.Constraint{Excluded: []int32{1, 2, 3}}
		}
		same := req
		same.ID = s.request(adapter, 1, 1).ID
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
			s.sameSampled("among others and alone", got, want)
		})
	}
	wg.Wait()
}

// excludedTokens: they are never drawn, and nothing else is changed by that.
func (s *suite) excludedTokens() {
	r := s.create("a", allModules)
	r.train(2, s.datum(1, 8))
	free := s.request("a", 1, 8)
	free.Temperature = 0
	without := s.sample(free)
	if without.left[0] != nil {
		s.Errorf("log-probabilities of a constraint without one: %v", without.left[0])
	}
	excluded := []int32{without.tokens[0][0]} // the likeliest one
	for name, change := range map[string]func(*plugins.SampleRequest){
		"greedy":          func(q *plugins.SampleRequest) { q.Temperature = 0 },
		"sampled":         func(q *plugins.SampleRequest) { q.Temperature = 1 },
		"top-k of 1":      func(q *plugins.SampleRequest) { q.TopK = 1 },
		"top-k and top-p": func(q *plugins.SampleRequest) { q.TopK, q.TopP = 5, 0.9 },
	} {
		req := s.request("a", 3, 8)
		change(&req)
		req.Constraint = &plugins.Constraint{Excluded: excluded}
		req.TopKSampledLogprobs = 2
		out := s.sample(req)
		for i := range out.tokens {
			if slices.Contains(out.tokens[i], excluded[0]) {
				s.Errorf("%s: %v has the excluded token %d", name, out.tokens[i], excluded[0])
			}
			if len(out.left[i]) != len(out.tokens[i]) || slices.ContainsFunc(out.left[i], func(x float32) bool { return !(x <= 0) }) || out.left[i][0] == 0 {
				s.Errorf("%s: log-probabilities of what is left are %v, want one for each token, none above 0 and the first below", name, out.left[i])
			}
		}
		if out.top[0].IDs[0] != excluded[0] {
			s.Errorf("%s: the likeliest first token is %d, without the constraint %d", name, out.top[0].IDs[0], excluded[0])
		}
		s.unmasked(r, req, out)
		s.beside("a", req, out)
	}
	all := s.request("a", 1, 2)
	all.Constraint = &plugins.Constraint{}
	for i := range s.model.VocabSize {
		all.Constraint.Excluded = append(all.Constraint.Excluded, int32(i))
	}
	_, err := s.trySample(all, nil)
	s.wantInvalid("every token excluded", err, "constraint")
	one := s.request("a", 1, 3)
	one.Constraint = &plugins.Constraint{Excluded: slices.Delete(all.Constraint.Excluded, 7, 8)}
	out := s.sample(one)
	if !slices.Equal(out.tokens[0], []int32{7, 7, 7}) {
		s.Errorf("all but token 7 excluded: drew %v", out.tokens[0])
	}
	s.sameBits("with one token left", out.left[0], out.logprobs[0])
	none := s.request("a", 2, 8)
	want := s.sample(none)
	none.ID, none.Constraint = s.request("a", 1, 1).ID, &plugins.Constraint{}
	got := s.sample(none)
	for i := range got.tokens {
		s.sameBits("a constraint that forbids nothing", got.logprobs[i], want.logprobs[i])
		s.sameBits("its log-probabilities", got.left[i], make([]float32, len(got.tokens[i])))
	}
	stops := s.request("a", 1, 6)
	stops.Temperature, stops.StopTokens, stops.MinTokens = 0, []int32{excluded[0]}, 4
	stops.Constraint = &plugins.Constraint{Excluded: []int32{1}}
	if out := s.sample(stops); slices.Contains(out.tokens[0][:4], excluded[0]) {
		s.Errorf("at least 4 tokens: got %v with stop token %d", out.tokens[0], excluded[0])
	}
}

// thinkRule is a rule over the vocabulary of these tests.
func thinkRule(budget int) *plugins.ThinkRule {
	return &plugins.ThinkRule{Open: []int32{openToken}, Close: []int32{closeToken}, Forced: []int32{newlineToken, closeToken, newlineToken}, Budget: budget, Inside: true}
}

// thinking: what is thought has a budget and an end.
func (s *suite) thinking() {
	r := s.create("a", allModules)
	r.train(2, s.datum(1, 8))
	early := s.request("a", 1, 4)
	early.Constraint = &plugins.Constraint{Think: thinkRule(2)}
	_, err := s.trySample(early, nil)
	s.wantInvalid("a rule before the vocabulary is known", err, "constraint")
	s.setVocabulary()
	for _, budget := range []int{0, 1, 5} {
		req := s.request("a", 4, 10)
		req.Constraint = &plugins.Constraint{Think: thinkRule(budget), Excluded: []int32{closeToken + 3}}
		req.LogitBias = map[int32]float64{closeToken: -50, endToken: 5}
		out := s.sample(req)
		for i, tokens := range out.tokens {
			if len(tokens) != 10 || !slices.Equal(tokens[budget:budget+3], []int32{newlineToken, closeToken, newlineToken}) {
				s.Errorf("budget %d: sequence %d is %v, want the end forced after so many tokens", budget, i, tokens)
			}
			if slices.Contains(tokens[:budget], endToken) {
				s.Errorf("budget %d: sequence %d ends while it thinks: %v", budget, i, tokens)
			}
			for j := range tokens {
				forced := j >= budget && j < budget+3
				if forced && out.left[i][j] != out.logprobs[i][j] {
					s.Errorf("budget %d: forced token %d has log-probability %v, and %v of what is left", budget, j, out.logprobs[i][j], out.left[i][j])
				}
			}
		}
		s.beside("a", req, out)
		req.LogitBias = nil
		req.ID = s.request("a", 1, 1).ID
		s.unmasked(r, req, s.sample(req))
	}
	without := s.request("a", 1, 4)
	without.Constraint = &plugins.Constraint{Think: thinkRule(3)}
	without.Constraint.Think.Without = []int32{closeToken, 1}
	without.LogitBias = map[int32]float64{closeToken: 1000, 1: 1000}
	if out := s.sample(without); slices.ContainsFunc(out.tokens[0][:3], func(t int32) bool { return t == 1 || t == closeToken }) {
		s.Errorf("thinking without %v: %v", without.Constraint.Think.Without, out.tokens[0])
	}
	opened := s.request("a", 1, 8)
	opened.Constraint = &plugins.Constraint{Think: thinkRule(2)}
	opened.Constraint.Think.Inside = false
	opened.LogitBias = map[int32]float64{openToken: 1000}
	opened.Temperature = 0
	if out := s.sample(opened); !slices.Equal(out.tokens[0][:6], []int32{openToken, openToken, openToken, newlineToken, closeToken, newlineToken}) {
		s.Errorf("thinking that the sequence opens itself: %v", out.tokens[0])
	}
}

// badConstraints: each mistake is named.
func (s *suite) badConstraints() {
	vocab := int32(s.model.VocabSize)
	for name, change := range map[string]func(*plugins.Vocabulary) string{
		"no tokens": func(v *plugins.Vocabulary) string { v.Tokens, v.Special = nil, nil; return "vocabulary.tokens" },
		"too many": func(v *plugins.Vocabulary) string {
			v.Tokens, v.Special = make([][]byte, vocab+1), make([]bool, vocab+1)
			return "vocabulary.tokens"
		},
		"too few special flags": func(v *plugins.Vocabulary) string { v.Special = v.Special[1:]; return "vocabulary.special" },
		"an end out of range":   func(v *plugins.Vocabulary) string { v.Ends = []int32{vocab}; return "vocabulary.ends[0]" },
	} {
		v := s.vocabulary()
		field := change(&v)
		s.wantInvalid(name, s.b.SetVocabulary(s.Context(), v), field)
	}
	early := s.request("", 1, 4)
	early.Constraint = &plugins.Constraint{Grammar: []byte("x")}
	_, err := s.trySample(early, nil)
	s.wantInvalid("a grammar before the vocabulary is known", err, "constraint")
	s.setVocabulary()
	s.setVocabulary() // the same again
	other := s.vocabulary()
	other.Tokens[0] = []byte("z")
	s.wantInvalid("another vocabulary", s.b.SetVocabulary(s.Context(), other), "vocabulary")
	for _, c := range []struct {
		field  string
		change func(*plugins.SampleRequest)
	}{
		{"constraint.grammar", func(q *plugins.SampleRequest) { q.Constraint.Grammar = make([]byte, plugins.MaxGrammarBytes+1) }},
		{"constraint.grammar", func(q *plugins.SampleRequest) { q.Constraint.Grammar = []byte("no grammar") }},
		{"min_tokens", func(q *plugins.SampleRequest) { q.Constraint.Grammar, q.MinTokens = []byte("x"), 1 }},
		{"constraint.excluded[0]", func(q *plugins.SampleRequest) { q.Constraint.Excluded = []int32{vocab} }},
		{"constraint.excluded[1]", func(q *plugins.SampleRequest) { q.Constraint.Excluded = []int32{2, 2} }},
		{"constraint.think.open", func(q *plugins.SampleRequest) { q.Constraint.Think.Inside, q.Constraint.Think.Open = false, nil }},
		{"constraint.think.close", func(q *plugins.SampleRequest) { q.Constraint.Think.Close = nil }},
		{"constraint.think.close[0]", func(q *plugins.SampleRequest) { q.Constraint.Think.Close = []int32{-1} }},
		{"constraint.think.forced", func(q *plugins.SampleRequest) { q.Constraint.Think.Forced = []int32{1} }},
		{"constraint.think.forced", func(q *plugins.SampleRequest) { q.Constraint.Think.Forced = make([]int32, plugins.MaxThinkTokens+1) }},
		{"constraint.think.without[0]", func(q *plugins.SampleRequest) { q.Constraint.Think.Without = []int32{vocab} }},
		{"constraint.think", func(q *plugins.SampleRequest) {
			q.Constraint.Grammar, q.Constraint.Think.Forced = s.encoded(list), []int32{closeToken, 0}
		}},
		{"constraint.think.budget", func(q *plugins.SampleRequest) { q.Constraint.Think.Budget = -1 }},
		{"constraint.think.budget", func(q *plugins.SampleRequest) { q.Constraint.Think.Forced = nil }},
	} {
		req := s.request("", 1, 4)
		req.Constraint = &plugins.Constraint{Think: thinkRule(3)}
		c.change(&req)
		_, err := s.trySample(req, nil)
		s.wantInvalid("sample", err, c.field)
	}
	s.sample(s.request("", 1, 4))
}
