package transformers

import (
	"testing"

	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// TestConformance has every case of the contract on a model of a family that no other backend has.
func TestConformance(t *testing.T) {
	l := sharedWorker(t, "contract", func() string { return foreignDir(t, "gemma2") }, map[string]any{"max_context_length": 64, "max_rank": 8})
	plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
		b, info := l.backend(t)
		return plugintest.Subject{Backend: b, Model: info, Places: 1, Late: true}
	})
}
