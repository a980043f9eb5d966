package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/plugins"
)

// speed measures training and decoding, with one adapter and with several in the batch, and says beside it what the model of cost expects of the device.
func (b *bench) speed(ctx context.Context, found func(result)) error {
	if err := b.create(ctx, "a"); err != nil {
		return err
	}
	adapters := []string{"a"}
	one, passes, err := b.train(ctx, adapters)
	if err != nil {
		return err
	}
	expected, err := b.expect(ctx, passes)
	if err != nil {
		return err
	}
	tokens := float64(b.Sequences * b.Length)
	r := result{Shape: b.Shape.Name, What: fmt.Sprintf("forward and backward, %d sequences of %d tokens, rank %d", b.Sequences, b.Length, b.Rank),
		Goal: b.Train, Predicted: expected.training()}
	r.Measured = fmt.Sprintf("%.0f tok/s%s; %s", tokens/one.Seconds(), expected.utilization(tokens/one.Seconds()), passes)
	if b.Kernels {
		if r.Kernels, err = b.trainingKernels(ctx, expected, passes); err != nil {
			return err
		}
	}
	found(r)
	single, err := b.decode(ctx, adapters)
	if err != nil {
		return err
	}
	r = result{Shape: b.Shape.Name, What: fmt.Sprintf("decoding %d sequences after %d tokens", b.Streams, b.Context), Goal: b.Decode,
		Predicted: expected.decoding()}
	if r.Measured, err = b.decodingRate(single); err != nil {
		return err
	}
	if b.Kernels {
		if r.Kernels, err = b.decodingKernels(ctx, expected, adapters); err != nil {
			return err
		}
	}
	found(r)
	for i := 1; i < b.Adapters; i++ {
		adapters = append(adapters, fmt.Sprint("a", i))
		if err := b.create(ctx, adapters[i]); err != nil {
			return err
		}
	}
	many, with, err := b.train(ctx, adapters)
	if err != nil {
		return err
	}
	if with != passes { // what is compared is cut alike
		if one, err = b.pace(ctx, adapters[:1]); err != nil {
			return err
		}
	}
	add := func(what, measured, goal string) {
		found(result{Shape: b.Shape.Name, What: what, Measured: measured, Goal: goal})
	}
	add(fmt.Sprintf("training with %d adapters, time against one", b.Adapters), fmt.Sprintf("%.2f ×; %s", many.Seconds()/one.Seconds(), with), "1.05 ×")
	several, err := b.decode(ctx, adapters)
	if err != nil {
		return err
	}
	add(fmt.Sprintf("decoding with %d adapters, time against one", b.Adapters), fmt.Sprintf("%.2f ×", single/several), "1.05 ×")
	return nil
}

// decodingRate says how fast so many tokens a second are, and what share of the memory's speed that is. A step reads the weights once, and every sequence's
// keys and values.
func (b *bench) decodingRate(tokens float64) (string, error) {
	weights, err := b.Shape.bytes(b.Streams)
	if err != nil {
		return "", err
	}
	bytes := float64(weights + int64(b.Streams)*int64(b.Shape.positions(b.Context+b.Generated/2))*b.Shape.positionBytes())
	rate := bytes * tokens / float64(b.Streams) / 1e9
	text := fmt.Sprintf("%.0f tok/s, %.3g GB/s", tokens, rate)
	if stated := bandwidth(b.Device); stated > 0 {
		text = fmt.Sprintf("%.0f tok/s, %.0f %% of %.0f GB/s", tokens, 100*rate/stated, stated)
	}
	if b.Copies > 0 {
		text += fmt.Sprintf(", %.0f %% of the %.0f of a copy", 100*rate/b.Copies, b.Copies)
	}
	return text, nil
}

// attempts is how often decoding is tried: on a machine that is busy the first stream may end before the last one begins.
const attempts = 10

// decode gives the tokens per second of all streams while all of them decode.
func (b *bench) decode(ctx context.Context, adapters []string) (float64, error) {
	for range attempts {
		if rate, err := b.decodeOnce(ctx, adapters); err != nil || rate > 0 {
			return rate, err
		}
	}
	return 0, fmt.Errorf("%d streams never decoded at once", b.Streams)
}

// decodeOnce counts from the last stream's first token to the first one's end; it gives 0 if there is nothing between.
func (b *bench) decodeOnce(ctx context.Context, adapters []string) (float64, error) {
	var mu sync.Mutex
	var times []time.Time
	var begin, end time.Time
	err := together(b.Streams, func(i int) error {
		q := plugins.SampleRequest{ID: fmt.Sprint("stream ", i), Adapter: adapters[i%len(adapters)], Version: plugins.LatestVersion,
			Prompt: b.tokens(uint64(1000+i), b.Context), NumSamples: 1, MaxTokens: b.Generated,
			Temperature: 1, TopP: 1, RepetitionPenalty: 1, Seed: uint64(i)}
		begun := false
		return b.Sample(ctx, q, func(e plugins.SampleEvent) error {
			now := time.Now()
			mu.Lock()
			defer mu.Unlock()
			if e.Tokens != nil {
				times = append(times, slices.Repeat([]time.Time{now}, len(e.Tokens.Tokens))...)
				if !begun {
					begun, begin = true, now
				}
			}
			if e.Finished != nil && end.IsZero() {
				end = now
			}
			return nil
		})
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for _, t := range times {
		if t.After(begin) && !t.After(end) {
			n++
		}
	}
	if n == 0 {
		return 0, nil
	}
	return float64(n) / end.Sub(begin).Seconds(), nil
}
