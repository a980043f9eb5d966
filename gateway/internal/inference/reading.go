package inference

import (
	"encoding/json"

	"github.com/tinsmith/tinsmith/gateway/internal/answer"
	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
)

// Read has the answer to a prompt read as thoughts, content and calls of the given tools.
func (g *Generation) Read(m *catalog.Model, prompt Prompt, tools []Tool, choice Choice, thinking Thinking) {
	state := m.Reasoning.At(prompt.Text)
	if g.AfterPrompt {
		state = m.Reasoning.Continued(prompt.Turn)
	}
	g.Reading = &answer.Options{
		Format: m.ToolFormat, Tools: readable(tools), ReadCalls: len(tools) > 0 && choice.Mode != ChooseNone, Tags: m.Reasoning, State: state, SkipSpecial: g.skipSpecial,
	}
	if choice.Single {
		g.Reading.MaxCalls = 1
	}
	if thinking.Raw {
		g.Reading.Lead, g.Reading.Tags = m.Reasoning.Opening(prompt.Text), answer.Tags{}
	}
}

// BoundExtras is [Service.Bound] for what templates are given beside messages and tools. It gives the bytes of it.
func (s *Service) BoundExtras(c Call, m *catalog.Model, documents []json.RawMessage, kwargs map[string]json.RawMessage) (size int, err error) {
	for _, raw := range documents {
		size += len(raw)
	}
	if err := s.Bound(c, m, "documents", size); err != nil {
		return 0, err
	}
	named := 0
	for name, raw := range kwargs {
		named += len(name) + len(raw)
	}
	return size + named, s.Bound(c, m, "chat_template_kwargs", named)
}

// BoundMessages refuses messages that are longer than a prompt of the model can be, before they are parsed.
func (s *Service) BoundMessages(c Call, m *catalog.Model, messages []json.RawMessage) error {
	size := 0
	for _, raw := range messages {
		size += len(raw)
	}
	return s.Bound(c, m, "messages", size)
}
