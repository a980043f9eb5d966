package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/backends/internal/engine"
	"github.com/tinsmith/tinsmith/backends/internal/lora"
	"github.com/tinsmith/tinsmith/backends/internal/loss"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/model/architectures"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/backends/internal/tensor/cuda"
	"github.com/tinsmith/tinsmith/cudart"
)

// planned is a pass that is put to a GPU which is not there, as the engine puts it to one that is.
type planned struct {
	what     string
	tokens   int // that it is of
	launches []cudart.Launch
}

// plan has the passes of a workload launched on a GPU of a kind that need not be there: a training pass of so many sequences with one adapter and
// activations that are kept or computed again, and a decoding step after the context. dir has the model's config.json at least.
func (w workload) plan(ctx context.Context, dir, kind string, sequences int, recompute bool) (training, decoding planned, err error) {
	d, launches, err := cuda.NewAbsent(kind, cuda.Options{Attention: w.Attention, Gradients: w.Gradients})
	if err != nil {
		return training, decoding, err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	o := model.LoadOptions{DType: tensor.BFloat16, MaxContext: max(w.Length, w.Context+w.Generated), Sizes: true}
	if o.LogitsBytes, err = logitsOn(ctx, d, dir, o); err != nil {
		return training, decoding, err
	}
	m, err := model.Load(ctx, dir, d, architectures.All(), o)
	if err != nil {
		return training, decoding, err
	}
	defer m.Free()
	layout, err := m.Layout(w.Rank, true, true, true)
	if err != nil {
		return training, decoding, err
	}
	adapter, err := lora.NewWeights(d, layout, m.DType)
	if err != nil {
		return training, decoding, err
	}
	defer adapter.Free()
	gradient, err := lora.NewGradient(d, layout)
	if err != nil {
		return training, decoding, err
	}
	defer gradient.Free()
	p := planning{workload: w, model: m, adapter: adapter, gradient: gradient, launches: launches}
	if training, err = p.training(sequences, recompute); err != nil {
		return training, decoding, fmt.Errorf("a training pass: %w", err)
	}
	if decoding, err = p.decoding(); err != nil {
		return training, decoding, fmt.Errorf("a decoding step: %w", err)
	}
	return training, decoding, nil
}

// logitsOn is how much memory the engine has for logits on a GPU that has nothing else.
func logitsOn(ctx context.Context, d tensor.Device, dir string, o model.LoadOptions) (int, error) {
	total, err := d.(tensor.OwnMemory).TotalMemory()
	if err != nil {
		return 0, err
	}
	size, err := model.MeasureWeights(ctx, dir, architectures.All(), o, 1, 1)
	return engine.LogitsBytes(total-total/10, size.Rank), err
}

// planning is what plans of one model are made with.
type planning struct {
	workload
	model    *model.Model
	adapter  *lora.Weights
	gradient *lora.Gradient
	launches func() []cudart.Launch
}

// sequences are so many of a length, at positions from first on, with pages of their own.
func (p *planning) sequences(n, first, length int) (all []model.Sequence, pages tensor.Pages, err error) {
	each := (first + length + tensor.PageSize - 1) / tensor.PageSize
	for i := range n {
		s := model.Sequence{Adapter: p.adapter, Tokens: make([]int32, length), First: first, Slot: i}
		for k := range each {
			s.Pages = append(s.Pages, int32(i*each+k))
		}
		all = append(all, s)
	}
	pages, err = p.model.NewPages(n * each)
	return all, pages, err
}

func (p *planning) training(sequences int, recompute bool) (t planned, err error) {
	form, err := loss.New("cross_entropy", nil)
	if err != nil {
		return t, err
	}
	all, pages, err := p.sequences(sequences, 0, p.Length)
	if err != nil {
		return t, err
	}
	defer pages.Free()
	var examples []model.Example
	for _, s := range all {
		examples = append(examples, model.Example{Sequence: s, Targets: make([]int32, p.Length), K: 1, Loss: form,
			Inputs: loss.Inputs{Weights: slices.Repeat([]float32{1}, p.Length)}, Gradient: p.gradient})
	}
	w := p.model.NewWorkspace()
	defer w.Free()
	p.launches()
	if _, err := p.model.Train(w, pages, examples, model.TrainOptions{Recompute: recompute}); err != nil {
		return t, err
	}
	return planned{fmt.Sprintf("training pass of %d tokens, %s of %d, rank %d", sequences*p.Length, count(sequences, "sequence"), p.Length, p.Rank),
		sequences * p.Length, p.launches()}, nil
}

// decoding is a step with one adapter in which every stream draws a token at temperature 1.
func (p *planning) decoding() (t planned, err error) {
	all, pages, err := p.sequences(p.Streams, p.Context, 1)
	if err != nil {
		return t, err
	}
	defer pages.Free()
	b := model.Batch{Sequences: all, Pages: pages}
	if p.model.Recurrent() {
		if b.States, err = p.model.NewStates(p.Streams); err != nil {
			return t, err
		}
		defer b.States.Free()
	}
	w := p.model.NewWorkspace()
	defer w.Free()
	rows := make([]int32, p.Streams)
	for i := range rows {
		rows[i] = int32(i)
	}
	p.launches()
	h, err := p.model.Forward(w, b, rows)
	if err == nil {
		err = p.model.Logits(w, h, func(_ int, logits tensor.Tensor) error { return p.draw(w, logits) })
	}
	return planned{fmt.Sprintf("decoding step of %s after %d tokens, rank %d", count(p.Streams, "sequence"), p.Context, p.Rank), p.Streams, p.launches()}, err
}

// draw is what the engine has the device do with logits that tokens are drawn by.
func (p *planning) draw(w *model.Workspace, logits tensor.Tensor) error {
	results, err := w.Scratch(logits.Rows, 3)
	if err != nil {
		return err
	}
	probs, err := w.Scratch(logits.Rows, logits.Cols)
	if err != nil {
		return err
	}
	device, lse := p.model.Device, results.Columns(0, 1)
	draws := slices.Repeat([]tensor.Draw{{U: 0.5, TopP: 1}}, logits.Rows)
	return errors.Join(p.model.LogSumExp(w, lse, logits), device.Softmax(probs, logits, lse), device.(tensor.Drawer).DrawTokens(results.Columns(1, 3),
		logits, probs, draws),
		device.Download(make([]float32, 3*logits.Rows), results))
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// kernelCost is all launches of a kernel in a pass.
type kernelCost struct {
	Kernel               string
	Launches             int
	FLOP, Bytes, Seconds float64
	bounds               map[string]float64 // seconds of those that are bound by it
}

// bound is what most of the time is.
func (k *kernelCost) bound() string {
	best := ""
	for _, name := range slices.Sorted(maps.Keys(k.bounds)) {
		if best == "" || k.bounds[name] > k.bounds[best] {
			best = name
		}
	}
	return best
}

// costs sums a pass by kernels, the longest first, and all of it.
func (g *gpu) costs(p planned) (by []kernelCost, all kernelCost) {
	known := map[string]*kernelCost{}
	for _, l := range p.launches {
		k := known[l.Kernel]
		if k == nil {
			k = &kernelCost{Kernel: l.Kernel, bounds: map[string]float64{}}
			known[l.Kernel] = k
		}
		seconds, bound := g.seconds(l)
		k.bounds[bound] += seconds
		for _, sum := range []*kernelCost{k, &all} {
			sum.Launches++
			sum.FLOP, sum.Bytes, sum.Seconds = sum.FLOP+l.FLOP, sum.Bytes+l.Bytes, sum.Seconds+seconds
		}
	}
	for _, k := range known {
		by = append(by, *k)
	}
	slices.SortFunc(by, func(a, b kernelCost) int {
		return cmp.Or(cmp.Compare(b.Seconds, a.Seconds), strings.Compare(a.Kernel, b.Kernel))
	})
	return by, all
}

// modelFLOP is what the pass needs of operations by the usual count, which knows no kernel: products once, attention's gradient, and the delta rule's,
// twice its forward pass.
func (p planned) modelFLOP() (flop float64) {
	for _, l := range p.launches {
		switch {
		case strings.Contains(l.Kernel, "attention_backward"), strings.HasPrefix(l.Kernel, "delta_within"), strings.HasPrefix(l.Kernel,
			"delta_across"), strings.HasPrefix(l.Kernel, "delta_gradients"):
		case strings.HasPrefix(l.Kernel, "outer_group"): // which does each product in parts
			flop += l.FLOP / 6
		default:
			flop += l.FLOP
		}
		if p.trains() && (strings.HasPrefix(l.Kernel, "tensor_attention") || strings.HasPrefix(l.Kernel, "group_attention") || strings.HasPrefix(l.Kernel, "attention")) && !strings.Contains(l.Kernel,
			"backward") {
			flop += 2 * l.FLOP
		}
	}
	return flop
}

// trains tells whether there is a gradient in the pass.
func (p planned) trains() bool {
	return slices.ContainsFunc(p.launches, func(l cudart.Launch) bool { return l.Kernel == "softmax_gradient" })
}

// summary is a pass in a line.
func (g *gpu) summary(p planned) string {
	_, all := g.costs(p)
	text := fmt.Sprintf("%.3g ms, %.0f tok/s; %d launches", 1e3*all.Seconds, float64(p.tokens)/all.Seconds, all.Launches)
	if p.trains() {
		return text + fmt.Sprintf("; %.3g TFLOP, MFU %.0f %%", p.modelFLOP()/1e12, 100*p.modelFLOP()/all.Seconds/(g.peak*1e12))
	}
	return text + fmt.Sprintf("; %.3g GB, %.0f %% of the %.0f GB/s that are stated", all.Bytes/1e9, 100*all.Bytes/all.Seconds/(g.stated*1e9), g.stated)
}

// write writes a pass by kernels. What takes less than a thousandth of it is one line.
func (g *gpu) write(out io.Writer, name string, p planned) {
	by, all := g.costs(p)
	fmt.Fprintf(out, "**Predicted, not measured**: %s on one %s, %s: %s.\n\n", name, g.kind, p.what, g.summary(p))
	fmt.Fprintf(out, "| kernel | launches | GFLOP | MB | ms | share | bound by |\n|---|---|---|---|---|---|---|\n")
	line := func(k kernelCost, bound string) {
		fmt.Fprintf(out, "| %s | %d | %.4g | %.4g | %.3g | %.1f %% | %s |\n", k.Kernel, k.Launches, k.FLOP/1e9, k.Bytes/1e6, 1e3*k.Seconds,
			100*k.Seconds/all.Seconds, bound)
	}
	rest := kernelCost{Kernel: "the others"}
	for _, k := range by {
		if k.Seconds < all.Seconds/1000 {
			rest.Launches, rest.FLOP, rest.Bytes, rest.Seconds = rest.Launches+k.Launches, rest.FLOP+k.FLOP, rest.Bytes+k.Bytes, rest.Seconds+k.Seconds
			continue
		}
		line(k, k.bound())
	}
	if rest.Launches > 0 {
		line(rest, "")
	}
	all.Kernel = "all"
	line(all, "")
	fmt.Fprintln(out)
}
