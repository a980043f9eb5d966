package runs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tinsmith/tinsmith/gateway/internal/history"
	"github.com/tinsmith/tinsmith/plugins"
)

// Generation is a direct sampling request. Of Request the fields ID, Adapter, Version and StopTokens are set by Generate; Seed too unless SeedGiven. What the backend says about Request.Constraint, at the start or in the middle of an
// answer, is KindInvalid and begins with "constraint".
type Generation struct {
	Owner     string
	Request   plugins.SampleRequest
	SeedGiven bool
	Stops     Stops
	// Accepted, if it is not nil, is called once the request is to wait for the backend alone: what is wrong with it by then has been found.
	Accepted func()
}

// ErrEndSequence is what emit of [Core.Generate] returns for tokens after which their sequence is to end: nothing more comes of it but its end, with the reason StopToken.
var ErrEndSequence = errors.New("end the sequence here")

// Generate samples from a target and passes on the events in order from one goroutine; sequences are cut at the token that completes a stop string (StopToken is then the
// reason). Newest versions are fixed when it starts. KindBusy when too much runs already, KindUnavailable while Config.Refuse does not want it. Another error of emit than [ErrEndSequence], or the end of ctx, frees the sequences and is returned. Nothing is
// journalled and nothing is repeated.
func (c *Core) Generate(ctx context.Context, target Target, req Generation, emit func(plugins.SampleEvent) error) (err error) {
	m := c.byName[target.ServedModel]
	if m == nil {
		return notFoundf("model %s is not served here", quote(target.Name))
	}
	if err := c.refuses(m); err != nil {
		return err
	}
	c.mu.Lock()
	if c.closing {
		c.mu.Unlock()
		return errClosing
	}
	if err := c.maySample(req.Owner); err != nil {
		c.mu.Unlock()
		return err
	}
	if !m.generating.begin(req.Owner, c.places(m), c.share) {
		n, own := m.generating.total, m.generating.owners[req.Owner]
		c.mu.Unlock()
		return refusef(KindBusy, "%s generates for %d requests already, %d of them yours; repeat a little later", m.Name, n, own)
	}
	most := int64(0) // that it may sample, where that counts
	if c.metered(req.Owner, paceSampled) != nil {
		most = int64(req.Request.NumSamples) * int64(req.Request.MaxTokens)
		c.reserve(req.Owner, most)
	}
	c.wg.Add(1) // Close waits for it; its call ends because the backend or the caller's context does
	c.mu.Unlock()
	defer c.wg.Done()
	defer func() {
		c.mu.Lock()
		m.generating.end(req.Owner)
		if most != 0 {
			c.reserve(req.Owner, -most)
		}
		c.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched := make(chan struct{})
	defer close(watched)
	go func() { // ends with this call
		select {
		case <-c.closed:
			cancel()
		case <-watched:
		}
	}()

	if _, err := c.anyBackend(ctx, m); err != nil {
		return err
	}
	vocab, limit := c.limits(m)
	r := req.Request
	n := len(r.Prompt)
	if n == 0 {
		return invalidf("prompt: must have at least one token")
	}
	if r.MaxTokens < 0 || n+r.MaxTokens > limit {
		return invalidf("Prompt length plus max_tokens exceeds the model's context window: %d prompt tokens + %d max_tokens > %d.", n, r.MaxTokens, limit)
	}
	if r.NumSamples < 1 || r.NumSamples > maxSamples {
		return invalidf("n: is %d, must be in 1 … %d", r.NumSamples, maxSamples)
	}
	var stops []string
	if r.StopTokens, stops, err = resolveStops(req.Stops, m.Model, vocab); err != nil {
		return err
	}
	if !req.SeedGiven {
		r.Seed = randomSeed()
	}
	r.Share, r.PrefixScope = c.share(req.Owner), c.prefixScope(req.Owner)
	r.ID = "generate:" + c.newID("", "", "")
	w := blame{key: sync.OnceValue(func() string { return hashGeneration(req, target) }), what: r.ID}
	c.mu.Lock()
	c.accuse(m, &w)
	c.mu.Unlock()
	b, adapter, version, release, err := c.acquireNow(ctx, m, &w, target.source, &r)
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil {
			b.slot.inquest.forget(&w)
			c.worked(b.slot)
		}
		c.clear(&w)
	}()
	if err != nil {
		return err
	}
	defer release()
	r.Adapter, r.Version = adapter, version
	if req.Accepted != nil {
		req.Accepted()
	}
	count := tokenCounter{emit: emit}
	err = c.sampleCut(ctx, b, m, r, stops, count.event)
	if plugins.KindOf(err) == plugins.KindBackendLost {
		c.awaitEnd(ctx, b)
	}
	c.countGeneration(ctx, req.Owner, target, r.ID, n, count)
	if err != nil && plugins.KindOf(err) == plugins.KindInvalid {
		return invalidf("%s", err)
	}
	return err
}

