package plugintest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// encoded builds a grammar.
func (s *suite) encoded(build func(*grammar.Builder) grammar.Symbol) []byte {
	s.Helper()
	b := grammar.NewBuilder(grammar.DefaultLimits())
	g, err := b.Grammar(build(b))
	if err != nil {
		s.Fatalf("grammar: %v", err)
	}
	return g.Encode()
}

// digits is one text of so many of the digits 0 and 1; high < 0 is any number from low on.
func digits(b *grammar.Builder, low, high int) grammar.Symbol {
	return b.Terminal(b.Repeat(b.Class(grammar.RuneRange{Lo: '0', Hi: '1'}), low, high))
}

// list is what the tests have sampled: one to four numbers in brackets. It ends by itself, after 17 tokens at most.
func list(b *grammar.Builder) grammar.Symbol {
	return b.Seq(b.Text("["), b.List(digits(b, 1, 3), b.Text(","), 1, 4), b.Text("]"))
}

var (
	wholeList = regexp.MustCompile(`^\[([01]{1,3},){0,3}[01]{1,3}\]$`)
	beganList = regexp.MustCompile(`^(\[([01]{1,3},){0,3}([01]{0,3}|[01]{1,3}\]))?$`) // what a list can begin with
)

const longestList = 17

// text is what tokens stand for, with special ones as they are called.
func text(v *plugins.Vocabulary, tokens []int32) (out string) {
	for _, t := range tokens {
		if int(t) < len(v.Tokens) {
			out += string(v.Tokens[t])
		}
	}
	return out
}

// lists demands that all sequences are lists, token by token of what may be drawn, and that the log-probabilities of what was left are those.
func (s *suite) lists(what string, v *plugins.Vocabulary, req plugins.SampleRequest, out *sampled) {
	s.Helper()
	for i, tokens := range out.tokens {
		if t := text(v, tokens); !wholeList.MatchString(t) || out.reasons[i] != plugins.StopComplete {
			s.Errorf("%s: sequence %d is %q, ended by reason %d; want a list that ends by itself", what, i, t, out.reasons[i])
			continue
		}
		if len(out.left[i]) != len(tokens) {
			s.Errorf("%s: %d log-probabilities of what was left of %d tokens", what, len(out.left[i]), len(tokens))
			continue
		}
		k := out.top[i].K
		for j, token := range tokens {
			if out.logprobs[i][j] > out.left[i][j] {
				s.Errorf("%s: token %d has log-probability %v, all that was left %v", what, j, out.logprobs[i][j], out.left[i][j])
			}
			if k < s.model.VocabSize {
				continue
			}
			// All tokens are there, in order of their likelihood.
			before, mass, likeliest := text(v, tokens[:j]), 0.0, int32(-1)
			for at, id := range out.top[i].IDs[j*k : (j+1)*k] {
				if int(id) >= len(v.Tokens) || len(v.Tokens[id]) == 0 || v.Special[id] || !beganList.MatchString(before+string(v.Tokens[id])) {
					continue
				}
				mass += math.Exp(float64(out.top[i].Logprobs[j*k+at]))
				if likeliest < 0 {
					likeliest = id
				}
			}
			if diff := math.Abs(math.Log(mass) - float64(out.left[i][j])); diff > 1e-4*max(1, math.Abs(math.Log(mass))) {
				s.Errorf("%s: the log-probability of all that was left for token %d is %v, want %v", what, j, out.left[i][j], math.Log(mass))
			}
			if (req.Temperature == 0 || req.TopK == 1) && token != likeliest {
				s.Errorf("%s: token %d is %d, the likeliest that is allowed is %d", what, j, token, likeliest)
			}
		}
	}
}

