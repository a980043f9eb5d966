package model_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
)

// A workspace that has reserved what was measured takes no more memory in a pass of as many tokens, and not much less would do.
func TestMeasureTraining(t *testing.T) {
	for name, dir := range lawful(t, "llama", "qwen3", "smollm3", "qwen3.5", "qwen3.5-moe", "gpt-oss") {
		for _, recompute := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " recompute ", recompute), func(t *testing.T) {
				b := newBench(t, dir, 0, 1)
				w := b.randomAdapter(8, 1, true, true, true)
				random := rand.New(rand.NewPCG(1, 1))
				const tokens, length = 2000, 50
				var examples []model.Example
				gradient := b.gradient(w.Layout())
				for range tokens / length {
					weights := make([]float32, length)
					for i := length / 4; i < length; i++ {
						weights[i] = 1
					}
					e := b.example(w, b.randomTokens(random, length), b.randomTokens(random, length), weights)
					e.Gradient = gradient
					examples = append(examples, e)
				}
				need, err := b.MeasureTraining(tokens, w.Layout(), recompute)
				if err != nil {
					t.Fatal(err)
				}
				if err := b.work.Reserve(need); err != nil {
					t.Fatal(err)
				}
				var asked int64
				b.work.Bound(func(n int64) error { asked += max(0, n); return nil })
				b.train(model.TrainOptions{Recompute: recompute}, examples...)
				if asked != 0 {
					t.Errorf("%+v was reserved and %d bytes more were taken", need, asked)
				}
				refused := errors.New("no more")
				const least = 4 << 20 // of one arena
				checked := 0
				for _, part := range []model.Memory{{Scratch: need.Scratch * 8 / 10, Kept: need.Kept}, {Scratch: need.Scratch, Kept: need.Kept * 8 / 10}} {
					if part.Scratch <= least && part.Scratch < need.Scratch || part.Kept <= least && part.Kept < need.Kept {
						continue
					}
					checked++
					b.work.Bound(nil)
					b.work.Free()
					if err := b.work.Reserve(part); err != nil {
						t.Fatal(err)
					}
					b.work.Bound(func(n int64) error {
						if n > 0 {
							return refused
						}
						return nil
					})
					if _, err := b.Train(b.work, b.pages, examples, model.TrainOptions{Recompute: recompute}); !errors.Is(err, refused) {
						t.Errorf("a pass for which %+v was measured went through with %+v: %v", need, part, err)
					}
				}
				if checked == 0 {
					t.Error("the pass is too small for the check")
				}
			})
		}
	}
}
