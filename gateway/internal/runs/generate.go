package runs

import (
	"context"

	"github.com/tinsmith/tinsmith/plugins"
)

// Generation is a direct sampling request. Of Request the fields ID, Adapter, Version and StopTokens are set by Generate; Seed too unless SeedGiven.
type Generation struct {
	Owner     string
	Request   plugins.SampleRequest
	SeedGiven bool
	Stops     Stops
}

// Generate samples from a target and passes on the events in order from one goroutine; sequences are cut at the token that completes a stop string (StopToken is then the
// reason). Newest versions are fixed when it starts. KindBusy when too much runs already, KindUnavailable while Config.Refuse does not want it. An error of emit, or the end of ctx, frees the sequences and is returned. Nothing is
// journalled and nothing is repeated.
func (c *Core) Generate(ctx context.Context, target Target, req Generation, emit func(plugins.SampleEvent) error) error {
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
	if n := m.generating; n >= c.cfg.MaxRunningSample {
		c.mu.Unlock()
		return refusef(KindBusy, "%s generates for %d requests already; repeat a little later", m.Name, n)
	}
	m.generating++
	c.wg.Add(1) // Close waits for it; its call ends because the backend or the caller's context does
	c.mu.Unlock()
	defer c.wg.Done()
	defer func() {
		c.mu.Lock()
		m.generating--
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

	if _, err := c.backend(ctx, m); err != nil {
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
	var err error
	if r.StopTokens, stops, err = resolveStops(req.Stops, m.Model, vocab); err != nil {
		return err
	}
	if !req.SeedGiven {
		r.Seed = randomSeed()
	}
	r.Share = c.share(req.Owner)
	r.ID = "generate:" + c.newID("", "", "")
	b, adapter, version, release, err := c.acquireNow(ctx, m, target.source)
	if err != nil {
		return err
	}
	defer release()
	r.Adapter, r.Version = adapter, version
	count := tokenCounter{emit: emit}
	err = c.sample(ctx, b, m, r, stops, count.event)
	c.countGeneration(ctx, req.Owner, target, n, count)
	if err != nil && plugins.KindOf(err) == plugins.KindInvalid {
		return invalidf("%s", err)
	}
	return err
}

// acquireNow makes a source usable in the process that runs; while processes are replaced it waits.
func (c *Core) acquireNow(ctx context.Context, m *model, src source) (b Backend, adapter string, version int64, release func(), err error) {
	for attempt := 0; ; attempt++ {
		if b, err = c.backend(ctx, m); err != nil {
			return b, "", 0, nil, err
		}
		adapter, version, release, err = c.acquire(ctx, m, b, src)
		if err == nil || !lost(err) {
			return b, adapter, version, release, err
		}
		if err := pause(ctx, attempt); err != nil {
			return b, "", 0, nil, err
		}
	}
}

// tokenCounter counts what passes.
type tokenCounter struct {
	emit    func(plugins.SampleEvent) error
	cached  int
	sampled int
	started bool
}

func (k *tokenCounter) event(e plugins.SampleEvent) error {
	switch {
	case e.Prompt != nil:
		k.cached, k.started = e.Prompt.CachedTokens, true
	case e.Tokens != nil:
		k.sampled += len(e.Tokens.Tokens)
	}
	return k.emit(e)
}
