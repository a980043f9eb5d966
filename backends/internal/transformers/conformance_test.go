package transformers

import (
	"testing"

	"github.com/tinsmith/tinsmith/plugins/plugintest"
)

// TestConformance has every case of the contract on a golden model of ours and on one of a family that no other backend has.
func TestConformance(t *testing.T) {
	for name, dir := range map[string]func() string{
		"llama":  func() string { return goldenDir(t, "llama") },
		"gemma2": func() string { return foreignDir(t, "gemma2") },
	} {
		t.Run(name, func(t *testing.T) {
			l := sharedWorker(t, "contract-"+name, dir, map[string]any{"max_context_length": 64, "max_rank": 8, "threads": 1})
			plugintest.RunAll(t, func(t *testing.T) plugintest.Subject {
				b, info := l.backend(t)
				return plugintest.Subject{Backend: b, Model: info, Places: 1, Late: true}
			})
		})
	}
}
