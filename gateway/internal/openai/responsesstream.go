package openai

import (
	"encoding/json"
	"net/http"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/sse"
)

// responseEvent is one event of a streamed response: those of its fields that its type has.
type responseEvent struct {
	Type         string          `json:"type"`
	Number       int             `json:"sequence_number"`
	Response     *responseObject `json:"response,omitempty"`
	OutputIndex  *int            `json:"output_index,omitempty"`
	ItemID       string          `json:"item_id,omitempty"`
	ContentIndex *int            `json:"content_index,omitempty"`
	Item         *item           `json:"item,omitempty"`
	Part         *textPart       `json:"part,omitempty"`
	Delta        *string         `json:"delta,omitempty"`
	Text         *string         `json:"text,omitempty"`
	Name         string          `json:"name,omitempty"`
	Arguments    *string         `json:"arguments,omitempty"`
	Input        *string         `json:"input,omitempty"`
	Logprobs     *[]chatLogprob  `json:"logprobs,omitempty"`

	*inference.Exact          // of the first event
	TokenIDs         *[]int32 `json:"token_ids,omitempty"` // since the event before
}

// emit sends an event, if the answer is a stream.
func (a *responseAnswer) emit(e responseEvent) error {
	if a.send == nil {
		return nil
	}
	e.Number = a.number
	a.number++
	if a.Exact {
		ids := append([]int32{}, a.unsaid...)
		e.TokenIDs, a.unsaid = &ids, nil
	}
	return a.send(e)
}

// emitItem sends an event about the open item.
func (a *responseAnswer) emitItem(e responseEvent) error {
	e.OutputIndex, e.ItemID = &a.open.index, a.object.Output[a.open.index].ID
	return a.emit(e)
}

// emitContent sends an event about the content of the open item, which has one part.
func (a *responseAnswer) emitContent(e responseEvent) error {
	first := 0
	e.ContentIndex = &first
	return a.emitItem(e)
}

// part takes the next part of the answer.
func (a *responseAnswer) part(p inference.Part) error {
	scores := 0
	if a.request.TopLogprobs >= 0 {
		scores = len(p.Tokens) * (1 + a.request.TopLogprobs)
	}
	if err := a.kept.Take(a.Weigh(p), scores); err != nil {
		return err
	}
	if a.Exact && a.send != nil {
		a.unsaid = append(a.unsaid, inference.IDs(p.Tokens)...)
	}
	if !a.begun {
		a.begun = true
		if err := a.start(); err != nil {
			return err
		}
	}
	if a.request.TopLogprobs >= 0 {
		for _, t := range p.Tokens {
			end := !a.Exact && a.Generation.Ends(t.ID) // is kept for the next turn, and is no text
			if a.counted++; a.counted > p.Thoughts && !end {
				a.pending = append(a.pending, t)
			}
		}
	}
	for _, e := range p.Events {
		if err := a.event(e); err != nil {
			return err
		}
	}
	if p.Reason == "" {
		return nil
	}
	a.finished = p
	status := statusCompleted
	if p.Reason == inference.FinishLength {
		status = statusIncomplete
	}
	return a.end(status)
}

// start sends what every stream begins with.
func (a *responseAnswer) start() error {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		e := responseEvent{Type: kind, Response: &a.object}
		if a.number == 0 {
			e.Exact = a.ExactPrompt()
		}
		if err := a.emit(e); err != nil {
			return err
		}
	}
	return nil
}

// event takes one step of the answer.
func (a *responseAnswer) event(e answer.Event) error {
	switch e.Kind {
	case answer.Reasoning:
		if a.request.Thinking.Hidden {
			return nil
		}
		return a.text(itemReasoning, e.Text)
	case answer.Content:
		return a.text(itemMessage, e.Text)
	case answer.CallBegin:
		a.pending = nil
		if err := a.end(statusCompleted); err != nil {
			return err
		}
		kind := itemCall
		if a.tools.custom[e.Name] {
			kind = itemCustomCall
		}
		return a.added(item{Type: kind, CallID: e.ID, Name: e.Name})
	case answer.CallArguments:
		a.open.text.WriteString(e.Text)
		if a.object.Output[a.open.index].Type == itemCustomCall { // its input is inside of them
			return nil
		}
		return a.emitItem(responseEvent{Type: "response.function_call_arguments.delta", Delta: &e.Text})
	case answer.CallEnd:
		a.pending = nil
		return a.end(statusCompleted)
	}
	return nil
}

// added begins an item.
func (a *responseAnswer) added(i item) error {
	begun := *a.newItem(i)
	return a.emit(responseEvent{Type: "response.output_item.added", OutputIndex: &a.open.index, Item: &begun})
}

