package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cpu"
	"github.com/tinsmith/tinsmith/plugins"
)

// timed is a device with the time that was spent in its operations.
type timed struct {
	tensor.Device
	wall  time.Duration
	calls int

	written      time.Time // when the last operation that writes a version ended
	copied       int64     // bytes written by operations that copy, since this was set to 0
	gathers      int       // passes that have begun since this was set to 0
	beforeGather int64     // copied before the first of them
}

// moment is a point of both clocks.
type moment struct {
	wall      time.Time
	processor time.Duration
}

// now reads both clocks; the processor's is of all threads of this process.
func now() moment {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return moment{time.Now(), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// since ends an operation that began at a moment.
func (t *timed) since(begin time.Time) {
	t.wall += time.Since(begin)
	t.calls++
}

func (t *timed) Upload(dst tensor.Tensor, src []float32) error {
	defer t.since(time.Now())
	t.copied += 4 * int64(len(src))
	return t.Device.Upload(dst, src)
}

func (t *timed) Download(dst []float32, src tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.Download(dst, src)
}

func (t *timed) GatherRows(dst tensor.Tensor, m tensor.Matrix, ids []int32) error {
	defer t.since(time.Now())
	if t.gathers++; t.gathers == 1 {
		t.beforeGather = t.copied
	}
	return t.Device.GatherRows(dst, m, ids)
}

func (t *timed) MatMul(y, x tensor.Tensor, w tensor.Matrix, accumulate bool) error {
	defer t.since(time.Now())
	return t.Device.MatMul(y, x, w, accumulate)
}

func (t *timed) MatMuls(stages ...[]tensor.Multiplication) error {
	defer t.since(time.Now())
	return t.Device.MatMuls(stages...)
}

func (t *timed) MatMulGroups(y, x tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	defer t.since(time.Now())
	return t.Device.MatMulGroups(y, x, groups, accumulate)
}

func (t *timed) Add(dst, src tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.Add(dst, src)
}

func (t *timed) RMSNorm(y, x, weight tensor.Tensor, eps float32) error {
	defer t.since(time.Now())
	return t.Device.RMSNorm(y, x, weight, eps)
}

func (t *timed) Rope(x tensor.Tensor, positions []int32, table tensor.Tensor, heads int, inverse bool) error {
	defer t.since(time.Now())
	return t.Device.Rope(x, positions, table, heads, inverse)
}

func (t *timed) SwiGLU(y, gate, up tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.SwiGLU(y, gate, up)
}

func (t *timed) WritePages(p tensor.Pages, layer int, k, v tensor.Tensor, runs []tensor.AttentionRun) error {
	defer t.since(time.Now())
	return t.Device.WritePages(p, layer, k, v, runs)
}

func (t *timed) Attention(o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, heads int, scale float32) error {
	defer t.since(time.Now())
	return t.Device.Attention(o, lse, q, p, layer, runs, heads, scale)
}

func (t *timed) LogSumExp(lse, logits tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.LogSumExp(lse, logits)
}

func (t *timed) Scale(dst tensor.Tensor, factor float32, as tensor.DType) error {
	defer t.since(time.Now())
	return t.Device.Scale(dst, factor, as)
}

func (t *timed) Softmax(p, logits, lse tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.Softmax(p, logits, lse)
}

func (t *timed) AdjustElements(x tensor.Tensor, list []tensor.Adjustment) error {
	defer t.since(time.Now())
	return t.Device.(tensor.Drawer).AdjustElements(x, list)
}

func (t *timed) MaskColumns(x tensor.Tensor, rows []int32, bits []uint64) error {
	defer t.since(time.Now())
	return t.Device.(tensor.Drawer).MaskColumns(x, rows, bits)
}

func (t *timed) DrawTokens(dst, logits, probs tensor.Tensor, draws []tensor.Draw) error {
	defer t.since(time.Now())
	return t.Device.(tensor.Drawer).DrawTokens(dst, logits, probs, draws)
}

func (t *timed) Round(dst, src tensor.Tensor) error {
	defer t.since(time.Now())
	t.copied += int64(dst.Rows) * int64(dst.Cols) * int64(dst.DType.Size())
	return t.Device.Round(dst, src)
}

func (t *timed) Repack(list ...tensor.MatrixSource) error {
	defer t.since(time.Now())
	err := t.Device.Repack(list...)
	for _, s := range list {
		t.copied += int64(s.Matrix.Bytes())
	}
	t.written = time.Now()
	return err
}

func (t *timed) PackRows(m tensor.Matrix, row, n int, source string, data []byte) error {
	t.copied += int64(len(data))
	return t.Device.PackRows(m, row, n, source, data)
}

func (t *timed) SumSquares(xs ...tensor.Tensor) (func() ([]float64, error), error) {
	defer t.since(time.Now())
	return t.Device.SumSquares(xs...)
}

func (t *timed) MatMulTransposed(dx, dy tensor.Tensor, w tensor.Matrix, accumulate bool) error {
	defer t.since(time.Now())
	return t.Device.MatMulTransposed(dx, dy, w, accumulate)
}

func (t *timed) MatMulTransposedGroups(dx, dy tensor.Tensor, groups []tensor.RowGroup, accumulate bool) error {
	defer t.since(time.Now())
	return t.Device.MatMulTransposedGroups(dx, dy, groups, accumulate)
}

func (t *timed) OuterProducts(products []tensor.OuterProduct) error {
	defer t.since(time.Now())
	return t.Device.OuterProducts(products)
}

func (t *timed) OuterProduct(g, a, b tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.OuterProduct(g, a, b)
}

func (t *timed) Zero(dst tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.Zero(dst)
}

func (t *timed) RMSNormBackward(dx, dy, x, weight tensor.Tensor, eps float32, accumulate bool) error {
	defer t.since(time.Now())
	return t.Device.RMSNormBackward(dx, dy, x, weight, eps, accumulate)
}

func (t *timed) SwiGLUBackward(dgate, dup, dy, gate, up tensor.Tensor) error {
	defer t.since(time.Now())
	return t.Device.SwiGLUBackward(dgate, dup, dy, gate, up)
}

func (t *timed) AttentionBackward(dq, dk, dv, do, o, lse, q tensor.Tensor, p tensor.Pages, layer int, runs []tensor.AttentionRun, heads int, scale float32) error {
	defer t.since(time.Now())
	return t.Device.AttentionBackward(dq, dk, dv, do, o, lse, q, p, layer, runs, heads, scale)
}

func (t *timed) GatherElements(dst, src tensor.Tensor, at []tensor.Element) error {
	defer t.since(time.Now())
	return t.Device.GatherElements(dst, src, at)
}

func (t *timed) SoftmaxGradient(logits, lse tensor.Tensor, targets []int32, c []float32) error {
	defer t.since(time.Now())
	return t.Device.SoftmaxGradient(logits, lse, targets, c)
}

func (t *timed) AdamW(updates ...tensor.AdamWUpdate) (func() ([]tensor.AdamWSums, error), error) {
	defer t.since(time.Now())
	return t.Device.AdamW(updates...)
}

// onTimed loads a model on a timed processor.
func onTimed(b *testing.B, dir, section string) (*Engine, *timed) {
	b.Helper()
	var t *timed
	o := testOptions()
	o.OpenDevice = func(c Config) (tensor.Device, error) {
		d, err := cpu.New(cpu.Options{Threads: c.Threads})
		t = &timed{Device: d}
		return t, err
	}
	e := New(o)
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	if _, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: dir, Name: "model", Config: []byte(section), Scratch: b.TempDir()}, nil); err != nil {
		b.Fatal(err)
	}
	return e, t
}

