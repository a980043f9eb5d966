package openai

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/inference"
	"github.com/tinsmith/tinsmith/gateway/internal/runs"
	"github.com/tinsmith/tinsmith/gateway/internal/store"
)

// get reads a JSON object, and demands that it is what the schema allows.
func (w *world) get(path, schema string) map[string]any {
	w.Helper()
	status, _, b := w.send(http.MethodGet, path, "")
	if status != http.StatusOK {
		w.Fatalf("%s: %d %s", path, status, b)
	}
	out := parsed(w, string(b)).(map[string]any)
	w.check(w, schema, out)
	return out
}

// prefixOf reads what a response tells of its tokens.
func prefixOf(response map[string]any) (tokens []int32, sampled []int32, exact bool) {
	ids := func(key string) (out []int32) {
		list, _ := response[key].([]any)
		for _, id := range list {
			out = append(out, int32(id.(float64)))
		}
		return out
	}
	prefix, _ := response["prefix"].(map[string]any)
	exact, _ = prefix["exact"].(bool)
	return ids("prompt_token_ids"), ids("token_ids"), exact
}

// TestPreviousResponse: a response that goes on from another one reads the very tokens that were read and sampled before, and behind them what is new; also when it is told by items what was said.
func TestPreviousResponse(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	ask := fields{"model": modelName, "tools": []fields{flat(weather)}, "max_output_tokens": 200, "seed": 7, "return_token_ids": true}
	w.says(oddCall(0))
	last := w.respond(ask.with(fields{"input": "weather?", "instructions": "Be brief."}))
	for turn := 1; turn < 5; turn++ {
		w.says(oddCall(turn))
		read, sampled, _ := prefixOf(last)
		call := last["output"].([]any)[0].(map[string]any)
		output := fields{"type": "function_call_output", "call_id": call["call_id"], "output": fmt.Sprintf("sunny %d", turn)}
		next := ask.with(fields{"previous_response_id": last["id"], "input": []any{output}, "instructions": "Be brief."})
		if turn%2 == 0 {
			_, last = w.followed(next)
		} else {
			last = w.respond(next)
		}
		now, _, exact := prefixOf(last)
		before := append(slices.Clone(read), sampled...)
		if !exact || len(now) <= len(before) || !slices.Equal(now[:len(before)], before) {
			t.Fatalf("turn %d: exact %v: %v does not begin with %v", turn, exact, now, before)
		}
		if got, want := w.model.Tokenizer.Decode(now[len(before):], false), fmt.Sprintf("\n<|im_start|>user\n<tool_response>\nsunny %d\n</tool_response><|im_end|>\n<|im_start|>assistant\n", turn); got != want {
			t.Errorf("turn %d goes on with %q, want %q", turn, got, want)
		}
	}
	// Without the instructions the conversation is another one: they are not carried over.
	w.says("Fine.")
	other := w.respond(ask.with(fields{"previous_response_id": last["id"], "input": "and?"}))
	tokens, _, exact := prefixOf(other)
	if text := w.model.Tokenizer.Decode(tokens, false); exact || strings.Contains(text, "Be brief.") || strings.Count(text, "<tool_response>") != 4 || !strings.HasSuffix(text, "and?<|im_end|>\n<|im_start|>assistant\n") {
		t.Errorf("exact %v: %s", exact, text)
	}
	// What has been said is also known by its items, all of which are listed.
	items := w.get(responsesPath+"/"+other["id"].(string)+"/input_items?order=asc&limit=100", "ResponseItemList")["data"].([]any)
	again := w.respond(ask.with(fields{"input": items, "store": false}))
	if got, _, _ := prefixOf(again); !slices.Equal(got, tokens) {
		t.Errorf("by its items the prompt is %q", w.model.Tokenizer.Decode(got, false))
	}
}

