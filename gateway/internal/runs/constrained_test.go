package runs

import (
	"slices"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// A constraint goes to the backend with its request, what comes back of it is cut with the tokens at a stop string, and what is wrong with it is the client's.
func TestGenerateConstrained(t *testing.T) {
	w := newWorld(t, nil)
	target, err := w.Resolve(t.Context(), owner, base)
	w.ok(err)
	generate := func(c *plugins.Constraint, stops Stops) (tokens []int32, left []float32, err error) {
		err = w.Generate(t.Context(), target, Generation{Owner: owner, SeedGiven: true, Stops: stops, Request: plugins.SampleRequest{
			Prompt: []int32{2, 3}, NumSamples: 1, MaxTokens: 6, Temperature: 1, TopP: 1, Seed: 5, RepetitionPenalty: 1, Constraint: c,
		}}, func(e plugins.SampleEvent) error {
			if e.Tokens != nil {
				tokens, left = append(tokens, e.Tokens.Tokens...), append(left, e.Tokens.ConstraintLogprobs...)
			}
			return nil
		})
		return tokens, left, err
	}
	none := Stops{Given: true}
	free, left, err := generate(nil, none)
	w.ok(err)
	if left != nil {
		t.Errorf("log-probabilities of what was left without a constraint: %v", left)
	}
	without := &plugins.Constraint{Excluded: []int32{free[0]}}
	tokens, left, err := generate(without, none)
	w.ok(err)
	if slices.Contains(tokens, free[0]) || len(left) != len(tokens) {
		t.Errorf("drew %v with %v without token %d", tokens, left, free[0])
	}
	cut, left, err := generate(without, Stops{Given: true, Strings: []string{string('A' + tokens[2])}})
	w.ok(err)
	if at := slices.Index(tokens, tokens[2]) + 1; !slices.Equal(cut, tokens[:at]) || len(left) != at {
		t.Errorf("up to a stop string: %v with %v; without it %v", cut, left, tokens)
	}
	_, _, err = generate(&plugins.Constraint{Grammar: []byte("x")}, none)
	w.refused(err, KindInvalid, "constraint: needs the model's vocabulary")
	_, _, err = generate(&plugins.Constraint{Excluded: []int32{1, 1}}, none)
	w.refused(err, KindInvalid, "constraint.excluded[1]")
}

// Requests that differ in their constraints only are not the same one, and those with the same constraint are.
func TestHashOfConstraints(t *testing.T) {
	of := func(c *plugins.Constraint) string {
		return hashGeneration(Generation{Owner: owner, Request: plugins.SampleRequest{Prompt: []int32{1}, Constraint: c}}, Target{})
	}
	seen := map[string]int{}
	all := []func() *plugins.Constraint{
		func() *plugins.Constraint { return nil },
		func() *plugins.Constraint { return &plugins.Constraint{Grammar: []byte{1}} },
		func() *plugins.Constraint { return &plugins.Constraint{Grammar: []byte{2}} },
		func() *plugins.Constraint { return &plugins.Constraint{Excluded: []int32{1}} },
		func() *plugins.Constraint { return &plugins.Constraint{Think: &plugins.ThinkRule{Close: []int32{1}}} },
		func() *plugins.Constraint {
			return &plugins.Constraint{Think: &plugins.ThinkRule{Close: []int32{1}, Forced: []int32{1}, Budget: 3}}
		},
		func() *plugins.Constraint {
			return &plugins.Constraint{Think: &plugins.ThinkRule{Close: []int32{1}, Forced: []int32{1}, Budget: 4}}
		},
	}
	for i, c := range all {
		h := of(c())
		if h != of(c()) {
			t.Errorf("constraint %d has two hashes", i)
		}
		if j, ok := seen[h]; ok {
			t.Errorf("constraints %d and %d have the same hash", i, j)
		}
		seen[h] = i
	}
}