// tinyChat is the built-in model.
const tinyChat = "../../../configs/models/tiny-chat"

// transported marks streams that cross a socket, as they do between the two processes; here the readers' share is part of the process.
const transported = "over gRPC"

// unixSocket is a listener that can be dialled.
type unixSocket struct{ net.Listener }

func (s unixSocket) Dial() (net.Conn, error) { return net.Dial("unix", s.Addr().String()) }

// BenchmarkStreams decodes 64 streams of the built-in model, in all the ways of drawing, and tells what share of the time passes outside the device's operations, and the processor time of the whole process, those that read the
// streams included.
func BenchmarkStreams(b *testing.B) {
	for _, c := range []struct {
		name string
		set  func(*plugins.SampleRequest)
	}{
		{"plain", func(*plugins.SampleRequest) {}},
		{transported, func(*plugins.SampleRequest) {}},
		{transported + ", read at the end", func(q *plugins.SampleRequest) { q.AtEnd = true }},
		{"greedy", func(q *plugins.SampleRequest) { q.Temperature = 0 }},
		{"temperature 0.7", func(q *plugins.SampleRequest) { q.Temperature = 0.7 }},
		{"top-p 0.9", func(q *plugins.SampleRequest) { q.TopP = 0.9 }},
		{"top-k 50, penalties", func(q *plugins.SampleRequest) { q.TopK, q.FrequencyPenalty, q.RepetitionPenalty = 50, 0.1, 1.1 }},
		{"top-5 logprobs", func(q *plugins.SampleRequest) { q.TopKSampledLogprobs = 5 }},
	} {
		b.Run(c.name, func(b *testing.B) {
			e, device := onTimed(b, tinyChat, `{"threads": 2}`)
			create(b, e, "a", 1, 32)
			backend := plugins.Backend(e)
			if strings.HasPrefix(c.name, transported) {
				listener, err := net.Listen("unix", filepath.Join(b.TempDir(), "s"))
				if err != nil {
					b.Fatal(err)
				}
				backend = overTransport(b, e, unixSocket{listener})
			}
			const streams, tokens = 64, 128
			prompt := randomTokens(rand.New(rand.NewPCG(1, 1)), 32)
			round := func() {
				var calls []func()
				for i := range streams {
					q := ask(fmt.Sprint("q", i), "a", prompt, 1, tokens)
					q.Seed = uint64(i)
					c.set(&q)
					calls = append(calls, func() {
						if _, err := collect(b.Context(), backend, q); err != nil {
							b.Error(err)
						}
					})
				}
				together(calls...)
			}
			round()
			n := 0
			b.ReportAllocs()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			device.wall, device.calls = 0, 0
			begin := now()
			for b.Loop() {
				round()
				n += streams * tokens
			}
			end := now()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(n)/end.wall.Sub(begin.wall).Seconds(), "tokens/s")
			b.ReportMetric((end.processor-begin.processor).Seconds()*1e6/float64(n), "processor-µs/token")
			b.ReportMetric(100*(1-device.wall.Seconds()/end.wall.Sub(begin.wall).Seconds()), "%-outside")
			b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/token")
			b.ReportMetric(float64(device.calls)*streams/float64(n), "calls/step")
		})
	}
}

