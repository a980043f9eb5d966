package tenants

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// TestPrefixes has the neighbour guess the prompt of another key: neither API may say that it was computed before, while its own repeats may.
func TestPrefixes(t *testing.T) {
	ctx := t.Context()
	server, ann, bob := start(t)
	prompt := ramp(5, 700)
	cached := func(c client) []int64 {
		session := must(c.session(ctx, object{}))(t)
		s := must(c.sampling(ctx, session, 0, ""))(t)
		var counts []int64
		for i := range 2 {
			counts = append(counts, must(s.draw(ctx, i, prompt, 1, 0))(t).cached)
		}
		return counts
	}
	anns := cached(ann)
	if anns[1] == 0 {
		t.Log("this server reports no cached tokens: the test can see nothing here")
	}
	bobs := cached(bob)
	if bobs[0] != 0 {
		t.Errorf("the sampler tells the neighbour that %d tokens of another key's prompt were computed before", bobs[0])
	}
	if bobs[1] != anns[1] {
		t.Errorf("a key's own repeat has %d cached tokens, another's %d", bobs[1], anns[1])
	}
	server.chats(t)
	chat := func(c client, text string) int64 {
		got := must(c.ok(ctx, http.MethodPost, "/v1/chat/completions", object{"model": *flagModel, "max_tokens": 1, "messages": []any{object{"role": "user", "content": text}}}))(t)
		usage, _ := got["usage"].(object)
		details, _ := usage["prompt_tokens_details"].(object)
		n, _ := details["cached_tokens"].(float64)
		return int64(n)
	}
	var text strings.Builder
	for i := range 200 {
		fmt.Fprintf(&text, "%d apples and %d pears. ", i*7, i*13)
	}
	chat(ann, text.String())
	if n := chat(ann, text.String()); n == 0 {
		t.Log("chat reports no cached tokens: the test can see nothing there")
	}
	if n := chat(bob, text.String()); n != 0 {
		t.Errorf("chat tells the neighbour that %d tokens of another key's prompt were computed before", n)
	}
}
