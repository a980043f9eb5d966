package openai

import (
	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/inference"
)

// chatDelta is the new part of a streamed choice. What is said once, as the role and a call's name, must not be said again: clients add up what they get.
type chatDelta struct {
	Role             string         `json:"role,omitempty"`
	Content          *string        `json:"content,omitempty"`
	ReasoningContent *string        `json:"reasoning_content,omitempty"`
	Reasoning        *string        `json:"reasoning,omitempty"`
	ToolCalls        []calledTool   `json:"tool_calls,omitempty"`
	FunctionCall     *functionDelta `json:"function_call,omitempty"`
}

// functionDelta is a part of a call in the form of functions.
type functionDelta struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

type chatChunkChoice struct {
	Index        int       `json:"index"`
	Delta        chatDelta `json:"delta"`
	Logprobs     any       `json:"logprobs"`
	FinishReason *string   `json:"finish_reason"`
	StopReason   any       `json:"stop_reason,omitempty"`
	*exactChoice
	SchemaErrors []inference.SchemaError `json:"schema_errors,omitempty"`
}

// delta is what an event adds to a choice; ok is false if the client is not to see it.
func (a *chatAnswer) delta(e answer.Event) (d chatDelta, ok bool) {
	text := e.Text
	switch e.Kind {
	case answer.Content:
		d.Content = &text
	case answer.Reasoning:
		if a.hidden {
			return d, false
		}
		d.ReasoningContent, d.Reasoning = &text, &text
	case answer.CallBegin:
		if a.legacy {
			d.FunctionCall = &functionDelta{Name: e.Name}
			return d, e.Index == 0
		}
		index := e.Index
		d.ToolCalls = []calledTool{{Index: &index, ID: e.ID, Type: "function", Function: calledObject{Name: e.Name}}}
	case answer.CallArguments:
		if a.legacy {
			d.FunctionCall = &functionDelta{Arguments: text}
			return d, e.Index == 0
		}
		index := e.Index
		d.ToolCalls = []calledTool{{Index: &index, Function: calledObject{Arguments: text}}}
	default:
		return d, false
	}
	return d, true
}

// chunks are the events of a part. Its log-probabilities come with the first of them.
func (a *chatAnswer) chunks(p inference.Part) (out []chatChunkChoice, err error) {
	if !a.begun[p.Sequence] {
		a.begun[p.Sequence] = true
		empty := ""
		out = append(out, chatChunkChoice{Index: p.Sequence, Delta: chatDelta{Role: "assistant", Content: &empty}})
	}
	first := len(out)
	for _, e := range p.Events {
		if d, ok := a.delta(e); ok {
			out = append(out, chatChunkChoice{Index: p.Sequence, Delta: d, Logprobs: a.logprobsObject(nil)})
		}
	}
	if (a.logprobs || a.Exact) && len(p.Tokens) > 0 {
		if first == len(out) {
			empty := ""
			out = append(out, chatChunkChoice{Index: p.Sequence, Delta: chatDelta{Content: &empty}})
		}
		if a.logprobs {
			out[first].Logprobs = a.logprobsObject(a.logprobsOf(p.Tokens))
		}
	}
	if p.Reason != "" {
		reason := a.reason(p.Reason)
		out = append(out, chatChunkChoice{Index: p.Sequence, FinishReason: &reason, StopReason: p.Stop, SchemaErrors: a.SchemaErrors(p.Sequence)})
	}
	return a.withTokens(p, out)
}

// withTokens puts a part's tokens to the last of its chunks: what has been said before stands with the tokens that said it. The last chunk of all has the Datum.
func (a *chatAnswer) withTokens(p inference.Part, chunks []chatChunkChoice) ([]chatChunkChoice, error) {
	if !a.Exact || len(chunks) == 0 {
		return chunks, nil
	}
	for i := range chunks {
		chunks[i].exactChoice = &exactChoice{TokenIDs: []int32{}}
	}
	last := chunks[len(chunks)-1].exactChoice
	last.TokenIDs, last.ConstraintLogprobs = inference.IDs(p.Tokens), a.ConstraintLogprobsOf(p.Tokens)
	if p.Reason != "" {
		var err error
		last.SequenceID = a.SequenceID(p.Sequence)
		last.Datum, err = a.Datum(p.Sequence)
		return chunks, err
	}
	return chunks, nil
}

func (a *chatAnswer) stream(c inference.Call) error {
	return stream(c, a.head("chat.completion.chunk"), &a.request.Parameters, &a.Usage, a.ExactPrompt, func(accepted func(), emit func(chatChunkChoice) error) error {
		a.Generation.Accepted = accepted
		return a.Run(c.Request.Context(), func(p inference.Part) error {
			chunks, err := a.chunks(p)
			if err != nil {
				return err
			}
			for _, chunk := range chunks {
				if err := emit(chunk); err != nil {
					return err
				}
			}
			return nil
		})
	})
}