// TestStoredResponses: a response is there for its key until it is deleted, as it was answered.
func TestStoredResponses(t *testing.T) {
	path, made := keysFile(t, "ann", "bob")
	w := newWorld(t, options{change: keeping, keys: path})
	w.key = made["ann"]
	w.says("<think>\nHm.\n</think>\n\nFine.")
	input := []any{
		fields{"role": "user", "content": "hi"}, fields{"type": "message", "role": "developer", "content": []any{fields{"type": "input_text", "text": "be good"}}},
		fields{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}, fields{"type": "function_call_output", "call_id": "c1", "output": []any{fields{"type": "input_text", "text": "a"}}},
		fields{"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"}, fields{"type": "custom_tool_call_output", "call_id": "c2", "output": "b"},
		fields{"type": "reasoning", "id": "rs_1", "summary": []any{}, "encrypted_content": sealReasoning("thought")}, fields{"role": "assistant", "content": "ok"},
		fields{"type": "web_search_call", "id": "ws_1", "status": "completed"}, fields{"role": "user", "content": "and?"},
	}
	answered := w.respond(responding(input).with(fields{"metadata": fields{"a": "b"}}))
	id := answered["id"].(string)
	one := responsesPath + "/" + id
	if got := w.get(one, "Response"); !reflect.DeepEqual(got, answered) {
		t.Errorf("%v\nis not what was answered\n%v", got, answered)
	}
	listed := w.get(one+"/input_items?order=asc&limit=3", "ResponseItemList")
	all := listed["data"].([]any)
	if listed["has_more"] != true || len(all) != 3 || listed["first_id"] != all[0].(map[string]any)["id"] {
		t.Errorf("%v", listed)
	}
	listed = w.get(one+"/input_items?order=asc&after="+listed["last_id"].(string), "ResponseItemList")
	all = append(all, listed["data"].([]any)...)
	var kinds []string
	for _, i := range all {
		kinds = append(kinds, i.(map[string]any)["type"].(string))
	}
	if want := []string{"message", "message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning", "message", "message"}; !slices.Equal(kinds, want) || listed["has_more"] != false {
		t.Errorf("%v, want %v", kinds, want)
	}
	newest := w.get(one+"/input_items", "ResponseItemList")["data"].([]any)
	slices.Reverse(newest)
	if !reflect.DeepEqual(newest, all) {
		t.Errorf("%v\nis not\n%v", newest, all)
	}
	// An item can be referred to.
	message := answered["output"].([]any)[1].(map[string]any)["id"]
	w.says("Good.")
	count := func(input any) float64 {
		var n map[string]any
		w.answer(responsesPath+"/input_tokens", "TokenCountsResource", fields{"model": modelName, "input": input}, &n)
		return n["input_tokens"].(float64)
	}
	question := fields{"role": "user", "content": "well?"}
	if got, want := count([]any{fields{"type": "item_reference", "id": message}, question}), count([]any{fields{"role": "assistant", "content": "Fine."}, question}); got != want {
		t.Errorf("%v tokens with a reference, %v with the message", got, want)
	}
	// Another key knows nothing of it.
	refer := responding([]any{fields{"type": "item_reference", "id": message}}).text()
	unknown := func(status int) {
		t.Helper()
		w.refused(http.MethodGet, one, "", status, "response_id", "response_not_found", id)
		w.refused(http.MethodGet, one+"/input_items", "", status, "response_id", "response_not_found", id)
		w.refused(http.MethodDelete, one, "", status, "response_id", "response_not_found", id)
		w.refused(http.MethodPost, one+"/cancel", "", status, "response_id", "response_not_found", id)
		w.refused(http.MethodPost, responsesPath, responding("x").with(fields{"previous_response_id": id}).text(), status, "previous_response_id", "previous_response_not_found", id)
		w.refused(http.MethodPost, responsesPath, refer, status, "input[0]", "item_not_found", message.(string))
	}
	w.key = made["bob"]
	unknown(404)
	w.key = made["ann"]
	w.refused(http.MethodPost, one+"/cancel", "", 400, "response_id", "", "background")
	w.refused(http.MethodGet, one+"?stream=true", "", 400, "stream", "unsupported_parameter")
	w.refused(http.MethodGet, one+"/input_items?limit=101", "", 400, "limit", "", "100")
	w.refused(http.MethodGet, one+"/input_items?after=x", "", 400, "after", "")
	w.refused(http.MethodGet, one+"/input_items?order=x", "", 400, "order", "", "desc")
	status, _, b := w.send(http.MethodDelete, one, "")
	if want := map[string]any{"id": id, "object": "response", "deleted": true}; status != 200 || !reflect.DeepEqual(parsed(t, string(b)), any(want)) {
		t.Errorf("%d %s", status, b)
	}
	unknown(404)
	w.refused(http.MethodGet, responsesPath+"/"+strings.Repeat("x", 300), "", 404, "response_id", "response_not_found")
}

// TestResponsesThatAreNotStored: with store false, or where the server stores none, there is nothing to ask for, and the answer says so.
func TestResponsesThatAreNotStored(t *testing.T) {
	for name, o := range map[string]struct {
		options
		change fields
	}{"as asked": {options{change: keeping}, fields{"store": false}}, "never": {options{}, fields{"store": true}}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, o.options)
			w.says("<think>\nHm.\n</think>\n\nFine.")
			got := w.respond(responding("hi").with(o.change).with(fields{"reasoning": fields{}}))
			if got["store"] != false {
				t.Errorf("store is %v", got["store"])
			}
			if sealed := got["output"].([]any)[0].(map[string]any)["encrypted_content"]; sealed != sealReasoning("Hm.") {
				t.Errorf("reasoning is sealed as %v", sealed)
			}
			w.refused(http.MethodGet, responsesPath+"/"+got["id"].(string), "", 404, "response_id", "response_not_found")
		})
	}
}

// troubled is a store that takes no responses.
type troubled struct {
	store.Store
	full, failing atomic.Bool
}

func (s *troubled) Err() error {
	if s.full.Load() {
		return errors.New("the disk is full")
	}
	return s.Store.Err()
}

