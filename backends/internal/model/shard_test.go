package model_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
)

// counting is a device that counts what has been taken of it.
type counting struct {
	tensor.Device
	bytes  int64
	copied int64 // elements of matrices
}

func (c *counting) StartCopies(copies []tensor.MatrixCopy) (func() error, error) {
	for _, j := range copies {
		c.copied += int64(j.Src.Out() * j.Src.In())
	}
	return c.Device.StartCopies(copies)
}

func (c *counting) Alloc(d tensor.DType, rows, cols int) (tensor.Tensor, error) {
	t, err := c.Device.Alloc(d, rows, cols)
	if err == nil {
		c.bytes += int64(t.Buffer.Bytes)
	}
	return t, err
}

func (c *counting) NewMatrix(d tensor.DType, out, in int) (tensor.Matrix, error) {
	m, err := c.Device.NewMatrix(d, out, in)
	if err == nil {
		c.bytes += int64(m.Bytes())
	}
	return m, err
}

// shards loads a model for so many copies that share its weights out, each on a device that counts.
func shards(t *testing.T, dir string, o model.LoadOptions, n int) []*bench {
	t.Helper()
	var devices [][]tensor.Device
	for range n {
		device, err := openDevice(t, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := device.Close(); err != nil {
				t.Error(err)
			}
		})
		devices = append(devices, []tensor.Device{&counting{Device: device}})
	}
	copies, err := model.LoadSharded(context.Background(), dir, devices, architectures.All(), o)
	if err != nil {
		t.Fatal(err)
	}
	var all []*bench
	for c, m := range copies {
		t.Cleanup(m[0].Free)
		all = append(all, &bench{t: t, device: devices[c][0], Model: m[0]})
	}
	for _, b := range all {
		b.work = b.NewWorkspace()
		t.Cleanup(b.work.Free)
		if b.pages, err = b.NewPages(64); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(b.pages.Free)
	}
	return all
}

const builtIn = "../../../configs/models/tiny-chat"

// shardedLife is everything that passes give: log-probabilities and gradients of training with a yield at every step, in which another workspace samples, and log-probabilities of sampling.
func (b *bench) shardedLife(recompute bool) (all [][]float32) {
	w := b.randomAdapter(8, 1, true, true, true)
	random := rand.New(rand.NewPCG(2, 2))
	tokens, targets := b.randomTokens(random, 150), b.randomTokens(random, 150)
	sampler := *b
	sampler.work = b.NewWorkspace()
	defer sampler.work.Free()
	yields := 0
	g := b.gradient(w.Layout())
	var examples []model.Example
	for i := range 3 {
		n := 40 + 50*i
		weights := make([]float32, n)
		for j := n / 3; j < n; j++ {
			weights[j] = 1
		}
		e := b.example(w, tokens[:n], targets[:n], weights)
		e.Gradient = g
		examples = append(examples, e)
	}
	for _, o := range b.train(model.TrainOptions{Recompute: recompute, StepWork: 1e7, Yield: func() error {
		if yields++; yields%7 == 0 {
			lp := sampler.scored(w, tokens[:30], targets[:30], []int{20, 1, 9})
			if yields == 7 {
				all = append(all, lp)
			} else if !slices.Equal(lp, all[0]) {
				return fmt.Errorf("sampling at yield %d gives other bits", yields)
			}
		}
		return nil
	}}, examples...) {
		all = append(all, o.Logprobs)
	}
	for i := range b.Modules {
		all = append(all, b.download(g.Modules(0)[i].A), b.download(g.Modules(0)[i].B))
	}
	if yields < 20 {
		b.t.Errorf("%d yields: the test shows nothing", yields)
	}
	return append(all, b.scored(w, tokens, targets, []int{100, 1, 1, 48}))
}

