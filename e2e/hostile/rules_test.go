package hostile

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// mostMemory is what the server may have had resident at most, after everything here.
const mostMemory = 256 << 20

// TestHostileRules serves models whose templates and tokenizers ask for more than a server has: every request is refused with the rule's name, many at a time too,
// and another model answers meanwhile. What each of many such rules costs is counted in the tests of the packages that follow them.
func TestHostileRules(t *testing.T) {
	template := func(source string) func(dir string) {
		return func(dir string) { write(t, filepath.Join(dir, "chat_template.jinja"), []byte(source)) }
	}
	rule := func(key string, value any) func(dir string) {
		return func(dir string) {
			edit(t, filepath.Join(dir, "tokenizer.json"), func(o object) { o[key] = value })
		}
	}
	var doublings []object
	for range 60 {
		doublings = append(doublings, object{"type": "Replace", "pattern": object{"String": "e"}, "content": "ee"})
	}
	kinds := []struct {
		name   string
		change func(dir string)
		words  []string
	}{
		{"loops", template("{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"), []string{"line 1: for:", "100000000 steps"}},
		{"doubling", template("{% set ns = namespace(s=[1]) %}{% for i in range(100) %}\n{% set ns.s = ns.s + ns.s %}{% endfor %}"), []string{"line 2: operator +:", "67108864 bytes"}},
		{"sorts", template("\n\n{% for i in range(99999) %}{{ range(99999)|sort|length }}{% endfor %}"), []string{"line 3: filter sort:"}},
		{"output", template("{% for a in range(99999) %}" + strings.Repeat("x", 1000) + "{% endfor %}"), []string{"text:", "67108864 bytes"}},
		{"normalizer", rule("normalizer", object{"type": "Sequence", "normalizers": doublings}), []string{"normalizer.normalizers[", "(Replace)"}},
		{"expression", rule("pre_tokenizer", object{"type": "Split", "pattern": object{"Regex": "(?:e|e|ee)+$b"}, "behavior": "Isolated", "invert": false}), []string{"pre_tokenizer (Split)"}},
	}
	config := oneModel()
	for _, k := range kinds {
		dir := copyModel(t)
		k.change(dir)
		config["models"] = append(config["models"].([]any), object{"name": k.name, "path": dir, "backend": object{"plugin": "single", "device": "cpu", "threads": 1}})
	}
	s, err := begin(t.TempDir(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	defer s.check(t, 0)
	ann, bob := s.as("ann"), s.as("bob")
	ask := func(c client, model string) answer {
		return c.post(t, "/v1/chat/completions", object{"model": model, "max_tokens": 4, "messages": []object{{"role": "user", "content": strings.Repeat("e", 4000)}}})
	}
	for _, k := range kinds {
		ask(ann, k.name).refused(t, k.words...)
	}
	slowest := func() time.Duration { // of bob's 20 requests, but one
		var times []time.Duration
		for range 20 {
			begun := time.Now()
			ask(bob, modelName).ok(t)
			times = append(times, time.Since(begun))
		}
		slices.Sort(times)
		return times[18]
	}
	slowest()
	alone := slowest()
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 4 {
				// Who finds no place in time is told to come again.
				if got := ask(ann, kinds[(i+j)%len(kinds)].name); got.status != http.StatusBadRequest && got.status != http.StatusTooManyRequests {
					t.Errorf("%s: %s", kinds[(i+j)%len(kinds)].name, got)
				}
			}
		})
	}
	beside := slowest()
	all.Wait()
	t.Logf("the 95th percentile of a neighbour's chats: alone %v, beside these %v", alone, beside)
	if most := s.Memory(t, "VmHWM"); most > mostMemory {
		t.Errorf("the server has had %d MiB resident", most>>20)
	}
}
