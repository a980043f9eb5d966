// Package constraint follows sequences under a plugins.Constraint: it says which tokens may come next, and when a sequence has ended. It is what every backend that keeps the contract would else write again: how a grammar, thinking,
// tokens that are excluded and stop tokens go together. What it says follows from the constraint, the vocabulary and the tokens of the sequence alone.
//
// It knows tokens and the grammar engine. It must not know models, devices or how tokens are drawn.
package constraint

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// Compiler prepares the constraints of one model's requests. Its methods may be called concurrently.
type Compiler struct {
	model plugins.ModelInfo
	turns chan struct{} // who may compile

	setting    sync.Mutex // held while a vocabulary is prepared; taken before mu
	mu         sync.Mutex
	vocabulary *vocabulary
}

// NewCompiler makes a compiler for a loaded model, without a vocabulary.
func NewCompiler(model *plugins.ModelInfo) *Compiler {
	return &Compiler{model: *model, turns: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// vocabulary is what all constraints of a model share. It is not changed, but for what is in the cache.
type vocabulary struct {
	from     plugins.Vocabulary
	thoughts []uint64 // a mask: tokens that stand for something and end nothing
	ends     []int32  // sorted
	grammars *grammar.Cache
}

// SetVocabulary is plugins.Backend's.
func (c *Compiler) SetVocabulary(v plugins.Vocabulary) error {
	if err := v.Validate(&c.model); err != nil {
		return err
	}
	c.setting.Lock()
	defer c.setting.Unlock()
	if old := c.known(); old != nil {
		if !slices.EqualFunc(old.from.Tokens, v.Tokens, bytes.Equal) || !slices.Equal(old.from.Special, v.Special) || !slices.Equal(old.from.Ends, v.Ends) {
			return plugins.Invalidf("vocabulary", "another one was set before")
		}
		return nil
	}
	tokens, err := grammar.NewTokens(grammar.Vocabulary{Tokens: v.Tokens, Special: v.Special, Ends: v.Ends})
	if err != nil {
		return plugins.Invalidf("vocabulary", "%v", err)
	}
	made := &vocabulary{from: v, thoughts: make([]uint64, Words(c.model.VocabSize)), ends: slices.Sorted(slices.Values(v.Ends)), grammars: grammar.NewCache(tokens, grammar.DefaultLimits(), grammar.CacheBytes)}
	for i, t := range v.Tokens {
		if len(t) > 0 && !made.isEnd(int32(i)) {
			set(made.thoughts, int32(i))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vocabulary = made
	return nil
}

func (v *vocabulary) isEnd(token int32) bool {
	_, end := slices.BinarySearch(v.ends, token)
	return end
}

func (c *Compiler) known() *vocabulary {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.vocabulary
}

// Compile prepares the constraint of a request that was validated; nil without one. Few are compiled at once, the others wait; the end of ctx ends that with its error.
func (c *Compiler) Compile(ctx context.Context, req *plugins.SampleRequest) (*Compiled, error) {
	from := req.Constraint
	if from == nil {
		return nil, nil
	}
	out := &Compiled{size: c.model.VocabSize, excluded: slices.Clone(from.Excluded), stops: slices.Sorted(slices.Values(req.StopTokens)), minTokens: req.MinTokens}
	if len(from.Grammar) == 0 && from.Think == nil {
		return out, nil
	}
	if out.vocabulary = c.known(); out.vocabulary == nil {
		return nil, plugins.Invalidf("constraint", "needs the model's vocabulary, and this backend was told none")
	}
	if t := from.Think; t != nil {
		out.think = &plugins.ThinkRule{
			Open: slices.Clone(t.Open), Close: slices.Clone(t.Close), Forced: slices.Clone(t.Forced), Budget: t.Budget, Inside: t.Inside, Without: slices.Clone(t.Without),
		}
	}
	if len(from.Grammar) == 0 {
		return out, nil
	}
	if out.grammar = out.vocabulary.grammars.Known(from.Grammar); out.grammar == nil {
		if err := c.decode(ctx, out, from.Grammar); err != nil {
			return nil, err
		}
	}
	if _, err := out.follow(); err != nil {
		return nil, plugins.Invalidf("constraint.think", "%v", err)
	}
	return out, nil
}

// decode compiles the grammar of a constraint, when it is its turn.
func (c *Compiler) decode(ctx context.Context, out *Compiled, encoded []byte) (err error) {
	select {
	case c.turns <- struct{}{}:
		defer func() { <-c.turns }()
	case <-ctx.Done():
		return plugins.Cancelled(ctx.Err())
	}
	out.grammar, err = out.vocabulary.grammars.Decode(ctx, encoded)
	switch {
	case err != nil && ctx.Err() != nil:
		return plugins.Cancelled(ctx.Err())
	case err != nil:
		return plugins.Invalidf("constraint.grammar", "%v", err)
	}
	return nil
}

// Compiled is a constraint of one request, for all its sequences. It is never changed.
type Compiled struct {
	size       int               // of the model's vocabulary
	vocabulary *vocabulary       // nil if it is not needed
	grammar    *grammar.Compiled // nil: anything
	think      *plugins.ThinkRule
	excluded   []int32
	stops      []int32 // sorted
	minTokens  int
}

// follower is a grammar's Matcher or Thinker.
type follower interface {
	Mask(bits []uint64) error
	Accept(token int32) error
	MayEnd() bool
	Finished() bool
}

// follow begins with the grammar, which there is.
func (c *Compiled) follow() (follower, error) {
	t := c.think
	if t == nil {
		return c.grammar.NewMatcher(), nil
	}
	budget := -1
	if len(t.Forced) > 0 {
		budget = t.Budget
	}
	return c.grammar.NewThinker(grammar.ThinkRule{Open: t.Open, Close: t.Close, Forced: t.Forced, Budget: budget, Inside: t.Inside, Without: t.Without})
}

// End says whether a sequence goes on.
type End int

// What a token does to its sequence.
const (
	GoesOn   End = iota
	Stopped      // it was a stop token or an end token
	Complete     // the text is complete, and nothing can follow
)

// State is one sequence under a constraint. It belongs to one goroutine at a time.
type State struct {
	of       *Compiled
	drawn    int
	grammar  follower // nil without one
	thinking thinking // without a grammar
}

// Start is a sequence without tokens. Complete says that it can have none.
func (c *Compiled) Start() (*State, End) {
	s := &State{of: c}
	if c.grammar == nil {
		s.thinking.begin(c.think)
		return s, GoesOn
	}
	s.grammar, _ = c.follow() // Compile has seen that it can be done
	return s, s.end()
}

func (s *State) end() End {
	if s.grammar.Finished() {
		return Complete
	}
	return GoesOn
}

// Mask writes a bit for every token of the model's vocabulary: whether it may come next, token 0 in the lowest bit of the first word. all tells that each may. The error is what the request fails with. It changes nothing.
func (s *State) Mask(bits []uint64) (all bool, err error) {
	c := s.of
	bits = bits[:Words(c.size)]
	if err := s.allow(bits); err != nil {
		return false, s.failed(err)
	}
	for _, t := range c.excluded {
		unset(bits, t)
	}
	if s.drawn < c.minTokens {
		for _, t := range c.stops {
			unset(bits, t)
		}
	}
	last := ^uint64(0) >> ((64 - c.size%64) % 64) // what of the last word stands for tokens
	bits[len(bits)-1] &= last
	all, none := bits[len(bits)-1] == last, bits[len(bits)-1] == 0
	for _, w := range bits[:len(bits)-1] {
		all, none = all && w == ^uint64(0), none && w == 0
	}
	if none {
		return false, s.failed(errNothing)
	}
	return all, nil
}

var errNothing = errors.New("no token is allowed here")

func (s *State) failed(err error) error {
	return plugins.Invalidf("constraint", "after %d tokens: %v", s.drawn, err)
}

// allow is Mask before anything is excluded.
func (s *State) allow(bits []uint64) error {
	c := s.of
	if s.grammar == nil {
		s.thinking.allow(c, bits)
		return nil
	}
	words := Words(len(c.vocabulary.from.Tokens))
	if err := s.grammar.Mask(bits[:words]); err != nil {
		return err
	}
	clear(bits[words:])
	if s.grammar.MayEnd() {
		for _, t := range c.stops {
			set(bits, t)
		}
	}
	return nil
}

// Accept notes a token that was drawn, and says whether the sequence goes on. After an error, which is what the request fails with, or an end the state is of no use.
func (s *State) Accept(token int32) (End, error) {
	c := s.of
	if _, stop := slices.BinarySearch(c.stops, token); stop {
		return Stopped, nil
	}
	if s.grammar == nil {
		s.thinking.accept(c.think, token)
		s.drawn++
		return GoesOn, nil
	}
	if c.vocabulary.isEnd(token) {
		return Stopped, nil
	}
	if err := s.grammar.Accept(token); err != nil {
		return GoesOn, s.failed(err)
	}
	s.drawn++
	return s.end(), nil
}

// Words is the length of the masks of a vocabulary of so many tokens.
func Words(tokens int) int { return (tokens + 63) / 64 }

func set(bits []uint64, token int32)   { bits[token/64] |= 1 << (token % 64) }
func unset(bits []uint64, token int32) { bits[token/64] &^= 1 << (token % 64) }
