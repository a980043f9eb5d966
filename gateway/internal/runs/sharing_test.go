package runs

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

// While one owner has all places of the backend taken by samples that do not end, another one's sample is done.
func TestSampleOfAnotherOwnerDoesNotWait(t *testing.T) {
	release := make(chan struct{})
	w := newWorld(t, func(w *world) {
		w.config.MaxRunningSample = 4
		w.wrap = func(b plugins.Backend) plugins.Backend { return &stalled{b, owner, release} }
	})
	defer close(release)
	id := w.baseSampler(w.session(), 0)
	for i := range int64(50) {
		_, err := w.Sample(t.Context(), w.sample(id, i))
		w.ok(err)
	}
	w.eventually(func() bool { return w.models[0].samples.running == 4 })
	session, err := w.CreateSession(t.Context(), NewSession{Owner: other})
	w.ok(err)
	s, err := w.CreateSampler(t.Context(), NewSampler{Owner: other, SessionID: session.ID, BaseModel: base})
	w.ok(err)
	req := w.sample(s.ID, 0)
	req.Owner = other
	submitted, err := w.Sample(t.Context(), req)
	w.ok(err)
	out, err := w.Wait(context.WithoutCancel(t.Context()), other, submitted.RequestID, longest)
	if err != nil || out == nil || out.Sample == nil {
		t.Errorf("%+v, %v", out, err)
	}
}

// stalled is a backend that does not end the samples of an owner until it is let.
type stalled struct {
	plugins.Backend
	key     string
	release chan struct{}
}

func (h *stalled) Sample(ctx context.Context, req plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	if req.Share.Key == h.key {
		select {
		case <-h.release:
		case <-ctx.Done():
			return plugins.Cancelled(ctx.Err())
		}
	}
	return h.Backend.Sample(ctx, req, emit)
}

// remembers is a backend with a prefix cache for whole prompts.
type remembers struct {
	plugins.Backend
	mu   sync.Mutex
	seen []plugins.SampleRequest
}

func (r *remembers) Sample(ctx context.Context, req plugins.SampleRequest, emit func(plugins.SampleEvent) error) error {
	r.mu.Lock()
	known := slices.ContainsFunc(r.seen, func(before plugins.SampleRequest) bool {
		return before.PrefixScope == req.PrefixScope && before.Adapter == req.Adapter && slices.Equal(before.Prompt, req.Prompt)
	})
	r.seen = append(r.seen, req)
	r.mu.Unlock()
	return r.Backend.Sample(ctx, req, func(e plugins.SampleEvent) error {
		if e.Prompt != nil && known {
			e.Prompt.CachedTokens = len(req.Prompt) - 1
		}
		return emit(e)
	})
}

// Neither a direct request nor a sample tells of another owner's prompts, unless that is configured; one's own are computed once, whichever way they came.
func TestPrefixesAreSharedByOwner(t *testing.T) {
	for _, all := range []bool{false, true} {
		w := newWorld(t, func(w *world) {
			w.config.SharePrefixes = all
			var one remembers
			w.wrap = func(b plugins.Backend) plugins.Backend {
				if one.Backend == nil { // there is one process
					one.Backend = b
				}
				return &one
			}
		})
		ctx := t.Context()
		seq := map[string]int64{}
		samplers := map[string]string{}
		for _, name := range []string{owner, other} {
			session, err := w.CreateSession(ctx, NewSession{Owner: name})
			w.ok(err)
			s, err := w.CreateSampler(ctx, NewSampler{Owner: name, SessionID: session.ID, BaseModel: base})
			w.ok(err)
			samplers[name] = s.ID
		}
		sampled := func(name string, prompt []int32) (cached int) {
			req := w.sample(samplers[name], seq[name])
			req.Owner, req.Prompt = name, prompt
			seq[name]++
			s, err := w.Sample(ctx, req)
			w.ok(err)
			out, err := w.Wait(ctx, name, s.RequestID, longest)
			w.ok(err)
			return out.Sample.Prompt.CachedTokens
		}
		generated := func(name string, prompt []int32) (cached int) {
			target, err := w.Resolve(ctx, name, base)
			w.ok(err)
			w.ok(w.Generate(ctx, target, Generation{Owner: name, Stops: Stops{Given: true}, Request: plugins.SampleRequest{
				Prompt: prompt, NumSamples: 1, MaxTokens: 2, Temperature: 1, TopP: 1, RepetitionPenalty: 1,
			}}, func(e plugins.SampleEvent) error {
				if e.Prompt != nil {
					cached = e.Prompt.CachedTokens
				}
				return nil
			}))
			return cached
		}
		for i, ask := range []func(string, []int32) int{sampled, generated} {
			prompt := []int32{2, 3, 4, int32(i)}
			foreign := 0
			if all {
				foreign = 3
			}
			for _, c := range []struct {
				name string
				want int
			}{{owner, 0}, {owner, 3}, {other, foreign}, {other, 3}} {
				if got := ask(c.name, prompt); got != c.want {
					t.Errorf("shared between all %v, way %d: %s has %d cached tokens, want %d", all, i, c.name, got, c.want)
				}
			}
			if got := sampled(owner, prompt); got != 3 {
				t.Errorf("way %d: the other way has %d cached tokens", i, got)
			}
		}
	}
}
