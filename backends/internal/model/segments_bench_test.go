package model_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
)

// chains is a device that is said to know no segments, so that every sum of a product is one chain.
type chains struct{ tensor.Device }

func (chains) Segmented() bool { return false }

// BenchmarkSegments tells what it costs that one device sums in segments, as ranks do, instead of in chains: the processor time of both, turn about in one process, for training passes of 128 tokens and decoding of one sequence and of
// eight, with an adapter of rank 32.
//
//	go test -bench Segments -benchtime 5x -cpu 1 -run none ./backends/internal/model
func BenchmarkSegments(b *testing.B) {
	const tokens = 128
	random := b.TempDir()
	if err := writeRandomModelOf(random, 2, 16384); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct{ name, dir string }{{"built-in model", "../../../configs/models/tiny-chat"}, {"two layers of Qwen3-0.6B", random}} {
		for _, d := range []tensor.DType{tensor.Float32, tensor.BFloat16} {
			b.Run(fmt.Sprintf("%s/%v", c.name, d), func(b *testing.B) {
				var both [2]*benchmarked // chains, segments
				for i := range both {
					device, err := cpu.New(cpu.Options{Threads: runtime.GOMAXPROCS(0)})
					if err != nil {
						b.Fatal(err)
					}
					defer device.Close()
					if i == 0 {
						device = chains{device}
					}
					m, err := model.Load(context.Background(), c.dir, device, architectures.All(), model.LoadOptions{DType: d})
					if err != nil {
						b.Fatal(err)
					}
					defer m.Free()
					q := &benchmarked{m: m, dtype: d, work: m.NewWorkspace(), tokens: make([]int32, benchmarkTokens)}
					defer q.work.Free()
					if q.pages, err = m.NewPages(8 * (decodeContext/tensor.PageSize + 1)); err != nil {
						b.Fatal(err)
					}
					defer q.pages.Free()
					for i := range q.tokens {
						q.tokens[i] = int32(i * 7919 % m.Config.VocabSize)
					}
					q.adapter(b, 0)
					defer q.adapters[0].Free()
					both[i] = q
				}
				b.Run("train", func(b *testing.B) {
					both[0].compare(b, both[0].trainOf(b, tokens), both[1].trainOf(b, tokens))
				})
				for _, sequences := range []int{1, 8} {
					b.Run(fmt.Sprintf("decode/sequences=%d", sequences), func(b *testing.B) {
						steps := func(q *benchmarked) func() {
							step := q.decode(b, sequences, func(int) *lora.Weights { return q.adapters[0] })
							return func() {
								for range 10 {
									step()
								}
							}
						}
						both[0].compare(b, steps(both[0]), steps(both[1]))
					})
				}
			})
		}
	}
}

// trainOf is train of one sequence of so many tokens.
func (q *benchmarked) trainOf(b *testing.B, tokens int) func() {
	b.Helper()
	short := *q
	short.tokens = q.tokens[:tokens]
	return short.trainTokens(b, tokens, 1, false, false)
}
