package inference

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/budget"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/schema"
	"github.com/tinsmith/tinsmith/gateway/internal/toolgrammar"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/grammar"
)

// thinkingEnd is what ends thoughts that have used up their budget, behind the closing tag: what models write there.
const thinkingEnd = "\n\n"

// compileSteps is about what making a grammar costs for each byte of a schema, in a budget's steps.
const compileSteps = 200

// Held is what an answer is held to, with what it is not held to while it is sampled. nil is nothing.
type Held struct {
	grammar   []byte
	relaxed   []schema.Relaxed
	validate  validator            // of the content; nil: there is nothing to check
	arguments map[string]validator // the same of the arguments of some tools
	weight    int
}

// validator tells what is wrong with a finished text.
type validator func(text []byte) []schema.Problem

// Relaxed is the value of [RelaxedHeader], "" if there is nothing to tell.
func (h *Held) Relaxed() string {
	if h == nil || len(h.relaxed) == 0 {
		return ""
	}
	return relaxedNames(h.relaxed)
}

// Checks tells whether there may be anything to find once an answer has ended, so that what a stream says is to be kept.
func (h *Held) Checks() bool { return h != nil && (h.validate != nil || len(h.arguments) > 0) }

// CheckText tells what is wrong with a text that it was not held to while it was sampled. One that was cut is not checked.
func (h *Held) CheckText(text, finish string) []SchemaError {
	if !h.Checks() || h.validate == nil || finish != FinishStop {
		return nil
	}
	return schemaErrors(nil, h.validate([]byte(text)), nil)
}

// check is the same of an answer's content, or of the arguments of its calls. unread are the tags of thoughts that stand in the content.
func (h *Held) check(a answer.Answer, finish string, unread answer.Tags) (out []SchemaError) {
	switch {
	case finish == FinishStop && a.Content != nil:
		return h.CheckText(unread.Behind(*a.Content), finish)
	case finish == FinishStop && a.Reasoning == nil && len(a.Calls) == 0:
		return h.CheckText("", finish)
	case finish != FinishCalls || !h.Checks():
		return nil
	}
	for i, call := range a.Calls {
		if validate := h.arguments[call.Name]; validate != nil && call.Ended {
			out = schemaErrors(out, validate([]byte(call.Arguments)), &i)
		}
	}
	return out
}

// HoldText holds a text that is no chat to a form.
func (s *Service) HoldText(c Call, m *catalog.Model, form AnswerForm, g *Generation) (*Held, error) {
	if form.Field == "" {
		return nil, nil
	}
	r := &Request{Form: form}
	if err := g.free(r); err != nil {
		return nil, err
	}
	made, err := s.form(c.Request.Context(), c.Owner, &demand{Form: &form, model: m})
	if err != nil {
		return nil, formError(c.Request.Context(), r, err)
	}
	g.Request.Constraint = &plugins.Constraint{Grammar: made.grammar}
	return made, nil
}

// free refuses parameters that would have an answer go on where its form ends.
func (g *Generation) free(r *Request) error {
	const why = "cannot be combined with %s: the answer ends where its form says"
	switch {
	case g.Request.MinTokens > 0:
		return Invalid("min_tokens", why, heldBy(r))
	case g.ignoreEnds:
		return Invalid("ignore_eos", why, heldBy(r))
	}
	return nil
}

// demand is what a request's answer is held to: everything that its grammar is made of.
type demand struct {
	Form      *AnswerForm
	Format    answer.Format
	Tools     []toolgrammar.Tool
	Arguments bool // all tools' arguments are held to their schemas
	Required  bool // there must be a call
	Free      bool // text with calls in it
	Single    bool
	Tokens    map[int32]schema.GBNFToken // that the form's grammar names by their ids

	model  *catalog.Model
	coarse bool // what may be checked when the answer has ended is left to that
}

// demandOf is what a request's answer is held to; nil for one that may be anything.
func demandOf(m *catalog.Model, r *Request) *demand {
	d := &demand{Format: m.ToolFormat, Single: r.Choice.Single, model: m}
	strict := false
	if r.Choice.Mode == ChooseRequired || r.Choice.Mode == ChooseAuto && !r.LeaveCalls {
		for _, t := range r.Conversation.Tools {
			if r.Choice.allows(t.Name) {
				d.Tools = append(d.Tools, toolgrammar.Tool{Name: t.Name, Parameters: t.Parameters, Strict: t.Strict})
				strict = strict || t.Strict
			}
		}
	}
	if r.Form.Field != "" {
		d.Form = &r.Form
	}
	switch {
	case len(d.Tools) > 0 && r.Choice.Mode == ChooseRequired:
		d.Form = nil // a call it must be
		d.Required, d.Arguments = true, true
	case d.Form != nil:
	case strict || r.Choice.Names != nil && len(d.Tools) > 0:
		d.Free = true
	default:
		return nil
	}
	return d
}

