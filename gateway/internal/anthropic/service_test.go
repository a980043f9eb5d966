package anthropic

import (
	"context"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tinsmith/tinsmith/gateway/internal/inference/inferencetest"
)

// TestKeys: a key comes in either of two headers.
func TestKeys(t *testing.T) {
	path, made := inferencetest.KeysFile(t, "ann")
	w := newWorld(t, inferencetest.Options{Keys: path})
	w.Says("fine")
	w.refused("/v1/messages", asking("hi").Text(), 401, "authentication_error", "key")
	for _, header := range []http.Header{{"X-Api-Key": {made["ann"]}}, {"Authorization": {"Bearer " + made["ann"]}}} {
		if status, _, b := w.Send(http.MethodPost, "/v1/messages", asking("hi").Text(), header); status != http.StatusOK {
			t.Errorf("%v: %d %s", header, status, b)
		}
	}
}

// TestFaults: faults of the server have this API's statuses, and those that pass are repeated by its clients.
func TestFaults(t *testing.T) {
	w := newWorld(t, inferencetest.Options{Backend: `"faults": [{"operation": "sample", "n": 1, "action": "fail", "message": "gone", "kind": "unavailable"}, {"operation": "sample", "n": 2, "action": "fail", "message": "no room", "kind": "capacity"}, {"operation": "sample", "n": 3, "action": "fail", "message": "secret path"}],`})
	w.refused("/v1/messages", asking("hi").Text(), 529, "overloaded_error", "gone")
	w.refused("/v1/messages", asking("hi").Text(), 429, "rate_limit_error", "no room")
	w.refused("/v1/messages", asking("hi").Text(), 500, "api_error")
}

// TestBrokenStream: a stream that fails ends with an error.
func TestBrokenStream(t *testing.T) {
	w := newWorld(t, inferencetest.Options{Backend: `"faults": [{"operation": "token", "n": 5, "action": "fail", "message": "the device is on fire", "kind": "unavailable"}],`})
	events := w.events(asking("hi"))
	last := events[len(events)-1]
	e, _ := last.data["error"].(object)
	if last.name != "error" || e["type"] != "overloaded_error" || !strings.Contains(e["message"].(string), "the device is on fire") || events[0].name != "message_start" {
		t.Errorf("events %v", events)
	}
}

// TestTokens: the tokens of all events are those of the whole answer, and those of the prompt come first.
func TestTokens(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	for name, says := range map[string]string{"thoughts and a call": thoughts + "Let me see.\n" + oneCall, "nothing": "", "stopped": "one two three four"} {
		w.Says(says)
		f := asking("weather?").With(fields{"tools": []fields{weather}, "return_token_ids": true, "stop_sequences": []string{" three"}})
		whole := w.whole(f)
		var ids []any
		var prompt any
		for i, e := range w.events(f) {
			if i == 0 {
				prompt = e.data["prompt_token_ids"]
				if e.data["weight_version"] != 0. || e.data["model_path"] != nil {
					t.Errorf("%s: the stream begins with %v", name, e.data)
				}
			}
			some, _ := e.data["token_ids"].([]any)
			ids = append(ids, some...)
		}
		if !reflect.DeepEqual(any(ids), whole["token_ids"]) || len(ids) == 0 || !reflect.DeepEqual(prompt, whole["prompt_token_ids"]) || prompt == nil {
			t.Errorf("%s: streamed %v of %v, whole %v of %v", name, ids, prompt, whole["token_ids"], whole["prompt_token_ids"])
		}
		if float64(len(ids)) != whole["usage"].(object)["output_tokens"] {
			t.Errorf("%s: %d tokens, usage %v", name, len(ids), whole["usage"])
		}
	}
	plain := w.whole(asking("hi"))
	for _, key := range []string{"prompt_token_ids", "token_ids", "datum", "weight_version"} {
		if _, there := plain[key]; there {
			t.Errorf("%s is there though nobody has asked", key)
		}
	}
}

// TestDatum: an answer as training data.
func TestDatum(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	f := asking("hi").With(fields{"return_datum": true, "max_tokens": 8, "seed": 3})
	whole := w.whole(f)
	inputs := whole["datum"].(object)["loss_fn_inputs"].(object)
	prompt, sampled := len(whole["prompt_token_ids"].([]any)), len(whole["token_ids"].([]any))
	if got := len(inputs["target_tokens"].(object)["data"].([]any)); got != prompt+sampled-1 {
		t.Errorf("%d targets of %d + %d tokens", got, prompt, sampled)
	}
	events := w.events(f)
	if end := events[len(events)-2]; end.name != "message_delta" || !reflect.DeepEqual(end.data["datum"], whole["datum"]) {
		t.Errorf("streamed %v, whole %v", end.data["datum"], whole["datum"])
	} else if end.data["sequence_id"] == nil || whole["sequence_id"] == nil || end.data["sequence_id"] == whole["sequence_id"] {
		t.Errorf("recorded as %v and %v", end.data["sequence_id"], whole["sequence_id"])
	}
}