// BenchmarkStreamGap has one stream of a small model while sequences of the whole context are trained, and tells the gaps between its tokens.
func BenchmarkStreamGap(b *testing.B) {
	const context = 8192
	dir := b.TempDir()
	if err := writeModelOf(dir, shape{4096, 256, 768, 4, 8, 4, 32}, context); err != nil {
		b.Fatal(err)
	}
	e, _ := onTimed(b, dir, `{"dtype": "bfloat16", "threads": 2}`)
	d := create(b, e, "a", 1, 16)
	random := rand.New(rand.NewPCG(1, 1))
	long := plugins.Datum{Tokens: randomTokens(random, context), Targets: randomTokens(random, context), K: 1, Weights: slices.Repeat([]float32{1}, context)}
	var gaps []time.Duration
	for b.Loop() {
		ended := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			for round := 0; ; round++ {
				last := time.Time{}
				err := e.Sample(b.Context(), ask(fmt.Sprint("stream", round), "a", []int32{1, 2, 3}, 1, context/2), func(event plugins.SampleEvent) error {
					if event.Tokens == nil {
						return nil
					}
					at := time.Now()
					if !last.IsZero() {
						gaps = append(gaps, at.Sub(last))
					}
					last = at
					select {
					case <-ended:
						return errClosed
					default:
						return nil
					}
				})
				if err != nil {
					if !errors.Is(err, errClosed) {
						b.Error(err)
					}
					return
				}
			}
		})
		d.pass([]plugins.Datum{long})
		d.step()
		close(ended)
		group.Wait()
	}
	slices.Sort(gaps)
	b.ReportMetric(gaps[len(gaps)*99/100].Seconds()*1000, "p99-ms")
	b.ReportMetric(gaps[len(gaps)-1].Seconds()*1000, "worst-ms")
	b.ReportMetric(float64(len(gaps))/float64(b.N), "tokens/op")
}

