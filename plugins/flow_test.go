package plugins

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// A stream that nobody reads fills what is kept of it and no more: then emit waits. Meanwhile other streams and calls on the same connection go on.
func TestStreamsThatAreNotRead(t *testing.T) {
	const streams, bytes = 100, 1 << 10
	var emitted atomic.Int64
	c, _ := connect(t, &answers{
		sample: func(ctx context.Context, r SampleRequest, emit func(SampleEvent) error) error {
			tokens := make([]int32, bytes/8)
			for i := 0; r.ID == "slow" || i < 1000; i++ {
				if err := emit(SampleEvent{Tokens: &SampledTokens{Tokens: tokens, Logprobs: make([]float32, len(tokens))}}); err != nil {
					return err
				}
				if r.ID == "slow" {
					emitted.Add(1)
				}
			}
			return nil
		},
		deleteAdapter: func(context.Context) error { return nil },
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, streams)
	for range streams {
		go func() {
			ended <- c.Sample(ctx, SampleRequest{ID: "slow"}, func(SampleEvent) error {
				<-ctx.Done()
				return ctx.Err()
			})
		}()
	}
	for last := int64(-1); last != emitted.Load() || last < streams; time.Sleep(200 * time.Millisecond) { // until they are full
		last = emitted.Load()
	}
	if n, most := emitted.Load()*bytes/streams, int64(answerWindow+128<<10); n > most {
		t.Errorf("%d bytes are kept of each stream, at most %d are meant to be", n, most)
	}
	events := 0
	if err := c.Sample(t.Context(), SampleRequest{ID: "quick"}, func(SampleEvent) error { events++; return nil }); err != nil || events != 1000 {
		t.Errorf("a stream beside them: %d events, %v", events, err)
	}
	if err := c.DeleteAdapter(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	cancel()
	for range streams {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