// allows tells whether a tool may be called.
func (c *Choice) allows(name string) bool {
	if c.Names == nil {
		return true
	}
	for _, n := range c.Names {
		if n == name {
			return true
		}
	}
	return false
}

// symbol is the text that is demanded, in a grammar.
func (d *demand) symbol(ctx context.Context, b *grammar.Builder, out *Held) (grammar.Symbol, error) {
	o := toolgrammar.Options{Format: d.Format, Tools: d.Tools, Arguments: d.Arguments, Single: d.Single, Coarse: d.coarse, Relaxed: func(tool toolgrammar.Tool, left []schema.Relaxed) {
		for _, r := range left {
			r.Pointer = tool.Name + r.Pointer
			out.relaxed = append(out.relaxed, r)
		}
		if validate, err := schema.Validator(tool.Parameters, schema.Options{}); err == nil { // it has just been compiled
			if out.arguments == nil {
				out.arguments = map[string]validator{}
			}
			out.arguments[tool.Name] = validate
		}
	}}
	switch {
	case d.Free:
		return toolgrammar.Free(ctx, b, o)
	case d.Required:
		return toolgrammar.Calls(ctx, b, o)
	}
	value, err := d.Form.symbol(ctx, b, d.Tokens, d.coarse, out)
	if err != nil || len(d.Tools) == 0 {
		return value, err
	}
	o.Marked = true
	calls, err := toolgrammar.Calls(ctx, b, o)
	return b.Choice(value, calls), err
}

// symbol is the text of a form. tokens are those that its grammar names by their ids.
func (f *AnswerForm) symbol(ctx context.Context, b *grammar.Builder, tokens map[int32]schema.GBNFToken, coarse bool, out *Held) (grammar.Symbol, error) {
	switch {
	case f.Schema != nil:
		value, err := schema.Add(ctx, b, f.Schema, schema.Options{Strict: f.Strict, Coarse: coarse && !f.Strict, NoWhitespace: f.NoWhitespace, Whitespace: f.Whitespace})
		if err != nil {
			return 0, err
		}
		out.relaxed = append(out.relaxed, value.Relaxed...)
		if len(value.Relaxed) > 0 {
			out.validate = value.Validate
		}
		return value.Symbol, nil
	case f.Choices != nil:
		return schema.Choice(b, f.Choices)
	case f.Regex != "":
		return schema.Regex(b, f.Regex)
	case f.GBNF != "":
		return schema.GBNF(b, f.GBNF, tokens)
	case f.NoWhitespace || f.Whitespace != "":
		value, err := schema.Add(ctx, b, []byte(`{"type": "object"}`), schema.Options{NoWhitespace: f.NoWhitespace, Whitespace: f.Whitespace})
		if err != nil {
			return 0, err
		}
		return value.Symbol, nil
	}
	return schema.JSONObject(b), nil
}

// findTokens finds what the tokens are in the model that its grammar names by their ids. Ends are not among them: where the grammar ends the answer does. Nor is
// what has no text of whole characters.
func (d *demand) findTokens() error {
	ids, err := schema.GBNFTokens(d.Form.GBNF)
	if err != nil || len(ids) == 0 {
		return err
	}
	d.Tokens = map[int32]schema.GBNFToken{}
	for _, id := range ids {
		if _, end := slices.BinarySearch(d.model.EndTokens, id); end || int(id) >= d.model.Tokenizer.VocabSize() {
			continue
		}
		if text := d.model.Tokenizer.TokenBytes(id); len(text) > 0 && utf8.Valid(text) {
			d.Tokens[id] = schema.GBNFToken{Text: string(text), Special: d.model.Tokenizer.IsAdded(id)}
		}
	}
	return nil
}

// size is about how many bytes the demand was made of.
func (d *demand) size() int {
	n := 0
	if d.Form != nil {
		n = len(d.Form.Schema) + len(d.Form.Regex) + len(d.Form.GBNF)
		for _, c := range d.Form.Choices {
			n += len(c)
		}
	}
	for _, t := range d.Tools {
		n += len(t.Name) + len(t.Parameters)
	}
	return n
}

