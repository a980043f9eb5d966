package engine

import (
	"errors"
	"slices"

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
	states     []*model.States    // by rank; nil where the model has no recurrent layers
	cache      *kvcache.Cache
	lends      bool // pages can be given back
	prefill    int  // tokens of prompts in a step
	memory     *budget
	fresh      []page       // taken from the cache, to be prepared
	moves      []slotMove   // of states, to be made in this order
	parked     []*sequence  // without a place, but with pages, in the order in which they were parked
	buffers    [4][]float32 // in Go memory, by buffer
	targets    []int32      // that rank 0 has chosen, for all ranks
	step       stepBuffers
	ranks      []samplingRank
	drawing    drawing
	scratch    []sample.Scratch // by thread
	crew       *crew
	masking    *masking

	// Methods as values, made once; those of ranks in the order of devices, see replica.ordered.
	pass, prepareRanks           func(rank int) error
	adjustRow, drawRows, topRows func(thread, i int)
}

// buffer says what rows in Go memory are.
type buffer uint8

const (
	plainLogits   buffer = iota // of a draw, or of a prompt that is scored
	probabilities               // of the distribution that is drawn from
	scaledLogits                // of a prompt's alternatives
	maskedLogits                // of rows of which a constraint forbids something
)

// host gives n elements of Go memory. The content is undefined.
func (p *sampler) host(b buffer, n int) []float32 {
	if cap(p.buffers[b]) < n {
		p.buffers[b] = make([]float32, n)
	}
	return p.buffers[b][:n]
}

// forget drops what is cached for a version that nobody holds any more.
func (p *sampler) forget(v *version) {
	p.cache.Drop(v.adapter, v.number)
}