// BenchmarkPublication measures from the moment at which the device has written a version, the last work of an optimizer step, to the answer, from which on samples of "latest" get it; and what is written to the device
// between that moment and the first step of such a sample.
func BenchmarkPublication(b *testing.B) {
	dir := b.TempDir()
	if err := writeModel(dir, shape{32000, 512, 1536, 8, 8, 4, 64}); err != nil {
		b.Fatal(err)
	}
	e, device := onTimed(b, dir, `{"dtype": "bfloat16"}`)
	d := create(b, e, "a", 1, 64)
	data := randomData(rand.New(rand.NewPCG(3, 3)), 1, 8)
	var times []time.Duration
	copied := int64(0)
	for b.Loop() {
		d.pass(data)
		d.step()
		answered := time.Now()
		if err := e.onDevice(func() error {
			times = append(times, answered.Sub(device.written))
			device.copied = 0
			device.gathers = 0
			return nil
		}); err != nil {
			b.Fatal(err)
		}
		if _, err := collect(b.Context(), e, ask("q", "a", []int32{1, 2, 3}, 1, 1)); err != nil {
			b.Fatal(err)
		}
		copied += device.beforeGather
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2].Seconds()*1000, "ms")
	b.ReportMetric(times[len(times)-1].Seconds()*1000, "worst-ms")
	b.ReportMetric(float64(copied)/float64(b.N), "copied-B/op")
}

// BenchmarkReturnFromDisk measures how long an adapter that was moved to disk takes until it has sampled a token, and until it has trained a step. It has as many parameters as one of rank 32 on Qwen3-0.6B.
func BenchmarkReturnFromDisk(b *testing.B) {
	dir := b.TempDir()
	if err := writeModel(dir, shape{32000, 512, 1536, 8, 8, 4, 64}); err != nil {
		b.Fatal(err)
	}
	e, _ := onTimed(b, dir, `{"dtype": "bfloat16"}`)
	d := create(b, e, "a", 1, 256)
	data := randomData(rand.New(rand.NewPCG(3, 3)), 1, 8)
	d.pass(data)
	d.step()
	out := func() {
		if err := e.onDevice(func() error {
			for {
				if moved, err := e.loaded.adapters.moveOut(0); err != nil || !moved {
					return err
				}
			}
		}); err != nil {
			b.Fatal(err)
		}
	}
	var sampling, training time.Duration
	for b.Loop() {
		out()
		begin := time.Now()
		if _, err := collect(b.Context(), e, ask("q", "a", []int32{1, 2, 3}, 1, 1)); err != nil {
			b.Fatal(err)
		}
		sampling += time.Since(begin)
		out()
		begin = time.Now()
		d.pass(data)
		d.step()
		training += time.Since(begin)
	}
	b.ReportMetric(sampling.Seconds()*1000/float64(b.N), "sample-ms")
	b.ReportMetric(training.Seconds()*1000/float64(b.N), "train-ms")
	b.ReportMetric(float64(e.runs["a"].layout.Size)/1e6, "million-parameters")
}

// BenchmarkFirstSamples asks for 64 tokens behind each of 16 prompts right after the built-in model was loaded, and again.
func BenchmarkFirstSamples(b *testing.B) {
	var first, second time.Duration
	for b.Loop() {
		e := New(testOptions())
		if _, err := e.Load(b.Context(), plugins.LoadRequest{ModelDir: tinyChat, Name: "model"}, nil); err != nil {
			b.Fatal(err)
		}
		random := rand.New(rand.NewPCG(1, 1))
		for _, d := range []*time.Duration{&first, &second} {
			var calls []func()
			for i := range 16 {
				q := ask(fmt.Sprint("q", i), "", randomTokens(random, 32), 1, 64)
				calls = append(calls, func() {
					if _, err := collect(b.Context(), e, q); err != nil {
						b.Error(err)
					}
				})
			}
			begin := time.Now()
			together(calls...)
			*d += time.Since(begin)
		}
		if err := e.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(first.Seconds()*1000/float64(b.N), "first-ms")
	b.ReportMetric(second.Seconds()*1000/float64(b.N), "second-ms")
}
