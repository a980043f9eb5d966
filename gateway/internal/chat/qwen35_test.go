package chat_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/chat"
)

// TestQwen35 renders conversations by Qwen3.5's template, and compares with what transformers makes of them. The expected texts are those of the smallest model, whose template differs in what it does where a request does not say
// whether to think; those that say it are equal.
func TestQwen35(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set")
	}
	source, err := os.ReadFile(filepath.Join(root, "chat_templates", "Qwen3.5-4B.jinja"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, "goldens", "chat", "qwen35_chat.json"))
	if err != nil {
		t.Fatal(err)
	}
	var golden struct {
		Cases []struct {
			Messages   []map[string]any
			Tools      []any
			Thinking   *bool `json:"enable_thinking"`
			Generation bool  `json:"add_generation_prompt"`
			Expected   string
		}
	}
	if err := json.Unmarshal(raw, &golden); err != nil {
		t.Fatal(err)
	}
	template, err := chat.NewTemplate(string(source), nil)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for i, c := range golden.Cases {
		if c.Thinking == nil {
			continue
		}
		request := map[string]any{"messages": c.Messages, "add_generation_prompt": c.Generation, "kwargs": map[string]any{"enable_thinking": *c.Thinking}}
		if c.Tools != nil {
			request["tools"] = c.Tools
		}
		text, err := json.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		got, err := template.Render(t.Context(), decodeConversation(t, string(text)))
		if err != nil {
			t.Fatal(err)
		}
		if compared++; got != c.Expected {
			t.Errorf("case %d:\ngot  %q\nwant %q", i, got, c.Expected)
		}
	}
	if compared < 3 {
		t.Errorf("%d conversations compared", compared)
	}
}
