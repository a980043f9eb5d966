package engine

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tinsmith/tinsmith/backends/internal/kvcache"
	"github.com/tinsmith/tinsmith/backends/internal/model"
	"github.com/tinsmith/tinsmith/backends/internal/sample"
	"github.com/tinsmith/tinsmith/backends/internal/tensor"
	"github.com/tinsmith/tinsmith/plugins"
)

// sampler is the memory of sampling. It belongs to the device goroutine.
type sampler struct {
	model     *model.Model
	workspace *model.Workspace
	pages     tensor.Pages
	cache     *kvcache.Cache
	threads   int
	lastTurn  time.Time
	buffers   [2][]float32 // logits and probabilities in Go memory
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

// softmax gives the probabilities of rows of logits in Go memory, valid until the next call.
func (p *sampler) softmax(logits tensor.Tensor) ([]float32, error) {
	lse, err := p.workspace.Scratch(logits.Rows, 1)
	if err != nil {
		return nil, err
	}
	probs, err := p.workspace.Scratch(logits.Rows, logits.Cols)
	if err != nil {
		return nil, err
	}
	if err := p.model.Device.LogSumExp(lse, logits); err != nil {
		return nil, err
	}
	if err := p.model.Device.Softmax(probs, logits, lse); err != nil {
		return nil, err
	}
	host := p.host(1, logits.Rows*logits.Cols)
	return host, p.model.Device.Download(host, probs)
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

// samplingStep runs one step of the sampler: the next token of every sequence that is past its prompt, and a piece of the prompts of others. It tells whether there was anything to do.
func (e *Engine) samplingStep() bool {
	l := e.loaded
	fresh := e.admit()
	err := l.sampler.prepare(fresh)
	chunks, more := e.pick()
	if len(chunks) == 0 {
		return false
	}
	if err == nil {
		err = l.sampler.prepare(more)
	}
	// Chunks of one adapter side by side.
	slices.SortStableFunc(chunks, func(a, b chunk) int {
		x, y := a.sequence.request.key, b.sequence.request.key
		return cmp.Or(cmp.Compare(x.Adapter, y.Adapter), cmp.Compare(x.Version, y.Version))
	})
	var drawn []token
	if err == nil {
		drawn, err = l.sampler.run(chunks)
	}
	if err != nil {
		e.failChunks(chunks, err)
	} else {
		e.deliver(chunks, drawn)
	}
	e.counters.progressed(time.Now())
	return true
}

// sweep takes ended sequences out of the books and gives their pages back. The caller holds mu; a step calls it before it lets go of mu, so that whoever sees the end of a sequence sees its pages free.
func (e *Engine) sweep() {
	swept := func(s *sequence) bool {
		if !s.done {
			return false
		}
		e.loaded.sampler.cache.Release(s.pages)
		s.pages = nil
		if s.request.unswept--; s.request.unswept == 0 {
			e.release(s.request.version)
		}
		return true
	}
	e.running = slices.DeleteFunc(e.running, swept)
	e.waiting = slices.DeleteFunc(e.waiting, swept)
	e.counters.pagesFree.Store(int64(e.loaded.sampler.cache.Available()))
}

// page is one that was allocated, and what has to be on it before it is used: what is on page from, or zeros if that is negative.
type page struct{ id, from int32 }

// prepare clears and copies pages.
func (p *sampler) prepare(fresh []page) error {
	for _, f := range fresh {
		var err error
		if f.from >= 0 {
			err = p.pages.Copy(f.id, f.from)
		} else {
			err = p.pages.Zero(f.id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// admit gives waiting sequences a place, first come first served, while there are places and pages for all their tokens. It gives the pages that were taken, to be prepared.
func (e *Engine) admit() (fresh []page) {
	l := e.loaded
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sweep()
	defer func() { e.counters.pagesFree.Store(int64(l.sampler.cache.Available())) }()
	var left []*sequence
	for i, s := range e.waiting {
		if len(e.running) >= l.config.MaxBatch {
			left = append(left, e.waiting[i:]...)
			break
		}
		scores := s.request.scores
		if (scores != nil && s.request.scorer() != s) || e.prefixComes(s) {
			left = append(left, s)
			continue
		}
		var pages []int32
		if scores == nil || !scores.any { // else the whole prompt is computed: pages hold no logits
			pages = l.sampler.cache.Match(s.request.key, s.tokens[:len(s.tokens)-1]) // the last token is computed: its logits are needed
		}
		more, ok := l.sampler.cache.Allocate((len(s.tokens)+kvcache.PageSize-1)/kvcache.PageSize - len(pages))
		if !ok {
			l.sampler.cache.Release(pages)
			left = append(left, e.waiting[i:]...)
			break
		}
		s.computed, s.shared = len(pages)*kvcache.PageSize, len(pages)
		if scores != nil {
			scores.result.CachedTokens = s.computed
		}
		s.pages = append(pages, more...)
		for _, id := range more {
			fresh = append(fresh, page{id, -1})
		}
		if twin := s.twin(); twin != nil && len(more) == 1 {
			// All but the last token, whose logits are needed, is on the twin's page.
			fresh[len(fresh)-1].from = twin.pages[len(s.pages)-1]
			s.computed = len(s.tokens) - 1
		}
		e.running = append(e.running, s)
	}
	e.waiting = left
	return fresh
}

// twin gives a sequence of the same request that has computed the prompt and nothing behind it, while s has not begun: the others of a group get the page that the prompt does not fill as a copy.
func (s *sequence) twin() *sequence {
	n := len(s.request.Prompt)
	if len(s.tokens) != n {
		return nil
	}
	for _, other := range s.request.sequences {
		if other != s && !other.done && other.pages != nil && other.computed == n {
			return other
		}
	}
	return nil
}

// prefixComes tells whether a sequence had better wait, because a running one is computing full pages that it could share: so a prompt that many ask for at once is computed once. The caller holds mu.
func (e *Engine) prefixComes(s *sequence) bool {
	for _, other := range e.running {
		if other.request.key != s.request.key || other.done {
			continue
		}
		pages := 0
		limit := min(len(s.tokens)-1, len(other.tokens)) / kvcache.PageSize
		for pages < limit && slices.Equal(s.tokens[pages*kvcache.PageSize:(pages+1)*kvcache.PageSize], other.tokens[pages*kvcache.PageSize:(pages+1)*kvcache.PageSize]) {
			pages++
		}
		if pages > other.computed/kvcache.PageSize {
			return true
		}
	}
	return false
}

// pick chooses what goes through the model next and makes sure that it has pages: one token of every sequence that only lacks its last one, then pieces of prompts in order of arrival. Where pages run out, the sequence that
// was admitted last gives its own up and waits for a place again; computing it a second time gives the same bits.
func (e *Engine) pick() (chunks []chunk, fresh []page) {
	l := e.loaded
	e.mu.Lock()
	running := slices.Clone(e.running)
	e.mu.Unlock()
	for i := 0; i < len(running); i++ {
		s := running[i]
		if len(s.tokens)-s.computed != 1 {
			continue
		}
		for s.computed/kvcache.PageSize >= len(s.pages) {
			if more, ok := l.sampler.cache.Allocate(1); ok {
				fresh = append(fresh, page{more[0], -1})
				s.pages = append(s.pages, more[0])
				continue
			}
			last := running[len(running)-1]
			running = running[:len(running)-1]
			e.preempt(last)
			if last == s {
				break
			}
		}
		if s.pages != nil {
			chunks = append(chunks, chunk{sequence: s, from: s.computed, to: len(s.tokens)})
		}
	}
	budget := l.config.PrefillTokens
	for _, s := range running {
		n := len(s.tokens) - s.computed
		if n == 1 || budget == 0 {
			continue
		}
		n = min(n, budget)
		budget -= n
		chunks = append(chunks, chunk{sequence: s, from: s.computed, to: s.computed + n})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range chunks {
		if s := chunks[i].sequence; s.request.scorer() == s {
			chunks[i].scores = s.request.scores
		}
	}
	return chunks, fresh
}

// preempt puts a running sequence back to the head of those that wait.
func (e *Engine) preempt(s *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.loaded.sampler.cache.Release(s.pages)
	s.pages, s.computed, s.shared = nil, 0, 0
	e.running = slices.DeleteFunc(e.running, func(other *sequence) bool { return other == s })
	e.waiting = slices.Insert(e.waiting, 0, s)
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

// run takes chunks through the model, fills the scores of their prompts, and draws a token for each that is final.
func (p *sampler) run(chunks []chunk) ([]token, error) {
	batch := model.Batch{Pages: p.pages}
	var rows []row
	var indices []int32
	first := 0 // row of the chunk's first token
	for i, c := range chunks {
		s := c.sequence
		q := model.Sequence{Tokens: s.tokens[c.from:c.to], First: c.from, Pages: s.pages[:(c.to+kvcache.PageSize-1)/kvcache.PageSize]}
		if s.request.version != nil {
			q.Adapter = s.request.version.weights
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
	drawn := make([]token, len(chunks))
	hidden, err := p.model.Forward(p.workspace, batch, indices)
	if err != nil {
		return nil, err
	}
	err = p.model.Logits(p.workspace, hidden, func(first int, logits tensor.Tensor) error {
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
	return drawn, err
}

// draw samples the token behind each row of logits.
func (p *sampler) draw(logits tensor.Tensor, chunks []chunk, rows []row, drawn []token) error {
	device, width := p.model.Device, logits.Cols
	host := p.host(0, logits.Rows*width)
	if err := device.Download(host, logits); err != nil {
		return err
	}
	top := 0
	greedy := true
	p.parallel(len(rows), func(i int) {
		s := chunks[rows[i].chunk].sequence
		if !s.request.settings.Plain() {
			s.request.settings.Adjust(host[i*width:(i+1)*width], s.history)
		}
	})
	for i, r := range rows {
		q := chunks[r.chunk].sequence.request
		top = max(top, q.TopKSampledLogprobs)
		greedy = greedy && q.Temperature == 0
		if !q.settings.Plain() {
			if err := device.Upload(logits.Slice(i, i+1), host[i*width:(i+1)*width]); err != nil {
				return err
			}
		}
	}
	// At temperature 0 nothing is drawn by probability.
	probs := p.host(1, 0)
	if !greedy {
		var err error
		if probs, err = p.softmax(logits); err != nil {
			return err
		}
	}
	k := 1 + top
	targets := make([]int32, len(rows)*k)
	p.parallel(len(rows), func(i int) {
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
	})
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

// deliver books the results of a step: events, ends, pages that others may share.
func (e *Engine) deliver(chunks []chunk, drawn []token) {
	l := e.loaded
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.sweep()
	for i, c := range chunks {
		s, t := c.sequence, drawn[i]
		q := s.request
		prompt := len(q.Prompt)
		if c.from < prompt {
			e.counters.prefillTokens.Add(int64(min(c.to, prompt) - c.from))
		}
		s.computed = c.to
		if full := s.computed / kvcache.PageSize; full > s.shared && !s.done {
			l.sampler.cache.Share(q.key, s.tokens[:full*kvcache.PageSize], s.pages[:full])
			s.shared = full
		}
		if s.done {
			continue
		}
		if t.err != nil {
			e.endRequest(q, t.err)
			continue
		}
		if s.computed >= prompt && c.scores != nil && c.scores == q.scores {
			q.scores.result.Version = q.number
			q.events = append([]plugins.SampleEvent{{Prompt: &q.scores.result}}, q.events...)
			q.scores = nil
			q.signal()
		}
		if s.computed < len(s.tokens) {
			continue
		}
		if q.MaxTokens == 0 {
			e.finishSequence(s, plugins.StopLength)
			continue
		}
		e.book(s, t)
	}
}

// book adds a drawn token to its sequence and ends the sequence where it must. The caller holds mu.
func (e *Engine) book(s *sequence, t token) {
	q := s.request
	s.tokens = append(s.tokens, t.id)
	if s.history != nil {
		s.history.Add(t.id)
	}
	e.counters.sampledTokens.Add(1)
	if s.pending == nil {
		s.pending = &plugins.SampledTokens{Sequence: s.index, Top: plugins.TopLogprobs{K: t.top.K}}
		q.events = append(q.events, plugins.SampleEvent{Tokens: s.pending})
	}
	p := s.pending
	p.Tokens, p.Logprobs = append(p.Tokens, t.id), append(p.Logprobs, t.logprob)
	p.Top.IDs, p.Top.Logprobs = append(p.Top.IDs, t.top.IDs...), append(p.Top.Logprobs, t.top.Logprobs...)
	q.signal()
	if _, stop := slices.BinarySearch(q.StopTokens, t.id); stop {
		e.finishSequence(s, plugins.StopToken)
	} else if s.generated() == q.MaxTokens {
		e.finishSequence(s, plugins.StopLength)
	}
}

// failChunks ends the requests of a step that failed as a whole.
func (e *Engine) failChunks(chunks []chunk, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.sweep()
	for _, c := range chunks {
		e.endRequest(c.sequence.request, internal("sample", err))
	}
}