// Copies that share the weights out compute what the whole model does, bit for bit, all at once.
func TestShardedEqualsWhole(t *testing.T) {
	for _, d := range dtypes {
		for _, n := range []int{2, 3} {
			t.Run(fmt.Sprint(d, " over ", n), func(t *testing.T) {
				recompute := n == 3
				whole := newBench(t, builtIn, d, 1)
				want := whole.shardedLife(recompute)
				copies := shards(t, builtIn, model.LoadOptions{DType: d}, n)
				got := make([][][]float32, n)
				var group sync.WaitGroup
				for i, b := range copies[:2] {
					group.Go(func() { got[i] = b.shardedLife(recompute) })
				}
				group.Wait()
				for i, b := range copies[:2] {
					if b.Hash != whole.Hash || b.Parameters != whole.Parameters {
						t.Errorf("copy %d: hash %s and %d parameters, want %s and %d", i, b.Hash, b.Parameters, whole.Hash, whole.Parameters)
					}
					if len(got[i]) != len(want) {
						t.Fatalf("copy %d: %d results, want %d", i, len(got[i]), len(want))
					}
					for k := range want {
						if !slices.Equal(got[i][k], want[k]) {
							t.Fatalf("copy %d: result %d differs", i, k)
						}
					}
				}
			})
		}
	}
}

// Rows that a file has in one matrix with others are shared out as well.
func TestShardedFamilies(t *testing.T) {
	for _, name := range []string{"phi3", "smollm3", "qwen3-moe-mixed", "qwen3.5", "qwen3.5-moe"} {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, name)
			score := func(b *bench) []float32 {
				random, parts := rand.New(rand.NewPCG(5, 5)), []int{60, 1, 29}
				if b.Recurrent() { // without states
					parts = []int{90}
				}
				return b.scored(b.randomAdapter(4, 1, true, true, true), b.randomTokens(random, 90), b.randomTokens(random, 90), parts)
			}
			whole := newBench(t, dir, tensor.Float32, 1)
			want := score(whole)
			for i, b := range shards(t, dir, model.LoadOptions{DType: tensor.Float32}, 2) {
				if got := score(b); !slices.Equal(got, want) {
					t.Errorf("copy %d: log-probabilities differ", i)
				}
				if b.Parameters != whole.Parameters {
					t.Errorf("copy %d: %d parameters, want %d", i, b.Parameters, whole.Parameters)
				}
			}
		})
	}
}

// A rank holds its share of the weights, and beside it no more than what was measured.
func TestShardedMemory(t *testing.T) {
	const tokens, n = 1500, 3
	whole := newBench(t, builtIn, 0, 1)
	rope := int64(whole.MaxContext * whole.Config.HeadDim * 4)
	copies := shards(t, builtIn, model.LoadOptions{}, n)
	var sum int64
	for i, b := range copies {
		held := b.device.(*counting).bytes
		if held != b.WeightBytes() {
			t.Errorf("copy %d has taken %d bytes to load and says %d", i, held, b.WeightBytes())
		}
		sum += held - rope
		// Rows are shared out in blocks of 64, here of at most 512 columns: one block more or less of some of the 7 matrices of a layer, in turn.
		if share := (whole.WeightBytes()-rope)/n + 3*64*512*2*int64(b.Config.Layers); held-rope > share {
			t.Errorf("copy %d of %d holds %d bytes of weights, of %d", i, n, held-rope, whole.WeightBytes()-rope)
		}
	}
	if least := whole.WeightBytes() - rope; sum < least || sum > least+least/20 {
		t.Errorf("all copies hold %d bytes, the whole model %d", sum, least)
	}
	b := copies[1]
	w := b.randomAdapter(8, 1, true, true, true)
	g := b.gradient(w.Layout())
	random := rand.New(rand.NewPCG(3, 3))
	var examples []model.Example
	for range tokens / 50 {
		weights := make([]float32, 50)
		for i := 10; i < 50; i++ {
			weights[i] = 1
		}
		e := b.example(w, b.randomTokens(random, 50), b.randomTokens(random, 50), weights)
		e.Gradient = g
		examples = append(examples, e)
	}
	need, err := b.MeasureTraining(tokens, w.Layout(), true)
	if err != nil {
		t.Fatal(err)
	}
	const hidden, queries, keys, wide = 192, 6 * 32, 2 * 32, 512
	const layer = int64(2 * hidden * (2*queries + 2*keys + 3*wide))
	if need.Gathered < 2*layer || need.Gathered > 2*layer+2*wide*hidden*2 {
		t.Errorf("%d bytes for gathered weights, two layers take %d", need.Gathered, 2*layer)
	}
	device := b.device.(*counting)
	before := device.bytes
	var asked int64
	b.work.Bound(func(bytes int64) error { asked += bytes; return nil })
	if err := b.work.Reserve(need); err != nil {
		t.Fatal(err)
	}
	const leastChunk = 4 << 20 // of each of the two arenas
	taken := device.bytes - before
	if taken > need.Bytes()+2*leastChunk || taken != asked || taken != b.work.Bytes() {
		t.Errorf("%d bytes were taken for %+v, and %d asked for; the workspace says %d", taken, need, asked, b.work.Bytes())
	}
	b.train(model.TrainOptions{Recompute: true}, examples...)
	if more := device.bytes - before - taken; more != 0 {
		t.Errorf("a pass for which %+v was reserved has taken %d bytes more", need, more)
	}
	b.work.Free()
	if asked != 0 || b.work.Bytes() != 0 {
		t.Errorf("%d bytes are left after Free", asked)
	}
	refused := errors.New("no more")
	left := layer
	b.work.Bound(func(bytes int64) error {
		if left -= bytes; left < 0 && bytes > 0 {
			left += bytes
			return refused
		}
		return nil
	})
	if _, err := b.Train(b.work, b.pages, examples, model.TrainOptions{}); !errors.Is(err, refused) {
		t.Errorf("a pass without room for gathered weights: %v", err)
	}
	if left != layer || b.work.Bytes() != 0 {
		t.Errorf("%d bytes of %d are free after a refusal, and %d are held", left, layer, b.work.Bytes())
	}
	b.work.Bound(nil)
	b.train(model.TrainOptions{}, examples...)
}

