package plugintest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/plugins"
)

// long is how many tokens a sequence has that takes much longer than a few.
func (s *suite) long() int { return min(s.model.MaxContextLength-8, max(60, 3*s.places)) }

// crowd has one key ask for more long sequences than are decoded at once. Another key's short sample is done while none of them has ended, and the first
// one's tokens are what they are without it.
func (s *suite) crowd() {
	samples := s.places + 2 + s.places/4
	long := s.request("", samples, s.long())
	long.Share = plugins.Share{Key: "crowd"}
	want := s.sample(long)
	again := long
	again.ID += " again"
	begun := make(chan struct{})
	var got *sampled
	var done sync.WaitGroup
	done.Go(func() {
		begin := sync.OnceFunc(func() { close(begun) })
		defer begin()
		running := map[int]bool{}
		out, err := s.trySample(again, func(e plugins.SampleEvent) error {
			if s.late && e.Prompt != nil {
				s.Log("this backend sends tokens at the end of their sequence: the crowd counts as running from its prompt on")
				begin()
			}
			if e.Tokens != nil {
				if running[e.Tokens.Sequence] = true; len(running) == s.places { // no place is free
					begin()
				}
			}
			return nil
		})
		if err != nil {
			s.Error(err)
		}
		got = out
	})
	<-begun
	short := s.request("", 1, 4)
	short.Share = plugins.Share{Key: "neighbour"}
	if _, err := s.trySample(short, nil); err != nil {
		s.Error(err)
	}
	// Cancelling the crowd's first sequence tells whether it was still under way.
	if err := s.b.Cancel(s.Context(), plugins.CancelRequest{ID: again.ID, Sequence: 0}); err != nil {
		s.Error(err)
	}
	done.Wait()
	if got.reasons[0] != plugins.StopCancelled {
		s.Error("the short sample of one key waited for the end of a long one of another")
	}
	for i := range samples {
		if n := len(got.tokens[0]); i == 0 { // as far as it came
			want.tokens[0], want.logprobs[0] = want.tokens[0][:n], want.logprobs[0][:n]
		}
		if !slices.Equal(got.tokens[i], want.tokens[i]) {
			s.Errorf("sequence %d has other tokens beside a neighbour", i)
		}
		s.sameBits(fmt.Sprint("sequence ", i), got.logprobs[i], want.logprobs[i])
	}
}

// slowReaders has many streams that nobody reads, and another one that goes on beside them.
func (s *suite) slowReaders() {
	streams := s.places + 6
	ctx, cancel := context.WithCancel(s.Context())
	var reading, done sync.WaitGroup
	reading.Add(streams)
	for range streams {
		req := s.request("", 1, s.long())
		req.Share = plugins.Share{Key: "slow"}
		done.Go(func() {
			first := sync.OnceFunc(reading.Done)
			defer first()
			err := s.b.Sample(ctx, req, func(plugins.SampleEvent) error {
				first()
				<-ctx.Done()
				return ctx.Err()
			})
			if err == nil {
				s.Error("a stream ended that was not read")
			}
		})
	}
	reading.Wait()
	for _, key := range []string{"slow", "other"} {
		req := s.request("", 2, 8)
		req.Share = plugins.Share{Key: key}
		if _, err := s.trySample(req, nil); err != nil {
			s.Error(err)
		}
	}
	cancel()
	done.Wait()
}

// prefixScopes has the same prompt in two scopes: nothing tells the second that there was a first.
func (s *suite) prefixScopes() {
	prompt := s.datum(5, s.model.MaxContextLength-4).Tokens
	cached := func(scope string) int {
		req := s.request("", 1, 2)
		req.Prompt, req.PrefixScope = prompt, scope
		return s.sample(req).prompt.CachedTokens
	}
	for _, scope := range []string{"", "ann", "bob"} {
		if n := cached(scope); n != 0 {
			s.Errorf("scope %q: %d tokens were taken from another scope's prompts", scope, n)
		}
		cached(scope) // it may have some now
	}
}
