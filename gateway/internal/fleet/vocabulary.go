package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/tinsmith/tinsmith/gateway/internal/catalog"
	"github.com/tinsmith/tinsmith/plugins"
)

// vocabularyOf gives what tells each process of a model what its tokens stand for. A backend that does not want to know serves the model all the same: it refuses requests with constraints itself, by name. Without a tokenizer
// there is nothing to tell.
func vocabularyOf(m *catalog.Model) func(context.Context, plugins.Backend, plugins.ModelInfo) error {
	if m.Tokenizer == nil {
		return nil
	}
	return func(ctx context.Context, b plugins.Backend, model plugins.ModelInfo) error {
		err := b.SetVocabulary(ctx, m.Vocabulary(model.VocabSize))
		if errors.Is(err, plugins.ErrInvalid) {
			slog.Warn("the backend does not take the model's vocabulary: answers cannot be constrained", "model", m.Name, "error", err)
			return nil
		}
		if err != nil {
			return fmt.Errorf("tell the vocabulary: %w", err)
		}
		return nil
	}
}