// A training pass copies the head as a whole once, beside the pieces of its first chunk of logits, however many chunks there are; where there is no memory for that it copies pieces for every product. The bits are equal.
func TestShardedHeadIsCopiedOnce(t *testing.T) {
	const tokens, rows = 150, 36 // of all, and of a chunk
	random := rand.New(rand.NewPCG(4, 4))
	var ids, targets []int32
	run := func(t *testing.T, chunkRows int, room bool) (results [][]float32, copied, head int64) {
		const vocabulary = 4096
		b := shards(t, builtIn, model.LoadOptions{DType: tensor.Float32, LogitsBytes: chunkRows * vocabulary}, 2)[0]
		if b.Config.VocabSize != vocabulary {
			t.Fatalf("the model has %d tokens", b.Config.VocabSize)
		}
		if ids == nil {
			ids, targets = b.randomTokens(random, tokens), b.randomTokens(random, tokens)
		}
		head = int64(b.Config.VocabSize * b.Config.HiddenSize)
		whole := int64(tensor.MatrixBytes(tensor.Float32, b.Config.VocabSize, b.Config.HiddenSize))
		weights := make([]float32, tokens)
		for i := range weights {
			weights[i] = 1
		}
		w := b.randomAdapter(4, 1, true, false, true)
		e := b.example(w, ids, targets, weights)
		e.Gradient = b.gradient(w.Layout())
		var held int64
		b.work.Bound(func(bytes int64) error {
			if bytes == whole && !room {
				return fmt.Errorf("not so much: %w", tensor.ErrMemory)
			}
			held += bytes
			return nil
		})
		device := b.device.(*counting)
		for range 3 { // the first finds nothing that is there from the one before
			before, last := device.copied, copied
			results = append(results, b.train(model.TrainOptions{}, e)[0].Logprobs)
			copied = device.copied - before
			if len(results) == 3 && copied != last {
				t.Errorf("passes copy %d and %d elements", last, copied)
			}
		}
		for i := range b.Modules {
			if g := e.Gradient.Modules(0)[i]; g.A.Buffer != nil {
				results = append(results, b.download(g.A), b.download(g.B))
			}
		}
		if b.work.Bytes() != held {
			t.Errorf("%d bytes are held, %d were asked for", b.work.Bytes(), held)
		}
		b.work.Free()
		if held != 0 {
			t.Errorf("%d bytes are left", held)
		}
		return results, copied, head
	}
	want, one, head := run(t, 2*tokens, true)
	got, many, _ := run(t, rows, true)
	pieces, most, _ := run(t, rows, false)
	const chunks = (tokens + rows - 1) / rows
	if many-one != head {
		t.Errorf("with memory for it the head is copied %v times more in %d chunks than in one, want once", float64(many-one)/float64(head), chunks)
	}
	if most-one != 2*(chunks-1)*head {
		t.Errorf("without memory for it the head is copied %v times more in %d chunks than in one, want %d", float64(most-one)/float64(head), chunks, 2*(chunks-1))
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) || !slices.Equal(pieces[i], want[i]) {
			t.Fatalf("result %d differs", i)
		}
	}
}
