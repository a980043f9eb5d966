package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/gateway/internal/config"
	"github.com/tinsmith/tinsmith/plugins"
	"github.com/tinsmith/tinsmith/plugins/plugintest/fake"
)

// answering is a backend that says this to a vocabulary.
type answering struct {
	plugins.Backend
	err error
}

func (a answering) SetVocabulary(context.Context, plugins.Vocabulary) error { return a.err }

// A process is told what the tokens are, and constrains answers from then on. One that does not want to know is served all the same, and one that is lost meanwhile is not ready.
func TestVocabularyIsTold(t *testing.T) {
	const dir = "../../../configs/models/tiny-chat"
	cfg := config.DefaultModel()
	cfg.Name = "tiny"
	m, err := catalog.Load(cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	b := fake.New(fake.Options{})
	info, err := b.Load(t.Context(), plugins.LoadRequest{ModelDir: dir, Name: "tiny", Config: json.RawMessage(`{}`)}, func(plugins.LoadProgress) {})
	if err != nil {
		t.Fatal(err)
	}
	end, _ := m.Tokenizer.ID("</think>")
	req := plugins.SampleRequest{ID: "a", Version: plugins.LatestVersion, Prompt: []int32{1}, NumSamples: 1, MaxTokens: 2, TopP: 1, RepetitionPenalty: 1,
		Constraint: &plugins.Constraint{Think: &plugins.ThinkRule{Close: []int32{end}, Forced: []int32{end}, Inside: true}}}
	var first []int32
	sample := func() error {
		return b.Sample(t.Context(), req, func(e plugins.SampleEvent) error {
			if e.Tokens != nil && first == nil {
				first = e.Tokens.Tokens
			}
			return nil
		})
	}
	if err := sample(); !errors.Is(err, plugins.ErrInvalid) {
		t.Errorf("a constraint before the vocabulary is told: %v", err)
	}
	tell := vocabularyOf(m)
	if err := tell(t.Context(), b, info); err != nil {
		t.Fatal(err)
	}
	if err := sample(); err != nil || len(first) != 1 || first[0] != end {
		t.Errorf("thinking without a budget: %v, %v, want %d", first, err, end)
	}
	if err := tell(t.Context(), answering{err: plugins.Invalidf("constraint", "is not served")}, info); err != nil {
		t.Errorf("a backend that constrains nothing: %v", err)
	}
	if err := tell(t.Context(), answering{err: plugins.ErrBackendLost}, info); !errors.Is(err, plugins.ErrBackendLost) {
		t.Errorf("a backend that is lost: %v", err)
	}
	if vocabularyOf(&catalog.Model{}) != nil {
		t.Error("a model without a tokenizer has something to tell")
	}
}
