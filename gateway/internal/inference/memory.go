package inference

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/chat"
	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// Text that is sampled, read as a message, printed by a template and tokenized again seldom gives the same tokens: JSON is spaced otherwise, words are cut otherwise, thoughts are left
// out. A policy that is trained on such a prompt has never sampled it. A session remembers the tokens, and puts behind them what the template prints after the answer.

// recollection is a conversation with what is remembered of it.
type recollection struct {
	sessions *Sessions // nil outside of a session
	key, id  string
	model    string

	branches []branch // of the conversation up to and with each message
	rendered printed  // the conversation without the beginning of an answer; nothing if that is not known
	turn     *Turn    // whose tokens the prompt begins with, or nil
	prompt   []int32
	prefix   *Prefix
	ends     map[int32]bool
	last     *Memory // of the answer, once it has ended
}

// printed is a text of which nothing is asked but whether another one begins with it.
type printed struct {
	length int
	sum    [sha256.Size]byte
}

func printedOf(text string) printed { return printed{len(text), sha256.Sum256([]byte(text))} }

// begins tells whether a text begins with the printed one.
func (p printed) begins(text string) bool {
	return len(text) >= p.length && sha256.Sum256([]byte(text[:p.length])) == p.sum
}

// canonical is what a message says, without what clients add to it or leave out when they send it back. Thoughts are left out: many clients do not send them.
func canonical(m *jinja.Dict) any {
	out := map[string]any{"role": roleOf(m), "content": textOf(m, "content")}
	if roleOf(m) != "assistant" {
		out["name"], out["id"] = textOf(m, "name"), textOf(m, "tool_call_id")
		return out
	}
	var calls []any
	for _, call := range callsOf(m) {
		d, ok := call.(*jinja.Dict)
		if !ok {
			continue
		}
		f, _ := d.Get("function")
		function, ok := f.(*jinja.Dict)
		if !ok {
			continue
		}
		arguments, _ := function.Get("arguments")
		calls = append(calls, []any{textOf(function, "name"), plain(arguments)})
	}
	out["calls"] = calls
	return out
}

// plain is a value of a template as the JSON package writes it: keys in one order.
func plain(v jinja.Value) any {
	switch v := v.(type) {
	case jinja.Str:
		return string(v)
	case jinja.Bool:
		return bool(v)
	case jinja.Int:
		return int64(v)
	case jinja.Float:
		return float64(v)
	case *jinja.List:
		out := make([]any, len(v.Items))
		for i, item := range v.Items {
			out[i] = plain(item)
		}
		return out
	case *jinja.Dict:
		out := map[string]any{}
		for i := range v.Len() {
			key, value := v.At(i)
			if name, ok := key.(jinja.Str); ok {
				out[string(name)] = plain(value)
			}
		}
		return out
	case *jinja.BigInt:
		return v.Big.String()
	}
	return nil
}

// chain hashes everything from which a template prints a conversation, up to and with each message.
func chain(model string, v *Conversation) ([]branch, error) {
	begin := []any{model, plainTools(v.Tools)}
	if v.Kwargs != nil {
		begin = append(begin, plain(v.Kwargs))
	}
	for _, d := range v.Documents {
		begin = append(begin, plain(d))
	}
	last, err := link(branch{}, begin)
	out := make([]branch, len(v.Messages))
	for i, m := range v.Messages {
		if err != nil {
			return nil, err
		}
		last, err = link(last, canonical(m))
		out[i] = last
	}
	return out, err
}

func plainTools(tools []Tool) (out []any) {
	for _, t := range tools {
		out = append(out, []any{t.Name, t.Description, string(t.Parameters)})
	}
	return out
}

func link(before branch, value any) (branch, error) {
	b, err := json.Marshal(value)
	if err != nil {
		return branch{}, err
	}
	return sha256.Sum256(append(before[:], b...)), nil
}

// answered is an answer as a message of the assistant.
func answered(a answer.Answer) *jinja.Dict {
	out := &jinja.Dict{}
	out.Set("role", jinja.Str("assistant"))
	text := ""
	if a.Content != nil {
		text = *a.Content
	}
	out.Set("content", jinja.Str(text))
	if len(a.Calls) == 0 {
		return out
	}
	list := &jinja.List{}
	for _, c := range a.Calls {
		f := &jinja.Dict{}
		f.Set("name", jinja.Str(c.Name))
		f.Set("arguments", Arguments(c.Arguments))
		call := &jinja.Dict{}
		call.Set("function", f)
		list.Items = append(list.Items, call)
	}
	out.Set("tool_calls", list)
	return out
}

// Recall finds what a request's session, or its client, remembers of a conversation, and makes the prompt of it. A prompt that cannot be proved to begin with what was read and sampled
// is rendered as without a memory.
func (s *Service) Recall(c Call, m *catalog.Model, model string, request *Request) (Prompt, error) {
	if err := renderable(m, &request.Conversation); err != nil {
		return Prompt{}, err
	}
	r := &recollection{key: c.Owner, id: request.Session, model: model, prefix: &Prefix{}, ends: map[int32]bool{}}
	if request.Session != "" {
		r.sessions = s.sessions
	}
	for _, end := range m.EndTokens {
		r.ends[end] = true
	}
	prompt, err := s.goOn(c, m, r, request)
	if err == nil && r.turn == nil {
		prompt, err = s.Render(c, m, request.Conversation)
	}
	prompt.memory, r.prompt = r, prompt.Tokens
	return prompt, err
}

