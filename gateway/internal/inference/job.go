package inference

import (
	"context"
	"log/slog"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/plugins"
)

// Request is what a surface asks for, in no surface's words.
type Request struct {
	// Model is what is to answer, and Target its weights, as [Service.Model] gives them.
	Model  *catalog.Model
	Target runs.Target

	Conversation Conversation
	// Tokens are the prompt in place of the conversation, which then says only how the answer is read; TokensField is the request's.
	Tokens      []int32
	TokensField string

	Choice   Choice
	Thinking Thinking
	Form     AnswerForm
	Limit    Limit
	// CutLimit makes a limit beyond the context what fits into it: for surfaces whose clients cannot know the context.
	CutLimit bool
	// TopLogprobs is how many alternatives each token has, -1 for no log-probabilities.
	TopLogprobs int
	// ScoresPrompt says that the answer can tell of the prompt's log-probabilities, which are refused else.
	ScoresPrompt bool
	// LeaveCalls leaves calls in the content.
	LeaveCalls bool
	// Session is the name under which the conversation is remembered, "" for none.
	Session string
	// Keep has [Job.Memory] give what the next turn's prompt can begin with; Memory is what an earlier job gave. Neither has the answer tell of tokens, as a session does.
	Keep   bool
	Memory *Memory

	tools bool // there are some
}

// Job is one request's answer in the making.
type Job struct {
	Model      *catalog.Model
	Target     runs.Target
	Prompt     Prompt
	Generation *Generation
	// Exact tells of tokens.
	Exact bool
	// Usage counts, and is complete when Run has returned.
	Usage Usage
	// Held is what the answer is held to.
	*Held

	service *Service
	keeps   bool   // what was sampled
	loss    string // of the Datum that the answer is made; "": none is
	scored  int    // alternatives of the prompt's tokens; NoPromptLogprobs: they are not told of
	prompt  PromptLogprobs
	version int64 // of the adapter
	sampled []Sampled
	ids     []string           // under which what was sampled is recorded
	said    []answer.Collector // for a session, or to be checked
	unread  answer.Tags        // of thoughts that are left in the content
	wrong   [][]SchemaError
}

// Prepare checks a request, renders its prompt and makes it a job. The memory that the request claimed is given back.
func (s *Service) Prepare(c Call, p *Parameters, r *Request) (*Job, error) {
	j, info, err := s.ask(c, p, r)
	if err != nil {
		return nil, err
	}
	r.Conversation = Conversation{Tools: r.Conversation.Tools, ContinueFinal: r.Conversation.ContinueFinal} // a stream may be long, and needs none of the rest
	c.Claim.Release()
	if room := info.MaxContextLength - len(j.Prompt.Tokens); r.CutLimit && r.Limit.Tokens != nil && *r.Limit.Tokens > room && room > 0 {
		r.Limit.Tokens = &room
	}
	if err := j.build(c.Owner, p, r, info, j.Prompt.Tokens); err != nil {
		return nil, err
	}
	n := j.Generation.Request.NumSamples
	j.sampled, j.said, j.ids, j.wrong = make([]Sampled, n), make([]answer.Collector, n), make([]string, n), make([][]SchemaError, n)
	if relaxed := j.Relaxed(); relaxed != "" {
		c.Header(RelaxedHeader, relaxed)
	}
	return j, nil
}

// Count is how many tokens the prompt of a request has, which is refused as [Service.Prepare] refuses it, but that a prompt may be longer than the context.
func (s *Service) Count(c Call, p *Parameters, r *Request) (int, error) {
	j, info, err := s.ask(c, p, r)
	if err != nil {
		return 0, err
	}
	n := len(j.Prompt.Tokens)
	r.Limit = Limit{}
	return n, j.build(c.Owner, p, r, info, j.Prompt.Tokens[:min(n, 1)])
}

