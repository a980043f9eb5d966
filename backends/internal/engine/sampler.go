package engine

import (
	"errors"
	"slices"
	"sync"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// sampler is the memory of sampling on one replica. What is kept by rank is the rank's, the rest is the device goroutine's while no pass runs.
type sampler struct {
	replica    *replica
	workspaces []*model.Workspace // by rank
	pages      []tensor.Pages     // by rank
	cache      *kvcache.Cache
	fresh      []page // taken from the cache, to be prepared
	threads    int
	buffers    [2][]float32 // logits and probabilities in Go memory
	targets    []int32      // that rank 0 has chosen, for all ranks
	step       stepBuffers
}

// host gives n elements of Go memory, buffer 0 for logits or 1 for probabilities. The content is undefined.
func (p *sampler) host(buffer, n int) []float32 {
	if cap(p.buffers[buffer]) < n {
		p.buffers[buffer] = make([]float32, n)
	}
	return p.buffers[buffer][:n]
}

// forget drops what is cached for a version that nobody holds any more.
func (p *sampler) forget(v *version) {
	p.cache.Drop(kvcache.Key{Adapter: v.adapter, Version: v.number})
}

// parallel calls f for 0 … n-1 on as many goroutines as the device has threads.
func (p *sampler) parallel(n int, f func(i int)) {
	if n == 1 || p.threads == 1 {
		for i := range n {
			f(i)
		}
		return
	}
	var group sync.WaitGroup
	for t := range min(n, p.threads) {
		group.Go(func() {
			for i := t; i < n; i += p.threads {
				f(i)
			}
		})
	}
	group.Wait()
}

// samplingRank is what one rank does of a sampling pass. Every rank runs the same functions with its part of the vocabulary's logits; what is done on rows of whole logits is done in Go memory, by rank 0 for all.
type samplingRank struct {
	*sampler
	rank      int
	model     *model.Model
	workspace *model.Workspace
}

// meet waits until all ranks are here; what each wrote to Go memory before, the others see.
func (p *samplingRank) meet() error {
	if p.model.Comm == nil {
		return nil
	}
	return p.model.Comm.AllReduceHost(nil)
}

// lead has rank 0 run f, and the others wait for it.
func (p *samplingRank) lead(f func() error) error {
	if p.rank == 0 {
		if err := f(); err != nil {
			return err
		}
	}
	return p.meet()
}

// download copies rows of all ranks' logits or probabilities to Go memory, whole: to buffer 0 for logits or 1 for probabilities, valid until the next call for the same buffer.
func (p *samplingRank) download(buffer int, t tensor.Tensor) ([]float32, error) {
	width := p.model.Config.VocabSize
	if err := p.lead(func() error { p.host(buffer, t.Rows*width); return nil }); err != nil {
		return nil, err
	}
	host := p.buffers[buffer][:t.Rows*width]
	if p.model.Comm == nil {
		return host, p.model.Device.Download(host, t)
	}
	from, to := p.model.Vocabulary()
	for i := range t.Rows {
		if err := p.model.Device.Download(host[i*width+from:i*width+to], t.Slice(i, i+1)); err != nil {
			return nil, err
		}
	}
	return host, p.meet()
}

// softmax gives the probabilities of rows of logits in Go memory, as download does.
func (p *samplingRank) softmax(logits tensor.Tensor) ([]float32, error) {
	lse, err := p.model.LogSumExp(p.workspace, logits)
	if err != nil {
		return nil, err
	}
	probs, err := p.workspace.Scratch(logits.Rows, logits.Cols)
	if err != nil {
		return nil, err
	}
	if err := p.model.Device.Softmax(probs, logits, lse); err != nil {
		return nil, err
	}
	return p.download(1, probs)
}

// page is one that was allocated, and what has to be on it before it is used: what is on page from, or zeros if that is negative.
type page struct{ id, from int32 }

// prepare clears and copies pages.
func (p *sampler) prepare() error {
	fresh := p.fresh
	if len(fresh) == 0 {
		return nil
	}
	p.fresh = p.fresh[:0]
	return p.replica.each(func(rank int) error {
		for _, f := range fresh {
			var err error
			if f.from >= 0 {
				err = p.pages[rank].Copy(f.id, f.from)
			} else {
				err = p.pages[rank].Zero(f.id)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, nil)
}

// chunk is one sequence's part of a step: its tokens [from, to) go through the model.
type chunk struct {
	sequence *sequence
	from, to int
	scores   *scores // what is to be filled on the way, nil if nothing
}

// final tells whether the chunk ends with the sequence's last token, so that the next one is drawn.
func (c chunk) final() bool {
	return c.to == len(c.sequence.tokens) && c.sequence.request.MaxTokens > 0
}

// token is what was drawn for a chunk.
type token struct {
	id      int32
	logprob float32
	top     plugins.TopLogprobs // one row
	err     error
}

// row says what a selected row of a batch is for: the logits behind token position of a chunk's sequence.
type row struct {
	chunk    int
	position int
	final    bool // a token is drawn; else the prompt's next token is scored
}

// stepBuffers are used again in every step, so that decoding allocates little.
type stepBuffers struct {
	running   []*sequence
	picked    []chunk
	chunks    []chunk
	sequences []model.Sequence
	rows      []row
	indices   []int32
	drawn     []token
}

// run takes chunks through the model, fills the scores of their prompts, and draws a token for each that is final.
func (p *sampler) run(chunks []chunk) ([]token, error) {
	batch, rows, indices := model.Batch{Sequences: p.step.sequences[:0]}, p.step.rows[:0], p.step.indices[:0]
	first := 0 // row of the chunk's first token
	for i, c := range chunks {
		s := c.sequence
		q := model.Sequence{Tokens: s.tokens[c.from:c.to], First: c.from, Pages: s.pages[:(c.to+kvcache.PageSize-1)/kvcache.PageSize]}
		if s.request.version != nil {
			q.Adapter = s.request.version.weights.weights()
		}
		batch.Sequences = append(batch.Sequences, q)
		for position := c.from; position < c.to; position++ {
			final := c.final() && position == c.to-1
			if final || (position+1 < len(s.request.Prompt) && c.scores.wants(position+1)) {
				rows = append(rows, row{i, position, final})
				indices = append(indices, int32(first+position-c.from))
			}
		}
		first += c.to - c.from
	}
	p.step.sequences, p.step.rows, p.step.indices = batch.Sequences, rows, indices
	defer clear(batch.Sequences)
	drawn := slices.Grow(p.step.drawn[:0], len(chunks))[:len(chunks)]
	p.step.drawn = drawn
	clear(drawn)
	err := p.replica.each(func(rank int) error {
		on := &samplingRank{sampler: p, rank: rank, model: p.replica.models[rank], workspace: p.workspaces[rank]}
		own := drawn
		if rank > 0 {
			own = make([]token, len(chunks)) // the same on all ranks
		}
		return on.pass(batch, indices, chunks, rows, own)
	}, nil)
	return drawn, err
}

// pass takes a batch through the model and visits its logits.
func (p *samplingRank) pass(batch model.Batch, indices []int32, chunks []chunk, rows []row, drawn []token) error {
	batch.Pages = p.pages[p.rank]
	hidden, err := p.model.Forward(p.workspace, batch, indices)
	if err != nil {
		return err
	}
	return p.model.Logits(p.workspace, hidden, func(first int, logits tensor.Tensor) error {
		for from := 0; from < logits.Rows; {
			// Rows that are handled together: all drawn, or scores of one prompt at consecutive positions.
			at := rows[first+from]
			to := from + 1
			for ; to < logits.Rows; to++ {
				next := rows[first+to]
				if next.final != at.final || (!at.final && (next.chunk != at.chunk || next.position != at.position+to-from)) {
					break
				}
			}
			part := logits.Slice(from, to)
			if at.final {
				if err := p.draw(part, chunks, rows[first+from:first+to], drawn); err != nil {
					return err
				}
			} else if t := &drawn[at.chunk]; t.err == nil {
				t.err = chunks[at.chunk].scores.fill(p, part, at.position+1)
				var own *plugins.Error
				if t.err != nil && !errors.As(t.err, &own) {
					return t.err
				}
			}
			from = to
		}
		return nil
	})
}

// choose has rank 0 call f for 0 … rows-1, to fill n targets, which all ranks then find in p.targets until the next call.
func (p *samplingRank) choose(n int, f func(targets []int32, i int), rows int) error {
	return p.lead(func() error {
		targets := make([]int32, n)
		p.parallel(rows, func(i int) { f(targets, i) })
		p.targets = targets
		return nil
	})
}

// draw samples the token behind each row of logits.
func (p *samplingRank) draw(logits tensor.Tensor, chunks []chunk, rows []row, drawn []token) error {
	device, width := p.model.Device, p.model.Config.VocabSize
	from, to := p.model.Vocabulary()
	host, err := p.download(0, logits)
	if err != nil {
		return err
	}
	top := 0
	greedy := true
	if err := p.lead(func() error {
		p.parallel(len(rows), func(i int) {
			s := chunks[rows[i].chunk].sequence
			if !s.request.settings.Plain() {
				s.request.settings.Adjust(host[i*width:(i+1)*width], s.history)
			}
		})
		return nil
	}); err != nil {
		return err
	}
	for i, r := range rows {
		q := chunks[r.chunk].sequence.request
		top = max(top, q.TopKSampledLogprobs)
		greedy = greedy && q.Temperature == 0
		if !q.settings.Plain() {
			if err := device.Upload(logits.Slice(i, i+1), host[i*width+from:i*width+to]); err != nil {
				return err
			}
		}
	}
	// At temperature 0 nothing is drawn by probability.
	var probs []float32
	if !greedy {
		if probs, err = p.softmax(logits); err != nil {
			return err
		}
	}
	k := 1 + top
	if err := p.choose(len(rows)*k, func(targets []int32, i int) {
		s := chunks[rows[i].chunk].sequence
		q, row := s.request, host[i*width:(i+1)*width]
		copy(targets[i*k+1:(i+1)*k], sample.Top(row, q.TopKSampledLogprobs))
		var excluded []int32
		if s.generated() < q.MinTokens {
			excluded = q.StopTokens
		}
		var weights []float32
		if !greedy {
			weights = probs[i*width : (i+1)*width]
		}
		targets[i*k] = q.settings.Draw(row, weights, excluded, sample.Uniform(q.Seed, s.index, len(s.tokens)))
	}, len(rows)); err != nil {
		return err
	}
	targets := p.targets
	values, _, err := p.model.Logprobs(p.workspace, logits, targets, k)
	if err != nil {
		return err
	}
	for i, r := range rows {
		t, own := &drawn[r.chunk], chunks[r.chunk].sequence.request.TopKSampledLogprobs
		t.id, t.logprob = targets[i*k], values[i*k]
		t.top = plugins.TopLogprobs{K: own, IDs: slices.Clone(targets[i*k+1 : i*k+1+own]), Logprobs: slices.Clone(values[i*k+1 : i*k+1+own])}
		if t.err == nil {
			t.err = checkLogprobs(values[i*k : i*k+1+own])
		}
	}
	return nil
}