// acquireNow waits for the turn of a request and makes a source usable in the process that runs; while processes are replaced it waits.
func (c *Core) acquireNow(ctx context.Context, m *model, w *blame, src source, req *plugins.SampleRequest) (b Backend, adapter string, version int64, release func(), err error) {
	for attempt := 0; ; attempt++ {
		if b, _, err = c.place(ctx, m, func() (source, error) { return src, nil }, req, w); err != nil {
			return b, "", 0, nil, err
		}
		if err = c.take(ctx, b, w); err == nil {
			adapter, version, release, err = c.acquire(ctx, b, src)
		}
		if err == nil {
			free := release
			return b, adapter, version, func() { free(); c.leave(b, req.NumSamples) }, nil
		}
		c.mu.Lock()
		c.gave(w, err)
		c.mu.Unlock()
		c.leave(b, req.NumSamples)
		if !lost(err) {
			return b, adapter, version, release, err
		}
		if err := pause(ctx, attempt); err != nil {
			return b, "", 0, nil, err
		}
	}
}

// tokenCounter counts what passes.
type tokenCounter struct {
	emit      func(plugins.SampleEvent) error
	cached    int
	sampled   int
	started   bool
	entropies history.Entropies
}

func (k *tokenCounter) event(e plugins.SampleEvent) error {
	addEntropies(&k.entropies, e)
	switch {
	case e.Prompt != nil:
		k.cached, k.started = e.Prompt.CachedTokens, true
	case e.Tokens != nil:
		k.sampled += len(e.Tokens.Tokens)
	}
	return k.emit(e)
}

// awaitEnd waits until the core has taken note of the end of a process, so that it knows what the process had.
func (c *Core) awaitEnd(ctx context.Context, b Backend) {
	if b.Lost == nil {
		return
	}
	select {
	case <-b.Lost:
	case <-ctx.Done():
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := b.slot.current(); ok && now.BootID == b.BootID {
		c.backendEnded(b)
	}
}

// hashGeneration is equal for direct requests that ask for the same. A seed that was drawn does not count.
func hashGeneration(g Generation, target Target) string {
	var h hasher
	r := g.Request
	r.ID, r.Adapter, r.Version, r.Share, r.PrefixScope = "", "", 0, plugins.Share{}, ""
	if !g.SeedGiven {
		r.Seed = 0
	}
	var constraint plugins.Constraint
	var think plugins.ThinkRule
	if r.Constraint != nil {
		if constraint = *r.Constraint; constraint.Think != nil {
			think = *constraint.Think
		}
	}
	r.Constraint, constraint.Think = nil, nil
	h.text(g.Owner, target.ServedModel, target.RunID, target.Path, fmt.Sprint(r), fmt.Sprint(g.Stops), fmt.Sprint(constraint), fmt.Sprint(think))
	return h.sum("generate")
}