// text adds to an item with a content of text, which is begun if it is not the last.
func (a *responseAnswer) text(kind, text string) error {
	if a.open == nil || a.object.Output[a.open.index].Type != kind {
		if err := a.end(statusCompleted); err != nil {
			return err
		}
		begun := item{Type: kind}
		if kind == itemMessage {
			begun.Role = "assistant"
		}
		if err := a.added(begun); err != nil {
			return err
		}
		part := emptyPart(kind)
		if err := a.emitContent(responseEvent{Type: "response.content_part.added", Part: &part}); err != nil {
			return err
		}
	}
	a.open.text.WriteString(text)
	if kind == itemReasoning {
		return a.emitContent(responseEvent{Type: "response.reasoning_text.delta", Delta: &text})
	}
	logprobs := []chatLogprob{}
	if a.request.TopLogprobs >= 0 {
		logprobs = append(logprobs, logprobsOf(a.Model, a.pending, a.TokensAsIDs)...)
		a.open.logprobs, a.pending = append(a.open.logprobs, logprobs...), nil
	}
	return a.emitContent(responseEvent{Type: "response.output_text.delta", Delta: &text, Logprobs: &logprobs})
}

func emptyPart(kind string) textPart {
	if kind == itemReasoning {
		return textPart{Type: partReasoning}
	}
	return textPart{Type: partOutput}
}

// end ends the open item, if there is one.
func (a *responseAnswer) end(status string) error {
	if a.open == nil {
		return nil
	}
	i := &a.object.Output[a.open.index]
	i.Status = status
	var err error
	switch text := a.open.text.String(); i.Type {
	case itemCall:
		if text == "" {
			text = "{}"
		}
		i.Text = text
		err = a.emitItem(responseEvent{Type: "response.function_call_arguments.done", Name: i.Name, Arguments: &text})
	case itemCustomCall:
		i.Text = customText(text)
		err = a.endCustom(i.Text)
	default:
		err = a.endText(i, text)
	}
	if err != nil {
		return err
	}
	done := *i
	err = a.emit(responseEvent{Type: "response.output_item.done", OutputIndex: &a.open.index, Item: &done})
	a.open = nil
	return err
}

// endCustom tells of the input of a custom tool, in one piece: it comes out of JSON.
func (a *responseAnswer) endCustom(input string) error {
	if input != "" {
		if err := a.emitItem(responseEvent{Type: "response.custom_tool_call_input.delta", Delta: &input}); err != nil {
			return err
		}
	}
	return a.emitItem(responseEvent{Type: "response.custom_tool_call_input.done", Input: &input})
}

// customText is the input of a custom tool, from the arguments of the function that it was to the model; these themselves where they are not what they should be.
func customText(arguments string) string {
	var f struct {
		Input *string `json:"input"`
	}
	if json.Unmarshal([]byte(arguments), &f) != nil || f.Input == nil {
		return arguments
	}
	return *f.Input
}

// endText ends an item with a content of text.
func (a *responseAnswer) endText(i *item, text string) error {
	part := emptyPart(i.Type)
	part.Text, part.Logprobs = text, a.open.logprobs
	i.Content = []textPart{part}
	e := responseEvent{Type: "response.reasoning_text.done", Text: &text}
	if i.Type == itemMessage {
		logprobs := append([]chatLogprob{}, a.open.logprobs...)
		e = responseEvent{Type: "response.output_text.done", Text: &text, Logprobs: &logprobs}
	} else if a.encrypts() {
		i.Encrypted = sealReasoning(text)
	}
	if err := a.emitContent(e); err != nil {
		return err
	}
	return a.emitContent(responseEvent{Type: "response.content_part.done", Part: &part})
}

// responseErrorEvent tells of an error in the middle of a stream.
type responseErrorEvent struct {
	Type    string `json:"type"`
	Number  int    `json:"sequence_number"`
	Code    any    `json:"code"`
	Message string `json:"message"`
	Param   any    `json:"param"`
}

func (a *responseAnswer) stream(c inference.Call) error {
	events := sse.New(c.Context, sse.Comment)
	defer events.Close()
	a.Generation.Accepted = events.Accept
	a.send = func(e responseEvent) error { return events.Send(e.Type, e) }
	err := a.Run(c.Request.Context(), a.part)
	if err == nil {
		err = a.finish(c)
	}
	return events.End(err, func(err error) error {
		if err == nil {
			return a.emit(responseEvent{Type: "response." + a.object.Status, Response: &a.object})
		}
		told := inference.Told(c.Context, err, "stream failed")
		failed := responseErrorEvent{Type: "error", Number: a.number, Code: orNull(told.Code), Message: told.Message, Param: orNull(told.Param)}
		a.number++
		if err := events.Send(failed.Type, failed); err != nil {
			return err
		}
		o := &a.object
		o.Status, o.CompletedAt, o.IncompleteDetails, o.Usage = statusFailed, nil, nil, usageOf(&a.Usage)
		o.Error = &responseError{failureCode(told.Status), told.Message}
		if a.open != nil { // what has come of it
			i := &o.Output[a.open.index]
			i.Status, i.Text = statusIncomplete, a.open.text.String()
			if i.Type == itemMessage || i.Type == itemReasoning {
				part := emptyPart(i.Type)
				part.Text, part.Logprobs = i.Text, a.open.logprobs
				i.Content = []textPart{part}
			}
		}
		return a.emit(responseEvent{Type: "response.failed", Response: o})
	})
}

// failureCode is what a failed response says of an error, of the codes that there are.
func failureCode(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_exceeded"
	case status < http.StatusInternalServerError && status != http.StatusFailedDependency:
		return "invalid_prompt"
	}
	return "server_error"
}
