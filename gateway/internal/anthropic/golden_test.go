package anthropic

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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

// TestGolden compares answers and streams with testdata/answers.json, byte for byte but for where deltas are cut. The real SDKs are given that file in e2e/anthropic and e2e/node: what they make of a stream must
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
	text, err := os.ReadFile(file)
	w.OK(err)
	var want []golden
	w.OK(json.Unmarshal(text, &want))
	for i, got := range made {
		if i >= len(want) || got.Name != want[i].Name || !sameJSON(t, got.Whole, want[i].Whole) || joined(t, got.Stream) != joined(t, want[i].Stream) {
			t.Errorf("%s: the answer is another than in %s: look at what has changed after go test ./gateway/internal/anthropic -run TestGolden -update", got.Name, file)
		}
	}
	if len(want) != len(made) {
		t.Errorf("%d answers, and %s has %d", len(made), file, len(want))
	}
}

// sameJSON tells whether two values are the same but for white space.
func sameJSON(t *testing.T, a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	if err := errors.Join(json.Compact(&x, a), json.Compact(&y, b)); err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x.Bytes(), y.Bytes())
}

// joined has deltas that follow one another as one, and no ping but the first: how much of an answer is in each, and how many there are, depends on how fast it is made and read.
func joined(t *testing.T, stream string) string {
	type delta struct {
		Type  string            `json:"type"`
		Index int               `json:"index"`
		Delta map[string]string `json:"delta"`
	}
	var events []string
	var open *delta
	end := func() {
		if open != nil {
			events = append(events, fmt.Sprint(open.Index, open.Delta))
		}
		open = nil
	}
	pinged := false
	for _, event := range strings.Split(stream, "\n\n") {
		if strings.HasPrefix(event, "event: ping\n") {
			if pinged {
				continue // it took so long
			}
			pinged = true
		}
		const begin = "event: content_block_delta\ndata: "
		text, ok := strings.CutPrefix(event, begin)
		if !ok {
			end()
			events = append(events, event)
			continue
		}
		var d delta
		if err := json.Unmarshal([]byte(text), &d); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if open == nil || open.Index != d.Index || open.Delta["type"] != d.Delta["type"] {
			end()
			open = &d
			continue
		}
		for name, more := range d.Delta {
			if name != "type" {
				open.Delta[name] += more
			}
		}
	}
	end()
	return strings.Join(events, "\n\n")
}