// TestSessions: a conversation's tokens are remembered, also of a call whose arguments this API spaces anew.
func TestSessions(t *testing.T) {
	for name, header := range map[string]bool{"a field": false, "a header": true} {
		w := newWorld(t, inferencetest.Options{})
		f := fields{"tools": []fields{weather}}
		if header {
			w.header.Set("X-Session-Id", "play")
		} else {
			f["session_id"] = "play"
		}
		w.Says("Let me see.\n" + oneCall)
		first := w.whole(asking("weather?").With(f))
		call := first["content"].([]any)[1].(object)
		w.Says("Sunny.")
		second := w.whole(asking("weather?").With(f).With(fields{"messages": []any{
			says("user", "weather?"), object{"role": "assistant", "content": first["content"]}, says("user", object{"type": "tool_result", "tool_use_id": call["id"], "content": "sun"}),
		}}))
		prefix, _ := second["prefix"].(object)
		if prefix["exact"] != true {
			t.Errorf("%s: prefix %v", name, prefix)
		}
		ids := append(first["prompt_token_ids"].([]any), first["token_ids"].([]any)...)
		if got := second["prompt_token_ids"].([]any); !reflect.DeepEqual(got[:len(ids)], ids) {
			t.Errorf("%s: the second prompt does not begin with the first and its answer", name)
		}
	}
}

// TestModels: what may be asked, by its own paths.
func TestModels(t *testing.T) {
	w := newWorld(t, inferencetest.Options{})
	for _, prefix := range Prefixes[1:] {
		status, header, b := w.Send(http.MethodGet, prefix+"/models?limit=20", "", w.header)
		list := parsed(t, b)
		data := list["data"].([]any)
		if status != 200 || list["has_more"] != false || list["first_id"] != data[0].(object)["id"] || list["last_id"] != data[len(data)-1].(object)["id"] || !strings.HasPrefix(header.Get("Request-Id"), "req_") {
			t.Errorf("%d %s", status, b)
		}
		model := data[0].(object)
		if created, err := time.Parse(time.RFC3339, model["created_at"].(string)); err != nil || created.IsZero() || model["type"] != "model" || model["id"] != inferencetest.ModelName || model["display_name"] == "" {
			t.Errorf("%s: %v", b, err)
		}
		status, _, b = w.Send(http.MethodGet, prefix+"/models/"+strings.ReplaceAll(inferencetest.ModelName, "/", "%2F"), "", w.header)
		if status != 200 || !reflect.DeepEqual(parsed(t, b), model) {
			t.Errorf("%d %s", status, b)
		}
		status, _, b = w.Send(http.MethodGet, prefix+"/models/none", "", w.header)
		if e, _ := parsed(t, b)["error"].(object); status != 404 || e["type"] != "not_found_error" {
			t.Errorf("%d %s", status, b)
		}
	}
}

// TestRevokedKey: a key that is revoked ends its streams, which say why.
func TestRevokedKey(t *testing.T) {
	path, made := inferencetest.KeysFile(t, "ann")
	w := newWorld(t, inferencetest.Options{Keys: path, Backend: `"delays": [{"operation": "token", "seconds": 0.02}],`})
	w.header.Set("X-Api-Key", made["ann"])
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/v1/messages", strings.NewReader(asking("hi").With(fields{"stream": true, "max_tokens": 1900}).Text()))
	w.OK(err)
	req.Header = w.header
	res, err := w.Client.Do(req)
	w.OK(err)
	defer res.Body.Close()
	first := make([]byte, 64)
	n, err := res.Body.Read(first)
	w.OK(err)
	if !strings.HasPrefix(string(first[:n]), "event: message_start\n") {
		t.Errorf("the stream begins with %q", first[:n])
	}
	w.OK(w.Auth.Ring.Revoke(made["ann"]))
	var rest strings.Builder
	buffer := make([]byte, 4096)
	for err == nil {
		n, err = res.Body.Read(buffer)
		rest.Write(buffer[:n])
	}
	events := strings.Split(strings.TrimSpace(rest.String()), "\n\n")
	if last := events[len(events)-1]; !strings.HasPrefix(last, "event: error\n") || !strings.Contains(last, "authentication_error") || !strings.Contains(last, "revoked") {
		t.Errorf("the stream ends with %q", last)
	}
}

// TestStreamsBeginWhileTheyWait: the head of a stream comes before there is a token.
func TestStreamsBeginWhileTheyWait(t *testing.T) {
	w := newWorld(t, inferencetest.Options{Backend: `"delays": [{"operation": "token", "seconds": 3600}],`})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/v1/messages", strings.NewReader(asking("hi").With(fields{"stream": true}).Text()))
	w.OK(err)
	res, err := w.Client.Do(req)
	w.OK(err)
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("%d %v", res.StatusCode, res.Header)
	}
	cancel()
	_ = res.Body.Close()
	w.Eventually(func() bool { return w.Core.Stats().Generations == 0 })
}