// samplingRank is what one rank does of a sampling pass. Every rank runs the same functions with its part of the vocabulary's logits; what is done on rows of whole logits is done by rank 0 for all.
type samplingRank struct {
	*sampler
	rank      int
	model     *model.Model
	workspace *model.Workspace
	drawn     []token     // of a rank other than 0: nobody looks at it
	there     deviceDraws // of draws on the device

	// Of run; visit is visitLogits as a value, made once.
	through []chunk
	rows    []row
	tokens  []token
	visit   func(first int, logits tensor.Tensor) error
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

// download copies rows of all ranks' logits or probabilities to Go memory, whole, valid until the next call for the same buffer.
func (p *samplingRank) download(b buffer, t tensor.Tensor) ([]float32, error) {
	width := p.model.Config.VocabSize
	if err := p.lead(func() error { p.host(b, t.Rows*width); return nil }); err != nil {
		return nil, err
	}
	host := p.buffers[b][:t.Rows*width]
	if p.model.Comm == nil {
		return host, p.model.Device.Download(host, t)
	}
	from, _ := p.model.Vocabulary()
	if err := p.model.Device.DownloadRows(host[from:], width, t); err != nil {
		return nil, err
	}
	return host, p.meet()
}

// logSumExp gives the log-sum-exps of rows of logits, in scratch memory.
func (p *samplingRank) logSumExp(logits tensor.Tensor) (tensor.Tensor, error) {
	sums, err := p.workspace.Scratch(logits.Rows, 1)
	if err != nil {
		return sums, err
	}
	return sums, p.model.LogSumExp(p.workspace, sums, logits)
}

// softmax gives the probabilities of rows of logits, whose log-sum-exps are known, in Go memory, as download does.
func (p *samplingRank) softmax(logits, lse tensor.Tensor) ([]float32, error) {
	probs, err := p.workspace.Scratch(logits.Rows, logits.Cols)
	if err != nil {
		return nil, err
	}
	if err := p.model.Device.Softmax(probs, logits, lse); err != nil {
		return nil, err
	}
	return p.download(probabilities, probs)
}

// page is one that was allocated, and what has to be on it before it is used: what is on page from, or zeros if that is negative.
type page struct{ id, from int32 }

// prepare clears and copies pages and states.
func (p *sampler) prepare() error {
	if len(p.fresh) == 0 && len(p.moves) == 0 {
		return nil
	}
	err := p.replica.team.Run(p.prepareRanks, nil)
	p.fresh, p.moves = p.fresh[:0], p.moves[:0]
	if err != nil && p.recurrent() {
		p.cache.DropSnapshots() // some may not have been made
	}
	return err
}

// prepareRank is a rank's part of prepare.
func (p *sampler) prepareRank(rank int) error {
	for _, f := range p.fresh {
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
	for _, f := range p.moves {
		var err error
		if f.from >= 0 {
			err = p.states[rank].Copy(f.id, f.from)
		} else {
			err = p.states[rank].Zero(f.id)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// chunk is one sequence's part of a step: its tokens [from, to) go through the model.
type chunk struct {
	sequence *sequence
	from, to int
	scores   *scores // what is to be filled on the way, nil if nothing
}

// final tells whether the chunk ends with the sequence's last token, so that the next one is drawn.
func (c chunk) final() bool {
	return c.to == len(c.sequence.tokens) && c.sequence.request.MaxTokens > 0 && !c.sequence.constrained.empty
}

// token is what was drawn for a chunk.
type token struct {
	id      int32
	logprob float32
	left    float32             // of what the constraint allowed; 0 without one
	top     plugins.TopLogprobs // one row, in the step's memory
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
	batch     model.Batch // what goes through the model
	through   []chunk     // that it consists of
	running   []*sequence
	picked    []chunk
	chunks    []chunk
	sequences []model.Sequence
	rows      []row
	indices   []int32
	drawn     []token
	targets   []int32 // of all draws of the step
	values    []float32
	sums      []float32
}

// run takes chunks through the model, fills the scores of their prompts, and draws a token for each that is final.
func (p *sampler) run(chunks []chunk) ([]token, error) {
	batch, rows, indices := model.Batch{Sequences: p.step.sequences[:0]}, p.step.rows[:0], p.step.indices[:0]
	first := 0 // row of the chunk's first token
	for i, c := range chunks {
		s := c.sequence
		q := model.Sequence{Tokens: s.tokens[c.from:c.to], First: c.from, Pages: s.pages[:(c.to+kvcache.PageSize-1)/kvcache.PageSize], Slot: s.slot}
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
	st := &p.step
	st.sequences, st.rows, st.indices, st.targets, st.values = batch.Sequences, rows, indices, st.targets[:0], st.values[:0]
	st.batch, st.through = batch, chunks
	st.drawn = slices.Grow(st.drawn[:0], len(chunks))[:len(chunks)]
	clear(st.drawn)
	p.masking.start(chunks)
	err := p.replica.team.Run(p.pass, nil)
	p.masking.wait() // where a pass has failed nobody has
	p.masking.forget()
	clear(batch.Sequences)
	st.through = nil
	return st.drawn, err
}

// runRank is a rank's part of run.
func (p *sampler) runRank(rank int) error {
	on, st := &p.ranks[rank], &p.step
	drawn := st.drawn
	if rank > 0 {
		on.drawn = slices.Grow(on.drawn[:0], len(drawn))[:len(drawn)]
		clear(on.drawn)
		drawn = on.drawn
	}
	return on.run(st.batch, st.indices, st.through, st.rows, drawn)
}

// run takes a batch through the model and visits its logits.
func (p *samplingRank) run(batch model.Batch, indices []int32, chunks []chunk, rows []row, drawn []token) error {
	batch.Pages, batch.States = p.pages[p.rank], p.states[p.rank]
	hidden, err := p.model.Forward(p.workspace, batch, indices)
	if err != nil {
		return err
	}
	p.through, p.rows, p.tokens = chunks, rows, drawn
	err = p.model.Logits(p.workspace, hidden, p.visit)
	p.through, p.rows, p.tokens = nil, nil, nil
	return err
}

// visitLogits scores and draws by logits of run's rows from first on.
func (p *samplingRank) visitLogits(first int, logits tensor.Tensor) error {
	chunks, rows, drawn := p.through, p.rows, p.tokens
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
		part, mark := logits.Slice(from, to), p.workspace.MarkScratch()
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
		if err := p.workspace.ReleaseScratch(mark); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// choose has rank 0 call f for 0 … rows-1, to fill n targets, which all ranks then find in p.targets until the next call.
func (p *samplingRank) choose(n int, f func(scratch *sample.Scratch, targets []int32, i int), rows int) error {
	return p.lead(func() error {
		targets := make([]int32, n)
		p.crew.run(rows, func(thread, i int) { f(&p.scratch[thread], targets, i) })
		p.targets = targets
		return nil
	})
}

// draw samples the token behind each row of logits: on the device if that can, else in Go memory. The tokens are the same.
func (p *samplingRank) draw(logits tensor.Tensor, chunks []chunk, rows []row, drawn []token) error {
	d := drawing{width: p.model.Config.VocabSize, k: 1, whole: p.model.Comm == nil, chunks: chunks, rows: rows}
	var err error
	for _, r := range rows {
		d.constrained = d.constrained || chunks[r.chunk].sequence.constrained.state != nil
	}
	onlyScales, greedy := true, true
	for i := range rows {
		q := d.request(i)
		d.k = max(d.k, 1+q.TopKSampledLogprobs)
		onlyScales = onlyScales && q.settings.OnlyScales()
		greedy = greedy && q.Temperature == 0
	}
	if on := p.drawer(&d); on != nil {
		return p.drawThere(on, logits, &d, drawn)
	}
	if err := p.scale(logits, &d, (*sample.Settings).OnlyScales); err != nil {
		return err
	}
	if d.logits, err = p.download(plainLogits, logits); err != nil {
		return err
	}
	if !onlyScales {
		if err := p.lead(func() error {
			p.drawing = d
			p.crew.run(len(rows), p.adjustRow)
			return nil
		}); err != nil {
			return err
		}
		if err := p.uploadAdjusted(logits, &d); err != nil {
			return err
		}
	}
	lse, err := p.logSumExp(logits)
	if err != nil {
		return err
	}
	// At temperature 0 nothing is drawn by probability.
	if !greedy {
		if d.probs, err = p.softmax(logits, lse); err != nil {
			return err
		}
	}
	return p.lead(func() error {
		st, n := &p.step, len(rows)
		p.hold(&d, n*d.k)
		st.sums = slices.Grow(st.sums[:0], n)[:n]
		d.sums = st.sums
		if err := p.model.Device.Download(d.sums, lse); err != nil {
			return err
		}
		if d.constrained {
			if err := p.maskHere(&d); err != nil {
				return err
			}
		}
		p.drawing = d
		p.crew.run(n, p.drawRows)
		for i, r := range rows {
			t, own := &drawn[r.chunk], chunks[r.chunk].sequence.request.TopKSampledLogprobs
			at, to := i*d.k, i*d.k+1+own
			t.id, t.logprob = d.targets[at], d.values[at]
			t.top = plugins.TopLogprobs{K: own, IDs: d.targets[at+1 : to : to], Logprobs: d.values[at+1 : to : to]}
			if t.err == nil {
				t.err = checkLogprobs(d.values[at:to])
			}
			if m := d.masks.at(i); m != nil {
				t.left = m.of(d.left[i], d.sums[i])
				if t.err == nil {
					t.err = m.err
				}
			}
		}
		p.drawing = drawing{} // nothing is kept alive by it
		return nil
	})
}

// hold gives a draw n targets and values of the step's memory, beside those of the step's other draws.
func (p *sampler) hold(d *drawing, n int) {
	st, from := &p.step, len(p.step.targets)
	st.targets, st.values = slices.Grow(st.targets, n)[:from+n], slices.Grow(st.values, n)[:from+n]
	d.targets, d.values = st.targets[from:], st.values[from:]
}

// scale applies the temperature of the rows whose settings are chosen, neighbours with the same one at once.
func (p *samplingRank) scale(logits tensor.Tensor, d *drawing, chosen func(*sample.Settings) bool) error {
	for i := 0; i < len(d.rows); {
		settings := &d.request(i).settings
		end := i + 1
		if factor := settings.Scale(); factor != 1 && chosen(settings) {
			for end < len(d.rows) && d.request(end).settings.Scale() == factor && chosen(&d.request(end).settings) {
				end++
			}
			if err := p.model.Device.Scale(logits.Slice(i, end), factor, tensor.Float32); err != nil {
				return err
			}
		}
		i = end
	}
	return nil
}

// uploadAdjusted writes the rank's part of the rows that adjust has changed back to the device, neighbours at once where the rank has the whole vocabulary.
func (p *samplingRank) uploadAdjusted(logits tensor.Tensor, d *drawing) error {
	from, to := p.model.Vocabulary()
	for i := 0; i < len(d.rows); {
		if d.request(i).settings.OnlyScales() {
			i++
			continue
		}
		end := i + 1
		for d.whole && end < len(d.rows) && !d.request(end).settings.OnlyScales() {
			end++
		}
		if err := p.model.Device.Upload(logits.Slice(i, end), d.logits[i*d.width+from:(end-1)*d.width+to]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

// drawing is the draw of a token behind each of several rows of logits, whole and in Go memory, which threads share.
type drawing struct {
	logits, probs []float32 // rows × width; no probabilities where nothing is drawn by them
	sums          []float32 // log-sum-exps of the rows
	width         int
	whole         bool // the model is not cut
	constrained   bool // a row is
	masks         masks
	left          []float32 // log-sum-exps of what masks leave of the rows
	chunks        []chunk
	rows          []row
	k             int       // the drawn token, and the most of the likeliest that were asked for
	targets       []int32   // rows × k
	values        []float32 // their log-probabilities
}

// request is that of row i.
func (d *drawing) request(i int) *request { return d.chunks[d.rows[i].chunk].sequence.request }

// adjust applies penalties, bias and temperature to row i, unless the device has done so.
func (p *sampler) adjust(_, i int) {
	d := &p.drawing
	if s := d.chunks[d.rows[i].chunk].sequence; !s.request.settings.OnlyScales() {
		s.request.settings.Adjust(d.logits[i*d.width:(i+1)*d.width], s.history)
	}
}

// drawRow draws the token of row i, and gives its log-probability and the likeliest ones.
func (p *sampler) drawRow(thread, i int) {
	d, scratch := &p.drawing, &p.scratch[thread]
	s := d.chunks[d.rows[i].chunk].sequence
	q, row := s.request, d.logits[i*d.width:(i+1)*d.width]
	targets, values := d.targets[i*d.k:(i+1)*d.k], d.values[i*d.k:(i+1)*d.k]
	clear(targets)
	clear(values)
	if q.TopKSampledLogprobs > 0 {
		copy(targets[1:], sample.Top(scratch, row, q.TopKSampledLogprobs))
		for j := range q.TopKSampledLogprobs { // before Draw overwrites those that are excluded
			values[1+j] = d.logprob(row[targets[1+j]], d.sums[i])
		}
	}
	var excluded []int32
	if s.generated() < q.MinTokens && s.constrained.state == nil {
		excluded = q.StopTokens
	}
	logit := row
	if d.constrained && d.masks.forbids(i) { // the row as it was is needed for the log-probability of what is drawn
		logit = p.buffers[maskedLogits][i*d.width : (i+1)*d.width]
	}
	var probs []float32
	if d.probs != nil {
		probs = d.probs[i*d.width : (i+1)*d.width]
	}
	targets[0] = q.settings.Draw(scratch, logit, probs, excluded, sample.Uniform(q.Seed, s.index, len(s.tokens)))
	values[0] = d.logprob(row[targets[0]], d.sums[i])
}

// logprob is the log-probability of a token in a row with a log-sum-exp, with the arithmetic of model.Logprobs.
func (d *drawing) logprob(logit, sum float32) float32 {
	if !d.whole {
		logit += 0 // the other ranks' addends: a negative zero becomes a positive one
	}
	return logit - sum
}