// form makes the grammar of a demand, or finds the one that was made of the same before.
func (s *Service) form(ctx context.Context, owner string, d *demand) (*Held, error) {
	if d.Form != nil && d.Form.GBNF != "" {
		if err := d.findTokens(); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	key := sha256.Sum256(text)
	if f := s.forms.get(key); f != nil {
		return f, nil
	}
	b := budget.For(ctx, owner, budget.Limits{})
	defer b.End()
	if err := b.Work(compileSteps * d.size()); err != nil {
		return nil, err
	}
	out, err := d.made(ctx)
	if schema.TooInvolved(err) {
		d.coarse = true
		if coarse, coarseErr := d.made(ctx); coarseErr == nil {
			out, err = coarse, nil
		}
	}
	if err != nil {
		return nil, err
	}
	s.forms.put(key, out)
	return out, nil
}

// made makes the grammar of a demand.
func (d *demand) made(ctx context.Context) (*Held, error) {
	builder := grammar.NewBuilder(schema.Limits())
	builder.Within(ctx)
	out := &Held{}
	root, err := d.symbol(ctx, builder, out)
	if err != nil {
		return nil, err
	}
	g, err := schema.Finish(builder, root, "")
	if err != nil {
		return nil, err
	}
	out.grammar = g.Encode()
	out.weight = len(out.grammar) + formWeight*d.size()
	return out, nil
}

// formError says which field of the request is wrong.
func formError(ctx context.Context, r *Request, err error) error {
	if ctx.Err() != nil || errors.Is(err, budget.ErrBusy) {
		return err
	}
	var tool *toolgrammar.ToolError
	if errors.As(err, &tool) {
		allowed := 0
		for _, t := range r.Conversation.Tools {
			if !r.Choice.allows(t.Name) {
				continue
			}
			if allowed == tool.Tool {
				return Invalid(cmp.Or(t.Field, "tools"), "%v", tool.Err)
			}
			allowed++
		}
	}
	if errors.Is(err, toolgrammar.ErrNoForm) {
		if r.Choice.Mode == ChooseAuto && r.Choice.Names == nil { // nothing was said that the calls would have to be held for, but this
			return Unsupported("tools", "are served by this model neither strict nor together with a form of the answer: "+err.Error())
		}
		return Unsupported(r.Choice.Field, err.Error())
	}
	return Invalid(cmp.Or(r.Form.Field, r.Choice.Field), "%v", err)
}

// demanded makes the grammar of a request's answer; nil for an answer that may be anything.
func (s *Service) demanded(c Call, m *catalog.Model, r *Request) (*Held, error) {
	d := demandOf(m, r)
	if d == nil {
		return nil, nil
	}
	made, err := s.form(c.Request.Context(), c.Owner, d)
	if err != nil {
		return nil, formError(c.Request.Context(), r, err)
	}
	return made, nil
}

// hold sets what a request's answer is held to: its grammar, where that begins, and what must not be drawn.
func (g *Generation) hold(m *catalog.Model, r *Request, made *Held) error {
	constraint := &plugins.Constraint{}
	if made != nil {
		if err := g.free(r); err != nil {
			return err
		}
		constraint.Grammar = made.grammar
	}
	var err error
	if constraint.Think, err = thinkRule(m, g.Reading, r.Thinking, made != nil); err != nil {
		return err
	}
	if r.Choice.Mode == ChooseNone && r.tools && made == nil {
		if id, ok := callTag(m); ok {
			constraint.Excluded = []int32{id}
		}
	}
	if constraint.Grammar != nil || constraint.Think != nil || constraint.Excluded != nil {
		g.Request.Constraint = constraint
	}
	return nil
}

// heldBy is what of the request has the answer held to a form.
func heldBy(r *Request) string {
	switch {
	case r.Form.Field != "":
		return r.Form.Field
	case r.Choice.Mode == ChooseAuto && r.Choice.Names == nil:
		return "tools that are strict"
	}
	return r.Choice.Field
}

// callTag is the token that calls begin with, where it is one.
func callTag(m *catalog.Model) (int32, bool) {
	ids, err := m.Tokenizer.Encode(toolgrammar.Opening(m.ToolFormat), false)
	if err != nil || len(ids) != 1 {
		return 0, false
	}
	return ids[0], true
}

// thinkRule says where an answer's form begins behind its thoughts, and how long those may be; nil where it makes no difference.
func thinkRule(m *catalog.Model, reading *answer.Options, t Thinking, held bool) (*plugins.ThinkRule, error) {
	if !held && t.Budget == nil || m.Reasoning.Open == "" {
		return nil, nil
	}
	rule := &plugins.ThinkRule{}
	switch reading.State {
	case answer.MayOpen:
	case answer.Opened, answer.Inside:
		rule.Inside = true
	default:
		return nil, nil
	}
	var err error
	encode := func(text string) []int32 {
		ids, wrong := m.Tokenizer.Encode(text, false)
		if err == nil {
			err = wrong
		}
		return ids
	}
	rule.Close = encode(m.Reasoning.Close)
	if id, ok := callTag(m); held && reading.ReadCalls && ok { // a call in thoughts would end them, and be held to nothing
		rule.Without = []int32{id}
	}
	if !rule.Inside {
		rule.Open = encode(m.Reasoning.Open)
	}
	if t.Budget != nil {
		rule.Budget, rule.Forced = *t.Budget, append(append(encode("\n"), rule.Close...), encode(thinkingEnd)...)
	}
	if err != nil {
		return nil, fmt.Errorf("tokenize the tags of thoughts: %w", err)
	}
	return rule, nil
}
