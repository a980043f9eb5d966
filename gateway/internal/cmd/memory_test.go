package cmd

import (
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/plugins"
)

func TestWriteMemory(t *testing.T) {
	var b strings.Builder
	if err := writeMemory(&b, "a model", nil); err != nil || b.Len() != 0 {
		t.Fatalf("no plan: %q, %v", b.String(), err)
	}
	err := writeMemory(&b, "a model", []plugins.MemoryShare{
		{Name: "limit", Detail: "none"},
		{Name: "keys and values", Bytes: 96 << 20, Detail: "65536 tokens"},
		{Name: "training", Bytes: 18107<<20 + 1<<19, Detail: "passes of 2048 tokens"},
	})
	want := `
memory of a model
  limit                          none
  keys and values      96.0 MiB  65536 tokens
  training          18107.5 MiB  passes of 2048 tokens
`
	if err != nil || b.String() != want {
		t.Errorf("%v, got%s, want%s", err, b.String(), want)
	}
}
