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
// reason). Newest versions are fixed when it starts. An error of emit, or the end of ctx, frees the sequences and is returned. Nothing is journalled and nothing is repeated.
func (c *Core) Generate(ctx context.Context, target Target, req Generation, emit func(plugins.SampleEvent) error) error {
	return errNotYet
}
