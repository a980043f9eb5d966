package jinja_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// goldenClock is the time at which the goldens were rendered.
func goldenClock() time.Time { return time.Date(2026, 11, 5, 9, 7, 3, 0, time.UTC) }

// TestPublishedTemplates renders the chat templates of published models over odd conversations and compares with what Python's jinja2 made of them.
// The templates' licences do not all allow shipping them, so they are outside the repository.
func TestPublishedTemplates(t *testing.T) {
	root := os.Getenv("TINSMITH_TESTDATA")
	if root == "" {
		t.Skip("TINSMITH_TESTDATA is not set: it names a folder with chat_templates and goldens/chat-jinja2")
	}
	data, err := os.ReadFile(filepath.Join(root, "goldens/chat-jinja2/rendered.json"))
	if err != nil {
		t.Fatal(err)
	}
	var goldens struct {
		Cases    map[string]json.RawMessage
		Rendered map[string]map[string]struct {
			Out *string
			Err string
		}
	}
	if err := json.Unmarshal(data, &goldens); err != nil {
		t.Fatal(err)
	}
	if len(goldens.Rendered) < 12 || len(goldens.Cases) < 17 {
		t.Fatalf("%d templates and %d cases; at least 12 and 17 are expected", len(goldens.Rendered), len(goldens.Cases))
	}
	for file, cases := range goldens.Rendered {
		source, err := os.ReadFile(filepath.Join(root, "chat_templates", file))
		if err != nil {
			t.Fatal(err)
		}
		template, err := jinja.Parse(file, string(source))
		if err != nil {
			t.Errorf("parse: %v", err)
			continue
		}
		for name, want := range cases {
			t.Run(file+"/"+name, func(t *testing.T) {
				vars, err := jinja.FromJSON(goldens.Cases[name])
				if err != nil {
					t.Fatal(err)
				}
				got, err := template.Render(t.Context(), vars.(*jinja.Dict), jinja.Options{Clock: goldenClock})
				if want.Out == nil {
					class, _, _ := strings.Cut(want.Err, ":")
					var failed *jinja.Error
					if !errors.As(err, &failed) || failed.Class != class {
						t.Fatalf("got error %v, want %s", err, want.Err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if got != *want.Out {
					t.Errorf("got\n%s\nwant\n%s", got, *want.Out)
				}
			})
		}
	}
}