// ask checks what a request asks for, makes its prompt, and begins its job.
func (s *Service) ask(c Call, p *Parameters, r *Request) (j *Job, info plugins.ModelInfo, err error) {
	j = &Job{Model: r.Model, Target: r.Target, service: s}
	if j.loss, err = DatumLoss("return_datum", p.ReturnDatum); err != nil {
		return
	}
	if err = p.Refuse(); err != nil {
		return
	}
	if !r.ScoresPrompt && !AsksNothing(p.PromptScores) {
		err = Unsupported("prompt_logprobs", "is served by /v1/chat/completions and /v1/completions")
		return
	}
	if err = r.Choice.Check(r.Conversation.Tools); err != nil {
		return
	}
	if err = r.Thinking.check(); err != nil {
		return
	}
	if r.Tokens == nil && r.Model.Template != nil {
		if err = checkTools(r.Model, r.Conversation.Tools); err != nil {
			return
		}
	}
	if j.Held, err = s.demanded(c, r.Model, r); err != nil {
		return
	}
	if j.Prompt, err = s.prompt(c, r.Model, p.Model, r); err != nil {
		return
	}
	info, err = s.Core.ModelInfo(c.Request.Context(), r.Model.Name)
	return
}

// build makes the generation of a job for the tokens of a prompt.
func (j *Job) build(owner string, p *Parameters, r *Request, info plugins.ModelInfo, prompt []int32) error {
	g, err := p.Build(owner, j.Model, info, prompt, r.Limit)
	if err != nil {
		return err
	}
	j.Generation = g
	j.Exact = p.ReturnTokenIDs || j.loss != "" || r.Session != ""
	j.keeps = j.Exact || j.Prompt.memory != nil
	if j.scored, err = p.PromptLogprobs(); err != nil {
		return err
	}
	g.ScorePrompt(j.scored)
	g.Request.TopKSampledLogprobs = max(r.TopLogprobs, 0)
	g.AfterPrompt, g.KeepAll, g.KeepEnds = r.Conversation.ContinueFinal, j.Exact, j.keeps
	choice := r.Choice
	if r.LeaveCalls {
		choice.Mode = ChooseNone
	}
	tools := r.Conversation.Tools
	g.Read(j.Model, j.Prompt, tools, choice, r.Thinking)
	g.Reading.TaggedOnly, g.Reading.HeldCalls = r.Form.Field != "", j.Held != nil
	if r.Thinking.Raw {
		j.unread = j.Model.Reasoning
	}
	r.tools = len(tools) > 0
	return g.hold(j.Model, r, j.Held)
}

// prompt renders a request's conversation, with what its session remembers, or takes the tokens that it gives.
func (s *Service) prompt(c Call, m *catalog.Model, model string, r *Request) (Prompt, error) {
	switch {
	case r.Tokens != nil && r.Session != "":
		return Prompt{}, Invalid("session_id", "cannot be combined with a prompt of tokens")
	case r.Tokens != nil:
		info, err := s.Core.ModelInfo(c.Request.Context(), m.Name)
		if err != nil {
			return Prompt{}, err
		}
		for i, id := range r.Tokens {
			if id < 0 || int(id) >= info.VocabSize {
				return Prompt{}, Invalid(r.TokensField, "element %d: %d is not a token id%s", i, id, idRange(info.VocabSize))
			}
		}
		return s.OfTokens(c, m, r.Tokens)
	case len(r.Session) > MaxSessionName:
		return Prompt{}, Invalid("session_id", "%d bytes are more than %d", len(r.Session), MaxSessionName)
	case r.Session != "" || r.Keep || r.Memory != nil:
		return s.Recall(c, m, model, r)
	}
	return s.Render(c, m, r.Conversation)
}

// Run samples and hands on the answer's parts, one call at a time.
func (j *Job) Run(ctx context.Context, emit func(Part) error) error {
	prompted := func(p *plugins.PromptScores) error {
		j.version = p.Version
		if j.scored > NoPromptLogprobs {
			j.prompt = NewPromptLogprobs(j.Model, j.Generation.Request.Prompt, p, j.scored)
		}
		return nil
	}
	return j.service.Generate(ctx, j.Target, j.Model, j.Generation, &j.Usage, prompted, func(p Part) error {
		if err := j.remember(ctx, p); err != nil {
			return err
		}
		return emit(p)
	})
}

// collects tells whether what the sequences say is kept, beside what a surface keeps.
func (j *Job) collects() bool { return j.Prompt.memory != nil || j.Checks() }

// SchemaErrors are what is wrong with a sequence that has ended: with its content or with the arguments of its calls, where they were not held to all of a schema while they were sampled.
func (j *Job) SchemaErrors(sequence int) []SchemaError { return j.wrong[sequence] }