// goOn makes the prompt that goes on from a remembered turn, and notes the turn; it notes none where there is none, or where that cannot be proved.
func (s *Service) goOn(c Call, m *catalog.Model, r *recollection, request *Request) (prompt Prompt, err error) {
	v := &request.Conversation
	if r.branches, err = chain(r.model, v); err != nil {
		return prompt, err
	}
	ctx := c.Request.Context()
	b := budget.For(ctx, c.Owner, budget.Limits{})
	defer b.End()
	b.On(v.Size)
	whole, err := v.template()
	if err != nil || v.ContinueFinal {
		return prompt, err
	}
	closed := whole
	closed.AddGenerationPrompt = false
	text, err := renderAdapted(ctx, b, m.Template, closed)
	if err != nil {
		return prompt, renderError(err)
	}
	r.rendered = printedOf(text)
	turn, at := r.find(request.Memory, b, m)
	if turn == nil {
		return prompt, nil
	}
	*r.prefix = Prefix{Tokens: turn.length}
	printed, bridge, err := s.bridge(ctx, b, m, whole, at, turn)
	if err != nil || bridge < 0 {
		return prompt, err
	}
	b.Renew(budget.Limits{})
	tokens, err := m.Tokenizer.EncodeWithin(b, printed[bridge:], false)
	if err != nil {
		return prompt, TokenizeError(ctx, "messages", err)
	}
	r.turn, r.prefix.Exact = turn, true
	return Prompt{Text: printed, Tokens: append(turn.tokens(), tokens...)}, nil
}

// find gives the last turn of the conversation that is remembered, and the message that its answer is; nil if none is.
func (r *recollection) find(memory *Memory, b *budget.Budget, m *catalog.Model) (*Turn, int) {
	if r.sessions != nil {
		reversed := slices.Clone(r.branches)
		slices.Reverse(reversed)
		if turn, back := r.sessions.find(r.key, r.id, reversed); turn != nil {
			return turn, len(r.branches) - 1 - back
		}
	}
	if memory != nil {
		if at := slices.Index(r.branches, memory.from); at >= 0 && memory.fits(b, m) {
			return memory.turn(), at
		}
	}
	return nil, 0
}

// bridge is what the template prints of a conversation, with something else for the answer at a place, and where in it what stands for the answer ends. That is -1 where it cannot be
// told: where the template prints what stands before the answer otherwise than when it was given, or leaves out its thoughts.
func (s *Service) bridge(ctx context.Context, b *budget.Budget, m *catalog.Model, whole chat.Conversation, at int, turn *Turn) (printed string, end int, err error) {
	marked := &jinja.Dict{}
	marked.Set("role", jinja.Str("assistant"))
	mark, thought := "answer "+rand.Text(), "thought "+rand.Text()
	marked.Set("content", jinja.Str(mark))
	if turn.thoughts {
		marked.Set("reasoning_content", jinja.Str(thought))
	}
	whole.Messages = slices.Clone(whole.Messages)
	whole.Messages[at] = marked
	printed, err = renderAdapted(ctx, b, m.Template, whole)
	if err != nil {
		var told *Error
		if errors.As(renderError(err), &told) { // the template wants the calls before their results
			return "", -1, nil
		}
		return "", -1, err
	}
	from := strings.Index(printed, mark)
	if from < 0 || strings.Count(printed, mark) != 1 || !turn.rendered.begins(printed[:from]) || turn.thoughts && !strings.Contains(printed[:from], thought) {
		return "", -1, nil
	}
	rest := printed[from+len(mark):]
	if turn.ended < 0 {
		return printed, len(printed) - len(rest), nil
	}
	tag, known := m.Tokenizer.TokenString(turn.ended)
	after, found := strings.CutPrefix(strings.TrimLeft(rest, " \n"), tag)
	if !known || !found {
		return "", -1, nil
	}
	return printed, len(printed) - len(after), nil
}

// Remember keeps an answer with its prompt, if the prompt was made with a memory. finish is why it ended, id what the sequence is recorded under.
func (p *Prompt) Remember(a answer.Answer, sampled Sampled, id string, version int64, finish string, stop any) error {
	r := p.memory
	if r == nil {
		return nil
	}
	t := &Turn{parent: r.turn, Read: r.prompt, Sampled: sampled, ID: id, Version: version, rendered: r.rendered, thoughts: a.Reasoning != nil, ended: -1}
	t.length = len(r.prompt) + len(sampled.Tokens)
	if r.turn != nil {
		t.Read = slices.Clone(r.prompt[r.turn.length:])
	}
	if n := len(sampled.Tokens); n > 0 && r.ends[sampled.Tokens[n-1]] {
		t.ended = sampled.Tokens[n-1]
	}
	var from *branch
	if _, cut := stop.(string); finish != FinishLength && !cut && r.rendered.length > 0 { // else the client does not see what the model will have said
		after, err := link(r.branches[len(r.branches)-1], canonical(answered(a)))
		if err != nil {
			return err
		}
		from = &after
		r.last = &Memory{from: after, tokens: slices.Concat(r.prompt, sampled.Tokens), rendered: t.rendered, thoughts: t.thoughts, ended: t.ended}
	}
	if r.sessions != nil {
		r.sessions.add(r.key, r.id, t, from)
	}
	return nil
}
