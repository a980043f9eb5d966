package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestQwen35 compares with Hugging Face tokenizers over texts with marks that combine, which Qwen3.5 counts as letters and Qwen2 does not; the pattern has a scanner.
func TestQwen35(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	dir := filepath.Join(root, "families", "tokenizer-qwen3.5")
	tok, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if tok.scan == nil {
		t.Error("the pattern has no scanner")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Text, Decoded string
		IDs           []int32
	}
	if err := json.Unmarshal(raw, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		ids, err := tok.Encode(c.Text, false)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ids, c.IDs) {
			t.Errorf("%q: %v, want %v", c.Text, ids, c.IDs)
		}
		if got := tok.Decode(ids, false); got != c.Decoded {
			t.Errorf("%q is decoded as %q, want %q", c.Text, got, c.Decoded)
		}
	}
	if len(cases) < 10 {
		t.Errorf("%d texts compared", len(cases))
	}
}