// remember keeps what a sequence has sampled, for its Datum and for its session, and once it has ended checks it and records it for training.
func (j *Job) remember(ctx context.Context, p Part) error {
	i := p.Sequence
	if j.keeps {
		j.sampled[i].Add(p.Tokens)
	}
	if j.collects() {
		j.said[i].Add(p.Events)
	}
	if p.Reason == "" {
		return nil
	}
	if j.Exact {
		j.record(ctx, i)
	}
	if !j.collects() {
		return nil
	}
	said := j.said[i].Answer()
	j.wrong[i] = j.service.Checked(ctx, j.Model, j.Held, p.Reason, j.check(said, p.Reason, j.unread))
	return j.Prompt.Remember(said, j.sampled[i], j.ids[i], j.version, p.Reason, p.Stop)
}

// record stores a sequence, so that the provenance of training data may name it. An answer is none the worse where that cannot be done: it has no id then.
func (j *Job) record(ctx context.Context, sequence int) {
	s := j.sampled[sequence]
	id, err := j.service.Core.KeepSequence(ctx, j.Generation.Owner, runs.SampledSequence{Tokens: s.Tokens, Logprobs: s.Logprobs})
	if err != nil {
		if ctx.Err() == nil { // else nobody waits for it
			slog.WarnContext(ctx, "a sampled sequence could not be recorded", "error", err)
		}
		return
	}
	j.ids[sequence] = id
}

// SequenceID is the id under which a sequence that has ended is recorded for training; "" where it is not.
func (j *Job) SequenceID(sequence int) string { return j.ids[sequence] }

// PromptLogprobs are those of the prompt's tokens, nil unless asked. They are known once a part has come.
func (j *Job) PromptLogprobs() PromptLogprobs { return j.prompt }

// PromptScores is how many log-probabilities those are.
func (j *Job) PromptScores() int { return j.Generation.Scores(j.scored) }

// ExactPrompt is what an answer tells of its prompt's tokens, nil unless asked. It is known once a part has come.
func (j *Job) ExactPrompt() *Exact {
	if !j.Exact {
		return nil
	}
	return &Exact{PromptTokenIDs: j.Generation.Request.Prompt, Weights: WeightsOf(j.Target, j.version), Prefix: j.Prompt.Prefix()}
}

// RelaxedHeader is the header that names what an answer is not held to while it is sampled. [Service.Prepare] sets it.
const RelaxedHeader = "X-Tinsmith-Schema-Relaxed"

// TokenIDs are those that a sequence has sampled so far, never nil.
func (j *Job) TokenIDs(sequence int) []int32 {
	if tokens := j.sampled[sequence].Tokens; tokens != nil {
		return tokens
	}
	return []int32{}
}

// datumTokenBytes is about what a token takes in a Datum, as numbers and as JSON.
const datumTokenBytes = 40

// DatumBytes is about how many bytes a sequence's Datum will take, which holds the whole prompt; 0 where there is none.
func (j *Job) DatumBytes(sequence int) int {
	if j.loss == "" {
		return 0
	}
	return datumTokenBytes * (len(j.Generation.Request.Prompt) + len(j.sampled[sequence].Tokens))
}

// Datum is a sequence that has ended as training data, nil unless asked.
func (j *Job) Datum(sequence int) (*Datum, error) {
	if j.loss == "" {
		return nil, nil
	}
	s := j.sampled[sequence]
	return NewDatum(j.loss, []Span{{Tokens: j.Generation.Request.Prompt}, {Tokens: s.Tokens, Logprobs: s.Logprobs}})
}

// exactTokenBytes is about what a token takes in an answer that tells of tokens, with its score, as numbers and as JSON.
const exactTokenBytes = 64

// Weigh is about how many bytes a part takes that is kept until the answer is whole, without its log-probabilities.
func (j *Job) Weigh(p Part) int {
	size := 0
	for _, e := range p.Events {
		size += len(e.Text) + len(e.Name) + len(e.ID)
	}
	if j.collects() {
		size *= 2
	}
	if j.keeps {
		size += exactTokenBytes * len(p.Tokens)
	}
	return size
}
