package cpu_test

import (
	"fmt"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// BenchmarkRouted has the products of mixtures of experts of Qwen3-30B-A3B's size (hidden 2048, width 768), of 32 of its experts: as many tokens as give each of them so many rows, and decoding of a few tokens. Shares are of the peak, and of
// the read bandwidth by the experts that are touched.
func BenchmarkRouted(b *testing.B) {
	const experts, slots, hidden, width = 32, 8, 2048, 768
	for _, dtype := range []tensor.DType{tensor.BFloat16, tensor.Float32} {
		for _, tokens := range []int{1, 8, 128, 512} {
			for _, form := range []string{"gate and up", "down", "gate transposed", "down transposed", "outer"} {
				b.Run(fmt.Sprintf("%v %d tokens %s", dtype, tokens, form), func(b *testing.B) {
					if tokens < 128 && form != "gate and up" && form != "down" {
						b.Skip("decoding has no backward pass")
					}
					d := benchmarked(b, 1)
					table, touched := d.route(b, tokens, slots, experts)
					x, rows, wide, other := d.tensor(b, tokens, hidden), d.tensor(b, tokens*slots, hidden), d.tensor(b, tokens*slots, width), d.tensor(b, tokens*slots, width)
					gate, up, down := d.stack(b, dtype, experts, width, hidden), d.stack(b, dtype, experts, width, hidden), d.stack(b, dtype, experts, hidden, width)
					whole := func(s tensor.Stack) []tensor.RoutedGroup {
						return []tensor.RoutedGroup{{To: tokens, Stack: s}}
					}
					flops, bytes := 2*float64(tokens*slots*hidden*width), 0.0
					if tokens < 128 {
						bytes = float64(touched * hidden * width * dtype.Size())
					}
					var products []tensor.RoutedProduct
					switch form {
					case "gate and up":
						products = []tensor.RoutedProduct{{Y: wide, X: x, Gathered: true, Groups: whole(gate)}, {Y: other, X: x, Gathered: true, Groups: whole(up)}}
						flops, bytes = 2*flops, 2*bytes
					case "down":
						products = []tensor.RoutedProduct{{Y: rows, X: wide, Groups: whole(down)}}
					case "gate transposed":
						products = []tensor.RoutedProduct{{Y: rows, X: wide, Transposed: true, Groups: whole(gate)}}
					case "down transposed":
						products = []tensor.RoutedProduct{{Y: wide, X: x, Gathered: true, Transposed: true, Groups: whole(down)}}
					case "outer":
						const rank = 32
						g, inner := d.tensor(b, experts*width, rank), d.tensor(b, tokens*slots, rank)
						flops = 2 * float64(tokens*slots*rank*width)
						d.run(b, d.ceilings.Float32, flops, 0, func() error {
							return d.OuterRouted(table, tensor.RoutedOuter{G: g, A: wide, B: inner, To: tokens})
						})
						return
					}
					peak := d.ceilings.Float32
					if dtype == tensor.BFloat16 {
						peak = d.ceilings.BFloat16
					}
					d.run(b, peak, flops, bytes, func() error { return d.MatMulRouted(table, products...) })
				})
			}
		}
	}
}

// route makes a table of a choice that is even: token t takes slots experts from t·slots on, and tells how many experts are touched.
func (d benchmarkDevice) route(b *testing.B, tokens, slots, experts int) (tensor.Table, int) {
	b.Helper()
	logits, choice, p := d.tensor(b, tokens, experts), d.tensor(b, tokens, slots), d.tensor(b, tokens, slots)
	values := make([]float32, tokens*experts)
	touched := map[int]bool{}
	for t := range tokens {
		for s := range slots {
			e := (t*slots + s*5) % experts
			values[t*experts+e] = float32(1 + s)
		}
		for e := range experts {
			if values[t*experts+e] > 0 {
				touched[e] = true
			}
		}
	}
	words := d.tensor(b, 1, tensor.TableWords(tokens, slots, experts))
	table := tensor.Table{Words: words, Tokens: tokens, Slots: slots, Experts: experts}
	for _, err := range []error{d.Upload(logits, values), d.Route(choice, p, logits, true), d.Dispatch(table, choice)} {
		if err != nil {
			b.Fatal(err)
		}
	}
	return table, len(touched)
}

func (d benchmarkDevice) stack(b *testing.B, t tensor.DType, experts, out, in int) tensor.Stack {
	b.Helper()
	m, err := d.NewMatrix(t, tensor.StackRows(experts, out), in)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(m.Free)
	if err := d.Repack(tensor.MatrixSource{Matrix: m, Src: d.tensor(b, m.Out(), in)}); err != nil {
		b.Fatal(err)
	}
	return tensor.NewStack(m, experts, out)
}