// grammars: what is sampled is in the language, whatever else was asked, with the log-probabilities of the whole distribution.
func (s *suite) grammars() {
	r := s.create("a", allModules)
	r.train(2, s.datum(1, 8))
	s.setVocabulary()
	v := s.vocabulary()
	constraint := &plugins.Constraint{Grammar: s.encoded(list)}
	for _, c := range []struct {
		name   string
		change func(*plugins.SampleRequest)
	}{
		{"greedy", func(q *plugins.SampleRequest) { q.Temperature = 0 }},
		{"temperature 0.7", func(q *plugins.SampleRequest) { q.Temperature = 0.7 }},
		{"temperature 1", func(*plugins.SampleRequest) {}},
		{"temperature 2", func(q *plugins.SampleRequest) { q.Temperature = 2 }},
		{"top-k of 1", func(q *plugins.SampleRequest) { q.TopK = 1 }},
		{"top-k", func(q *plugins.SampleRequest) { q.TopK = 2 }},
		{"top-p", func(q *plugins.SampleRequest) { q.TopP, q.Temperature = 0.5, 0.7 }},
		{"min-p", func(q *plugins.SampleRequest) { q.MinP = 0.5 }},
		{"all of them", func(q *plugins.SampleRequest) { q.TopK, q.TopP, q.MinP, q.Temperature = 3, 0.9, 0.1, 2 }},
		{"penalties", func(q *plugins.SampleRequest) { q.FrequencyPenalty, q.RepetitionPenalty = 1, 1.5 }},
		{"a bias for what is forbidden", func(q *plugins.SampleRequest) { q.LogitBias = map[int32]float64{1: 100, endToken: 100} }},
	} {
		req := s.request("a", 4, longestList)
		req.Constraint, req.StopTokens = constraint, []int32{endToken}
		if s.model.VocabSize <= plugins.MaxTopLogprobs {
			req.TopKSampledLogprobs = s.model.VocabSize
		}
		c.change(&req)
		out := s.sample(req)
		s.lists(c.name, &v, req, out)
		if (req.Temperature == 1 || req.Temperature == 0) && req.FrequencyPenalty == 0 && req.LogitBias == nil {
			s.unmasked(r, req, out)
		}
		s.beside("a", req, out)
		one := req
		one.ID, one.NumSamples = s.request("a", 1, 1).ID, 1
		if got := s.sample(one).tokens[0]; !slices.Equal(got, out.tokens[0]) {
			s.Errorf("%s: one sample is %v, the first of four is %v", c.name, got, out.tokens[0])
		}
		whole := req
		whole.ID, whole.AtEnd = s.request("a", 1, 1).ID, true
		s.sameSampled(c.name+", sent at its end", s.sample(whole), out)
	}
	free := s.request("a", 2, 8)
	want := s.sample(free)
	free.ID, free.Constraint = s.request("a", 1, 1).ID, &plugins.Constraint{Grammar: s.encoded(func(b *grammar.Builder) grammar.Symbol { return digits(b, 8, 8) })}
	s.sample(free)
	free.ID, free.Constraint = s.request("a", 1, 1).ID, nil
	for i, tokens := range s.sample(free).tokens {
		if !slices.Equal(tokens, want.tokens[i]) {
			s.Errorf("after a constrained request sequence %d without a constraint is %v, before %v", i, tokens, want.tokens[i])
		}
	}
}