func (s *troubled) Commit(ctx context.Context, b store.Batch) error {
	if s.failing.Load() && slices.ContainsFunc(b.Put, func(r store.Record) bool { return r.Collection == "responses" }) {
		return store.ErrUnavailable
	}
	return s.Store.Commit(ctx, b)
}

// TestResponsesThatCannotBeStored: an answer that was to be stored and is not has failed; where it is known before, nothing is sampled.
func TestResponsesThatCannotBeStored(t *testing.T) {
	var s *troubled
	w := newWorld(t, options{change: func(c *runs.Config) {
		s = &troubled{Store: c.Store}
		c.Store, c.ResponsesKept = s, day
	}})
	w.says("Fine.")
	body := responding("hi").text()
	s.full.Store(true)
	w.refused(http.MethodPost, responsesPath, body, 503, "", "", "the disk is full")
	w.respond(responding("hi").with(fields{"store": false}))
	s.full.Store(false)
	s.failing.Store(true)
	w.refused(http.MethodPost, responsesPath, body, 503, "", "")
	events, last := w.followed(responding("hi"))
	if got := types(events); !slices.Equal(got, told("failed", textEvents, []string{"error"})) || !reflect.DeepEqual(last["error"].(map[string]any)["code"], "server_error") {
		t.Errorf("%v, %v", got, last)
	}
	s.failing.Store(false)
	w.get(responsesPath+"/"+w.respond(responding("hi"))["id"].(string), "Response")
}

// TestStoredResponsesExpire: what is too old is unknown.
func TestStoredResponsesExpire(t *testing.T) {
	var later atomic.Int64
	w := newWorld(t, options{change: func(c *runs.Config) {
		c.ResponsesKept, c.Now = time.Hour, func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	}})
	w.says("Fine.")
	id := w.respond(responding("hi"))["id"].(string)
	w.get(responsesPath+"/"+id, "Response")
	later.Store(int64(time.Hour))
	w.refused(http.MethodGet, responsesPath+"/"+id, "", 404, "response_id", "response_not_found")
	w.refused(http.MethodPost, responsesPath, responding("x").with(fields{"previous_response_id": id}).text(), 404, "previous_response_id", "previous_response_not_found")
}

// FuzzStoredResponse reads anything as a stored response. What is damaged is an error, and takes no more memory than it may.
func FuzzStoredResponse(f *testing.F) {
	items := []item{{Type: itemMessage, Role: "user", Status: statusCompleted, Content: []textPart{{Type: partInput, Text: "hi"}}}}
	input, err := packItems(items)
	if err != nil {
		f.Fatal(err)
	}
	whole, err := packResponse(&responseObject{ID: "resp_x", Output: items, Tools: []any{}}, input, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:len(whole)/2])
	f.Add([]byte{storedForm})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := unpackResponse(b, func(n int64) error {
			if n > 1<<20 {
				return inference.Invalid("memory", "%d bytes", n)
			}
			return nil
		})
		if err == nil {
			_, _ = r.conversation()
			_, _ = r.items("resp_x")
		}
	})
}

// TestReferencesAreReadOnce: an item that is referred to many times takes the memory of one.
func TestReferencesAreReadOnce(t *testing.T) {
	r := &storedResponse{input: []byte(`[{"type":"message","role":"user","content":"a long text"}]`), object: []byte(`{"output":[{"type":"message","id":"msg_ABCDEFGHIJKLMNOPQRSTUVWXYZ00","role":"assistant","content":"said"}]}`)}
	const response = responsePrefix + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var first item
	for _, id := range []string{"msg_ABCDEFGHIJKLMNOPQRSTUVWXYZ00", "msg_ABCDEFGHIJKLMNOPQRSTUVWXYZi00"} {
		for again := range 3 {
			got, ok, err := r.item(response, id)
			if err != nil || !ok {
				t.Fatalf("%s: %v %v", id, ok, err)
			}
			if again == 0 {
				first = got
			} else if &got.Content[0] != &first.Content[0] {
				t.Errorf("%s is read again", id)
			}
		}
	}
	if _, ok, err := r.item(response, "msg_x"); ok || err != nil {
		t.Errorf("%v %v", ok, err)
	}
}

// TestStoringAndStops: the log-probabilities of a response that is stored are those of one that is not, whatever token ends it.
func TestStoringAndStops(t *testing.T) {
	w := newWorld(t, options{change: keeping})
	w.says("one two three")
	word := encoded(t, w.model.Tokenizer, "one two three")
	listed := func(more fields) int {
		t.Helper()
		out := w.respond(responding("x").with(fields{"include": []string{"message.output_text.logprobs"}, "stop": []string{" two zzz"}, "stop_token_ids": word[len(word)-1:]}).with(more))
		message := out["output"].([]any)[0].(map[string]any)
		return len(message["content"].([]any)[0].(map[string]any)["logprobs"].([]any))
	}
	for _, more := range []fields{{}, {"include_stop_str_in_output": true}} {
		if stored, not := listed(more), listed(more.with(fields{"store": false})); stored != not || not == 0 {
			t.Errorf("%v: %d log-probabilities are stored, %d not", more, stored, not)
		}
	}
}
