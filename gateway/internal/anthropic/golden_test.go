package anthropic

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

var update = flag.Bool("update", false, "write testdata/answers.json")

// random are the parts of an answer that are others every time.
var random = regexp.MustCompile(`"(msg|toolu|req)_[A-Za-z0-9]+"`)

// TestGolden compares answers and streams, byte for byte, with testdata/answers.json. The real SDKs are given that file in e2e/anthropic and e2e/node: what they make of a stream must
// be what they make of the whole answer.
func TestGolden(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	type golden struct {
		Name   string          `json:"name"`
		Whole  json.RawMessage `json:"whole"`
		Stream string          `json:"stream"`
	}
	var made []golden
	for _, c := range answers {
		w.Says(c.says)
		f := asking("weather?").With(fields{"tools": []fields{weather}}).With(c.change)
		ask := func(stream bool) string {
			status, _, b := w.Send(http.MethodPost, "/v1/messages", f.With(fields{"stream": stream}).Text(), w.header)
			if status != http.StatusOK {
				t.Fatalf("%s: %d %s", c.name, status, b)
			}
			return random.ReplaceAllStringFunc(string(b), func(id string) string { return id[:strings.Index(id, "_")] + `_0"` })
		}
		made = append(made, golden{c.name, json.RawMessage(ask(false)), ask(true)})
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	w.OK(encoder.Encode(made))
	const file = "testdata/answers.json"
	if *update {
		w.OK(os.WriteFile(file, b.Bytes(), 0o644))
	}
	want, err := os.ReadFile(file)
	w.OK(err)
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("the answers are others than in %s: look at what has changed after go test ./gateway/internal/anthropic -run TestGolden -update", file)
	}
}