// grammarEnds: how constrained sequences end.
func (s *suite) grammarEnds() {
	s.create("a", allModules)
	s.setVocabulary()
	v := s.vocabulary()
	open := s.encoded(func(b *grammar.Builder) grammar.Symbol { return digits(b, 2, -1) })
	number := regexp.MustCompile(`^[01]{2,}$`)
	sample := func(change func(*plugins.SampleRequest)) *sampled {
		s.Helper()
		req := s.request("a", 2, 8)
		req.Constraint = &plugins.Constraint{Grammar: open}
		change(&req)
		return s.sample(req)
	}
	for name, stops := range map[string][]int32{"that stops": {endToken}, "that is no stop token": nil} {
		out := sample(func(q *plugins.SampleRequest) { q.StopTokens, q.LogitBias = stops, map[int32]float64{endToken: 1000} })
		for i, tokens := range out.tokens {
			if len(tokens) != 3 || tokens[2] != endToken || out.reasons[i] != plugins.StopToken || !number.MatchString(text(&v, tokens[:2])) {
				s.Errorf("an end token %s: %v, reason %d; want it as soon as the text may end", name, tokens, out.reasons[i])
			}
		}
	}
	out := sample(func(q *plugins.SampleRequest) {
		q.StopTokens, q.LogitBias = []int32{endToken}, map[int32]float64{endToken: -1000}
	})
	for i, tokens := range out.tokens {
		if len(tokens) != 8 || out.reasons[i] != plugins.StopLength || !number.MatchString(text(&v, tokens)) {
			s.Errorf("a text that goes on: %v, reason %d", tokens, out.reasons[i])
		}
	}
	out = sample(func(q *plugins.SampleRequest) { q.StopTokens, q.LogitBias = []int32{2}, map[int32]float64{2: 1000} })
	if !slices.ContainsFunc(out.tokens[0], func(t int32) bool { return t == 2 }) || len(out.tokens[0]) != 3 || out.reasons[0] != plugins.StopToken {
		s.Errorf("a stop token that the grammar has not: %v, reason %d; want it as soon as the text may end", out.tokens[0], out.reasons[0])
	}
	out = sample(func(q *plugins.SampleRequest) { q.StopTokens, q.LogitBias = []int32{3}, map[int32]float64{3: 1000} })
	if !slices.Equal(out.tokens[0], []int32{3}) || out.reasons[0] != plugins.StopToken {
		s.Errorf("a stop token that the grammar has: %v, reason %d", out.tokens[0], out.reasons[0])
	}
	out = sample(func(q *plugins.SampleRequest) {
		q.Constraint = &plugins.Constraint{Grammar: open, Excluded: []int32{4}}
	})
	if slices.ContainsFunc(out.tokens[0], func(t int32) bool { return t != 3 && t != endToken }) {
		s.Errorf("zeros only: %v", out.tokens[0])
	}
	out = sample(func(q *plugins.SampleRequest) {
		q.Constraint = &plugins.Constraint{Grammar: s.encoded(func(b *grammar.Builder) grammar.Symbol { return b.Seq() })}
	})
	if len(out.tokens[0]) != 0 || out.reasons[0] != plugins.StopComplete || out.prompt == nil {
		s.Errorf("nothing but the empty text: %v, reason %d", out.tokens[0], out.reasons[0])
	}
	dead := s.request("a", 1, 8)
	dead.Constraint = &plugins.Constraint{Grammar: s.encoded(func(b *grammar.Builder) grammar.Symbol { return b.Text("0110") }), Excluded: []int32{4}}
	_, err := s.trySample(dead, nil)
	s.wantInvalid("a grammar with no token left", err, "constraint")
	good := s.request("a", 3, longestList)
	good.Constraint = &plugins.Constraint{Grammar: s.encoded(list)}
	want := s.sample(good)
	var wg sync.WaitGroup
	for range 3 { // what fails fails alone
		bad, same := dead, good
		bad.ID, same.ID = s.request("a", 1, 1).ID, s.request("a", 1, 1).ID
		wg.Go(func() {
			_, err := s.trySample(bad, nil)
			s.wantInvalid("a grammar with no token left, among others", err, "constraint")
		})
		wg.Go(func() {
			got, err := s.trySample(same, nil)
			if err != nil {
				s.Errorf("beside one that fails: %v", err)
				return
			}
			s.sameSampled("beside one that fails", got, want)
		})
	}
	wg.Wait()
	s.thinkFirst(&v)
	long := s.request("a", 3, min(s.model.MaxContextLength-8, 200))
	long.Constraint = &plugins.Constraint{Grammar: s.encoded(func(b *grammar.Builder) grammar.Symbol { return digits(b, 1000, -1) })}
	seen := 0
	out, err = s.trySample(long, func(e plugins.SampleEvent) error {
		if e.Tokens != nil && e.Tokens.Sequence == 1 {
			if seen++; seen == 2 {
				return s.b.Cancel(s.Context(), plugins.CancelRequest{ID: long.ID, Sequence: 1})
			}
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
	for i, reason := range out.reasons {
		if i == 1 && !(reason == plugins.StopCancelled || len(out.tokens[i]) == long.MaxTokens) || i != 1 && (reason != plugins.StopLength || len(out.tokens[i]) != long.MaxTokens) {
			s.Errorf("with sequence 1 cancelled, sequence %d ended with reason %d after %d of %d tokens", i, reason, len(out.tokens[i]), long.MaxTokens)
		}
	}
}

// thinkFirst: the grammar begins behind the thinking.
func (s *suite) thinkFirst(v *plugins.Vocabulary) {
	s.Helper()
	constraint := &plugins.Constraint{Grammar: s.encoded(list), Think: thinkRule(2)}
	forced := s.request("a", 3, 18)
	forced.Constraint = constraint
	forced.LogitBias = map[int32]float64{closeToken: -1000, newlineToken: -1000, 7: 2}
	for i, tokens := range s.sample(forced).tokens {
		if len(tokens) < 6 || !slices.Equal(tokens[2:5], constraint.Think.Forced) || !beganList.MatchString(text(v, tokens[5:])) {
			s.Errorf("a list behind thinking whose budget is used up: sequence %d is %q", i, text(v, tokens))
		}
	}
	early := s.request("a", 3, 18)
	early.Constraint = constraint
	early.LogitBias = map[int32]float64{closeToken: 1000, newlineToken: 50, 7: 2}
	for i, tokens := range s.sample(early).tokens {
		if len(tokens) < 4 || !slices.Equal(tokens[:3], []int32{closeToken, newlineToken, newlineToken}) || !beganList.MatchString(text(v, tokens[3:])) {
			s.Errorf("a list behind thinking that has ended: sequence %d is %q", i, text(v, tokens))
		}
	}
	opened := *constraint.Think
	opened.Inside = false
	for open, bias := range map[bool]float64{true: 1000, false: -1000} {
		req := s.request("a", 3, 18)
		req.Constraint = &plugins.Constraint{Grammar: constraint.Grammar, Think: &opened}
		req.LogitBias = map[int32]float64{openToken: bias, closeToken: -1000, newlineToken: -1000, 7: 2}
		for i, tokens := range s.sample(req).tokens {
			answer := tokens
			if open {
				if len(tokens) < 7 || tokens[0] != openToken || !slices.Equal(tokens[3:6], opened.Forced) {
					s.Errorf("thinking that is opened: sequence %d is %q", i, text(v, tokens))
					continue
				}
				answer = tokens[6:]
			}
			if !beganList.MatchString(text(v, answer)) {
				s.Errorf("opened %v: sequence %d is %s", open, i, fmt.Sprintf("%q", text(v, tokens)))
			}
		}
	}
}
