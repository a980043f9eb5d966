package inference

import (
	"slices"
	"strings"

	"github.com/tinsmith/tinsmith/gateway/internal/chat/jinja"
)

// Templates refuse conversations that clients have every day: more than one system message, or one later than at the beginning, and several tool calls in one turn.
// adaptations tell such a conversation in another way. Nothing is moved to the front: what the model has read before stays where it was, so that it need not be read again.
var adaptations = []func([]*jinja.Dict) ([]*jinja.Dict, bool){joinSystems, remindLater, splitCalls}

// joinSystems makes one of the system messages that a conversation begins with.
func joinSystems(messages []*jinja.Dict) ([]*jinja.Dict, bool) {
	n := 0
	var texts []string
	for n < len(messages) && roleOf(messages[n]) == "system" {
		texts = append(texts, textOf(messages[n], "content"))
		n++
	}
	if n < 2 {
		return messages, false
	}
	return append([]*jinja.Dict{with(messages[0], "content", jinja.Str(strings.Join(texts, "\n\n")))}, messages[n:]...), true
}

const (
	reminderBegin = "<system-reminder>\n"
	reminderEnd   = "\n</system-reminder>"
)

// remindLater makes every system message after the first message a reminder in a user's message at its place, joined with a user's message beside it.
func remindLater(messages []*jinja.Dict) ([]*jinja.Dict, bool) {
	did := false
	var out []*jinja.Dict
	reminds := false // the last of out is a reminder that the next user's message joins
	for i, m := range messages {
		role := roleOf(m)
		switch {
		case role == "system" && i > 0:
			did = true
			reminder := reminderBegin + textOf(m, "content") + reminderEnd
			if last := len(out) - 1; roleOf(out[last]) == "user" {
				out[last] = with(out[last], "content", jinja.Str(textOf(out[last], "content")+"\n\n"+reminder))
				continue
			}
			user := &jinja.Dict{}
			user.Set("role", jinja.Str("user"))
			user.Set("content", jinja.Str(reminder))
			out, reminds = append(out, user), true
			continue
		case role == "user" && reminds:
			last := len(out) - 1
			out[last] = with(m, "content", jinja.Str(textOf(out[last], "content")+"\n\n"+textOf(m, "content")))
		default:
			out = append(out, m)
		}
		reminds = false
	}
	return out, did
}

// splitCalls makes of a turn with several tool calls one turn for each, with its result behind it.
func splitCalls(messages []*jinja.Dict) ([]*jinja.Dict, bool) {
	did := false
	var out []*jinja.Dict
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		calls := callsOf(m)
		if len(calls) < 2 {
			out = append(out, m)
			continue
		}
		did = true
		results := resultsAfter(messages, i)
		i += len(results)
		for k, call := range calls {
			turn := with(m, "tool_calls", &jinja.List{Items: []jinja.Value{call}})
			if k > 0 {
				turn = bare(turn)
			}
			out = append(out, turn)
			if at := resultOf(results, call, k, len(calls)); at >= 0 {
				out = append(out, results[at])
				results[at] = nil
			}
		}
		for _, r := range results {
			if r != nil {
				out = append(out, r)
			}
		}
	}
	return out, did
}

// bare is an assistant's turn without what it says beside its calls.
func bare(turn *jinja.Dict) *jinja.Dict {
	out := &jinja.Dict{}
	for i := range turn.Len() {
		key, value := turn.At(i)
		switch key {
		case jinja.Value(jinja.Str("reasoning_content")), jinja.Value(jinja.Str("reasoning")), jinja.Value(jinja.Str("thinking")):
		case jinja.Value(jinja.Str("content")):
			out.Set("content", jinja.Str(""))
		default:
			if name, ok := key.(jinja.Str); ok {
				out.Set(string(name), value)
			}
		}
	}
	return out
}

// resultOf finds the result of the k-th of n calls: by its id, or by its place where the results name none. -1: there is none.
func resultOf(results []*jinja.Dict, call jinja.Value, k, n int) int {
	id := idOf(call)
	for i, r := range results {
		if r != nil && id != "" && textOf(r, "tool_call_id") == id {
			return i
		}
	}
	if len(results) == n && results[k] != nil && textOf(results[k], "tool_call_id") == "" {
		return k
	}
	return -1
}

// orderResults puts tool results in the order of their calls where all of them name one, and gives a result without a name that of its function: templates count on both.
func orderResults(messages []*jinja.Dict) []*jinja.Dict {
	out := slices.Clone(messages)
	for i, m := range out {
		calls := callsOf(m)
		if len(calls) == 0 {
			continue
		}
		place := map[string]int{}
		names := map[string]string{}
		for k, call := range calls {
			id := idOf(call)
			if _, twice := place[id]; id == "" || twice {
				continue
			}
			place[id] = k
			names[id] = functionName(call)
		}
		results := resultsAfter(out, i)
		all := true
		for k, r := range results {
			id := textOf(r, "tool_call_id")
			if _, ok := place[id]; !ok {
				all = false
				continue
			}
			if textOf(r, "name") == "" && names[id] != "" {
				results[k] = with(r, "name", jinja.Str(names[id]))
			}
		}
		if all {
			slices.SortStableFunc(results, func(a, b *jinja.Dict) int { return place[textOf(a, "tool_call_id")] - place[textOf(b, "tool_call_id")] })
		}
		copy(out[i+1:], results)
	}
	return out
}

// resultsAfter copies the tool results that follow a message.
func resultsAfter(messages []*jinja.Dict, at int) []*jinja.Dict {
	end := at + 1
	for end < len(messages) && roleOf(messages[end]) == "tool" {
		end++
	}
	return slices.Clone(messages[at+1 : end])
}

func roleOf(m *jinja.Dict) string { return textOf(m, "role") }

// textOf is the text under a key, "" if there is none.
func textOf(m *jinja.Dict, key string) string {
	value, _ := m.Get(key)
	text, _ := value.(jinja.Str)
	return string(text)
}

func with(m *jinja.Dict, key string, value jinja.Value) *jinja.Dict {
	out := m.Clone()
	out.Set(key, value)
	return out
}

func callsOf(m *jinja.Dict) []jinja.Value {
	value, _ := m.Get("tool_calls")
	list, ok := value.(*jinja.List)
	if !ok {
		return nil
	}
	return list.Items
}

func idOf(call jinja.Value) string {
	d, ok := call.(*jinja.Dict)
	if !ok {
		return ""
	}
	return textOf(d, "id")
}

func functionName(call jinja.Value) string {
	d, ok := call.(*jinja.Dict)
	if !ok {
		return ""
	}
	f, _ := d.Get("function")
	function, ok := f.(*jinja.Dict)
	if !ok {
		return ""
	}
	return textOf(function, "name")
}
